//! A load on a volume, through the volume client and nothing else: what a front end could get at most.
//!
//! One that writes overwrites what is there. Ends when its time is over, by the first request that fails, or by a signal; the figures until
//! then are as good.

mod histogram;
mod load;

pub use histogram::{Class, Histogram, Latency};

use crate::error::TargetError;
use crate::happening::Happening;
use crate::limits::{DRAIN, GIVE_UP, MAILBOX};
use crate::process::spawn;
use crate::setup::random;
use crate::visit::{Visit, Visited, lane, visit};
use driver::Span;
use load::{Letter, Load, Mail};
use memory::Arena;
use reactor::{Mailbox, mailbox};
use serde::Serialize;
use std::sync::mpsc::RecvTimeoutError;
use std::time::Instant;

/// Longest request of a load.
pub const MAX_BENCH_REQUEST: u32 = 1 << 20;
/// Most requests in flight.
pub const MAX_BENCH_DEPTH: u16 = 1024;

/// What a load does.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Pattern {
    /// Reads, one behind the other.
    Read,
    /// Writes, one behind the other.
    Write,
    /// Reads anywhere.
    Randread,
    /// Writes anywhere.
    Randwrite,
    /// Both, anywhere.
    Randrw,
}

impl Pattern {
    /// Does it change the volume?
    pub fn writes(self) -> bool {
        !matches!(self, Self::Read | Self::Randread)
    }

    fn is_random(self) -> bool {
        !matches!(self, Self::Read | Self::Write)
    }
}

/// A load.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// What.
    pub pattern: Pattern,
    /// Bytes of a request: whole blocks of 4 KiB, up to [`MAX_BENCH_REQUEST`].
    pub bytes: u32,
    /// Requests in flight, up to [`MAX_BENCH_DEPTH`].
    pub depth: u16,
    /// How long, from the first answer on.
    pub time: Span,
    /// Of 100 requests of [`Pattern::Randrw`], so many read.
    pub read_percent: u8,
    /// A flush after so many writes.
    pub flush_every: Option<u32>,
}

/// What came of a load so far. Latencies in microseconds.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
pub struct Figures {
    /// From the first answer to the last.
    pub seconds: f64,
    /// Reads and writes that were answered; the first one is not counted.
    pub requests: u64,
    /// A second.
    pub rate: f64,
    /// The like.
    pub bytes_per_second: f64,
    /// Latencies, of what there was.
    pub reads: Option<Latency>,
    /// The like.
    pub writes: Option<Latency>,
    /// The like.
    pub flushes: Option<Latency>,
    /// How many took how long.
    pub read_classes: Vec<Class>,
    /// The like.
    pub write_classes: Vec<Class>,
    /// Where the requests that finished last spent their time.
    pub stages: Vec<StageFigures>,
    /// Shards that do not answer, and why.
    pub waits_for: Vec<String>,
    /// Why the first request that failed did: it was the last one.
    pub error: Option<String>,
}

/// From one position in a request's life to the next.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct StageFigures {
    /// As `docs/architecture.md` names it.
    pub from: &'static str,
    /// The like.
    pub to: &'static str,
    /// Of so many requests.
    pub requests: u64,
    /// How long it took.
    pub latency: Latency,
}

/// Loads a volume; `progress` hears of it each second. To be called once in a process, before it starts threads.
pub fn bench(by: Visit, shape: Shape, progress: impl FnMut(&Figures)) -> Result<Figures, TargetError> {
    visit(by, !shape.pattern.writes(), shape.depth, |visited| run(visited, shape, progress))
}

fn run(visited: Visited, shape: Shape, mut progress: impl FnMut(&Figures)) -> Result<Figures, TargetError> {
    let Visited { setup, tell, heard, asks } = visited;
    let (mailbox, rx) = mailbox(MAILBOX)?;
    spawn("lane", move || {
        let load = |client, arena: &Arena| Load::new(client, arena, shape, random());
        let size = (shape.depth, shape.bytes as usize);
        let ended = lane(&setup, size, load, Load::leaks, rx, |letter| match letter {
            // One that waits already is as good.
            Letter::WantsMap => drop(asks.try_send(())),
            Letter::Figures(figures) => drop(tell.send(Happening::Figures(figures))),
        });
        let _gone = tell.send(Happening::Ended(ended));
    })?;
    // What is full has something to do; a signal is sent again by who sent it.
    let send = |mailbox: &Mailbox<Mail>, mail| drop(mailbox.send(mail));
    let (mut figures, mut until) = (Figures::default(), None::<Instant>);
    loop {
        let happening = match until {
            None => heard.recv().map_err(|_| RecvTimeoutError::Disconnected),
            Some(until) => heard.recv_timeout(until.saturating_duration_since(Instant::now())),
        };
        match happening {
            Ok(Happening::Map(map)) => send(&mailbox, Mail::Map(Box::new((*map).clone()))),
            Ok(Happening::Figures(so_far)) => {
                figures = *so_far;
                progress(&figures);
            }
            Ok(Happening::Signal) if until.is_none() => {
                send(&mailbox, Mail::Stop);
                until = Some(Instant::now() + DRAIN);
            }
            Ok(Happening::Signal) | Err(RecvTimeoutError::Timeout) => {
                if until.is_some_and(|until| Instant::now() > until + GIVE_UP) {
                    return Err(TargetError::Ended);
                }
                send(&mailbox, Mail::Abort);
                until = Some(Instant::now() + GIVE_UP);
            }
            Ok(Happening::Ended(ended)) => return ended.map(|()| figures),
            Ok(_) => {}
            Err(RecvTimeoutError::Disconnected) => return Err(TargetError::Ended),
        }
    }
}
