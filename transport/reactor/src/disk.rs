//! Disks: one file or block device each, ours alone for as long as anything of ours is in flight on it.
//!
//! The lock sits on the very file description that does the I/O (replication rule 2): the kernel lets go of it when the last
//! operation is over and not before, so no successor can open the disk under a write that is still on its way.
//!
//! A **journal** (`Disk::journal`) is a disk that a store keeps its journal on, behind a head that is not the store's. A device is one
//! like any other; a file is mapped, and writes are stores:
//!
//! ```text
//!   DAX on NVDIMM   stores past the caches, a fence          done at once, without the kernel
//!   other files     stores, then the file's fsync            done with the fsync, on the ring
//! ```
//!
//! Reads go through the file in each case: the kernel answers with an error where memory is poisoned. Nothing blocks but the first
//! touch of a page. A mapped file keeps all its blocks: it is never punched, since a store that needs a new block can fail only by a signal.

use crate::ReactorError;
use crate::error::errno;
use driver::{DiskIndex, Errno};
use memory::{MappedFile, Part};
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{ErrorKind, Seek, SeekFrom};
use std::num::NonZeroUsize;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

/// How to open a disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DiskOptions {
    /// Take the page cache where the file system refuses O_DIRECT, instead of failing. Durable writes stay durable; only
    /// memory and copies are wasted.
    pub allow_buffered: bool,
}

/// What was opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DiskInfo {
    /// Its size in bytes.
    pub bytes: u64,
    /// A block device, not a file.
    pub block_device: bool,
    /// Past the page cache.
    pub direct: bool,
    /// Mapped: writes are stores.
    pub mapped: Option<Mapped>,
}

/// What a store into a mapped file is worth.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mapped {
    /// It is in the page cache: durable writes end with a sync of the file.
    Cached,
    /// It is on persistent memory.
    Persistent,
}

/// An open disk.
pub(crate) struct Disk {
    file: File,
    map: Option<MappedFile>,
    /// Bytes at its beginning that are not the disk's.
    pub(crate) head: u64,
    pub(crate) info: DiskInfo,
}

impl Disk {
    /// Opens and locks it.
    pub(crate) fn open(path: &Path, options: DiskOptions) -> Result<Self, ReactorError> {
        let failed = |error| ReactorError::OpenDisk { path: path.to_path_buf(), error };
        let block_device = kind(path)?;
        let (file, direct) = match open(path, block_device, libc::O_DIRECT) {
            Err(ReactorError::OpenDisk { error, .. }) if error.raw_os_error() == Some(libc::EINVAL) => {
                if !options.allow_buffered {
                    return Err(ReactorError::NoDirect { path: path.to_path_buf() });
                }
                (open(path, block_device, 0)?, false)
            }
            file => (file?, true),
        };
        let bytes = (&file).seek(SeekFrom::End(0)).map_err(failed)?;
        let info = DiskInfo { bytes, block_device, direct, mapped: None };
        Ok(Self { file, map: None, head: 0, info })
    }

    /// Opens and locks what holds a journal behind `head` bytes, a multiple of a block; maps it if it is a file.
    pub(crate) fn journal(path: &Path, head: u64) -> Result<Self, ReactorError> {
        if kind(path)? {
            let mut device = Self::open(path, DiskOptions::default())?;
            device.head = head;
            device.info.bytes = device.info.bytes.saturating_sub(head);
            return Ok(device);
        }
        let failed = |error| ReactorError::MapDisk { path: path.to_path_buf(), error };
        let file = open(path, false, 0)?;
        let len = (&file).seek(SeekFrom::End(0)).map_err(failed)?;
        let whole = usize::try_from(len).ok().and_then(NonZeroUsize::new);
        let whole = whole.ok_or_else(|| failed(ErrorKind::InvalidInput.into()))?;
        // A hole that is stored to when the file system is full would be a signal.
        allocate(&file, len).map_err(failed)?;
        let map = MappedFile::map(&file, whole).map_err(|error| failed(error.into()))?;
        let mapped = Some(if map.is_persistent() { Mapped::Persistent } else { Mapped::Cached });
        let info = DiskInfo { bytes: len.saturating_sub(head), block_device: false, direct: false, mapped };
        Ok(Self { file, map: Some(map), head, info })
    }

    /// Stores into the mapping. True if that was all of it, false if a durable write still needs a sync; `None` if it is not mapped.
    pub(crate) fn store(&mut self, at: u64, parts: &[Part]) -> Option<Result<bool, Errno>> {
        let map = self.map.as_mut()?;
        let at = at.saturating_add(self.head);
        let stored = map.write(at, parts.iter().map(Part::bytes)).map_err(|error| Errno(error as i32));
        Some(stored.map(|_| map.is_persistent()))
    }

    pub(crate) fn fd(&self) -> RawFd {
        self.file.as_raw_fd()
    }
}

/// True for a block device, false for a file; anything else is no disk.
fn kind(path: &Path) -> Result<bool, ReactorError> {
    let kind = std::fs::metadata(path)
        .map_err(|error| ReactorError::OpenDisk { path: path.to_path_buf(), error })?
        .file_type();
    match kind.is_file() || kind.is_block_device() {
        true => Ok(kind.is_block_device()),
        false => Err(ReactorError::NotADisk { path: path.to_path_buf() }),
    }
}

fn open(path: &Path, block_device: bool, more: i32) -> Result<File, ReactorError> {
    // On a device, O_EXCL also keeps mounts and other exclusive users out.
    let exclusive = if block_device { libc::O_EXCL } else { 0 };
    let file = OpenOptions::new().read(true).write(true).custom_flags(exclusive | more).open(path);
    let failed = |error: std::io::Error| match error.kind() {
        ErrorKind::ResourceBusy => ReactorError::DiskInUse { path: path.to_path_buf() },
        _ => ReactorError::OpenDisk { path: path.to_path_buf(), error },
    };
    let file = file.map_err(failed)?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(ReactorError::DiskInUse { path: path.to_path_buf() }),
        Err(TryLockError::Error(error)) => Err(failed(error)),
    }
}

/// Gives the file all its blocks. One whose file system cannot say so has what was written.
fn allocate(file: &File, len: u64) -> std::io::Result<()> {
    let len = libc::off_t::try_from(len).map_err(|_| ErrorKind::InvalidInput)?;
    // SAFETY: the descriptor is open, and nothing of ours is handed over.
    if unsafe { libc::fallocate(file.as_raw_fd(), 0, 0, len) } == 0 {
        return Ok(());
    }
    let error = std::io::Error::last_os_error();
    if errno(&error) == Errno(libc::EOPNOTSUPP) { Ok(()) } else { Err(error) }
}

/// Where a disk's number leads.
pub(crate) fn disk(all: &[Disk], index: DiskIndex) -> Result<&Disk, Errno> {
    all.get(index.0 as usize).ok_or(Errno(libc::EBADF))
}
