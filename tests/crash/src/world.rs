//! A store at work on its disks, driven within the caller's contract, with a flat model of what it holds.

use crate::content::{self, Content, ZEROS};
use crate::disk::{Disks, Step};
use crate::engine::{Ability, Engine, Progress, Refused, Shape};
use crate::flying::{Flying, What, clash, parent, range, view};
use crate::model::{Change, Copy, Image, When};
use crate::moment::Moments;
use crate::mood::Mood;
use crate::trace;
use conductor_model::{BLOCK, Blocks, Bytes, CopyId, SnapshotId, Stamp};
use driver::{Span, Time};
use memory::{Arena, Class};
use node_store::{Store, StoreDone, StoreError, StoreOp, Tag, block_crcs};
use sim::Rng;
use std::collections::BTreeMap;

/// Sizes of copies, in blocks: some 20 to 50 chunks, of a whole number of chunks or not.
const COPY_BLOCKS: std::ops::Range<u64> = 300..800;
/// The same where maps have two levels, which they get at 127 chunks: written in some spots alone, so that the data has room.
const WIDE_COPY_BLOCKS: std::ops::Range<u64> = 1_900..6_000;
/// One of so many stores is one of those.
const WIDE: u64 = 8;
/// Memory for a store and what is asked of it.
const ARENA_BYTES: usize = 96 << 20;
/// Turns in which nothing happens although something is in flight: after so many it never will.
const STUCK_TURNS: u32 = 20_000;
/// Longest step of time in a turn.
const TURN: Span = Span::micros(300);
/// Turns that quiescing may take: background work is bounded by the disk's size.
const QUIESCE_TURNS: u32 = 50_000;

/// How often what was done.
#[derive(Clone, Default, Debug)]
pub struct Counts {
    /// Operations by kind.
    pub operations: BTreeMap<&'static str, u64>,
    /// Crashes by moment.
    pub moments: Moments,
    /// Everything else.
    pub other: BTreeMap<&'static str, u64>,
}

impl Counts {
    /// One more.
    pub fn bump(&mut self, what: &'static str) {
        *self.other.entry(what).or_default() += 1;
    }

    /// All of another's.
    pub fn add(&mut self, other: &Self) {
        self.moments.add(&other.moments);
        other.operations.iter().for_each(|(what, n)| *self.operations.entry(what).or_default() += n);
        other.other.iter().for_each(|(what, n)| *self.other.entry(what).or_default() += n);
    }
}

/// An operation that succeeded, and the data that it wrote or read.
pub(crate) struct Seen {
    pub(crate) copy: u64,
    pub(crate) what: What,
    pub(crate) data: Option<Vec<u8>>,
}

pub(crate) struct World<E: Engine> {
    pub(crate) shape: Shape,
    pub(crate) disks: Disks,
    pub(crate) arena: Arena,
    /// `None` only between two lives.
    pub(crate) store: Option<E::Store>,
    pub(crate) rng: Rng,
    pub(crate) now: Time,
    pub(crate) copies: BTreeMap<u64, Copy>,
    pub(crate) flying: BTreeMap<u64, Flying>,
    pub(crate) completions: When,
    pub(crate) mood: Mood,
    pub(crate) counts: Counts,
    /// Reads may say that a block is damaged: something was planted.
    pub(crate) damaged: bool,
    /// What succeeded, in order, for somebody who follows.
    pub(crate) seen: Option<Vec<Seen>>,
    /// Sizes that copies are made with.
    pub(crate) copy_blocks: std::ops::Range<u64>,
    next_tag: u64,
    next_content: u64,
    pub(crate) next_copy: u64,
    pub(crate) next_snapshot: u64,
    idle_turns: u32,
}

impl<E: Engine> World<E> {
    /// A fresh store.
    pub(crate) fn new(seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let shape = Shape {
            journal: rng.below(4),
            data_blocks: 1_500 + u32::try_from(rng.below(4)).expect("small") * 900,
            copies: 5,
        };
        let mut this = Self::with(shape, rng.next_u64());
        if rng.below(WIDE) == 0 {
            this.copy_blocks = WIDE_COPY_BLOCKS;
            this.counts.bump("wide");
        }
        this
    }

    /// A fresh store of this shape.
    pub(crate) fn with(shape: Shape, seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let disks = Disks::new(&E::disks(shape), rng.fork());
        let mut this = Self::on(shape, disks, rng);
        this.format();
        let store = this.open().expect("it is not stopped").expect("a fresh store opens");
        this.store = Some(store);
        this
    }

    /// On disks that are there; not opened yet.
    pub(crate) fn on(shape: Shape, disks: Disks, rng: Rng) -> Self {
        Self {
            shape,
            disks,
            arena: Arena::small(ARENA_BYTES),
            store: None,
            rng,
            now: Time(1_000_000),
            copies: BTreeMap::new(),
            flying: BTreeMap::new(),
            completions: 0,
            mood: Mood::default(),
            counts: Counts::default(),
            damaged: false,
            seen: None,
            copy_blocks: COPY_BLOCKS,
            next_tag: 1,
            next_content: 1,
            next_copy: 1,
            next_snapshot: 1,
            idle_turns: 0,
        }
    }

    /// The same world on other disks that hold the same, at rest; not opened yet.
    pub(crate) fn on_copies_of(&self, disks: Disks, seed: u64) -> Self {
        let fresh = Self::on(self.shape, disks, Rng::new(seed));
        Self {
            copies: self.copies.clone(),
            now: self.now,
            completions: self.completions,
            next_tag: self.next_tag,
            next_content: self.next_content,
            next_copy: self.next_copy,
            next_snapshot: self.next_snapshot,
            ..fresh
        }
    }

    fn format(&mut self) {
        let disks = &mut self.disks;
        let mut progress = E::format(self.shape, &self.arena, &mut |op| disks.submit(op)).expect("the shape fits");
        loop {
            let Step::Done(done) = self.disks.step() else { panic!("a formatting waits for its disk") };
            let disks = &mut self.disks;
            match progress.done(self.now, done, &mut |op| disks.submit(op)) {
                Some(result) => return result.expect("an empty disk is formatted"),
                None => self.now = self.now + Span::micros(10),
            }
        }
    }

    /// Open what is on the disks; `None` if it was stopped at that.
    pub(crate) fn open(&mut self) -> Option<Result<E::Store, Refused>> {
        let disks = &mut self.disks;
        let mut progress: Box<dyn Progress<E::Store>> =
            match E::open(self.shape, &self.arena, &mut |op| disks.submit(op)) {
                Ok(progress) => progress,
                Err(refused) => return Some(Err(refused)),
            };
        loop {
            match self.disks.step() {
                Step::Done(done) => {
                    let disks = &mut self.disks;
                    if let Some(result) = progress.done(self.now, done, &mut |op| disks.submit(op)) {
                        return Some(result);
                    }
                }
                Step::Stopped => return None,
                Step::Idle => panic!("an opening waits for its disk, which has nothing to do"),
            }
            self.now = self.now + Span::micros(10);
        }
    }

    pub(crate) fn store(&self) -> &E::Store {
        self.store.as_ref().expect("it is alive")
    }

    /// May this be in flight beside all that is?
    pub(crate) fn may(&self, copy: u64, what: &What) -> bool {
        let new = Flying { copy, what: what.clone() };
        !self.flying.values().any(|old| clash(old, &new))
    }

    /// For `--trace`.
    pub(crate) fn tell(&self, what: impl FnOnce() -> String) {
        if trace::is_on() {
            println!("{:?} {}", self.now, what());
        }
    }

    /// The next contents, for so many blocks.
    pub(crate) fn contents(&mut self, blocks: u32) -> Content {
        let first = self.next_content;
        self.next_content += u64::from(blocks);
        Content(first)
    }

    /// Hand an operation to the store; false if there is no memory for it now.
    pub(crate) fn submit(&mut self, copy: u64, what: What) -> bool {
        let Some(op) = self.op(copy, &what) else { return false };
        *self.counts.operations.entry(what.name()).or_default() += 1;
        if let Some(model) = self.copies.get_mut(&copy) {
            model.submitted += u64::from(what.is_change());
            if let What::Write { known, .. }
            | What::Zero { known, .. }
            | What::Share { known, .. }
            | What::Snapshot { known, .. }
            | What::Rollback { known, .. }
            | What::Known { stamp: known }
            | What::Mark { known: Some(known), .. } = &what
            {
                model.told = model.told.max(*known);
            }
            if let Some(held) = what.held(model.whole()) {
                model.newest = model.newest.max(held.stamp);
            }
        }
        let tag = self.next_tag;
        self.next_tag += 1;
        self.tell(|| format!("asked {tag}: copy {copy} {what:?}"));
        self.flying.insert(tag, Flying { copy, what });
        let disks = &mut self.disks;
        let store = self.store.as_mut().expect("it is alive");
        store.submit(self.now, Tag(tag), op, &mut |op| disks.submit(op));
        true
    }

    fn op(&self, id: u64, what: &What) -> Option<StoreOp> {
        let copy = CopyId(id);
        Some(match what.clone() {
            What::Write { at, first, stamp, known, durable } => {
                let data = content::memory(&self.arena, (0..at.count.0).map(|n| Content(first.0 + u64::from(n))))?;
                let crcs = block_crcs(&data);
                StoreOp::Write { copy, stamp, at, data, crcs, known_good: known, durable }
            }
            What::Zero { at, stamp, known, durable } => StoreOp::Zero { copy, stamp, at, known_good: known, durable },
            What::Share { at, stamp, known, from } => {
                StoreOp::Share { copy, stamp, at, from: parent(from), known_good: known }
            }
            What::Repair { view: of, at } => {
                let data = content::memory(&self.arena, self.image(id, of)?.range(at).iter().copied())?;
                let crcs = block_crcs(&data);
                StoreOp::Repair { copy, view: view(of), at, data, crcs }
            }
            What::Read { view: of, at } => {
                let mut into = self.arena.take(at.count.0 as usize * BLOCK, Class::Client)?;
                into.fill(0xa5);
                StoreOp::Read { copy, view: view(of), at, into }
            }
            What::Extents { view: of, from, .. } => {
                let at = range(from, u32::MAX - from);
                StoreOp::Extents { copy, view: view(of), at }
            }
            What::Snapshot { id, stamp, known } => {
                StoreOp::Snapshot { copy, stamp, snapshot: SnapshotId(id), known_good: known }
            }
            What::Rollback { id, stamp, known } => {
                StoreOp::Rollback { copy, stamp, snapshot: SnapshotId(id), known_good: known }
            }
            What::Drop { id } => StoreOp::DropSnapshot { copy, snapshot: SnapshotId(id) },
            What::Create { config, parent: from } => StoreOp::Create { copy, config, parent: from.map(parent) },
            What::Join { config } => StoreOp::Join { copy, config },
            What::Delete => StoreOp::Delete { copy },
            What::Sync { .. } => StoreOp::Flush { copy },
            What::Flatten => StoreOp::Flatten { copy },
            What::Above => StoreOp::Above { copy },
            What::Known { stamp } => StoreOp::KnownGood { copy, stamp },
            What::Mark { mark, known, .. } => StoreOp::Mark { copy, mark, known_good: known },
        })
    }

    /// What a view should read as.
    pub(crate) fn image(&self, copy: u64, view: Option<u64>) -> Option<&Image> {
        let copy = self.copies.get(&copy)?;
        view.map_or(Some(&copy.live), |id| copy.snapshot(id))
    }

    /// Some completions, the end of the turn, and what came of it; false when the disks are to be stopped here.
    pub(crate) fn turn(&mut self) -> bool {
        let mut steps = 0;
        for _ in 0..=self.rng.below(6) {
            match self.disks.step() {
                Step::Done(done) => {
                    let disks = &mut self.disks;
                    let store = self.store.as_mut().expect("it is alive");
                    store.done(self.now, done, &mut |op| disks.submit(op));
                    steps += 1;
                }
                Step::Idle => break,
                Step::Stopped => return false,
            }
        }
        let disks = &mut self.disks;
        let store = self.store.as_mut().expect("it is alive");
        store.end_turn(self.now, &mut |op| disks.submit(op));
        let finished = self.complete();
        self.now = self.now + Span(self.rng.below(TURN.0));
        if steps == 0 && finished == 0 && self.disks.is_idle() {
            self.idle_turns += 1;
            assert!(
                self.flying.is_empty() || self.idle_turns < STUCK_TURNS,
                "stuck: nothing comes of {:?}",
                self.flying.values().collect::<Vec<_>>()
            );
            if let Some(deadline) = self.store().next_deadline() {
                self.now = self.now.max(deadline);
            }
        } else {
            self.idle_turns = 0;
        }
        true
    }

    /// Until nothing is in flight; false when stopped.
    pub(crate) fn drain(&mut self) -> bool {
        for _ in 0..QUIESCE_TURNS {
            if self.flying.is_empty() && self.disks.is_idle() {
                return true;
            }
            if !self.turn() {
                return false;
            }
        }
        panic!("the store never comes to rest: in flight {:?}", self.flying.values().collect::<Vec<_>>());
    }

    /// Until the store has nothing to do any more, not even later; false when stopped.
    pub(crate) fn quiesce(&mut self) -> bool {
        for _ in 0..QUIESCE_TURNS {
            if !self.turn() {
                return false;
            }
            let store = self.store();
            if self.flying.is_empty() && self.disks.is_idle() && store.idle() && store.next_deadline().is_none() {
                return true;
            }
        }
        panic!("the store never comes to rest");
    }

    /// Do one thing, alone.
    pub(crate) fn run(&mut self, copy: u64, what: What) {
        assert!(self.submit(copy, what), "there is memory for one operation");
        while !self.flying.is_empty() {
            assert!(self.turn(), "nothing stops this");
        }
    }

    /// Take completions into the model. Says how many there were.
    fn complete(&mut self) -> u32 {
        let mut finished = 0;
        while let Some((Tag(tag), result)) = self.store.as_mut().expect("it is alive").next_completion() {
            let flying = self.flying.remove(&tag).expect("a completion comes once, for what was submitted");
            finished += 1;
            self.completions += 1;
            self.tell(|| {
                format!("over {tag}: {}", result.as_ref().err().map_or(String::from("done"), |error| error.to_string()))
            });
            if let (Some(seen), Ok(done)) = (&mut self.seen, &result) {
                let data = match (&flying.what, done) {
                    (What::Write { at, first, .. }, _) => Some(content::bytes(*first, at.count.0)),
                    (_, StoreDone::Read(data, _)) => Some(data.to_vec()),
                    _ => None,
                };
                seen.push(Seen { copy: flying.copy, what: flying.what.clone(), data });
            }
            self.completed(flying, result);
        }
        finished
    }

    fn completed(&mut self, Flying { copy: id, what }: Flying, result: Result<StoreDone, StoreError>) {
        let when = self.completions;
        let result = match result {
            Err(error) => return self.failed(id, &what, &error),
            Ok(done) => done,
        };
        if let What::Create { config, parent } = what {
            return self.created(id, config, parent);
        }
        if let What::Delete = what {
            self.copies.remove(&id);
            return;
        }
        let source = if let What::Share { from: (copy, snapshot), .. } = what {
            self.image(copy, Some(snapshot)).cloned()
        } else {
            None
        };
        let damaged = self.damaged;
        let model = self.copies.get_mut(&id).expect("its copy is there");
        if let Some(held) = what.held(model.whole()) {
            let first = if let What::Write { first, .. } = what { Some(first) } else { None };
            let loose = matches!(what, What::Write { durable: false, .. } | What::Zero { durable: false, .. });
            model.changes.push(Change { held, first, certain: true, loose: loose.then_some(when) });
        }
        match (what, result) {
            (What::Write { at, first, known, durable, .. }, StoreDone::Done) => {
                for n in 0..at.count.0 {
                    let content = Content(first.0 + u64::from(n));
                    if durable {
                        model.live.set(at.from.0 + n, content);
                    } else {
                        model.live.set_loosely(at.from.0 + n, content, when);
                    }
                }
                model.carry(known, durable);
            }
            (What::Zero { at, known, durable, .. }, StoreDone::Done) => {
                for n in at.from.0..at.from.0 + at.count.0 {
                    if durable {
                        model.live.set(n, ZEROS);
                    } else {
                        model.live.set_loosely(n, ZEROS, when);
                    }
                }
                model.carry(known, durable);
            }
            (What::Share { at, known, .. }, StoreDone::Done) => {
                model.live.take_range(at, &source.expect("nothing dropped it meanwhile"));
                model.carry(known, true);
            }
            (What::Read { view, at }, StoreDone::Read(data, crcs)) => {
                assert_eq!(block_crcs(&data), crcs, "the checksums of a read are those of its data");
                let image =
                    view.map_or(Some(&model.live), |id| model.snapshot(id)).expect("nothing dropped it meanwhile");
                for (n, block) in (at.from.0..).zip(data.chunks(BLOCK)) {
                    let found = content::of(block);
                    assert!(
                        found == Some(image.get(n)),
                        "wrong data{}: block {n} of copy {id} view {view:?} reads as {found:?}, not {:?}",
                        if damaged { " after damage" } else { "" },
                        image.get(n)
                    );
                }
            }
            (What::Extents { view, from, submitted }, StoreDone::Extents { data, next }) => {
                assert!(next.0 > from && next.0 <= model.blocks(), "extents from {from} go on at {next}");
                if submitted == Some(model.submitted) {
                    let image = view.map_or(Some(&model.live), |id| model.snapshot(id)).expect("it is there");
                    for n in (from..next.0).filter(|n| image.get(*n) != ZEROS) {
                        let named = data.iter().any(|at| at.overlaps(range(n, 1)));
                        assert!(named, "block {n} of copy {id} view {view:?} holds data and is in none of {data:?}");
                    }
                }
            }
            (What::Snapshot { id, known, .. }, StoreDone::Done) => {
                if model.snapshot(id).is_none() {
                    model.snapshots.push((id, model.live.clone()));
                }
                model.carry(known, true);
            }
            (What::Rollback { id, known, .. }, StoreDone::Done) => {
                let size = model.blocks();
                model.live = model.snapshot(id).expect("it is there").clone();
                model.live.resize(size);
                model.carry(known, true);
            }
            (What::Drop { id }, StoreDone::Done) => model.snapshots.retain(|(other, _)| *other != id),
            (What::Join { config }, StoreDone::Done) => model.join(config),
            (What::Sync { until }, StoreDone::Done) => model.settle(until),
            (What::Mark { mark, known, until }, StoreDone::Done) => {
                model.settle(until);
                model.marked(mark, known);
                assert_eq!(self.store.as_ref().map(|store| store.fill_mark(CopyId(id))), Some(model.mark));
            }
            (What::Flatten, StoreDone::Done) => model.parent = None,
            (What::Repair { .. } | What::Known { .. }, StoreDone::Done) => {}
            (What::Above, StoreDone::Above { known_good, held }) => {
                if !self.flying.values().any(|flying| flying.copy == id && flying.what.is_change()) {
                    model.check_above(known_good, &held).unwrap_or_else(|error| panic!("copy {id}: {error}"));
                }
            }
            (what, other) => panic!("{what:?} of copy {id} was answered {other:?}"),
        }
    }

    fn created(&mut self, id: u64, config: conductor_model::Configuration, from: Option<(u64, u64)>) {
        let blocks = blocks(config.size);
        let image = match from {
            None => Image::zeros(blocks),
            Some((copy, snapshot)) => {
                let mut image = self.image(copy, Some(snapshot)).expect("its parent is there").clone();
                image.resize(blocks);
                image
            }
        };
        self.copies.insert(id, Copy::new(config, image, from));
    }

    fn failed(&mut self, id: u64, what: &What, error: &StoreError) {
        let needed = |snapshot: Option<u64>| {
            self.copies.values().any(|copy| {
                copy.parent.is_some_and(|(parent, of)| parent == id && snapshot.is_none_or(|snapshot| snapshot == of))
            }) || self.flying.values().any(|flying| matches!(flying.what, What::Flatten))
        };
        let fine = match (what, error) {
            (
                What::Write { .. } | What::Share { .. } | What::Create { .. } | What::Snapshot { .. } | What::Flatten,
                StoreError::NoSpace,
            ) => {
                // Space is promised to what is in flight, by the chunk; beyond that it must not be refused while half is free.
                let promised = |what: &What| {
                    if let What::Write { at, .. } | What::Share { at, .. } = what { at.count.0 + 32 } else { 0 }
                };
                let promised: u32 =
                    self.flying.values().map(|flying| promised(&flying.what)).sum::<u32>() + promised(what);
                let usage = self.store().usage();
                let free = usage.free().saturating_sub(u64::from(promised));
                assert!(free < u64::from(usage.capacity.0) / 2, "no space for {what:?} with {usage:?}");
                true
            }
            (What::Delete, StoreError::Needed(_)) => needed(None),
            (What::Drop { id }, StoreError::Needed(_)) => needed(Some(*id)),
            (What::Read { at, .. }, StoreError::Corrupt { copy, block }) => {
                self.damaged && *copy == CopyId(id) && at.overlaps(range(block.0, 1))
            }
            // What is damaged is just being carried home: it is to be asked for again.
            (What::Repair { .. }, StoreError::Busy) => self.damaged,
            _ => false,
        };
        assert!(fine, "{what:?} of copy {id} failed: {error}");
        self.counts.bump(match error {
            StoreError::NoSpace => "answered: no space",
            StoreError::Needed(_) => "answered: needed",
            StoreError::Busy => "answered: later",
            _ => "answered: damaged",
        });
    }

    /// A stamp for the next change.
    pub(crate) fn stamp(&mut self, copy: u64) -> Stamp {
        let model = self.copies.get_mut(&copy).expect("it is there");
        let mut next = model.newest;
        next.sequence.0 += 1;
        if next.epoch < model.config.epoch {
            next = Stamp { epoch: model.config.epoch, sequence: conductor_model::Sequence(1) };
        }
        model.newest = next;
        next
    }

    /// A known-good point to tell: below all that is in flight or not synced, at a change that is there; or what was told before.
    pub(crate) fn known(&mut self, copy: u64) -> Stamp {
        let flying = self.flying.values().filter(|flying| flying.copy == copy);
        let model = &self.copies[&copy];
        let stamps = flying.filter_map(|flying| Some(flying.what.held(model.whole())?.stamp));
        let loose = model.changes.iter().filter(|change| change.loose.is_some()).map(|change| change.held.stamp);
        let below = stamps.chain(loose).min();
        let known: Vec<Stamp> = model
            .changes
            .iter()
            .filter(|change| change.certain && change.held.stamp > model.told)
            .map(|change| change.held.stamp)
            .filter(|stamp| below.is_none_or(|below| *stamp < below))
            .collect();
        if known.is_empty() || self.rng.below(3) > 0 {
            return model.told;
        }
        known[self.rng.index(known.len())]
    }

    /// Blocks that the live contents of all copies hold.
    pub(crate) fn held(&self) -> u32 {
        self.copies.values().map(|copy| copy.live.held()).sum()
    }

    pub(crate) fn check_usage(&self) {
        let usage = self.store().usage();
        if E::can(Ability::ExactUsage) {
            assert_eq!(usage.used, Blocks(self.held()), "usage is true to the block");
        }
        assert_eq!(usage.copies as usize, self.copies.len(), "usage counts the copies");
    }
}

pub(crate) fn blocks(size: Bytes) -> u32 {
    u32::try_from(size.0 / BLOCK as u64).expect("small")
}
