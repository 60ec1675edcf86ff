//! A file in memory: what is stored here is in the file, and on persistent memory it stays there by the store alone.
//!
//! ```text
//!   DAX file system on NVDIMM   MAP_SYNC, stores past the caches, one fence          durable when `write` returns
//!   any other file              the page cache's own pages                           durable after the next fsync of the file
//! ```
//!
//! It is only written through: what reads it asks the file. The kernel copies out of poisoned memory with an error, a load would be
//! a signal. A store that meets such a page, or a file that became shorter, is an error here as well (`fault.rs`), for this write
//! and all later ones.

use crate::fault::{Guard, OnFault};
use crate::mapping::Mapping;
use nix::errno::Errno;
use std::fs::File;
use std::num::NonZeroUsize;

/// Stores can be made durable without the kernel: x86-64 has stores past the caches in its first version. Elsewhere a file is synced.
const STREAMS: bool = cfg!(target_arch = "x86_64");

/// A mapping that shares its bytes with a file. The file should have all its blocks: one that must be found at a store may not be there.
#[derive(Debug)]
pub struct MappedFile {
    /// Before the mapping, whose range it watches.
    guard: Guard,
    mapping: Mapping,
    synced: bool,
}

impl MappedFile {
    /// Maps the first `len` bytes of `file`.
    pub fn map(file: &File, len: NonZeroUsize) -> Result<Self, Errno> {
        let (mapping, synced) = match Mapping::of_file(file, len, true) {
            Ok(mapping) => (mapping, true),
            // A kernel or a file system without it says one of these.
            Err(Errno::EOPNOTSUPP | Errno::EINVAL) => (Mapping::of_file(file, len, false)?, false),
            Err(error) => return Err(error),
        };
        let guard = Guard::new(mapping.at(0, len.get()).as_ptr() as usize, len.get(), OnFault::Spare)?;
        Ok(Self { guard, mapping, synced })
    }

    /// True if [`MappedFile::write`] itself makes durable; if not, an fsync of the file must follow.
    pub fn is_persistent(&self) -> bool {
        self.synced && STREAMS
    }

    /// Copies `parts` to byte `at` and behind it. ENOSPC, and nothing is copied, if that is not all in the mapping; EIO if the memory
    /// is broken: nothing is known of its content then, and nothing will be written any more.
    pub fn write<'a>(&mut self, at: u64, parts: impl Iterator<Item = &'a [u8]> + Clone) -> Result<usize, Errno> {
        if self.guard.is_broken() {
            return Err(Errno::EIO);
        }
        let len: usize = parts.clone().map(<[u8]>::len).sum();
        let start = usize::try_from(at).map_err(|_| Errno::ENOSPC)?;
        if self.mapping.len().checked_sub(start).is_none_or(|left| left < len) {
            return Err(Errno::ENOSPC);
        }
        let mut to = start;
        for part in parts {
            let place = self.mapping.at(to, part.len()).as_ptr();
            if self.is_persistent() {
                // SAFETY: `place` and as many bytes as the part has lie in our mapping (`at` has checked it), which nobody has a reference
                // into; it is mapped readable and writable.
                unsafe { stream::copy(part, place) };
            } else {
                // SAFETY: as above; the part is memory of somebody else, so they do not overlap.
                unsafe { place.copy_from_nonoverlapping(part.as_ptr(), part.len()) };
            }
            to += part.len();
        }
        if self.is_persistent() {
            stream::fence();
        }
        if self.guard.is_broken() { Err(Errno::EIO) } else { Ok(len) }
    }
}

/// Stores that leave the processor's caches behind.
#[cfg(target_arch = "x86_64")]
mod stream {
    use std::arch::x86_64::{__m128i, _mm_clflush, _mm_loadu_si128, _mm_sfence, _mm_stream_si128};

    const LINE: usize = 64;
    const STEP: usize = size_of::<__m128i>();

    /// Copies `from` to `to`, on its way to memory when this returns.
    ///
    /// # Safety
    /// `from.len()` bytes at `to` can be written, and are no part of `from`.
    pub(super) unsafe fn copy(from: &[u8], to: *mut u8) {
        if (to as usize | from.len()).is_multiple_of(STEP) {
            for step in (0..from.len()).step_by(STEP) {
                // SAFETY: 16 bytes at this step are within `from` and, by the caller's word, within `to`, whose address is a multiple of
                // 16. SSE2 is part of the architecture.
                unsafe { _mm_stream_si128(to.add(step).cast(), _mm_loadu_si128(from.as_ptr().add(step).cast())) };
            }
            return;
        }
        // SAFETY: the caller's word; flushing a line that holds more than ours changes nothing that can be seen.
        unsafe { to.copy_from_nonoverlapping(from.as_ptr(), from.len()) };
        let first = to as usize % LINE;
        for line in (0..first + from.len()).step_by(LINE) {
            // SAFETY: each of these lines holds a byte that was just written.
            unsafe { _mm_clflush(to.wrapping_sub(first).add(line)) };
        }
    }

    /// All of it has reached what keeps it without power.
    pub(super) fn fence() {
        // SAFETY: SSE is part of the architecture.
        unsafe { _mm_sfence() };
    }
}

/// Never called: `STREAMS` is false.
#[cfg(not(target_arch = "x86_64"))]
mod stream {
    pub(super) unsafe fn copy(from: &[u8], to: *mut u8) {
        // SAFETY: the caller's word: as many bytes at `to` can be written.
        unsafe { to.copy_from_nonoverlapping(from.as_ptr(), from.len()) };
    }
    pub(super) fn fence() {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PAGE;
    use std::fs::OpenOptions;
    use std::os::unix::fs::FileExt;
    use std::path::PathBuf;

    struct Scratch(PathBuf, File);

    impl Scratch {
        fn new(name: &str, pages: usize) -> Self {
            let path = std::env::temp_dir().join(format!("trine-mapped-{}-{name}", std::process::id()));
            let file = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(&path).unwrap();
            file.write_all_at(&vec![7; pages * PAGE], 0).unwrap();
            Self(path, file)
        }
        fn map(&self, pages: usize) -> MappedFile {
            MappedFile::map(&self.1, NonZeroUsize::new(pages * PAGE).unwrap()).unwrap()
        }
        fn read(&self, at: u64, len: usize) -> Vec<u8> {
            let mut bytes = vec![0; len];
            self.1.read_exact_at(&mut bytes, at).unwrap();
            bytes
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = std::fs::remove_file(&self.0);
        }
    }

    #[test]
    fn what_is_written_is_in_the_file_and_nothing_beside_it() {
        let scratch = Scratch::new("written", 4);
        let mut mapped = scratch.map(4);
        let parts = [vec![1; PAGE], vec![], vec![2; PAGE]];
        assert_eq!(mapped.write(PAGE as u64, parts.iter().map(Vec::as_slice)), Ok(2 * PAGE));
        assert_eq!(scratch.read(0, 4 * PAGE), [[7; PAGE], [1; PAGE], [2; PAGE], [7; PAGE]].concat());
        assert_eq!(mapped.write(3 * PAGE as u64, parts.iter().map(Vec::as_slice)), Err(Errno::ENOSPC));
        assert_eq!(mapped.write(u64::MAX, parts.iter().map(Vec::as_slice)), Err(Errno::ENOSPC));
        assert_eq!(scratch.read(3 * PAGE as u64, PAGE), [7; PAGE], "a write that does not fit writes nothing");
    }

    /// The copy for persistent memory, on memory that is not: the bytes are the same wherever they begin.
    #[test]
    #[cfg(target_arch = "x86_64")]
    fn stores_past_the_caches_copy_every_byte_and_no_other() {
        let from: Vec<u8> = (0..3000).map(|n| (n % 251) as u8 + 1).collect();
        for (at, len) in [(0, 64), (0, 2992), (16, 160), (1, 64), (63, 2), (5, 0), (64, 2999), (120, 17)] {
            let mut to = vec![0; 4096];
            let aligned = to.as_ptr().align_offset(64);
            // SAFETY: at + len is below 3100, which is in `to` after any alignment.
            unsafe { stream::copy(&from[..len], to.as_mut_ptr().add(aligned + at)) };
            stream::fence();
            let to = &to[aligned..];
            assert_eq!(to[at..at + len], from[..len]);
            assert!(to[..at].iter().chain(&to[at + len..]).all(|byte| *byte == 0), "{at} {len}");
        }
    }

    #[test]
    fn a_page_that_is_gone_is_an_error_and_stays_one_and_the_process_lives() {
        let scratch = Scratch::new("gone", 4);
        let mut mapped = scratch.map(4);
        let page = [9; PAGE];
        assert_eq!(mapped.write(0, [page.as_slice()].into_iter()), Ok(PAGE));
        scratch.1.set_len(PAGE as u64).unwrap();
        assert_eq!(mapped.write(2 * PAGE as u64, [page.as_slice()].into_iter()), Err(Errno::EIO));
        assert_eq!(mapped.write(0, [page.as_slice()].into_iter()), Err(Errno::EIO), "also where the file still is");
        // Another mapping is not concerned.
        let other = Scratch::new("sound", 1);
        assert_eq!(other.map(1).write(0, [page.as_slice()].into_iter()), Ok(PAGE));
    }
}
