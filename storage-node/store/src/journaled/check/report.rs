//! What a check found, and what a store is made of as far as it could be read.

use super::super::geometry::Geometry;
use crate::opening::Identity;
use crate::{FillMark, Held, Usage};
use conductor_model::{Blocks, Configuration, CopyId, SnapshotId, Stamp};
use std::fmt;

/// Findings that are listed; of those beyond only the number is kept.
pub const MAX_FINDINGS: usize = 1000;

/// How bad.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Severity {
    /// Nothing is lost: it is there a second time, or a crash may leave it so. Put right when the store is opened or reads it.
    Notice,
    /// Something is lost, or the store's books are wrong.
    Error,
    /// The store cannot be opened.
    Fatal,
}

/// What kind of thing.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Part {
    /// One of the two superblocks, or both.
    Superblock,
    /// The map of places for pages.
    Map,
    /// A metadata page, or its place.
    Page,
    /// A copy's record or its list above K.
    Copy,
    /// A layer's record.
    Layer,
    /// A mapping entry.
    Entry,
    /// A chunk's record: who owns it.
    Chunk,
    /// The journal.
    Journal,
    /// A block of data.
    Block,
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Superblock => "superblock",
            Self::Map => "map",
            Self::Page => "page",
            Self::Copy => "copy",
            Self::Layer => "layer",
            Self::Entry => "entry",
            Self::Chunk => "chunk",
            Self::Journal => "journal",
            Self::Block => "block",
        })
    }
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Notice => "notice",
            Self::Error => "error",
            Self::Fatal => "fatal",
        })
    }
}

/// Something that is not as it should be.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finding {
    /// In what.
    pub part: Part,
    /// Which one, for a person.
    pub at: String,
    /// What is wrong with it.
    pub what: String,
    /// How bad.
    pub severity: Severity,
    /// True if a scrub of the volume puts it right from another copy.
    pub by_scrub: bool,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} {}: {}", self.severity, self.part, self.at, self.what)
    }
}

/// How much was looked at.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Totals {
    /// Metadata pages, each in both mirrors.
    pub pages: u64,
    /// Mapping entries.
    pub entries: u64,
    /// Chunks that entries name.
    pub chunks: u64,
    /// Blocks whose content was compared with its checksum, those in the journal included.
    pub blocks: u64,
}

/// A superblock as it was read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SuperblockSeen {
    /// Which block of the disk.
    pub block: u64,
    /// Its generation and boot, or why it is none.
    pub state: Result<(u64, u64), String>,
}

/// A copy as the disk has it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CopySeen {
    /// Its name.
    pub copy: CopyId,
    /// The newest configuration that it joined.
    pub config: Configuration,
    /// Its known-good point.
    pub known_good: Stamp,
    /// Changes above it.
    pub held: Vec<Held>,
    /// How far its filling is; all zero unless it is being filled.
    pub mark: FillMark,
    /// Its live layer.
    pub live: u32,
    /// Blocks that it takes up by itself, in whole chunks, as of the last checkpoint.
    pub used: Blocks,
}

/// A layer as the disk has it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LayerSeen {
    /// Its number.
    pub layer: u32,
    /// Whose.
    pub copy: CopyId,
    /// What shows through it.
    pub parent: Option<u32>,
    /// Its name.
    pub snapshot: Option<SnapshotId>,
    /// True if it is a copy's live layer. Neither live nor named: on its way out.
    pub live: bool,
    /// Its size.
    pub blocks: u32,
    /// The version of all that it says nothing of.
    pub base: Stamp,
    /// Chunks before this one were given back, or merged into the layer above.
    pub cursor: u32,
    /// Chunks of its own.
    pub chunks: u32,
}

/// The journal as the disk has it.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct JournalSeen {
    /// True if it is on a disk of its own.
    pub external: bool,
    /// Its size in blocks.
    pub blocks: u32,
    /// The block at which replay begins, and the sequence of the first group.
    pub tail: (u32, u64),
    /// The same behind the last group; `None` if it was not read, or cannot be.
    pub head: Option<(u32, u64)>,
    /// Groups that count, and records in them.
    pub groups: u64,
    /// See `groups`.
    pub records: u64,
    /// Groups that a crash cut short: never acknowledged.
    pub torn_groups: u64,
}

/// What a store is made of.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Content {
    /// Both superblocks.
    pub superblocks: Vec<SuperblockSeen>,
    /// Whose it is; `None` if no superblock is good.
    pub identity: Option<Identity>,
    /// How it is divided.
    pub geometry: Option<Geometry>,
    /// Space, as an opening would find it.
    pub usage: Option<Usage>,
    /// Places for pages that are taken, of how many.
    pub places: Option<(u32, u32)>,
    /// All copies.
    pub copies: Vec<CopySeen>,
    /// All layers, oldest first.
    pub layers: Vec<LayerSeen>,
    /// The journal.
    pub journal: JournalSeen,
}

/// All that a check has to say.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Report {
    /// What is wrong, at most [`MAX_FINDINGS`].
    pub findings: Vec<Finding>,
    /// Findings that are not listed.
    pub unlisted: u64,
    /// How much was looked at.
    pub totals: Totals,
    /// What the store is made of.
    pub content: Content,
}

impl Report {
    pub(super) fn find(&mut self, severity: Severity, part: Part, at: impl Into<String>, what: impl Into<String>) {
        self.put(Finding { part, at: at.into(), what: what.into(), severity, by_scrub: false });
    }

    /// The same of what another copy can replace.
    pub(super) fn find_repairable(&mut self, part: Part, at: String, what: &str) {
        self.put(Finding { part, at, what: what.to_owned(), severity: Severity::Error, by_scrub: true });
    }

    pub(super) fn put(&mut self, finding: Finding) {
        if self.findings.len() < MAX_FINDINGS {
            self.findings.push(finding);
        } else {
            self.unlisted += 1;
        }
    }

    /// True if nothing is wrong.
    pub fn is_good(&self) -> bool {
        self.findings.is_empty()
    }
}
