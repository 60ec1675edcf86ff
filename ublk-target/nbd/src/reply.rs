//! How a command is answered: with one simple reply, in chunks, or with data that must go out in order.

use crate::command::Cookie;
use crate::fault::Fault;
use crate::limits::MAX_EXTENTS;
use crate::output::{Data, Output};
use crate::wire::{BASE_ALLOCATION_ID, SIMPLE_REPLY, STRUCTURED_REPLY, chunk, state};
use conductor_model::Bytes;
use smallvec::SmallVec;

/// How a request ended.
#[derive(Debug)]
pub enum Outcome {
    /// Done (everything but reads and block status).
    Done,
    /// The data of a read, in order.
    Data(Data),
    /// The answer to a block status: extents from its first byte on, as many as are known.
    Extents(SmallVec<[Extent; 4]>),
    /// It failed.
    Failed(Fault),
}

impl Outcome {
    /// Itself, if data is as long as what was asked for.
    pub(crate) fn fitting(self, len: u64) -> Self {
        match self {
            Self::Data(data) if data.iter().map(|part| part.len as u64).sum::<u64>() != len => {
                debug_assert!(false, "a read is finished with all its data");
                Self::Failed(Fault::Io)
            }
            outcome => outcome,
        }
    }

    /// What it means to the client where it is not the wanted one.
    pub(crate) fn fault(&self) -> Fault {
        match self {
            Self::Failed(fault) => *fault,
            _ => {
                debug_assert!(false, "an outcome of another kind of request");
                Fault::Io
            }
        }
    }
}

/// A range of bytes and what is known of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Extent {
    /// How long.
    pub len: Bytes,
    /// Nothing is allocated for it.
    pub hole: bool,
    /// It reads as zeros.
    pub zero: bool,
}

/// Data of one request.
struct Piece {
    offset: u64,
    len: u64,
    data: Data,
    /// What counts until it is sent.
    charged: u64,
}

/// Data of a read that is answered in one go, in order.
#[derive(Default)]
pub(crate) struct Gathered {
    /// What came and was not queued, sorted by offset.
    waiting: SmallVec<[Piece; 2]>,
    /// First byte that was not queued.
    next: u64,
    end: u64,
    total: u64,
    /// It waits until it is complete, so that an error still finds its way into it.
    held_back: bool,
    header_queued: bool,
}

impl Gathered {
    /// `most`: longest one that is held back.
    pub(crate) fn new(offset: u64, len: u64, most: u64) -> Self {
        Self { next: offset, end: offset + len, total: len, held_back: len <= most, ..Self::default() }
    }

    pub(crate) fn insert(&mut self, offset: u64, len: u64, data: Data, charged: u64) {
        let place = self.waiting.partition_point(|other| other.offset < offset);
        self.waiting.insert(place, Piece { offset, len, data, charged });
    }

    /// True once the client was promised data that is not all here.
    pub(crate) fn is_begun(&self) -> bool {
        self.header_queued
    }

    /// Drops what waits, and says how many bytes count no more.
    pub(crate) fn forget(&mut self) -> u64 {
        self.waiting.drain(..).map(|piece| piece.charged).sum()
    }

    /// Queues what can go out.
    pub(crate) fn advance(&mut self, cookie: Cookie, structured: bool, out: &mut Output) {
        let here: u64 = self.waiting.iter().map(|piece| piece.len).sum();
        if self.held_back && here < self.total {
            return;
        }
        let ready = self.waiting.iter().scan(self.next, |next, piece| {
            let follows = piece.offset == *next;
            *next += piece.len;
            follows.then_some(())
        });
        let ready = ready.count();
        for piece in self.waiting.drain(..ready) {
            if !self.header_queued {
                self.header_queued = true;
                if structured {
                    data_chunk(out, cookie, self.next, self.total, true);
                } else {
                    simple(out, cookie, None);
                }
            }
            out.data(piece.data, piece.charged);
            self.next += piece.len;
        }
    }

    pub(crate) fn is_complete(&self) -> bool {
        self.next == self.end
    }
}

/// A simple reply; data may follow if it is a success.
pub(crate) fn simple(out: &mut Output, cookie: Cookie, fault: Option<Fault>) {
    out.small(&SIMPLE_REPLY.to_be_bytes());
    out.small(&fault.map_or(0, Fault::number).to_be_bytes());
    out.small(&cookie.0.to_be_bytes());
}

fn header(out: &mut Output, cookie: Cookie, kind: u16, done: bool, len: u64) {
    out.small(&STRUCTURED_REPLY.to_be_bytes());
    out.small(&(if done { chunk::DONE } else { 0 }).to_be_bytes());
    out.small(&kind.to_be_bytes());
    out.small(&cookie.0.to_be_bytes());
    out.small(&u32::try_from(len).unwrap_or(u32::MAX).to_be_bytes());
}

/// The head of a chunk of data.
pub(crate) fn data_chunk(out: &mut Output, cookie: Cookie, offset: u64, len: u64, done: bool) {
    header(out, cookie, chunk::OFFSET_DATA, done, 8 + len);
    out.small(&offset.to_be_bytes());
}

/// The end of a structured reply that has nothing (more) to say.
pub(crate) fn nothing(out: &mut Output, cookie: Cookie) {
    header(out, cookie, chunk::NONE, true, 0);
}

/// An error in a structured reply, of the byte at `offset` if that is known.
pub(crate) fn error_chunk(out: &mut Output, cookie: Cookie, fault: Fault, offset: Option<u64>, done: bool) {
    let message = fault.to_string();
    let (kind, tail) = if offset.is_some() { (chunk::ERROR_OFFSET, 8) } else { (chunk::ERROR, 0) };
    header(out, cookie, kind, done, 6 + message.len() as u64 + tail);
    out.small(&fault.number().to_be_bytes());
    out.small(&u16::try_from(message.len()).unwrap_or(u16::MAX).to_be_bytes());
    out.small(message.as_bytes());
    if let Some(offset) = offset {
        out.small(&offset.to_be_bytes());
    }
}

/// The answer to a block status of `len` bytes: what is alike is merged, what goes beyond the range is cut off.
/// False if there is not one extent in it.
pub(crate) fn block_status(out: &mut Output, cookie: Cookie, extents: &[Extent], len: u64, one: bool) -> bool {
    let mut merged: SmallVec<[(u64, u32); 8]> = SmallVec::new();
    let mut left = len;
    let most = if one { 1 } else { MAX_EXTENTS };
    for extent in extents {
        let now = extent.len.0.min(left);
        let flags = (if extent.hole { state::HOLE } else { 0 }) | (if extent.zero { state::ZERO } else { 0 });
        let full = merged.len() == most;
        match merged.last_mut() {
            _ if now == 0 => continue,
            Some((len, same)) if *same == flags => *len += now,
            _ if full => break,
            _ => merged.push((now, flags)),
        }
        left -= now;
    }
    if merged.is_empty() {
        return false;
    }
    header(out, cookie, chunk::BLOCK_STATUS, true, 4 + 8 * merged.len() as u64);
    out.small(&BASE_ALLOCATION_ID.to_be_bytes());
    for (len, flags) in merged {
        out.small(&u32::try_from(len).unwrap_or(u32::MAX).to_be_bytes());
        out.small(&flags.to_be_bytes());
    }
    true
}
