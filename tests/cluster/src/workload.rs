//! Somebody who uses a volume: many requests in flight over NBD, every byte checked against the ledger.
//!
//! Runs in a thread of its own until told to stop. When the connection goes it comes back and goes on, as a kernel's NBD client
//! would; requests that were in flight then have an unknown fate. Errors the server answers, and bytes that may not
//! be there, are kept and fail the test at the end.

use crate::ledger::{Ledger, SECTOR, ZEROS};
use crate::nbd::{Command, Nbd, Place, Reply};
use crate::random::Random;
use anyhow::{Context, Result, bail, ensure};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Longest request in sectors: 64 KiB.
const LONGEST: u64 = 128;

/// How to use the volume.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where it is.
    pub place: Place,
    /// Its name.
    pub export: String,
    /// Requests in flight.
    pub depth: usize,
    /// The requests' generator starts here.
    pub seed: u64,
    /// How long one request may take: a node that is away for so long has failed the test.
    pub patience: Duration,
}

/// What was done.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Done {
    /// Writes, zeroes and trims that were acknowledged.
    pub writes: u64,
    /// Reads that were right.
    pub reads: u64,
    /// Requests whose fate a lost connection left unknown.
    pub lost: u64,
    /// Connections after the first.
    pub reconnects: u64,
}

/// What of a running workload is seen from outside.
#[derive(Default, Debug)]
struct Shared {
    stop: AtomicBool,
    acknowledged: AtomicU64,
    /// The longest pause since it was asked for last, in nanoseconds.
    slowest: AtomicU64,
    failed: AtomicBool,
}

/// A workload in its thread.
#[derive(Debug)]
pub struct Workload {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<Result<(Ledger, Done)>>>,
}

enum Kind {
    Write(u64),
    Read,
}

struct Flying {
    range: Range<u64>,
    kind: Kind,
    since: Instant,
}

struct User {
    options: Options,
    ledger: Ledger,
    random: Random,
    flying: BTreeMap<u64, Flying>,
    done: Done,
    /// When a request ended last.
    last: Instant,
    shared: Arc<Shared>,
}

impl Workload {
    /// Starts on a fresh volume.
    pub fn start(options: Options) -> Result<Self> {
        let nbd = Nbd::connect(&options.place, &options.export)?;
        let ledger = Ledger::new(nbd.size / SECTOR as u64);
        Self::go_on(options, nbd, ledger)
    }

    /// Starts on a volume that an earlier one left like this.
    pub fn resume(options: Options, ledger: Ledger) -> Result<Self> {
        let nbd = Nbd::connect(&options.place, &options.export)?;
        Self::go_on(options, nbd, ledger)
    }

    fn go_on(options: Options, nbd: Nbd, ledger: Ledger) -> Result<Self> {
        ensure!(nbd.size / SECTOR as u64 == ledger.len(), "the volume has {} bytes", nbd.size);
        let shared = Arc::new(Shared::default());
        let user = User {
            random: Random::new(options.seed),
            options,
            ledger,
            flying: BTreeMap::new(),
            done: Done::default(),
            last: Instant::now(),
            shared: Arc::clone(&shared),
        };
        let thread = std::thread::Builder::new().name("workload".to_owned()).spawn(move || user.run(nbd))?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Requests acknowledged so far.
    pub fn acknowledged(&self) -> u64 {
        self.shared.acknowledged.load(Ordering::Relaxed)
    }

    /// The longest that a request took, or that no request ended, among what has ended since this was asked for last.
    pub fn slowest(&self) -> Duration {
        Duration::from_nanos(self.shared.slowest.swap(0, Ordering::Relaxed))
    }

    /// Waits until `more` requests were acknowledged from now on; says how long that took.
    pub fn progress(&self, more: u64, within: Duration) -> Result<Duration> {
        let (start, from) = (Instant::now(), self.acknowledged());
        while self.acknowledged() < from + more {
            ensure!(!self.shared.failed.load(Ordering::Relaxed), "the workload has failed: see what stop() says");
            ensure!(
                start.elapsed() < within,
                "only {} of {more} requests within {within:?}",
                self.acknowledged() - from
            );
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(start.elapsed())
    }

    /// Lets what is in flight end, reads the whole volume once more, and says what was done.
    pub fn stop(mut self) -> Result<(Ledger, Done)> {
        self.shared.stop.store(true, Ordering::Relaxed);
        let thread = self.thread.take().context("stopped twice")?;
        thread.join().unwrap_or_else(|_| bail!("the workload panicked"))
    }
}

impl Drop for Workload {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
    }
}

impl User {
    fn run(mut self, nbd: Nbd) -> Result<(Ledger, Done)> {
        let outcome = self.work(nbd);
        self.shared.failed.store(outcome.is_err(), Ordering::Relaxed);
        outcome.map(|()| (self.ledger, self.done))
    }

    fn work(&mut self, mut nbd: Nbd) -> Result<()> {
        while !self.stopping() || !self.flying.is_empty() {
            while !self.stopping() && self.flying.len() < self.options.depth {
                self.start(&mut nbd);
            }
            match nbd.turn(Duration::from_millis(50)) {
                Ok(replies) => replies.into_iter().try_for_each(|reply| self.finish(reply))?,
                Err(_) => nbd = self.reconnect()?,
            }
            if let Some(late) = self.flying.values().find(|flying| flying.since.elapsed() > self.options.patience) {
                bail!("sectors {:?}: no reply within {:?}", late.range, self.options.patience);
            }
        }
        self.read_all(nbd)
    }

    fn stopping(&self) -> bool {
        self.shared.stop.load(Ordering::Relaxed)
    }

    fn start(&mut self, nbd: &mut Nbd) {
        let len = if self.random.below(4) == 0 { 1 + self.random.below(LONGEST) } else { 8 };
        let from = match len {
            8 => self.random.below(self.ledger.len() / 8) * 8,
            _ => self.random.below(self.ledger.len() - len),
        };
        let range = from..from + len;
        if !self.ledger.begin(&range) {
            return;
        }
        let (offset, bytes) = (from * SECTOR as u64, u32::try_from(len).unwrap_or(0) * 512);
        let (command, kind) = match self.random.below(20) {
            0..5 => (Command::Read { offset, len: bytes }, Kind::Read),
            5 => (Command::WriteZeroes { offset, len: bytes }, Kind::Write(ZEROS)),
            // A trim need not give zeros back at its unaligned edges, so only whole blocks are trimmed.
            6 if len == 8 => (Command::Trim { offset, len: bytes }, Kind::Write(ZEROS)),
            _ => {
                let (version, bytes) = self.ledger.new_version(&range);
                (Command::Write { offset, bytes }, Kind::Write(version))
            }
        };
        let handle = nbd.submit(&command);
        self.flying.insert(handle, Flying { range, kind, since: Instant::now() });
    }

    fn finish(&mut self, reply: Reply) -> Result<()> {
        let Flying { range, kind, since } = self.flying.remove(&reply.handle).context("a reply to nobody")?;
        let pause = since.elapsed().max(self.last.elapsed()).as_nanos();
        self.last = Instant::now();
        self.shared.slowest.fetch_max(u64::try_from(pause).unwrap_or(u64::MAX), Ordering::Relaxed);
        match (kind, reply.result) {
            (_, Err(errno)) => bail!("sectors {range:?}: the server answered error {errno}"),
            (Kind::Write(version), Ok(_)) => {
                self.ledger.acknowledged(&range, version);
                self.done.writes += 1;
            }
            (Kind::Read, Ok(bytes)) => {
                self.ledger.read(&range, &bytes)?;
                self.done.reads += 1;
            }
        }
        self.shared.acknowledged.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn reconnect(&mut self) -> Result<Nbd> {
        for Flying { range, kind, .. } in std::mem::take(&mut self.flying).into_values() {
            self.done.lost += 1;
            match kind {
                Kind::Write(version) => self.ledger.lost(&range, version),
                Kind::Read => self.ledger.release(&range),
            }
        }
        let until = Instant::now() + self.options.patience;
        loop {
            match Nbd::connect(&self.options.place, &self.options.export) {
                Ok(nbd) => {
                    self.done.reconnects += 1;
                    return Ok(nbd);
                }
                Err(error) if Instant::now() > until => return Err(error.context("no way back to the volume")),
                Err(_) => std::thread::sleep(Duration::from_millis(50)),
            }
        }
    }

    fn read_all(&mut self, mut nbd: Nbd) -> Result<()> {
        for from in (0..self.ledger.len()).step_by(2048) {
            let range = from..(from + 2048).min(self.ledger.len());
            let len = u32::try_from((range.end - range.start) * 512)?;
            let command = Command::Read { offset: from * SECTOR as u64, len };
            let bytes = nbd.call(&command, self.options.patience)?;
            let bytes = bytes.map_err(|errno| anyhow::anyhow!("sectors {range:?}: error {errno} in the last read"))?;
            self.ledger.read(&range, &bytes)?;
        }
        nbd.disconnect()
    }
}
