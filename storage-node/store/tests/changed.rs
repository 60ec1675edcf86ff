//! Which chunks were changed above a stamp, and how far a filling is, against a model of versions: through writes, discards, snapshots,
//! rollbacks, clones, copy-range, flattening, folds, reopening and power cuts.
#![allow(clippy::cast_possible_truncation, clippy::unwrap_used)] // a test: small numbers, and a panic is its way to fail

mod disk;

use conductor_model::{BlockRange, Blocks, Configuration, CopyId, CopyState, Epoch, Sequence, SnapshotId, Stamp};
use disk::*;
use memory::Arena;
use node_store::journaled::JournaledStore;
use node_store::{Parent, Store, StoreDone, StoreError, StoreOp, SyncMark, View, block_crcs};

const CHUNK: u32 = 16;
const LATER: driver::Time = driver::Time(6_000_000_000);

fn none() -> Stamp {
    Stamp::default()
}
fn inherited() -> Stamp {
    Stamp { epoch: Epoch(1), sequence: Sequence(0) }
}

/// All answers to `Changed`, one after the other; how many there were.
fn changed(
    store: &mut JournaledStore,
    disk: &mut Disk,
    copy: u64,
    view: View,
    above: Stamp,
) -> (Vec<(BlockRange, Stamp)>, u32, u32) {
    let (mut all, mut from, mut answers) = (vec![], Blocks(0), 0);
    loop {
        let op = StoreOp::Changed { copy: CopyId(copy), view, above, from };
        let StoreDone::Changed { chunks, next } = run(store, disk, op).unwrap() else { panic!("an answer") };
        answers += 1;
        all.extend(chunks.iter().copied());
        let before = all.windows(2).all(|two| two[0].0.end() <= u64::from(two[1].0.from.0));
        assert!(before && chunks.iter().all(|(at, version)| at.count.0 > 0 && *version > above), "{all:?}");
        if chunks.is_empty() || next <= from {
            // Nothing is left, and that is known.
            return (all, next.0, answers);
        }
        from = next;
    }
}

fn ranges(list: &[(BlockRange, Stamp)]) -> Vec<(u32, u32, u64)> {
    list.iter().map(|(at, version)| (at.from.0, at.count.0, version.sequence.0)).collect()
}

struct Rig {
    disk: Disk,
    arena: Arena,
    store: JournaledStore,
}

impl Rig {
    fn new(seed: u64, data_blocks: u32) -> Self {
        let arena = Arena::small(16 << 20);
        let geometry = journaled_geometry(620, 400, data_blocks, 6);
        let mut disk = Disk::new(geometry.size().0 as usize, seed);
        Journaled::format(&mut disk, &arena, geometry).unwrap();
        let store = open_engine::<Journaled>(&mut disk, &arena).unwrap();
        Self { disk, arena, store }
    }
    fn run(&mut self, op: StoreOp) -> Result<StoreDone, StoreError> {
        run(&mut self.store, &mut self.disk, op)
    }
    fn fold(&mut self) {
        quiesce_at(LATER, &mut self.store, &mut self.disk);
    }
    fn reopen(&mut self) {
        self.disk.crash();
        self.store = open_engine::<Journaled>(&mut self.disk, &self.arena).unwrap();
    }
    fn changed(&mut self, copy: u64, view: View, above: Stamp) -> Vec<(u32, u32, u64)> {
        ranges(&changed(&mut self.store, &mut self.disk, copy, view, above).0)
    }
    /// Until it is over; it was not told to be durable.
    fn flush_write(&mut self, from: u32, count: u32, version: Stamp) {
        let data = data(&self.arena, (0..count).map(u64::from));
        let (at, crcs, known_good) = (range(from, count), block_crcs(&data), none());
        self.run(StoreOp::Write { copy: CopyId(1), stamp: version, at, data, crcs, known_good, durable: false })
            .unwrap();
    }
}

/// Of a shard with an absent member: no tombstone is forgotten.
fn degraded(blocks: u32) -> Configuration {
    let mut config = config(1, blocks);
    let absent = conductor_model::Member { copy: CopyId(99), state: CopyState::Absent, ..config.members[0].clone() };
    config.members.push(absent);
    config
}

fn create(copy: u64, blocks: u32, parent: Option<(u64, u64)>) -> StoreOp {
    let parent = parent.map(|(copy, name)| Parent { copy: CopyId(copy), snapshot: SnapshotId(name) });
    StoreOp::Create { copy: CopyId(copy), config: degraded(blocks), parent }
}

fn zero(copy: u64, from: u32, count: u32, sequence: u64) -> StoreOp {
    let (at, known_good) = (range(from, count), none());
    StoreOp::Zero { copy: CopyId(copy), stamp: stamp(sequence), at, known_good, durable: true }
}

#[test]
fn what_was_changed_above_a_stamp_is_named_in_whole_chunks_tombstones_too() {
    let mut rig = Rig::new(1, 2000);
    rig.run(create(1, 200, None)).unwrap();
    assert_eq!(rig.changed(1, View::Live, none()), [], "of nothing nothing is said");
    let put = |rig: &mut Rig, from, count, sequence| {
        let op = write(&rig.arena, 1, range(from, count), sequence, 100);
        rig.run(op).unwrap();
    };
    put(&mut rig, 3, 2, 1);
    put(&mut rig, 40, 30, 2);
    put(&mut rig, 199, 1, 3);
    let all = [(0, 16, 1), (32, 48, 2), (192, 8, 3)];
    for _ in 0..2 {
        assert_eq!(rig.changed(1, View::Live, none()), all);
        assert_eq!(rig.changed(1, View::Live, stamp(1)), all[1..]);
        assert_eq!(rig.changed(1, View::Live, stamp(3)), []);
        rig.fold();
    }
    // A discard leaves its version, in a chunk's part and in whole chunks; where nothing was it leaves nothing.
    rig.run(zero(1, 2, 110, 4)).unwrap();
    let all = [(0, 16, 4), (32, 48, 4), (192, 8, 3)];
    for _ in 0..2 {
        let named = rig.changed(1, View::Live, stamp(2));
        assert!(all.iter().all(|range| named.contains(range)), "{named:?}");
        assert!(named.iter().all(|(from, ..)| ![16, 80, 96, 128].contains(from)), "{named:?}");
        rig.fold();
    }
    // What the copy is filled with has an older version: the newest one counts.
    put(&mut rig, 32, 16, 1);
    rig.run(zero(1, 192, 8, 2)).unwrap();
    for reopened in [false, true] {
        assert_eq!(rig.changed(1, View::Live, stamp(2))[1..], [(32, 48, 4), (192, 8, 3)]);
        rig.fold();
        if !reopened {
            rig.reopen();
        }
    }
}

#[test]
fn a_rollback_changes_all_and_a_clone_lists_what_it_has_from_its_parent_only_to_an_empty_copy() {
    let mut rig = Rig::new(2, 2000);
    let (snapshot, known_good) = (SnapshotId(7), none());
    rig.run(create(1, 100, None)).unwrap();
    let op = write(&rig.arena, 1, range(0, 20), 1, 100);
    rig.run(op).unwrap();
    rig.run(StoreOp::Snapshot { copy: CopyId(1), stamp: stamp(2), snapshot, known_good }).unwrap();
    let op = write(&rig.arena, 1, range(50, 1), 3, 100);
    rig.run(op).unwrap();
    rig.run(create(2, 100, Some((1, 7)))).unwrap();
    rig.run(zero(2, 16, 16, 4)).unwrap();
    for _ in 0..2 {
        assert_eq!(rig.changed(1, View::Snapshot(snapshot), none()), [(0, 32, 1)]);
        assert_eq!(rig.changed(1, View::Live, stamp(1)), [(48, 16, 3)]);
        assert_eq!(rig.changed(2, View::Live, none()), [(0, 16, 0), (16, 16, 4)]);
        assert_eq!(rig.changed(2, View::Live, inherited()), [(16, 16, 4)]);
        rig.fold();
    }
    rig.run(StoreOp::Rollback { copy: CopyId(1), stamp: stamp(5), snapshot, known_good }).unwrap();
    rig.run(StoreOp::Flatten { copy: CopyId(2) }).unwrap();
    rig.fold();
    rig.reopen();
    assert_eq!(rig.changed(1, View::Live, stamp(4)), [(0, 100, 5)]);
    assert_eq!(rig.changed(1, View::Live, stamp(5)), []);
    assert_eq!(
        rig.changed(2, View::Live, none()),
        [(0, 16, 0), (16, 16, 4)],
        "it owns now what it had from its parent"
    );
    assert_eq!(rig.changed(2, View::Live, inherited()), [(16, 16, 4)]);
}

#[test]
fn a_list_that_is_too_long_for_one_answer_goes_on_where_it_ended() {
    let mut rig = Rig::new(3, 60_000);
    let blocks = 3000 * CHUNK;
    rig.run(create(1, blocks, None)).unwrap();
    for chunk in (0..3000).rev().filter(|chunk| chunk % 4 != 3) {
        let op = write(&rig.arena, 1, range(chunk * CHUNK + 5, 1), u64::from(chunk) + 1, 100);
        rig.run(op).unwrap();
    }
    for _ in 0..2 {
        let (list, end, answers) = changed(&mut rig.store, &mut rig.disk, 1, View::Live, none());
        assert_eq!((list.len(), end), (2250, blocks));
        assert!((3..=5).contains(&answers), "{answers}");
        assert!(list.iter().all(|(at, version)| u64::from(at.from.0 / CHUNK) + 1 == version.sequence.0));
        assert_eq!(changed(&mut rig.store, &mut rig.disk, 1, View::Live, stamp(2990)).0.len(), 7);
        rig.fold();
    }
}

#[test]
fn a_mark_survives_reopening_with_all_before_it_and_ends_with_known_good() {
    let mut rig = Rig::new(4, 2000);
    rig.run(create(1, 100, None)).unwrap();
    let copy = CopyId(1);
    for n in 1..=40u32 {
        // Written under durability=flush: only the mark makes it durable.
        rig.flush_write(n, 1, stamp(u64::from(n)));
        let mark = SyncMark { base: stamp(3), cursor: Blocks(n), upto: stamp(u64::from(n)) };
        rig.run(StoreOp::Mark { copy, mark, known_good: None }).unwrap();
        assert_eq!(rig.store.sync_mark(copy), mark);
        if n % 3 == 0 {
            rig.fold();
        }
        rig.reopen();
        assert_eq!(rig.store.sync_mark(copy), mark);
        let all: Vec<u8> = (0..n).flat_map(|_| block_of(0)).collect();
        assert!(read(&mut rig.store, &mut rig.disk, &rig.arena, 1, range(1, n)).unwrap() == all, "{n}");
    }
    let mark = SyncMark { base: stamp(9), cursor: Blocks(100), upto: stamp(40) };
    rig.flush_write(60, 1, stamp(50));
    rig.run(StoreOp::Mark { copy, mark, known_good: Some(stamp(45)) }).unwrap();
    for folded in [false, true] {
        if folded {
            rig.fold();
        }
        rig.reopen();
        assert_eq!(rig.store.sync_mark(copy), SyncMark::default());
        match rig.run(StoreOp::Above { copy }).unwrap() {
            StoreDone::Above { known_good, held } => {
                assert_eq!((known_good, held.len()), (stamp(45), 1), "{held:?}");
            }
            other => panic!("{other:?}"),
        }
    }
    // A lower K takes nothing back, and what is filled below K is not listed above it.
    rig.run(StoreOp::Mark { copy, mark, known_good: Some(stamp(5)) }).unwrap();
    rig.flush_write(70, 1, stamp(5));
    let StoreDone::Above { known_good, held } = rig.run(StoreOp::Above { copy }).unwrap() else { panic!("an answer") };
    assert_eq!((known_good, held.len()), (stamp(45), 1), "{held:?}");
    assert_eq!(
        rig.run(StoreOp::Mark { copy: CopyId(8), mark, known_good: None }).unwrap_err(),
        StoreError::NoSuchCopy(CopyId(8))
    );
}
