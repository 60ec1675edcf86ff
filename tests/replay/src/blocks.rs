//! Writes of known content to a range of a block device, one at a time per thread, and what may be read there after a power loss.
//!
//! Each sector written says its own place and the write's number in all of its bits. As a thread begins a write only after its last one was
//! acknowledged, and threads share no block, the states that a block went through are in a row; after a power loss it must be in
//! one of those from the last acknowledged to the last begun, all eight sectors in the same one: a block is never torn.

use crate::ledger::{Begun, Deed, Ledger, Moment};
use crate::random::{Random, mix};
use anyhow::{Context, Result, ensure};
use nix::fcntl::{FallocateFlags, fallocate};
use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

const SECTOR: u64 = 512;
const SECTOR_LEN: usize = 512;
/// Sectors in a block, the unit that is never torn.
const BLOCK: u64 = 8;
const BLOCK_SECTORS: usize = 8;
/// A chunk of the store is 64 KiB: writes around that size go other ways than small ones.
const CHUNK: u64 = 16 * BLOCK;
/// The largest write.
const MOST: u64 = 4 * CHUNK;
/// What direct I/O wants of memory.
const ALIGN: usize = 4096;
/// How much a check reads at once.
const READ: u64 = 256 * BLOCK;
/// Complaints printed of one check.
const COMPLAINTS: usize = 5;

/// Memory that direct I/O takes.
struct Aligned {
    raw: Vec<u8>,
    from: usize,
}

impl Aligned {
    fn new(bytes: u64) -> Result<Self> {
        let raw = vec![0; usize::try_from(bytes)? + ALIGN];
        let from = raw.as_ptr().align_offset(ALIGN);
        Ok(Self { raw, from })
    }

    fn sectors(&mut self, sectors: u64) -> Result<&mut [u8]> {
        let bytes = usize::try_from(sectors * SECTOR)?;
        self.raw.get_mut(self.from..self.from + bytes).context("more than the buffer holds")
    }
}

fn direct(device: &Path, write: bool) -> Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(write).custom_flags(nix::libc::O_DIRECT);
    options.open(device).with_context(|| format!("cannot open {}", device.display()))
}

/// One sector's content: its place, the write's number, and what follows from both.
pub fn fill(sector: u64, id: u64, into: &mut [u8]) {
    let seed = mix(sector) ^ id.rotate_left(32);
    for (n, word) in (0_u64..).zip(into.chunks_exact_mut(8)) {
        let value = match n {
            0 => sector,
            1 => id,
            n => mix(seed.wrapping_add(n)),
        };
        word.copy_from_slice(&value.to_le_bytes());
    }
}

/// The number of the write that a sector's content is from; 0 for zeros, `None` if no write can have left it.
fn identify(sector: u64, content: &[u8]) -> Option<u64> {
    if content.iter().all(|byte| *byte == 0) {
        return Some(0);
    }
    let id = u64::from_le_bytes(content.get(8..16)?.try_into().ok()?);
    let mut wanted = [0; SECTOR_LEN];
    fill(sector, id, &mut wanted);
    (content == wanted).then_some(id)
}

/// A range of sectors, whole blocks.
#[derive(Clone, Copy, Debug)]
pub struct Range {
    /// Its first sector.
    pub first: u64,
    /// How many.
    pub sectors: u64,
}

impl Range {
    /// The range of these bytes, in whole blocks.
    #[must_use]
    pub fn of_bytes(at: u64, bytes: u64) -> Self {
        let whole = |bytes: u64| bytes / SECTOR / BLOCK * BLOCK;
        Self { first: whole(at), sectors: whole(bytes) }
    }

    /// The `n`th of `of` parts of it.
    #[must_use]
    pub fn part(self, n: u64, of: u64) -> Self {
        let sectors = self.sectors / of / BLOCK * BLOCK;
        Self { first: self.first + n * sectors, sectors }
    }
}

/// What the next write is: small ones mostly, half of them to a tenth of the range, so that blocks are overwritten before they rest.
fn choose(range: Range, random: &mut Random) -> Deed {
    let blocks = range.sectors / BLOCK;
    let near = if random.one_in(2) { blocks.div_ceil(10) } else { blocks };
    let block = random.below(near);
    let (sector, sectors, zero) = match random.below(20) {
        0..11 => (block * BLOCK, BLOCK, false),
        11..14 => (block * BLOCK, BLOCK * (1 + random.below(8)), false),
        14..16 => (block / 16 * CHUNK, CHUNK * (1 + random.below(MOST / CHUNK)), false),
        16..19 => (block * BLOCK + random.below(BLOCK), 1 + random.below(2 * BLOCK), false),
        _ => (block * BLOCK, BLOCK * (1 + random.below(48)), true),
    };
    let sectors = sectors.min(range.sectors - sector);
    let sector = range.first + sector;
    if zero { Deed::Zero { sector, sectors } } else { Deed::Write { sector, sectors } }
}

/// Writes until told to stop. `errors_pass`: an error is noted, and the next write begins.
///
/// # Errors
/// A write failed, or the ledger cannot be written.
pub fn write(
    device: &Path,
    range: Range,
    seed: u64,
    errors_pass: bool,
    ledger: &Ledger,
    stop: &AtomicBool,
) -> Result<()> {
    ensure!(range.sectors >= MOST, "{} sectors are too few to write to", range.sectors);
    let file = direct(device, true)?;
    let mut memory = Aligned::new(MOST * SECTOR)?;
    let mut random = Random::new(seed);
    while !stop.load(Ordering::Relaxed) {
        let deed = choose(range, &mut random);
        let id = ledger.begin(deed)?;
        let done = match deed {
            Deed::Write { sector, sectors } => {
                let content = memory.sectors(sectors)?;
                for (n, into) in (sector..).zip(content.chunks_exact_mut(SECTOR_LEN)) {
                    fill(n, id, into);
                }
                file.write_all_at(content, sector * SECTOR)
            }
            Deed::Zero { sector, sectors } => {
                let flags = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
                let (at, bytes) = (i64::try_from(sector * SECTOR)?, i64::try_from(sectors * SECTOR)?);
                fallocate(&file, flags, at, bytes).map_err(std::io::Error::from)
            }
            _ => Ok(()),
        };
        match done {
            Err(_) if errors_pass => ledger.fail(id)?,
            done => {
                done.with_context(|| format!("{}: {deed:?} failed", device.display()))?;
                ledger.acknowledge(id)?;
            }
        }
    }
    Ok(())
}

/// What a check found.
pub struct Found {
    /// Blocks compared.
    pub blocks: u64,
    /// Of them, blocks of which a write was under way, so that more than one content is right.
    pub open: u64,
    /// Blocks that could not be read, where that is no failure of the check.
    pub unreadable: u64,
}

/// Reads the range and compares each block with what it may be. `errors_pass`: a block that answers with an error is counted, not a failure.
///
/// # Errors
/// A block holds what it cannot, or cannot be read.
pub fn check(device: &Path, range: Range, moment: &Moment, errors_pass: bool) -> Result<Found> {
    let mut touched: HashMap<u64, Vec<Begun>> = HashMap::new();
    for begun in &moment.begun {
        if let Deed::Write { sector, sectors } | Deed::Zero { sector, sectors } = begun.deed {
            for block in sector / BLOCK..(sector + sectors).div_ceil(BLOCK) {
                touched.entry(block).or_default().push(*begun);
            }
        }
    }
    let file = direct(device, false)?;
    let mut memory = Aligned::new(READ * SECTOR)?;
    let mut found = Found { blocks: 0, open: 0, unreadable: 0 };
    let mut wrong = Vec::new();
    let end = range.first + range.sectors;
    let mut at = range.first;
    while at < end {
        let sectors = READ.min(end - at);
        let content = memory.sectors(sectors)?;
        let whole = file.read_exact_at(content, at * SECTOR);
        for first in (at..at + sectors).step_by(BLOCK_SECTORS) {
            let content = memory.sectors(sectors)?;
            let content = &mut content[usize::try_from((first - at) * SECTOR)?..][..BLOCK_SECTORS * SECTOR_LEN];
            // One bad block fails the read of many: it is read again by itself.
            if whole.is_err()
                && let Err(error) = file.read_exact_at(content, first * SECTOR)
            {
                ensure!(errors_pass, "{}: block {} cannot be read: {error}", device.display(), first / BLOCK);
                found.unreadable += 1;
                continue;
            }
            let writes = touched.get(&(first / BLOCK)).map_or(&[][..], Vec::as_slice);
            let states = states(first, writes, moment);
            let is: Vec<Option<u64>> =
                (first..).zip(content.chunks_exact(SECTOR_LEN)).map(|(n, raw)| identify(n, raw)).collect();
            if !states.iter().any(|state| state.iter().zip(&is).all(|(may, is)| Some(*may) == *is)) {
                wrong.push(format!("block {} is {is:?} and may be {states:?}", first / BLOCK));
            }
            found.blocks += 1;
            found.open += u64::from(states.len() > 1);
        }
        at += sectors;
    }
    let first = &wrong[..wrong.len().min(COMPLAINTS)];
    ensure!(
        wrong.is_empty(),
        "{}: {} blocks hold what they cannot\n{}",
        device.display(),
        wrong.len(),
        first.join("\n")
    );
    Ok(found)
}

/// The states that a block may be in: a number per sector, 0 for zeros.
fn states(first: u64, writes: &[Begun], moment: &Moment) -> Vec<[u64; BLOCK_SECTORS]> {
    // What it may be when all so far is over, and what of that or of before may be seen.
    let mut over = vec![[0; BLOCK_SECTORS]];
    let mut seen = over.clone();
    for begun in writes {
        let (from, sectors, id) = match begun.deed {
            Deed::Write { sector, sectors } => (sector, sectors, begun.id),
            Deed::Zero { sector, sectors } => (sector, sectors, 0),
            _ => continue,
        };
        let mut after = over.clone();
        for (n, slot) in after.iter_mut().flat_map(|state| (first..).zip(state)) {
            if (from..from + sectors).contains(&n) {
                *slot = id;
            }
        }
        if moment.is_failed(begun.id) {
            after.extend(over);
        }
        over = after;
        over.sort_unstable();
        over.dedup();
        // What was before an acknowledged write may not be seen any more.
        if moment.is_sure(begun.id) {
            seen.clear();
        }
        seen.extend(&over);
    }
    seen.sort_unstable();
    seen.dedup();
    seen
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sector_tells_its_write_and_nothing_else_does() {
        let mut sector = [0; 512];
        assert_eq!(identify(7, &sector), Some(0));
        fill(7, 42, &mut sector);
        assert_eq!(identify(7, &sector), Some(42));
        assert_eq!(identify(8, &sector), None, "content of another place");
        sector[500] ^= 1;
        assert_eq!(identify(7, &sector), None, "a flipped bit");
    }
}
