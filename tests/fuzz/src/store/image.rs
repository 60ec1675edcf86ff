//! A small image with everything in it: two copies, a snapshot, a clone, a mark; folded into pages, and more in the journal.

use super::disk::Disk;
use conductor_model::{
    AttachGeneration, BLOCK, BlockRange, Blocks, Bytes, Configuration, CopyId, CopyState, DiskId, Durability, Epoch,
    Member, NodeId, OpenId, Sequence, ShardId, ShardIndex, SnapshotId, Stamp, VolumeId,
};
use driver::{DiskIndex, Span, Time};
use memory::{Arena, Class};
use node_store::journaled::{Format, FormatOptions, Geometry, JournaledStore, Opening, Tuning};
use node_store::{FillMark, Identity, OpenError, OpenOptions, Parent, Store, StoreDone, StoreError, StoreOp, Tag};
use std::sync::LazyLock;

pub(crate) const DISK: DiskIndex = DiskIndex(0);
pub(crate) const DISK_ID: DiskId = DiskId(0xd15c);
pub(crate) const RING: u32 = 620;
const PLACES: u32 = 256;
/// Blocks before the chunks, or a few more: all metadata is in them.
pub(crate) const META_BLOCKS: usize = (RING + 2 * PLACES + 48) as usize;
/// Blocks of chunks: a write waits where few are free.
const DATA_BLOCKS: usize = 6000;
/// Blocks of each copy.
pub(crate) const BLOCKS: u32 = 64;
/// Steps that anything may take.
const PATIENCE: usize = 100_000;

/// The image.
pub(crate) static IMAGE: LazyLock<Vec<u8>> = LazyLock::new(make);

pub(crate) fn stamp(sequence: u64) -> Stamp {
    Stamp { epoch: Epoch(1), sequence: Sequence(sequence) }
}

pub(crate) fn range(from: u32, count: u32) -> BlockRange {
    BlockRange { from: Blocks(from), count: Blocks(count) }
}

/// A copy's, alone; each of a volume of its own.
pub(crate) fn config(copy: CopyId, epoch: u64) -> Configuration {
    let volume = VolumeId(u32::try_from(copy.0).unwrap_or(0));
    let member = Member {
        copy,
        node: NodeId(1),
        disk: DISK_ID,
        open: OpenId(1),
        state: CopyState::InSync,
        since: Epoch(0),
        past: false,
        endpoint: ([127, 0, 0, 1], 7000).into(),
    };
    Configuration {
        shard: ShardId { volume, index: ShardIndex(0) },
        epoch: Epoch(epoch),
        primary: copy,
        members: vec![member],
        full_set: vec![copy],
        min_copies: 1,
        attach: AttachGeneration(1),
        size: Blocks(BLOCKS).bytes(),
        born: true,
        durability: Durability::Always,
        cache: conductor_model::Commit(0),
        card: None,
        parent: None,
    }
}

pub(crate) fn write(arena: &Arena, copy: CopyId, at: BlockRange, sequence: u64) -> Option<StoreOp> {
    let mut data = arena.take(at.count.0 as usize * BLOCK, Class::Client)?;
    data.chunks_mut(BLOCK).zip(1..).for_each(|(block, n)| block.fill(n));
    let data = data.filled();
    let crcs = node_store::block_crcs(&data);
    Some(StoreOp::Write { copy, stamp: stamp(sequence), at, data, crcs, known_good: Stamp::default(), durable: true })
}

/// An opened store on its disk, and the time.
pub(crate) struct Rig<'a> {
    pub(crate) disk: Disk<'a>,
    pub(crate) store: JournaledStore,
    now: Time,
}

impl<'a> Rig<'a> {
    pub(crate) fn open(mut disk: Disk<'a>, arena: &Arena) -> Result<Self, OpenError> {
        let size = Bytes(disk.len() as u64);
        let options = OpenOptions { disk: DISK, size, cluster: None, node: None };
        let mut opening = Opening::start(options, Tuning::default(), arena, &mut |op| disk.submit(op))?;
        for _ in 0..PATIENCE {
            let done = disk.step().expect("an opening waits for its disk");
            if let Some(opened) = opening.done(Time(1), done, &mut |op| disk.submit(op)) {
                return opened.map(|store| Self { disk, store, now: Time(1) });
            }
        }
        panic!("an opening never ends");
    }

    /// The store by itself, its disk and the time.
    pub(crate) fn taken(self) -> (JournaledStore, Disk<'a>, Time) {
        (self.store, self.disk, self.now)
    }

    /// Runs one operation to its end.
    pub(crate) fn run(&mut self, op: StoreOp) -> Result<StoreDone, StoreError> {
        let Self { disk, store, now } = self;
        store.submit(*now, Tag(1), op, &mut |op| disk.submit(op));
        for _ in 0..PATIENCE {
            store.end_turn(*now, &mut |op| disk.submit(op));
            if let Some((_, result)) = store.next_completion() {
                return result;
            }
            match disk.step() {
                Some(done) => store.done(*now, done, &mut |op| disk.submit(op)),
                None => *now = store.next_deadline().expect("an operation waits for its disk, or for time").max(*now),
            }
        }
        panic!("an operation never ends");
    }

    /// Lets the store do its background work for some time.
    pub(crate) fn rest(&mut self, span: Span) {
        let Self { disk, store, now } = self;
        *now = *now + span;
        for _ in 0..PATIENCE {
            store.end_turn(*now, &mut |op| disk.submit(op));
            let Some(done) = disk.step() else { return };
            store.done(*now, done, &mut |op| disk.submit(op));
        }
        panic!("background work never ends");
    }
}

fn make() -> Vec<u8> {
    let arena = Arena::small(16 << 20);
    let bytes = ((META_BLOCKS + DATA_BLOCKS) * BLOCK) as u64;
    let geometry = Geometry::new(Bytes(bytes), RING, PLACES, 4).expect("large enough");
    let empty = vec![0; usize::try_from(bytes).expect("small")];
    let mut disk = Disk::new(&empty);
    let identity = Identity { cluster: 0xc1, node: NodeId(1), disk: DISK_ID };
    let options = FormatOptions { disk: DISK, journal: None, identity, geometry, overwrite: false };
    let mut format = Format::start(options, &arena, &mut |op| disk.submit(op)).expect("an empty disk");
    loop {
        let done = disk.step().expect("a format waits for its disk");
        if let Some(result) = format.done(done, &mut |op| disk.submit(op)) {
            result.expect("a good disk");
            break;
        }
    }
    let mut rig = Rig::open(disk, &arena).expect("a new store");
    let (one, two, snapshot, known_good) = (CopyId(1), CopyId(2), SnapshotId(6), Stamp::default());
    let mark = FillMark { base: stamp(1), cursor: Blocks(16), upto: stamp(2) };
    let from = Parent { copy: one, snapshot };
    let write = |copy, at, sequence| write(&arena, copy, at, sequence).expect("memory");
    let folded = [
        StoreOp::Create { copy: one, config: config(one, 1), parent: None },
        write(one, range(14, 19), 1),
        StoreOp::Snapshot { copy: one, stamp: stamp(2), snapshot, known_good },
        StoreOp::Create { copy: two, config: config(two, 1), parent: Some(from) },
        write(two, range(20, 2), 3),
        StoreOp::Mark { copy: two, mark, known_good: None },
        // Before the fold: an opening would finish it, and change what may be forged.
        StoreOp::Share { copy: two, stamp: stamp(4), at: range(0, 20), from, known_good },
    ];
    let journaled = [
        write(one, range(15, 2), 4),
        StoreOp::Zero { copy: one, stamp: stamp(5), at: range(30, 20), known_good: stamp(2), durable: true },
        StoreOp::Snapshot { copy: one, stamp: stamp(6), snapshot: SnapshotId(7), known_good },
        StoreOp::Join { copy: one, config: config(one, 2) },
        write(two, range(32, 16), 7),
        StoreOp::Rollback { copy: one, stamp: stamp(9), snapshot, known_good },
        StoreOp::DropSnapshot { copy: one, snapshot: SnapshotId(7) },
        StoreOp::Mark { copy: one, mark, known_good: Some(stamp(8)) },
        StoreOp::Create { copy: CopyId(3), config: config(CopyId(3), 1), parent: None },
        // Of a copy that was never complete.
        StoreOp::Lose { copy: CopyId(3), stamp: stamp(9), at: range(40, 3), known_good },
        StoreOp::Delete { copy: CopyId(3) },
    ];
    folded.into_iter().for_each(|op| drop(rig.run(op).expect("a small change")));
    rig.rest(Span::seconds(5));
    journaled.into_iter().for_each(|op| drop(rig.run(op).expect("a small change")));
    rig.disk.image()
}
