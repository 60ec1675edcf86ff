//! How far the filling of a syncing copy is, as its primary knows it (rules 3, 4 and 7). No I/O here: `node/filling.rs` does that.
//!
//! ```text
//!  layers: each snapshot that the copy lacks, oldest first, then what is written to
//!
//!            0 ........ cursor ................................ size
//!  due:      version > upto │ version > base          on the primary, or on the copy
//! ```
//!
//! `base`: the copy equals the primary but for what is newer on either side, everywhere. `upto`: the same of what lies before the cursor.
//! Both are only ever raised to what is known to be there; the copy keeps them, so that the next run, under whatever primary, need not
//! begin again.

use crate::iocbs::IocbKey;
use crate::limits::{LOST_AFTER, MAX_DOUBTS};
use conductor_model::{BlockRange, Blocks, CopyId, Sequence, SnapshotId, Stamp};
use driver::Time;
use node_protocol::{FillState, Mark};
use node_store::View;
use std::collections::{BTreeMap, VecDeque};

/// Blocks of one piece: a chunk of the store, so that a piece has one version.
pub(crate) const PIECE: u32 = 16;

/// Where the filling of one layer stands.
#[derive(Debug)]
pub(crate) enum Step {
    /// To be listed, from the block that the filling has listed up to, as soon as writes up to here are finished.
    List(Sequence),
    /// The own and the copy's changes are on their way.
    Listing {
        /// Which listing: answers to another one mean nothing.
        number: u64,
        from: Blocks,
        /// Up to where this listing goes at most: the cursor, if it begins before that.
        to: Blocks,
        own: Option<Listed>,
        theirs: Option<Listed>,
    },
    /// Pieces are under way.
    Fill,
    /// The layer is complete, and the copy is told so.
    Telling,
    /// All is there.
    Complete,
}

/// Changes as one side lists them: ranges with their versions, and up to where that is all.
pub(crate) type Listed = (Vec<(BlockRange, Stamp)>, Blocks);

/// A piece that was read and is not known to be on the copy yet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Piece {
    pub(crate) at: BlockRange,
    pub(crate) version: Stamp,
    /// No copy in sync has it: so the copy is told.
    pub(crate) lost: bool,
}

/// One run of filling one copy.
#[derive(Debug)]
pub(crate) struct Filling {
    pub(crate) copy: CopyId,
    /// The conductor has been asked to add it: it may be in sync by now (rule 1).
    pub(crate) add_asked: bool,
    pub(crate) step: Step,
    pub(crate) layer: View,
    base: Stamp,
    cursor: Blocks,
    upto: Stamp,
    /// Snapshots that the copy has.
    pub(crate) snapshots: Vec<SnapshotId>,
    /// Writes with stamps above this go to the copy too.
    pub(crate) feeds_from: Option<Sequence>,
    /// To be filled, in order of their places.
    pub(crate) left: VecDeque<Piece>,
    /// Blocks that were read in vain a while ago, and when the last of them was: read again behind all else of the layer.
    doubted: Vec<Piece>,
    doubted_at: Time,
    /// When each such block of a layer was read in vain first, and was not read since.
    first_doubts: BTreeMap<(View, Blocks), Time>,
    /// Since when the disk that it is filled from is asked to take something before they are read again; and when it has last.
    pub(crate) proving: Option<Time>,
    proved: Option<Time>,
    /// Blocks that the copy was told are lost.
    lost: usize,
    /// Up to here everything is listed.
    listed: Blocks,
    /// Where the layer ends, if before the shard does: a snapshot of when the shard was smaller.
    end: Option<Blocks>,
    /// By IOCB.
    pub(crate) running: BTreeMap<IocbKey, Piece>,
    /// The newest version listed on the own side in this layer.
    highest: Stamp,
    /// The layers are to be looked at anew, as soon as nothing runs: something changed that is not sent to the copy.
    pub(crate) again: bool,
    /// Where the copy keeps its mark, and whether one is on its way.
    marked: Blocks,
    pub(crate) marking: bool,
    pub(crate) progress: Progress,
    /// Bytes that may be read now; below zero until what was read is paid for.
    pub(crate) allowance: i64,
    earned_at: Time,
    /// Something was refused for now: not before.
    pub(crate) wait_until: Time,
    /// What is due of a layer cannot be listed here, from this block on, because its metadata is lost: until it can, this filling takes no
    /// other one's turn, and makes way for another copy of the shard.
    pub(crate) stuck: Option<(View, Blocks)>,
}

/// For people.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Progress {
    pub(crate) began: Time,
    /// Blocks sent.
    pub(crate) sent: u64,
}

impl Filling {
    /// The copy has joined, and said where it stands. `known_good` is its K.
    pub(crate) fn new(now: Time, copy: CopyId, known_good: Stamp, said: FillState) -> Self {
        // A mark of before the copy was in sync last says less than its K.
        let mark = if said.mark.base < known_good { Mark { base: known_good, ..Mark::default() } } else { said.mark };
        Self {
            copy,
            add_asked: false,
            step: Step::List(Sequence(0)),
            layer: View::Live,
            base: mark.base,
            cursor: Blocks(mark.cursor.0 / PIECE * PIECE),
            upto: mark.upto.max(mark.base),
            snapshots: said.snapshots,
            feeds_from: None,
            left: VecDeque::new(),
            doubted: Vec::new(),
            doubted_at: now,
            first_doubts: BTreeMap::new(),
            proving: None,
            proved: None,
            lost: 0,
            listed: Blocks(0),
            end: None,
            running: BTreeMap::new(),
            highest: Stamp::default(),
            again: true,
            marked: mark.cursor,
            marking: false,
            progress: Progress { began: now, sent: 0 },
            allowance: 0,
            earned_at: now,
            wait_until: now,
            stuck: None,
        }
    }

    /// Begins with the first layer that the copy lacks, of the primary's snapshots, oldest first. It is listed when everything up to
    /// `last` is finished. What is stamped after that goes to the copy too, if the layer is what is written to. If it is a snapshot, some of
    /// what was stamped before may still be on its way to the copy: it must not come into what becomes that snapshot there unlisted.
    pub(crate) fn aim(&mut self, snapshots: &[SnapshotId], last: Sequence) {
        let lacking = snapshots.iter().find(|snapshot| !self.snapshots.contains(snapshot));
        self.layer = lacking.map_or(View::Live, |snapshot| View::Snapshot(*snapshot));
        self.feeds_from = lacking.is_none().then_some(last);
        self.step =
            Step::List(if driver::mutant::on("snapshot_over_fed") && lacking.is_some() { Sequence(0) } else { last });
        self.listed = Blocks(0);
        self.end = None;
        self.left.clear();
        self.doubted.clear();
        if self.first_doubts.len() > MAX_DOUBTS {
            self.first_doubts.clear();
        }
        self.highest = Stamp::default();
        self.again = false;
    }

    /// Something is stamped that the copy is not sent: from here on no write is, and the layers are looked at anew. What lies before
    /// the cursor has everything that is known to be good.
    pub(crate) fn fall_back(&mut self, known_good: Stamp) {
        if self.feeds_from.is_some() {
            self.advance();
            self.raise(known_good);
        }
        self.feeds_from = None;
        self.again = true;
    }

    /// What lies before the cursor has everything up to here, if this layer was listed and filled past it.
    fn raise(&mut self, known: Stamp) {
        if self.again {
            return;
        }
        if self.listed >= self.cursor && self.open().is_none_or(|open| open >= self.cursor) {
            self.upto = self.upto.max(known);
        }
    }

    /// Which versions are due in the next listing, and up to where it may go.
    pub(crate) fn listing(&self, size: Blocks) -> (Stamp, Blocks, Blocks) {
        let from = self.listed;
        if from < self.cursor { (self.upto, from, self.cursor.min(size)) } else { (self.base, from, size) }
    }

    /// Is everything listed?
    pub(crate) fn is_listed(&self, size: Blocks) -> bool {
        self.listed >= self.end.map_or(size, |end| end.min(size))
    }

    /// The layer has nothing from here on, whatever the copy has there.
    pub(crate) fn ends_at(&mut self, end: Blocks) {
        self.end = Some(end);
        self.step = Step::Fill;
    }

    /// Both sides have listed what changed from `from` on, `to` at most.
    pub(crate) fn take_lists(&mut self, from: Blocks, to: Blocks, own: Listed, theirs: Listed) {
        let end = own.1.min(theirs.1).min(to);
        let mut due: BTreeMap<u32, Stamp> = BTreeMap::new();
        for (at, version) in &own.0 {
            self.highest = self.highest.max(*version);
            add(&mut due, *at, *version, from, end);
        }
        for (at, _) in &theirs.0 {
            // What only the copy has changed has no newer version here than what is there anyway.
            add(&mut due, *at, self.base, from, end);
        }
        let pieces = due.into_iter().map(|(first, version)| {
            let count = PIECE.min(end.0 - first);
            Piece { at: BlockRange { from: Blocks(first), count: Blocks(count) }, version, lost: false }
        });
        self.left.extend(pieces);
        self.listed = end;
        self.step = Step::Fill;
    }

    /// What could not be listed is listed by now, or it is not due any more.
    pub(crate) fn is_past_stuck(&self) -> bool {
        self.stuck.is_some_and(|(layer, at)| layer != self.layer || self.listed > at)
    }

    /// A piece is durable on the copy.
    pub(crate) fn filled(&mut self, key: IocbKey) {
        if let Some(piece) = self.running.remove(&key) {
            self.progress.sent += u64::from(piece.at.count.0);
            let (first, end) = (piece.at.from, piece.at.end());
            let last = Blocks(u32::try_from(end - 1).unwrap_or(u32::MAX)); // within a shard
            while let Some((&doubt, _)) = self.first_doubts.range((self.layer, first)..=(self.layer, last)).next() {
                self.first_doubts.remove(&doubt);
            }
            self.lost += usize::from(piece.lost);
        }
        self.advance();
    }

    /// Something in a piece cannot be read: it is due again block by block, so that the rest of it is filled. In its place, as the cursor stands
    /// before what is first.
    pub(crate) fn split(&mut self, key: IocbKey) {
        let Some(piece) = self.running.remove(&key) else { return };
        let place = self.left.partition_point(|other| other.at.from < piece.at.from);
        for n in (0..piece.at.count.0).rev() {
            let at = BlockRange { from: Blocks(piece.at.from.0 + n), count: Blocks(1) };
            self.left.insert(place, Piece { at, ..piece });
        }
    }

    /// A block was read in vain, from `since` on. If it was some time ago, too, and the disk took something in between, it is lost; else it is
    /// read again, when all else of the layer is done.
    pub(crate) fn is_lost(&mut self, now: Time, key: IocbKey, since: Time) -> bool {
        let Some(piece) = self.running.get_mut(&key) else { return false };
        let first = *self.first_doubts.entry((self.layer, piece.at.from)).or_insert(now);
        let is_proved = self.proved.is_some_and(|at| at >= first + LOST_AFTER && since >= at);
        if is_proved || driver::mutant::on("lost_at_once") {
            piece.lost = true;
            return true;
        }
        self.doubted.extend(self.running.remove(&key));
        self.doubted_at = now;
        false
    }

    /// Is there such a block?
    pub(crate) fn has_doubts(&self) -> bool {
        !self.doubted.is_empty()
    }

    /// Of that many blocks not a few sectors are bad, but the disk: nothing else is begun, and the filling fails.
    pub(crate) fn doubts_too_much(&self) -> bool {
        self.lost + self.doubted.len() + self.running.len() >= MAX_DOUBTS
    }

    /// The first block that was read in vain.
    pub(crate) fn first_doubted(&self) -> Option<Blocks> {
        self.doubted.iter().map(|piece| piece.at.from).min()
    }

    /// Nothing else can be done. Is the disk to be asked now whether it takes anything, so that these blocks are read again?
    pub(crate) fn begins_proof(&mut self, now: Time) -> bool {
        let begins = self.proving.is_none() && now >= self.doubted_at + LOST_AFTER;
        if begins {
            self.proving = Some(now);
        }
        begins
    }

    /// It did, or not: then it is asked again after a while.
    pub(crate) fn ends_proof(&mut self, now: Time, taken: bool) {
        self.proving = None;
        self.doubted_at = now;
        if taken {
            self.proved = Some(now);
            self.left.extend(self.doubted.drain(..));
            self.left.make_contiguous().sort_by_key(|piece| piece.at.from);
        }
    }

    /// The first block that is listed and not done.
    fn open(&self) -> Option<Blocks> {
        let open = self.running.values().chain(self.left.front()).chain(&self.doubted);
        open.map(|piece| piece.at.from).min()
    }

    /// The cursor stands before what is not done; nowhere else while the layers are to be looked at anew, because what is read then may be
    /// newer than what is aimed at. A chunk is passed as a whole.
    fn advance(&mut self) {
        if self.again {
            return;
        }
        let done = self.open().unwrap_or(self.listed).min(self.listed);
        self.cursor = self.cursor.max(Blocks(done.0 / PIECE * PIECE));
    }

    /// How far it is now. `known_good` is the primary's K: what is above it may be undone yet, on the primary too, so that it never counts
    /// as being there (rule 4).
    pub(crate) fn mark(&mut self, known_good: Stamp) -> Mark {
        self.advance();
        // A snapshot does not change: what was listed of it and lies before the cursor is there, up to the newest listed.
        self.raise(if self.feeds_from.is_some() { known_good } else { self.highest.min(known_good) });
        Mark { base: self.base, cursor: self.cursor, upto: self.upto, complete: false }
    }

    /// Is a mark due, `every` so many blocks?
    pub(crate) fn mark_is_due(&self, every: u32) -> bool {
        !self.marking && self.cursor.0.saturating_sub(self.marked.0) >= every
    }

    /// A mark is on its way.
    pub(crate) fn marks(&mut self, mark: Mark) {
        self.marking = true;
        self.marked = mark.cursor;
    }

    /// The copy has its snapshot: everything up to the newest version in it is there.
    pub(crate) fn has_snapshot(&mut self, snapshot: SnapshotId, known_good: Stamp) -> Mark {
        self.snapshots.push(snapshot);
        let known_good = if driver::mutant::on("marks_beyond_k") { self.highest } else { known_good };
        self.base = self.base.max(self.highest.min(known_good));
        (self.cursor, self.upto, self.marked) = (Blocks(0), self.base, Blocks(0));
        self.again = true;
        Mark { base: self.base, cursor: self.cursor, upto: self.upto, complete: false }
    }

    /// The newest version that was listed of the present layer, or what is below all of it.
    pub(crate) fn newest(&self) -> Stamp {
        self.highest.max(self.base)
    }

    /// Is a write with this stamp sent to the copy?
    pub(crate) fn is_fed(&self, sequence: Sequence) -> bool {
        self.feeds_from.is_some_and(|from| sequence > from)
    }

    /// Everything is there, and K rose to this. If something comes that is not sent to the copy, it begins anew from there.
    pub(crate) fn completed(&mut self, known_good: Stamp) {
        (self.base, self.upto) = (self.base.max(known_good), self.base.max(known_good));
        (self.cursor, self.marked, self.marking) = (Blocks(0), Blocks(0), false);
        self.step = Step::Complete;
    }

    /// Time earns bytes, for a quarter of a second at most.
    pub(crate) fn earn(&mut self, now: Time, rate: i64) {
        let micros = i64::try_from(now.since(self.earned_at).0 / 1_000).unwrap_or(i64::MAX).min(1_000_000);
        if micros > 0 {
            self.allowance = (self.allowance + rate * micros / 1_000_000).min(rate / 4);
            self.earned_at = now;
        }
    }

    /// Blocks done of the present layer, for people.
    pub(crate) fn done(&self) -> Blocks {
        match self.step {
            Step::Complete => self.listed,
            _ => self.open().unwrap_or(self.listed),
        }
    }
}

/// Cuts a range into pieces between `from` and `end`.
fn add(due: &mut BTreeMap<u32, Stamp>, at: BlockRange, version: Stamp, from: Blocks, end: Blocks) {
    let first = at.from.0.max(from.0) / PIECE * PIECE;
    let last = u32::try_from(at.end()).unwrap_or(u32::MAX).min(end.0);
    for piece in (first..last).step_by(PIECE as usize).filter(|piece| *piece >= from.0) {
        let known = due.entry(piece).or_insert(version);
        *known = version.max(*known);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use conductor_model::Epoch;
    use driver::Span;

    const SIZE: Blocks = Blocks(1000);

    fn stamp(n: u64) -> Stamp {
        Stamp { epoch: Epoch(1), sequence: Sequence(n) }
    }

    fn range(from: u32, count: u32) -> BlockRange {
        BlockRange { from: Blocks(from), count: Blocks(count) }
    }

    fn filling(mark: Mark) -> Filling {
        let said = FillState { mark, snapshots: vec![SnapshotId(1)] };
        Filling::new(Time::default(), CopyId(2), stamp(10), said)
    }

    #[test]
    fn a_filling_is_stuck_until_what_could_not_be_listed_is_or_is_not_due_any_more() {
        let mut filling = filling(Mark::default());
        let layer = View::Snapshot(SnapshotId(7));
        filling.aim(&[SnapshotId(1), SnapshotId(7), SnapshotId(8)], Sequence(70));
        filling.stuck = Some((layer, Blocks(64)));
        let list = |filling: &mut Filling, from, to| {
            filling.take_lists(Blocks(from), Blocks(to), (Vec::new(), Blocks(to)), (Vec::new(), Blocks(to)));
            filling.is_past_stuck()
        };
        assert!(!list(&mut filling, 0, 64));
        assert!(list(&mut filling, 64, 65));
        filling.aim(&[SnapshotId(1), SnapshotId(7), SnapshotId(8)], Sequence(70));
        assert!(!filling.is_past_stuck());
        filling.aim(&[SnapshotId(1), SnapshotId(8)], Sequence(70));
        assert!(filling.is_past_stuck());
        filling.stuck = None;
        assert!(!filling.is_past_stuck());
    }

    #[test]
    fn what_changed_on_either_side_is_due_in_whole_chunks_once() {
        let mut filling = filling(Mark::default());
        filling.aim(&[SnapshotId(1)], Sequence(70));
        assert_eq!(
            (filling.layer, filling.is_fed(Sequence(70)), filling.is_fed(Sequence(71))),
            (View::Live, false, true)
        );
        assert_eq!(filling.listing(SIZE), (stamp(10), Blocks(0), SIZE));
        let own = (vec![(range(0, 16), stamp(20)), (range(64, 32), stamp(30)), (range(992, 8), stamp(31))], SIZE);
        filling.take_lists(Blocks(0), SIZE, own, (vec![(range(64, 16), stamp(99)), (range(128, 16), stamp(12))], SIZE));
        let due: Vec<_> = filling.left.iter().map(|p| (p.at.from.0, p.at.count.0, p.version)).collect();
        let base = stamp(10);
        let expected =
            [(0, 16, stamp(20)), (64, 16, stamp(30)), (80, 16, stamp(30)), (128, 16, base), (992, 8, stamp(31))];
        assert_eq!(due, expected);
        assert_eq!(filling.newest(), stamp(31), "the copy's own versions say nothing");
    }

    #[test]
    fn what_one_side_has_not_listed_yet_is_not_due_yet() {
        let mut filling = filling(Mark::default());
        filling.aim(&[], Sequence(0));
        filling.take_lists(Blocks(0), SIZE, (vec![(range(0, 512), stamp(20))], Blocks(512)), (Vec::new(), Blocks(256)));
        assert_eq!(filling.left.len(), 16);
        assert!(!filling.is_listed(SIZE));
        assert_eq!(filling.listing(SIZE), (stamp(10), Blocks(256), SIZE));
    }

    #[test]
    fn the_cursor_waits_for_the_first_piece_that_is_not_done() {
        let mut filling = filling(Mark::default());
        filling.aim(&[], Sequence(5));
        filling.take_lists(Blocks(0), SIZE, (vec![(range(0, 48), stamp(20))], SIZE), (Vec::new(), SIZE));
        for key in 1..=3 {
            let piece = filling.left.pop_front().unwrap();
            filling.running.insert(IocbKey(key), piece);
        }
        filling.filled(IocbKey(2));
        assert_eq!(filling.mark(stamp(50)).cursor, Blocks(0));
        filling.filled(IocbKey(1));
        let mark = filling.mark(stamp(50));
        assert_eq!((mark.cursor, mark.upto, mark.base), (Blocks(32), stamp(50), stamp(10)));
        filling.filled(IocbKey(3));
        assert_eq!(filling.mark(stamp(60)).cursor, Blocks(992));
    }

    #[test]
    fn the_cursor_waits_for_the_first_of_several_pieces_that_are_filled_block_by_block() {
        let mut filling = filling(Mark::default());
        filling.aim(&[], Sequence(5));
        filling.take_lists(Blocks(0), SIZE, (vec![(range(0, 64), stamp(20))], SIZE), (Vec::new(), SIZE));
        for key in 1..=3 {
            let piece = filling.left.pop_front().unwrap();
            filling.running.insert(IocbKey(key), piece);
        }
        // In any order.
        [1, 3, 2].into_iter().for_each(|key| filling.split(IocbKey(key)));
        let from: Vec<u32> = filling.left.iter().map(|piece| piece.at.from.0).collect();
        assert_eq!(from, (0..=48).collect::<Vec<_>>());
        assert_eq!(filling.mark(stamp(50)).cursor, Blocks(0));
        for n in 0..20 {
            let piece = filling.left.pop_front().unwrap();
            filling.running.insert(IocbKey(10 + n), piece);
            filling.filled(IocbKey(10 + n));
        }
        assert_eq!(filling.mark(stamp(50)).cursor, Blocks(16));
    }

    /// The first piece that is left is read in vain. Is it lost?
    fn read_in_vain(filling: &mut Filling, now: Time, key: usize) -> bool {
        let piece = filling.left.pop_front().unwrap();
        filling.running.insert(IocbKey(key), piece);
        filling.is_lost(now, IocbKey(key), now)
    }

    fn list(filling: &mut Filling, from: u32, count: u32) {
        let listed = (vec![(range(from, count), stamp(20))], SIZE);
        filling.take_lists(Blocks(from), SIZE, listed, (Vec::new(), SIZE));
    }

    #[test]
    fn the_cursor_waits_for_what_is_to_be_read_again_which_is_not_soon() {
        let mut filling = filling(Mark::default());
        filling.aim(&[], Sequence(5));
        list(&mut filling, 16, 64);
        for key in 0..4 {
            let piece = filling.left.pop_front().unwrap();
            filling.running.insert(IocbKey(key), piece);
        }
        let now = Time::default() + Span::seconds(3);
        assert!([2, 1].into_iter().all(|key| !filling.is_lost(now, IocbKey(key), now)));
        [0, 3].into_iter().for_each(|key| filling.filled(IocbKey(key)));
        assert_eq!(filling.mark(stamp(50)).cursor, Blocks(32));
        assert!(filling.has_doubts() && !filling.begins_proof(now + Span::seconds(9)));
        let then = now + LOST_AFTER;
        assert!(filling.begins_proof(then) && !filling.begins_proof(then), "once at a time");
        filling.ends_proof(then, false);
        assert!(filling.has_doubts() && !filling.begins_proof(then));
        let then = then + LOST_AFTER;
        assert!(filling.begins_proof(then));
        filling.ends_proof(then, true);
        assert!(!filling.has_doubts());
        let due: Vec<u32> = filling.left.iter().map(|piece| piece.at.from.0).collect();
        assert_eq!(due, [32, 48]);
        assert_eq!(filling.mark(stamp(50)).cursor, Blocks(32));
        assert!(read_in_vain(&mut filling, then, 5));
    }

    #[test]
    fn a_block_is_lost_that_was_read_in_vain_behind_a_proof_and_long_before_it_of_the_same_layer() {
        let mut filling = filling(Mark::default());
        let now = Time::default() + Span::seconds(3);
        let then = now + LOST_AFTER;
        filling.aim(&[], Sequence(5));
        list(&mut filling, 16, 48);
        (1..=3).for_each(|key| assert!(!read_in_vain(&mut filling, now, key)));
        // Looked at anew before the disk was asked for anything: that some time has passed is not enough.
        filling.aim(&[], Sequence(6));
        list(&mut filling, 16, 48);
        (1..=3).for_each(|key| assert!(!read_in_vain(&mut filling, then, key)));
        assert!(filling.begins_proof(then + LOST_AFTER));
        filling.ends_proof(then + LOST_AFTER, true);
        // One that was begun before the disk had answered.
        let piece = filling.left.pop_front().unwrap();
        filling.running.insert(IocbKey(4), piece);
        assert!(!filling.is_lost(then + LOST_AFTER, IocbKey(4), then));
        // One that reads well, with others: it is doubted anew from then on.
        filling.aim(&[], Sequence(7));
        list(&mut filling, 16, 48);
        let piece = filling.left.pop_front().unwrap();
        filling.running.insert(IocbKey(5), piece);
        filling.filled(IocbKey(5));
        assert!(read_in_vain(&mut filling, then + LOST_AFTER, 6));
        filling.aim(&[], Sequence(8));
        list(&mut filling, 16, 48);
        assert!(!read_in_vain(&mut filling, then + LOST_AFTER, 7));
        assert!(read_in_vain(&mut filling, then + LOST_AFTER, 8));
        // And one of another layer.
        filling.running.clear();
        filling.aim(&[SnapshotId(1), SnapshotId(4)], Sequence(9));
        list(&mut filling, 32, 16);
        assert!(!read_in_vain(&mut filling, then + LOST_AFTER, 9));
    }

    #[test]
    fn a_run_goes_on_where_the_last_one_stopped_and_lists_what_is_newer_behind_the_cursor() {
        let mark = Mark { base: stamp(10), cursor: Blocks(512), upto: stamp(40), complete: false };
        let mut filling = filling(mark);
        filling.aim(&[], Sequence(0));
        assert_eq!(filling.listing(SIZE), (stamp(40), Blocks(0), Blocks(512)));
        // What lies before the cursor may be newer than before, until it was listed and done.
        assert_eq!(filling.mark(stamp(90)).upto, stamp(40));
        filling.take_lists(Blocks(0), Blocks(512), (Vec::new(), SIZE), (Vec::new(), SIZE));
        assert_eq!(filling.listing(SIZE), (stamp(10), Blocks(512), SIZE));
        // Its K has moved since: the mark says less than that.
        let said = FillState { mark: Mark { base: stamp(9), ..mark }, snapshots: Vec::new() };
        let mut other = Filling::new(Time::default(), CopyId(2), stamp(10), said);
        other.aim(&[], Sequence(0));
        assert_eq!(other.listing(SIZE), (stamp(10), Blocks(0), SIZE));
    }

    #[test]
    fn snapshots_come_first_and_raise_the_base() {
        let mut filling = filling(Mark::default());
        filling.aim(&[SnapshotId(1), SnapshotId(4), SnapshotId(6)], Sequence(7));
        assert_eq!((filling.layer, filling.feeds_from), (View::Snapshot(SnapshotId(4)), None));
        filling.take_lists(Blocks(0), SIZE, (vec![(range(0, 16), stamp(33))], SIZE), (Vec::new(), SIZE));
        let piece = filling.left.pop_front().unwrap();
        filling.running.insert(IocbKey(1), piece);
        filling.filled(IocbKey(1));
        let mark = filling.has_snapshot(SnapshotId(4), stamp(90));
        assert_eq!((mark.base, mark.cursor), (stamp(33), Blocks(0)));
        filling.aim(&[SnapshotId(1), SnapshotId(4), SnapshotId(6)], Sequence(7));
        assert_eq!(filling.layer, View::Snapshot(SnapshotId(6)));
    }

    #[test]
    fn nothing_above_the_primarys_known_good_point_counts_as_being_there() {
        let mut filling = filling(Mark::default());
        filling.aim(&[SnapshotId(1), SnapshotId(4)], Sequence(0));
        filling.take_lists(Blocks(0), SIZE, (vec![(range(0, 16), stamp(45))], SIZE), (Vec::new(), SIZE));
        let piece = filling.left.pop_front().unwrap();
        filling.running.insert(IocbKey(1), piece);
        filling.filled(IocbKey(1));
        assert_eq!(filling.mark(stamp(40)).upto, stamp(40));
        assert_eq!(filling.has_snapshot(SnapshotId(4), stamp(40)).base, stamp(40));
    }

    #[test]
    fn a_chunk_is_passed_as_a_whole() {
        let mut filling = filling(Mark { base: stamp(10), cursor: Blocks(37), ..Mark::default() });
        filling.aim(&[SnapshotId(1)], Sequence(0));
        assert_eq!(filling.listing(SIZE).2, Blocks(32));
        let end = Blocks(SIZE.0);
        filling.take_lists(Blocks(32), SIZE, (Vec::new(), end), (Vec::new(), end));
        assert_eq!(filling.mark(stamp(50)).cursor, Blocks(992), "the last chunk is not a whole one: it may grow");
    }

    #[test]
    fn what_the_copy_is_not_sent_makes_the_targets_be_looked_at_anew() {
        let mark = Mark { base: stamp(10), cursor: Blocks(512), upto: stamp(40), complete: false };
        let mut filling = filling(mark);
        filling.aim(&[], Sequence(45));
        filling.fall_back(stamp(60));
        assert!(filling.again && !filling.is_fed(Sequence(61)));
        filling.aim(&[SnapshotId(9)], Sequence(61));
        assert_eq!(filling.layer, View::Snapshot(SnapshotId(9)));
    }
}
