//! Who in the kernel uses a block device: mounts, swap, volume managers. Opening such a device exclusively fails anyway, also when it
//! is one of its partitions that is used; this says at once, and by whom.

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// A device's number as the kernel writes it: `254:1`.
type Number = String;

/// Who uses the device or a partition of it, if it is one and anybody does.
pub(crate) fn of_device(path: &Path) -> Option<String> {
    let whole = number(path)?;
    let sys = PathBuf::from("/sys/dev/block").join(&whole);
    let mut all = vec![(whole, sys.clone())];
    for entry in fs::read_dir(&sys).into_iter().flatten().flatten() {
        if entry.path().join("partition").exists()
            && let Ok(number) = fs::read_to_string(entry.path().join("dev"))
        {
            all.push((number.trim().to_owned(), entry.path()));
        }
    }
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let swaps = fs::read_to_string("/proc/swaps").unwrap_or_default();
    all.iter().find_map(|(number, sys)| {
        mounted_at(number, &mounts).or_else(|| swapped_on(number, &swaps)).or_else(|| held_by(sys))
    })
}

fn number(path: &Path) -> Option<Number> {
    let metadata = fs::metadata(path).ok().filter(|metadata| metadata.file_type().is_block_device())?;
    let device = metadata.rdev();
    Some(format!("{}:{}", nix::sys::stat::major(device), nix::sys::stat::minor(device)))
}

/// `36 35 98:0 /root /mnt options - ext4 /dev/sda1 …`. A file system over several devices has a number of its own there.
fn mounted_at(device: &str, mounts: &str) -> Option<String> {
    mounts.lines().find_map(|line| {
        let mut fields = line.split(' ');
        let (their, at) = (fields.nth(2)?, fields.nth(1)?);
        let source = line.split_once(" - ")?.1.split(' ').nth(1)?;
        let is = their == device || number(Path::new(source)).is_some_and(|source| source == device);
        is.then(|| format!("mounted at {at}"))
    })
}

fn swapped_on(device: &str, swaps: &str) -> Option<String> {
    let name = swaps.lines().skip(1).filter_map(|line| line.split_ascii_whitespace().next());
    let mut ours = name.filter(|name| number(Path::new(name)).is_some_and(|number| number == device));
    ours.next().map(|name| format!("swap space ({name})"))
}

/// Device mapper, RAID, …
fn held_by(sys: &Path) -> Option<String> {
    let holder = fs::read_dir(sys.join("holders")).ok()?.flatten().next()?;
    Some(format!("part of {}", holder.file_name().to_string_lossy()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_is_found_by_its_device() {
        let mounts =
            "24 1 0:22 / /proc rw - proc proc rw\n36 35 98:0 / /mnt/a rw,noatime shared:1 - ext4 /dev/root rw\n";
        assert_eq!(mounted_at("98:0", mounts).as_deref(), Some("mounted at /mnt/a"));
        assert_eq!(mounted_at("98:1", mounts), None);
    }

    #[test]
    fn a_file_is_nobodys_device() {
        assert_eq!(of_device(Path::new("/proc/self/exe")), None);
        assert_eq!(of_device(Path::new("/nowhere")), None);
    }
}
