//! What a process that outlives the command which started it must not inherit.

/// Has no process that is started from here on get a file that was open already: a lock file, another device, the end of a pipe that somebody
/// waits for. Before Linux 5.11 they get them still.
pub(crate) fn keep_files() {
    const FIRST: libc::c_uint = 3;
    // SAFETY: this call takes three integers. It closes nothing here: it only says what exec closes.
    let _too_old = unsafe { libc::syscall(libc::SYS_close_range, FIRST, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC) };
}
