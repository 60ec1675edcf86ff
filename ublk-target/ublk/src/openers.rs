//! Who has a device open, where the kernel does not say (before 7.0): as fuser does.

use crate::attached::path_of;
use nix::fcntl::OFlag;
use std::collections::BTreeSet;
use std::fs::{self, OpenOptions};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

/// Is the block device, or a partition of it, mounted, part of another device, or open in a process that is seen from here?
pub(crate) fn is_in_use(id: u32) -> bool {
    is_claimed(&path_of(id)) || is_open(&numbers(Path::new(&format!("/sys/block/ublkb{id}"))), Path::new("/proc"))
}

/// True if a filesystem or a driver has the device for itself, or that cannot be told.
fn is_claimed(path: &Path) -> bool {
    let exclusive = OpenOptions::new().read(true).custom_flags(OFlag::O_EXCL.bits()).open(path);
    let gone = [libc::ENOENT, libc::ENXIO, libc::ENODEV];
    exclusive.is_err_and(|error| error.raw_os_error().is_none_or(|errno| !gone.contains(&errno)))
}

/// The device numbers, `MAJOR:MINOR`, of a disk and its partitions, by their directory in `/sys/block`.
fn numbers(disk: &Path) -> BTreeSet<(u64, u64)> {
    let parts = fs::read_dir(disk).into_iter().flatten().flatten().map(|entry| entry.path());
    let texts = parts.chain([disk.to_path_buf()]).filter_map(|dir| fs::read_to_string(dir.join("dev")).ok());
    let number = |text: String| {
        let (major, minor) = text.trim().split_once(':')?;
        Some((major.parse().ok()?, minor.parse().ok()?))
    };
    texts.filter_map(number).collect()
}

/// Has any process one of these block devices open?
fn is_open(devices: &BTreeSet<(u64, u64)>, processes: &Path) -> bool {
    let all = fs::read_dir(processes).into_iter().flatten().flatten();
    let files = all.filter_map(|process| fs::read_dir(process.path().join("fd")).ok()).flatten().flatten();
    files.map(|file| file.path()).any(|file| {
        // Nothing else is looked at: a file of a network that is gone would be waited for.
        let is_device = fs::read_link(&file).is_ok_and(|target| target.starts_with("/dev"));
        let meta = is_device.then(|| fs::metadata(&file).ok()).flatten();
        meta.is_some_and(|meta| {
            let number = (u64::from(libc::major(meta.rdev())), u64::from(libc::minor(meta.rdev())));
            meta.file_type().is_block_device() && devices.contains(&number)
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_is_its_own_number_and_its_partitions() {
        let dir = std::env::temp_dir().join(format!("trine-openers-{}", std::process::id()));
        fs::create_dir_all(dir.join("ublkb0p1")).unwrap();
        fs::create_dir_all(dir.join("queue")).unwrap();
        fs::write(dir.join("dev"), "259:0\n").unwrap();
        fs::write(dir.join("ublkb0p1/dev"), "259:7\n").unwrap();
        assert_eq!(numbers(&dir), [(259, 0), (259, 7)].into());
        assert_eq!(numbers(&dir.join("none")), BTreeSet::new());
        fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn what_cannot_be_opened_counts_as_claimed_unless_it_is_gone() {
        assert!(!is_claimed(Path::new("/dev/ublkb4294967295")));
        assert!(is_claimed(Path::new("/dev/null/x")), "it is not known");
    }
}
