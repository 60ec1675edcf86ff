//! The offline check: is all on a disk as the engine must have left it? Reads, never writes; a crash may be behind it.
//!
//! ```text
//! superblocks → map of pages → copies, layers, lists, bitmap → maps of layers ─► who owns which place, who shares which chunk
//!             → journal, replayed in memory as an opening does → (data: each block against its checksum)
//! ```
//! Promised: nothing is written, whatever the disk holds; it ends, without a panic, after as many reads as the store has pages, twice,
//! and blocks; memory is bounded by the journal, the copies and layers, a bit per place and [`WINDOW`] chunks. What cannot be
//! read hides what hangs below it: then nothing is said to be leaked.

mod catalog;
mod data;
mod journal;
mod ownership;
mod report;

pub use report::{
    Content, CopySeen, Finding, JournalSeen, LayerSeen, MAX_FINDINGS, Part, Report, Severity, SuperblockSeen, Totals,
};

use super::Kind;
use super::engine::Place;
use super::limits::{CHUNK_BLOCKS, SPARE_CHUNKS, SUPERBLOCKS};
use super::open::region;
use super::pages::{ArrayName, Flaw, FlawedPage, PlaceSet, Walk};
use super::ring::RingPlace;
use super::superblock::{self, CHUNKS, NoSuperblock, Superblock};
use crate::Usage;
use catalog::Found;
use conductor_model::{BLOCK, Blocks, Bytes};
use data::Data;
use driver::DiskIndex;
use memory::Arena;

/// Reads whole blocks of a disk into memory of that size; false if it cannot.
pub type ReadDisk<'a> = dyn FnMut(DiskIndex, u64, &mut [u8]) -> bool + 'a;

/// How far to look.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Depth {
    /// What the store is made of: superblocks, copies, layers, journal.
    Catalog,
    /// All metadata.
    Structure,
    /// And every block of data against its checksum.
    Data,
}

/// What to check.
#[derive(Clone, Copy, Debug)]
pub struct CheckOptions {
    /// Which disk.
    pub disk: DiskIndex,
    /// Its size.
    pub size: Bytes,
    /// The disk with its journal and that one's size, where the store has it elsewhere.
    pub journal: Option<(DiskIndex, Bytes)>,
    /// How far.
    pub depth: Depth,
}

/// Checks a store. `arena`: 8 MiB or more, for reading the journal. `progress` is told blocks of data as they are read.
pub fn check(options: &CheckOptions, arena: &Arena, read: &mut ReadDisk<'_>, progress: &mut dyn FnMut(u64)) -> Report {
    let mut report = Report::default();
    if let Some(superblock) = superblocks(options, read, &mut report) {
        Check { options, arena, superblock, report: &mut report }.run(read, progress);
    }
    report
}

/// The newest superblock of this disk, if it can be used.
fn superblocks(options: &CheckOptions, read: &mut ReadDisk<'_>, report: &mut Report) -> Option<Superblock> {
    let mut seen = Vec::new();
    for block in SUPERBLOCKS {
        let mut page = [0; BLOCK];
        let at = block * BLOCK as u64;
        let there = at + BLOCK as u64 <= options.size.0 && read(options.disk, at, &mut page);
        let superblock = match Superblock::decode(&page) {
            _ if !there => Err("it cannot be read".to_owned()),
            Ok(superblock) => Ok(superblock),
            Err(NoSuperblock::Foreign) => Err("it is none of a store's".to_owned()),
            Err(NoSuperblock::Damaged) => Err("it does not read as it was written".to_owned()),
            Err(NoSuperblock::Unreadable(errno)) => Err(format!("it cannot be read: {errno}")),
            Err(NoSuperblock::Version(version)) => Err(format!("it has format version {version}, which is not known")),
        };
        let state = superblock.as_ref().map(|good| (good.generation, good.boot)).map_err(Clone::clone);
        report.content.superblocks.push(SuperblockSeen { block, state });
        seen.push((block, superblock));
    }
    let newest = match &seen[..] {
        [(_, Ok(first)), (_, Ok(second))] if superblock::differ([first, second]) => {
            let mut look =
                |at: u64, page: &mut [u8]| at + page.len() as u64 <= options.size.0 && read(options.disk, at, page);
            match [first, second].map(|its| its.is_of_disk(&mut look)) {
                [true, false] => Some(*first),
                [false, true] => Some(*second),
                _ => {
                    let what = "they are of different stores, and neither's map is on this disk";
                    report.find(Severity::Fatal, Part::Superblock, "in both blocks", what);
                    [*first, *second].into_iter().max_by_key(|good| good.generation)
                }
            }
        }
        _ => seen.iter().filter_map(|(_, seen)| seen.as_ref().ok()).max_by_key(|good| good.generation).copied(),
    };
    let severity = if newest.is_some() { Severity::Notice } else { Severity::Fatal };
    for (block, state) in &seen {
        match (state, newest) {
            (Err(why), _) => report.find(severity, Part::Superblock, format!("in block {block}"), why.clone()),
            (Ok(own), Some(newest)) if own.identity != newest.identity || own.geometry != newest.geometry => {
                let what = "it is of another store than the other one";
                report.find(Severity::Notice, Part::Superblock, format!("in block {block}"), what);
            }
            (Ok(own), Some(newest)) if newest.generation - own.generation > 1 => {
                let what = format!("it has generation {}, and the other one {}", own.generation, newest.generation);
                report.find(Severity::Notice, Part::Superblock, format!("in block {block}"), what);
            }
            _ => {}
        }
    }
    let superblock = newest?;
    report.content.identity = Some(superblock.identity);
    report.content.geometry = Some(superblock.geometry);
    let need = superblock.geometry.size();
    if options.size < need {
        let what = format!("the store needs {need} and the disk has {}", options.size);
        report.find(Severity::Fatal, Part::Superblock, "of the newest generation", what);
        return None;
    }
    Some(superblock)
}

/// A check under way.
struct Check<'a> {
    options: &'a CheckOptions,
    arena: &'a Arena,
    superblock: Superblock,
    report: &'a mut Report,
}

impl Check<'_> {
    fn run(&mut self, read: &mut ReadDisk<'_>, progress: &mut dyn FnMut(u64)) {
        let Superblock { identity, geometry, tail, .. } = self.superblock;
        let (options, report) = (self.options, &mut *self.report);
        let place = Place { disk: options.disk, identity, geometry };
        let mut pages = |at: u64, into: &mut [u8]| read(options.disk, at, into);
        let mut flaws = Vec::new();
        let mut note = |flaw: FlawedPage| {
            // Bounded: what is not listed is only counted.
            if flaws.len() <= MAX_FINDINGS {
                flaws.push(flaw);
            } else {
                report.unlisted += 1;
            }
        };
        let mut walk = Walk {
            region: region(&place),
            visited: PlaceSet::new(geometry.places()),
            pages: 0,
            blind: false,
            flaws: &mut note,
        };
        let mut findings = Report::default();
        let taken = catalog::read_map(&self.superblock, &walk, &mut pages, &mut findings);
        let mut found = Found::read(&self.superblock, &mut walk, &mut pages, &mut findings);
        let structure = options.depth >= Depth::Structure;
        if structure {
            ownership::check(&self.superblock, &mut found, &mut walk, &mut pages, &mut findings);
            if let Some(taken) = &taken {
                let region = walk.region;
                let superblock = &self.superblock;
                ownership::compare_places(superblock, region, &walk.visited, taken, walk.blind, &mut findings);
            }
        }
        findings.totals.pages = walk.pages;
        let Walk { region, .. } = walk;
        for flaw in flaws {
            findings.put(page_finding(flaw));
        }
        let ring_place = RingPlace {
            disk: options.journal.map_or(options.disk, |(disk, _)| disk),
            start: geometry.ring_start(),
            blocks: geometry.ring_blocks(),
            disk_id: identity.disk,
            kind: Kind::Ring as u8,
        };
        findings.content = std::mem::take(&mut report.content);
        findings.content.journal = JournalSeen {
            external: geometry.external_journal(),
            blocks: geometry.ring_blocks(),
            tail: (tail.position.0, tail.sequence),
            ..JournalSeen::default()
        };
        findings.content.places = taken.map(|taken| (taken.count(geometry.places()), geometry.places()));
        journal::replay(options, &self.superblock, ring_place, self.arena, &mut found, read, &mut findings);
        if options.depth == Depth::Data && found.whole {
            let data = Data { superblock: &self.superblock, place, region, found: &found };
            data.check(read, &mut findings, progress);
        }
        found.describe(&mut findings.content);
        let used = found.space.used();
        findings.content.usage = Some(Usage {
            capacity: Blocks(geometry.capacity()),
            used: Blocks(used * CHUNK_BLOCKS),
            copies: u32::try_from(found.catalog.copies.len()).unwrap_or(u32::MAX),
            max_copies: geometry.max_copies(),
            near_full: found.space.available() < (geometry.chunks() - SPARE_CHUNKS) / 16,
        });
        // What was found of the superblocks comes first.
        let unlisted = report.unlisted + findings.unlisted;
        let first = std::mem::take(&mut report.findings);
        *report = Report { findings: first, unlisted, totals: findings.totals, content: findings.content };
        findings.findings.into_iter().for_each(|finding| report.put(finding));
    }
}

/// True if what the page knew of is put right with the content of another copy: where something is written, the page is replaced.
fn by_scrub(array: ArrayName, flaw: Flaw) -> bool {
    matches!(flaw, Flaw::Damaged | Flaw::Lost) && !catalog::needed_to_open(array)
}

fn page_finding(page: FlawedPage) -> Finding {
    let FlawedPage { array, level, index, place, flaw } = page;
    let name = catalog::array_name(array);
    let (severity, what) = match flaw {
        Flaw::Mirror(mirror) => (
            Severity::Notice,
            format!("its {} mirror is damaged, the other is good", ["first", "second"][usize::from(mirror & 1)]),
        ),
        Flaw::Damaged if catalog::needed_to_open(array) => (Severity::Fatal, "both mirrors are damaged".to_owned()),
        Flaw::Damaged => (Severity::Error, "both mirrors are damaged".to_owned()),
        Flaw::Twice => (Severity::Error, "another page is in the same place".to_owned()),
        // What has a chunk whose record is there is found by itself.
        Flaw::Lost if array == CHUNKS => (Severity::Notice, "it is lost, with the page above it".to_owned()),
        Flaw::Lost => (Severity::Error, "it is lost, with the page above it".to_owned()),
        Flaw::Beyond => (Severity::Error, "it is beyond what the store has".to_owned()),
    };
    let at = format!("{index} of level {level} of {name}, in place {}", place.0);
    Finding { part: Part::Page, at, what, severity, by_scrub: by_scrub(array, flaw) }
}
