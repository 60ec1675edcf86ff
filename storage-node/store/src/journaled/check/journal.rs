//! The journal, read as an opening reads it, and its records applied on top of the checkpoint: in memory, and what an opening would
//! write is not written.

use super::super::apply::State;
use super::super::record::Record;
use super::super::ring::{MAX_UNREADABLE, RingPlace, Scan, ScanEnd, ScanError};
use super::super::superblock::Superblock;
use super::catalog::Found;
use super::{CheckOptions, Depth, Part, ReadDisk, Report, Severity};
use driver::{Done, Errno, Op};
use memory::Arena;
use std::collections::VecDeque;

/// What the scan asks for is read; what it would write is not, and counts as done.
fn perform(mut op: Op, read: &mut ReadDisk<'_>) -> Done {
    let result = match &mut op {
        Op::DiskRead { disk, at, into, from, len, .. } => {
            let there = into.get_mut(*from..*from + *len).is_some_and(|bytes| read(*disk, *at, bytes));
            if there { Ok(u32::try_from(*len).unwrap_or(0)) } else { Err(Errno::IO) } // at most 1 MiB
        }
        Op::DiskWrite { parts, .. } => {
            Ok(u32::try_from(parts.iter().map(|part| part.len).sum::<usize>()).unwrap_or(0)) // a header
        }
        _ => Ok(0),
    };
    Done { op, result }
}

/// Reads it, and gives every record that counts.
fn scan(
    superblock: &Superblock,
    place: RingPlace,
    arena: &Arena,
    read: &mut ReadDisk<'_>,
    each: &mut dyn FnMut(&super::super::ring::Replayed<'_>),
) -> Result<ScanEnd, ScanError> {
    let mut asked = VecDeque::new();
    let boot = superblock.boot.saturating_add(1);
    let mut scan = Scan::start(place, superblock.tail, boot, MAX_UNREADABLE, arena, &mut |op| asked.push_back(op))?;
    loop {
        while let Some(record) = scan.next_record() {
            each(&record);
        }
        if let Some(end) = scan.end() {
            return end;
        }
        let Some(op) = asked.pop_front() else { return Err(ScanError::Memory) };
        scan.done(perform(op, read), &mut |op| asked.push_back(op));
    }
}

/// Replays it into `found`.
pub(super) fn replay(
    options: &CheckOptions,
    superblock: &Superblock,
    place: RingPlace,
    arena: &Arena,
    found: &mut Found,
    read: &mut ReadDisk<'_>,
    report: &mut Report,
) {
    let geometry = superblock.geometry;
    let refused = match (geometry.external_journal(), options.journal) {
        (true, None) => Some("it is on a disk of its own, which was not named: it was not looked at".to_owned()),
        (false, Some(_)) => Some("a disk was named for it, and this store has its journal on its own disk".to_owned()),
        (true, Some((_, size))) if size < geometry.journal_bytes() => {
            Some(format!("it takes {}, and its disk has {size}", geometry.journal_bytes()))
        }
        _ => None,
    };
    if let Some(what) = refused {
        return report.find(Severity::Fatal, Part::Journal, "itself", what);
    }
    let (whole, mut applied, mut blocks) = (found.whole, 0u64, 0u64);
    let end = scan(superblock, place, arena, read, &mut |record| {
        applied += 1;
        blocks += record.crcs.len() as u64;
        let at = format!("record {applied}");
        let change = Record::decode(record.body, geometry.chunks());
        if !record.damaged.is_empty() {
            let copy = change.as_ref().map(|change| format!(" of copy {}", change.copy())).unwrap_or_default();
            let what = format!("damaged: {} of its {} blocks{copy}", record.damaged.len(), record.crcs.len());
            report.find_repairable(Part::Journal, at.clone(), &what);
        }
        let Some(change) = change else {
            return report.find(Severity::Fatal, Part::Journal, at, "it is none that this engine could have written");
        };
        // What is incomplete is not built upon.
        if !whole {
            return;
        }
        let Found { catalog, overlay, space, .. } = &mut *found;
        if (State { catalog, overlay, space }).replay(&change, &record.crcs, record.payload).is_none() {
            found.whole = false;
            let what = "doubly owned: it has chunks that are in use";
            report.find(Severity::Fatal, Part::Journal, at, what);
        }
    });
    if options.depth == Depth::Data {
        report.totals.blocks += blocks;
    }
    match end {
        Ok(ScanEnd { state, counts }) => {
            let journal = &mut report.content.journal;
            journal.head = Some(state.head());
            (journal.groups, journal.records, journal.torn_groups) =
                (counts.groups, counts.records, counts.torn_groups);
            if counts.damaged_headers > 0 {
                let what = format!(
                    "{} headers are damaged; the groups behind them say what was in them",
                    counts.damaged_headers
                );
                report.find(Severity::Notice, Part::Journal, "itself", what);
            }
            if counts.unreadable_blocks > 0 {
                let what = format!("{} of its blocks cannot be read", counts.unreadable_blocks);
                report.find(Severity::Notice, Part::Journal, "itself", what);
            }
        }
        Err(error) => {
            found.whole = false;
            report.find(Severity::Fatal, Part::Journal, "itself", error.to_string());
        }
    }
}
