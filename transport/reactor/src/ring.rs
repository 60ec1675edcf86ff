//! The ring that a reactor works on: its own, or libublk's of a queue thread. The only difference between a node, an NBD daemon
//! and a ublk queue.

use crate::error::errno;
use crate::{Limits, ReactorError};
use driver::{Errno, Span};
use io_uring::types::{SubmitArgs, Timespec};
use io_uring::{IoUring, Probe, cqueue, opcode};
use std::marker::PhantomData;
use std::time::Duration;

/// A completion, copied out of the queue. Only a ring makes one: each is believed, once.
#[derive(Clone, Copy, Debug)]
pub struct Cqe {
    user_data: u64,
    result: i32,
}

impl Cqe {
    /// Whose it is: see [`crate::is_ours`].
    pub fn user_data(&self) -> u64 {
        self.user_data
    }

    pub(crate) fn result(&self) -> i32 {
        self.result
    }
}

impl From<&cqueue::Entry> for Cqe {
    fn from(entry: &cqueue::Entry) -> Self {
        Self { user_data: entry.user_data(), result: entry.result() }
    }
}

/// Access to an io_uring. All calls come from the thread that made it.
///
/// # Safety
///
/// `with` lends the same ring each time, and nobody takes out or changes what was pushed into it. `drain` gives each completion
/// of ours exactly once, as the kernel wrote it: a completion is the proof that the kernel let go of memory.
pub unsafe trait Ring {
    /// Lends the ring, to push entries or to enter.
    fn with(&mut self, f: &mut dyn FnMut(&mut IoUring));

    /// Takes all completions of ours out of the queue, in order. What is not ours (bit 63 clear) is the implementor's to keep.
    fn drain(&mut self, into: &mut Vec<Cqe>);

    /// Hands the kernel what was pushed, without waiting: for a submission queue that is full.
    fn submit(&mut self) -> Result<(), Errno> {
        let mut result = Ok(());
        self.with(&mut |ring| result = harmless(ring.submit()));
        result
    }

    /// Hands the kernel what was pushed and waits for `want` completions, at most for `timeout`. One system call.
    fn enter(&mut self, want: u32, timeout: Option<Span>) -> Result<(), Errno> {
        let mut result = Ok(());
        self.with(&mut |ring| {
            let submitter = ring.submitter();
            result = harmless(match timeout {
                None => submitter.submit_and_wait(want as usize),
                // Without a timer: what is there is taken.
                Some(Span(0)) => submitter.submit_with_args(0, &SubmitArgs::new()),
                Some(span) => {
                    let timeout = timespec(span);
                    submitter.submit_with_args(want as usize, &SubmitArgs::new().timespec(&timeout))
                }
            });
        });
        result
    }

    /// True if an enter would find something. Only a ring with TASKRUN_FLAG can tell all.
    fn ready(&mut self) -> bool {
        let mut ready = false;
        self.with(&mut |ring| ready = ring.submission().taskrun() || !ring.completion().is_empty());
        ready
    }
}

pub(crate) fn timespec(span: Span) -> Timespec {
    let nanos = (span.0 % 1_000_000_000) as u32;
    Timespec::new().sec(span.0 / 1_000_000_000).nsec(nanos)
}

/// A timeout, a signal, and a kernel that wants its completions taken first are part of an ordinary turn.
pub(crate) fn harmless(entered: std::io::Result<usize>) -> Result<(), Errno> {
    match entered.map_err(|error| errno(&error)) {
        Ok(_) | Err(Errno(libc::ETIME | libc::EINTR | libc::EBUSY | libc::EAGAIN)) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Attempts to set up a ring that finds no memory. Seen once, on 6.18, with most of the memory in the page cache; why is not known, and
/// that waiting helps was not seen: it costs two seconds at most.
const SETUPS: u32 = 40;
const SETUP_PAUSE: Duration = Duration::from_millis(50);

/// A ring of the reactor's own.
pub struct OwnRing {
    ring: IoUring,
    /// SINGLE_ISSUER: it stays on the thread that made it.
    not_send: PhantomData<*const ()>,
}

impl OwnRing {
    /// Sets it up for the calling thread, with a completion queue for the sum of `limits`.
    pub fn new(limits: &Limits) -> Result<Self, ReactorError> {
        let mut tries = 1;
        loop {
            let made = IoUring::builder()
                .setup_single_issuer()
                .setup_defer_taskrun()
                .setup_coop_taskrun()
                .setup_taskrun_flag()
                .setup_submit_all()
                .setup_cqsize(limits.completions().max(limits.submissions))
                .build(limits.submissions)
                .map_err(|error| errno(&error));
            match made {
                Ok(ring) => return Ok(Self { ring, not_send: PhantomData }),
                Err(Errno(libc::ENOMEM)) if tries < SETUPS => {
                    tries += 1;
                    std::thread::sleep(SETUP_PAUSE);
                }
                Err(error) => return Err(ReactorError::NoRing(error)),
            }
        }
    }
}

// SAFETY: one ring, of which nobody else has a reference; draining takes each entry out of its completion queue.
unsafe impl Ring for OwnRing {
    fn with(&mut self, f: &mut dyn FnMut(&mut IoUring)) {
        f(&mut self.ring);
    }

    fn drain(&mut self, into: &mut Vec<Cqe>) {
        into.extend(self.ring.completion().map(|entry| Cqe::from(&entry)));
    }
}

impl std::fmt::Debug for OwnRing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("OwnRing")
    }
}

/// All operations that this package uses.
const NEEDED: [(u8, &str); 13] = [
    (opcode::Accept::CODE, "ACCEPT"),
    (opcode::Connect::CODE, "CONNECT"),
    (opcode::LinkTimeout::CODE, "LINK_TIMEOUT"),
    (opcode::Recv::CODE, "RECV"),
    (opcode::SendMsg::CODE, "SENDMSG"),
    (opcode::PollAdd::CODE, "POLL_ADD"),
    (opcode::Shutdown::CODE, "SHUTDOWN"),
    (opcode::Close::CODE, "CLOSE"),
    (opcode::Read::CODE, "READ"),
    (opcode::Writev::CODE, "WRITEV"),
    (opcode::Fallocate::CODE, "FALLOCATE"),
    (opcode::Fsync::CODE, "FSYNC"),
    (opcode::AsyncCancel::CODE, "ASYNC_CANCEL"),
];

/// Refuses a kernel that would fail us later.
pub(crate) fn probe(ring: &mut impl Ring) -> Result<(), ReactorError> {
    let mut probe = Probe::new();
    let mut result = Ok(());
    ring.with(&mut |ring| result = ring.submitter().register_probe(&mut probe));
    result.map_err(|error| ReactorError::NoRing(errno(&error)))?;
    match NEEDED.iter().find(|(code, _)| !probe.is_supported(*code)) {
        Some((_, name)) => Err(ReactorError::NoOpcode(name)),
        None => Ok(()),
    }
}
