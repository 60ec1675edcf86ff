//! What no copy had when this one was filled: read as damaged until it is written or discarded, and never laid over what the copy has.

use super::disk::*;
use super::{fold, fresh, repair, snapshot};
use conductor_model::{BLOCK, BlockRange, Blocks, Bytes, CopyId, SnapshotId, Stamp};
use driver::DiskIndex;
use memory::{Arena, Class};
use node_store::journaled::JournaledStore;
use node_store::journaled::check::{CheckOptions, Depth, Severity, check};
use node_store::{Held, HeldKind, Parent, Store, StoreDone, StoreError, StoreOp, Tag, View};
use std::collections::BTreeMap;

const BLOCKS: u32 = super::BLOCKS;

fn lose(copy: u64, from: u32, count: u32, sequence: u64) -> StoreOp {
    let (stamp, known_good) = (stamp(sequence), Stamp::default());
    StoreOp::Lose { copy: CopyId(copy), stamp, at: range(from, count), known_good }
}

struct Rig {
    disk: Disk,
    arena: Arena,
    store: JournaledStore,
}

impl Rig {
    fn new(data_blocks: u32) -> Self {
        let (disk, arena, store) = fresh(data_blocks);
        Self { disk, arena, store }
    }

    fn run(&mut self, op: StoreOp) -> Result<(), StoreError> {
        run(&mut self.store, &mut self.disk, op).map(drop)
    }

    /// Of a copy that is not complete yet.
    fn write(&mut self, from: u32, count: u32, sequence: u64, seed: u64) {
        let mut op = write(&self.arena, 1, range(from, count), sequence, seed);
        if let StoreOp::Write { known_good, .. } = &mut op {
            *known_good = Stamp::default();
        }
        self.run(op).unwrap();
    }

    fn zero(&mut self, from: u32, count: u32, sequence: u64) {
        let (stamp, known_good) = (stamp(sequence), Stamp::default());
        let at = range(from, count);
        self.run(StoreOp::Zero { copy: CopyId(1), stamp, at, known_good, durable: true }).unwrap();
    }

    fn fold(&mut self) {
        fold(&mut self.store, &mut self.disk);
    }

    fn reopen(&mut self) {
        self.disk.crash();
        self.store = open_engine::<Journaled>(&mut self.disk, &self.arena).unwrap();
    }

    /// A block of a view: its bytes, or `None` if it is said to be damaged.
    fn read(&mut self, view: View, block: u32) -> Option<Vec<u8>> {
        let into = self.arena.take(BLOCK, Class::Client).unwrap();
        let (copy, at) = (CopyId(1), range(block, 1));
        match run(&mut self.store, &mut self.disk, StoreOp::Read { copy, view, at, into }) {
            Ok(StoreDone::Read(data, _)) => Some(data.to_vec()),
            Err(error) => {
                assert_eq!(error, StoreError::Corrupt { copy, block: Blocks(block) });
                None
            }
            Ok(other) => panic!("{other:?}"),
        }
    }

    fn live(&mut self, block: u32) -> Option<Vec<u8>> {
        self.read(View::Live, block)
    }

    fn changed(&mut self, view: View, above: u64) -> Vec<(BlockRange, Stamp)> {
        let op = StoreOp::Changed { copy: CopyId(1), view, above: stamp(above), from: Blocks(0) };
        match run(&mut self.store, &mut self.disk, op) {
            Ok(StoreDone::Changed { chunks, .. }) => chunks,
            other => panic!("{other:?}"),
        }
    }

    /// What the offline check finds wrong, but that blocks are lost.
    fn flaws(&self) -> Vec<String> {
        let image = &self.disk.visible;
        let options = CheckOptions { disk: DISK, size: Bytes(image.len() as u64), journal: None, depth: Depth::Data };
        let mut read = |_: DiskIndex, at: u64, into: &mut [u8]| {
            let bytes = usize::try_from(at).ok().and_then(|at| image.get(at..)?.get(..into.len()));
            bytes.map(|bytes| into.copy_from_slice(bytes)).is_some()
        };
        let report = check(&options, &self.arena, &mut read, &mut |_| ());
        let wrong = report.findings.iter().filter(|found| found.severity > Severity::Notice);
        wrong.map(ToString::to_string).filter(|what| !what.contains("blocks are lost")).collect()
    }
}

/// In the journal, folded, and opened again from either.
const PLACES: [&str; 4] = ["journal", "folded", "reopened", "folded and reopened"];

fn put(rig: &mut Rig, place: &str) {
    if place.contains("folded") {
        rig.fold();
    }
    if place.contains("reopened") {
        rig.reopen();
    }
}

#[test]
fn what_is_lost_reads_as_damaged_until_it_is_written_or_discarded_and_nothing_beside_it() {
    for place in PLACES {
        let mut rig = Rig::new(2000);
        rig.write(0, 5, 3, 100);
        rig.write(6, 2, 3, 106);
        rig.run(lose(1, 5, 1, 3)).unwrap();
        rig.run(lose(1, 30, 20, 4)).unwrap();
        put(&mut rig, place);
        let lost = |n: u32| n == 5 || (30..50).contains(&n);
        for n in 0..64 {
            let expected = if n < 8 { block_of(100 + u64::from(n)) } else { vec![0; BLOCK] };
            assert_eq!(rig.live(n), (!lost(n)).then_some(expected), "{place}: {n}");
        }
        assert!(rig.store.used_by(CopyId(1)) <= Blocks(16), "{place}: of the chunk that was written");
        // How new it is, is known: a filling from here names it.
        assert_eq!(rig.changed(View::Live, 3), [(range(16, 48), stamp(4))], "{place}");
        let extents = StoreOp::Extents { copy: CopyId(1), view: View::Live, at: range(0, 64) };
        let Ok(StoreDone::Extents { data, .. }) = run(&mut rig.store, &mut rig.disk, extents) else { panic!() };
        assert_eq!(data, [range(0, 8), range(30, 20)], "{place}: of what is lost it is not said that it is zeros");
        let held = match run(&mut rig.store, &mut rig.disk, StoreOp::Above { copy: CopyId(1) }) {
            Ok(StoreDone::Above { held, .. }) => held,
            other => panic!("{other:?}"),
        };
        assert!(held.contains(&Held { stamp: stamp(4), at: range(30, 20), kind: HeldKind::Write }), "{place}");
        // No checksum is known that would say what it was.
        let op = repair(&rig.arena, 1, 5, 105..106);
        assert_eq!(rig.run(op), Err(StoreError::Corrupt { copy: CopyId(1), block: Blocks(5) }), "{place}");
        // The same once more is the same; then it ends, with a write, with a discard of a part, and with one of whole chunks.
        rig.run(lose(1, 5, 1, 3)).unwrap();
        rig.write(5, 1, 6, 105);
        rig.zero(31, 1, 6);
        rig.zero(40, 24, 6);
        put(&mut rig, place);
        for n in 0..64 {
            let expected = if n < 8 { block_of(100 + u64::from(n)) } else { vec![0; BLOCK] };
            let lost = n == 30 || (32..40).contains(&n);
            assert_eq!(rig.live(n), (!lost).then_some(expected), "{place}: {n}");
        }
        rig.write(16, 48, 7, 1000);
        put(&mut rig, place);
        assert!((16..64).all(|n| rig.live(n) == Some(block_of(1000 + u64::from(n) - 16))), "{place}");
        assert_eq!(rig.flaws(), [""; 0], "{place}");
    }
}

#[test]
fn what_a_copy_has_of_its_own_is_not_lost() {
    for place in PLACES {
        let mut rig = Rig::new(2000);
        // In the journal, a chunk written whole, and discarded ones, alone and in a run.
        rig.write(3, 2, 2, 100);
        rig.write(16, 16, 2, 200);
        rig.write(32, 96, 2, 300);
        rig.zero(20, 1, 3);
        rig.zero(32, 64, 3);
        put(&mut rig, place);
        let kept = |block| Err(StoreError::Kept { copy: CopyId(1), block: Blocks(block) });
        for (from, count, block) in [(4, 1, 4), (0, 16, 3), (16, 1, 16), (20, 2, 21), (90, 10, 96), (5, 100, 16)] {
            assert_eq!(rig.run(lose(1, from, count, 9)), kept(block), "{place}: {from}, {count}");
        }
        for n in 0..128 {
            let expected = match n {
                3..5 => block_of(97 + u64::from(n)),
                20 => vec![0; BLOCK],
                16..32 => block_of(184 + u64::from(n)),
                96..128 => block_of(268 + u64::from(n)),
                _ => vec![0; BLOCK],
            };
            assert_eq!(rig.live(n), Some(expected), "{place}: {n}");
        }
        // Beside it, and where there is nothing but zeros.
        for (from, count) in [(5, 11), (20, 1), (40, 50)] {
            rig.run(lose(1, from, count, 9)).unwrap();
        }
        put(&mut rig, place);
        assert!([5, 15, 20, 40, 89].iter().all(|n| rig.live(*n).is_none()), "{place}");
        assert!([4, 19, 21, 39, 90, 96].iter().all(|n| rig.live(*n).is_some()), "{place}");
        // A whole chunk that was written to a place of its own gives that back, whatever it was ended by.
        rig.zero(0, 128, 10);
        put(&mut rig, place);
        rig.fold();
        assert_eq!((rig.store.used_by(CopyId(1)), rig.flaws()), (Blocks(0), vec![]), "{place}");
    }
}

/// Below its top layer, and as zeros, which it has when it was never written, too.
#[test]
fn nothing_is_lost_on_a_copy_that_was_complete_but_what_was_before() {
    let mut rig = Rig::new(2000);
    rig.write(0, 5, 3, 100);
    rig.run(lose(1, 40, 1, 4)).unwrap();
    rig.run(snapshot(1, 7, 5)).unwrap();
    rig.run(lose(1, 1, 1, 6)).unwrap();
    rig.run(StoreOp::KnownGood { copy: CopyId(1), stamp: stamp(6) }).unwrap();
    for place in PLACES {
        for (block, known) in [(0, 100), (2, 102), (4, 104)] {
            assert_eq!(rig.run(lose(1, block, 1, 7)), Err(StoreError::Kept { copy: CopyId(1), block: Blocks(block) }));
            assert_eq!(rig.live(block), Some(block_of(known)), "{place}");
        }
        assert!(matches!(rig.run(lose(1, 5, 1, 7)), Err(StoreError::Kept { .. })), "{place}: a zero");
        assert!(matches!(rig.run(lose(1, 0, 4, 7)), Err(StoreError::Kept { .. })), "{place}");
        rig.run(lose(1, 1, 1, 7)).unwrap();
        assert_eq!((rig.live(1), rig.live(40)), (None, None), "{place}");
        put(&mut rig, place);
    }
    assert_eq!(rig.flaws(), Vec::<String>::new());
}

#[test]
fn a_chunk_of_its_own_is_given_back_when_nothing_but_lost_blocks_is_left_of_it() {
    let mut rig = Rig::new(2000);
    rig.write(16, 16, 2, 200);
    rig.zero(20, 1, 3);
    rig.run(lose(1, 20, 1, 4)).unwrap();
    rig.zero(16, 4, 5);
    rig.zero(21, 11, 5);
    rig.fold();
    rig.reopen();
    rig.fold();
    assert_eq!((rig.live(20), rig.live(21)), (None, Some(vec![0; BLOCK])));
    assert_eq!((rig.store.used_by(CopyId(1)), rig.store.usage().used, rig.flaws()), (Blocks(0), Blocks(0), vec![]));
}

#[test]
fn what_is_lost_is_lost_in_a_snapshot_too_and_a_snapshot_has_what_it_had() {
    for place in PLACES {
        let mut rig = Rig::new(2000);
        rig.write(0, 4, 2, 100);
        rig.run(lose(1, 8, 4, 2)).unwrap();
        rig.run(snapshot(1, 7, 3)).unwrap();
        // Over what only the snapshot has: where it was lost, it was written anew behind that.
        rig.run(lose(1, 1, 1, 4)).unwrap();
        put(&mut rig, place);
        rig.write(9, 1, 5, 500);
        rig.zero(10, 1, 5);
        put(&mut rig, place);
        let seven = View::Snapshot(SnapshotId(7));
        for n in 0..16 {
            let before = if n < 4 { block_of(100 + u64::from(n)) } else { vec![0; BLOCK] };
            assert_eq!(rig.read(seven, n), (!(8..12).contains(&n)).then_some(before.clone()), "{place}: {n}");
            let now = match n {
                1 | 8 | 11 => None,
                9 => Some(block_of(500)),
                10 => Some(vec![0; BLOCK]),
                _ => Some(before),
            };
            assert_eq!(rig.live(n), now, "{place}: {n}");
        }
        // Such a snapshot is not shared where something in the range is lost: who has it gives its bytes instead.
        let from = Parent { copy: CopyId(1), snapshot: SnapshotId(7) };
        let share = |at| StoreOp::Share { copy: CopyId(2), stamp: stamp(9), at, from, known_good: Stamp::default() };
        assert!(matches!(rig.run(share(range(0, 16))), Err(StoreError::Corrupt { .. })), "{place}");
        assert_eq!(rig.run(share(range(0, 8))), Ok(()), "{place}");
        assert_eq!(read(&mut rig.store, &mut rig.disk, &rig.arena, 2, range(3, 1)).unwrap(), block_of(103));
        // The layers are merged.
        rig.run(StoreOp::DropSnapshot { copy: CopyId(1), snapshot: SnapshotId(7) }).unwrap();
        rig.fold();
        rig.reopen();
        assert!([1, 8, 11].iter().all(|n| rig.live(*n).is_none()), "{place}");
        assert_eq!((rig.live(2), rig.live(9)), (Some(block_of(102)), Some(block_of(500))), "{place}");
        assert_eq!(rig.flaws(), [""; 0], "{place}");
    }
}

/// Whole or not at all, and what was said to be lost stays so, wherever the power goes: while it is recorded, and while it is folded.
#[test]
fn wherever_the_power_goes_what_was_said_to_be_lost_is_and_nothing_beside_it() {
    let (mut asked, mut there) = (0, 0);
    for steps in 0..120 {
        let mut rig = Rig::new(2000);
        rig.write(0, 8, 2, 100);
        rig.run(lose(1, 8, 3, 3)).unwrap();
        let later = NOW + driver::Span::millis(5000);
        rig.disk.random = Random(steps * 31 + 7);
        rig.store.submit(later, Tag(1), lose(1, 100, 40, 4), &mut |op| rig.disk.submit(op));
        for _ in 0..steps {
            rig.store.end_turn(later, &mut |op| rig.disk.submit(op));
            let Some(done) = rig.disk.step() else { break };
            rig.store.done(later, done, &mut |op| rig.disk.submit(op));
        }
        let said = rig.store.next_completion().is_some();
        rig.reopen();
        for _ in 0..2 {
            let lost: Vec<u32> = (0..BLOCKS).filter(|n| rig.live(*n).is_none()).collect();
            let second = lost.contains(&100);
            let expected = (8..11).chain(100..if second { 140 } else { 100 });
            assert!(lost == expected.collect::<Vec<_>>() && (second || !said), "{steps} steps: {lost:?}");
            assert!((0..8).all(|n| rig.live(n) == Some(block_of(100 + u64::from(n)))), "{steps} steps");
            there += u32::from(second);
            rig.fold();
        }
        asked += u32::from(said);
        assert_eq!(rig.flaws(), [""; 0], "{steps} steps");
    }
    assert!(asked > 50 && there > asked, "{asked} {there}");
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Is {
    Zero,
    Lost,
    Data(u64),
}

/// Against a model: writes, discards, snapshots, rollbacks and power cuts among them.
#[test]
fn whatever_else_is_done_every_block_of_every_view_is_what_it_must_be() {
    let (mut lost, mut kept, mut reads) = (0, 0, 0);
    for seed in 1..=25 {
        let mut rig = Rig::new(3000);
        let mut random = Random(seed * 991);
        let mut live = vec![Is::Zero; BLOCKS as usize];
        // Of its own on top; and content that may have come there, from a snapshot that was dropped.
        let (mut top, mut dropped) = (vec![false; BLOCKS as usize], false);
        let mut snapshots: BTreeMap<u64, Vec<Is>> = BTreeMap::new();
        for sequence in 2..260 {
            let count = [1, 2, 16, 40, 100][random.below(5) as usize];
            let from = random.below(u64::from(BLOCKS - count)) as u32;
            let blocks = from as usize..(from + count) as usize;
            let name = snapshots.keys().nth(random.below(snapshots.len().max(1) as u64) as usize).copied();
            match (random.below(24), name) {
                (0, _) if snapshots.len() < 4 => {
                    rig.run(snapshot(1, sequence, sequence)).unwrap();
                    snapshots.insert(sequence, live.clone());
                    top.fill(false);
                }
                (1, Some(name)) => {
                    rig.run(StoreOp::DropSnapshot { copy: CopyId(1), snapshot: SnapshotId(name) }).unwrap();
                    snapshots.remove(&name);
                    dropped = true;
                }
                (2, Some(name)) => {
                    let (copy, snapshot) = (CopyId(1), SnapshotId(name));
                    let (stamp, known_good) = (stamp(sequence), Stamp::default());
                    rig.run(StoreOp::Rollback { copy, stamp, snapshot, known_good }).unwrap();
                    live.clone_from(&snapshots[&name]);
                    top.fill(false);
                }
                (3, _) => rig.fold(),
                (4, _) => rig.reopen(),
                (5..9, _) => {
                    rig.zero(from, count, sequence);
                    live[blocks.clone()].fill(Is::Zero);
                    top[blocks].fill(false);
                }
                (9..16, _) => {
                    let must = blocks.clone().any(|n| top[n]);
                    let may = dropped && blocks.clone().any(|n| matches!(live[n], Is::Data(_)));
                    match rig.run(lose(1, from, count, sequence)) {
                        Ok(()) if !must => live[blocks].fill(Is::Lost),
                        Err(StoreError::Kept { .. }) if must || may => kept += 1,
                        other => panic!("seed {seed}, {from}, {count}: {other:?}"),
                    }
                }
                _ => {
                    rig.write(from, count, sequence, sequence * 1000);
                    live[blocks.clone()].iter_mut().zip(0..).for_each(|(is, n)| *is = Is::Data(sequence * 1000 + n));
                    top[blocks].fill(true);
                }
            }
        }
        for round in 0..2 {
            let snapshots = snapshots.iter().map(|(name, is)| (View::Snapshot(SnapshotId(*name)), is.clone()));
            for (view, is) in snapshots.chain([(View::Live, live.clone())]) {
                for (n, is) in (0..).zip(is) {
                    let expected = match is {
                        Is::Zero => Some(vec![0; BLOCK]),
                        Is::Lost => None,
                        Is::Data(seed) => Some(block_of(seed)),
                    };
                    assert!(rig.read(view, n) == expected, "seed {seed}, round {round}, {view:?}: {n} is {is:?}");
                    (lost, reads) = (lost + u64::from(is == Is::Lost), reads + 1);
                }
            }
            rig.fold();
            rig.reopen();
        }
        assert_eq!(rig.flaws(), [""; 0], "seed {seed}");
    }
    println!("{lost} of {reads} lost, {kept} times kept");
    assert!(lost > 1000 && kept > 100, "{lost} of {reads} lost, {kept} times kept");
}

#[test]
fn what_is_lost_takes_no_chunk_on_a_disk_that_is_full() {
    let mut rig = Rig::new(500);
    let mut sequence = 1;
    while rig.store.usage().free() > 0 {
        sequence += 1;
        let op = write(&rig.arena, 2, range((sequence as u32 - 2) * 16, 16), sequence, 1);
        match rig.run(op) {
            Ok(()) => {}
            Err(StoreError::NoSpace | StoreError::OutOfRange { .. }) => break,
            Err(error) => panic!("{error}"),
        }
    }
    let used = rig.store.usage().used;
    // All at once, so that they are admitted one beside the other.
    for n in 0..25 {
        rig.store.submit(NOW, Tag(n.into()), lose(1, n * 16 + 3, 2, 500), &mut |op| rig.disk.submit(op));
    }
    quiesce(&mut rig.store, &mut rig.disk);
    let over: Vec<_> = std::iter::from_fn(|| rig.store.next_completion()).collect();
    assert!(over.len() == 25 && over.iter().all(|(_, result)| result.is_ok()), "{over:?}");
    rig.fold();
    assert_eq!(rig.store.usage().used, used);
    rig.reopen();
    assert!((0..25).all(|n| rig.live(n * 16 + 3).is_none() && rig.live(n * 16).is_some()));
    assert_eq!((rig.store.failure(), rig.flaws()), (None, vec![]));
}
