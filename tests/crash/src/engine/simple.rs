//! The simple engine: it proves the tests, and they prove it.

use super::{Ability, Begun, Engine, Progress, Refused, Shape};
use crate::disk::{Disks, Open};
use crate::moment::Moment;
use conductor_model::{BLOCK, Bytes, DiskId, NodeId};
use driver::{DiskIndex, Done, Time};
use memory::Arena;
use node_store::simple::{Format, FormatOptions, Geometry, Identity, OpenError, OpenOptions, Opening, SimpleStore};
use node_store::{DiskOut, MAX_REQUEST_BLOCKS};

const DISK: DiskIndex = DiskIndex(0);
const CLUSTER: u64 = 0xc1;
const NODE: NodeId = NodeId(1);
/// Bytes that carry a checkpoint chunk, and the blocks before the logs.
const SUPERBLOCKS_END: u64 = 16 * BLOCK as u64;

/// See the module's head.
#[derive(Clone, Copy, Debug)]
pub struct Simple;

fn geometry(shape: Shape) -> Geometry {
    let log_pages = 1 + u32::try_from(shape.journal).expect("small");
    // The metadata takes what it takes: grow the disk until the data has its room.
    let mut blocks = u64::from(shape.data_blocks + MAX_REQUEST_BLOCKS);
    loop {
        let size = Bytes(blocks * BLOCK as u64);
        match Geometry::new(size, log_pages, shape.copies) {
            Some(geometry) if geometry.capacity() >= shape.data_blocks => return geometry,
            _ => blocks += 16,
        }
    }
}

impl Progress<()> for Format {
    fn done(&mut self, _: Time, done: Done, out: &mut DiskOut<'_>) -> Option<Result<(), Refused>> {
        Some(Format::done(self, done, out)?.map_err(refused))
    }
}

impl Progress<SimpleStore> for Opening {
    fn done(&mut self, now: Time, done: Done, out: &mut DiskOut<'_>) -> Option<Result<SimpleStore, Refused>> {
        Some(Opening::done(self, now, done, out)?.map_err(refused))
    }
}

fn refused(error: OpenError) -> Refused {
    match error {
        OpenError::NotAStore | OpenError::Damaged(_) | OpenError::Version(_) => Refused::Damaged(error.to_string()),
        other => Refused::Other(other.to_string()),
    }
}

impl Engine for Simple {
    type Store = SimpleStore;
    const NAME: &'static str = "simple";

    fn can(ability: Ability) -> bool {
        ability == Ability::ExactUsage
    }

    fn disks(shape: Shape) -> Vec<u64> {
        vec![geometry(shape).size().0]
    }

    fn format(shape: Shape, arena: &Arena, out: &mut DiskOut<'_>) -> Begun<()> {
        let identity = Identity { cluster: CLUSTER, node: NODE, disk: DiskId(0xd15c) };
        let options = FormatOptions { disk: DISK, identity, geometry: geometry(shape), overwrite: false };
        Ok(Box::new(Format::start(options, arena, out).map_err(refused)?))
    }

    fn open(shape: Shape, arena: &Arena, out: &mut DiskOut<'_>) -> Begun<SimpleStore> {
        let size = geometry(shape).size();
        let options = OpenOptions { disk: DISK, size, cluster: Some(CLUSTER), node: Some(NODE) };
        Ok(Box::new(Opening::start(options, arena, out).map_err(refused)?))
    }

    /// It has no offline checker; opening it twice claims each slot once.
    fn check(_: &Disks) -> Vec<String> {
        vec![]
    }

    fn meets(moment: Moment) -> bool {
        use Moment::{
            Create, Delete, Discard, FoldPages, Grow, Journal, JournalWrap, Known, Loose, Recovery, Sync, WholeChunk,
            Write,
        };
        matches!(
            moment,
            Write
                | WholeChunk
                | Loose
                | Discard
                | Sync
                | Create
                | Grow
                | Delete
                | Known
                | Journal
                | JournalWrap
                | FoldPages
                | Recovery
        )
    }

    fn moments(shape: Shape, _: &SimpleStore, open: &[Open]) -> Vec<Moment> {
        let log = BLOCK as u64 * u64::from(geometry(shape).log_pages());
        let logs = SUPERBLOCKS_END..SUPERBLOCKS_END + 2 * log;
        let data = geometry(shape).size().0 - u64::from(geometry(shape).slots()) * BLOCK as u64;
        let moments = open.iter().flat_map(|open| match open.at {
            at if logs.contains(&at) && (at - logs.start).is_multiple_of(log) => {
                vec![Moment::Journal, Moment::JournalWrap]
            }
            at if logs.contains(&at) => vec![Moment::Journal],
            at if (logs.end..data).contains(&at) => vec![Moment::FoldPages],
            _ => vec![],
        });
        moments.collect()
    }
}
