//! A disk in memory that knows which of its blocks are allocated. Carries out requests at once.

use conductor_model::Bytes;
use memory::{Arena, Class};
use nbd_session::{Extent, Fault, Outcome, Request, Ticket, What};

/// Granularity of allocation.
const BLOCK: usize = 4096;

/// The disk.
pub(crate) struct RamDisk {
    /// What is on it.
    pub(crate) data: Vec<u8>,
    allocated: Vec<bool>,
}

impl RamDisk {
    /// An empty disk.
    pub(crate) fn new(size: usize) -> Self {
        Self { data: vec![0; size], allocated: vec![false; size.div_ceil(BLOCK)] }
    }

    /// Carries out a request; hands it back if it is a read and there is no memory.
    pub(crate) fn run(&mut self, request: Request, arena: &Arena) -> Result<(Ticket, Outcome), Request> {
        let from = usize::try_from(request.offset.0).expect("within the disk");
        let until = from + usize::try_from(request.len.0).expect("within the disk");
        let outcome = match request.what {
            What::Read => {
                let Some(mut memory) = arena.take(until - from, Class::Client) else { return Err(request) };
                memory.copy_from_slice(&self.data[from..until]);
                Outcome::Data([memory.filled().whole()].into_iter().collect())
            }
            What::Write { ref payload, .. } => {
                self.data[from..until].copy_from_slice(payload);
                self.allocated[from / BLOCK..until.div_ceil(BLOCK)].fill(true);
                Outcome::Done
            }
            What::Flush => Outcome::Done,
            What::WriteZeroes { fast: true, no_hole: true, .. } => Outcome::Failed(Fault::NotSupported),
            What::WriteZeroes { no_hole, .. } => {
                self.zero(from, until);
                if no_hole {
                    self.allocated[from / BLOCK..until.div_ceil(BLOCK)].fill(true);
                }
                Outcome::Done
            }
            What::Trim { .. } => {
                self.zero(from, until);
                Outcome::Done
            }
            What::BlockStatus { one } => {
                Outcome::Extents(self.extents(from, until).take(if one { 1 } else { usize::MAX }).collect())
            }
        };
        Ok((request.ticket, outcome))
    }

    fn zero(&mut self, from: usize, until: usize) {
        self.data[from..until].fill(0);
        let whole = from.div_ceil(BLOCK)..until / BLOCK;
        if !whole.is_empty() {
            self.allocated[whole].fill(false);
        }
    }

    fn extents(&self, from: usize, until: usize) -> impl Iterator<Item = Extent> + '_ {
        (from / BLOCK..until.div_ceil(BLOCK)).map(move |block| {
            let len = until.min((block + 1) * BLOCK) - from.max(block * BLOCK);
            let hole = !self.allocated[block];
            Extent { len: Bytes(len as u64), hole, zero: hole }
        })
    }
}
