//! Reads the journal at opening: gives every record that counts, in order, and where appending goes on.
//!
//! ```text
//!   ┌──────── the next group ◄───────┐
//!   ▼                                │
//!  Find ──header──► Payload ──verified┘ ──► pending ──whole, or proven──► ready ──► next_record
//!   │ none           ▲
//!   ▼                │ header from the echo
//!  Search ───────────┘
//!   │ no header in reach continues the chain: what is pending was torn
//!   ▼
//!  Sync ──► (something torn) Overwrite ──► Over
//! ```
//! A group that is not whole stays pending, and those behind it, until one of them says that it was durable. What is left pending
//! at the end was never acknowledged. The sync makes durable what was only in the disk's cache, before anybody relies on it; and
//! where a group of this chain is given up, its header, be it torn itself, is overwritten, where it lies, by a group without records, so
//! that no later opening, after parts of it were written once more, can take it for whole. What followed it stays: of two groups that
//! have an echo of the one that is missing, the one that says that it was durable has the right one.
//!
//! A ring without a group behind the superblock's mark holds the one before it: that was stable before the superblock was written
//! (`fold/commit.rs: settle_journal`), and what lies before the mark is written over last. If there is nothing of the kind, the ring is
//! not the one that the mark was made for: an older picture of it, or none.

use super::group::{self, Head, Header, take_record};
use super::limits::{BEFORE_BLOCKS, MAX_SEAL_BLOCKS, NEWEST, SEARCH_BLOCKS, TELLING_BLOCKS};
use super::pieces::Pieces;
use super::space::Space;
use super::{JournalBlock, Mark, RingPlace, RingState};
use crate::{Crcs, DiskOut};
use conductor_model::BLOCK;
use driver::{Done, Errno, Op, mutant};
use memory::{Arena, Class, Filling, Part};
use smallvec::{SmallVec, smallvec};
use std::collections::VecDeque;

/// A record of the journal.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Replayed<'a> {
    /// As it was appended.
    pub(crate) body: &'a [u8],
    /// The checksum of each of its payload blocks.
    pub(crate) crcs: Crcs,
    /// The first of them.
    pub(crate) payload: Option<JournalBlock>,
    /// Which of them, counted from 0, do not read as they were written although they were durable.
    pub(crate) damaged: SmallVec<[u16; 4]>,
}

/// What a scan met.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct ScanCounts {
    /// Groups that count, with or without records.
    pub(crate) groups: u64,
    /// Records in them.
    pub(crate) records: u64,
    /// Headers of groups that were durable, taken from an echo.
    pub(crate) damaged_headers: u64,
    /// Payload blocks that were durable and do not read well.
    pub(crate) damaged_blocks: u64,
    /// Groups that a crash cut short, and those behind them.
    pub(crate) torn_groups: u64,
    /// Blocks that gave an error.
    pub(crate) unreadable_blocks: u64,
}

/// How a scan ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct ScanEnd {
    /// For `Ring::new`.
    pub(crate) state: RingState,
    /// What it met.
    pub(crate) counts: ScanCounts,
}

/// Why there is no journal to go on with.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub(crate) enum ScanError {
    /// The disk failed.
    #[error("the journal's disk failed: {0}")]
    Disk(Errno),
    /// No memory to read with.
    #[error("no memory to read the journal: give the node a larger arena")]
    Memory,
    /// Group headers are damaged beyond what their echoes can replace: acknowledged changes are lost here.
    #[error("group {sequence} of the journal is damaged: bring this disk's copies back from others")]
    Damaged {
        /// The first group that is lost.
        sequence: u64,
    },
    /// Neither what the superblock's mark is before is there, nor what it is behind.
    #[error("the journal is not the one that the superblock knows up to group {sequence}: it is empty, or older")]
    OtherJournal {
        /// The group that would be next.
        sequence: u64,
    },
    /// The superblock's mark is not in the ring.
    #[error(
        "the journal's mark at block {position} is beyond its {blocks} blocks: the superblock is of another journal"
    )]
    Mark {
        /// Where it points.
        position: u32,
        /// The ring's size.
        blocks: u32,
    },
    /// No room for the group that ends an opening; every group leaves it, so this ring was written by something else.
    #[error("the journal has no room left for its reserve: it was not written by this store")]
    NoRoom,
}

/// A group whose payload was looked at.
#[derive(Debug)]
struct Group {
    header: Header,
    echoed: bool,
    /// Payload blocks, counted from its first, that do not read well.
    damaged: Vec<u32>,
}

/// Where the scan is.
enum Stage {
    Find,
    Payload {
        group: Group,
        crcs: Vec<u32>,
        verified: u32,
    },
    Search {
        offset: u32,
        found: Option<Found>,
    },
    /// So many blocks before the mark were looked at.
    Before {
        offset: u32,
    },
    Sync,
    Overwrite,
    Over,
}

/// An echo of the group that is missing.
struct Found {
    echo: Box<Header>,
    /// It was durable when its echo was written.
    proven: bool,
}

/// What a step came to.
enum Step {
    Again,
    Wait,
    Fail(ScanError),
}

/// A journal being read. The caller takes all of `next_record` after `start` and each `done`; when `end` gives something, all is read.
pub(crate) struct Scan {
    place: RingPlace,
    tail: Mark,
    boot: u64,
    /// For the group that is written in the place of what is given up.
    spare: Option<Filling>,
    pieces: Pieces,
    stage: Stage,
    /// Behind the newest group that was looked at.
    cursor: Mark,
    /// The newest group that a group of this chain says was durable.
    proof: u64,
    /// The same of any group found by searching.
    evidence: u64,
    pending: VecDeque<Group>,
    /// Where the next group must begin: the beginning of its header is there, and not all of it.
    torn: Option<u32>,
    ready: VecDeque<Group>,
    /// Groups whose headers were taken from an echo: torn in flight, or damaged.
    echoed: Vec<u64>,
    /// In the first of them: bytes of records, and payload blocks, already given.
    given: (usize, u32),
    /// Behind the newest group that counts.
    state: RingState,
    counts: ScanCounts,
    end: Option<Result<ScanEnd, ScanError>>,
}

impl Scan {
    /// Begins at the superblock's mark. `boot` is this opening's number. With more than `bound` blocks that cannot be read the disk
    /// has failed.
    pub(crate) fn start(
        place: RingPlace,
        tail: Mark,
        boot: u64,
        bound: u32,
        arena: &Arena,
        out: &mut DiskOut<'_>,
    ) -> Result<Self, ScanError> {
        if tail.position.0 >= place.blocks || tail.sequence == 0 {
            return Err(ScanError::Mark { position: tail.position.0, blocks: place.blocks });
        }
        let through = tail.sequence - 1;
        let state = RingState { boot, tail, head: tail, echo: Vec::new(), told_durable: through, newest_records: 0 };
        let mut this = Self {
            place,
            tail,
            boot,
            spare: Some(arena.take(MAX_SEAL_BLOCKS as usize * BLOCK, Class::Work).ok_or(ScanError::Memory)?),
            pieces: Pieces::new(place, bound, arena).ok_or(ScanError::Memory)?,
            stage: Stage::Find,
            cursor: tail,
            proof: 0,
            evidence: 0,
            pending: VecDeque::new(),
            torn: None,
            ready: VecDeque::new(),
            echoed: Vec::new(),
            given: (0, 0),
            state,
            counts: ScanCounts::default(),
            end: None,
        };
        this.run(out);
        Ok(this)
    }

    /// One of its operations is over.
    pub(crate) fn done(&mut self, done: Done, out: &mut DiskOut<'_>) {
        let result = match (&self.stage, &done.op) {
            (Stage::Over, _) => return self.pieces.forget(&done), // it was still on its way
            (_, Op::DiskRead { .. }) => self.pieces.done(done, out),
            (Stage::Sync, Op::DiskSync { .. }) => done.result.map(|_| self.synced(out)),
            (Stage::Overwrite, Op::DiskWrite { .. }) => done.result.map(|_| self.finish(Ok(()))),
            _ => Ok(()),
        };
        match result {
            Ok(()) => self.run(out),
            Err(errno) => self.finish(Err(ScanError::Disk(errno))),
        }
    }

    /// The next record that counts.
    pub(crate) fn next_record(&mut self) -> Option<Replayed<'_>> {
        while self.ready.front().is_some_and(|group| self.given.0 >= group.header.records().len()) {
            self.ready.pop_front();
            self.given = (0, 0);
        }
        let group = self.ready.front()?;
        let mut rest = group.header.records().get(self.given.0..)?;
        let before = rest.len();
        let record = take_record(&mut rest)?;
        let (first, blocks) = (self.given.1, record.payload_blocks());
        self.given = (self.given.0 + before - rest.len(), first + blocks);
        let own = group.damaged.iter().filter_map(|block| block.checked_sub(first).filter(|own| *own < blocks));
        Some(Replayed {
            body: record.body,
            crcs: record.crcs().collect(),
            payload: (blocks > 0).then(|| JournalBlock(group.header.payload() + first)),
            damaged: own.filter_map(|own| u16::try_from(own).ok()).collect(),
        })
    }

    /// How it ended; once.
    pub(crate) fn end(&mut self) -> Option<Result<ScanEnd, ScanError>> {
        // Memory that the disk still fills comes back first.
        if self.pieces.busy() {
            return None;
        }
        self.end.take()
    }

    fn run(&mut self, out: &mut DiskOut<'_>) {
        loop {
            let step = match &self.stage {
                Stage::Find => self.find(),
                Stage::Payload { .. } => self.verify(),
                Stage::Search { .. } => self.search(out),
                Stage::Before { .. } => self.before(out),
                Stage::Sync | Stage::Overwrite | Stage::Over => return,
            };
            match step {
                Step::Again => {}
                Step::Wait => return self.pieces.pump(out),
                Step::Fail(error) => return self.finish(Err(error)),
            }
        }
    }

    /// The header at a block, if a good one is there; `None` while it is being read.
    fn header_at(&mut self, at: u32) -> Option<Option<Header>> {
        let Some(blocks) = group::seems_header(self.pieces.block(at)?, &self.place, at) else { return Some(None) };
        let mut bytes = Vec::with_capacity(blocks as usize * BLOCK);
        for block in at..at + blocks {
            bytes.extend_from_slice(self.pieces.block(block)?);
        }
        Some(Header::decode(bytes, &self.place))
    }

    /// Looks where the next group must begin: at the cursor, or at the ring's start.
    fn find(&mut self) -> Step {
        let mut places: SmallVec<[u32; 2]> = smallvec![self.cursor.position.0];
        if self.cursor.position.0 != 0 {
            places.push(0);
        }
        self.torn = None;
        for at in places {
            match self.header_at(at) {
                None => return Step::Wait,
                Some(Some(header)) if self.continues(&header.head) => return self.look_at(header, false),
                Some(_) => {}
            }
            let Some(block) = self.pieces.block(at) else { return Step::Wait };
            let begins = group::begins_as(block, &self.place);
            if self.torn.is_none() && begins.is_some_and(|head| self.continues(&head)) {
                self.torn = Some(at);
            }
        }
        self.stage = Stage::Search { offset: 0, found: None };
        Step::Again
    }

    /// True if it is the group behind the cursor, of the same chain.
    fn continues(&self, head: &Head) -> bool {
        Mark { position: self.cursor.position, ..head.at } == self.cursor
    }

    fn look_at(&mut self, header: Header, echoed: bool) -> Step {
        let mut crcs = Vec::with_capacity(header.head.payload_blocks as usize);
        let mut rest = header.records();
        while let Some(record) = take_record(&mut rest) {
            crcs.extend(record.crcs());
        }
        self.stage = Stage::Payload { group: Group { header, echoed, damaged: Vec::new() }, crcs, verified: 0 };
        Step::Again
    }

    /// Compares the payload with its checksums.
    fn verify(&mut self) -> Step {
        let Stage::Payload { group, crcs, verified } = &mut self.stage else { return Step::Again };
        while let Some(crc) = crcs.get(*verified as usize) {
            let Some(block) = self.pieces.block(group.header.payload() + *verified) else { return Step::Wait };
            if crc32c::crc32c(block) != *crc {
                group.damaged.push(*verified);
            }
            *verified += 1;
        }
        let Stage::Payload { group, .. } = std::mem::replace(&mut self.stage, Stage::Find) else { return Step::Again };
        self.cursor = group.header.end(&self.place);
        self.proof = self.proof.max(group.header.head.durable_through);
        self.pending.push_back(group);
        self.settle();
        Step::Again
    }

    /// What is whole, and what is proven to have been durable, counts.
    fn settle(&mut self) {
        while let Some(group) = self.pending.pop_front() {
            let head = group.header.head;
            if !group.damaged.is_empty() && head.at.sequence > self.proof {
                self.pending.push_front(group);
                return;
            }
            self.counts.groups += 1;
            self.echoed.extend(group.echoed.then_some(head.at.sequence));
            self.counts.damaged_blocks += group.damaged.len() as u64;
            self.state.head = group.header.end(&self.place);
            self.state.told_durable = head.durable_through;
            self.state.echo.clone_from(&group.header.bytes);
            let mut rest = group.header.records();
            if !rest.is_empty() {
                self.state.newest_records = head.at.sequence;
            }
            while take_record(&mut rest).is_some() {
                self.counts.records += 1;
            }
            self.ready.push_back(group);
        }
    }

    /// Free blocks behind the cursor.
    fn reach(&self) -> u32 {
        let space = Space { blocks: self.place.blocks, head: self.cursor.position.0, tail: self.tail.position.0 };
        space.free().min(SEARCH_BLOCKS)
    }

    /// No header is where the next group must begin. Either the journal ends here, or the header is damaged: then the group behind it
    /// has its echo, and groups behind that say that it was durable.
    fn search(&mut self, out: &mut DiskOut<'_>) -> Step {
        let reach = self.reach();
        loop {
            let Stage::Search { offset, .. } = &self.stage else { return Step::Again };
            if *offset >= reach {
                break;
            }
            let at = (self.cursor.position.0 + offset) % self.place.blocks;
            let Some(header) = self.header_at(at) else { return Step::Wait };
            if let Some(header) = header.filter(|header| header.head.at.sequence > self.cursor.sequence) {
                self.consider(&header);
            }
            let Stage::Search { offset, .. } = &mut self.stage else { return Step::Again };
            *offset += 1;
        }
        let Stage::Search { found, .. } = std::mem::replace(&mut self.stage, Stage::Find) else { return Step::Again };
        match found {
            Some(Found { echo, .. }) => self.look_at(*echo, true),
            None if self.is_doubtful() => {
                self.stage = Stage::Before { offset: 1 };
                Step::Again
            }
            None => self.end_of_chain(out),
        }
    }

    /// A later group was found by searching: what does it say about the one that is missing?
    fn consider(&mut self, later: &Header) {
        self.evidence = self.evidence.max(later.head.durable_through);
        let Some(echo) = later.echoed(&self.place).filter(|echo| self.continues(&echo.head)) else { return };
        let proven = later.head.durable_through >= echo.head.at.sequence && !mutant::on("store-first-echo");
        if let Stage::Search { found, .. } = &mut self.stage
            && found.as_ref().is_none_or(|found| proven && !found.proven)
        {
            *found = Some(Found { echo: Box::new(echo), proven });
        }
    }

    /// Nothing is behind the mark, and there was something before it, which only tests' rings are too small to keep.
    fn is_doubtful(&self) -> bool {
        let was_used = self.tail.sequence > u64::from(NEWEST) && self.place.blocks >= TELLING_BLOCKS;
        self.cursor == self.tail && was_used && !mutant::on("store-any-journal")
    }

    /// Nothing is behind the mark. Is what was before it?
    fn before(&mut self, out: &mut DiskOut<'_>) -> Step {
        loop {
            let Stage::Before { offset } = &self.stage else { return Step::Again };
            let offset = *offset;
            if offset > BEFORE_BLOCKS {
                if self.pieces.unreadable() > 0 {
                    return self.end_of_chain(out);
                }
                return Step::Fail(ScanError::OtherJournal { sequence: self.tail.sequence });
            }
            let at = (self.tail.position.0 + self.place.blocks - offset) % self.place.blocks;
            let Some(header) = self.header_at(at) else { return Step::Wait };
            // One that rotted is not missed.
            if header.is_some_and(|header| header.head.at.sequence + u64::from(NEWEST) >= self.tail.sequence) {
                return self.end_of_chain(out);
            }
            self.stage = Stage::Before { offset: offset + 1 };
        }
    }

    fn end_of_chain(&mut self, out: &mut DiskOut<'_>) -> Step {
        let next = self.state.head.sequence;
        if self.evidence >= next {
            return Step::Fail(ScanError::Damaged { sequence: next });
        }
        self.counts.torn_groups = self.pending.len() as u64;
        self.stage = Stage::Sync;
        out(Op::DiskSync { disk: self.place.disk, tag: self.place.tag(0) });
        Step::Again
    }

    /// What was read is durable now. A group that is given up gets overwritten.
    fn synced(&mut self, out: &mut DiskOut<'_>) {
        if self.pending.is_empty() && self.torn.is_none() {
            return self.finish(Ok(()));
        }
        match self.overwrite() {
            Ok(op) => {
                self.stage = Stage::Overwrite;
                out(op);
            }
            Err(error) => self.finish(Err(error)),
        }
    }

    /// A group without records in the place of the first that is given up, which is at the head or at the ring's start, and has as long an
    /// echo.
    fn overwrite(&mut self) -> Result<Op, ScanError> {
        let state = &mut self.state;
        let given_up = self.pending.front().map(|group| group.header.head.at.position.0).or(self.torn);
        let given_up = given_up.filter(|_| !mutant::on("store-given-up-stays"));
        let at = given_up.unwrap_or(state.head.position.0);
        let space = Space { blocks: self.place.blocks, head: at, tail: self.tail.position.0 };
        let blocks = group::header_blocks(0, state.echo.len());
        if space.place(blocks, 1) != Some(at) {
            return Err(ScanError::NoRoom);
        }
        let mut memory = self.spare.take().ok_or(ScanError::Memory)?;
        let head = Head {
            disk: self.place.disk_id,
            boot: self.boot,
            at: Mark { position: JournalBlock(at), ..state.head },
            durable_through: state.head.sequence - 1,
            payload_blocks: 0,
        };
        let crc = group::encode(&head, &[], &mut state.echo, &mut memory);
        state.head = head.end(blocks, crc, self.place.blocks);
        state.told_durable = head.durable_through;
        let parts = smallvec![Part { mem: memory.filled(), from: 0, len: blocks as usize * BLOCK }];
        let (disk, tag) = (self.place.disk, self.place.tag(head.at.sequence));
        Ok(Op::DiskWrite { disk, tag, at: self.place.position_bytes(JournalBlock(at)), parts, durable: true })
    }

    fn finish(&mut self, result: Result<(), ScanError>) {
        self.stage = Stage::Over;
        let durable = self.proof.max(self.evidence);
        self.counts.damaged_headers = self.echoed.iter().filter(|sequence| **sequence <= durable).count() as u64;
        self.counts.unreadable_blocks = u64::from(self.pieces.unreadable());
        self.end = Some(result.map(|()| ScanEnd { state: self.state.clone(), counts: self.counts }));
    }
}
