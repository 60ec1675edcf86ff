//! Looks at a store and writes nothing: what `trine store check` and `dump` stand on.
//!
//! The disk is opened for reading only, under the lock that a node holds. No recovery is needed: the check reads the journal itself.

use super::OfflineError;
use crate::head::head;
use crate::journal::{HEAD, Label};
use crate::limits::DISK_IN_USE_OFFLINE;
use conductor_model::Bytes;
use driver::DiskIndex;
use memory::Arena;
use node_store::journaled::check::{CheckOptions, Depth, Report, check};
use node_store::journaled::identify;
use reactor::ReactorError;
use std::fs::{self, File, TryLockError};
use std::io::{Seek, SeekFrom};
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

/// Memory for reading the journal.
const ARENA_BYTES: usize = 16 << 20;
/// How often a disk in use is tried again.
const AGAIN: Duration = Duration::from_millis(20);
const DISK: DiskIndex = DiskIndex(0);
const JOURNAL: DiskIndex = DiskIndex(1);

/// Something opened for reading.
struct Source {
    file: File,
    /// Bytes before what the store knows of.
    head: u64,
    size: Bytes,
}

impl Source {
    fn open(path: &Path, head: u64) -> Result<Self, OfflineError> {
        let failed = |error| ReactorError::OpenDisk { path: path.to_path_buf(), error };
        let kind = fs::metadata(path).map_err(failed)?.file_type();
        // Looked at before it is opened: that of a pipe waits for a writer.
        if !kind.is_file() && !kind.is_block_device() {
            return Err(ReactorError::NotADisk { path: path.to_path_buf() }.into());
        }
        let mut file = File::open(path).map_err(failed)?;
        let until = Instant::now() + DISK_IN_USE_OFFLINE;
        loop {
            match file.try_lock() {
                Ok(()) => break,
                Err(TryLockError::WouldBlock) if Instant::now() < until => thread::sleep(AGAIN),
                Err(TryLockError::WouldBlock) => {
                    return Err(ReactorError::DiskInUse { path: path.to_path_buf() }.into());
                }
                Err(TryLockError::Error(error)) => return Err(failed(error).into()),
            }
        }
        // The length of a block device is where its end is.
        let end = file.seek(SeekFrom::End(0)).map_err(failed)?;
        Ok(Self { file, head, size: Bytes(end.saturating_sub(head)) })
    }

    fn read(&self, at: u64, into: &mut [u8]) -> bool {
        self.file.read_exact_at(into, self.head + at).is_ok()
    }
}

/// The journals that were named, taken in turn by the stores that have theirs elsewhere.
#[derive(Debug)]
pub struct Journals<'a>(pub &'a [std::path::PathBuf]);

impl Journals<'_> {
    /// The next one, if this store needs one, and it is that store's.
    pub(super) fn of(&mut self, disk: &Path, head: &[u8]) -> Result<Option<&Path>, OfflineError> {
        let Some((identity, geometry)) = identify(head) else { return Ok(None) };
        if !geometry.external_journal() {
            return Ok(None);
        }
        let Some((path, rest)) = self.0.split_first() else { return Ok(None) };
        self.0 = rest;
        let label = Label::read(path).map_err(|error| OfflineError::Journal {
            disk: disk.to_path_buf(),
            journal: path.clone(),
            why: error.to_string(),
        })?;
        if label.is_none_or(|label| label.disk != identity.disk) {
            let why = "it is the journal of another store, or of none".to_owned();
            return Err(OfflineError::Journal { disk: disk.to_path_buf(), journal: path.clone(), why });
        }
        Ok(Some(path))
    }
}

/// Looks at one store; `progress` is told blocks of data as they are read.
pub fn inspect(
    disk: &Path,
    journals: &mut Journals<'_>,
    depth: Depth,
    progress: &mut dyn FnMut(u64),
) -> Result<Report, OfflineError> {
    let source = Source::open(disk, 0)?;
    // A sector there that cannot be read is no reason not to know the store by the rest. If nothing is left the check says so itself.
    let head = head(disk).unwrap_or_default();
    let journal = journals.of(disk, &head)?.map(|path| Source::open(path, HEAD)).transpose()?;
    let arena = Arena::small(ARENA_BYTES);
    let options = CheckOptions {
        disk: DISK,
        size: source.size,
        journal: journal.as_ref().map(|journal| (JOURNAL, journal.size)),
        depth,
    };
    let mut read = |which: DiskIndex, at: u64, into: &mut [u8]| match (which, &journal) {
        (DISK, _) => source.read(at, into),
        (_, Some(journal)) => journal.read(at, into),
        _ => false,
    };
    Ok(check(&options, &arena, &mut read, progress))
}
