//! What a process that outlives the command which started it must not inherit, and what every process of ours is to have.

use nix::sys::signal::{SigHandler, Signal, signal};

/// Has no process that is started from here on get a file that was open already: a lock file, another device, the end of a pipe that somebody
/// waits for. Before Linux 5.11 they get them still.
pub(crate) fn keep_files() {
    const FIRST: libc::c_uint = 3;
    // SAFETY: this call takes three integers. It closes nothing here: it only says what exec closes.
    let _too_old = unsafe { libc::syscall(libc::SYS_close_range, FIRST, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC) };
}

/// A write beyond RLIMIT_FSIZE fails like one to a full disk, and is reported like that; by default its signal ends the process without a
/// word. Rust does as much about SIGPIPE.
pub(crate) fn hear_of_limits() {
    // SAFETY: nothing runs in a handler, and no other thread runs yet.
    let _default = unsafe { signal(Signal::SIGXFSZ, SigHandler::SigIgn) };
}
