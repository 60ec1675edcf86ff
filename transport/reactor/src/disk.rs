//! Disks: one file or block device each, ours alone for as long as anything of ours is in flight on it.
//!
//! The lock sits on the very file description that does the I/O (replication rule 2): the kernel lets go of it when the last
//! operation is over and not before, so no successor can open the disk under a write that is still on its way.

use crate::ReactorError;
use driver::{DiskIndex, Errno};
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{ErrorKind, Seek, SeekFrom};
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
}

/// An open disk.
pub(crate) struct Disk {
    file: File,
    pub(crate) info: DiskInfo,
}

impl Disk {
    /// Opens and locks it.
    pub(crate) fn open(path: &Path, options: DiskOptions) -> Result<Self, ReactorError> {
        let failed = |error| ReactorError::OpenDisk { path: path.to_path_buf(), error };
        let kind = std::fs::metadata(path).map_err(failed)?.file_type();
        if !kind.is_file() && !kind.is_block_device() {
            return Err(ReactorError::NotADisk { path: path.to_path_buf() });
        }
        // On a device, O_EXCL also keeps mounts and other exclusive users out.
        let exclusive = if kind.is_block_device() { libc::O_EXCL } else { 0 };
        let open = |more| OpenOptions::new().read(true).write(true).custom_flags(exclusive | more).open(path);
        let (mut file, direct) = match open(libc::O_DIRECT) {
            Ok(file) => (file, true),
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
                if !options.allow_buffered {
                    return Err(ReactorError::NoDirect { path: path.to_path_buf() });
                }
                (open(0).map_err(failed)?, false)
            }
            Err(error) if error.kind() == ErrorKind::ResourceBusy => {
                return Err(ReactorError::DiskInUse { path: path.to_path_buf() });
            }
            Err(error) => return Err(failed(error)),
        };
        file.try_lock().map_err(|refused| match refused {
            TryLockError::WouldBlock => ReactorError::DiskInUse { path: path.to_path_buf() },
            TryLockError::Error(error) => failed(error),
        })?;
        let bytes = file.seek(SeekFrom::End(0)).map_err(failed)?;
        Ok(Self { file, info: DiskInfo { bytes, block_device: kind.is_block_device(), direct } })
    }

    pub(crate) fn fd(&self) -> RawFd {
        self.file.as_raw_fd()
    }
}

/// Where a disk's number leads.
pub(crate) fn disk(all: &[Disk], index: DiskIndex) -> Result<&Disk, Errno> {
    all.get(index.0 as usize).ok_or(Errno(libc::EBADF))
}
