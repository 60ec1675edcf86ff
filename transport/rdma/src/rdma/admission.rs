//! Which requests of peers are looked at, which there is room for, and when a stranger goes for the next one: numbers, and the memory of a
//! connection.

use driver::{Span, Time};
use memory::{Arena, Filling};
use rdma_link::{RX, SLOT};

use super::LINES;

/// Of 8 parts of the arena, so many for connections of peers: what [`memory::Shares::even`] leaves to all classes.
const ACCEPTED_EIGHTHS: usize = 3;
/// Connections of peers at a time. The other places are for those that lead to peers: no request takes them.
const PEERS: usize = LINES / 4 * 3;
/// Of the connections that there is room for, one of so many may be a stranger's: of one who has not proven who he is.
const STRANGERS: usize = 2;
/// And one of so many is left for whoever asks next: a stranger that goes for him takes a while to give back what it has.
const SPARE: usize = 16;
/// One request is looked at in this time, over a while: 500 a second. Completion queue, queue pair, eight windows and 66 receives are made
/// for each on the reactor's thread, and unmade there if it goes for the next one.
const REQUEST_EVERY: Span = Span::millis(2);
/// So many may come at once: all that there are places for, after a node's start.
const REQUEST_BURST: usize = LINES;

/// For how many connections of peers an arena of so many bytes has room beside `outgoing` ones that lead to peers, if each class is to have
/// what is its own.
pub(super) fn room(capacity: usize, outgoing: usize) -> usize {
    let all = capacity / 8 * ACCEPTED_EIGHTHS / (usize::from(RX) * SLOT);
    all.saturating_sub(outgoing).min(PEERS)
}

/// The receives of one connection, or none of them. A peer keeps them for as long as it likes: they are no class's own.
pub(super) fn slots(arena: &Arena) -> Option<Vec<Filling>> {
    (0..RX).map(|_| arena.take_common(SLOT)).collect()
}

/// When what was looked at so far would have come, one in each [`REQUEST_EVERY`]: ahead of the time by a burst at most.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Pace(Time);

impl Pace {
    /// Whether one more is looked at now. What is not is turned away: a peer tries again, or elsewhere.
    pub(super) fn allows(&mut self, now: Time) -> bool {
        let burst = Span(REQUEST_EVERY.0 * REQUEST_BURST as u64);
        let paced = self.0.max(now) + REQUEST_EVERY;
        let allowed = paced <= now + burst;
        if allowed {
            self.0 = paced;
        }
        allowed
    }
}

/// What a request finds. What ends by itself is not counted: its place and its memory come back whoever else goes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Crowd {
    /// Connections of peers that there is room for.
    pub(super) room: usize,
    /// Those that there are, strangers included.
    pub(super) peers: usize,
    /// Those of peers that have proven nothing.
    pub(super) strangers: usize,
    /// Places that no connection has.
    pub(super) free: usize,
}

impl Crowd {
    /// The oldest stranger makes room for the next if they are many, or if hardly any is left: whoever asks and says no more locks nobody out.
    pub(super) fn displaces(self) -> bool {
        let spare = self.room.div_ceil(SPARE);
        self.strangers >= self.room / STRANGERS || self.peers + spare >= self.room || self.free <= spare
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use memory::{ArenaOptions, Backing, Class, Shares};

    #[test]
    fn strangers_make_room_where_they_are_many_and_where_hardly_any_is_left() {
        let crowd = Crowd { room: 186, peers: 100, strangers: 0, free: 156 };
        assert!(!crowd.displaces());
        assert!(Crowd { peers: 93, strangers: 93, ..crowd }.displaces(), "half of the room");
        assert!(!Crowd { peers: 92, strangers: 92, ..crowd }.displaces());
        assert!(!Crowd { peers: 173, strangers: 73, ..crowd }.displaces(), "there is room for more");
        assert!(Crowd { peers: 174, strangers: 74, ..crowd }.displaces(), "few, but they have what is left");
        assert!(Crowd { strangers: 1, free: 12, ..crowd }.displaces(), "connections to peers have the other places");
    }

    #[test]
    fn requests_leave_places_to_connections_that_lead_to_peers_however_large_the_arena() {
        let rooms = [32, 64, 256, 1 << 10, 1 << 20].map(|mebibytes: usize| room(mebibytes << 20, 0));
        assert_eq!(rooms, [23, 46, 186, 192, 192]);
        // Strangers alone, as many as they can be: they are displaced before there is no place any more.
        assert!(Crowd { room: room(1 << 40, 0), peers: 96, strangers: 96, free: LINES - 96 }.displaces());
    }

    #[test]
    fn as_many_connections_as_there_can_be_leave_a_client_what_is_its_own() {
        let bytes = 64 << 20;
        let options = ArenaOptions { bytes, backing: Backing::SmallPages, shares: Shares::even(bytes) };
        let arena = Arena::new(options).unwrap();
        let outgoing: Vec<_> = (0..16).map_while(|_| slots(&arena)).collect();
        let mut lines: Vec<_> = (0..room(bytes, outgoing.len())).map_while(|_| slots(&arena)).collect();
        assert_eq!((outgoing.len(), lines.len()), (16, 30), "there is memory for all that there is room for");
        lines.extend(std::iter::from_fn(|| slots(&arena)));
        assert_eq!(lines.len(), 30, "and for no more");
        assert!([Class::Settle, Class::Replica, Class::Client].iter().all(|class| arena.free(*class) >= bytes / 8));
        assert_eq!(room(bytes, 100), 0);
    }

    #[test]
    fn a_flood_of_requests_is_looked_at_at_a_pace_and_what_comes_together_after_a_while_is_not_turned_away() {
        let mut pace = Pace::default();
        let mut flood = |at: Time| (0..1000).filter(|_| pace.allows(at)).count();
        let start = Time(0) + Span::seconds(100);
        assert_eq!(flood(start), LINES);
        assert_eq!(flood(start + Span::millis(1)), 0);
        let second = (1..=1000).map(|ms| flood(start + Span::millis(ms))).sum::<usize>();
        assert_eq!(second, 500, "whoever is turned away costs the others nothing");
        assert_eq!(flood(start + Span::seconds(100)), LINES);
    }
}
