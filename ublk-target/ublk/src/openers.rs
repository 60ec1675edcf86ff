//! Who has a device open. Up to Linux 6.x the kernel does not say: it is looked for as fuser does. Later ones say so when they are asked to stop
//! it, but for a device that is just being opened, or whose partition table is being read, the question waits.
//!
//! Whoever opens a device in the wrong moment waits for its requests, and cannot be killed. So another program does it first, for a
//! while: what this process has open, and locked, is not held by it.

use crate::attached::path_of;
use crate::daemon::Mount;
use crate::kernel::{flush_within, open_within};
use crate::limits::{IN_USE_ASK, IN_USE_LOOK};
use nix::fcntl::OFlag;
use std::collections::BTreeSet;
use std::ffi::CString;
use std::fs::{self, File, OpenOptions};
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process;
use std::sync::mpsc::channel;
use std::thread;

/// While it is kept nobody can mount the device, or make it part of another one.
pub(crate) struct Claim(#[allow(dead_code, reason = "it is kept")] Option<File>);

/// Claims a block device that is not mounted, not part of another device, a loop device's too, and not open or mapped in a process that is
/// seen from here, nor a partition of it; and writes out what the kernel has of it. `None`: it is in use.
pub(crate) fn claim(id: u32) -> Option<Claim> {
    let (path, processes) = (path_of(id), Path::new("/proc"));
    let others_have_it = || {
        let devices = numbers(&directory(id));
        backs_a_loop(&devices, Path::new("/sys/block"))
            || is_open(&devices, processes, process::id())
            || is_seen_mapped(devices, processes)
    };
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

/// Is it mounted, part of another device, a loop device's too, or swapped to? That is seen without opening it.
pub(crate) fn is_seen_in_use(id: u32) -> bool {
    let (disk, proc) = (directory(id), Path::new("/proc"));
    let devices = numbers(&disk);
    has_holders(&disk)
        || backs_a_loop(&devices, Path::new("/sys/block"))
        || is_mounted(&devices, proc)
        || is_swapped_to(&devices, proc)
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

/// Is one of these the file of a loop device, which claims nothing?
fn backs_a_loop(devices: &BTreeSet<(u64, u64)>, disks: &Path) -> bool {
    let all = fs::read_dir(disks).into_iter().flatten().flatten();
    let files = all.filter_map(|disk| fs::read_to_string(disk.path().join("loop/backing_file")).ok());
    files.into_iter().any(|file| is_one_of(devices, Path::new(file.trim_end_matches('\n'))))
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
    path.starts_with("/dev") && block_device(path).is_some_and(|number| devices.contains(&number))
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

/// The processes that are seen from here, but that one. Not by their other names, `self` and the like.
fn others(processes: &Path, but: u32) -> impl Iterator<Item = PathBuf> {
    let pid = |process: &fs::DirEntry| process.file_name().to_str()?.parse::<u32>().ok();
    let all = fs::read_dir(processes).into_iter().flatten().flatten();
    all.filter(move |process| pid(process).is_some_and(|pid| pid != but)).map(|process| process.path())
}

/// Has any process but that one of these block devices open?
fn is_open(devices: &BTreeSet<(u64, u64)>, processes: &Path, but: u32) -> bool {
    let files = others(processes, but).filter_map(|process| fs::read_dir(process.join("fd")).ok()).flatten().flatten();
    // The link says at once what is no file, as a socket; what it leads to may be out of sight, and is open all the same.
    files.map(|file| file.path()).any(|file| {
        let has_name = fs::read_link(&file).is_ok_and(|target| target.is_absolute());
        has_name && block_device(&file).is_some_and(|number| devices.contains(&number))
    })
}

/// Has any other process one of these mapped, as far as it is seen in time? What is mapped may be closed. A process's mappings cannot be read
/// while it changes them, which may take as long as what it waits for.
fn is_seen_mapped(devices: BTreeSet<(u64, u64)>, processes: &Path) -> bool {
    let (say, said) = channel();
    let processes = processes.to_owned();
    let looks = move || {
        let _late = say.send(is_mapped(&devices, &processes, process::id()));
    };
    if let Err(error) = thread::Builder::new().name("mappings".to_owned()).spawn(looks) {
        tracing::warn!(%error, "nobody looks who has the device mapped");
        return false;
    }
    said.recv_timeout(IN_USE_LOOK).unwrap_or_else(|_| {
        tracing::warn!("who has the device mapped cannot be seen: a process's mappings cannot be read");
        false
    })
}

fn is_mapped(devices: &BTreeSet<(u64, u64)>, processes: &Path, but: u32) -> bool {
    // Most are of libraries, which all have.
    let mut seen = BTreeSet::new();
    others(processes, but).any(|process| {
        let table = fs::read(process.join("maps")).unwrap_or_default();
        let table = String::from_utf8_lossy(&table);
        table.lines().filter_map(mapping).any(|(link, file)| {
            let is_new = seen.insert(file);
            let number = is_new.then(|| block_device(&process.join("map_files").join(link))).flatten();
            number.is_some_and(|number| devices.contains(&number))
        })
    })
}

/// What a line of a process's `maps` calls its mapping in `map_files`, and which file is mapped, for comparison; `None`: no file is.
fn mapping(line: &str) -> Option<(String, String)> {
    // START-END PERMISSIONS OFFSET MAJOR:MINOR INODE PATH
    let mut fields = line.split_ascii_whitespace();
    let (start, end) = fields.next()?.split_once('-')?;
    let file = [fields.nth(2)?, fields.next()?].join(" ");
    fields.next()?.starts_with('/').then_some(())?;
    // Which has no leading zeros.
    let [start, end] = [start, end].map(|at| at.trim_start_matches('0'));
    Some((format!("{}-{end}", if start.is_empty() { "0" } else { start }), file))
}

/// The number of a block device, by what is known of the file here: whoever has it, a file of a network that is gone is not waited for.
fn block_device(path: &Path) -> Option<(u64, u64)> {
    let path = CString::new(path.as_os_str().as_bytes()).ok()?;
    let mut into = MaybeUninit::<libc::statx>::zeroed();
    let (flags, mask) = (libc::AT_STATX_DONT_SYNC, libc::STATX_TYPE);
    // SAFETY: the path ends with a zero, and the kernel writes no more than the structure.
    let result = unsafe { libc::statx(libc::AT_FDCWD, path.as_ptr(), flags, mask, into.as_mut_ptr()) };
    // SAFETY: it consists of numbers, for which zeros are good, too.
    let seen = unsafe { into.assume_init() };
    let is_block_device = result == 0 && u32::from(seen.stx_mode) & libc::S_IFMT == libc::S_IFBLK;
    is_block_device.then(|| (seen.stx_rdev_major.into(), seen.stx_rdev_minor.into()))
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
        assert!(!backs_a_loop(&devices, &dir));
        // In another namespace than ours.
        table("8", "22 1 254:0 / / rw - ext4 /dev/vda rw\n40 22 259:3 / /mnt rw - xfs /dev/ublkb0 rw\n");
        assert!(is_mounted(&devices, &dir));
        fs::create_dir(dir.join("ublkb0/ublkb0p1/holders/dm-0")).unwrap();
        assert!(has_holders(&dir.join("ublkb0")));
        fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn a_mapping_is_known_by_its_file_and_its_place() {
        let line = "00400000-7f0000452000 rw-s 00001000 00:06 123                        /dev/my disk (deleted)";
        assert_eq!(mapping(line), Some(("400000-7f0000452000".to_owned(), "00:06 123".to_owned())));
        for none in ["7f00-7f10 rw-p 00000000 00:00 0", "7f00-7f10 rw-p 00000000 00:00 0   [stack]", "rubbish", ""] {
            assert_eq!(mapping(none), None, "{none:?}");
        }
        assert_eq!(block_device(Path::new("/dev/null")), None, "it is no block device");
    }

    #[test]
    fn what_is_not_there_is_nobodys() {
        assert!(claim(u32::MAX).is_some_and(|claim| claim.0.is_none()) && !is_seen_in_use(u32::MAX));
        assert!(can_be_opened(Path::new("/dev/null")));
    }
}
