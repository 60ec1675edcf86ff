//! One reactor's memory: six regions, one for each class and one for all.
//!
//! ```text
//!   │ settle │ replica │ resync │ work │ client │ common             │   take: the common region first,
//!     own      own       own     own     own     whoever comes first      then the class's own
//! ```
//!
//! Regions, not counters, keep the reserves: a class that cut the common pages into crumbs has not touched another's. What was taken first,
//! and may be kept for longest, lies in the common one.

use crate::buddy::Buddy;
use crate::buffer::{Filling, Mem};
use crate::huge::{HUGE_PAGE, HugePages, TooFewHugePages};
use crate::mapping::Mapping;
use crate::named::{NamedError, NamedFiles, Piece};
use crate::numa::{MemoryNodes, Placement};
use crate::{MAX_LEN, PAGE};
use refcount::{LeakReport, Table};
use std::cell::{Cell, RefCell};
use std::fmt;
use std::num::NonZeroUsize;
use std::ptr::NonNull;
use std::rc::Rc;

/// 64 KiB in pages. Buffers up to that are powers of two, so that they grow together again well; above, a power of two would waste up to half.
const COARSE: u32 = 16;

/// Page numbers are 32 bits wide: 8 TiB for one reactor, which is more than a machine has.
const MAX_BYTES: usize = (1 << 31) * PAGE;

const COMMON: usize = 5;
const REGIONS: usize = 6;

/// What memory is taken for; the classes of replication rule 21, most urgent first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Class {
    /// Joins and settling.
    Settle,
    /// Replica writes.
    Replica,
    /// Bringing a copy up to date.
    Resync,
    /// What admitted requests of clients need to be finished: memory to read and merge into. Its own class, so that requests
    /// which hold their payload never wait for memory that newer payloads took.
    Work,
    /// Payloads of clients' requests.
    Client,
}

/// Bytes that only one class may use. What is left belongs to whoever comes first.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Shares {
    /// For [`Class::Settle`].
    pub settle: usize,
    /// For [`Class::Replica`].
    pub replica: usize,
    /// For [`Class::Resync`].
    pub resync: usize,
    /// For [`Class::Work`].
    pub work: usize,
    /// For [`Class::Client`].
    pub client: usize,
}

impl Shares {
    /// An eighth of `bytes` for each class, three eighths for all.
    pub fn even(bytes: usize) -> Self {
        let each = bytes / 8 / PAGE * PAGE;
        Self { settle: each, replica: each, resync: each, work: each, client: each }
    }

    /// The least arena whose [`Shares::even`] keep a piece of `longest` bytes (no more than [`MAX_LEN`]) for each class, whatever the
    /// others took. A buddy system finds a piece only in a block of the next power of two: with less, a request could wait for ever.
    pub const fn least_even(longest: usize) -> usize {
        8 * longest.next_multiple_of(PAGE).next_power_of_two()
    }

    /// No reserves: for a reactor that only serves clients.
    pub fn only_client() -> Self {
        Self::default()
    }

    fn in_order(self) -> [usize; COMMON] {
        [self.settle, self.replica, self.resync, self.work, self.client]
    }
}

/// What stands behind the memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Backing {
    /// Ordinary memory; the kernel uses huge pages when it has them.
    Heap,
    /// Ordinary memory that takes no more than what is touched of it: for many arenas, each of which does little.
    SmallPages,
    /// Huge pages that the administrator reserved.
    HugePages,
}

/// How to make an arena.
#[derive(Clone, Copy, Debug)]
pub struct ArenaOptions {
    /// Its size; rounded up to whole pages, or whole huge pages.
    pub bytes: usize,
    /// What stands behind it.
    pub backing: Backing,
    /// The reserves.
    pub shares: Shares,
}

/// Why there is no arena.
#[derive(Debug, thiserror::Error)]
pub enum ArenaError {
    /// Nothing asked for, or more than page numbers can count.
    #[error("an arena of {0} bytes cannot be made: ask for 4 KiB to 8 TiB")]
    Size(usize),
    /// More reserved than there is.
    #[error("the classes reserve {reserved} bytes of an arena of {bytes}: reserve less or make it larger")]
    Shares {
        /// The sum of the shares.
        reserved: usize,
        /// The size asked for.
        bytes: usize,
    },
    /// The system has no ordinary memory left.
    #[error(
        "no memory for an arena of {bytes} bytes ({error}): make it smaller, or raise the memory limit of this process"
    )]
    NoMemory {
        /// The size asked for.
        bytes: usize,
        /// The kernel's word.
        error: nix::errno::Errno,
    },
    /// Memory on files that cannot be had.
    #[error(transparent)]
    Named(#[from] NamedError),
    /// Too few huge pages are reserved.
    #[error(transparent)]
    TooFewHugePages(#[from] TooFewHugePages),
    /// They are there, but not for this process.
    #[error(
        "{pages} huge pages of 2 MiB are free, but not to be had ({error}): raise hugetlb.2MB.max of the process's control group, or use ordinary memory"
    )]
    NoHugePages {
        /// How many it takes.
        pages: u64,
        /// The kernel's word.
        error: nix::errno::Errno,
    },
}

/// One reactor's memory. A clone is the same arena; it cannot leave its thread.
#[derive(Clone)]
pub struct Arena(Rc<Shared>);

/// What an arena's clones and buffers have in common; gone, with the mapping, after the last of them.
pub(crate) struct Shared {
    /// The files behind the mapping, if any; before it, since they watch its range.
    _files: Vec<Piece>,
    pub(crate) mapping: Mapping,
    table: Table<Mem>,
    regions: RefCell<[Buddy; REGIONS]>,
    /// Which own regions are kept for the holder of a [`crate::Reservation`].
    reserved: Cell<[bool; COMMON]>,
    /// The first byte of each region.
    starts: [usize; REGIONS],
    capacity: usize,
}

impl Arena {
    /// Maps the memory and sets the reserves aside.
    pub fn new(options: ArenaOptions) -> Result<Self, ArenaError> {
        Self::placed(options, Placement::Anywhere)
    }

    /// The same on memory nodes of one's choice.
    pub fn placed(options: ArenaOptions, placement: Placement) -> Result<Self, ArenaError> {
        Self::behind(options, None, placement)
    }

    /// The same on files, of which `options.backing` says nothing: on NVDIMM above all. They keep their names and their bytes when the
    /// arena goes, for the next one that is made of as many bytes under the same names.
    pub fn on_files(bytes: usize, shares: Shares, files: &NamedFiles) -> Result<Self, ArenaError> {
        Self::behind(ArenaOptions { bytes, backing: Backing::Heap, shares }, Some(files), Placement::Anywhere)
    }

    fn behind(options: ArenaOptions, files: Option<&NamedFiles>, placement: Placement) -> Result<Self, ArenaError> {
        let ArenaOptions { bytes, backing, shares } = options;
        if bytes == 0 || bytes > MAX_BYTES {
            return Err(ArenaError::Size(bytes));
        }
        let unit = if backing == Backing::HugePages { HUGE_PAGE } else { PAGE };
        let capacity = NonZeroUsize::new(bytes.next_multiple_of(unit)).ok_or(ArenaError::Size(bytes))?;
        let reserved = shares.in_order().into_iter().fold(0, usize::saturating_add);
        let mut sizes = [0; REGIONS];
        for (size, share) in sizes.iter_mut().zip(shares.in_order()) {
            *size = share / PAGE * PAGE;
        }
        let own: usize = if reserved <= capacity.get() { sizes.iter().sum() } else { usize::MAX };
        sizes[COMMON] = capacity.get().checked_sub(own).ok_or(ArenaError::Shares { reserved, bytes })?;
        let nodes = MemoryNodes::read();
        let place = |mapping: &Mapping| nodes.place(mapping, placement);
        let (mapping, files) = match (files, backing) {
            (Some(files), _) => files.map(capacity, &nodes)?,
            (None, Backing::Heap | Backing::SmallPages) => {
                let mapping = Mapping::heap(capacity, backing == Backing::Heap);
                let mapping = mapping.map_err(|error| ArenaError::NoMemory { bytes, error })?;
                place(&mapping);
                (mapping, Vec::new())
            }
            (None, Backing::HugePages) => {
                let mapping = Mapping::huge(capacity, place).map_err(|error| no_huge_pages(capacity.get(), error))?;
                (mapping, Vec::new())
            }
        };
        let mut starts = [0; REGIONS];
        for region in 1..REGIONS {
            starts[region] = starts[region - 1] + sizes[region - 1];
        }
        let regions = RefCell::new(sizes.map(|size| Buddy::new(pages(size))));
        Ok(Self(Rc::new(Shared {
            _files: files,
            mapping,
            table: Table::new(),
            regions,
            reserved: Cell::default(),
            starts,
            capacity: capacity.get(),
        })))
    }

    /// Ordinary memory without reserves, for tests and the simulator. Panics if the system has none.
    pub fn small(bytes: usize) -> Self {
        let made = Self::new(ArenaOptions { bytes, backing: Backing::SmallPages, shares: Shares::only_client() });
        made.unwrap_or_else(|error| panic!("{error}"))
    }

    /// A buffer of `len` bytes (1 to [`MAX_LEN`], else `None`), 4096-aligned, of unspecified content: it may be another
    /// volume's, so overwrite all that you show. `None` is back-pressure: wait until some comes back, with a
    /// [`Arena::reserve`] of it where others may ask for less.
    pub fn take(&self, len: usize, class: Class) -> Option<Filling> {
        match self.0.reserved.get()[class as usize] {
            false => self.take_own(len, class),
            true => self.take_common(len),
        }
    }

    /// The same, whoever the class's own region is kept for.
    pub(crate) fn take_own(&self, len: usize, class: Class) -> Option<Filling> {
        self.take_of(len, &[COMMON, class as usize])
    }

    /// Keeps a class's own region for one, or for nobody any more; false if it was so already.
    pub(crate) fn reserve_for(&self, class: Class, one: bool) -> bool {
        let mut all = self.0.reserved.get();
        let before = std::mem::replace(&mut all[class as usize], one);
        self.0.reserved.set(all);
        before != one
    }

    /// Like [`Arena::take`], of what is no class's own: for what may be kept for long, and must not be missing to any class.
    pub fn take_common(&self, len: usize) -> Option<Filling> {
        self.take_of(len, &[COMMON])
    }

    /// Like [`Arena::take_common`], and only where a quarter of that stays free: for what makes somebody faster who can
    /// do without, and who may keep it for long.
    pub fn take_spare(&self, len: usize) -> Option<Filling> {
        let kept = (self.0.capacity - self.0.starts[COMMON]) / 4;
        let free = self.0.regions.borrow()[COMMON].free() as usize * PAGE;
        if free < kept + set_aside(len) { None } else { self.take_common(len) }
    }

    fn take_of(&self, len: usize, of: &[usize]) -> Option<Filling> {
        if len == 0 || len > MAX_LEN {
            return None;
        }
        let pages = rounded(pages(len.next_multiple_of(PAGE)));
        let (region, page) = {
            let mut regions = self.0.regions.borrow_mut();
            of.iter().find_map(|region| Some((*region, regions[*region].take(pages)?)))?
        };
        let at = self.0.starts[region] + page as usize * PAGE;
        #[expect(clippy::cast_possible_truncation, reason = "below REGIONS")]
        let mem = Mem { region: region as u8, page, pages, at };
        Some(Filling::new(self.0.table.insert(mem), Rc::clone(&self.0), len))
    }

    /// Like [`Arena::take`], filled with zeros.
    pub fn take_zeroed(&self, len: usize, class: Class) -> Option<Filling> {
        let mut zeros = self.take(len, class)?;
        zeros.fill(0);
        Some(zeros)
    }

    /// Bytes that are set aside for buffers, rounding included.
    pub fn in_use(&self) -> usize {
        let free: u32 = self.0.regions.borrow().iter().map(Buddy::free).sum();
        self.0.capacity - free as usize * PAGE
    }

    /// Bytes that `class` could still take, not always in one piece.
    pub fn free(&self, class: Class) -> usize {
        let regions = self.0.regions.borrow();
        (regions[class as usize].free() + regions[COMMON].free()) as usize * PAGE
    }

    /// Its size in bytes.
    pub fn capacity(&self) -> usize {
        self.0.capacity
    }

    /// All of it, for a device to register: its first byte and its length. Both stay what they are for as long as the arena lives.
    pub fn range(&self) -> (NonNull<u8>, usize) {
        let len = self.0.mapping.len();
        (self.0.mapping.at(0, len), len)
    }

    /// The assertion at the end: `Err` names every buffer that is still held, and why.
    pub fn leaks(&self) -> Result<(), LeakReport> {
        self.0.table.leaks()
    }
}

impl Shared {
    /// Returns the pages of buffers whose last hold went.
    pub(crate) fn collect(&self) {
        while let Some(mem) = self.table.reap() {
            self.regions.borrow_mut()[usize::from(mem.region)].give(mem.page, mem.pages);
        }
    }
}

impl fmt::Debug for Arena {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "arena: {} of {} bytes in use", self.in_use(), self.capacity())
    }
}

fn no_huge_pages(bytes: usize, error: nix::errno::Errno) -> ArenaError {
    let pages = HugePages::for_bytes(bytes);
    HugePages::read().check(pages).err().map_or(ArenaError::NoHugePages { pages, error }, ArenaError::from)
}

/// `bytes`, a multiple of a page, in pages.
fn pages(bytes: usize) -> u32 {
    #[expect(clippy::cast_possible_truncation, reason = "no arena is larger than MAX_BYTES, no buffer than MAX_LEN")]
    let pages = (bytes / PAGE) as u32;
    pages
}

/// Bytes that an arena sets aside for a buffer of `len`: so much is missing to others as long as it is there, however little of it is used.
pub fn set_aside(len: usize) -> usize {
    match len {
        0 => 0,
        len => rounded(pages(len.min(MAX_LEN).next_multiple_of(PAGE))) as usize * PAGE,
    }
}

fn rounded(pages: u32) -> u32 {
    if pages <= COARSE { pages.next_power_of_two() } else { pages.next_multiple_of(COARSE) }
}
