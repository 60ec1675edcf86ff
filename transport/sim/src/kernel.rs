//! What network, disks and processes share: the clock, the queue of events, chance, the trace, and who is alive.

use crate::clock::Clock;
use crate::disks::DiskId;
use crate::network::EndId;
use crate::process::State;
use crate::random::Rng;
use crate::trace::{KINDS, Trace, kind_of};
use driver::{Done, Errno, Op, Span, Time};
use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::fmt;

/// A process of this world; it stays the same over its lives.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProcessId(pub(crate) u32);

impl ProcessId {
    pub(crate) fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Debug for ProcessId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "p{}", self.0)
    }
}

/// Something that will happen. What belongs to a life of a process that is over does not.
pub(crate) enum Event {
    /// A process's turn, if it still wants one at this time.
    Turn { process: ProcessId, life: u32 },
    /// An operation is over.
    Complete { process: ProcessId, life: u32, done: Box<Done> },
    /// The letter box `mail` reaches a process.
    Mail { process: ProcessId, life: u32, mail: u64 },
    /// A connection request reaches its listener.
    Syn { process: ProcessId, life: u32, op: Box<Op>, give_up: Time },
    /// The listener's answer is back.
    Established { at: EndId },
    /// The next piece of a send leaves.
    Transmit { at: EndId },
    /// What an end sent arrives at the other.
    Arrive { from: EndId },
    /// A reset reaches an end.
    Reset { at: EndId },
    /// An end that has had no acknowledgement since then gives up.
    GiveUp { at: EndId, since: Time },
    /// A stream is closed and its number free.
    Closed { process: ProcessId, life: u32, op: Box<Op> },
    /// A disk operation takes effect.
    Apply { disk: DiskId, flight: u64 },
    /// A disk operation is over.
    Landed { disk: DiskId, flight: u64 },
    /// The test wanted to be called.
    Alarm { id: u64 },
}

struct Scheduled {
    at: Time,
    sequence: u64,
    event: Event,
}

impl PartialEq for Scheduled {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}
impl Eq for Scheduled {}
impl PartialOrd for Scheduled {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Scheduled {
    /// The earliest is the greatest, because the heap gives the greatest first.
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at, other.sequence).cmp(&(self.at, self.sequence))
    }
}

/// What the rest of the world knows of a process.
pub(crate) struct Host {
    pub(crate) name: String,
    pub(crate) life: u32,
    pub(crate) state: State,
    /// False from a power cut to the restart: nothing answers.
    pub(crate) powered: bool,
    pub(crate) clock: Clock,
    pub(crate) boot: Time,
    /// Operations submitted and not yet handed back, by kind.
    pub(crate) outstanding: [u32; KINDS.len()],
}

pub(crate) struct Kernel {
    pub(crate) now: Time,
    pub(crate) rng: Rng,
    pub(crate) trace: Trace,
    pub(crate) hosts: Vec<Host>,
    queue: BinaryHeap<Scheduled>,
    sequence: u64,
}

impl Kernel {
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            now: Time(0),
            rng: Rng::new(seed),
            trace: Trace::new(),
            hosts: Vec::new(),
            queue: BinaryHeap::new(),
            sequence: 0,
        }
    }

    pub(crate) fn schedule(&mut self, at: Time, event: Event) {
        debug_assert!(at >= self.now, "nothing happens in the past");
        self.sequence += 1;
        self.queue.push(Scheduled { at, sequence: self.sequence, event });
    }

    pub(crate) fn schedule_in(&mut self, span: Span, event: Event) {
        self.schedule(self.now + span, event);
    }

    pub(crate) fn next_at(&self) -> Option<Time> {
        self.queue.peek().map(|next| next.at)
    }

    /// The next event; the clock is set to its time.
    pub(crate) fn pop(&mut self) -> Option<Event> {
        let next = self.queue.pop()?;
        debug_assert!(next.at >= self.now, "the clock never goes back");
        self.now = next.at;
        Some(next.event)
    }

    pub(crate) fn host(&self, process: ProcessId) -> &Host {
        &self.hosts[process.index()]
    }

    pub(crate) fn host_mut(&mut self, process: ProcessId) -> &mut Host {
        &mut self.hosts[process.index()]
    }

    /// Whether this life of the process still goes on.
    pub(crate) fn lives(&self, process: ProcessId, life: u32) -> bool {
        let host = self.host(process);
        host.life == life && host.state != State::Dead
    }

    /// What a process's clock shows.
    pub(crate) fn local(&self, process: ProcessId) -> Time {
        let host = self.host(process);
        host.clock.local(host.boot, self.now)
    }

    /// Hands an operation back at `at`.
    pub(crate) fn complete_at(&mut self, at: Time, process: ProcessId, op: Op, result: Result<u32, Errno>) {
        let life = self.host(process).life;
        self.schedule(at, Event::Complete { process, life, done: Box::new(Done { op, result }) });
    }

    pub(crate) fn submitted(&mut self, process: ProcessId, op: &Op) {
        self.host_mut(process).outstanding[kind_of(op)] += 1;
    }

    pub(crate) fn returned(&mut self, process: ProcessId, op: &Op) {
        self.host_mut(process).outstanding[kind_of(op)] -= 1;
    }

    /// A machine did what its contract forbids.
    pub(crate) fn broken(&self, process: ProcessId, what: fmt::Arguments<'_>) -> ! {
        panic!("{:?} {} ({process:?}): {what}", self.now, self.host(process).name)
    }
}
