//! Operations in flight: a slab of slots, each with the memory that the kernel reads while it works.
//!
//! A slot's scratch is boxed and reused: its address is stable while an operation is in flight, and nothing is allocated once
//! the slab has grown to what a reactor needs. The operation in the slot owns the payload, so both live until the last
//! completion is back. The generation counts the slot's uses.

use crate::token::{Kind, Token};
use driver::{Op, Part, StreamId};
use io_uring::types::{Fd, Timespec};
use io_uring::{opcode, squeue};
use socket2::{SockAddr, Socket};
use std::mem::zeroed;
use std::os::fd::{AsRawFd, RawFd};

/// Pieces that the kernel takes at a time (UIO_MAXIOV); what is beyond goes with the next round of the same operation.
pub(crate) const MAX_PIECES: usize = 1024;

/// What a peer's end looks like to poll: half closed, closed, or broken. The kernel adds the last two by itself.
const HANGUP: u32 = (libc::POLLRDHUP | libc::POLLHUP | libc::POLLERR) as u32;

/// An operation in the kernel.
pub(crate) struct Flight {
    pub(crate) op: Op,
    /// The stream that it counts on.
    pub(crate) stream: Option<StreamId>,
    /// The socket that connects; nobody's stream yet.
    pub(crate) socket: Option<Socket>,
    /// Bytes before the disk's first one, in what it is a part of.
    pub(crate) head: u64,
    /// Bytes moved so far.
    pub(crate) moved: usize,
    /// A write whose bytes are where they belong already: all that is left is to sync them.
    pub(crate) stored: bool,
    /// A cancellation is on its way.
    pub(crate) cancelled: bool,
}

impl Flight {
    pub(crate) fn new(op: Op) -> Self {
        Self { op, stream: None, socket: None, head: 0, moved: 0, stored: false, cancelled: false }
    }
}

/// What the kernel reads while the operation is in flight, besides the payload.
pub(crate) struct Scratch {
    head: libc::msghdr,
    pieces: Vec<libc::iovec>,
    /// Pieces before this one are done.
    first: usize,
    pub(crate) address: Option<SockAddr>,
    pub(crate) timeout: Timespec,
}

impl Scratch {
    fn new() -> Self {
        // SAFETY: msghdr is a C structure of integers and pointers, for which all zeros is the empty value.
        let head = unsafe { zeroed() };
        Self { head, pieces: Vec::new(), first: 0, address: None, timeout: Timespec::new() }
    }

    /// Lists the parts; gives the number of bytes.
    fn list(&mut self, parts: &[Part]) -> usize {
        self.first = 0;
        self.pieces.clear();
        self.pieces.extend(
            parts
                .iter()
                .map(Part::bytes)
                .filter(|bytes| !bytes.is_empty())
                .map(|bytes| libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() }),
        );
        self.pieces.iter().map(|piece| piece.iov_len).sum()
    }

    /// Takes `moved` bytes off the front.
    fn advance(&mut self, mut moved: usize) {
        while let Some(piece) = self.pieces.get_mut(self.first).filter(|_| moved > 0) {
            let step = moved.min(piece.iov_len);
            piece.iov_base = piece.iov_base.cast::<u8>().wrapping_add(step).cast();
            piece.iov_len -= step;
            moved -= step;
            if piece.iov_len == 0 {
                self.first += 1;
            }
        }
    }

    fn left(&mut self) -> &mut [libc::iovec] {
        let end = self.pieces.len().min(self.first + MAX_PIECES);
        &mut self.pieces[self.first..end]
    }
}

/// One place in the slab.
pub(crate) struct Slot {
    pub(crate) generation: u64,
    pub(crate) flight: Option<Flight>,
    pub(crate) scratch: Box<Scratch>,
}

impl Slot {
    /// Lists what is to be moved, once per operation; gives the number of bytes.
    pub(crate) fn load(&mut self) -> usize {
        match self.flight.as_ref().map(|flight| &flight.op) {
            Some(Op::Send { parts, .. } | Op::DiskWrite { parts, .. }) => self.scratch.list(parts),
            Some(Op::DiskRead { len, .. }) => *len,
            _ => 0,
        }
    }

    /// Takes bytes that were moved off what is to be moved.
    pub(crate) fn advance(&mut self, by: usize) {
        self.scratch.advance(by);
        if let Some(flight) = &mut self.flight {
            flight.moved += by;
        }
    }

    /// The entry for what is left of the operation, on `fd`.
    pub(crate) fn entry(&mut self, index: u32, fd: RawFd) -> Option<squeue::Entry> {
        let Self { generation, flight, scratch } = self;
        let flight = flight.as_mut()?;
        let (head, moved) = (flight.head, flight.moved);
        let fd = Fd(fd);
        let entry = match &mut flight.op {
            Op::Accept { .. } => {
                let (nobody, nothing) = (std::ptr::null_mut(), std::ptr::null_mut());
                opcode::Accept::new(fd, nobody, nothing).flags(libc::SOCK_CLOEXEC).build()
            }
            Op::Connect { .. } => {
                let address = scratch.address.as_ref()?;
                let fd = Fd(flight.socket.as_ref()?.as_raw_fd());
                opcode::Connect::new(fd, address.as_ptr().cast(), address.len()).build()
            }
            Op::Recv { into, from, .. } => {
                let space = &mut into[*from..];
                opcode::Recv::new(fd, space.as_mut_ptr(), clamp(space.len())).build()
            }
            Op::Send { .. } => {
                let pieces = scratch.left();
                let (start, count) = (pieces.as_mut_ptr(), pieces.len());
                scratch.head.msg_iov = start;
                scratch.head.msg_iovlen = count;
                let flags = (libc::MSG_NOSIGNAL | libc::MSG_WAITALL).cast_unsigned();
                opcode::SendMsg::new(fd, &raw const scratch.head).flags(flags).build()
            }
            Op::Watch { .. } => opcode::PollAdd::new(fd, HANGUP).build(),
            Op::Shutdown { .. } => opcode::Shutdown::new(fd, libc::SHUT_RDWR).build(),
            // Never with a descriptor.
            Op::Secure { .. } => return None,
            Op::Close { .. } => opcode::Close::new(fd).build(),
            Op::DiskRead { at, into, from, len, .. } => {
                let space = &mut into[*from..*from + *len][moved..];
                let read = opcode::Read::new(fd, space.as_mut_ptr(), clamp(space.len()));
                read.offset(head + *at + moved as u64).build()
            }
            Op::DiskWrite { .. } if flight.stored => datasync(fd),
            Op::DiskWrite { at, durable, .. } => {
                let pieces = scratch.left();
                let flags = if *durable { libc::RWF_DSYNC } else { 0 };
                let write = opcode::Writev::new(fd, pieces.as_ptr(), clamp(pieces.len()));
                write.offset(head + *at + moved as u64).rw_flags(flags).build()
            }
            Op::DiskPunch { at, len, .. } => {
                let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
                opcode::Fallocate::new(fd, *len).offset(head + *at).mode(mode).build()
            }
            Op::DiskSync { .. } => datasync(fd),
        };
        Some(entry.user_data(Token::new(Kind::Op, *generation, index).bits()))
    }
}

fn datasync(fd: Fd) -> squeue::Entry {
    opcode::Fsync::new(fd).flags(io_uring::types::FsyncFlags::DATASYNC).build()
}

/// A length as the kernel takes it; what is beyond goes with the next round.
fn clamp(len: usize) -> u32 {
    u32::try_from(len).unwrap_or(u32::MAX)
}

/// All slots.
#[derive(Default)]
pub(crate) struct Slab {
    slots: Vec<Slot>,
    free: Vec<u32>,
}

impl Slab {
    /// Puts an operation into a slot; gives the slot's number.
    pub(crate) fn insert(&mut self, flight: Flight) -> u32 {
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot { generation: 0, flight: None, scratch: Box::new(Scratch::new()) });
            clamp(self.slots.len() - 1)
        });
        let slot = &mut self.slots[index as usize];
        slot.generation += 1;
        slot.flight = Some(flight);
        index
    }

    /// The slot with this number.
    pub(crate) fn slot(&mut self, index: u32) -> &mut Slot {
        &mut self.slots[index as usize]
    }

    /// The slot that a completion belongs to, if its operation is still there.
    pub(crate) fn find(&mut self, token: Token) -> Option<&mut Slot> {
        let slot = self.slots.get_mut(token.slot as usize)?;
        let current = Token::new(token.kind, slot.generation, token.slot);
        (slot.flight.is_some() && current == token).then_some(slot)
    }

    /// Empties a slot.
    pub(crate) fn take(&mut self, index: u32) -> Option<Flight> {
        let slot = &mut self.slots[index as usize];
        let flight = slot.flight.take()?;
        slot.scratch.address = None;
        self.free.push(index);
        Some(flight)
    }

    /// Operations in flight.
    pub(crate) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Those in flight, with their tokens.
    pub(crate) fn in_flight(&mut self) -> impl Iterator<Item = (Token, &mut Flight)> {
        (0..).zip(&mut self.slots).filter_map(|(index, Slot { generation, flight, .. })| {
            flight.as_mut().map(|flight| (Token::new(Kind::Op, *generation, index), flight))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use memory::{Arena, Class};

    #[test]
    fn a_short_transfer_goes_on_at_its_very_next_byte() {
        let arena = Arena::small(1 << 20);
        let mut bytes = arena.take(300, Class::Client).unwrap();
        (0..=255).zip(&mut *bytes).for_each(|(value, byte)| *byte = value);
        let mem = bytes.filled();
        let part = |from, len| Part { mem: mem.share(), from, len };
        let parts = [part(0, 10), part(50, 0), part(100, 20), part(20, 5)];
        for step in 1..35 {
            let mut scratch = Scratch::new();
            let all = scratch.list(&parts);
            assert_eq!(all, 35);
            let mut seen = Vec::new();
            while seen.len() < all {
                let piece = scratch.left()[0];
                // SAFETY: the pieces lie in `mem`, which is held.
                let now = unsafe { std::slice::from_raw_parts(piece.iov_base.cast::<u8>(), piece.iov_len) };
                // As the kernel does: up to `step` bytes, also across pieces.
                let mut moved: Vec<u8> = now.to_vec();
                if let Some(next) = scratch.left().get(1).filter(|_| moved.len() < step) {
                    // SAFETY: as above.
                    moved.extend(unsafe { std::slice::from_raw_parts(next.iov_base.cast::<u8>(), next.iov_len) });
                }
                moved.truncate(step);
                scratch.advance(moved.len());
                seen.extend(moved);
            }
            assert_eq!(seen, (0..10).chain(100..120).chain(20..25).collect::<Vec<u8>>());
            assert!(scratch.left().is_empty());
        }
    }
}
