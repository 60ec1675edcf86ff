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
use memory::MappedFile;
use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{ErrorKind, Seek, SeekFrom};
use std::num::NonZeroUsize;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

/// The unit of all disk operations.
pub(crate) const BLOCK: u64 = 4096;

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
    /// On a file system that is in memory.
    pub in_memory: bool,
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
    pub(crate) file: File,
    pub(crate) map: Option<MappedFile>,
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
        let in_memory = !block_device && in_memory(&file).map_err(failed)?;
        if !direct {
            forget_unwritten(&file);
        }
        let info = DiskInfo { bytes, block_device, direct, in_memory, mapped: None };
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
        forget_unwritten(&file);
        let map = MappedFile::map(&file, whole).map_err(|error| failed(error.into()))?;
        let mapped = Some(if map.is_persistent() { Mapped::Persistent } else { Mapped::Cached });
        let (bytes, in_memory) = (len.saturating_sub(head), in_memory(&file).map_err(failed)?);
        let info = DiskInfo { bytes, block_device: false, direct: false, in_memory, mapped };
        Ok(Self { file, map: Some(map), head, info })
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

/// What is read from here on is on the disk. Pages of the cache that could not be written, for whoever had the file before, look as if they
/// had been: the kernel tells of it once, and a later sync of theirs succeeds. They go, be it that they can be written now or not.
fn forget_unwritten(file: &File) {
    let _said_to_an_older_life = file.sync_data();
    // Of a file in memory, or on persistent memory, nothing goes; advice that is not taken is no error.
    let _advice = posix_fadvise(file, 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED);
}

/// Whether a file's bytes are nowhere but in memory, so that a request has nothing to wait for.
fn in_memory(file: &File) -> std::io::Result<bool> {
    const RAMFS_MAGIC: i64 = 0x8584_58f6;
    let kind = nix::sys::statfs::fstatfs(file)?.filesystem_type();
    Ok(kind == nix::sys::statfs::TMPFS_MAGIC || kind.0 == RAMFS_MAGIC)
}

/// Where a disk's number leads.
pub(crate) fn disk(all: &[Disk], index: DiskIndex) -> Result<&Disk, Errno> {
    all.get(index.0 as usize).ok_or(Errno(libc::EBADF))
}
