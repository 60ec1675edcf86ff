//! Which chunks were changed above a stamp, and how far a filling is, against a model of versions: through writes, discards, snapshots,
//! rollbacks, clones, copy-range, flattening, folds, reopening and power cuts.
#![allow(clippy::cast_possible_truncation, clippy::unwrap_used)] // a test: small numbers, and a panic is its way to fail

mod disk;

use conductor_model::{BlockRange, Blocks, Configuration, CopyId, CopyState, Epoch, Sequence, SnapshotId, Stamp};
use disk::*;
use memory::Arena;
use node_store::journaled::JournaledStore;
use node_store::{FillMark, Parent, Store, StoreDone, StoreError, StoreOp, Tag, View, block_crcs};
use std::collections::BTreeMap;

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

/// The version of each chunk that is named.
fn by_chunk(list: &[(BlockRange, Stamp)], blocks: u32) -> BTreeMap<u32, Stamp> {
    let mut chunks = BTreeMap::new();
    for (at, version) in list {
        let (from, end) = (at.from.0, at.end() as u32);
        assert!(from.is_multiple_of(CHUNK) && (end.is_multiple_of(CHUNK) || end == blocks), "{at:?} of {blocks}");
        chunks.extend((from / CHUNK..end.div_ceil(CHUNK)).map(|chunk| (chunk, *version)));
    }
    chunks
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
fn of_a_large_shard_only_the_pages_that_say_something_are_read() {
    let mut rig = Rig::new(5, 2000);
    rig.run(create(1, 1 << 20, None)).unwrap();
    for (n, from) in [5, 400_000, (1 << 20) - 1].into_iter().enumerate() {
        let op = write(&rig.arena, 1, range(from, 1), n as u64 + 1, 100);
        rig.run(op).unwrap();
    }
    rig.fold();
    rig.reopen();
    let mut reads = 0;
    let op = StoreOp::Changed { copy: CopyId(1), view: View::Live, above: stamp(2), from: Blocks(0) };
    let Rig { disk, store, .. } = &mut rig;
    store.submit(NOW, Tag(1), op, &mut |op| disk.submit(op));
    let result = loop {
        store.end_turn(NOW, &mut |op| {
            reads += u32::from(matches!(op, driver::Op::DiskRead { .. }));
            disk.submit(op);
        });
        if let Some((_, result)) = store.next_completion() {
            break result.unwrap();
        }
        let done = disk.step().expect("it waits for a page");
        store.done(NOW, done, &mut |op| disk.submit(op));
    };
    let StoreDone::Changed { chunks, next } = result else { panic!("an answer") };
    assert_eq!((ranges(&chunks), next.0), (vec![((1 << 20) - 16, 16, 3)], 1 << 20));
    // Three leaves, the two pages above them, and the root; a full map has 516 leaves.
    assert!((4..=8).contains(&reads), "{reads}");
}

#[test]
fn a_mark_survives_reopening_with_all_before_it_and_ends_with_known_good() {
    let mut rig = Rig::new(4, 2000);
    rig.run(create(1, 100, None)).unwrap();
    let copy = CopyId(1);
    for n in 1..=40u32 {
        // Written under durability=flush: only the mark makes it durable.
        rig.flush_write(n, 1, stamp(u64::from(n)));
        let mark = FillMark { base: stamp(3), cursor: Blocks(n), upto: stamp(u64::from(n)) };
        rig.run(StoreOp::Mark { copy, mark, known_good: None }).unwrap();
        assert_eq!(rig.store.fill_mark(copy), mark);
        if n % 3 == 0 {
            rig.fold();
        }
        rig.reopen();
        assert_eq!(rig.store.fill_mark(copy), mark);
        let all: Vec<u8> = (0..n).flat_map(|_| block_of(0)).collect();
        assert!(read(&mut rig.store, &mut rig.disk, &rig.arena, 1, range(1, n)).unwrap() == all, "{n}");
    }
    let mark = FillMark { base: stamp(9), cursor: Blocks(100), upto: stamp(40) };
    rig.flush_write(60, 1, stamp(50));
    rig.run(StoreOp::Mark { copy, mark, known_good: Some(stamp(45)) }).unwrap();
    for folded in [false, true] {
        if folded {
            rig.fold();
        }
        rig.reopen();
        assert_eq!(rig.store.fill_mark(copy), FillMark::default());
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

/// What a view holds, as far as versions go.
#[derive(Clone)]
struct Holds {
    /// Blocks with data.
    data: Vec<bool>,
    /// For each chunk: the newest change that must be known, and the newest that may be (a discard of nothing may be forgotten).
    chunks: Vec<(u64, u64)>,
    /// The last rollback: everything is as new as that, what the copy grows by too.
    base: u64,
}

impl Holds {
    fn new(blocks: u32) -> Self {
        Self { data: vec![false; blocks as usize], chunks: vec![(0, 0); blocks.div_ceil(CHUNK) as usize], base: 0 }
    }
    fn blocks(&self) -> u32 {
        self.data.len() as u32
    }
    fn resize(&mut self, blocks: u32) {
        self.data.resize(blocks as usize, false);
        self.chunks.resize(blocks.div_ceil(CHUNK) as usize, (self.base, self.base));
    }
    /// Blocks of a chunk, as far as they lie in a range.
    fn span(&self, chunk: u32, at: BlockRange) -> std::ops::Range<usize> {
        let end = (at.end() as u32).min((chunk + 1) * CHUNK).min(self.blocks());
        (at.from.0.max(chunk * CHUNK) as usize)..end as usize
    }
    fn has_data(&self, chunk: u32, at: BlockRange) -> bool {
        self.data.get(self.span(chunk, at)).is_some_and(|blocks| blocks.contains(&true))
    }
    /// A change of a range by which each of its blocks has data or not; `known`: it must be known of a chunk.
    fn change(
        &mut self,
        at: BlockRange,
        version: u64,
        known: impl Fn(&Self, u32) -> bool,
        data: impl Fn(usize) -> bool,
    ) {
        for chunk in at.from.0 / CHUNK..(at.end() as u32).div_ceil(CHUNK) {
            let must = if known(self, chunk) { version } else { 0 };
            let (newest, may) = self.chunks[chunk as usize];
            self.chunks[chunk as usize] = (newest.max(must), may.max(version));
            for block in self.span(chunk, at) {
                self.data[block] = data(block);
            }
        }
    }
}

struct Model {
    live: Holds,
    snapshots: BTreeMap<u64, Holds>,
    mark: FillMark,
    /// K.
    good: u64,
    /// No member is absent: what a discard left may be forgotten below K.
    purges: bool,
}

struct World {
    rig: Rig,
    random: Random,
    copies: BTreeMap<u64, Model>,
    next: u64,
    seen: BTreeMap<&'static str, u64>,
}

fn whole(chunk: u32) -> BlockRange {
    range(chunk * CHUNK, CHUNK)
}

impl World {
    fn new(seed: u64) -> Self {
        let random = Random(seed.wrapping_mul(7919) | 1);
        Self { rig: Rig::new(seed, 6000), random, copies: BTreeMap::new(), next: 1, seen: BTreeMap::new() }
    }

    fn did(&mut self, what: &'static str) {
        *self.seen.entry(what).or_default() += 1;
    }

    fn pick(&mut self) -> u64 {
        let ids: Vec<u64> = self.copies.keys().copied().collect();
        ids[self.random.below(ids.len() as u64) as usize]
    }

    fn pick_snapshot(&mut self, copy: u64) -> Option<u64> {
        let names: Vec<u64> = self.copies[&copy].snapshots.keys().copied().collect();
        (!names.is_empty()).then(|| names[self.random.below(names.len() as u64) as usize])
    }

    /// True if it was done; false if something else needs what it would take, or there is no room for one more layer.
    fn run(&mut self, what: &'static str, op: StoreOp) -> bool {
        match self.rig.run(op) {
            Ok(StoreDone::Done) => {
                self.did(what);
                true
            }
            Err(StoreError::Needed(clone)) => {
                self.rig.run(StoreOp::Flatten { copy: clone }).unwrap();
                self.did("flatten");
                false
            }
            other => panic!("{what}: {other:?}"),
        }
    }

    fn config(copy: u64, blocks: u32, purges: bool) -> Configuration {
        let shard = conductor_model::ShardId {
            volume: conductor_model::VolumeId(copy as u32),
            index: conductor_model::ShardIndex(7),
        };
        Configuration { shard, ..if purges { config(1, blocks) } else { degraded(blocks) } }
    }

    fn create(&mut self, parent: Option<(u64, u64)>) {
        let (copy, purges) = (self.next, self.random.one_in(3));
        let mut live =
            parent.map_or_else(|| Holds::new(200), |(copy, name)| self.copies[&copy].snapshots[&name].clone());
        (live.base, _) = (0, live.chunks.fill((0, 0)));
        live.resize(live.blocks() + 8 * self.random.below(3) as u32);
        let config = Self::config(copy, live.blocks(), purges);
        let from = parent.map(|(copy, name)| Parent { copy: CopyId(copy), snapshot: SnapshotId(name) });
        let what = if parent.is_some() { "clone" } else { "create" };
        if self.run(what, StoreOp::Create { copy: CopyId(copy), config, parent: from }) {
            let mark = FillMark::default();
            self.copies.insert(copy, Model { live, snapshots: BTreeMap::new(), mark, good: 0, purges });
        }
    }

    fn act(&mut self) {
        self.next += 1;
        let pick = self.random.below(100);
        if self.copies.is_empty() || (pick < 3 && self.copies.len() < 3) {
            return self.create(None);
        }
        let copy = self.pick();
        let (newest, blocks) = (self.next, self.copies[&copy].live.blocks());
        // What a copy is filled with has the version that it has elsewhere.
        let filled = self.random.one_in(4);
        let version = if filled { 1 + self.random.below(newest) } else { newest };
        let longest = if self.random.one_in(3) { 100 } else { 20 };
        let count = 1 + self.random.below(longest) as u32;
        let at = range(self.random.below(u64::from(blocks - count)) as u32, count);
        let model = self.copies.get_mut(&copy).unwrap();
        if model.purges && self.random.one_in(8) {
            model.good = model.good.max(self.random.below(newest));
        }
        let known_good = if model.good > 0 { stamp(model.good) } else { none() };
        let id = CopyId(copy);
        match pick {
            3..=8 => {
                if let (Some(name), true) = (self.pick_snapshot(copy), self.copies.len() < 6) {
                    self.create(Some((copy, name)));
                }
            }
            9..=18 if self.copies[&copy].snapshots.len() < 5 => {
                let snapshot = SnapshotId(1000 + newest);
                if self.run("snapshot", StoreOp::Snapshot { copy: id, stamp: stamp(newest), snapshot, known_good }) {
                    let model = self.copies.get_mut(&copy).unwrap();
                    model.snapshots.insert(snapshot.0, model.live.clone());
                }
            }
            19..=21 => {
                let Some(name) = self.pick_snapshot(copy) else { return };
                let snapshot = SnapshotId(name);
                if self.run("rollback", StoreOp::Rollback { copy: id, stamp: stamp(newest), snapshot, known_good }) {
                    let model = self.copies.get_mut(&copy).unwrap();
                    model.live = model.snapshots[&name].clone();
                    model.live.resize(blocks);
                    (model.live.base, _) = (newest, model.live.chunks.fill((newest, newest)));
                }
            }
            22..=28 => {
                let Some(name) = self.pick_snapshot(copy) else { return };
                if self.run("drop", StoreOp::DropSnapshot { copy: id, snapshot: SnapshotId(name) }) {
                    self.copies.get_mut(&copy).unwrap().snapshots.remove(&name);
                }
            }
            29..=30 => {
                self.run("flatten", StoreOp::Flatten { copy: id });
            }
            31 => {
                if self.run("delete", StoreOp::Delete { copy: id }) {
                    self.copies.remove(&copy);
                }
            }
            32 if blocks < 300 => {
                let model = self.copies.get_mut(&copy).unwrap();
                model.live.resize(blocks + 8);
                let config = Self::config(copy, blocks + 8, model.purges);
                self.run("grow", StoreOp::Join { copy: id, config });
            }
            33..=38 => {
                let mark = FillMark { base: stamp(version), cursor: at.from, upto: stamp(newest) };
                let over = self.random.one_in(4);
                let model = self.copies.get_mut(&copy).unwrap();
                if over {
                    model.good = model.good.max(version);
                }
                model.mark = if over { FillMark::default() } else { mark };
                self.run("mark", StoreOp::Mark { copy: id, mark, known_good: over.then(|| stamp(version)) });
            }
            39..=47 => {
                let source = self.pick();
                let Some(name) = self.pick_snapshot(source) else { return };
                let shared = self.copies[&source].snapshots[&name].clone();
                if at.end() > u64::from(shared.blocks()) {
                    return;
                }
                let from = Parent { copy: CopyId(source), snapshot: SnapshotId(name) };
                if self.run("share", StoreOp::Share { copy: id, stamp: stamp(version), at, from, known_good }) {
                    let known = |own: &Holds, chunk| own.has_data(chunk, at) || shared.has_data(chunk, at);
                    let live = &mut self.copies.get_mut(&copy).unwrap().live;
                    live.change(at, version, known, |block| shared.data[block]);
                }
            }
            48..=60 => {
                if self.run("zero", StoreOp::Zero { copy: id, stamp: stamp(version), at, known_good, durable: true }) {
                    let live = &mut self.copies.get_mut(&copy).unwrap().live;
                    live.change(at, version, |own, chunk| own.has_data(chunk, whole(chunk)), |_| false);
                }
            }
            61..=75 => self.compare_some(copy),
            _ => {
                let op = write(&self.rig.arena, copy, at, version, 100);
                if self.run(if filled { "fill" } else { "write" }, op) {
                    let live = &mut self.copies.get_mut(&copy).unwrap().live;
                    live.change(at, version, |_, _| true, |_| true);
                }
            }
        }
    }

    fn compare_some(&mut self, copy: u64) {
        let name = self.pick_snapshot(copy).filter(|_| self.random.one_in(2));
        self.compare(copy, name);
    }

    /// The list above some stamp, chunk by chunk.
    fn compare(&mut self, copy: u64, name: Option<u64>) {
        let model = &self.copies[&copy];
        let holds = name.map_or(&model.live, |name| &model.snapshots[&name]).clone();
        let (good, purges) = (model.good, model.purges);
        assert_eq!(self.rig.store.fill_mark(CopyId(copy)), model.mark);
        let view = name.map_or(View::Live, |name| View::Snapshot(SnapshotId(name)));
        let above = match self.random.below(4) {
            0 => none(),
            1 => stamp(self.random.below(self.next + 1)),
            _ => stamp(self.next - self.random.below(self.next.min(60))),
        };
        let (list, end, _) = changed(&mut self.rig.store, &mut self.rig.disk, copy, view, above);
        assert_eq!(end, holds.blocks());
        let named = by_chunk(&list, end);
        for (chunk, (must, may)) in (0u32..).zip(holds.chunks.iter().copied()) {
            let at = || format!("chunk {chunk} of {copy} {view:?} above {above}: {must} to {may}, K {good}");
            let data = holds.has_data(chunk, whole(chunk));
            let version = named.get(&chunk).copied();
            if let Some(version) = version {
                assert!(version <= stamp(may).max(inherited()), "{}, named with {version}", at());
                self.did(if data { "named" } else { "a tombstone named" });
            }
            // Below K of all copies, a discard and the versions before it may be forgotten.
            let forgotten = purges && must <= good;
            if above < stamp(must) && must > 0 && !forgotten {
                assert!(version.is_some_and(|version| version >= stamp(must)), "{}, named with {version:?}", at());
            }
            if above == none() && data {
                let version = version.unwrap_or_else(|| panic!("{} has data and is not named", at()));
                if may == 0 {
                    assert_eq!(version, inherited(), "{}", at());
                    self.did("inherited");
                }
            }
            if above >= stamp(may) {
                assert_eq!(version, None, "{}", at());
            }
        }
        // Asked from somewhere on, it is the rest of the same list.
        let from = Blocks(self.random.below(u64::from(end)) as u32);
        let op = StoreOp::Changed { copy: CopyId(copy), view, above, from };
        let StoreDone::Changed { chunks, next } = self.rig.run(op).unwrap() else { panic!("an answer") };
        let rest = named.range(from.0 / CHUNK..).map(|(chunk, version)| (*chunk, *version)).collect();
        assert_eq!((by_chunk(&chunks, end), next.0), (rest, end));
        self.did("compared");
    }

    fn compare_all(&mut self) {
        for copy in self.copies.keys().copied().collect::<Vec<_>>() {
            let names: Vec<u64> = self.copies[&copy].snapshots.keys().copied().collect();
            names.into_iter().map(Some).chain([None]).for_each(|name| self.compare(copy, name));
        }
    }

    /// The power fails somewhere in the middle of what goes on behind.
    fn crash(&mut self) {
        let later = if self.random.one_in(2) { NOW } else { LATER };
        let Rig { disk, store, .. } = &mut self.rig;
        for _ in 0..self.random.below(60) {
            store.end_turn(later, &mut |op| disk.submit(op));
            let Some(done) = disk.step() else { break };
            store.done(later, done, &mut |op| disk.submit(op));
        }
        self.rig.reopen();
        self.did("crash");
        self.compare_all();
    }

    /// Part of what goes on behind: later operations meet a fold under way.
    fn fold_some(&mut self) {
        let Rig { disk, store, .. } = &mut self.rig;
        for _ in 0..self.random.below(30) {
            store.end_turn(LATER, &mut |op| disk.submit(op));
            let Some(done) = disk.step() else { break };
            store.done(LATER, done, &mut |op| disk.submit(op));
        }
        self.did("part of a fold");
    }
}

#[test]
fn versions_are_those_of_a_model_whatever_happens() {
    let mut seen: BTreeMap<&'static str, u64> = BTreeMap::new();
    for seed in 1..=12 {
        let mut world = World::new(seed);
        for _ in 0..900 {
            world.act();
            match world.random.below(60) {
                0 => world.crash(),
                1 => world.rig.fold(),
                2 => world.compare_all(),
                3..=6 => world.fold_some(),
                _ => {}
            }
        }
        world.rig.fold();
        world.compare_all();
        for (what, count) in world.seen {
            *seen.entry(what).or_default() += count;
        }
    }
    println!("{seen:?}");
    let floors = [
        ("write", 1000),
        ("fill", 400),
        ("zero", 800),
        ("share", 150),
        ("snapshot", 300),
        ("rollback", 100),
        ("clone", 100),
        ("drop", 200),
        ("flatten", 100),
        ("delete", 30),
        ("grow", 30),
        ("mark", 300),
        ("crash", 100),
        ("part of a fold", 300),
        ("compared", 2000),
        ("named", 10_000),
        ("a tombstone named", 2000),
        ("inherited", 500),
    ];
    for (what, floor) in floors {
        assert!(seen.get(what).is_some_and(|count| *count >= floor), "{what}: {seen:?}");
    }
}
