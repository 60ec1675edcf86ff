//! What a disk does without the ring.
//!
//! ```text
//!   mapped file               writes are stores; on DAX nothing is left to do, elsewhere the ring syncs what was stored
//!   file on tmpfs or ramfs    reads and writes are copies, there is nothing to sync
//! ```
//!
//! tmpfs cannot tell io_uring that a request will not wait, so that the kernel would hand each one to a worker thread: two switches between
//! threads, for a copy that takes less than one of them. Holes are punched on the ring: that may take long.

use crate::disk::{BLOCK, Disk, Mapped};
use crate::error;
use crate::flight::{Flight, MAX_PIECES};
use driver::{Errno, Op};
use memory::Part;
use nix::errno::Errno as Code;
use nix::sys::uio::pwritev;
use smallvec::SmallVec;
use std::io::IoSlice;
use std::os::unix::fs::FileExt;

impl Disk {
    /// Does the operation, unless the ring has to do it, or to end it; gives what came of it.
    pub(crate) fn at_once(&mut self, flight: &mut Flight) -> Option<Result<u32, Errno>> {
        flight.head = self.head;
        match self.info.mapped {
            Some(mapped) => self.mapped(flight, mapped),
            None if self.info.in_memory => self.copied(&mut flight.op),
            None => None,
        }
    }

    fn mapped(&mut self, flight: &mut Flight, mapped: Mapped) -> Option<Result<u32, Errno>> {
        let durable_at_once = mapped == Mapped::Persistent || self.info.in_memory;
        match &flight.op {
            Op::DiskWrite { at, parts, durable, .. } => {
                let len = length(parts);
                if !(at | len as u64).is_multiple_of(BLOCK) {
                    return Some(Err(Errno(libc::EINVAL)));
                }
                let stored = self.store(*at, parts)?;
                if stored.is_ok() && *durable && !durable_at_once {
                    flight.stored = true;
                    return None;
                }
                Some(stored.map(|()| count(len)))
            }
            // All that was stored is there; broken memory says so once more.
            Op::DiskSync { .. } if durable_at_once => Some(self.store(0, &[])?.map(|()| 0)),
            // A journal's blocks are used again and again.
            Op::DiskPunch { .. } => Some(Ok(0)),
            _ => None,
        }
    }

    /// Stores into the mapping.
    fn store(&mut self, at: u64, parts: &[Part]) -> Option<Result<(), Errno>> {
        let at = at.saturating_add(self.head);
        let stored = self.map.as_mut()?.write(at, parts.iter().map(Part::bytes));
        Some(stored.map(|_| ()).map_err(|error| Errno(error as i32)))
    }

    /// What the kernel copies while we wait.
    fn copied(&self, op: &mut Op) -> Option<Result<u32, Errno>> {
        match op {
            Op::DiskWrite { at, parts, .. } => {
                let len = length(parts);
                (*at | len as u64).is_multiple_of(BLOCK).then(|| self.write(*at, parts).map(|()| count(len)))
            }
            Op::DiskRead { at, into, from, len, .. } => {
                let place = (*at | *len as u64).is_multiple_of(BLOCK).then(|| &mut into[*from..*from + *len])?;
                let read = self.file.read_exact_at(place, self.head + *at);
                Some(read.map(|()| count(place.len())).map_err(|error| match error.kind() {
                    std::io::ErrorKind::UnexpectedEof => Errno::IO,
                    _ => error::errno(&error),
                }))
            }
            Op::DiskSync { .. } => Some(Ok(0)),
            _ => None,
        }
    }

    fn write(&self, at: u64, parts: &[Part]) -> Result<(), Errno> {
        let mut at = self.head + at;
        for parts in parts.chunks(MAX_PIECES) {
            let mut pieces: SmallVec<[IoSlice<'_>; 16]> = parts.iter().map(|part| IoSlice::new(part.bytes())).collect();
            let mut pieces = &mut pieces[..];
            while !pieces.is_empty() {
                let offset = i64::try_from(at).map_err(|_| Errno(libc::EINVAL))?;
                match pwritev(&self.file, pieces, offset) {
                    // The end of the disk.
                    Ok(0) => return Err(Errno::IO),
                    Ok(step) => {
                        IoSlice::advance_slices(&mut pieces, step);
                        at += step as u64;
                    }
                    Err(Code::EINTR) => {}
                    Err(error) => return Err(Errno(error as i32)),
                }
            }
        }
        Ok(())
    }
}

fn length(parts: &[Part]) -> usize {
    parts.iter().map(|part| part.len).sum()
}

fn count(len: usize) -> u32 {
    u32::try_from(len).unwrap_or(u32::MAX)
}
