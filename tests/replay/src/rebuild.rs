//! A disk as a power loss would have left it.
//!
//! ```text
//! …  FUA  FUA │ N │ write write write FLUSH │ N+ │ FUA …
//! ────────────┘   └───────────┬───────────┘       └─ under way at the earliest here: perhaps some of its sectors, never all
//! durable at N      complete at N, not durable: each, or each sector of it, is there or not
//! ```
//!
//! What makes the pair: the device above the logged one is suspended, `N` is set, the logged device is flushed, `N+` is set.

use crate::Random;
use crate::log::{Entry, Kind, Log};
use anyhow::{Context, Result, bail};
use nix::fcntl::{FallocateFlags, fallocate};
use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;

/// What a disk tears at.
const SECTOR: usize = 512;

/// What was done to a disk.
#[derive(Default, Debug)]
pub struct Applied {
    /// Writes and discards that are there as a whole.
    pub whole: u64,
    /// Writes of which some sectors are there.
    pub torn: u64,
    /// Writes and discards that are not there.
    pub dropped: u64,
    /// Sectors that are not what they would be if all of it were there.
    pub lost: u64,
}

/// Puts all that was durable at mark `to` on a disk that stands at mark `from` (`None`: at the log's beginning).
///
/// # Errors
/// The log cannot be read or lacks a mark, or the disk cannot be written.
pub fn durable(log: &Log, disk: &File, from: Option<&str>, to: &str) -> Result<Applied> {
    let mut applied = Applied::default();
    let mut on = from.is_none();
    for entry in log.entries() {
        let entry = entry?;
        match &entry.kind {
            Kind::Mark(name) if Some(name.as_str()) == from => on = true,
            Kind::Mark(name) if name == to => {
                return if on { Ok(applied) } else { bail!("mark {to} comes before mark {}", from.unwrap_or("?")) };
            }
            _ if on => {
                put(log, disk, &entry)?;
                applied.whole += u64::from(matches!(entry.kind, Kind::Write { .. } | Kind::Discard));
            }
            _ => {}
        }
    }
    bail!("the log has no mark {to}")
}

/// What may become of writes that were complete but not durable.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fate {
    /// None is there.
    None,
    /// Each is there or not.
    Some,
    /// Each sector of each is there or not; and of the next durable write, which was under way, some sectors but not all.
    Torn,
}

/// Puts some of what was not durable at mark `mark` on a disk that stands there.
///
/// # Errors
/// The log cannot be read or lacks the marks, or the disk cannot be written.
pub fn loose(log: &Log, disk: &File, mark: &str, fate: Fate, seed: u64) -> Result<Applied> {
    let flushed = format!("{mark}+");
    let mut random = Random::new(seed);
    let mut applied = Applied::default();
    // What all of it together would have left.
    let mut whole: BTreeMap<u64, [u8; SECTOR]> = BTreeMap::new();
    let mut entries = log.entries().skip_while(|entry| !matches!(entry, Ok(entry) if is(entry, mark))).skip(1);
    loop {
        let entry =
            entries.next().with_context(|| format!("the log has no mark {mark}, or no {flushed} behind it"))??;
        if let Kind::Write { durable: false } = entry.kind {
            let sectors = (entry.at..).step_by(SECTOR).zip(log.data(&entry)?.as_chunks().0.to_vec());
            whole.extend(sectors);
        }
        match entry.kind {
            _ if is(&entry, &flushed) => break,
            Kind::Write { durable: true } => {
                bail!("a durable write between {mark} and {flushed}: the device was not suspended")
            }
            Kind::Flush | Kind::Mark(_) => {}
            Kind::Write { .. } | Kind::Discard if fate == Fate::None => applied.dropped += 1,
            Kind::Discard if random.one_in(2) => {
                put(log, disk, &entry)?;
                applied.whole += 1;
            }
            Kind::Write { .. } if fate == Fate::Torn => tear(log, disk, &entry, &mut random, &mut applied)?,
            Kind::Write { .. } if random.one_in(2) => {
                put(log, disk, &entry)?;
                applied.whole += 1;
            }
            Kind::Write { .. } | Kind::Discard => applied.dropped += 1,
        }
    }
    for (at, data) in &whole {
        let mut there = [0; SECTOR];
        disk.read_exact_at(&mut there, *at)?;
        applied.lost += u64::from(there != *data);
    }
    if fate == Fate::Torn {
        let next = entries.find(|entry| !matches!(entry, Ok(entry) if entry.kind != Kind::Write { durable: true }));
        if let Some(entry) = next.transpose()? {
            tear_strictly(log, disk, &entry, &mut random)?;
            applied.torn += 1;
        }
    }
    Ok(applied)
}

fn is(entry: &Entry, mark: &str) -> bool {
    matches!(&entry.kind, Kind::Mark(name) if name == mark)
}

fn put(log: &Log, disk: &File, entry: &Entry) -> Result<()> {
    match entry.kind {
        Kind::Write { .. } => disk.write_all_at(&log.data(entry)?, entry.at).context("cannot write to the disk"),
        Kind::Discard => {
            let flags = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
            let (at, bytes) = (i64::try_from(entry.at)?, i64::try_from(entry.bytes)?);
            fallocate(disk, flags, at, bytes).context("cannot punch a hole into the disk")
        }
        Kind::Flush | Kind::Mark(_) => Ok(()),
    }
}

/// Each sector is there or not.
fn tear(log: &Log, disk: &File, entry: &Entry, random: &mut Random, applied: &mut Applied) -> Result<()> {
    let data = log.data(entry)?;
    let (mut there, mut sectors) = (0, 0);
    for (n, sector) in data.chunks(SECTOR).enumerate() {
        sectors += 1;
        if random.one_in(2) {
            there += 1;
            disk.write_all_at(sector, entry.at + (n * SECTOR) as u64)?;
        }
    }
    match there {
        0 => applied.dropped += 1,
        all if all == sectors => applied.whole += 1,
        _ => applied.torn += 1,
    }
    Ok(())
}

/// Each sector is there or not, and at least one that would change what is on the disk is not: nobody can have seen this write complete.
fn tear_strictly(log: &Log, disk: &File, entry: &Entry, random: &mut Random) -> Result<()> {
    let data = log.data(entry)?;
    let mut before = vec![0; data.len()];
    disk.read_exact_at(&mut before, entry.at)?;
    let changes: Vec<usize> =
        (0..data.len() / SECTOR).filter(|n| data[n * SECTOR..][..SECTOR] != before[n * SECTOR..][..SECTOR]).collect();
    let kept_out = changes.get(usize::try_from(random.below(changes.len() as u64))?).copied();
    for n in changes {
        if Some(n) != kept_out && random.one_in(2) {
            disk.write_all_at(&data[n * SECTOR..][..SECTOR], entry.at + (n * SECTOR) as u64)?;
        }
    }
    Ok(())
}
