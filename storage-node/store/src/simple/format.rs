//! Makes a disk a store: a state machine like the rest, one durable operation after the other.
//!
//! The superblocks are written last: a disk whose formatting was cut short is no store.

use super::checkpoint::Header;
use super::layout::{Geometry, Superblock};
use super::limits::SUPERBLOCKS;
use crate::DiskOut;
use crate::opening::Identity;
use crate::opening::OpenError;
use conductor_model::BLOCK;
use driver::{DiskIndex, Done, Op};
use memory::{Arena, Class, Filling};
use smallvec::smallvec;

/// What to make.
#[derive(Clone, Copy, Debug)]
pub struct FormatOptions {
    /// Which disk.
    pub disk: DiskIndex,
    /// Whose it becomes. The disk id must be fresh: what is left of an older store is told apart by it.
    pub identity: Identity,
    /// How it is divided.
    pub geometry: Geometry,
    /// Go on although the disk carries a store: its content is gone.
    pub overwrite: bool,
}

/// A disk being formatted.
#[derive(Debug)]
pub struct Format {
    options: FormatOptions,
    step: usize,
}

/// What a write puts on the disk.
enum Content {
    Zeros,
    Header,
    Superblock,
}

impl Format {
    /// Begin.
    pub fn start(options: FormatOptions, arena: &Arena, out: &mut DiskOut<'_>) -> Result<Self, OpenError> {
        let buffer = arena.take(BLOCK, Class::Client).ok_or(OpenError::Memory)?;
        let mut this = Self { options, step: 0 };
        this.go_on(buffer, out);
        Ok(this)
    }

    /// Its operation is over. `Some` when all is.
    pub fn done(&mut self, done: Done, out: &mut DiskOut<'_>) -> Option<Result<(), OpenError>> {
        if let Err(errno) = done.result {
            return Some(Err(OpenError::Disk(errno)));
        }
        let buffer = match done.op {
            Op::DiskRead { into, .. } => {
                if Superblock::is_marked(&into) && !self.options.overwrite {
                    return Some(Err(OpenError::AlreadyFormatted));
                }
                // The old logs are told apart by nothing else.
                if Superblock::decode(&into).is_ok_and(|old| old.identity.disk == self.options.identity.disk) {
                    return Some(Err(OpenError::SameDiskId(self.options.identity.disk)));
                }
                Some(into)
            }
            Op::DiskWrite { parts, .. } => parts.into_iter().next().and_then(|part| part.mem.try_filling().ok()),
            _ => None,
        };
        self.step += 1;
        if self.step == 8 {
            return Some(Ok(()));
        }
        let Some(buffer) = buffer else { return Some(Err(OpenError::Memory)) };
        self.go_on(buffer, out);
        None
    }

    fn go_on(&mut self, mut buffer: Filling, out: &mut DiskOut<'_>) {
        let FormatOptions { disk, identity, geometry, .. } = self.options;
        let superblock = |n: usize| SUPERBLOCKS[n] * BLOCK as u64;
        let (at, content) = match self.step {
            n @ (0 | 1) => {
                return out(Op::DiskRead { disk, tag: 0, at: superblock(n), into: buffer, from: 0, len: BLOCK });
            }
            n @ (2 | 3) => (superblock(n - 2), Content::Zeros),
            4 => (geometry.checkpoint_header(0), Content::Header),
            5 => (geometry.checkpoint_header(1), Content::Zeros),
            n => (superblock(n % 2), Content::Superblock),
        };
        match content {
            Content::Zeros => buffer.fill(0),
            Content::Header => {
                let empty = Header { generation: 1, chunks: 0, first_sequence: 1, first_record: 1 };
                empty.encode(identity.disk, &mut buffer);
            }
            Content::Superblock => Superblock { identity, geometry }.encode(&mut buffer),
        }
        let parts = smallvec![driver::Part { mem: buffer.filled(), from: 0, len: BLOCK }];
        out(Op::DiskWrite { disk, tag: 0, at, parts, durable: true });
    }
}
