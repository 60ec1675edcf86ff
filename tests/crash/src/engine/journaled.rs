//! The journaled engine.

use super::{Ability, Begun, Engine, Progress, Refused, Shape};
use crate::disk::{Disks, Open};
use crate::moment::Moment;
use conductor_model::{BLOCK, Bytes, DiskId, NodeId};
use driver::{DiskIndex, Done, Time};
use memory::Arena;
use node_store::journaled::check::{CheckOptions, Depth, Finding, Part, Severity, check};
use node_store::journaled::{Format, FormatOptions, Geometry, JournaledStore, Opening, Tuning};
use node_store::{DiskOut, Identity, OpenError, OpenOptions};

const DISK: DiskIndex = DiskIndex(0);
const JOURNAL: DiskIndex = DiskIndex(1);
const CLUSTER: u64 = 0xc1;
const NODE: NodeId = NodeId(1);
const CHUNK: u64 = 16 * BLOCK as u64;
/// Blocks before the ring, and the two superblocks among them.
const HEAD: u64 = 16 * BLOCK as u64;
/// Places for pages: the fewest.
const PLACES: u32 = 256;
/// Blocks of the ring: the fewest, and somewhat more; and so many that an empty one must show what was in it.
const RINGS: [u32; 4] = [612, 700, 3_300, 900];
/// Entries of layers that are released, merged or shared in one fold: all of a copy's at once, and so few that it takes many folds.
const WORK: [u32; 4] = [4_096, 3, 10, 1];
/// Chunks that one fold discards: all of a copy's at once, and so few that longer discards are done in pieces.
const DISCARDED: [u32; 4] = [1 << 16, 16, 24, 16];
/// Cache for metadata pages: so small that pages are loaded all the time.
const CACHE: Bytes = Bytes(1 << 20);
/// Memory for the offline check.
const CHECK_BYTES: usize = 16 << 20;
/// In a group's header, the bytes of its records: none in a seal.
const RECORDS: std::ops::Range<usize> = 64..68;

/// See the module's head.
#[derive(Clone, Copy, Debug)]
pub struct Journaled;

/// The last of the shapes has its journal on a disk of its own.
fn external(shape: Shape) -> Option<DiskIndex> {
    (shape.journal == 3).then_some(JOURNAL)
}

fn geometry(shape: Shape) -> Geometry {
    let ring = RINGS[usize::try_from(shape.journal).expect("small")];
    let new = if external(shape).is_some() { Geometry::external } else { Geometry::new };
    // The metadata takes what it takes: grow the disk until the data has its room.
    let mut size = Bytes(u64::from(shape.data_blocks / 16) * CHUNK);
    loop {
        match new(size, ring, PLACES, shape.copies) {
            Some(geometry) if geometry.capacity() >= shape.data_blocks => return geometry,
            _ => size.0 += CHUNK,
        }
    }
}

fn tuning(shape: Shape) -> Tuning {
    let at = usize::try_from(shape.journal).expect("small");
    let (work_per_fold, discarded_per_fold) = (WORK[at], DISCARDED[at]);
    Tuning { journal: external(shape), cache: CACHE, work_per_fold, discarded_per_fold, ..Tuning::default() }
}

impl Progress<()> for Format {
    fn done(&mut self, _: Time, done: Done, out: &mut DiskOut<'_>) -> Option<Result<(), Refused>> {
        Some(Format::done(self, done, out)?.map_err(refused))
    }
}

impl Progress<JournaledStore> for Opening {
    fn done(&mut self, now: Time, done: Done, out: &mut DiskOut<'_>) -> Option<Result<JournaledStore, Refused>> {
        Some(Opening::done(self, now, done, out)?.map_err(refused))
    }
}

fn refused(error: OpenError) -> Refused {
    match error {
        OpenError::NotAStore | OpenError::Damaged(_) | OpenError::Version(_) => Refused::Damaged(error.to_string()),
        other => Refused::Other(other.to_string()),
    }
}

impl Engine for Journaled {
    type Store = JournaledStore;
    const NAME: &'static str = "journaled";

    fn can(ability: Ability) -> bool {
        ability != Ability::ExactUsage
    }

    fn disks(shape: Shape) -> Vec<u64> {
        let geometry = geometry(shape);
        let journal = external(shape).map(|_| geometry.journal_bytes().0);
        std::iter::once(geometry.size().0).chain(journal).collect()
    }

    fn format(shape: Shape, arena: &Arena, out: &mut DiskOut<'_>) -> Begun<()> {
        let identity = Identity { cluster: CLUSTER, node: NODE, disk: DiskId(0xd15c) };
        let (journal, geometry) = (external(shape), geometry(shape));
        let options = FormatOptions { disk: DISK, journal, identity, geometry, overwrite: false };
        Ok(Box::new(Format::start(options, arena, out).map_err(refused)?))
    }

    fn open(shape: Shape, arena: &Arena, out: &mut DiskOut<'_>) -> Begun<JournaledStore> {
        let size = geometry(shape).size();
        let options = OpenOptions { disk: DISK, size, cluster: Some(CLUSTER), node: Some(NODE) };
        Ok(Box::new(Opening::start(options, tuning(shape), arena, out).map_err(refused)?))
    }

    /// All of it, data included. A crash may leave a superblock torn, the other being whole; and a header of the journal, which the next
    /// opening takes from the group behind it, so that later groups vouch for it; and nothing else.
    fn check(disks: &Disks) -> Vec<String> {
        let sizes = disks.sizes();
        let options = CheckOptions {
            disk: DISK,
            size: Bytes(sizes[0]),
            journal: sizes.get(1).map(|size| (JOURNAL, Bytes(*size))),
            depth: Depth::Data,
        };
        let arena = Arena::small(CHECK_BYTES);
        let mut read = |disk: DiskIndex, at: u64, into: &mut [u8]| disks.look(disk, at, into);
        let report = check(&options, &arena, &mut read, &mut |_| ());
        let torn = |finding: &Finding| finding.part == Part::Superblock && finding.severity == Severity::Notice;
        let echoed = |finding: &Finding| {
            disks.lived_on() && finding.part == Part::Journal && finding.severity == Severity::Notice
        };
        report.findings.iter().filter(|finding| !torn(finding) && !echoed(finding)).map(ToString::to_string).collect()
    }

    fn meets(_: Moment) -> bool {
        true
    }

    fn moments(shape: Shape, store: &JournaledStore, open: &[Open]) -> Vec<Moment> {
        let geometry = geometry(shape);
        let ring_bytes = u64::from(geometry.ring_blocks()) * BLOCK as u64;
        let (ring_disk, ring) = match external(shape) {
            Some(disk) => (disk, 0..ring_bytes),
            None => (DISK, HEAD..HEAD + ring_bytes),
        };
        let chunks = geometry.size().0 - u64::from(geometry.chunks()) * CHUNK;
        let mut moments = vec![];
        moments.extend(store.is_merging().then_some(Moment::Merge));
        moments.extend(store.is_folding_part().then_some(Moment::FoldPart));
        for open in open {
            if open.disk == ring_disk && ring.contains(&open.at) {
                moments.push(Moment::Journal);
                if open.at == ring.start {
                    moments.push(Moment::JournalWrap);
                }
                if open.head[RECORDS].iter().all(|byte| *byte == 0) {
                    moments.push(Moment::Seal);
                }
            } else if open.at < HEAD {
                moments.push(Moment::Superblock);
            } else if open.at < chunks {
                moments.push(Moment::FoldPages);
            } else if open.punch {
                moments.push(Moment::Punch);
            } else if !open.durable {
                moments.push(Moment::FoldMove);
            }
        }
        moments
    }
}
