//! What the lanes do: drawn by each from its own numbers, within what the seed's mood and the director allow.

use crate::content::{SECTOR, WORD};
use crate::history::History;
use crate::verdict::Failure;
use conductor_model::BLOCK;
use driver::{Span, Time};
use sim::Rng;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

const SECTORS_PER_BLOCK: u64 = (BLOCK / SECTOR) as u64;
/// Longest write or read, in sectors: 384 KiB.
const LONGEST: usize = 768;
/// The memory that the longest takes, when it begins within a block.
pub(crate) const LONGEST_BYTES: usize = LONGEST * SECTOR + BLOCK;
/// Longest zeroing, in sectors: 2 MiB, more than a shard.
const LONGEST_ZERO: u64 = 4096;

/// How a seed behaves.
#[derive(Clone, Debug)]
pub(crate) struct Mood {
    /// Requests in flight per lane.
    pub(crate) depth: usize,
    /// Pause before each request, up to this.
    pub(crate) think: Span,
    /// Sectors where most requests go, beginning with these.
    pub(crate) hot: Vec<u64>,
    /// How wide a hot spot is, in sectors.
    pub(crate) width: u64,
    /// Per million: requests that go to a hot spot; reads; zeroes and discards among the changes; large ones.
    pub(crate) hot_ppm: u32,
    pub(crate) read_ppm: u32,
    pub(crate) zero_ppm: u32,
    pub(crate) large_ppm: u32,
}

impl Mood {
    pub(crate) fn new(rng: &mut Rng, size: u64, shard: u64) -> Self {
        let sectors = size / SECTOR as u64;
        let boundary = shard / SECTOR as u64;
        let mut hot = vec![boundary.saturating_sub(16)];
        for _ in 0..rng.index(3) {
            hot.push(rng.below(sectors.saturating_sub(256)));
        }
        Self {
            depth: rng.up_to(16),
            think: [Span::millis(8), Span::millis(25), Span::millis(60)][rng.index(3)],
            hot,
            width: 8 << rng.below(5),
            hot_ppm: [500_000, 800_000, 950_000][rng.index(3)],
            read_ppm: [250_000, 450_000][rng.index(2)],
            zero_ppm: [100_000, 300_000][rng.index(2)],
            large_ppm: [20_000, 60_000, 200_000][rng.index(3)],
        }
    }
}

/// A kind of request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    Read,
    Extents,
    Write,
    Zero,
    Discard,
    Flush,
}

/// A request to be made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wish {
    pub(crate) kind: Kind,
    /// In bytes.
    pub(crate) offset: u64,
    pub(crate) len: u64,
}

impl Wish {
    /// It reads, or writes a part of a block, which is merged with the rest.
    pub(crate) fn reads(&self) -> bool {
        let whole = (self.offset | self.len).is_multiple_of(BLOCK as u64);
        self.kind == Kind::Read || matches!(self.kind, Kind::Write | Kind::Zero) && !whole
    }

    /// The sectors whose content it reads or changes: (first, count).
    pub(crate) fn sectors(&self) -> (u64, u64) {
        let (unit, per) =
            if self.kind == Kind::Discard { (BLOCK as u64, SECTORS_PER_BLOCK) } else { (SECTOR as u64, 1) };
        let (first, last) = match self.kind {
            Kind::Flush => (0, 0),
            // Only whole blocks are discarded.
            Kind::Discard => (self.offset.div_ceil(unit), (self.offset + self.len) / unit),
            _ => (self.offset / unit, (self.offset + self.len).div_ceil(unit)),
        };
        (first * per, last.saturating_sub(first) * per)
    }
}

/// What the lanes and the director share.
pub(crate) struct Workload {
    pub(crate) mood: Mood,
    /// Requests still to be made.
    pub(crate) left: usize,
    /// Requests to be made before anything else, by whichever lane comes first.
    pub(crate) script: VecDeque<Wish>,
    pub(crate) history: History,
    /// What must not happen, in words.
    pub(crate) failures: Vec<Failure>,
    /// Reads of blocks that could be read nowhere while all disks could be: right only if a copy was filled past such a block before.
    pub(crate) unexplained: Vec<Failure>,
    /// Nodes whose disks cannot be read for now, beside the one that rots. With a copy that is away, a block may be readable nowhere.
    pub(crate) unreadable: BTreeSet<usize>,
    /// When the last of them was mended: what was asked for before may have met it, and be answered now.
    pub(crate) unreadable_until: Time,
    /// Requests by kind and outcome.
    pub(crate) counts: BTreeMap<&'static str, u64>,
}

impl Workload {
    /// Whether what was asked for then may have met a block that could be read nowhere.
    pub(crate) fn was_unreadable(&self, since: Time) -> bool {
        !self.unreadable.is_empty() || self.unreadable_until >= since
    }

    pub(crate) fn new(mood: Mood, left: usize) -> Self {
        Self {
            mood,
            left,
            script: VecDeque::new(),
            history: History::default(),
            failures: Vec::new(),
            unexplained: Vec::new(),
            unreadable: BTreeSet::new(),
            unreadable_until: Time::default(),
            counts: BTreeMap::new(),
        }
    }

    pub(crate) fn count(&mut self, name: &'static str) {
        *self.counts.entry(name).or_default() += 1;
    }

    /// The next request for a volume of so many bytes.
    pub(crate) fn next(&mut self, rng: &mut Rng, size: u64) -> Option<Wish> {
        // The script may be about room that this lane has not heard of.
        if self.script.front().is_some_and(|wish| wish.offset + wish.len <= size) {
            return self.script.pop_front();
        }
        self.left = self.left.checked_sub(1)?;
        let mood = &self.mood;
        let sectors = size / SECTOR as u64;
        let hot = rng.chance(mood.hot_ppm);
        let kind = if rng.chance(mood.read_ppm) {
            if rng.chance(50_000) { Kind::Extents } else { Kind::Read }
        } else if rng.chance(mood.zero_ppm) {
            if rng.coin() { Kind::Zero } else { Kind::Discard }
        } else if rng.chance(10_000) {
            Kind::Flush
        } else {
            Kind::Write
        };
        // Beside those that are to be made: of most of it nothing is said that could be checked.
        self.left += usize::from(kind == Kind::Extents);
        let zero = matches!(kind, Kind::Zero | Kind::Discard);
        let mut len = if rng.chance(mood.large_ppm) {
            1 + rng.below(if zero { LONGEST_ZERO } else { LONGEST as u64 })
        } else if rng.coin() {
            // Whole blocks.
            SECTORS_PER_BLOCK << rng.below(3)
        } else {
            1 + rng.below(24)
        };
        let mut first =
            if hot { mood.hot[rng.index(mood.hot.len())] + rng.below(mood.width) } else { rng.below(sectors) };
        if rng.coin() {
            first = first / SECTORS_PER_BLOCK * SECTORS_PER_BLOCK;
        }
        first = first.min(sectors - 1);
        len = len.min(sectors - first);
        let (mut offset, mut len) = (first * SECTOR as u64, len * SECTOR as u64);
        if kind == Kind::Read && rng.chance(100_000) && len > SECTOR as u64 {
            // At an odd place: whole words, so that they can be attributed.
            let (head, tail) = (rng.below(64) * WORD as u64, rng.below(64) * WORD as u64);
            (offset, len) = (offset + head, len - head - tail);
            len = len.max(WORD as u64);
        }
        Some(Wish { kind, offset, len })
    }
}
