//! A buffer in its two lives: filled by one, then read by several.
//!
//! Both are a hold on the same counted `Mem` and a way home. The hold is dropped first; if it was the last one, the way home
//! finds the pages in the table's queue and returns them on the spot: memory has no teardown that could need a reaper's turn.

use crate::PAGE;
use crate::arena::Shared;
use crate::mapping::Mapping;
use refcount::Hold;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::rc::Rc;

/// Pages that were taken: a region of the arena and a range of pages in it.
#[derive(Clone, Copy)]
pub struct Mem {
    pub(crate) region: u8,
    /// Counted from the region's start.
    pub(crate) page: u32,
    pub(crate) pages: u32,
    /// First byte in the mapping.
    pub(crate) at: usize,
}

refcount::reasons! {
    /// Why memory is held.
    pub mod why for Mem as "mem" labelled (|mem| (mem.at / PAGE) as u64) {
        /// By the one that writes it.
        Filling "filling",
        /// By each one that reads it.
        Reads "reads",
    }
}

/// Keeps the mapping, and returns pages whose last hold went. Declared after the hold in both lives, and so dropped after it.
struct Home(Rc<Shared>);

impl Drop for Home {
    fn drop(&mut self) {
        self.0.collect();
    }
}

impl Home {
    fn mapping(&self) -> &Mapping {
        &self.0.mapping
    }
}

/// Memory with one writer: exactly `len` bytes, of unspecified content until they are written.
#[must_use = "memory that is not kept goes straight back"]
pub struct Filling {
    hold: Hold<Mem, why::Filling>,
    home: Home,
    len: usize,
}

/// Memory that nobody writes any more.
#[must_use = "memory that is not kept goes straight back"]
pub struct Reads {
    hold: Hold<Mem, why::Reads>,
    home: Home,
    len: usize,
}

/// A piece of memory to be read by an operation.
#[derive(Debug)]
pub struct Part {
    /// The memory, held for reading.
    pub mem: Reads,
    /// First byte.
    pub from: usize,
    /// Number of bytes.
    pub len: usize,
}

impl Filling {
    pub(crate) fn new(hold: Hold<Mem, why::Filling>, home: Rc<Shared>, len: usize) -> Self {
        Self { hold, home: Home(home), len }
    }

    /// Shows only the first `len` bytes; no effect if there are fewer.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    /// Bytes that were set aside for it: `len` rounded up.
    pub fn capacity(&self) -> usize {
        self.hold.pages as usize * PAGE
    }

    /// It is written: from now on it is only read.
    pub fn filled(self) -> Reads {
        Reads { hold: self.hold.rename(), home: self.home, len: self.len }
    }
}

impl Reads {
    /// One more reader of the same memory.
    pub fn share(&self) -> Self {
        Self { hold: self.hold.share(), home: Home(Rc::clone(&self.home.0)), len: self.len }
    }

    /// Bytes that are set aside for it, whoever else reads it and however much of it shows.
    pub fn capacity(&self) -> usize {
        self.hold.pages as usize * PAGE
    }

    /// All of it, as a part of an operation.
    pub fn whole(self) -> Part {
        Part { from: 0, len: self.len, mem: self }
    }

    /// Writable again, if this is its last reader; else unchanged.
    pub fn try_filling(self) -> Result<Filling, Self> {
        if self.hold.counts().total() > 1 {
            return Err(self);
        }
        Ok(Filling { hold: self.hold.rename(), home: self.home, len: self.len })
    }
}

impl Part {
    /// The bytes it names. Panics if they are not in its memory.
    pub fn bytes(&self) -> &[u8] {
        &self.mem[self.from..][..self.len]
    }
}

impl From<Reads> for Part {
    fn from(mem: Reads) -> Self {
        mem.whole()
    }
}

impl Deref for Filling {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        let start = self.home.mapping().at(self.hold.at, self.len);
        // SAFETY: the pages are ours alone as long as the hold lives (the table has them once, and Filling is the only hold:
        // `take` makes it with a fresh Mem, `try_filling` only when it is the last), they are mapped readable and writable,
        // zeroed by the kernel at first, and writing them takes `&mut self`.
        unsafe { std::slice::from_raw_parts(start.as_ptr(), self.len) }
    }
}

impl DerefMut for Filling {
    fn deref_mut(&mut self) -> &mut [u8] {
        let start = self.home.mapping().at(self.hold.at, self.len);
        // SAFETY: as above; `&mut self` makes this the only reference.
        unsafe { std::slice::from_raw_parts_mut(start.as_ptr(), self.len) }
    }
}

impl Deref for Reads {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        let start = self.home.mapping().at(self.hold.at, self.len);
        // SAFETY: the pages are mapped and held; no Filling exists beside a Reads, so nobody writes while this one is borrowed.
        unsafe { std::slice::from_raw_parts(start.as_ptr(), self.len) }
    }
}

impl fmt::Debug for Filling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} of {} B", self.hold, self.len)
    }
}

impl fmt::Debug for Reads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} of {} B", self.hold, self.len)
    }
}
