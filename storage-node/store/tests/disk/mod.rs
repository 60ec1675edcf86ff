//! A tiny disk for tests: any completion order, and crashes that keep, drop or tear (by 512 B sectors) what was not durable.
#![allow(dead_code, unreachable_pub, missing_docs)] // each test file uses its part

use conductor_model::{
    AttachGeneration, BLOCK, BlockRange, Blocks, Bytes, Configuration, CopyId, CopyState, DiskId, Durability, Epoch,
    Member, NodeId, OpenId, Sequence, ShardId, Stamp,
};
use driver::{DiskIndex, Done, Errno, Op, Span, Time};
use memory::{Arena, Class, Reads};
use node_store::simple::{Format, FormatOptions, Geometry, SimpleStore};
use node_store::{
    DiskOut, Identity, OpenError, OpenOptions, Store, StoreDone, StoreError, StoreOp, Tag, View, block_crcs, journaled,
    simple,
};

pub const DISK: DiskIndex = DiskIndex(3);
pub const NOW: Time = Time(1);

/// A small generator: the tests need no better one.
#[derive(Clone)]
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }
    pub fn below(&mut self, n: u64) -> u64 {
        (self.next() >> 11) % n
    }
    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

pub struct Disk {
    /// What a read sees.
    pub visible: Vec<u8>,
    /// What a crash leaves for sure.
    stable: Vec<u8>,
    /// Completed but not synced: (offset, bytes).
    cached: Vec<(usize, Vec<u8>)>,
    /// Submitted, each with the number of cached writes at that time (what a sync covers).
    pub inflight: Vec<(Op, usize)>,
    pub random: Random,
    /// Fail the next write or sync.
    pub fail_write: bool,
    /// Fail so many of the next reads.
    pub fail_reads: u32,
    /// A byte that cannot be read until it is written.
    pub bad_sector: Option<usize>,
}

impl Disk {
    pub fn new(bytes: usize, seed: u64) -> Self {
        let random = Random(seed | 1);
        let (cached, inflight) = (vec![], vec![]);
        Self {
            visible: vec![0; bytes],
            stable: vec![0; bytes],
            cached,
            inflight,
            random,
            fail_write: false,
            fail_reads: 0,
            bad_sector: None,
        }
    }

    pub fn from_image(image: Vec<u8>) -> Self {
        let mut this = Self::new(0, 1);
        this.stable = image.clone();
        this.visible = image;
        this
    }

    pub fn submit(&mut self, op: Op) {
        match &op {
            Op::DiskRead { at, from, len, into, .. } => {
                assert!(
                    *len > 0
                        && from + len <= into.len()
                        && at.is_multiple_of(4096)
                        && len.is_multiple_of(4096)
                        && from.is_multiple_of(4096)
                );
                assert!(*at as usize + len <= self.visible.len(), "a read beyond the disk");
            }
            Op::DiskWrite { at, parts, .. } => {
                let len: usize = parts.iter().map(|p| p.len).sum();
                assert!(len > 0 && at.is_multiple_of(4096) && len.is_multiple_of(4096));
                assert!(*at as usize + len <= self.visible.len(), "a write beyond the disk");
            }
            Op::DiskPunch { at, len, .. } => {
                assert!(*len > 0 && at.is_multiple_of(4096) && len.is_multiple_of(4096));
                assert!((*at + *len) as usize <= self.visible.len(), "a punch beyond the disk");
            }
            Op::DiskSync { .. } => {}
            other => panic!("not a disk operation: {other:?}"),
        }
        self.inflight.push((op, self.cached.len()));
    }

    /// Complete any one of the operations.
    pub fn step(&mut self) -> Option<Done> {
        if self.inflight.is_empty() {
            return None;
        }
        let pick = self.random.below(self.inflight.len() as u64) as usize;
        let (mut op, covers) = self.inflight.swap_remove(pick);
        let result = match &mut op {
            Op::DiskRead { at, into, from, len, .. } => {
                if self.fail_reads > 0 {
                    self.fail_reads -= 1;
                    return Some(Done { op, result: Err(Errno::IO) });
                }
                let place = *at as usize..*at as usize + *len;
                if self.bad_sector.is_some_and(|bad| place.contains(&bad)) {
                    return Some(Done { op, result: Err(Errno::IO) });
                }
                into[*from..*from + *len].copy_from_slice(&self.visible[*at as usize..][..*len]);
                *len as u32
            }
            Op::DiskWrite { at, parts, durable, .. } => {
                if std::mem::take(&mut self.fail_write) {
                    return Some(Done { op, result: Err(Errno::IO) });
                }
                let bytes: Vec<u8> = parts.iter().flat_map(|p| &p.mem[p.from..p.from + p.len]).copied().collect();
                self.visible[*at as usize..][..bytes.len()].copy_from_slice(&bytes);
                let place = *at as usize..*at as usize + bytes.len();
                self.bad_sector = self.bad_sector.filter(|bad| !place.contains(bad));
                if *durable {
                    // What was in the cache for the same place does not come after it.
                    let end = *at as usize + bytes.len();
                    for (old, cached) in &mut self.cached {
                        if *old < end && (*at as usize) < *old + cached.len() {
                            self.stable[*old..][..cached.len()].copy_from_slice(cached);
                            cached.clear();
                        }
                    }
                    self.stable[*at as usize..][..bytes.len()].copy_from_slice(&bytes);
                } else {
                    self.cached.push((*at as usize, bytes.clone()));
                }
                bytes.len() as u32
            }
            Op::DiskPunch { at, len, .. } => {
                // What is given back may read as anything.
                let bytes = vec![0xee; *len as usize];
                self.visible[*at as usize..][..bytes.len()].copy_from_slice(&bytes);
                self.cached.push((*at as usize, bytes));
                0
            }
            Op::DiskSync { .. } => {
                for (at, bytes) in self.cached.drain(..covers) {
                    self.stable[at..][..bytes.len()].copy_from_slice(&bytes);
                }
                self.inflight.iter_mut().for_each(|(_, before)| *before = before.saturating_sub(covers));
                0
            }
            _ => unreachable!("checked at submit"),
        };
        Some(Done { op, result: Ok(result) })
    }

    /// The power fails: of each write that is not stable any sectors may be there.
    pub fn crash(&mut self) {
        let flying = std::mem::take(&mut self.inflight).into_iter().filter_map(|(op, _)| match op {
            Op::DiskWrite { at, parts, .. } => {
                Some((at as usize, parts.iter().flat_map(|p| &p.mem[p.from..p.from + p.len]).copied().collect()))
            }
            Op::DiskPunch { at, len, .. } => Some((at as usize, vec![0xee; len as usize])),
            _ => None,
        });
        let mut open: Vec<(usize, Vec<u8>)> = std::mem::take(&mut self.cached);
        open.extend(flying);
        for (at, bytes) in open {
            let kept = self.random.below(4); // none, all, or a mixture
            for (n, sector) in bytes.chunks(512).enumerate() {
                if kept == 3 || (kept > 0 && self.random.one_in(2)) {
                    self.stable[at + n * 512..][..sector.len()].copy_from_slice(sector);
                }
            }
        }
        self.visible.clone_from(&self.stable);
    }
}

pub fn identity() -> Identity {
    Identity { cluster: 0xc1, node: NodeId(1), disk: DiskId(0xd15c) }
}

/// What differs between the engines: how they are made and opened.
pub trait Engine {
    type Store: Store;
    type Geometry: Copy;
    type Opening;

    fn format(disk: &mut Disk, arena: &Arena, geometry: Self::Geometry) -> Result<(), OpenError>;
    fn start(options: OpenOptions, arena: &Arena, out: &mut DiskOut<'_>) -> Result<Self::Opening, OpenError>;
    fn go_on(opening: &mut Self::Opening, done: Done, out: &mut DiskOut<'_>) -> Option<Result<Self::Store, OpenError>>;
    fn failure(store: &Self::Store) -> Option<Errno>;
}

pub struct Simple;

impl Engine for Simple {
    type Store = SimpleStore;
    type Geometry = Geometry;
    type Opening = simple::Opening;

    fn format(disk: &mut Disk, arena: &Arena, geometry: Geometry) -> Result<(), OpenError> {
        format(disk, arena, geometry)
    }
    fn start(options: OpenOptions, arena: &Arena, out: &mut DiskOut<'_>) -> Result<Self::Opening, OpenError> {
        simple::Opening::start(options, arena, out)
    }
    fn go_on(opening: &mut Self::Opening, done: Done, out: &mut DiskOut<'_>) -> Option<Result<SimpleStore, OpenError>> {
        opening.done(NOW, done, out)
    }
    fn failure(store: &SimpleStore) -> Option<Errno> {
        store.failure()
    }
}

pub struct Journaled;

impl Engine for Journaled {
    type Store = journaled::JournaledStore;
    type Geometry = journaled::Geometry;
    type Opening = journaled::Opening;

    fn format(disk: &mut Disk, arena: &Arena, geometry: journaled::Geometry) -> Result<(), OpenError> {
        let options =
            journaled::FormatOptions { disk: DISK, journal: None, identity: identity(), geometry, overwrite: false };
        format_journaled(disk, arena, options)
    }
    fn start(options: OpenOptions, arena: &Arena, out: &mut DiskOut<'_>) -> Result<Self::Opening, OpenError> {
        journaled::Opening::start(options, journaled::Tuning::default(), arena, out)
    }
    fn go_on(opening: &mut Self::Opening, done: Done, out: &mut DiskOut<'_>) -> Option<Result<Self::Store, OpenError>> {
        opening.done(NOW, done, out)
    }
    fn failure(store: &Self::Store) -> Option<Errno> {
        store.failure()
    }
}

pub fn format_journaled(disk: &mut Disk, arena: &Arena, options: journaled::FormatOptions) -> Result<(), OpenError> {
    let mut format = journaled::Format::start(options, arena, &mut |op| disk.submit(op))?;
    loop {
        let done = disk.step().expect("a format waits for its disk");
        if let Some(result) = format.done(done, &mut |op| disk.submit(op)) {
            return result;
        }
    }
}

/// A division of the journaled engine with so many blocks for data, about.
pub fn journaled_geometry(ring_blocks: u32, places: u32, data_blocks: u32, copies: u32) -> journaled::Geometry {
    let meta = u64::from(ring_blocks) + 2 * u64::from(places) + 48;
    let size = Bytes((meta + u64::from(data_blocks)) * BLOCK as u64);
    journaled::Geometry::new(size, ring_blocks, places, copies).expect("large enough")
}

pub fn format(disk: &mut Disk, arena: &Arena, geometry: Geometry) -> Result<(), OpenError> {
    format_with(disk, arena, FormatOptions { disk: DISK, identity: identity(), geometry, overwrite: false })
}

pub fn format_with(disk: &mut Disk, arena: &Arena, options: FormatOptions) -> Result<(), OpenError> {
    let mut format = Format::start(options, arena, &mut |op| disk.submit(op))?;
    loop {
        let done = disk.step().expect("a format waits for its disk");
        if let Some(result) = format.done(done, &mut |op| disk.submit(op)) {
            return result;
        }
    }
}

pub fn open(disk: &mut Disk, arena: &Arena) -> Result<SimpleStore, OpenError> {
    open_engine::<Simple>(disk, arena)
}

pub fn open_engine<E: Engine>(disk: &mut Disk, arena: &Arena) -> Result<E::Store, OpenError> {
    open_until::<E>(disk, arena, u64::MAX).expect("it was given all the time")
}

/// Open, but stop after so many disk operations.
pub fn open_until<E: Engine>(disk: &mut Disk, arena: &Arena, steps: u64) -> Option<Result<E::Store, OpenError>> {
    let size = Bytes(disk.visible.len() as u64);
    let options = OpenOptions { disk: DISK, size, cluster: Some(0xc1), node: Some(NodeId(1)) };
    let mut opening = match E::start(options, arena, &mut |op| disk.submit(op)) {
        Ok(opening) => opening,
        Err(error) => return Some(Err(error)),
    };
    for _ in 0..steps {
        let done = disk.step().expect("an opening waits for its disk");
        if let Some(result) = E::go_on(&mut opening, done, &mut |op| disk.submit(op)) {
            return Some(result);
        }
    }
    None
}

pub fn config(epoch: u64, blocks: u32) -> Configuration {
    let member = Member {
        copy: CopyId(1),
        node: NodeId(1),
        disk: DiskId(1),
        open: OpenId(epoch),
        state: CopyState::InSync,
        since: conductor_model::Epoch(0),
        past: false,
        endpoint: "127.0.0.1:7000".parse().unwrap(),
    };
    Configuration {
        shard: ShardId::default(),
        epoch: Epoch(epoch),
        primary: CopyId(1),
        members: vec![member],
        full_set: vec![CopyId(1)],
        min_copies: 1,
        attach: AttachGeneration(1),
        size: Blocks(blocks).bytes(),
        born: true,
        durability: Durability::Always,
        cache: conductor_model::Commit(0),
        card: None,
        parent: None,
    }
}

pub fn range(from: u32, count: u32) -> BlockRange {
    BlockRange { from: Blocks(from), count: Blocks(count) }
}

pub fn stamp(sequence: u64) -> Stamp {
    Stamp { epoch: Epoch(1), sequence: Sequence(sequence) }
}

/// A block's worth of bytes that only this seed gives.
pub fn fill_block(seed: u64, block: &mut [u8]) {
    for (n, word) in block.chunks_mut(8).enumerate() {
        word.copy_from_slice(&(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ n as u64).to_le_bytes());
    }
}

pub fn data(arena: &Arena, seeds: impl ExactSizeIterator<Item = u64>) -> Reads {
    let mut memory = arena.take(seeds.len() * BLOCK, Class::Client).expect("the test has memory");
    memory.chunks_mut(BLOCK).zip(seeds).for_each(|(block, seed)| fill_block(seed, block));
    memory.filled()
}

pub fn write(arena: &Arena, copy: u64, at: BlockRange, sequence: u64, seed: u64) -> StoreOp {
    let data = data(arena, (0..at.count.0).map(|n| seed + u64::from(n)));
    let crcs = block_crcs(&data);
    StoreOp::Write {
        copy: CopyId(copy),
        stamp: stamp(sequence),
        at,
        data,
        crcs,
        known_good: Stamp::default(),
        durable: true,
    }
}

/// Run one operation to its end.
pub fn run<S: Store>(store: &mut S, disk: &mut Disk, op: StoreOp) -> Result<StoreDone, StoreError> {
    store.submit(NOW, Tag(u64::MAX), op, &mut |op| disk.submit(op));
    for turn in 0.. {
        assert!(turn < 1_000_000, "an operation is over some time");
        store.end_turn(NOW, &mut |op| disk.submit(op));
        if let Some((tag, result)) = store.next_completion() {
            assert_eq!(tag, Tag(u64::MAX));
            return result;
        }
        let Some(done) = disk.step() else {
            assert!(
                store.next_deadline().is_some_and(|at| at <= NOW),
                "an operation waits for its disk, or its next turn"
            );
            continue;
        };
        store.done(NOW, done, &mut |op| disk.submit(op));
    }
    unreachable!("it returns")
}

/// Let the disk finish all that the store asks of it.
pub fn quiesce<S: Store>(store: &mut S, disk: &mut Disk) {
    quiesce_at(NOW, store, disk);
}

/// The same from some time on, which goes on as long as the store keeps to a pace.
pub fn quiesce_at<S: Store>(mut now: Time, store: &mut S, disk: &mut Disk) {
    let mut in_vain = 0;
    loop {
        store.end_turn(now, &mut |op| disk.submit(op));
        if let Some(done) = disk.step() {
            in_vain = 0;
            store.done(now, done, &mut |op| disk.submit(op));
        } else if let Some(soon) = store.next_deadline().filter(|at| *at <= now + Span::millis(1)) {
            in_vain += 1;
            assert!(in_vain < 10_000, "the store has turn after turn, and asks nothing of its disk");
            now = now.max(soon);
        } else {
            break;
        }
    }
}

/// Let everything finish; all completions have been taken.
pub fn drain<S: Store>(store: &mut S, disk: &mut Disk) {
    quiesce(store, disk);
    assert!(store.idle());
}

/// Read one block: its bytes, or what the store says.
pub fn read<S: Store>(
    store: &mut S,
    disk: &mut Disk,
    arena: &Arena,
    copy: u64,
    at: BlockRange,
) -> Result<Vec<u8>, StoreError> {
    let into = arena.take(at.count.0 as usize * BLOCK, Class::Client).expect("the test has memory");
    match run(store, disk, StoreOp::Read { copy: CopyId(copy), view: View::Live, at, into })? {
        StoreDone::Read(data, crcs) => {
            assert_eq!(block_crcs(&data), crcs);
            Ok(data.to_vec())
        }
        other => panic!("a read was answered {other:?}"),
    }
}

pub fn block_of(seed: u64) -> Vec<u8> {
    let mut block = vec![0; BLOCK];
    fill_block(seed, &mut block);
    block
}
