//! Memory on named files: what NVDIMM, or any other file system with room, is as an arena.
//!
//! ```text
//!   DIR0/NAME.0  64 MiB │ DIR1/NAME.1  128 MiB │ DIR0/NAME.2  256 MiB │ …     one range of addresses
//! ```
//!
//! Each file is twice as large as the one before it, up to 32 GiB, so that few are needed whatever the size; the last one is cut to what
//! is left. Each goes to the directory with the fewest bytes so far, and its memory to the memory node with the fewest: a file system
//! in memory has it there, one on NVDIMM where the NVDIMM is. So with a directory on each node each has its part. The same name finds
//! the same files again, with what was in them; a file that is too short grows before it is mapped, and none is ever cut, since a
//! mapping whose file ends early faults.
//!
//! Files are locked: no two arenas share one. All their blocks are there from the start. A page that is lost nevertheless ends the process
//! with a sentence (`fault.rs`): buffers are read, and must not make up data.

use crate::fault::{Guard, OnFault};
use crate::mapping::Mapping;
use crate::numa::MemoryNodes;
use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, fallocate};
use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::num::NonZeroUsize;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// The first file: small enough for a trial, large enough that few follow.
const FIRST: usize = 64 << 20;
/// The largest: past that doubling would waste more than it saves.
const LARGEST: usize = 32 << 30;

/// Where an arena's files are.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NamedFiles {
    /// Directories, best one on each memory node of the machine.
    pub dirs: Vec<PathBuf>,
    /// What the files are called, before a dot and their number.
    pub name: String,
    /// Which directory, and which memory node, has the first of them: another one for each arena of a process.
    pub first: usize,
}

/// A file that is to be.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Planned {
    path: PathBuf,
    bytes: usize,
    /// The memory node to take its memory from, where there is a choice.
    node: Option<usize>,
}

/// So many bytes to whoever has the fewest; of these to the first behind `first`, all around.
fn least(used: &mut [usize], first: usize, bytes: usize) -> Option<usize> {
    let around = (0..used.len()).map(|n| (n + first) % used.len());
    let least = around.min_by_key(|n| used[*n])?;
    used[least] += bytes;
    Some(least)
}

/// Why there is no memory on files.
#[derive(Debug, thiserror::Error)]
pub enum NamedError {
    /// Nowhere to put them.
    #[error("memory on files needs at least one directory")]
    NoDirectory,
    /// Another process, or another arena, works with it.
    #[error("memory file {} is in use: stop who uses it, or take another name or directory", .0.display())]
    InUse(PathBuf),
    /// It cannot be opened, or be given all its blocks.
    #[error("cannot have {bytes} bytes of memory on {}: {error}: check the directory and its file system's space", .path.display())]
    File {
        /// Which file.
        path: PathBuf,
        /// How many.
        bytes: usize,
        /// The system's word.
        error: io::Error,
    },
}

/// An open file behind a part of the memory. The lock lives as long as it does.
#[derive(Debug)]
pub(crate) struct Piece {
    _guard: Guard,
    _file: File,
}

impl NamedFiles {
    /// The files of `bytes`, in the order of their addresses.
    fn plan(&self, bytes: usize, nodes: &[usize]) -> Result<Vec<Planned>, NamedError> {
        let (mut in_dir, mut on_node) = (vec![0; self.dirs.len()], vec![0; nodes.len()]);
        let (mut left, mut size) = (bytes, FIRST);
        let mut files = Vec::new();
        while left > 0 {
            let len = size.min(left);
            let dir = least(&mut in_dir, self.first, len).ok_or(NamedError::NoDirectory)?;
            let path = self.dirs[dir].join(format!("{}.{}", self.name, files.len()));
            let node = least(&mut on_node, self.first, len).map(|n| nodes[n]);
            files.push(Planned { path, bytes: len, node });
            left -= len;
            size = (size * 2).min(LARGEST);
        }
        Ok(files)
    }

    /// Maps all of them, one behind the other.
    pub(crate) fn map(&self, len: NonZeroUsize, nodes: &MemoryNodes) -> Result<(Mapping, Vec<Piece>), NamedError> {
        let plan = self.plan(len.get(), nodes.numbers())?;
        let failed = |path: &Path, bytes, error: Errno| NamedError::File {
            path: path.to_path_buf(),
            bytes,
            error: error.into(),
        };
        let mut mapping = Mapping::reserved(len).map_err(|error| failed(&plan[0].path, len.get(), error))?;
        let mut pieces = Vec::new();
        let mut at = 0;
        for Planned { path, bytes, node } in plan {
            // A file system in memory takes all of it here.
            let file = nodes.on(node, || open(&path, bytes))?;
            mapping.put(at, &file, bytes).map_err(|error| failed(&path, bytes, error))?;
            let start = mapping.at(at, bytes).as_ptr() as usize;
            let guard = Guard::new(start, bytes, OnFault::Tell).map_err(|error| failed(&path, bytes, error))?;
            pieces.push(Piece { _guard: guard, _file: file });
            at += bytes;
        }
        Ok((mapping, pieces))
    }
}

fn open(path: &Path, bytes: usize) -> Result<File, NamedError> {
    let failed = |error| NamedError::File { path: path.to_path_buf(), bytes, error };
    // What was in a buffer is nobody else's to read.
    let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path);
    let file = file.map_err(failed)?;
    file.try_lock().map_err(|refused| match refused {
        TryLockError::WouldBlock => NamedError::InUse(path.to_path_buf()),
        TryLockError::Error(error) => failed(error),
    })?;
    let len = i64::try_from(bytes).map_err(|_| failed(io::ErrorKind::InvalidInput.into()))?;
    match fallocate(&file, FallocateFlags::empty(), 0, len) {
        Ok(()) => Ok(file),
        Err(error) => Err(failed(error.into())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(dirs: &[&str]) -> NamedFiles {
        NamedFiles { dirs: dirs.iter().map(PathBuf::from).collect(), name: "m".to_owned(), first: 0 }
    }

    #[test]
    fn files_double_up_to_32_gib_and_the_last_is_what_is_left() {
        let plan = files(&["/a"]).plan((200 << 20) + 4096, &[]).unwrap();
        let sizes: Vec<usize> = plan.iter().map(|file| file.bytes).collect();
        assert_eq!(sizes, [64 << 20, 128 << 20, (8 << 20) + 4096]);
        assert_eq!(plan[2].path, PathBuf::from("/a/m.2"));
        let plan = files(&["/a"]).plan(256 << 30, &[]).unwrap();
        assert_eq!(plan.iter().map(|file| file.bytes).max(), Some(32 << 30));
        assert_eq!((plan.len(), plan.iter().map(|file| file.bytes).sum::<usize>()), (17, 256 << 30));
    }

    #[test]
    fn directories_and_memory_nodes_get_their_part_each() {
        let plan = |first| NamedFiles { first, ..files(&["/a", "/b"]) }.plan(100 << 30, &[0, 3]).unwrap();
        let sum = |plan: &[Planned], of: &dyn Fn(&Planned) -> bool| {
            plan.iter().filter(|file| of(file)).map(|file| file.bytes).sum::<usize>()
        };
        for first in 0..3 {
            let plan = plan(first);
            let of = |dir: &str| sum(&plan, &|file| file.path.starts_with(dir));
            assert_eq!(of("/a") + of("/b"), 100 << 30);
            assert!(of("/a").abs_diff(of("/b")) <= LARGEST, "{} and {}", of("/a"), of("/b"));
            // As many directories as nodes: each has its own.
            assert_eq!(of("/b"), sum(&plan, &|file| file.node == Some(3)));
            assert_eq!(plan[0].path.starts_with("/b"), first == 1);
        }
        // The same plan each time: that is how they are found again.
        assert_eq!(plan(1), plan(1));
        // One directory, two nodes: the files are on both.
        let one = files(&["/a"]).plan(256 << 20, &[0, 1]).unwrap();
        assert_eq!(sum(&one, &|file| file.node == Some(0)), 128 << 20);
        assert!(files(&["/a"]).plan(1 << 30, &[]).unwrap().iter().all(|file| file.node.is_none()));
        assert!(matches!(files(&[]).plan(1, &[]), Err(NamedError::NoDirectory)));
    }
}
