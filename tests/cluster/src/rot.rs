//! What a stopped node's disk holds, block by block, found by content alone, and bytes laid wrong there.
//!
//! Each block of the test's volumes says which it is and which write made it ([`Stamp`]), so whatever lies on a disk can be told by
//! reading it, whoever moved it there. Of the format (docs/disk-format.md) this takes only where the journal, the pages and the chunks
//! begin, and where the journal's groups that count lie; it shares no code with the store.

use crate::Random;
use anyhow::{Context, Result, ensure};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Bytes of a block.
pub const BLOCK: usize = 4096;
const MAGIC: u64 = u64::from_le_bytes(*b"TESTBLOK");

/// What a block says of itself.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Stamp {
    /// Which volume: a number of the test's own.
    pub volume: u32,
    /// Which block of it.
    pub block: u64,
    /// Which write of that block, from 1.
    pub version: u32,
}

impl Stamp {
    /// The block.
    pub fn content(self) -> Vec<u8> {
        let head = [MAGIC, u64::from(self.volume) << 32 | u64::from(self.version), self.block];
        let mut random = Random::new(head.iter().fold(0, |seed, word| seed.rotate_left(21).wrapping_add(*word)));
        let words = head.into_iter().chain(std::iter::repeat_with(move || random.draw()));
        words.take(BLOCK / 8).flat_map(u64::to_le_bytes).collect()
    }

    /// What a block is, if every byte of it is as it was written.
    pub fn of(bytes: &[u8]) -> Option<Self> {
        let word = |n: usize| bytes.get(n * 8..n * 8 + 8)?.try_into().ok().map(u64::from_le_bytes);
        let (which, block) = (word(1)?, word(2)?);
        let stamp = Self { volume: low(which >> 32), block, version: low(which) };
        (word(0)? == MAGIC && bytes == stamp.content()).then_some(stamp)
    }
}

/// A group of the journal that counts: its sequence, and where its payload is.
struct Group {
    sequence: u64,
    payload: std::ops::Range<u64>,
}

/// A disk as it was when it was read.
#[derive(Debug)]
pub struct Picture {
    path: PathBuf,
    bytes: Vec<u8>,
    journal: std::ops::Range<u64>,
    pages: u64,
    places: u64,
    chunks: u64,
    /// The block of the ring and the sequence that the newest superblock replays from.
    tail: (u64, u64),
}

/// Where the content of a block is that readers get.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Spot {
    /// What is there.
    pub stamp: Stamp,
    /// Its first byte on the disk.
    pub at: u64,
    /// It is in the journal, and not home yet; true if a later group says that it was durable.
    pub journaled: Option<bool>,
}

/// Its lower half.
fn low(word: u64) -> u32 {
    u32::try_from(word & u64::from(u32::MAX)).unwrap_or(0)
}

fn index(n: u64) -> usize {
    usize::try_from(n).unwrap_or(usize::MAX)
}

fn number(bytes: &[u8], at: usize, len: usize) -> u64 {
    bytes[at..at + len].iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

impl Picture {
    /// Takes one. The node may run: what is being written meanwhile is no block then.
    pub fn of(disk: &Path) -> Result<Self> {
        let bytes = fs::read(disk).with_context(|| disk.display().to_string())?;
        let superblocks = [0, 8 * BLOCK].map(|at| &bytes[at..at + BLOCK]);
        let newest = superblocks.into_iter().filter(|block| block.starts_with(b"TRS2"));
        let newest = newest.max_by_key(|block| number(block, 56, 8)).context("no superblock")?;
        let (ring, places, external) = (number(newest, 40, 4), number(newest, 44, 4), number(newest, 52, 4));
        ensure!(external == 0, "{} keeps its journal elsewhere", disk.display());
        let block = BLOCK as u64;
        let pages = (16 + ring + 4 * places.div_ceil(32_576)) * block;
        let chunks = (pages + 2 * places * block).next_multiple_of(16 * block);
        let tail = (number(newest, 72, 4), number(newest, 80, 8));
        Ok(Self { path: disk.to_owned(), journal: 16 * block..(16 + ring) * block, pages, places, chunks, tail, bytes })
    }

    /// A block of it.
    pub fn block(&self, at: u64) -> &[u8] {
        let at = index(at);
        &self.bytes[at..at + BLOCK]
    }

    /// Both mirrors of each page of metadata that there is or was, by name of array and level; of each place the newest.
    pub fn pages(&self) -> Vec<(u32, u8, [u64; 2])> {
        let at = |place: u64| self.pages + place * BLOCK as u64;
        let there = (1..self.places).filter(|place| self.block(at(*place)).starts_with(b"TPG2"));
        there
            .map(|place| {
                let page = self.block(at(place));
                (low(number(page, 12, 4)), page[9], [at(place), at(place + self.places)])
            })
            .collect()
    }

    /// The journal's groups from its tail on, and the newest that one of them says was durable.
    fn groups(&self) -> (Vec<Group>, u64) {
        let (mut position, mut next) = (self.journal.start + self.tail.0 * BLOCK as u64, self.tail.1);
        let (mut groups, mut proven) = (Vec::new(), next - 1);
        loop {
            let is_next = |at: &u64| {
                let head = if *at < self.journal.end { self.block(*at) } else { &[0; BLOCK] };
                head.starts_with(b"TJG2")
                    && number(head, 16, 8) == next
                    && number(head, 52, 4) == (at - self.journal.start) / BLOCK as u64
            };
            let Some(at) = [position, self.journal.start].into_iter().find(is_next) else { return (groups, proven) };
            let head = self.block(at);
            proven = proven.max(number(head, 40, 8));
            let payload = at + number(head, 56, 4) * BLOCK as u64;
            let end = payload + number(head, 60, 4) * BLOCK as u64;
            groups.push(Group { sequence: next, payload: payload..end });
            (position, next) = (end, next + 1);
        }
    }

    /// The block of each header of the journal that counts and that a later group vouches for.
    pub fn headers(&self) -> Vec<u64> {
        let (groups, proven) = self.groups();
        // The newest has no echo behind it.
        let vouched = groups.iter().filter(|group| group.sequence < proven);
        vouched.map(|group| group.payload.start - BLOCK as u64).collect()
    }

    /// Where each block of this volume is, as far as that is certain from outside: once in the chunks, or in the journal, newest last.
    pub fn spots(&self, volume: u32) -> BTreeMap<u64, Spot> {
        let here =
            |at: &u64| Stamp::of(self.block(*at)).filter(|stamp| stamp.volume == volume).map(|stamp| (*at, stamp));
        let mut home: BTreeMap<u64, Vec<Spot>> = BTreeMap::new();
        for (at, stamp) in (self.chunks..self.bytes.len() as u64).step_by(BLOCK).filter_map(|at| here(&at)) {
            home.entry(stamp.block).or_default().push(Spot { stamp, at, journaled: None });
        }
        let newest = |spots: Vec<Spot>| {
            let version = spots.iter().map(|spot| spot.stamp.version).max()?;
            let mut newest = spots.into_iter().filter(|spot| spot.stamp.version == version);
            newest.next().filter(|_| newest.next().is_none())
        };
        let mut spots: BTreeMap<u64, Spot> =
            home.into_iter().filter_map(|(block, spots)| Some((block, newest(spots)?))).collect();
        let (groups, proven) = self.groups();
        for group in groups {
            for (at, stamp) in group.payload.step_by(BLOCK).filter_map(|at| here(&at)) {
                spots.insert(stamp.block, Spot { stamp, at, journaled: Some(group.sequence <= proven) });
            }
        }
        spots
    }
}

/// How a block is damaged.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Kind {
    /// One bit is another.
    Flip,
    /// What was there before the last write is there again.
    LostWrite,
    /// A good block of another place is there.
    Misdirected,
}

/// A block laid wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Planted {
    /// How.
    pub kind: Kind,
    /// Where, and what was there.
    pub spot: Spot,
}

/// Lays bytes wrong on the disk of a stopped node.
#[derive(Debug)]
pub struct Planter<'a> {
    file: File,
    /// The disk now, and at some moment before the last write of each block.
    now: &'a Picture,
    before: &'a Picture,
    /// Good blocks that may be laid elsewhere.
    strays: Vec<u64>,
    /// What has been planted.
    pub planted: Vec<Planted>,
}

impl<'a> Planter<'a> {
    /// For this disk; `strays` are bytes on it where good blocks are.
    pub fn new(now: &'a Picture, before: &'a Picture, strays: Vec<u64>) -> Result<Self> {
        let file = File::options().write(true).open(&now.path)?;
        Ok(Self { file, now, before, strays, planted: Vec::new() })
    }

    /// Damages a block; false if it cannot be in this way: nothing was there before its last write.
    pub fn plant(&mut self, kind: Kind, spot: Spot, random: &mut Random) -> Result<bool> {
        let good = self.now.block(spot.at);
        ensure!(Stamp::of(good) == Some(spot.stamp), "byte {} of {}", spot.at, self.now.path.display());
        let bad = match kind {
            Kind::Flip => flipped(good, random),
            Kind::LostWrite => {
                let old = self.before.block(spot.at);
                // Home it is an older write of the same block; in the ring, whatever lay there a round ago.
                let fits = |was: Stamp| match spot.journaled {
                    None => (was.volume, was.block) == (spot.stamp.volume, spot.stamp.block) && was < spot.stamp,
                    Some(_) => was != spot.stamp,
                };
                if !Stamp::of(old).is_some_and(fits) {
                    return Ok(false);
                }
                old.to_vec()
            }
            Kind::Misdirected => {
                let stray = self.strays[index(random.below(self.strays.len() as u64))];
                let stray = self.now.block(stray);
                if stray == good {
                    return Ok(false);
                }
                stray.to_vec()
            }
        };
        self.file.write_all_at(&bad, spot.at)?;
        self.planted.push(Planted { kind, spot });
        Ok(true)
    }

    /// Turns one bit of any block of the disk.
    pub fn flip(&mut self, at: u64, random: &mut Random) -> Result<()> {
        Ok(self.file.write_all_at(&flipped(self.now.block(at), random), at)?)
    }
}

fn flipped(good: &[u8], random: &mut Random) -> Vec<u8> {
    let mut bad = good.to_vec();
    let bit = index(random.below(8 * bad.len() as u64));
    bad[bit / 8] ^= 1 << (bit % 8);
    bad
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_says_what_it_is_and_nothing_else_does() {
        let stamp = Stamp { volume: 3, block: 77, version: 2 };
        let mut bytes = stamp.content();
        assert_eq!((bytes.len(), Stamp::of(&bytes)), (BLOCK, Some(stamp)));
        assert_ne!(bytes, Stamp { version: 3, ..stamp }.content());
        bytes[4095] ^= 1;
        assert_eq!(Stamp::of(&bytes), None);
        assert_eq!(Stamp::of(&[0; BLOCK]), None);
    }
}
