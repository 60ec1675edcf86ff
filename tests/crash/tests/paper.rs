//! The tests themselves are right about snapshots, clones and copy-range: an engine too plain to be wrong passes them.
//!
//! It writes all that it knows, as one piece, for each turn in which something changed: to one of two places, in turn. What
//! blocks hold it remembers by their first eight bytes, which the workload never uses twice, outside of the disk.
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation)] // a test: small numbers, and a panic is its way to fail

use conductor_model::{BLOCK, BlockRange, Blocks, Configuration, CopyId, Epoch, Sequence, SnapshotId, Stamp};
use crash::{Ability, Begun, Disks, Engine, Moment, Open, Progress, Refused, Shape, Simple, operations, points};
use driver::{DiskIndex, Done, Op, Time};
use memory::{Arena, Class, Filling};
use node_store::{
    Counters, DiskOut, FillMark, Held, HeldKind, Leeway, Parent, Store, StoreDone, StoreError, StoreOp, Tag, Usage,
    View, block_crcs,
};
use smallvec::smallvec;
use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};

/// Bytes of each of the two places.
const PLACE: usize = 1 << 20;
const DISK: DiskIndex = DiskIndex(0);

type Block = Vec<u8>;
type Finished = (Tag, Result<StoreDone, StoreError>);

thread_local! {
    static BLOCKS: RefCell<BTreeMap<u64, Block>> = const { RefCell::new(BTreeMap::new()) };
    /// By copy, epoch and size.
    static CONFIGS: RefCell<BTreeMap<(u64, u64, u64), Configuration>> = const { RefCell::new(BTreeMap::new()) };
}

fn intern(block: &[u8]) -> u64 {
    let name = u64::from_le_bytes(block[..8].try_into().unwrap());
    BLOCKS.with(|blocks| blocks.borrow_mut().entry(name).or_insert_with(|| block.to_vec()).clone());
    name
}

#[derive(Clone, Default)]
struct Copy {
    epoch: u64,
    size: u64,
    live: Vec<u64>,
    snapshots: Vec<(u64, Vec<u64>)>,
    known: Stamp,
    held: Vec<Held>,
    parent: Option<Parent>,
    mark: FillMark,
}

type Copies = BTreeMap<u64, Copy>;

fn encode(version: u64, copies: &Copies) -> Vec<u8> {
    let mut words = vec![0, version, copies.len() as u64];
    let image = |words: &mut Vec<u64>, image: &[u64]| {
        words.push(image.len() as u64);
        words.extend(image);
    };
    for (id, copy) in copies {
        words.extend([*id, copy.epoch, copy.size, copy.known.epoch.0, copy.known.sequence.0]);
        let (parent, snapshot) = copy.parent.map_or((0, 0), |p| (p.copy.0, p.snapshot.0));
        let FillMark { base, cursor, upto } = copy.mark;
        words.extend([base.epoch.0, base.sequence.0, cursor.0.into(), upto.epoch.0, upto.sequence.0]);
        words.extend([parent, snapshot, copy.held.len() as u64]);
        for Held { stamp, at, kind } in &copy.held {
            words.extend([stamp.epoch.0, stamp.sequence.0, at.from.0.into(), at.count.0.into(), *kind as u64]);
        }
        image(&mut words, &copy.live);
        words.push(copy.snapshots.len() as u64);
        for (id, blocks) in &copy.snapshots {
            words.push(*id);
            image(&mut words, blocks);
        }
    }
    let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    let len = bytes.len() as u64;
    let head = len << 32 | u64::from(crc32c::crc32c(&bytes[8..]));
    bytes[..8].copy_from_slice(&head.to_le_bytes());
    bytes.resize(bytes.len().next_multiple_of(BLOCK), 0);
    bytes
}

fn decode(bytes: &[u8]) -> Option<(u64, Copies)> {
    let head = u64::from_le_bytes(bytes[..8].try_into().unwrap());
    let body = bytes.get(8..(head >> 32) as usize)?;
    if crc32c::crc32c(body) != head as u32 {
        return None;
    }
    let mut words = body.chunks(8).map(|word| u64::from_le_bytes(word.try_into().unwrap()));
    let mut next = move || words.next().unwrap();
    let (version, mut copies) = (next(), Copies::new());
    for _ in 0..next() {
        let id = next();
        let mut copy = Copy { epoch: next(), size: next(), ..Copy::default() };
        copy.known = Stamp { epoch: Epoch(next()), sequence: Sequence(next()) };
        let base = Stamp { epoch: Epoch(next()), sequence: Sequence(next()) };
        let cursor = Blocks(next() as u32);
        let upto = Stamp { epoch: Epoch(next()), sequence: Sequence(next()) };
        copy.mark = FillMark { base, cursor, upto };
        let (parent, snapshot) = (next(), next());
        copy.parent = (parent > 0).then_some(Parent { copy: CopyId(parent), snapshot: SnapshotId(snapshot) });
        for _ in 0..next() {
            let stamp = Stamp { epoch: Epoch(next()), sequence: Sequence(next()) };
            let at = BlockRange { from: Blocks(next() as u32), count: Blocks(next() as u32) };
            let kind = [HeldKind::Write, HeldKind::Zero, HeldKind::Barrier][next() as usize];
            copy.held.push(Held { stamp, at, kind });
        }
        copy.live = (0..next()).map(|_| next()).collect();
        for _ in 0..next() {
            let id = next();
            copy.snapshots.push((id, (0..next()).map(|_| next()).collect()));
        }
        copies.insert(id, copy);
    }
    Some((version, copies))
}

struct Paper {
    arena: Arena,
    version: u64,
    copies: Copies,
    queued: Vec<(Tag, StoreOp)>,
    /// What is on its way to the disk, and whose it is.
    writing: Option<(Copies, Vec<Finished>)>,
    finished: VecDeque<Finished>,
}

fn image(copies: &Copies, of: CopyId, view: View) -> &Vec<u64> {
    let copy = &copies[&of.0];
    match view {
        View::Live => &copy.live,
        View::Snapshot(id) => &copy.snapshots.iter().find(|(other, _)| *other == id.0).unwrap().1,
    }
}

fn span(at: BlockRange) -> std::ops::Range<usize> {
    at.from.0 as usize..at.end() as usize
}

/// A change.
fn apply(copies: &mut Copies, op: StoreOp) -> Result<StoreDone, StoreError> {
    let keep = |config: &Configuration, copy: CopyId| {
        let key = (copy.0, config.epoch.0, config.size.0);
        CONFIGS.with(|configs| configs.borrow_mut().insert(key, config.clone()));
    };
    let told = |copy: &mut Copy, known: Stamp, held: Option<Held>| {
        copy.known = copy.known.max(known);
        copy.held.extend(held);
        copy.held.retain(|held| held.stamp > copy.known);
    };
    let held = |stamp, at, kind| Some(Held { stamp, at, kind });
    let source = match &op {
        StoreOp::Share { from, .. } | StoreOp::Create { parent: Some(from), .. } => {
            image(copies, from.copy, View::Snapshot(from.snapshot)).clone()
        }
        _ => vec![],
    };
    let needed = |copies: &Copies, copy: CopyId, snapshot: Option<SnapshotId>| {
        let parents = copies.values().filter_map(|copy| copy.parent);
        parents.into_iter().any(|p| p.copy == copy && snapshot.is_none_or(|s| s == p.snapshot))
    };
    match op {
        StoreOp::Create { copy, config, parent } => {
            keep(&config, copy);
            let mut live = source;
            live.resize((config.size.0 / BLOCK as u64) as usize, 0);
            let new = Copy { epoch: config.epoch.0, size: config.size.0, live, parent, ..Copy::default() };
            copies.insert(copy.0, new);
        }
        StoreOp::Join { copy: id, config } => {
            keep(&config, id);
            let copy = copies.get_mut(&id.0).unwrap();
            (copy.epoch, copy.size) = (config.epoch.0, config.size.0);
            copy.live.resize((config.size.0 / BLOCK as u64) as usize, 0);
        }
        StoreOp::Delete { copy } if needed(copies, copy, None) => return Err(StoreError::Needed(copy)),
        StoreOp::Delete { copy } => drop(copies.remove(&copy.0)),
        StoreOp::Write { copy, stamp, at, data, known_good, .. } => {
            let copy = copies.get_mut(&copy.0).unwrap();
            copy.live[span(at)].iter_mut().zip(data.chunks(BLOCK)).for_each(|(name, block)| *name = intern(block));
            told(copy, known_good, held(stamp, at, HeldKind::Write));
        }
        StoreOp::Zero { copy, stamp, at, known_good, .. } => {
            let copy = copies.get_mut(&copy.0).unwrap();
            copy.live[span(at)].fill(0);
            told(copy, known_good, held(stamp, at, HeldKind::Zero));
        }
        StoreOp::Share { copy, stamp, at, known_good, .. } => {
            let copy = copies.get_mut(&copy.0).unwrap();
            copy.live[span(at)].copy_from_slice(&source[span(at)]);
            told(copy, known_good, held(stamp, at, HeldKind::Write));
        }
        StoreOp::Snapshot { copy, stamp, snapshot, known_good } => {
            let copy = copies.get_mut(&copy.0).unwrap();
            let at = BlockRange { from: Blocks(0), count: Blocks(copy.live.len() as u32) };
            copy.snapshots.push((snapshot.0, copy.live.clone()));
            told(copy, known_good, held(stamp, at, HeldKind::Barrier));
        }
        StoreOp::Rollback { copy, stamp, snapshot, known_good } => {
            let mut blocks = image(copies, copy, View::Snapshot(snapshot)).clone();
            let copy = copies.get_mut(&copy.0).unwrap();
            blocks.resize(copy.live.len(), 0);
            let at = BlockRange { from: Blocks(0), count: Blocks(copy.live.len() as u32) };
            copy.live = blocks;
            told(copy, known_good, held(stamp, at, HeldKind::Write));
        }
        StoreOp::DropSnapshot { copy, snapshot } if needed(copies, copy, Some(snapshot)) => {
            return Err(StoreError::Needed(copy));
        }
        StoreOp::DropSnapshot { copy, snapshot } => {
            copies.get_mut(&copy.0).unwrap().snapshots.retain(|(id, _)| *id != snapshot.0);
        }
        StoreOp::Flatten { copy } => copies.get_mut(&copy.0).unwrap().parent = None,
        StoreOp::KnownGood { copy, stamp } => told(copies.get_mut(&copy.0).unwrap(), stamp, None),
        StoreOp::Mark { copy, mark, known_good } => {
            let copy = copies.get_mut(&copy.0).unwrap();
            copy.mark = known_good.map_or(mark, |_| FillMark::default());
            told(copy, known_good.unwrap_or_default(), None);
        }
        StoreOp::Flush { .. } | StoreOp::Repair { .. } => {}
        StoreOp::Lose { .. } => unreachable!("no copy is filled here"),
        StoreOp::Read { .. } | StoreOp::Extents { .. } | StoreOp::Changed { .. } | StoreOp::Above { .. } => {
            unreachable!("no change")
        }
    }
    Ok(StoreDone::Done)
}

impl Store for Paper {
    fn submit(&mut self, _: Time, tag: Tag, op: StoreOp, _: &mut DiskOut<'_>) {
        let done = match op {
            StoreOp::Read { copy, view, at, mut into } => {
                for (name, block) in image(&self.copies, copy, view)[span(at)].iter().zip(into.chunks_mut(BLOCK)) {
                    BLOCKS.with(|blocks| match name {
                        0 => block.fill(0),
                        name => block.copy_from_slice(&blocks.borrow()[name]),
                    });
                }
                let crcs = block_crcs(&into);
                StoreDone::Read(into, crcs)
            }
            StoreOp::Extents { copy, view, at } => {
                let image = image(&self.copies, copy, view);
                let here = (at.from.0 as usize..image.len()).filter(|n| image[*n] != 0);
                let data = here.map(|n| BlockRange { from: Blocks(n as u32), count: Blocks(1) }).collect();
                StoreDone::Extents { data, next: Blocks(image.len() as u32) }
            }
            StoreOp::Above { copy } => {
                let copy = &self.copies[&copy.0];
                StoreDone::Above { known_good: copy.known, held: copy.held.clone() }
            }
            change => return self.queued.push((tag, change)),
        };
        self.finished.push_back((tag, Ok(done)));
    }

    fn done(&mut self, _: Time, done: Done, _: &mut DiskOut<'_>) {
        done.result.unwrap();
        let (copies, finished) = self.writing.take().unwrap();
        self.copies = copies;
        self.finished.extend(finished);
    }

    fn end_turn(&mut self, _: Time, out: &mut DiskOut<'_>) {
        if self.writing.is_some() || self.queued.is_empty() {
            return;
        }
        let mut copies = self.copies.clone();
        let results = self.queued.drain(..).map(|(tag, op)| (tag, apply(&mut copies, op))).collect();
        self.version += 1;
        let bytes = encode(self.version, &copies);
        let mut memory = self.arena.take(bytes.len(), Class::Client).unwrap();
        memory.copy_from_slice(&bytes);
        let at = (self.version % 2) * PLACE as u64;
        out(Op::DiskWrite { disk: DISK, tag: 0, at, parts: smallvec![memory.filled().whole()], durable: true });
        self.writing = Some((copies, results));
    }

    fn next_completion(&mut self) -> Option<Finished> {
        self.finished.pop_front()
    }
    fn next_deadline(&self) -> Option<Time> {
        None
    }
    fn patrol(&mut self, _looked_through: Blocks) {}
    fn idle(&self) -> bool {
        self.writing.is_none() && self.queued.is_empty()
    }
    fn usage(&self) -> Usage {
        let used = Blocks(u32::from(!self.copies.is_empty()));
        Usage {
            capacity: Blocks(1 << 20),
            used,
            copies: self.copies.len() as u32,
            max_copies: u32::MAX,
            near_full: false,
        }
    }
    fn leeway(&self) -> Leeway {
        Leeway::ANY
    }
    fn copies(&self) -> Vec<(CopyId, Configuration)> {
        let config = |(id, copy): (&u64, &Copy)| {
            let key = (*id, copy.epoch, copy.size);
            (CopyId(*id), CONFIGS.with(|configs| configs.borrow()[&key].clone()))
        };
        self.copies.iter().map(config).collect()
    }
    fn snapshots(&self, copy: CopyId) -> Vec<SnapshotId> {
        self.copies[&copy.0].snapshots.iter().map(|(id, _)| SnapshotId(*id)).collect()
    }
    fn fill_mark(&self, copy: CopyId) -> FillMark {
        self.copies.get(&copy.0).map_or(FillMark::default(), |copy| copy.mark)
    }
    fn used_by(&self, _: CopyId) -> Blocks {
        Blocks(0)
    }
    fn counters(&self) -> Counters {
        Counters::default()
    }
}

/// Formats: one write of nothing.
struct Formatting;

impl Progress<()> for Formatting {
    fn done(&mut self, _: Time, done: Done, _: &mut DiskOut<'_>) -> Option<Result<(), Refused>> {
        Some(done.result.map(drop).map_err(|errno| Refused::Other(errno.to_string())))
    }
}

/// Opens: reads both places, syncs what it read, takes the newer one.
struct Opening {
    arena: Arena,
    found: Vec<Option<(u64, Copies)>>,
}

fn read(place: u64, into: Filling) -> Op {
    Op::DiskRead { disk: DISK, tag: 0, at: place * PLACE as u64, len: into.len(), into, from: 0 }
}

impl Progress<Paper> for Opening {
    fn done(&mut self, _: Time, done: Done, out: &mut DiskOut<'_>) -> Option<Result<Paper, Refused>> {
        if let Op::DiskRead { into, .. } = done.op {
            self.found.push(decode(&into));
            out(if self.found.len() == 1 { read(1, into) } else { Op::DiskSync { disk: DISK, tag: 0 } });
            return None;
        }
        let Some((version, copies)) = self.found.drain(..).flatten().max_by_key(|(version, _)| *version) else {
            return Some(Err(Refused::Damaged("both places".to_owned())));
        };
        let (queued, finished) = (vec![], VecDeque::new());
        Some(Ok(Paper { arena: self.arena.clone(), version, copies, queued, writing: None, finished }))
    }
}

struct Plain;

impl Engine for Plain {
    type Store = Paper;
    const NAME: &'static str = "paper";

    fn can(ability: Ability) -> bool {
        !matches!(ability, Ability::ExactUsage | Ability::OpensDamaged)
    }
    fn disks(_: Shape) -> Vec<u64> {
        vec![2 * PLACE as u64]
    }
    fn format(_: Shape, arena: &Arena, out: &mut DiskOut<'_>) -> Begun<()> {
        let bytes = encode(0, &Copies::new());
        let mut memory = arena.take(bytes.len(), Class::Client).unwrap();
        memory.copy_from_slice(&bytes);
        out(Op::DiskWrite { disk: DISK, tag: 0, at: 0, parts: smallvec![memory.filled().whole()], durable: true });
        Ok(Box::new(Formatting))
    }
    fn open(_: Shape, arena: &Arena, out: &mut DiskOut<'_>) -> Begun<Paper> {
        out(read(0, arena.take(PLACE, Class::Client).unwrap()));
        Ok(Box::new(Opening { arena: arena.clone(), found: vec![] }))
    }
    fn check(_: &Disks) -> Vec<String> {
        vec![]
    }
    fn meets(moment: Moment) -> bool {
        use Moment::{Clone, Drop, Flatten, Mark, Repair, Rollback, Share, Snapshot};
        let family = [Clone, Drop, Flatten, Mark, Repair, Rollback, Share, Snapshot];
        let inside = [Moment::Journal, Moment::JournalWrap, Moment::FoldPages];
        family.contains(&moment) || (Simple::meets(moment) && !inside.contains(&moment))
    }
    fn moments(_: Shape, _: &Paper, _: &[Open]) -> Vec<Moment> {
        vec![]
    }
}

#[test]
fn a_plain_engine_with_snapshots_loses_nothing_and_is_stopped_in_the_midst_of_everything() {
    let mut counts = crash::Counts::default();
    let mut reached = 0;
    for seed in 0..6 {
        let outcome = points::run::<Plain>(seed, None, &|_| ());
        reached += outcome.points;
        counts.add(&outcome.counts);
    }
    let (missing, _) = points::missing::<Plain>(&counts, reached);
    assert!(missing.is_empty(), "{missing:?}");
}

#[test]
fn it_does_what_the_flat_model_does() {
    let outcome = operations::run::<Plain>(1);
    let missing = operations::missing::<Plain>(&outcome.counts, outcome.points);
    assert!(missing.is_empty(), "{missing:?}");
}
