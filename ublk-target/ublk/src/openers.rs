//! Who has a device open. Up to Linux 6.x the kernel does not say: it is looked for as fuser does. Later ones say so when they are asked to stop
//! it, but for a device that is just being opened, or whose partition table is being read, the question waits.
//!
//! Whoever opens a device in the wrong moment waits for its requests, and cannot be killed. So another program does it first, for a
//! while: what this process has open, and locked, is not held by it.

use crate::attached::path_of;
use crate::daemon::Mount;
use crate::kernel::{flush_within, open_within};
use crate::limits::IN_USE_ASK;
use nix::fcntl::OFlag;
use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

/// While it is kept nobody can mount the device, or make it part of another one.
pub(crate) struct Claim(#[allow(dead_code, reason = "it is kept")] Option<File>);

/// Claims a block device that is not mounted, not part of another device, and not open in a process that is seen from here, nor a
/// partition of it; and writes out what the kernel has of it. `None`: it is in use.
pub(crate) fn claim(id: u32) -> Option<Claim> {
    let path = path_of(id);
    let others_have_it = || is_open(&numbers(&directory(id)), Path::new("/proc"), std::process::id());
    if !can_be_opened(&path) || others_have_it() {
        return None;
    }
    match OpenOptions::new().read(true).custom_flags(OFlag::O_EXCL.bits()).open(&path) {
        // Who closes it just now has no file any more, and writes still.
        Ok(claim) => (flush_within(&path, IN_USE_ASK) && !others_have_it()).then_some(Claim(Some(claim))),
        Err(error) if is_gone(&error) => Some(Claim(None)),
        Err(_) => None,
    }
}

/// Can it be opened, or found out at once that it cannot?
pub(crate) fn can_be_opened(path: &Path) -> bool {
    open_within(path, IN_USE_ASK)
}

/// Is it mounted, part of another device, or swapped to? That is seen without opening it.
pub(crate) fn is_seen_in_use(id: u32) -> bool {
    let (disk, proc) = (directory(id), Path::new("/proc"));
    let devices = numbers(&disk);
    has_holders(&disk) || is_mounted(&devices, proc) || is_swapped_to(&devices, proc)
}

fn is_gone(error: &std::io::Error) -> bool {
    [libc::ENOENT, libc::ENXIO, libc::ENODEV].iter().any(|gone| error.raw_os_error() == Some(*gone))
}

fn directory(id: u32) -> std::path::PathBuf {
    Path::new("/sys/block").join(format!("ublkb{id}"))
}

/// Is a disk, or a partition of it, part of another device?
fn has_holders(disk: &Path) -> bool {
    let parts = fs::read_dir(disk).into_iter().flatten().flatten().map(|entry| entry.path());
    parts
        .chain([disk.to_path_buf()])
        .any(|dir| fs::read_dir(dir.join("holders")).is_ok_and(|mut all| all.next().is_some()))
}

/// Is one of these mounted, in whatever mount namespace?
fn is_mounted(devices: &BTreeSet<(u64, u64)>, processes: &Path) -> bool {
    let all = fs::read_dir(processes).into_iter().flatten().flatten();
    let tables = all.filter_map(|process| fs::read_to_string(process.path().join("mountinfo")).ok());
    tables.collect::<BTreeSet<_>>().iter().flat_map(|table| table.lines()).any(|line| {
        let Some(mount) = Mount::of(line) else { return false };
        // Some filesystems, as btrfs, have a number of their own.
        number_of(&mount.number).is_some_and(|number| devices.contains(&number)) || is_one_of(devices, &mount.source)
    })
}

fn is_swapped_to(devices: &BTreeSet<(u64, u64)>, processes: &Path) -> bool {
    let table = fs::read_to_string(processes.join("swaps")).unwrap_or_default();
    table
        .lines()
        .skip(1)
        .filter_map(|line| line.split_whitespace().next())
        .any(|path| is_one_of(devices, Path::new(path)))
}

/// Nothing outside of `/dev` is looked at: a file of a network that is gone would be waited for.
fn is_one_of(devices: &BTreeSet<(u64, u64)>, path: &Path) -> bool {
    let meta = path.starts_with("/dev").then(|| fs::metadata(path).ok()).flatten();
    meta.is_some_and(|meta| meta.file_type().is_block_device() && devices.contains(&number(&meta)))
}

/// `MAJOR:MINOR`.
fn number_of(text: &str) -> Option<(u64, u64)> {
    let (major, minor) = text.trim().split_once(':')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

/// The device numbers, `MAJOR:MINOR`, of a disk and its partitions, by their directory in `/sys/block`.
fn numbers(disk: &Path) -> BTreeSet<(u64, u64)> {
    let parts = fs::read_dir(disk).into_iter().flatten().flatten().map(|entry| entry.path());
    let texts = parts.chain([disk.to_path_buf()]).filter_map(|dir| fs::read_to_string(dir.join("dev")).ok());
    texts.filter_map(|text| number_of(&text)).collect()
}

/// Has any process but that one of these block devices open?
fn is_open(devices: &BTreeSet<(u64, u64)>, processes: &Path, but: u32) -> bool {
    let all = fs::read_dir(processes).into_iter().flatten().flatten();
    // Not by their other names, `self` and the like.
    let pid = |process: &fs::DirEntry| process.file_name().to_str()?.parse::<u32>().ok();
    let all = all.filter(|process| pid(process).is_some_and(|pid| pid != but));
    let files = all.filter_map(|process| fs::read_dir(process.path().join("fd")).ok()).flatten().flatten();
    // The link says at once what is no device; what it leads to may be out of sight, and is open all the same.
    files.map(|file| file.path()).any(|file| {
        let is_device = fs::read_link(&file).is_ok_and(|target| target.starts_with("/dev"));
        let meta = is_device.then(|| fs::metadata(&file).ok()).flatten();
        meta.is_some_and(|meta| meta.file_type().is_block_device() && devices.contains(&number(&meta)))
    })
}

fn number(meta: &fs::Metadata) -> (u64, u64) {
    (u64::from(libc::major(meta.rdev())), u64::from(libc::minor(meta.rdev())))
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
    fn what_is_mounted_or_swapped_to_or_part_of_another_device_is_seen_without_opening_it() {
        let dir = std::env::temp_dir().join(format!("trine-seen-{}", std::process::id()));
        let devices = BTreeSet::from([(259, 3)]);
        for part in ["7", "8", "ublkb0/holders", "ublkb0/ublkb0p1/holders"] {
            fs::create_dir_all(dir.join(part)).unwrap();
        }
        let table = |process: &str, line: &str| fs::write(dir.join(process).join("mountinfo"), line).unwrap();
        table("7", "22 1 254:0 / / rw shared:1 - ext4 /dev/vda rw\nrubbish\n");
        table("8", "22 1 254:0 / / rw - ext4 /dev/vda rw\n40 22 259:4 / /mnt rw - xfs /dev/ublkb1 rw\n");
        assert!(!is_mounted(&devices, &dir) && !has_holders(&dir.join("ublkb0")) && !is_swapped_to(&devices, &dir));
        // In another namespace than ours.
        table("8", "22 1 254:0 / / rw - ext4 /dev/vda rw\n40 22 259:3 / /mnt rw - xfs /dev/ublkb0 rw\n");
        assert!(is_mounted(&devices, &dir));
        fs::create_dir(dir.join("ublkb0/ublkb0p1/holders/dm-0")).unwrap();
        assert!(has_holders(&dir.join("ublkb0")));
        fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn what_is_not_there_is_nobodys() {
        assert!(claim(u32::MAX).is_some_and(|claim| claim.0.is_none()) && !is_seen_in_use(u32::MAX));
        assert!(can_be_opened(Path::new("/dev/null")));
    }
}
