//! The only place that calls librdmacm and libibverbs, with an owner for everything they give.
//!
//! ```text
//!   Channel ◄── Id ◄── Pair (queue pair, its completion queue, its windows) ──► Device (domain, registered arena, channel)
//! ```
//!
//! An owner holds those that must outlive it, so whatever order values are dropped in, the library sees the one it asks for. The
//! libraries are loaded when the process starts, if they are there; without them the first call here says so.

mod cm;
mod device;
mod pair;

pub(crate) use cm::{Channel, Id, Note};
pub(crate) use device::Device;
pub(crate) use pair::Pair;

use driver::Errno;

/// The errno of the call that just failed.
pub(crate) fn last() -> Errno {
    Errno(std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO))
}

/// What the library's `int` says: 0, or -1 and errno, or an error number.
fn check(result: i32) -> Result<(), Errno> {
    match result {
        0 => Ok(()),
        positive if positive > 0 => Err(Errno(positive)),
        _ => Err(last()),
    }
}

/// A descriptor of the library's that must never make us wait.
fn set_nonblocking(fd: i32) -> Result<(), Errno> {
    // SAFETY: fcntl with these commands touches no memory.
    let set = unsafe {
        let flags = libc::fcntl(fd, libc::F_GETFL);
        flags >= 0 && libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK) == 0
    };
    if set { Ok(()) } else { Err(last()) }
}
