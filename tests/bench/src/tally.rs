//! What the store asks of the disk, counted where it asks: bytes and operations by what they are for.

use driver::Op;
use node_store::journaled::{Kind, kind_of};
use std::ops::Sub;

/// Operations and bytes.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Sum {
    pub(crate) ops: u64,
    pub(crate) bytes: u64,
}

/// Since the store was opened.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Tally {
    /// Journal groups.
    pub(crate) journal: Sum,
    /// Whole chunks.
    pub(crate) data: Sum,
    /// The fold's, home.
    pub(crate) moves: Sum,
    /// Metadata pages and their map, both mirrors.
    pub(crate) pages: Sum,
    pub(crate) superblocks: Sum,
    /// Repairs, and what is not known here.
    pub(crate) other: Sum,
    /// All that is read, whatever for.
    pub(crate) reads: Sum,
    pub(crate) syncs: u64,
    pub(crate) punches: Sum,
}

impl Tally {
    pub(crate) fn note(&mut self, op: &Op) {
        let (sum, bytes) = match op {
            Op::DiskRead { len, .. } => (&mut self.reads, *len as u64),
            Op::DiskPunch { len, .. } => (&mut self.punches, *len),
            Op::DiskSync { .. } => {
                self.syncs += 1;
                return;
            }
            Op::DiskWrite { tag, parts, .. } => {
                let sum = match kind_of(*tag) {
                    Some(Kind::Ring) => &mut self.journal,
                    Some(Kind::Data) => &mut self.data,
                    Some(Kind::Store) => &mut self.moves,
                    Some(Kind::Pages) => &mut self.pages,
                    Some(Kind::Super) => &mut self.superblocks,
                    _ => &mut self.other,
                };
                (sum, parts.iter().map(|part| part.len as u64).sum())
            }
            _ => return,
        };
        sum.ops += 1;
        sum.bytes += bytes;
    }

    /// Bytes written to the disk.
    pub(crate) fn written(&self) -> u64 {
        [self.journal, self.data, self.moves, self.pages, self.superblocks, self.other]
            .iter()
            .map(|sum| sum.bytes)
            .sum()
    }
}

impl Sub for Sum {
    type Output = Self;
    fn sub(self, before: Self) -> Self {
        Self { ops: self.ops - before.ops, bytes: self.bytes - before.bytes }
    }
}

impl Sub for Tally {
    type Output = Self;
    fn sub(self, before: Self) -> Self {
        Self {
            journal: self.journal - before.journal,
            data: self.data - before.data,
            moves: self.moves - before.moves,
            pages: self.pages - before.pages,
            superblocks: self.superblocks - before.superblocks,
            other: self.other - before.other,
            reads: self.reads - before.reads,
            syncs: self.syncs - before.syncs,
            punches: self.punches - before.punches,
        }
    }
}
