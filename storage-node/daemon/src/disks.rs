//! Makes files that are to be disks: written in full, and under their name only when complete.

use crate::head::{HEAD, head, heads, is_silent};
use crate::{DiskPlan, Error, journal, users};
use conductor_model::{Blocks, Bytes, ClusterId, DiskId};
use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, OFlag, fallocate};
use node_store::journaled::identify;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// One write: large enough for any device, small enough for the stack of a page cache.
const PIECE: usize = 1 << 20;
/// So much is written before it is made durable: what is not yet takes a slow disk seconds, not minutes.
const SYNCED: u64 = 256 << 20;

/// Makes what has to be made, until it is to `stop`. A path that exists is left as it is; one that hangs is refused.
pub(crate) fn prepare(disks: &[DiskPlan], sparse: bool, stop: &dyn Fn() -> bool) -> Result<(), Error> {
    let failed = |path: &Path, bytes, source| match stop() {
        true => Error::Stopping,
        false => Error::Create { path: path.to_path_buf(), bytes, source },
    };
    all_answer(disks, stop)?;
    let mut seen = BTreeSet::new();
    for disk in disks {
        if !disk.path.exists() {
            let Some(bytes) = disk.create else { return Err(Error::Missing(disk.path.clone())) };
            journal::geometry(&disk.path, bytes, disk.journal_size)?;
            tracing::info!(path = %disk.path.display(), bytes, "making a disk file");
            create(&disk.path, bytes, sparse, stop).map_err(|source| failed(&disk.path, bytes, source))?;
        }
        if let Some(path) = disk.journal.as_ref().filter(|path| !path.exists()) {
            let Some(bytes) = disk.create else { return Err(Error::NoJournal(path.clone())) };
            let bytes = journal::geometry(&disk.path, bytes, disk.journal_size)?.journal_bytes().0 + journal::HEAD;
            tracing::info!(path = %path.display(), bytes, "making a journal's file");
            // Never sparse: it is written all the time.
            create(path, bytes, false, stop).map_err(|source| failed(path, bytes, source))?;
        }
        for path in std::iter::once(&disk.path).chain(&disk.journal) {
            if let Some(by) = users::of_device(path) {
                return Err(Error::Used { path: path.clone(), by });
            }
            let real = fs::canonicalize(path).unwrap_or_else(|_| path.clone());
            if !seen.insert(real) {
                return Err(Error::Twice(path.clone()));
            }
        }
    }
    Ok(())
}

/// Refuses a disk, or a journal, that hangs: what is done with it from here on waits for it.
fn all_answer(disks: &[DiskPlan], stop: &dyn Fn() -> bool) -> Result<(), Error> {
    let paths = || disks.iter().flat_map(|disk| std::iter::once(&disk.path).chain(&disk.journal));
    for (path, head) in paths().zip(heads(paths().map(PathBuf::as_path), stop)) {
        match head {
            Err(source) if is_silent(&source) && stop() => return Err(Error::Stopping),
            Err(source) if is_silent(&source) => return Err(Error::Unreadable { path: path.clone(), source }),
            // What else is wrong with it is said by whoever opens it.
            _ => {}
        }
    }
    Ok(())
}

fn create(path: &Path, bytes: u64, sparse: bool, stop: &dyn Fn() -> bool) -> io::Result<()> {
    let parent = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?.to_string_lossy();
    let prefix = format!(".{name}.unfinished.");
    remove_deserted(parent, &prefix)?;
    // Its own name, and a link that does not replace: of two that start at once one makes the disk, and nobody writes to the other's.
    let unfinished = parent.join(format!("{prefix}{}", std::process::id()));
    let made = if sparse { make_sparse(&unfinished, bytes) } else { write_zeros(&unfinished, bytes, stop) };
    let made = made.and_then(|()| fs::hard_link(&unfinished, path));
    // The error that matters is the first one.
    let _ = fs::remove_file(&unfinished);
    match made {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        made => made?,
    }
    File::open(parent)?.sync_all()
}

/// Who was killed while it made this disk has left what it had of it, and that is as large as the disk.
fn remove_deserted(parent: &Path, prefix: &str) -> io::Result<()> {
    for entry in fs::read_dir(parent)? {
        let path = entry?.path();
        let pid = path.file_name().and_then(|name| name.to_str()?.strip_prefix(prefix)?.parse::<u32>().ok());
        // In another container it may be somebody whom one does not see here: it holds the file's lock.
        let lives = |pid: u32| Path::new("/proc").join(pid.to_string()).exists();
        if pid.is_some_and(|pid| !lives(pid)) && open(&path).is_ok_and(|file| file.try_lock().is_ok()) {
            tracing::info!(path = %path.display(), "removing a disk file that was never finished");
            fs::remove_file(&path)?;
        }
    }
    Ok(())
}

/// Opens a disk to read from it. Nothing else: opening a pipe would wait for somebody to write to it.
pub(crate) fn open(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new().read(true).custom_flags(OFlag::O_NONBLOCK.bits()).open(path)?;
    let kind = file.metadata()?.file_type();
    match kind.is_file() || kind.is_block_device() {
        true => Ok(file),
        false => Err(io::Error::new(io::ErrorKind::InvalidInput, "neither a regular file nor a block device")),
    }
}

/// The cluster that the stores on these disks belong to; `None` if there is no store. A disk that cannot be read is the reason only if no
/// other says it.
pub(crate) fn cluster_of(disks: &[DiskPlan]) -> Result<Option<ClusterId>, Error> {
    let mut found: Option<(&Path, ClusterId)> = None;
    let mut unread = None;
    let heads = heads(disks.iter().map(|disk| disk.path.as_path()), &|| false);
    for (DiskPlan { path, .. }, head) in disks.iter().zip(heads) {
        let head = match head {
            Ok(head) => head,
            // It is still to be made.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(source) => {
                unread.get_or_insert(Error::Unreadable { path: path.clone(), source });
                continue;
            }
        };
        let Some((identity, _)) = identify(&head) else { continue };
        let cluster = ClusterId(identity.cluster);
        match found {
            Some((other, of)) if of != cluster => {
                return Err(Error::TwoClusters { path: path.clone(), cluster, other: other.to_path_buf(), of });
            }
            _ => found = Some((path, cluster)),
        }
    }
    match (found, unread) {
        (None, Some(why)) => Err(why),
        (found, _) => Ok(found.map(|(_, cluster)| cluster).filter(|cluster| *cluster != ClusterId(0))),
    }
}

/// The disk whose store is there, if there is one.
pub(crate) fn disk_at(path: &Path) -> io::Result<Option<DiskId>> {
    Ok(identify(&head(path)?).map(|(identity, _)| identity.disk))
}

/// Where each disk is whose store is at one of these places: each place is where a disk was once, at best where it still is. Until it is to
/// `stop`.
pub(crate) fn find(was: &[(DiskId, PathBuf)], stop: &dyn Fn() -> bool) -> BTreeMap<DiskId, PathBuf> {
    let mut found = BTreeMap::new();
    for ((disk, path), head) in was.iter().zip(heads(was.iter().map(|(_, path)| path.as_path()), stop)) {
        // Who cannot be read is nobody; the reason is asked for when that is all there is.
        let Some((identity, _)) = head.ok().and_then(|head| identify(&head)) else { continue };
        let is = identity.disk;
        // Of a store and its copy elsewhere it is the one in its place.
        if is == *disk || !found.contains_key(&is) {
            found.insert(is, path.clone());
        }
    }
    found
}

/// A disk that is not open, as far as it can be told from outside.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Measured {
    /// What a store on it has for data, if it is made now.
    pub capacity: Bytes,
    /// The disk whose store is there already.
    pub disk: Option<DiskId>,
}

/// Measures what is at a path, or what would be made of this size if nothing is, with a journal of this size. Changes nothing.
pub fn measure(path: &Path, create: Option<u64>, journal_size: Option<u64>) -> Result<Measured, Error> {
    let failed = |source| Error::Unreadable { path: path.to_path_buf(), source };
    let (bytes, disk) = match open(path).and_then(|mut file| file.seek(SeekFrom::End(0))) {
        Ok(bytes) => (bytes, disk_at(path).map_err(failed)?),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            (create.ok_or_else(|| Error::Missing(path.to_path_buf()))?, None)
        }
        Err(error) => return Err(failed(error)),
    };
    let geometry = journal::geometry(path, bytes, journal_size)?;
    Ok(Measured { capacity: Blocks(geometry.capacity()).bytes(), disk })
}

/// The same place for whoever works in another directory; none if it cannot be written down.
pub(crate) fn absolute(path: &Path) -> Option<String> {
    std::path::absolute(path).ok()?.to_str().map(str::to_owned)
}

/// A regular file that begins with nothing but zeros, as one that was just made does: only such a one is formatted without being told.
pub(crate) fn is_blank(path: &Path) -> bool {
    let mut head = Vec::new();
    let read = open(path).and_then(|file| {
        let regular = file.metadata()?.is_file();
        file.take(HEAD).read_to_end(&mut head).map(|_| regular)
    });
    read.is_ok_and(|regular| regular) && head.iter().all(|byte| *byte == 0)
}

fn make_sparse(path: &Path, bytes: u64) -> io::Result<()> {
    let file = File::create(path)?;
    file.lock()?;
    file.set_len(bytes)?;
    file.sync_all()
}

fn write_zeros(path: &Path, bytes: u64, stop: &dyn Fn() -> bool) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).open(path)?;
    file.lock()?;
    reserve(&file, bytes)?;
    let zeros = vec![0; PIECE];
    let mut left = bytes;
    while left > 0 {
        let piece = usize::try_from(left).map_or(PIECE, |left| left.min(PIECE));
        file.write_all(&zeros[..piece])?;
        left -= piece as u64;
        if (bytes - left).is_multiple_of(SYNCED) {
            file.sync_data()?;
        }
        if stop() {
            return Err(io::ErrorKind::Interrupted.into());
        }
    }
    file.sync_all()
}

/// Takes the room first: what does not fit is refused before it has filled the file system. Where that cannot be asked for it is found out.
fn reserve(file: &File, bytes: u64) -> io::Result<()> {
    let len = i64::try_from(bytes).map_err(|_| io::ErrorKind::FileTooLarge)?;
    match fallocate(file, FallocateFlags::empty(), 0, len) {
        Err(errno @ (Errno::ENOSPC | Errno::EFBIG | Errno::EDQUOT)) => Err(errno.into()),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use node_store::journaled::MIN_DISK_BYTES;
    use std::cell::Cell;
    use std::os::unix::fs::MetadataExt;
    use std::path::PathBuf;

    fn plan(path: PathBuf, create: Option<u64>) -> DiskPlan {
        DiskPlan { path, create, journal: None, journal_size: None }
    }

    #[test]
    fn a_file_that_is_half_made_when_it_is_time_to_stop_is_not_left_behind() {
        let dir = std::env::temp_dir().join(format!("trine-stopped-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let pieces = Cell::new(0);
        let stop = || pieces.replace(pieces.get() + 1) >= 2;
        let made = prepare(&[plan(dir.join("disk0"), Some(MIN_DISK_BYTES))], false, &stop);
        assert!(matches!(made, Err(Error::Stopping)), "{made:?}");
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 0);
        fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn what_somebody_left_who_was_killed_is_removed_and_nothing_else() {
        let dir = std::env::temp_dir().join(format!("trine-deserted-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        // No process has such a number (PID_MAX_LIMIT is 2^22).
        let [left, locked, other] =
            [".disk0.unfinished.4194400", ".disk0.unfinished.4194401", ".disk1.unfinished.4194400"]
                .map(|name| dir.join(name));
        let own = dir.join(format!(".disk0.unfinished.{}", std::os::unix::process::parent_id()));
        for path in [&left, &locked, &other, &own] {
            fs::write(path, "data").unwrap();
        }
        let lock = File::open(&locked).unwrap();
        lock.lock().unwrap();
        prepare(&[plan(dir.join("disk0"), Some(MIN_DISK_BYTES))], true, &|| false).unwrap();
        assert_eq!([&left, &locked, &other, &own].map(|path| path.exists()), [false, true, true, true]);
        fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn what_is_no_disk_is_not_waited_for() {
        let dir = std::env::temp_dir().join(format!("trine-pipe-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let pipe = dir.join("pipe");
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert!(disk_at(&pipe).is_err() && measure(&pipe, None, None).is_err() && !is_blank(&pipe));
        assert!(matches!(cluster_of(&[plan(pipe, None)]), Err(Error::Unreadable { .. })));
        fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn a_file_that_there_is_no_room_for_is_refused_before_anything_is_written() {
        let dir = std::env::temp_dir().join(format!("trine-no-room-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        // Asked after each piece, and once by the error.
        let asked = Cell::new(0);
        let stop = || asked.replace(asked.get() + 1) >= 3;
        let made = prepare(&[plan(dir.join("disk0"), Some(1 << 60))], false, &stop);
        assert!(matches!(made, Err(Error::Create { .. })), "{made:?}");
        assert_eq!((asked.get(), fs::read_dir(&dir).unwrap().count()), (1, 0));
        fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn a_missing_file_is_made_with_all_its_blocks_and_an_existing_one_is_left_alone() {
        let dir = std::env::temp_dir().join(format!("trine-disks-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let path = dir.join("disk0");
        assert!(matches!(prepare(&[plan(path.clone(), None)], false, &|| false), Err(Error::Missing(_))));
        assert!(matches!(prepare(&[plan(path.clone(), Some(1 << 20))], false, &|| false), Err(Error::TooSmall { .. })));
        prepare(&[plan(path.clone(), Some(MIN_DISK_BYTES))], false, &|| false).unwrap();
        let meta = fs::metadata(&path).unwrap();
        assert_eq!(meta.len(), MIN_DISK_BYTES);
        assert!(meta.blocks() * 512 >= MIN_DISK_BYTES, "not sparse");
        fs::write(&path, b"somebody's").unwrap();
        prepare(&[plan(path.clone(), Some(MIN_DISK_BYTES))], false, &|| false).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"somebody's");
        let twice = [plan(path.clone(), None), plan(dir.join("./disk0"), None)];
        assert!(matches!(prepare(&twice, false, &|| false), Err(Error::Twice(_))));
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 1, "nothing unfinished is left");
        let with = |disk: &str, create, journal: &str| DiskPlan {
            journal: Some(dir.join(journal)),
            ..plan(dir.join(disk), create)
        };
        assert!(matches!(prepare(&[with("disk0", None, "journal")], false, &|| false), Err(Error::NoJournal(_))));
        let sizes = Some(MIN_DISK_BYTES);
        let shared = [with("disk0", sizes, "journal"), with("disk1", sizes, "./journal")];
        assert!(matches!(prepare(&shared, true, &|| false), Err(Error::Twice(_))), "two stores, one journal");
        assert!(matches!(prepare(&[with("disk0", sizes, "disk0")], true, &|| false), Err(Error::Twice(_))));
        let meta = fs::metadata(dir.join("journal")).unwrap();
        assert_eq!(meta.len(), (16 << 20) + (64 << 10));
        assert!(meta.blocks() * 512 >= meta.len(), "not sparse");
        fs::remove_dir_all(&dir).unwrap();
    }
}
