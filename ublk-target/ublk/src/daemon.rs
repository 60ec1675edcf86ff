//! What a process that serves block devices owes the machine it serves them to.
//!
//! It must not wait for memory that only writes to its own device can free ([`io_flusher`]), and it must not hold on to
//! filesystems that lie on its own device ([`own_mount_namespace`]). Both are to be called first thing in `main`, while there
//! is one thread: threads inherit them.

use driver::Errno;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};
use std::path::PathBuf;

/// Block devices of ublk, as mountinfo names them.
const SOURCE: &str = "/dev/ublkb";

/// Of linux/prctl.h; the libc crate has it for no target of ours.
const PR_SET_IO_FLUSHER: libc::c_int = 57;

/// Tells the kernel that this thread and those it will start write out other people's dirty pages: allocations never wait for
/// such writes, and are not throttled by them. Needs CAP_SYS_RESOURCE (root).
pub fn io_flusher() -> Result<(), Errno> {
    // SAFETY: this prctl takes one integer, and touches no memory of ours.
    let result = unsafe { libc::prctl(PR_SET_IO_FLUSHER, 1, 0, 0, 0) };
    if result == 0 { Ok(()) } else { Err(Errno(nix::errno::Errno::last_raw())) }
}

/// Gives this process mounts of its own, without filesystems on ublk devices: an unmount outside is then a real one, and
/// nothing here can open a file that waits for us. Unmounts outside still arrive here. Needs CAP_SYS_ADMIN (root).
pub fn own_mount_namespace() -> Result<(), Errno> {
    let errno = |error: nix::errno::Errno| Errno(error as i32);
    unshare(CloneFlags::CLONE_NEWNS).map_err(errno)?;
    let none: Option<&str> = None;
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_SLAVE, none).map_err(errno)?;
    let Ok(table) = std::fs::read_to_string("/proc/self/mountinfo") else { return Ok(()) };
    // Later mounts may lie on earlier ones.
    for target in on_ublk(&table).into_iter().rev() {
        if let Err(error) = umount2(&target, MntFlags::MNT_DETACH) {
            tracing::warn!(target = %target.display(), %error, "a filesystem on a ublk device stays mounted in this daemon");
        }
    }
    Ok(())
}

/// Where filesystems on ublk devices are mounted: see proc_pid_mountinfo(5).
fn on_ublk(table: &str) -> Vec<PathBuf> {
    let target = |line: &str| {
        let (left, right) = line.split_once(" - ")?;
        let source = right.split(' ').nth(1)?;
        source.starts_with(SOURCE).then(|| unescaped(left.split(' ').nth(4)?))?
    };
    table.lines().filter_map(target).collect()
}

/// Spaces, tabs, newlines and backslashes are written as three octal digits.
fn unescaped(text: &str) -> Option<PathBuf> {
    let mut out = String::new();
    let mut parts = text.split('\\');
    out.push_str(parts.next()?);
    for part in parts {
        let digits = part.get(..3)?;
        out.push(char::from(u8::from_str_radix(digits, 8).ok()?));
        out.push_str(&part[3..]);
    }
    Some(PathBuf::from(out))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_filesystems_on_ublk_devices_are_found() {
        let table = "22 1 0:21 / / rw shared:1 - ext4 /dev/vda rw\n\
                     40 22 259:1 / /mnt/my\\040disk rw - xfs /dev/ublkb3 rw,attr2\n\
                     41 22 0:40 / /tmp rw - tmpfs tmpfs rw\nrubbish\n";
        assert_eq!(on_ublk(table), [PathBuf::from("/mnt/my disk")]);
    }
}
