//! What a process that serves block devices owes the machine it serves them to.
//!
//! It must not wait for memory that only writes to its own device can free ([`io_flusher`]), it must not have to be read back from its own
//! device ([`stay_in_memory`]), and it must not hold on to filesystems, least of all to those on its own device ([`own_mount_namespace`]).
//! All are to be called first thing in `main`, while there is one thread: threads inherit them.

use driver::Errno;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};
use nix::sys::mman::{MlockAllFlags, mlockall};
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// How names of ublk's block devices begin.
const DEVICE: &str = "ublkb";

/// Devices of devices of devices: deeper than anybody stacks them.
const MAX_LAYERS: u32 = 16;

/// What a daemon looks into whatever it serves: devices, how names are resolved, libraries and programs; with all that is mounted below.
const TREES: [&str; 5] = ["/dev", "/etc", "/proc", "/sys", "/usr"];
/// And without that.
const MOUNTS: [&str; 3] = ["/", "/run", "/var"];

/// Of linux/prctl.h; the libc crate has it for no target of ours.
const PR_SET_IO_FLUSHER: libc::c_int = 57;

/// Tells the kernel that this thread and those it will start write out other people's dirty pages: allocations never wait for
/// such writes, and are not throttled by them. Needs CAP_SYS_RESOURCE (root).
pub fn io_flusher() -> Result<(), Errno> {
    // SAFETY: this prctl takes one integer, and touches no memory of ours.
    let result = unsafe { libc::prctl(PR_SET_IO_FLUSHER, 1, 0, 0, 0) };
    if result == 0 { Ok(()) } else { Err(Errno(nix::errno::Errno::last_raw())) }
}

/// Keeps this process in memory, what it has and what it will have, as soon as it is used: a page of it in a swap that lies on its own
/// device could be had by nobody but itself. And it is not ended when memory runs out: all who use its device would wait. Needs
/// CAP_IPC_LOCK and CAP_SYS_RESOURCE (root).
pub fn stay_in_memory() -> Result<(), Errno> {
    let all = MlockAllFlags::MCL_CURRENT | MlockAllFlags::MCL_FUTURE;
    let on_fault = MlockAllFlags::from_bits_retain(libc::MCL_ONFAULT);
    let locked = mlockall(all | on_fault).map_err(|error| Errno(error as i32));
    let spared = fs::write("/proc/self/oom_score_adj", "-1000");
    locked.and(spared.map_err(|error| Errno(error.raw_os_error().unwrap_or(libc::EIO))))
}

/// Gives this process mounts of its own, without filesystems on ublk devices: an unmount outside is then a real one, and
/// nothing here can open a file that waits for us. Unmounts outside still arrive here; of mounts of which they would not, as on a system
/// without shared mounts, only those of the system stay, and what `needed` lies on. Needs CAP_SYS_ADMIN (root).
pub fn own_mount_namespace(needed: &[&Path]) -> Result<(), Errno> {
    let errno = |error: nix::errno::Errno| Errno(error as i32);
    unshare(CloneFlags::CLONE_NEWNS).map_err(errno)?;
    let none: Option<&str> = None;
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_SLAVE, none).map_err(errno)?;
    let_go_of(|table| on_ublk(table, Path::new("/sys")));
    // Where a link leads to is what is mounted.
    let needed: Vec<PathBuf> =
        needed.iter().map(|path| fs::canonicalize(path).unwrap_or_else(|_| path.to_path_buf())).collect();
    let_go_of(|table| unheard_of(table, &needed));
    Ok(())
}

/// Unmounts, here alone, what is chosen of all mounts.
fn let_go_of(choose: impl FnOnce(&str) -> Vec<PathBuf>) {
    let Ok(table) = fs::read_to_string("/proc/self/mountinfo") else { return };
    // Later mounts may lie on earlier ones.
    for target in choose(&table).into_iter().rev() {
        if let Err(error) = umount2(&target, MntFlags::MNT_DETACH) {
            tracing::warn!(target = %target.display(), %error, "a filesystem stays mounted in this daemon");
        }
    }
}

/// A line of proc_pid_mountinfo(5).
pub(crate) struct Mount {
    /// Of the device, `MAJOR:MINOR`; 0 and something where the file system has none of its own.
    pub(crate) number: String,
    target: PathBuf,
    pub(crate) source: PathBuf,
    /// What is mounted and unmounted there elsewhere is so here.
    follows: bool,
}

impl Mount {
    pub(crate) fn of(line: &str) -> Option<Self> {
        let (left, right) = line.split_once(" - ")?;
        let mut fields = left.split(' ').skip(2);
        let number = fields.next()?.to_owned();
        let target = unescaped(fields.nth(1)?)?;
        let follows = fields.any(|field| field.starts_with("master:"));
        Some(Self { number, target, source: unescaped(right.split(' ').nth(1)?)?, follows })
    }

    /// What `sys` has of its block device.
    fn device(&self, sys: &Path) -> Option<PathBuf> {
        let number = if self.number.starts_with("0:") {
            // As btrfs does, which may have several. Nothing else is looked at: it may lie on what waits for us.
            let source = Some(&self.source).filter(|source| source.starts_with("/dev"))?;
            let meta = fs::metadata(source).ok().filter(|meta| meta.file_type().is_block_device())?;
            format!("{}:{}", libc::major(meta.rdev()), libc::minor(meta.rdev()))
        } else {
            self.number.clone()
        };
        fs::canonicalize(sys.join("dev/block").join(number)).ok()
    }
}

/// Where filesystems on ublk devices are mounted, whatever is in between: partitions, device mapper, RAID, files in other such filesystems.
fn on_ublk(table: &str, sys: &Path) -> Vec<PathBuf> {
    let mounts: Vec<Mount> = table.lines().filter_map(Mount::of).collect();
    let lies = |mount: &&Mount| mount.device(sys).is_some_and(|device| lies_on_ublk(&device, &mounts, sys, MAX_LAYERS));
    mounts.iter().filter(lies).map(|mount| mount.target.clone()).collect()
}

/// Where something is mounted of whose unmounting elsewhere nothing is heard, and on which nothing lies that is needed.
fn unheard_of(table: &str, needed: &[PathBuf]) -> Vec<PathBuf> {
    let is_needed = |target: &Path| {
        let mut holds = MOUNTS.iter().map(Path::new).chain(needed.iter().map(PathBuf::as_path));
        holds.any(|path| path.starts_with(target)) || TREES.iter().any(|tree| target.starts_with(tree))
    };
    let mounts = table.lines().filter_map(Mount::of);
    mounts.filter(|mount| !mount.follows && !is_needed(&mount.target)).map(|mount| mount.target).collect()
}

/// Whether the device of that directory in `sys` is one of ublk, or made of one; `layers` may be below it.
fn lies_on_ublk(device: &Path, mounts: &[Mount], sys: &Path, layers: u32) -> bool {
    let Some(layers) = layers.checked_sub(1) else { return false };
    let name = device.file_name().unwrap_or_default();
    if name.as_encoded_bytes().starts_with(DEVICE.as_bytes()) {
        return true;
    }
    if device.join("partition").exists() {
        return device.parent().is_some_and(|disk| lies_on_ublk(disk, mounts, sys, layers));
    }
    let parts = fs::read_dir(device.join("slaves")).into_iter().flatten().flatten();
    let mut parts = parts.filter_map(|part| fs::canonicalize(part.path()).ok());
    // The last of what is mounted there hides the others.
    let holder = |file: PathBuf| {
        let around = mounts.iter().filter(|mount| file.starts_with(&mount.target));
        around.max_by_key(|mount| mount.target.as_os_str().len())?.device(sys)
    };
    let file = fs::read_to_string(device.join("loop/backing_file")).ok();
    let below = file.and_then(|file| holder(PathBuf::from(file.trim_end_matches('\n'))));
    parts.any(|part| lies_on_ublk(&part, mounts, sys, layers))
        || below.is_some_and(|disk| lies_on_ublk(&disk, mounts, sys, layers))
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
    use std::os::unix::fs::symlink;

    #[test]
    fn what_follows_no_unmount_elsewhere_is_let_go_unless_it_is_needed() {
        let table = "22 1 254:0 / / rw - ext4 /dev/vda rw\n\
                     23 22 0:5 / /dev rw - devtmpfs dev rw\n\
                     24 23 0:6 / /dev/shm rw - tmpfs tmpfs rw\n\
                     25 22 0:7 / /run rw - tmpfs tmpfs rw\n\
                     26 25 8:1 / /run/media/stick rw - vfat /dev/sda1 rw\n\
                     27 22 8:2 / /srv rw - ext4 /dev/sda2 rw\n\
                     28 27 8:3 / /srv/trine rw - ext4 /dev/sda3 rw\n\
                     29 27 8:4 / /srv/other rw - ext4 /dev/sda4 rw\n\
                     30 22 8:5 / /mnt/my\\040disk rw - ext4 /dev/sda5 rw\n\
                     31 22 8:6 / /home rw shared:7 master:3 - ext4 /dev/sda6 rw\n";
        let found = unheard_of(table, &[PathBuf::from("/srv/trine/attached")]);
        assert_eq!(found, ["/run/media/stick", "/srv/other", "/mnt/my disk"].map(PathBuf::from));
    }

    #[test]
    fn only_filesystems_on_ublk_devices_are_found_whatever_is_in_between() {
        let sys = std::env::temp_dir().join(format!("trine-mounts-{}", std::process::id()));
        let device = |number: &str, path: &str, parts: &[&str]| {
            let dir = sys.join("devices").join(path);
            fs::create_dir_all(dir.join("slaves")).unwrap();
            fs::create_dir_all(sys.join("dev/block")).unwrap();
            symlink(&dir, sys.join("dev/block").join(number)).unwrap();
            for part in parts {
                let name = Path::new(part).file_name().unwrap();
                symlink(sys.join("devices").join(part), dir.join("slaves").join(name)).unwrap();
            }
            dir
        };
        device("254:0", "vda", &[]);
        device("259:1", "ublkb3", &[]);
        fs::write(device("259:2", "ublkb3/ublkb3p1", &[]).join("partition"), "1").unwrap();
        device("253:0", "dm-0", &["ublkb3/ublkb3p1"]);
        device("9:7", "md7", &["vda", "dm-0"]);
        fs::write(device("259:9", "md7/md7p1", &[]).join("partition"), "1").unwrap();
        let turns = |number: &str, name: &str, file: &str| {
            let dir = device(number, name, &[]).join("loop");
            fs::create_dir_all(&dir).unwrap();
            fs::write(dir.join("backing_file"), format!("{file}\n")).unwrap();
        };
        turns("7:0", "loop0", "/mnt/my disk/image");
        turns("7:1", "loop1", "/image");
        let table = "22 1 254:0 / / rw shared:1 - ext4 /dev/vda rw\n\
                     40 22 259:1 / /mnt/my\\040disk rw - xfs /dev/ublkb3 rw,attr2\n\
                     41 22 0:40 / /tmp rw - tmpfs tmpfs rw\nrubbish\n\
                     42 22 253:0 / /secret rw - ext4 /dev/mapper/secret rw\n\
                     43 22 259:9 / /raid rw - ext4 /dev/md7p1 rw\n\
                     44 22 7:0 / /inner rw - ext4 /dev/loop0 rw\n\
                     45 22 7:1 / /other rw - ext4 /dev/loop1 rw\n\
                     46 22 8:99 / /gone rw - ext4 /dev/sdz rw\n";
        let found = on_ublk(table, &sys);
        fs::remove_dir_all(&sys).unwrap();
        assert_eq!(found, ["/mnt/my disk", "/secret", "/raid", "/inner"].map(PathBuf::from));
    }
}
