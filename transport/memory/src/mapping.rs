//! The pages themselves: one mapping, anonymous or of a file, unmapped when the last buffer and the arena are gone.

use nix::errno::Errno;
use nix::sys::mman::{MapFlags, MmapAdvise, ProtFlags, madvise, mmap, mmap_anonymous, munmap};
use std::ffi::c_void;
use std::fs::File;
use std::num::NonZeroUsize;
use std::ptr::NonNull;

/// A mapping that starts on a page.
#[derive(Debug)]
pub(crate) struct Mapping {
    start: NonNull<c_void>,
    len: NonZeroUsize,
}

impl Mapping {
    /// Ordinary pages; if `huge` is wanted, the kernel backs them with huge ones when it has some.
    pub(crate) fn heap(len: NonZeroUsize, huge: bool) -> Result<Self, Errno> {
        let mapping = Self::map(len, MapFlags::empty())?;
        let advice = if huge { MmapAdvise::MADV_HUGEPAGE } else { MmapAdvise::MADV_NOHUGEPAGE };
        // SAFETY: the range is our own fresh mapping; the advice changes how it is backed, not what it holds.
        // A kernel without transparent huge pages refuses, and loses nothing but speed.
        let _ = unsafe { madvise(mapping.start, len.get(), advice) };
        Ok(mapping)
    }

    /// Reserved huge pages: all there now, or an error. `place` may say where, before there are any.
    pub(crate) fn huge(len: NonZeroUsize, place: impl FnOnce(&Self)) -> Result<Self, Errno> {
        let mapping = Self::map(len, MapFlags::MAP_HUGETLB | MapFlags::MAP_HUGE_2MB)?;
        place(&mapping);
        // MAP_POPULATE would keep a failure to itself, and the first touch of the missing page would end the process.
        // SAFETY: the range is our own fresh mapping of zeros; populating it changes nothing that it holds.
        unsafe { madvise(mapping.start, len.get(), MmapAdvise::MADV_POPULATE_WRITE)? };
        Ok(mapping)
    }

    /// The first bytes of a file, shared with it. With `sync` every page that can be stored to is on persistent memory for good: only
    /// a DAX file system gives that.
    pub(crate) fn of_file(file: &File, len: NonZeroUsize, sync: bool) -> Result<Self, Errno> {
        let flags = if sync { MapFlags::MAP_SHARED_VALIDATE | MapFlags::MAP_SYNC } else { MapFlags::MAP_SHARED };
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory that anybody has.
        let start = unsafe { mmap(None, len, ProtFlags::PROT_READ | ProtFlags::PROT_WRITE, flags, file, 0)? };
        Ok(Self { start, len })
    }

    /// Addresses without memory, to put files at.
    pub(crate) fn reserved(len: NonZeroUsize) -> Result<Self, Errno> {
        let flags = MapFlags::MAP_PRIVATE | MapFlags::MAP_ANONYMOUS | MapFlags::MAP_NORESERVE;
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory that anybody has.
        let start = unsafe { mmap_anonymous(None, len, ProtFlags::PROT_NONE, flags)? };
        Ok(Self { start, len })
    }

    /// Shares the first `len` bytes of `file` from byte `at` on, a multiple of a page; what was mapped there is gone.
    pub(crate) fn put(&mut self, at: usize, file: &File, len: usize) -> Result<(), Errno> {
        let place = self.at(at, len).as_ptr() as usize;
        let (place, len) = NonZeroUsize::new(place).zip(NonZeroUsize::new(len)).ok_or(Errno::EINVAL)?;
        let protection = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        let flags = MapFlags::MAP_SHARED | MapFlags::MAP_FIXED;
        // SAFETY: `at` has checked that the range is in our own mapping, into which `&mut self` leaves nobody a reference.
        unsafe { mmap(Some(place), len, protection, flags, file, 0)? };
        Ok(())
    }

    fn map(len: NonZeroUsize, more: MapFlags) -> Result<Self, Errno> {
        let flags = MapFlags::MAP_PRIVATE | MapFlags::MAP_ANONYMOUS | more;
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory that anybody has.
        let start = unsafe { mmap_anonymous(None, len, ProtFlags::PROT_READ | ProtFlags::PROT_WRITE, flags)? };
        Ok(Self { start, len })
    }

    /// Says from which memory nodes its pages are to be taken: a mode of the kernel's, and a mask of which it reads `bits` less one.
    pub(crate) fn bind(&self, mode: libc::c_int, nodes: &[libc::c_ulong], bits: usize) {
        debug_assert!(bits <= nodes.len() * libc::c_ulong::BITS as usize + 1);
        let (start, len, none) = (self.start.as_ptr(), self.len.get(), 0);
        // SAFETY: the range is our own mapping; the policy changes where its pages come from, not what they hold. The mask has that many
        // bits and lives until the call is over. A kernel that refuses puts them where it likes: nothing is lost but speed.
        let _ = unsafe { libc::syscall(libc::SYS_mbind, start, len, mode, nodes.as_ptr(), bits, none) };
    }

    /// Its length.
    pub(crate) fn len(&self) -> usize {
        self.len.get()
    }

    /// Where byte `at` is. `at + len` lies in the mapping.
    pub(crate) fn at(&self, at: usize, len: usize) -> NonNull<u8> {
        assert!(at <= self.len.get() && len <= self.len.get() - at, "a buffer lies in its mapping");
        // SAFETY: checked just now: the result is in the mapping, or one past its end.
        unsafe { self.start.cast::<u8>().add(at) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: start and len are what mmap returned; every buffer holds the arena's Rc, so nobody has a reference into it.
        let unmapped = unsafe { munmap(self.start, self.len.get()) };
        debug_assert!(unmapped.is_ok(), "munmap of our own mapping: {unmapped:?}");
    }
}
