//! Client sessions: one client's authenticated presence on this reactor, on one or more lanes.
//!
//! Fencing (rule 8, rule 24): a Hello with a higher incarnation, or a second one on the same lane, fences the older connections
//! before it is admitted: they are closed and their unstamped requests are gone. So does another attachment of the same
//! incarnation. Stamped ones run on under their locks, so a resend queues behind its twin. One reactor's sessions are all that has to be
//! fenced, although the rule says node-wide: a shard belongs to one reactor, so the twin of a resend can only be here.
//!
//! Generations (rule 19): what is below a volume's floor is over. A writer's Hello raises the floor to its own generation; a reader's does
//! not, because other readers are below it, nor does that of one who shares. Of these the conductor says which ones are still attached. Of two
//! that are not of a kind the one with the higher generation is there, whichever comes first.

use crate::limits::{MAX_LANES, MAX_SESSIONS, MAX_SESSIONS_EACH};
use crate::mail::{RangeView, SessionView};
use conductor_model::api::ReaderList;
use conductor_model::{AttachGeneration, Incarnation, SnapshotId, VolumeId};
use driver::ConnId;
use node_store::View;
use std::collections::{BTreeMap, BTreeSet};

/// One client's presence.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) id: u32,
    pub(crate) client: String,
    pub(crate) volume: VolumeId,
    pub(crate) generation: AttachGeneration,
    /// What it reads. A snapshot's readers write nothing, so any number of them is there at once and nobody fences them.
    pub(crate) view: View,
    /// Read-only: other readers may be attached too.
    pub(crate) read_only: bool,
    /// It writes only what it holds (`ranges`), and others that do so may be there at once.
    pub(crate) shared: bool,
    incarnation: Incarnation,
    lanes: BTreeMap<u16, ConnId>,
}

impl Session {
    /// Both are of a kind, of which several may be there at once unless it is the writer's.
    fn joins(&self, wanted: &Wanted<'_>) -> bool {
        (self.read_only, self.shared) == (wanted.read_only, wanted.shared)
    }
}

/// What a session is known by. Readers of a snapshot also by their incarnation: they have nothing to do with one another.
type Key = (VolumeId, String, Option<(SnapshotId, Incarnation)>);

/// Why a Hello was not admitted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Refusal {
    /// A newer incarnation of this client, or a newer attachment of the volume, is known.
    Fenced,
    /// No room for another session or lane.
    Busy,
}

/// What a Hello says about the session that it wants.
#[derive(Debug)]
pub(crate) struct Wanted<'a> {
    pub(crate) client: &'a str,
    pub(crate) volume: VolumeId,
    pub(crate) generation: AttachGeneration,
    pub(crate) incarnation: Incarnation,
    pub(crate) lane: u16,
    pub(crate) view: View,
    pub(crate) read_only: bool,
    pub(crate) shared: bool,
}

impl Wanted<'_> {
    /// Others may be there at once, each with a generation of its own.
    fn is_of_several(&self) -> bool {
        self.read_only || self.shared
    }
}

/// All sessions of one reactor.
#[derive(Debug, Default)]
pub(crate) struct Sessions {
    by_client: BTreeMap<Key, Session>,
    by_conn: BTreeMap<ConnId, Key>,
    /// Below these everything is over.
    floors: BTreeMap<VolumeId, AttachGeneration>,
    /// Of volumes that are shared: up to which generation it is known who is still attached, and who that is.
    readers: BTreeMap<VolumeId, (AttachGeneration, Vec<AttachGeneration>)>,
    last_id: u32,
}

impl Sessions {
    /// Admits a connection. The second part lists connections to fence *before* the acknowledgement leaves.
    pub(crate) fn admit(&mut self, conn: ConnId, wanted: &Wanted<'_>) -> Result<(u32, Vec<ConnId>), Refusal> {
        let reader = match wanted.view {
            View::Live => None,
            View::Snapshot(snapshot) => Some((snapshot, wanted.incarnation)),
        };
        if reader.is_none() && self.is_over(wanted.volume, wanted.generation, wanted.is_of_several()) {
            return Err(Refusal::Fenced);
        }
        let key = (wanted.volume, wanted.client.to_owned(), reader);
        let known = self.by_client.get(&key);
        let newer_life = known.is_some_and(|s| s.incarnation > wanted.incarnation);
        if newer_life && !driver::mutant::on("old_incarnation_served") {
            return Err(Refusal::Fenced);
        }
        let newer = |s: &Session| s.generation > wanted.generation && (s.client == wanted.client || !s.joins(wanted));
        if reader.is_none() && self.live(wanted.volume).any(newer) {
            return Err(Refusal::Fenced);
        }
        if wanted.lane >= MAX_LANES || (known.is_none() && !self.has_room(wanted.client)) {
            return Err(Refusal::Busy);
        }
        let mut fence = match reader {
            None if !wanted.is_of_several() => self.set_generation(wanted.volume, wanted.generation),
            // The conductor gave it this one only after the others' were over.
            None => self.end(wanted.volume, |s| s.generation < wanted.generation && !s.joins(wanted)),
            Some(_) => Vec::new(),
        };
        self.last_id += 1;
        let session = self.by_client.entry(key.clone()).or_insert_with(|| Session {
            id: self.last_id,
            client: wanted.client.to_owned(),
            volume: wanted.volume,
            generation: wanted.generation,
            view: wanted.view,
            read_only: wanted.read_only,
            shared: wanted.shared,
            incarnation: wanted.incarnation,
            lanes: BTreeMap::new(),
        });
        // Another attachment of the same life is as good as another life: what the one before holds is not its.
        let attached_anew = session.generation < wanted.generation || !session.joins(wanted);
        if session.incarnation < wanted.incarnation || (reader.is_none() && attached_anew) {
            fence.extend(session.lanes.values());
            session.lanes.clear();
            session.incarnation = wanted.incarnation;
            (session.read_only, session.shared) = (wanted.read_only, wanted.shared);
            session.id = self.last_id;
        }
        session.generation = wanted.generation;
        fence.extend(session.lanes.insert(wanted.lane, conn));
        let id = session.id;
        for gone in &fence {
            self.by_conn.remove(gone);
        }
        self.by_conn.insert(conn, key);
        Ok((id, fence))
    }

    /// Whether this client may have one more. Those with the same key count as one: they choose their own names.
    fn has_room(&self, client: &str) -> bool {
        let all = self.by_client.len();
        let owner = owner(client);
        let its = || self.by_client.keys().filter(|(_, name, _)| self::owner(name) == owner).count();
        all < MAX_SESSIONS && (all < MAX_SESSIONS_EACH || its() < MAX_SESSIONS_EACH)
    }

    /// A newer floor of a volume's attach generations is known. Returns the connections of older attachments: to be fenced.
    pub(crate) fn set_generation(&mut self, volume: VolumeId, generation: AttachGeneration) -> Vec<ConnId> {
        let known = self.floors.entry(volume).or_default();
        if *known >= generation {
            return Vec::new();
        }
        *known = generation;
        // Everybody on the old list is below the new floor.
        if self.readers.get(&volume).is_some_and(|(upto, _)| *upto < generation) {
            self.readers.remove(&volume);
        }
        self.end_stale(volume)
    }

    /// Who of a volume's readers is still attached. Returns the connections of those that are not: to be fenced.
    pub(crate) fn set_readers(&mut self, list: ReaderList) -> Vec<ConnId> {
        let ReaderList { volume, upto, readers } = list;
        if self.floor(volume) > upto || self.readers.get(&volume).is_some_and(|(known, _)| *known > upto) {
            return Vec::new();
        }
        self.readers.insert(volume, (upto, readers));
        self.end_stale(volume)
    }

    /// The sessions of a volume itself, not of its snapshots.
    fn live(&self, volume: VolumeId) -> impl Iterator<Item = &Session> {
        self.by_client.values().filter(move |s| s.volume == volume && s.view == View::Live)
    }

    /// Ends the sessions of a volume whose attachment is over.
    fn end_stale(&mut self, volume: VolumeId) -> Vec<ConnId> {
        let stale = |s: &&Session| self.is_over(volume, s.generation, s.read_only || s.shared);
        let stale: BTreeSet<u32> = self.live(volume).filter(stale).map(|s| s.id).collect();
        self.end(volume, |s| stale.contains(&s.id))
    }

    /// Ends these sessions of a volume itself. Returns their connections: to be fenced.
    fn end(&mut self, volume: VolumeId, over: impl Fn(&Session) -> bool) -> Vec<ConnId> {
        let its = |_: &Key, s: &mut Session| s.volume == volume && s.view == View::Live && over(s);
        let ended = self.by_client.extract_if(.., its);
        let fence: Vec<ConnId> = ended.flat_map(|(_, session)| session.lanes.into_values()).collect();
        for gone in &fence {
            self.by_conn.remove(gone);
        }
        fence
    }

    /// True if an attachment of this generation has ended, as far as is known here.
    fn is_over(&self, volume: VolumeId, generation: AttachGeneration, of_several: bool) -> bool {
        let listed = |(upto, readers): &(AttachGeneration, Vec<_>)| generation > *upto || readers.contains(&generation);
        generation < self.floor(volume) || (of_several && !self.readers.get(&volume).is_none_or(listed))
    }

    /// The oldest attach generation of a volume that may be served.
    fn floor(&self, volume: VolumeId) -> AttachGeneration {
        self.floors.get(&volume).copied().unwrap_or_default()
    }

    /// The session that a connection is bound to; `None` if it was fenced or is none of a client's.
    pub(crate) fn of(&self, conn: ConnId) -> Option<&Session> {
        self.by_client.get(self.by_conn.get(&conn)?)
    }

    /// Which sessions there are.
    pub(crate) fn ids(&self) -> BTreeSet<u32> {
        self.by_client.values().map(|session| session.id).collect()
    }

    /// A connection is down. Its session goes with its last lane.
    pub(crate) fn gone(&mut self, conn: ConnId) {
        let Some(key) = self.by_conn.remove(&conn) else { return };
        if let Some(session) = self.by_client.get_mut(&key) {
            session.lanes.retain(|_, bound| *bound != conn);
            if session.lanes.is_empty() {
                self.by_client.remove(&key);
            }
        }
    }

    /// All of them; `requests` counts those of one connection that are not answered yet, `key` is what one has proved to have, `ranges` are
    /// those of one session.
    pub(crate) fn view(
        &self,
        requests: impl Fn(ConnId) -> usize,
        key: impl Fn(ConnId) -> Option<u64>,
        ranges: impl Fn(u32) -> Vec<RangeView>,
    ) -> Vec<SessionView> {
        self.by_client
            .values()
            .map(|s| SessionView {
                id: s.id,
                client: s.client.clone(),
                volume: s.volume,
                generation: s.generation,
                snapshot: match s.view {
                    View::Live => None,
                    View::Snapshot(snapshot) => Some(snapshot),
                },
                read_only: s.read_only,
                shared: s.shared,
                key: s.lanes.values().filter_map(|conn| key(*conn)).min(),
                ranges: ranges(s.id),
                lanes: s.lanes.len(),
                requests: s.lanes.values().map(|conn| requests(*conn)).sum(),
            })
            .collect()
    }
}

/// Whose a client is: its key's, if it has one.
fn owner(client: &str) -> &str {
    wire::key_of(client).unwrap_or(client)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn conn(slot: u32) -> ConnId {
        ConnId { slot, generation: 0 }
    }
    fn wanted(incarnation: u64, generation: u64, lane: u16) -> Wanted<'static> {
        Wanted {
            client: "host",
            volume: VolumeId(1),
            generation: AttachGeneration(generation),
            incarnation: Incarnation(incarnation),
            lane,
            view: View::Live,
            read_only: false,
            shared: false,
        }
    }

    #[test]
    fn a_second_hello_on_a_lane_fences_the_first() {
        let mut all = Sessions::default();
        let (first, none) = all.admit(conn(1), &wanted(5, 1, 0)).unwrap();
        assert!(none.is_empty());
        let (same, none) = all.admit(conn(2), &wanted(5, 1, 1)).unwrap();
        assert!(none.is_empty() && same == first, "another lane joins the session");
        assert_eq!(all.admit(conn(3), &wanted(5, 1, 0)).unwrap(), (first, vec![conn(1)]));
        assert!(all.of(conn(1)).is_none() && all.of(conn(2)).is_some());
    }

    #[test]
    fn a_higher_incarnation_fences_every_lane_and_a_lower_one_is_refused() {
        let mut all = Sessions::default();
        all.admit(conn(1), &wanted(5, 1, 0)).unwrap();
        all.admit(conn(2), &wanted(5, 1, 1)).unwrap();
        assert_eq!(all.admit(conn(3), &wanted(6, 1, 0)).unwrap().1, [conn(1), conn(2)]);
        assert_eq!(all.admit(conn(4), &wanted(5, 1, 2)), Err(Refusal::Fenced));
    }

    #[test]
    fn one_client_cannot_take_all_the_sessions() {
        let mut all = Sessions::default();
        let of = |client, volume| Wanted { client, volume: VolumeId(volume), ..wanted(1, 1, 0) };
        let mut next = 0..;
        let mut admit = |wanted| all.admit(conn(next.next().unwrap()), &wanted).map(|_| ());
        for volume in 0..MAX_SESSIONS_EACH {
            admit(of("greedy", u32::try_from(volume).unwrap())).unwrap();
        }
        assert_eq!(admit(of("greedy", 9999)), Err(Refusal::Busy));
        admit(Wanted { lane: 1, ..of("greedy", 0) }).unwrap();
        admit(of("modest", 9999)).unwrap();
        let mut all = Sessions::default();
        let mut admit = |wanted| all.admit(conn(next.next().unwrap()), &wanted).map(|_| ());
        let names: Vec<String> = (0..=MAX_SESSIONS_EACH).map(|n| format!("key@{n}")).collect();
        for name in &names[1..] {
            admit(of(name, 1)).unwrap();
        }
        assert_eq!(admit(of(&names[0], 1)), Err(Refusal::Busy), "names are free, keys are not");
        admit(of("other@0", 1)).unwrap();
    }

    #[test]
    fn a_newer_attachment_fences_the_older_one() {
        let mut all = Sessions::default();
        all.admit(conn(1), &wanted(5, 1, 0)).unwrap();
        assert_eq!(all.set_generation(VolumeId(1), AttachGeneration(2)), [conn(1)]);
        assert_eq!(all.admit(conn(2), &wanted(9, 1, 0)), Err(Refusal::Fenced));
        all.admit(conn(3), &wanted(9, 2, 0)).unwrap();
        all.gone(conn(3));
        assert!(all.view(|_| 0, |_| None, |_| Vec::new()).is_empty());
    }

    #[test]
    fn readers_of_a_volume_are_there_at_once_until_a_writer_comes_or_they_are_not_listed_any_more() {
        let mut all = Sessions::default();
        let reader = |client, generation| Wanted { client, read_only: true, ..wanted(generation, generation, 0) };
        let list = |upto, readers: &[u64]| ReaderList {
            volume: VolumeId(1),
            upto: AttachGeneration(upto),
            readers: readers.iter().copied().map(AttachGeneration).collect(),
        };
        all.admit(conn(1), &wanted(1, 1, 0)).unwrap();
        assert_eq!(all.admit(conn(2), &reader("a", 2)).unwrap().1, [conn(1)], "what a reader has taken from a writer");
        assert!(all.set_generation(VolumeId(1), AttachGeneration(2)).is_empty());
        assert!(all.admit(conn(3), &reader("b", 3)).unwrap().1.is_empty());
        assert!(all.set_readers(list(2, &[2])).is_empty(), "of a later one it says nothing");
        assert!(all.set_readers(list(3, &[2, 3])).is_empty());
        assert!(all.of(conn(2)).is_some_and(|s| s.read_only) && all.of(conn(3)).is_some());

        assert_eq!(all.set_readers(list(3, &[2])), [conn(3)], "b was evicted");
        assert_eq!(all.admit(conn(4), &reader("b", 3)), Err(Refusal::Fenced));
        assert!(all.set_readers(list(2, &[2])).is_empty(), "an older word comes late");
        assert_eq!(all.admit(conn(4), &reader("b", 3)), Err(Refusal::Fenced));
        all.admit(conn(5), &reader("b", 4)).unwrap();

        assert_eq!(all.admit(conn(6), &wanted(5, 5, 0)).unwrap().1, [conn(2), conn(5)]);
        assert!(all.set_readers(list(4, &[2, 4])).is_empty());
        assert_eq!(all.admit(conn(7), &reader("a", 4)), Err(Refusal::Fenced));
    }

    #[test]
    fn those_who_share_a_volume_are_there_at_once_until_one_comes_who_wants_it_alone() {
        let mut all = Sessions::default();
        let sharer = |client, generation| Wanted { client, shared: true, ..wanted(generation, generation, 0) };
        all.admit(conn(1), &sharer("a", 2)).unwrap();
        assert!(all.admit(conn(2), &sharer("b", 3)).unwrap().1.is_empty());
        assert!(all.of(conn(1)).is_some_and(|s| s.shared && !s.read_only));
        let readers = vec![AttachGeneration(3)];
        let list = ReaderList { volume: VolumeId(1), upto: AttachGeneration(3), readers };
        assert_eq!(all.set_readers(list), [conn(1)], "a was evicted");
        assert_eq!(all.admit(conn(3), &sharer("a", 2)), Err(Refusal::Fenced));
        assert_eq!(all.admit(conn(4), &wanted(4, 4, 0)).unwrap().1, [conn(2)]);
    }

    #[test]
    fn of_two_kinds_the_newer_attachment_is_there_in_whatever_order_they_come() {
        let of = |(read_only, shared), client, generation, lane| Wanted {
            client,
            read_only,
            shared,
            ..wanted(generation, generation, lane)
        };
        let (exclusive, sharer, reader) = ((false, false), (false, true), (true, false));
        for (old, new) in [
            (exclusive, sharer),
            (exclusive, reader),
            (sharer, exclusive),
            (sharer, reader),
            (reader, exclusive),
            (reader, sharer),
        ] {
            let mut all = Sessions::default();
            all.admit(conn(1), &of(old, "a", 2, 0)).unwrap();
            assert_eq!(all.admit(conn(2), &of(new, "b", 3, 0)).unwrap().1, [conn(1)]);
            assert!(all.of(conn(1)).is_none() && all.of(conn(2)).is_some());
            assert_eq!(all.admit(conn(3), &of(old, "a", 2, 0)), Err(Refusal::Fenced));
            assert!(all.admit(conn(4), &of(new, "b", 3, 1)).unwrap().1.is_empty(), "another lane");
        }
    }

    #[test]
    fn another_attachment_of_the_same_life_fences_every_lane_and_an_older_one_is_refused() {
        let mut all = Sessions::default();
        let of = |generation, lane| Wanted { shared: true, ..wanted(5, generation, lane) };
        let (first, _) = all.admit(conn(1), &of(2, 0)).unwrap();
        all.admit(conn(2), &of(2, 1)).unwrap();
        let (second, fenced) = all.admit(conn(3), &of(3, 0)).unwrap();
        assert_eq!(fenced, [conn(1), conn(2)]);
        assert_ne!(first, second, "what it held is not held any more");
        assert_eq!(all.admit(conn(4), &of(2, 1)), Err(Refusal::Fenced));
        assert!(all.admit(conn(4), &of(3, 1)).unwrap().1.is_empty());
        // Of the same generation, but not what it was.
        let reads = Wanted { read_only: true, shared: false, ..of(3, 2) };
        assert_eq!(all.admit(conn(5), &reads).unwrap().1, [conn(3), conn(4)]);
        assert!(all.of(conn(5)).is_some_and(|s| s.read_only && !s.shared && s.id != second));
    }

    #[test]
    fn readers_of_a_snapshot_fence_nobody_and_are_fenced_by_nobody() {
        let mut all = Sessions::default();
        let reader = |incarnation| Wanted { view: View::Snapshot(SnapshotId(7)), ..wanted(incarnation, 0, 0) };
        all.admit(conn(1), &wanted(5, 3, 0)).unwrap();
        assert!(
            all.admit(conn(2), &reader(5)).unwrap().1.is_empty(),
            "of no generation, beside the writer of the same name"
        );
        assert!(all.admit(conn(3), &reader(4)).unwrap().1.is_empty(), "an older incarnation beside a newer one");
        assert_eq!(all.set_generation(VolumeId(1), AttachGeneration(9)), [conn(1)]);
        assert!(all.of(conn(2)).is_some() && all.of(conn(3)).is_some());
        assert_eq!(all.admit(conn(4), &reader(4)).unwrap().1, [conn(3)], "the same one on the same lane again");
    }
}
