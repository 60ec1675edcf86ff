//! Disks at work: operations in flight, each with a moment of effect and a later one of completion, both left to chance.
//!
//! ```text
//!   submit ──── up to the latency ────▶ effect (memory is read or filled here) ────▶ completion
//!                     Apply                                                 Landed
//! ```
//!
//! So overlapping operations in flight together take effect in either order. A disk belongs to one process at a time; when that
//! one dies, all it has in flight is decided on the spot, because the next life opens the disk only after the last write.

use crate::content::{BLOCK, Content};
use crate::kernel::{Event, Kernel, ProcessId};
use crate::options::{DiskOptions, Full};
use crate::size;
use driver::{Errno, Op, Part, Span};
use std::collections::BTreeMap;
use std::ops::Range;

/// A disk of this world; it stays the same whoever uses it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct DiskId(pub(crate) u32);

const INVALID: Errno = Errno(22);

pub(crate) struct Disk {
    pub(crate) options: DiskOptions,
    pub(crate) content: Content,
    pub(crate) holder: Option<ProcessId>,
    stuck: bool,
    flights: BTreeMap<u64, Flight>,
    /// What would have happened while it was stuck.
    held: Vec<(Stage, u64)>,
    /// Names flights and, with them, writes.
    next: u64,
    completions: u64,
}

struct Flight {
    process: ProcessId,
    op: Op,
    /// From effect to completion.
    rest: Span,
    /// Set when it takes effect.
    result: Option<Result<u32, Errno>>,
    /// Completions before it was submitted.
    after: u64,
}

#[derive(Clone, Copy)]
enum Stage {
    Apply,
    Landed,
}

#[derive(Default)]
pub(crate) struct Disks {
    all: Vec<Disk>,
}

impl Disks {
    pub(crate) fn add(&mut self, options: DiskOptions) -> DiskId {
        let id = u32::try_from(self.all.len()).unwrap_or(u32::MAX);
        self.all.push(Disk {
            options,
            content: Content::default(),
            holder: None,
            stuck: false,
            flights: BTreeMap::new(),
            held: Vec::new(),
            next: 0,
            completions: 0,
        });
        DiskId(id)
    }

    pub(crate) fn get(&self, disk: DiskId) -> &Disk {
        &self.all[disk.0 as usize]
    }

    pub(crate) fn get_mut(&mut self, disk: DiskId) -> &mut Disk {
        &mut self.all[disk.0 as usize]
    }

    pub(crate) fn submit(&mut self, k: &mut Kernel, process: ProcessId, disk: DiskId, op: Op) {
        check(k, process, &op);
        let it = self.get_mut(disk);
        let whole = it.options.latency.sample(&mut k.rng);
        let wait = k.rng.span(whole);
        it.next += 1;
        let flight = it.next;
        let sync = if matches!(op, Op::DiskSync { .. }) { it.options.sync_takes } else { Span(0) };
        let rest = Span(whole.0 - wait.0 + sync.0);
        it.flights.insert(flight, Flight { process, op, rest, result: None, after: it.completions });
        k.schedule_in(wait, Event::Apply { disk, flight });
    }

    pub(crate) fn apply(&mut self, k: &mut Kernel, disk: DiskId, flight: u64) {
        let it = self.get_mut(disk);
        if it.hold(k, Stage::Apply, flight) {
            return;
        }
        if let Some(rest) = it.take_effect(k, flight) {
            k.schedule_in(rest, Event::Landed { disk, flight });
        }
    }

    pub(crate) fn landed(&mut self, k: &mut Kernel, disk: DiskId, flight: u64) {
        let it = self.get_mut(disk);
        if it.hold(k, Stage::Landed, flight) {
            return;
        }
        let Some(landed) = it.flights.remove(&flight) else { return };
        it.completions += 1;
        let result = landed.result.unwrap_or(Err(Errno::IO));
        match &landed.op {
            Op::DiskWrite { at, parts, durable, .. } => {
                let blocks = blocks_of(*at, total(parts) as u64);
                if *durable && result.is_ok() {
                    it.content.settle(flight, blocks);
                } else {
                    it.content.complete(flight, blocks, it.completions);
                }
            }
            Op::DiskPunch { at, len, .. } => it.content.complete(flight, blocks_of(*at, *len), it.completions),
            Op::DiskSync { .. } if result.is_ok() => it.content.sync(landed.after),
            _ => {}
        }
        k.complete_at(k.now, landed.process, landed.op, result);
    }

    /// Stops a disk from doing anything, or lets it go on.
    pub(crate) fn set_stuck(&mut self, k: &mut Kernel, disk: DiskId, stuck: bool) {
        let it = self.get_mut(disk);
        it.stuck = stuck;
        if !stuck {
            for (stage, flight) in std::mem::take(&mut it.held) {
                let event = match stage {
                    Stage::Apply => Event::Apply { disk, flight },
                    Stage::Landed => Event::Landed { disk, flight },
                };
                let wait = it.options.latency.sample(&mut k.rng);
                k.schedule_in(wait, event);
            }
        }
    }

    /// The disk's process died: what is in flight happens now, in part, or never; what was not settled may be lost.
    pub(crate) fn abandon(&mut self, k: &mut Kernel, disk: DiskId) {
        let it = self.get_mut(disk);
        it.held.clear();
        let mut left: Vec<u64> = it.flights.keys().copied().collect();
        while !left.is_empty() {
            let flight = left.swap_remove(k.rng.index(left.len()));
            let effect = it.flights.get(&flight).is_some_and(|flight| {
                flight.result.is_none() && matches!(flight.op, Op::DiskWrite { .. } | Op::DiskPunch { .. })
            });
            if effect {
                if k.rng.coin() {
                    it.take_effect(k, flight);
                } else {
                    k.trace.count("disk.in_flight.never");
                }
            }
        }
        it.flights.clear();
        it.content.lose(&mut k.rng, &mut k.trace);
        it.holder = None;
    }
}

impl Disk {
    /// A copy of what reads would see.
    pub(crate) fn peek(&self, at: u64, len: usize) -> Vec<u8> {
        let end = at + len as u64;
        let first = at / BLOCK as u64;
        let mut bytes = vec![0; size(end.div_ceil(BLOCK as u64) - first) * BLOCK];
        for (block, chunk) in (first..).zip(bytes.chunks_exact_mut(BLOCK)) {
            self.content.read(block, chunk);
        }
        let skip = size(at - first * BLOCK as u64);
        bytes[skip..skip + len].to_vec()
    }

    fn hold(&mut self, k: &mut Kernel, stage: Stage, flight: u64) -> bool {
        if self.stuck && self.flights.contains_key(&flight) {
            k.trace.count("disk.stuck");
            self.held.push((stage, flight));
            return true;
        }
        false
    }

    /// The moment at which an operation happens. Says how long its completion takes from here.
    fn take_effect(&mut self, k: &mut Kernel, id: u64) -> Option<Span> {
        // Gone: its process died.
        let mut flight = self.flights.remove(&id)?;
        flight.result = Some(self.perform(k, id, &mut flight.op));
        let rest = flight.rest;
        self.flights.insert(id, flight);
        Some(rest)
    }

    fn perform(&mut self, k: &mut Kernel, id: u64, op: &mut Op) -> Result<u32, Errno> {
        match op {
            Op::DiskRead { at, into, from, len, .. } => {
                self.inside(*at, *len as u64)?;
                if k.rng.chance(self.options.read_error_ppm) || spend(&mut self.options.fail_reads) {
                    k.trace.count("disk.read.error");
                    return Err(Errno::IO);
                }
                let memory = into[*from..*from + *len].chunks_exact_mut(BLOCK);
                for (block, bytes) in blocks_of(*at, *len as u64).zip(memory) {
                    self.content.read(block, bytes);
                }
                count(*len)
            }
            Op::DiskWrite { at, parts, .. } => {
                let len = total(parts);
                self.inside(*at, len as u64)?;
                let blocks = blocks_of(*at, len as u64);
                let no_space = match self.options.full {
                    Full::No => false,
                    Full::Growth => blocks.clone().any(|block| !self.content.holds(block)),
                    Full::Everything => true,
                };
                if no_space {
                    k.trace.count("disk.full");
                    return Err(Errno::NO_SPACE);
                }
                let fails = self.write_fails(k);
                let sources = parts.iter().flat_map(|part| part.mem[part.from..part.from + part.len].as_chunks().0);
                for (block, bytes) in blocks.zip(sources) {
                    match fails.then(|| k.rng.below(3)) {
                        None | Some(0) => self.content.write(id, block, bytes),
                        Some(1) => self.content.write_torn(id, block, bytes, &mut k.rng),
                        Some(_) => {}
                    }
                }
                if fails { Err(Errno::IO) } else { count(len) }
            }
            Op::DiskPunch { at, len, .. } => {
                self.inside(*at, *len)?;
                if k.rng.coin() {
                    k.trace.count("disk.punch.zeroed");
                    self.content.punch(id, blocks_of(*at, *len));
                } else {
                    k.trace.count("disk.punch.left");
                }
                Ok(0)
            }
            _ if self.write_fails(k) => Err(Errno::IO),
            _ => Ok(0),
        }
    }

    fn write_fails(&mut self, k: &mut Kernel) -> bool {
        let fails = k.rng.chance(self.options.write_error_ppm) || spend(&mut self.options.fail_writes);
        if fails {
            k.trace.count("disk.write.error");
        }
        fails
    }

    fn inside(&self, at: u64, len: u64) -> Result<(), Errno> {
        let end = at.checked_add(len).ok_or(INVALID)?;
        if end <= self.options.bytes { Ok(()) } else { Err(INVALID) }
    }
}

/// What O_DIRECT asks for, and the seam promises.
fn check(k: &Kernel, process: ProcessId, op: &Op) {
    let whole = |n: u64| n.is_multiple_of(BLOCK as u64);
    let memory = |memory: &[u8], from: usize, len: usize| {
        len > 0 && whole(len as u64) && from + len <= memory.len() && whole((memory.as_ptr() as usize + from) as u64)
    };
    let good = match op {
        Op::DiskRead { at, into, from, len, .. } => whole(*at) && memory(into, *from, *len),
        Op::DiskWrite { at, parts, .. } => {
            whole(*at) && !parts.is_empty() && parts.iter().all(|part| memory(&part.mem, part.from, part.len))
        }
        Op::DiskPunch { at, len, .. } => whole(*at) && whole(*len),
        _ => true,
    };
    if !good {
        k.broken(process, format_args!("a disk operation that is empty, unaligned or outside its memory: {op:?}"));
    }
}

fn total(parts: &[Part]) -> usize {
    parts.iter().map(|part| part.len).sum()
}

pub(crate) fn blocks_of(at: u64, len: u64) -> Range<u64> {
    at / BLOCK as u64..(at + len) / BLOCK as u64
}

fn count(bytes: usize) -> Result<u32, Errno> {
    u32::try_from(bytes).map_err(|_| INVALID)
}

fn spend(counter: &mut u32) -> bool {
    let some = *counter > 0;
    *counter -= u32::from(some);
    some
}
