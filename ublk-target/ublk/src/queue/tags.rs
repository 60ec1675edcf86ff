//! The kernel's requests by tag: decoded, copied, held back while there is no room, and answered. Pure.
//!
//! ```text
//!   arrived ─▶ held ──feed──▶ executor ──▶ finished ─▶ answer
//!                 ▲   no memory, no place
//!                 └─── stays first in line
//! ```

use crate::Executor;
use conductor_model::{Bytes, SECTOR};
use driver::{Errno, Time};
use std::collections::VecDeque;
use std::ops::{Deref, DerefMut};
use ublk_cmd::*;
use volume_client::{BlockDone, BlockOp, BlockRequest, Completion};

/// Of linux/ublk_cmd.h: the lower byte of `op_flags` is the operation.
mod ublk_cmd {
    pub(super) const OP_MASK: u32 = 0xff;
    pub(super) const READ: u32 = 0;
    pub(super) const WRITE: u32 = 1;
    pub(super) const FLUSH: u32 = 2;
    pub(super) const DISCARD: u32 = 3;
    pub(super) const WRITE_ZEROES: u32 = 5;
    pub(super) const FUA: u32 = 1 << 13;
}

/// What the kernel says of a request: `struct ublksrv_io_desc`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Descriptor {
    pub(crate) op_flags: u32,
    pub(crate) sectors: u32,
    pub(crate) start: u64,
}

/// What a queue did so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// READs.
    pub reads: u64,
    /// WRITEs.
    pub writes: u64,
    /// Of those, with FUA.
    pub fua: u64,
    /// FLUSHes.
    pub flushes: u64,
    /// DISCARDs.
    pub discards: u64,
    /// WRITE_ZEROES.
    pub zeroes: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Requests of kinds that we never said we could do.
    pub unknown: u64,
    /// Requests answered with an error.
    pub errors: u64,
    /// Turns that ended with requests for which there was no memory or no place.
    pub held_back: u64,
    /// Completions of tags that nobody waits for.
    pub stray: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Read,
    Write,
    Flush,
    Discard,
    Zeroes,
}

/// A request that the executor has not taken.
enum Held {
    /// As it came.
    New(Asked),
    /// Copied into memory already, and refused once.
    Made(BlockRequest),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Asked {
    tag: u16,
    kind: Kind,
    offset: u64,
    len: usize,
    fua: bool,
}

/// All tags of a queue.
pub(crate) struct Tags {
    /// By tag: what the executor has.
    with_executor: Vec<Option<(Kind, usize)>>,
    held: VecDeque<Held>,
    /// Every request gets this.
    refusing: Option<Errno>,
    pub(crate) counters: Counters,
}

/// An answer to the kernel: bytes, or a negative error number.
pub(crate) type Answer = (u16, i32);

impl Tags {
    pub(crate) fn new(depth: u16) -> Self {
        let with_executor = vec![None; usize::from(depth)];
        let held = VecDeque::with_capacity(usize::from(depth));
        Self { with_executor, held, refusing: None, counters: Counters::default() }
    }

    /// A request came. Answered at once if it cannot be executed.
    pub(crate) fn arrived(&mut self, tag: u16, descriptor: Descriptor, buffer_len: usize) -> Option<Answer> {
        let asked = self.refusing.map_or_else(|| self.decode(tag, descriptor, buffer_len), Err);
        match asked {
            Ok(asked) => {
                self.held.push_back(Held::New(asked));
                None
            }
            Err(errno) => {
                self.counters.errors += 1;
                Some((tag, -errno.0))
            }
        }
    }

    /// The operation first: a FLUSH says nothing useful of sectors.
    fn decode(&mut self, tag: u16, from: Descriptor, buffer_len: usize) -> Result<Asked, Errno> {
        const INVALID: Errno = Errno(libc::EINVAL);
        let op = from.op_flags & OP_MASK;
        if op == FLUSH {
            self.counters.flushes += 1;
            return Ok(Asked { tag, kind: Kind::Flush, offset: 0, len: 0, fua: false });
        }
        let bytes = u64::from(from.sectors) * SECTOR;
        let (kind, count) = match op {
            READ => (Kind::Read, &mut self.counters.reads),
            WRITE => (Kind::Write, &mut self.counters.writes),
            DISCARD => (Kind::Discard, &mut self.counters.discards),
            WRITE_ZEROES => (Kind::Zeroes, &mut self.counters.zeroes),
            _ => {
                self.counters.unknown += 1;
                return Err(Errno(libc::EOPNOTSUPP));
            }
        };
        *count += 1;
        match kind {
            Kind::Read => self.counters.read_bytes += bytes,
            Kind::Write => {
                self.counters.written_bytes += bytes;
                self.counters.fua += u64::from(from.op_flags & FUA != 0);
            }
            _ => {}
        }
        let offset = from.start.checked_mul(SECTOR).ok_or(INVALID)?;
        let len = usize::try_from(bytes).map_err(|_| INVALID)?;
        if matches!(kind, Kind::Read | Kind::Write) && len > buffer_len {
            return Err(INVALID);
        }
        Ok(Asked { tag, kind, offset, len, fua: from.op_flags & FUA != 0 })
    }

    /// Hands over what there is room for, in order.
    pub(crate) fn feed<E: Executor, B: Deref<Target = [u8]>>(&mut self, now: Time, executor: &mut E, buffers: &[B]) {
        while let Some(first) = self.held.pop_front() {
            let request = match first {
                Held::Made(request) => request,
                Held::New(asked) => match make(asked, executor, buffers) {
                    Some(request) => request,
                    None => {
                        self.held.push_front(first);
                        break;
                    }
                },
            };
            let (tag, kind, len) = (request.tag, kind_of(&request.op), length(&request));
            if let Err(back) = executor.submit(now, request) {
                self.held.push_front(Held::Made(back));
                break;
            }
            if let Some(slot) = usize::try_from(tag).ok().and_then(|tag| self.with_executor.get_mut(tag)) {
                *slot = Some((kind, len));
            }
        }
        self.counters.held_back += u64::from(!self.held.is_empty());
    }

    /// A request is over. `None` if nobody waits for it.
    pub(crate) fn finished<B>(&mut self, completion: Completion, buffers: &mut [B]) -> Option<Answer>
    where
        B: DerefMut<Target = [u8]>,
    {
        let tag = u16::try_from(completion.tag).ok();
        let slot = tag.and_then(|tag| self.with_executor.get_mut(usize::from(tag)));
        let (Some(tag), Some((kind, len))) = (tag, slot.and_then(Option::take)) else {
            self.counters.stray += 1;
            return None;
        };
        let result = match (completion.result, kind) {
            (Ok(BlockDone::Read(parts)), Kind::Read) => {
                let buffer = &mut buffers[usize::from(tag)][..len];
                let mut at = 0;
                for part in &parts {
                    let bytes = part.bytes();
                    let Some(space) = buffer.get_mut(at..at + bytes.len()) else { break };
                    space.copy_from_slice(bytes);
                    at += bytes.len();
                }
                if at == len { Ok(len) } else { Err(Errno::IO) }
            }
            // A read without bytes would show the kernel another request's.
            (Ok(_), Kind::Read) => Err(Errno::IO),
            (Ok(_), Kind::Write) => Ok(len),
            // The kernel wants no count of what moves no data.
            (Ok(_), Kind::Flush | Kind::Discard | Kind::Zeroes) => Ok(0),
            (Err(error), _) => Err(error.errno()),
        };
        self.counters.errors += u64::from(result.is_err());
        Some((tag, result.map_or_else(|errno| -errno.0, |len| i32::try_from(len).unwrap_or(i32::MAX))))
    }

    /// From now on every request fails with this; gives the answers to those that are held.
    pub(crate) fn refuse(&mut self, errno: Errno) -> Vec<Answer> {
        self.refusing = Some(errno);
        let tags = self.held.drain(..).filter_map(|held| match held {
            Held::New(asked) => Some(asked.tag),
            Held::Made(request) => u16::try_from(request.tag).ok(),
        });
        let answers: Vec<Answer> = tags.map(|tag| (tag, -errno.0)).collect();
        self.counters.errors += answers.len() as u64;
        answers
    }

    /// Forgets what is held: the kernel asks again after a recovery.
    pub(crate) fn drop_held(&mut self) {
        self.held.clear();
    }

    /// True if requests wait for memory or a place.
    pub(crate) fn holds_back(&self) -> bool {
        !self.held.is_empty()
    }
}

/// The request, with the data of a write copied and checksummed in one pass; `None` if there is no memory for it.
fn make<E: Executor, B: Deref<Target = [u8]>>(asked: Asked, executor: &E, buffers: &[B]) -> Option<BlockRequest> {
    let op = match asked.kind {
        Kind::Read => BlockOp::Read,
        Kind::Flush => BlockOp::Flush,
        Kind::Discard => BlockOp::Discard,
        Kind::Zeroes => BlockOp::WriteZeroes,
        Kind::Write => {
            let mut memory = executor.memory(asked.len)?;
            let mut crcs = wire::Copying::default();
            wire::copy_pieces(&mut memory, &buffers[usize::from(asked.tag)][..asked.len], &mut crcs);
            BlockOp::Write { data: memory.filled(), crcs: Some(crcs.finish()) }
        }
    };
    let (offset, len) = (Bytes(asked.offset), Bytes(asked.len as u64));
    Some(BlockRequest { tag: u64::from(asked.tag), op, offset, len, fua: asked.fua })
}

fn kind_of(op: &BlockOp) -> Kind {
    match op {
        // The kernel asks for no extents.
        BlockOp::Read | BlockOp::Extents => Kind::Read,
        BlockOp::Write { .. } => Kind::Write,
        BlockOp::WriteZeroes => Kind::Zeroes,
        BlockOp::Discard => Kind::Discard,
        BlockOp::Flush => Kind::Flush,
    }
}

/// Of one request's length, which came from 32 bits of sectors.
fn length(request: &BlockRequest) -> usize {
    usize::try_from(request.len.0).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests;
