//! SIGBUS in a mapped file: a page that is poisoned, or that the file system can no longer provide. Whoever touches it gets a signal instead
//! of an error, whose default is the end of the process without a word.
//!
//! ```text
//!   store ──fault──▶ handler ─ Spare: a page of nothing is put there, the range is marked broken ──▶ the store goes on, its caller asks
//!                            └ Tell:  a sentence to stderr, then what would have happened without us
//! ```
//!
//! Ranges are in a fixed table of atomics, since a signal handler may neither lock nor allocate. Addresses that are not in it go to
//! whoever handled the signal before us.

use crate::PAGE;
use nix::errno::Errno;
use nix::libc;
use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Ranges that can be watched at a time: a journal per disk of a node and the files of its arenas, twice over.
const MAX_RANGES: usize = 1024;
/// A place in the table that is being filled or emptied.
const RESERVED: usize = 1;

/// What a fault in a range leads to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum OnFault {
    /// Go on with a page that is thrown away; [`Guard::is_broken`] tells. For memory that is only written, and whose writer asks.
    Spare,
    /// Say why, and end: for memory that is read as well, where going on would make up data.
    Tell,
}

struct Range {
    /// First byte; 0 if the place is free.
    start: AtomicUsize,
    end: AtomicUsize,
    spare: AtomicBool,
    broken: AtomicBool,
}

static RANGES: [Range; MAX_RANGES] = [const {
    Range {
        start: AtomicUsize::new(0),
        end: AtomicUsize::new(0),
        spare: AtomicBool::new(false),
        broken: AtomicBool::new(false),
    }
}; MAX_RANGES];

/// Who handled SIGBUS before us; set once, when the handler is in place.
static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();

/// Watches a range of addresses for as long as it lives.
#[derive(Debug)]
pub(crate) struct Guard(usize);

impl Guard {
    /// Watches `len` bytes from `start` on. ENOMEM if the table is full.
    pub(crate) fn new(start: usize, len: usize, on_fault: OnFault) -> Result<Self, Errno> {
        install()?;
        let taken =
            |range: &Range| range.start.compare_exchange(0, RESERVED, Ordering::Acquire, Ordering::Relaxed).is_ok();
        let place = RANGES.iter().position(taken).ok_or(Errno::ENOMEM)?;
        let range = &RANGES[place];
        range.end.store(start + len, Ordering::Relaxed);
        range.spare.store(on_fault == OnFault::Spare, Ordering::Relaxed);
        range.broken.store(false, Ordering::Relaxed);
        range.start.store(start, Ordering::Release);
        Ok(Self(place))
    }

    /// True if a page of the range was ever missing: what was written to it since is lost.
    pub(crate) fn is_broken(&self) -> bool {
        // The handler runs on the thread whose store faulted, before that store ends.
        RANGES[self.0].broken.load(Ordering::Relaxed)
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        RANGES[self.0].start.store(0, Ordering::Release);
    }
}

fn install() -> Result<(), Errno> {
    static FAILED: AtomicBool = AtomicBool::new(false);
    BEFORE.get_or_init(|| {
        // SAFETY: sigaction is a C structure of integers, a mask and a pointer as an integer: all zeros is a valid value.
        let mut before: libc::sigaction = unsafe { std::mem::zeroed() };
        // SAFETY: asks only; `before` is ours to be written.
        let asked = unsafe { libc::sigaction(libc::SIGBUS, ptr::null(), &raw mut before) };
        FAILED.store(asked != 0, Ordering::Relaxed);
        before
    });
    static SET: OnceLock<()> = OnceLock::new();
    SET.get_or_init(|| {
        // SAFETY: as above.
        let mut ours: libc::sigaction = unsafe { std::mem::zeroed() };
        ours.sa_sigaction = handle as extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) as usize;
        ours.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        // SAFETY: the handler touches nothing but atomics of this module, and calls only what is async-signal-safe.
        let set = unsafe { libc::sigaction(libc::SIGBUS, &raw const ours, ptr::null_mut()) };
        FAILED.fetch_or(set != 0, Ordering::Relaxed);
    });
    if FAILED.load(Ordering::Relaxed) { Err(Errno::EINVAL) } else { Ok(()) }
}

extern "C" fn handle(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel hands a handler with SA_SIGINFO a valid siginfo; for SIGBUS it has an address.
    let at = unsafe { (*info).si_addr() } as usize;
    let hit = RANGES.iter().find(|range| {
        let start = range.start.load(Ordering::Acquire);
        start > RESERVED && (start..range.end.load(Ordering::Relaxed)).contains(&at)
    });
    if let Some(range) = hit {
        if range.spare.load(Ordering::Relaxed) && put_a_page(at) {
            range.broken.store(true, Ordering::Relaxed);
            return;
        }
        const WHY: &[u8] =
            b"memory: a page of a mapped file cannot be had any more (poisoned memory, or the file was cut): ending\n";
        // SAFETY: write is async-signal-safe, and WHY is a constant.
        let _ = unsafe { libc::write(libc::STDERR_FILENO, WHY.as_ptr().cast(), WHY.len()) };
    }
    pass_on(signal, info, context);
}

/// Puts an empty page where `at` is; false if the kernel has none.
fn put_a_page(at: usize) -> bool {
    // SAFETY: errno is this thread's own; it is put back, since the interrupted code may be about to read it.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: as above.
    let saved = unsafe { *errno };
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
    let page = (at & !(PAGE - 1)) as *mut c_void;
    // SAFETY: the page lies in a watched mapping, which is ours and which nobody has a reference into; mmap is one system call.
    let got = unsafe { libc::mmap(page, PAGE, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
    // SAFETY: as above.
    unsafe { *errno = saved };
    got != libc::MAP_FAILED
}

/// What would have happened without us.
fn pass_on(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    let Some(before) = BEFORE.get() else { return };
    match before.sa_sigaction {
        libc::SIG_DFL | libc::SIG_IGN => {
            // SAFETY: puts the default back; the fault comes again when we return, and ends the process.
            let _ = unsafe { libc::signal(libc::SIGBUS, libc::SIG_DFL) };
        }
        theirs if before.sa_flags & libc::SA_SIGINFO != 0 => {
            // SAFETY: the kernel gave us this address as that of a handler which takes these arguments.
            let theirs: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) =
                unsafe { std::mem::transmute(theirs) };
            theirs(signal, info, context);
        }
        theirs => {
            // SAFETY: as above, one that takes the signal's number.
            let theirs: extern "C" fn(c_int) = unsafe { std::mem::transmute(theirs) };
            theirs(signal);
        }
    }
}
