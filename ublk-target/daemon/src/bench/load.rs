//! The machine: so many requests in flight at the volume client, for so long.

use super::histogram::Histogram;
use super::{Figures, Pattern, Shape, StageFigures};
use conductor_model::Bytes;
use conductor_model::api::VolumeMap;
use driver::{Done, Machine, Outbox, Span, Time};
use memory::{Arena, Class, Reads};
use refcount::LeakReport;
use slab::Slab;
use volume_client::{BlockError, BlockOp, BlockRequest, Stage, VolumeClient};
use wire::Crcs;

/// How often figures are told.
const TELL_EVERY: Span = Span::seconds(1);
/// The volume client had no room: again after this.
const AGAIN: Span = Span::millis(1);
/// Contents that are written, in turn: no two of them are equal, and none is compressible.
const CONTENTS: u64 = 16;

/// What the process tells the machine.
#[derive(Debug)]
pub(crate) enum Mail {
    Map(Box<VolumeMap>),
    /// Finish what is in flight, and end.
    Stop,
    /// Fail it, and end.
    Abort,
}

/// What the machine tells the process.
#[derive(Debug)]
pub(crate) enum Letter {
    WantsMap,
    /// So far; once more at the end.
    Figures(Box<Figures>),
}

/// A request in flight.
struct Flying {
    since: Time,
    /// A flush is of no kind.
    read: Option<bool>,
}

/// See the module's head.
pub(crate) struct Load {
    client: VolumeClient,
    shape: Shape,
    contents: Vec<(Reads, Crcs)>,
    flying: Slab<Flying>,
    random: u64,
    /// Where a sequence goes on, in requests.
    next: u64,
    /// Changes since the last flush.
    unflushed: u32,
    /// From the first answer on, which is not counted: until then connections are made.
    began: Option<Time>,
    last: Time,
    told: Time,
    again: Option<Time>,
    over: bool,
    said_all: bool,
    reads: Histogram,
    writes: Histogram,
    flushes: Histogram,
    error: Option<BlockError>,
}

impl Load {
    /// `None` if there is no memory for what is written.
    pub(crate) fn new(client: VolumeClient, arena: &Arena, shape: Shape, seed: u64) -> Option<Self> {
        let mut random = seed | 1;
        let contents = (0..if shape.pattern.writes() { CONTENTS } else { 0 }).map(|_| {
            let mut memory = arena.take(shape.bytes as usize, Class::Client)?;
            memory
                .chunks_mut(8)
                .for_each(|chunk| chunk.copy_from_slice(&draw(&mut random).to_le_bytes()[..chunk.len()]));
            let memory = memory.filled();
            let crcs = wire::pieces(&memory);
            Some((memory, crcs))
        });
        Some(Self {
            contents: contents.collect::<Option<_>>()?,
            client,
            shape,
            flying: Slab::new(),
            random,
            next: 0,
            unflushed: 0,
            began: None,
            last: Time(0),
            told: Time(0),
            again: None,
            over: false,
            said_all: false,
            reads: Histogram::new(),
            writes: Histogram::new(),
            flushes: Histogram::new(),
            error: None,
        })
    }

    /// The assertion at the end.
    pub(crate) fn leaks(&self) -> Result<(), LeakReport> {
        self.client.leaks()
    }

    /// True if the volume client got something.
    fn fill(&mut self, now: Time) -> bool {
        let mut any = false;
        self.over |= self.began.is_some_and(|began| now.since(began) >= self.shape.time);
        while !self.over && self.flying.len() < usize::from(self.shape.depth) {
            let vacant = self.flying.vacant_entry();
            let tag = vacant.key() as u64;
            let flush = self.shape.flush_every.is_some_and(|every| self.unflushed >= every);
            let (request, read) = if flush {
                (BlockRequest { tag, op: BlockOp::Flush, offset: Bytes(0), len: Bytes(0), fua: false }, None)
            } else {
                let (request, read) =
                    request(tag, &self.shape, &self.contents, &mut self.random, self.next, self.client.size());
                (request, Some(read))
            };
            if self.client.submit(now, request).is_err() {
                self.again = Some(now + AGAIN);
                break;
            }
            vacant.insert(Flying { since: now, read });
            self.next += u64::from(read.is_some());
            self.unflushed = if flush { 0 } else { self.unflushed + u32::from(read == Some(false)) };
            any = true;
        }
        any
    }

    /// True if there was one.
    fn answers(&mut self, now: Time) -> bool {
        let mut any = false;
        while let Some(completion) = self.client.next_completion() {
            let key = usize::try_from(completion.tag).unwrap_or(usize::MAX);
            let Some(Flying { since, read }) = self.flying.try_remove(key) else { continue };
            any = true;
            if let Err(error) = completion.result {
                self.error.get_or_insert(error);
                self.over = true;
                continue;
            }
            self.last = now;
            if self.began.is_none() {
                self.began = Some(now);
                continue;
            }
            let of = match read {
                Some(true) => &mut self.reads,
                Some(false) => &mut self.writes,
                None => &mut self.flushes,
            };
            of.add(now.since(since).0);
        }
        any
    }

    fn figures(&self, now: Time) -> Figures {
        let seconds = self.began.map_or(0.0, |began| self.last.since(began).0 as f64 / 1e9);
        let requests = self.reads.count() + self.writes.count();
        let rate = |count: u64| if seconds > 0.0 { count as f64 / seconds } else { 0.0 };
        Figures {
            seconds,
            requests,
            rate: rate(requests),
            bytes_per_second: rate(requests) * f64::from(self.shape.bytes),
            reads: (self.reads.count() > 0).then(|| self.reads.latency()),
            writes: (self.writes.count() > 0).then(|| self.writes.latency()),
            flushes: (self.flushes.count() > 0).then(|| self.flushes.latency()),
            read_classes: self.reads.classes(),
            write_classes: self.writes.classes(),
            stages: self.stages(now),
            waits_for: self
                .client
                .view(now)
                .waiting
                .into_iter()
                .map(|wait| format!("{}: {}", wait.shard, wait.reason))
                .collect(),
            error: self.error.map(|error| error.to_string()),
        }
    }

    /// Of the requests that finished last: from one position to the next.
    fn stages(&self, now: Time) -> Vec<StageFigures> {
        let traces = self.client.view(now).traces;
        let between = |from: Stage, to: Stage| {
            let mut histogram = Histogram::new();
            for stages in &traces {
                if let (Some(from), Some(to)) = (stages.at[from as usize], stages.at[to as usize]) {
                    histogram.add(to.since(from).0);
                }
            }
            histogram
        };
        let names = Stage::ALL.windows(2).map(|two| (two[0], two[1]));
        let figures = names.map(|((from, from_name), (to, to_name))| {
            let histogram = between(from, to);
            StageFigures { from: from_name, to: to_name, requests: histogram.count(), latency: histogram.latency() }
        });
        figures.filter(|figures| figures.requests > 0).collect()
    }
}

/// The next request of a load, and whether it reads.
fn request(
    tag: u64,
    shape: &Shape,
    contents: &[(Reads, Crcs)],
    random: &mut u64,
    next: u64,
    size: Bytes,
) -> (BlockRequest, bool) {
    let places = (size.0 / u64::from(shape.bytes)).max(1);
    let place = if shape.pattern.is_random() { draw(random) % places } else { next % places };
    let read = match shape.pattern {
        Pattern::Read | Pattern::Randread => true,
        Pattern::Write | Pattern::Randwrite => false,
        Pattern::Randrw => draw(random) % 100 < u64::from(shape.read_percent),
    };
    let (offset, len) = (Bytes(place * u64::from(shape.bytes)), Bytes(u64::from(shape.bytes)));
    let content = usize::try_from(next).ok().and_then(|next| contents.get(next % contents.len().max(1)));
    let op = match content.filter(|_| !read) {
        Some((data, crcs)) => BlockOp::Write { data: data.share(), crcs: Some(crcs.clone()) },
        None => BlockOp::Read,
    };
    (BlockRequest { tag, op, offset, len, fua: false }, read)
}

/// xorshift64*.
fn draw(state: &mut u64) -> u64 {
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    state.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16
}

impl Machine for Load {
    type Mail = Mail;
    type Letter = Letter;

    fn start(&mut self, now: Time, _: &mut dyn Outbox<Letter>) {
        self.told = now;
    }

    fn done(&mut self, now: Time, done: Done, out: &mut dyn Outbox<Letter>) {
        self.client.done(now, done, out);
    }

    fn mail(&mut self, now: Time, mail: Mail, out: &mut dyn Outbox<Letter>) {
        match mail {
            Mail::Map(map) => self.client.map(now, &map),
            Mail::Stop => self.over = true,
            Mail::Abort => {
                self.over = true;
                self.client.abort(now, out);
            }
        }
    }

    fn end_turn(&mut self, now: Time, out: &mut dyn Outbox<Letter>) {
        self.again = None;
        self.fill(now);
        self.client.end_turn(now, out);
        self.answers(now);
        if self.fill(now) {
            // What there was room for only now leaves in this turn, too.
            self.client.end_turn(now, out);
            if self.answers(now) {
                self.again = Some(now); // a flush with nothing to be flushed is over at once: no completion brings the next turn
            }
        }
        if self.client.wants_map(now) {
            out.post(Letter::WantsMap);
        }
        let all = self.over && self.flying.is_empty();
        if all {
            self.client.stop();
        }
        if (all && !self.said_all) || now.since(self.told) >= TELL_EVERY {
            (self.told, self.said_all) = (now, all);
            out.post(Letter::Figures(Box::new(self.figures(now))));
        }
    }

    fn next_deadline(&self) -> Option<Time> {
        let ends = self.began.filter(|_| !self.over).map(|began| began + self.shape.time);
        let tells = (!self.said_all).then(|| self.told + TELL_EVERY);
        [self.again, ends, tells, self.client.next_deadline()].into_iter().flatten().min()
    }

    fn finished(&self) -> bool {
        self.said_all && self.flying.is_empty() && self.client.finished()
    }
}
