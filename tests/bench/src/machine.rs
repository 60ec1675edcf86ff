//! The store on its reactor, and the requests that keep it busy: what a node does, without a node.

use crate::load::Pattern;
use crate::tally::Tally;
use conductor_model::{BLOCK, BlockRange, CopyId, Epoch, Sequence, Stamp};
use driver::{Done, Machine, Op, Outbox, Span, Time};
use memory::{Arena, Class, Reads};
use node_store::journaled::{Format, JournaledStore, Kind, Opening, kind_of};
use node_store::{Crcs, Store, StoreDone, StoreError, StoreOp, Tag, block_crcs};
use reactor::clock;
use std::collections::{BTreeSet, VecDeque};
use std::convert::Infallible;

/// The only copy.
pub(crate) const COPY: CopyId = CopyId(1);
/// Tags of single operations, beside those of a load.
const SINGLE: Tag = Tag(u64::MAX);

/// Where the disk's life is.
pub(crate) enum State {
    None,
    Formatting(Box<Format>),
    Formatted,
    Opening(Box<Opening>),
    Open(Box<JournaledStore>),
}

/// Something to write, different each time it is taken.
struct Content {
    pieces: Vec<(Reads, Crcs)>,
    next: usize,
}

impl Content {
    /// 16 MiB of memory at most.
    fn new(arena: &Arena, blocks: u32, seed: u64) -> anyhow::Result<Self> {
        let len = blocks as usize * BLOCK;
        let count = ((16 << 20) / len).clamp(2, 64);
        let mut random = crate::load::Random::new(seed);
        let mut pieces = Vec::new();
        for _ in 0..count {
            let mut memory = arena.take(len, Class::Client).ok_or_else(|| anyhow::anyhow!("no memory for content"))?;
            for word in memory.chunks_exact_mut(4) {
                word.copy_from_slice(&random.below(u32::MAX).to_le_bytes());
            }
            let memory = memory.filled();
            let crcs = block_crcs(&memory);
            pieces.push((memory, crcs));
        }
        Ok(Self { pieces, next: 0 })
    }

    fn take(&mut self) -> (Reads, Crcs) {
        self.next = (self.next + 1) % self.pieces.len();
        let (memory, crcs) = &self.pieces[self.next];
        (memory.share(), crcs.clone())
    }
}

/// A closed loop of writes.
pub(crate) struct Load {
    pattern: Pattern,
    content: Content,
    depth: usize,
    /// No request begins after this.
    until: Option<Time>,
    /// Those in flight: where, and when they began.
    flying: Vec<(Tag, BlockRange, Time)>,
    exhausted: bool,
    pub(crate) done: u64,
    pub(crate) blocks: u64,
    /// Nanoseconds of each request; for percentiles.
    pub(crate) latencies: Vec<u32>,
}

impl Load {
    pub(crate) fn new(
        arena: &Arena,
        pattern: Pattern,
        blocks: u32,
        depth: usize,
        until: Option<Time>,
        seed: u64,
    ) -> anyhow::Result<Self> {
        let content = Content::new(arena, blocks, seed)?;
        let flying = Vec::with_capacity(depth);
        Ok(Self { pattern, content, depth, until, flying, exhausted: false, done: 0, blocks: 0, latencies: Vec::new() })
    }

    pub(crate) fn is_over(&self) -> bool {
        self.exhausted && self.flying.is_empty()
    }

    pub(crate) fn into_pattern(self) -> Pattern {
        self.pattern
    }
}

/// The machine. See the module's head.
pub(crate) struct Bench {
    pub(crate) state: State,
    pub(crate) load: Option<Load>,
    pub(crate) tally: Tally,
    /// What came of the last single operation.
    pub(crate) single: Option<Result<StoreDone, StoreError>>,
    pub(crate) failure: Option<String>,
    /// Superblocks stay here, so that no fold ends and the journal fills up.
    pub(crate) hold_superblocks: bool,
    held: Vec<Op>,
    /// The next turn waits a moment at most.
    poked: bool,
    sequence: u64,
    /// From `known_good + 1` on: which of the changes are over.
    over: VecDeque<bool>,
    known_good: u64,
    /// The checksum that each block must have.
    pub(crate) expected: Vec<u32>,
    /// But for these, which were in flight at a crash.
    pub(crate) unknown: BTreeSet<u32>,
    pub(crate) cached_most: u64,
}

fn stamp(sequence: u64) -> Stamp {
    Stamp { epoch: Epoch(1), sequence: Sequence(sequence) }
}

impl Bench {
    pub(crate) fn new(volume_blocks: u32) -> Self {
        Self {
            state: State::None,
            load: None,
            tally: Tally::default(),
            single: None,
            failure: None,
            hold_superblocks: false,
            held: Vec::new(),
            poked: false,
            sequence: 0,
            over: VecDeque::new(),
            known_good: 0,
            expected: vec![node_store::ZERO_BLOCK_CRC; volume_blocks as usize],
            unknown: BTreeSet::new(),
            cached_most: 0,
        }
    }

    /// The same, for the next life of the disk. What was in flight is there or is not.
    pub(crate) fn reborn(self) -> Self {
        let Self { expected, sequence, known_good, load, cached_most, .. } = self;
        let flying = load.into_iter().flat_map(|load| load.flying);
        let unknown = flying.flat_map(|(_, at, _)| at.from.0..at.from.0 + at.count.0).collect();
        Self { sequence: sequence + 1, known_good, expected, unknown, cached_most, ..Self::new(0) }
    }

    pub(crate) fn store(&self) -> Option<&JournaledStore> {
        match &self.state {
            State::Open(store) => Some(store),
            _ => None,
        }
    }

    /// The stamp of a change of its own, and K.
    pub(crate) fn stamps(&mut self) -> (Stamp, Stamp) {
        debug_assert!(self.over.is_empty(), "single changes come between loads");
        self.sequence += 1;
        self.known_good = self.sequence;
        (stamp(self.sequence), stamp(self.sequence - 1))
    }

    fn finish(&mut self, tag: Tag, now: Time) {
        let Some(load) = &mut self.load else { return };
        let Some(n) = load.flying.iter().position(|(name, ..)| *name == tag) else { return };
        let (_, at, began) = load.flying.swap_remove(n);
        load.done += 1;
        load.blocks += u64::from(at.count.0);
        load.latencies.push(u32::try_from(now.since(began).0).unwrap_or(u32::MAX));
        if let Some(over) = usize::try_from(tag.0 - self.known_good - 1).ok().and_then(|n| self.over.get_mut(n)) {
            *over = true;
        }
        while self.over.front() == Some(&true) {
            self.over.pop_front();
            self.known_good += 1;
        }
    }

    /// Requests that are over make room for the next ones, until nothing comes of it any more.
    fn go_on(&mut self, now: Time, out: &mut dyn FnMut(Op)) {
        let mut store = match std::mem::replace(&mut self.state, State::None) {
            State::Open(store) => store,
            other => {
                self.state = other;
                return;
            }
        };
        loop {
            let mut finished = false;
            while let Some((tag, result)) = store.next_completion() {
                finished = true;
                match result {
                    _ if tag == SINGLE => self.single = Some(result),
                    Ok(_) => self.finish(tag, now),
                    Err(error) => self.failure = Some(format!("a write failed: {error}")),
                }
            }
            let began = self.refill(&mut store, now, out);
            if !finished && !began {
                break;
            }
            store.end_turn(now, out);
        }
        self.cached_most = self.cached_most.max(store.cached().0);
        self.state = State::Open(store);
    }

    fn refill(&mut self, store: &mut JournaledStore, now: Time, out: &mut dyn FnMut(Op)) -> bool {
        let Some(load) = &mut self.load else { return false };
        load.exhausted |= load.until.is_some_and(|until| now >= until);
        let mut began = false;
        while !load.exhausted && load.flying.len() < load.depth {
            let Some(at) = load.pattern.next() else {
                load.exhausted = true;
                break;
            };
            // The caller of a store keeps overlapping changes apart.
            let (from, end) = (u64::from(at.from.0), at.end());
            if load.flying.iter().any(|(_, other, _)| from < other.end() && u64::from(other.from.0) < end) {
                continue;
            }
            let (data, crcs) = load.content.take();
            self.sequence += 1;
            self.over.push_back(false);
            let tag = Tag(self.sequence);
            self.expected[at.from.0 as usize..][..at.count.0 as usize].copy_from_slice(&crcs);
            load.flying.push((tag, at, now));
            let (stamp, known_good) = (stamp(self.sequence), stamp(self.known_good));
            let op = StoreOp::Write { copy: COPY, stamp, at, data, crcs, known_good, durable: true };
            store.submit(now, tag, op, out);
            began = true;
        }
        began
    }

    fn with_out(&mut self, out: &mut dyn Outbox<Infallible>, act: impl FnOnce(&mut Self, &mut dyn FnMut(Op))) {
        let mut ops = Vec::new();
        act(self, &mut |op| ops.push(op));
        for op in ops {
            let is_super = matches!(&op, Op::DiskWrite { tag, .. } if kind_of(*tag) == Some(Kind::Super));
            if self.hold_superblocks && is_super {
                self.held.push(op);
                continue;
            }
            self.tally.note(&op);
            out.submit(op);
        }
    }
}

/// How a state machine of the store begins.
pub(crate) type Start<T> = Box<dyn FnOnce(&mut dyn FnMut(Op)) -> Result<T, String>>;

/// What the bench tells its machine.
pub(crate) enum Command {
    Format(Start<Format>),
    Open(Start<Opening>),
    Single(StoreOp),
    Load(Load),
    /// Nothing: a turn that waits for nothing.
    Poke,
}

impl Machine for Bench {
    type Mail = Command;
    type Letter = Infallible;

    fn start(&mut self, _: Time, _: &mut dyn Outbox<Infallible>) {}

    fn done(&mut self, now: Time, done: Done, out: &mut dyn Outbox<Infallible>) {
        self.with_out(out, |this, out| match &mut this.state {
            State::Open(store) => store.done(now, done, out),
            State::Opening(opening) => match opening.done(now, done, out) {
                Some(Ok(store)) => this.state = State::Open(Box::new(store)),
                Some(Err(error)) => this.failure = Some(format!("the store does not open: {error}")),
                None => {}
            },
            State::Formatting(format) => match format.done(done, out) {
                Some(Ok(_)) => this.state = State::Formatted,
                Some(Err(error)) => this.failure = Some(format!("the disk cannot be formatted: {error}")),
                None => {}
            },
            State::None | State::Formatted => {}
        });
    }

    fn mail(&mut self, now: Time, command: Command, out: &mut dyn Outbox<Infallible>) {
        self.with_out(out, |this, out| match command {
            Command::Format(start) => match start(out) {
                Ok(format) => this.state = State::Formatting(Box::new(format)),
                Err(error) => this.failure = Some(error),
            },
            Command::Open(start) => match start(out) {
                Ok(opening) => this.state = State::Opening(Box::new(opening)),
                Err(error) => this.failure = Some(error),
            },
            Command::Single(op) => {
                if let State::Open(store) = &mut this.state {
                    this.single = None;
                    store.submit(now, SINGLE, op, out);
                    store.end_turn(now, out);
                }
                this.go_on(now, out);
            }
            Command::Poke => this.poked = true,
            Command::Load(load) => {
                this.poked = false;
                this.load = Some(load);
                this.go_on(now, out);
            }
        });
    }

    fn end_turn(&mut self, now: Time, out: &mut dyn Outbox<Infallible>) {
        self.with_out(out, |this, out| {
            // What is over brings the next requests, so that they go with this turn's group.
            this.go_on(now, out);
            if let State::Open(store) = &mut this.state {
                store.end_turn(now, out);
            }
            this.go_on(now, out);
        });
    }

    fn next_deadline(&self) -> Option<Time> {
        let soon = self.poked.then(|| clock::now() + Span::millis(10));
        self.store().and_then(Store::next_deadline).into_iter().chain(soon).min()
    }

    fn finished(&self) -> bool {
        false
    }
}
