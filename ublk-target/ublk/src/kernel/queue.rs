//! One queue of a device, on the ring of the calling thread.
//!
//! ```text
//!   make_ring ─▶ KernelQueue::open (fetches pushed) ─▶ QueueRing (ours and libublk's on one ring)
//!                     enter ─▶ drain ─┬─ bit 63 set:   reactor's
//!                                     └─ bit 63 clear: Event(tag) ─▶ descriptor … commit ─▶ next enter
//! ```

use super::gate::{Buffer, Gate};
use crate::limits::RING;
use crate::queue::Descriptor;
use crate::{QueueFailure, QueueId};
use driver::Errno;
use io_uring::{IoUring, squeue};
use libublk::io::{BufDesc, BufDescList, UblkIOCtx, UblkQueue, ublk_init_task_ring, with_task_io_ring_mut};
use libublk::uring_async::ublk_reap_io_events_with_update_queue;
use libublk::{UblkError, UblkIORes};
use reactor::{Cqe, Ring, is_ours};
use std::cell::RefCell;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

/// Something happened to a tag.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Event {
    /// A request is there.
    Request(u16),
    /// The kernel takes the tag back: the device stops, or we are given up.
    Abort,
    /// A fetch failed.
    Failed(Errno),
}

/// What must outlive a queue's thread.
///
/// The ring, because its end takes back what the kernel has asked. On Linux 6.12 (6.12.117; others were not looked at) that happens once,
/// and leaves those requests alone that are just on their way to the thread: they come back by themselves if it is gone. If it still lives
/// it takes them, nobody ever answers, and the device hangs with all who ask for it. So the ring ends after its thread.
pub(crate) struct Lasting {
    /// The memory that the kernel copies into and out of.
    pub(crate) buffers: Vec<Buffer>,
    ring: Option<OwnedFd>,
}

impl Lasting {
    /// For a queue with so many requests, of so many bytes each.
    pub(crate) fn new(depth: u16, io_buf_bytes: u32) -> Self {
        Self { buffers: (0..depth).map(|_| Buffer::new(io_buf_bytes as usize)).collect(), ring: None }
    }

    /// Whether there was memory for all buffers: libublk does not say so.
    pub(crate) fn has_buffers(&self) -> bool {
        self.buffers.iter().all(|buffer| !buffer.as_ptr().is_null())
    }
}

/// Sets up the ring of the calling thread, for a queue of `depth` and our own operations. Before [`KernelQueue::open`].
pub(crate) fn make_ring(depth: u16, lasting: &mut Lasting) -> Result<(), QueueFailure> {
    // All fetches are pushed before the first enter, and all commits of a turn beside our own operations.
    let submissions = RING.submissions + u32::from(depth);
    let completions = RING.completions() + 2 * u32::from(depth);
    let made = ublk_init_task_ring(|cell| {
        let ring = IoUring::<squeue::Entry>::builder()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .setup_submit_all()
            .setup_cqsize(completions)
            .build(submissions)?;
        // SAFETY: the ring is open as long as it is borrowed here.
        lasting.ring = Some(unsafe { BorrowedFd::borrow_raw(ring.as_raw_fd()) }.try_clone_to_owned()?);
        cell.set(RefCell::new(ring)).map_err(|_| UblkError::OtherError(-libc::EEXIST))
    });
    made.map_err(|error| QueueFailure::Ring(std::io::Error::from_raw_os_error(super::gate::errno(&error).0)))
}

/// A queue that has fetched.
pub(crate) struct KernelQueue<'d> {
    queue: UblkQueue<'d>,
}

impl<'d> KernelQueue<'d> {
    /// Maps the queue and pushes a fetch for each tag; the next enter hands them over.
    pub(crate) fn open(gate: &'d Gate, id: QueueId, buffers: &Vec<Buffer>) -> Result<Self, QueueFailure> {
        let refused = |error: UblkError| QueueFailure::Open(super::gate::errno(&error).to_string());
        let queue = UblkQueue::new(id.0, &gate.dev).map_err(refused)?;
        let queue = queue.submit_fetch_commands_unified(BufDescList::Slices(Some(buffers))).map_err(refused)?;
        Ok(Self { queue })
    }

    /// The thread's ring, as the reactor wants it.
    pub(crate) fn ring(&self) -> QueueRing<'_, 'd> {
        QueueRing { queue: &self.queue, events: Vec::new() }
    }

    /// What is asked for.
    pub(crate) fn descriptor(&self, tag: u16) -> Descriptor {
        let raw = self.queue.get_iod(tag);
        Descriptor { op_flags: raw.op_flags, sectors: raw.nr_sectors, start: raw.start_sector }
    }

    /// Answers a request and fetches the next one; the next enter hands it over. Nothing is sent once the kernel has taken a
    /// tag back: what is unanswered then is asked again after a recovery, or has failed.
    pub(crate) fn commit(&self, tag: u16, buffer: &Buffer, result: i32) {
        let answer = Ok(UblkIORes::Result(result));
        let pushed = self.queue.complete_io_cmd_unified(tag, BufDesc::Slice(buffer.as_slice()), answer);
        debug_assert!(pushed.is_ok(), "slices suit every device that we make: {pushed:?}");
    }

    /// True after the first abort.
    pub(crate) fn is_stopping(&self) -> bool {
        self.queue.is_stopping()
    }
}

impl Drop for KernelQueue<'_> {
    /// Lets go of the ring, which ends with [`Lasting`]. libublk's own drop, which comes next, takes the files out of the ring of this
    /// thread: up to Linux 6.12 at least that waits for every fetch, for ever.
    fn drop(&mut self) {
        if let Ok(empty) = IoUring::new(2) {
            with_task_io_ring_mut(|ring| *ring = empty);
        }
    }
}

/// The ring of the calling thread, shared by libublk's queue and a reactor.
pub(crate) struct QueueRing<'q, 'd> {
    queue: &'q UblkQueue<'d>,
    events: Vec<Event>,
}

impl QueueRing<'_, '_> {
    /// What came out of the ring for the queue, in order.
    pub(crate) fn take_events(&mut self, into: &mut Vec<Event>) {
        into.append(&mut self.events);
    }
}

// SAFETY: libublk keeps one ring per thread, which `make_ring` set; it borrows it for one push at a time and takes out only
// through the reaping function used here, which hands each completion over once. `UblkQueue` is not `Send`, nor is this.
unsafe impl Ring for QueueRing<'_, '_> {
    fn with(&mut self, f: &mut dyn FnMut(&mut IoUring)) {
        with_task_io_ring_mut(|ring| f(ring));
    }

    fn drain(&mut self, into: &mut Vec<Cqe>) {
        let events = &mut self.events;
        // The ring is borrowed here: copy, route later.
        let reaped = ublk_reap_io_events_with_update_queue(self.queue, false, None, |entry| {
            if is_ours(entry.user_data()) {
                into.push(Cqe::from(entry));
                return;
            }
            events.push(match entry.result() {
                0 => match u16::try_from(UblkIOCtx::user_data_to_tag(entry.user_data())) {
                    Ok(tag) => Event::Request(tag),
                    Err(_) => Event::Failed(Errno::IO),
                },
                result if result == libublk::sys::UBLK_IO_RES_ABORT => Event::Abort,
                result => Event::Failed(Errno(-result)),
            });
        });
        debug_assert!(reaped.is_ok(), "reaping cannot fail: {reaped:?}");
    }
}
