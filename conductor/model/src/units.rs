//! Bytes and blocks. A block is 4 KiB: the checksum unit, and what replicas receive whole.

use serde::{Deserialize, Serialize};
use std::fmt;

/// Bytes in a block.
pub const BLOCK: usize = 4096;
/// Bytes in a sector: the smallest request a block device front end passes on.
pub const SECTOR: u64 = 512;
/// Default size of a shard.
pub const DEFAULT_SHARD: Bytes = Bytes(4 << 30);

/// A number of bytes, or a byte offset.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Bytes(pub u64);

/// A number of 4 KiB blocks, or a block offset within a shard. 32 bits reach 16 TiB, far above the largest shard.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Blocks(pub u32);

impl Bytes {
    /// True if it starts or ends on a block boundary.
    pub fn is_block_aligned(self) -> bool {
        self.0.is_multiple_of(BLOCK as u64)
    }
}

impl Blocks {
    /// The same in bytes.
    pub fn bytes(self) -> Bytes {
        Bytes(u64::from(self.0) * BLOCK as u64)
    }
}

/// A moment in milliseconds since the Unix epoch, as the driver's clock shows it: set once at start and then counted
/// monotonically, so that it never goes back while a process lives.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Millis(pub u64);

impl Millis {
    /// Milliseconds from `earlier` to here; 0 if `earlier` is later.
    pub fn since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

/// A range of blocks of one shard: `from..from + count`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
pub struct BlockRange {
    /// First block.
    pub from: Blocks,
    /// How many; never 0 in a request.
    pub count: Blocks,
}

impl BlockRange {
    /// The blocks touched by `len` bytes at byte `offset` of a shard; `None` if that lies beyond what 32 bits of blocks
    /// reach, or `len` is 0.
    pub fn covering(offset: Bytes, len: Bytes) -> Option<Self> {
        let end = offset.0.checked_add(len.0)?;
        let first = u32::try_from(offset.0 / BLOCK as u64).ok()?;
        let last = u32::try_from(end.div_ceil(BLOCK as u64)).ok()?;
        (len.0 > 0).then_some(Self { from: Blocks(first), count: Blocks(last - first) })
    }

    /// The block after the last, as a plain 64-bit number: it may not fit a `Blocks`.
    pub fn end(self) -> u64 {
        u64::from(self.from.0) + u64::from(self.count.0)
    }

    /// True if the two share a block.
    pub fn overlaps(self, other: Self) -> bool {
        u64::from(self.from.0) < other.end() && u64::from(other.from.0) < self.end()
    }
}

impl fmt::Display for Bytes {
    /// Exact, in the largest unit that there is a whole number of: `64 TiB`, `4100 KiB`, `1000 B`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)];
        match units.into_iter().find(|(_, shift)| self.0 > 0 && self.0.trailing_zeros() >= *shift) {
            Some((unit, shift)) => write!(f, "{} {unit}", self.0 >> shift),
            None => write!(f, "{} B", self.0),
        }
    }
}
impl fmt::Debug for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
impl fmt::Display for Blocks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "b{}", self.0)
    }
}
impl fmt::Debug for Blocks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
impl fmt::Display for BlockRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}+{}", self.from.0, self.count.0)
    }
}
impl fmt::Debug for BlockRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_shown_exactly_in_the_largest_whole_unit() {
        let shown = |bytes| Bytes(bytes).to_string();
        assert_eq!((shown(0), shown(1000), shown(1 << 20)), ("0 B".into(), "1000 B".into(), "1 MiB".into()));
        assert_eq!((shown(4100 << 10), shown(64 << 40)), ("4100 KiB".into(), "64 TiB".into()));
        assert_eq!((shown(1 << 50), shown(u64::MAX)), ("1024 TiB".into(), format!("{} B", u64::MAX)));
    }
}
