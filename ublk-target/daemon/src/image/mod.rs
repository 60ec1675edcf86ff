//! An image: what is in a volume, as one file, and the other way round.
//!
//! ```text
//!   file ═ its thread ── pieces in order ── this thread ══ asks, answers ══ desk (a lane): VolumeClient ═ nodes
//! ```
//! Up to [`DEPTH`] pieces are under way. What nobody wrote is not read, and zeros are not written. This thread waits for nothing but what it is
//! told: a signal ends it whatever the file, which may be a pipe, and the nodes wait for.

mod desk;
mod file;
mod format;
mod reading;

pub use file::{Sink, Source};

use crate::error::TargetError;
use crate::happening::Happening;
use crate::limits::{GIVE_UP, MAILBOX};
use crate::process::spawn;
use crate::visit::{Visit, Visited, lane, visit};
use desk::{Answer, Ask, Desk, Found, Letter, Mail, What};
use file::{Fate, PIECE, Piece};
use reactor::{Mailbox, mailbox};
use reading::Reading;
use serde::Serialize;
use std::sync::mpsc::{Receiver, Sender, SyncSender, sync_channel};
use std::time::{Duration, Instant};

/// Pieces under way: enough for a fast network, and 16 MiB.
const DEPTH: u16 = 16;
/// Between two words about how far it is.
const TELL_EVERY: Duration = Duration::from_secs(1);

/// What the main thread is told.
pub(crate) enum Event {
    Desk(Letter),
    /// So many bytes are in the file.
    Filed(Result<u64, TargetError>),
    /// What comes next of the file.
    Piece(Result<Piece, TargetError>),
}

/// How far an image is.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Far {
    /// Bytes of it that are done, zeros and all.
    pub done: u64,
    /// Of so many, where that is known.
    pub of: Option<u64>,
    /// Shards that do not answer, and why.
    pub waits_for: Vec<String>,
}

/// What was moved.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Moved {
    /// Bytes of the image.
    pub bytes: u64,
    /// So many of them went over the network; the others are zeros.
    pub data: u64,
    /// How long it took.
    pub seconds: f64,
}

/// Writes what is in a volume, or a snapshot, into a file; `progress` hears of it each second. To be called once in a process, before it
/// starts threads.
pub fn export(by: Visit, to: Sink, progress: impl FnMut(&Far)) -> Result<Moved, TargetError> {
    let part = to.part();
    let moved = visit(by, true, DEPTH, |visited| {
        let (size, tell) = (visited.setup.map.size.0, visited.tell.clone());
        with_desk(visited, |desk| {
            let fate = to.fate();
            read_all(desk, size, (writer(to, size, tell)?, &fate), progress)
        })
    });
    if let (Err(_), Some(part)) = (&moved, part) {
        // Half of an image is nothing; its thread may still have it open.
        let _as_it_is = std::fs::remove_file(part);
    }
    moved
}

/// Writes a file into a volume that has room for it, and holds zeros; the like.
///
/// `whole`: less than fills the volume is a failure, where the file's size was not known.
pub fn import(by: Visit, from: Source, whole: bool, progress: impl FnMut(&Far)) -> Result<Moved, TargetError> {
    visit(by, false, DEPTH, |visited| {
        let (size, tell, of) = (visited.setup.map.size.0, visited.tell.clone(), from.size());
        let least = if whole && of.is_none() { size } else { 0 };
        with_desk(visited, |desk| {
            let moved = write_all(desk, size, of, &reader(from, tell)?, progress)?;
            if moved.bytes < least { Err(TargetError::TooShort { came: moved.bytes, size }) } else { Ok(moved) }
        })
    })
}

fn read_all(
    desk: &mut Remote,
    size: u64,
    (to, fate): (SyncSender<Put>, &Fate),
    progress: impl FnMut(&Far),
) -> Result<Moved, TargetError> {
    let mut teller = Teller::new(Some(size), progress);
    let mut reading = Reading::new(size, to);
    loop {
        reading.go_on(desk)?;
        if reading.is_over() {
            return Ok(teller.moved(size, reading.data));
        }
        teller.tell(reading.done, &desk.waits);
        match desk.hear() {
            Ok(Some(Event::Desk(Letter::Answer(Answer { at, result })))) => reading.found(at, at_byte(at, result)?),
            Ok(Some(Event::Filed(filed))) => reading.filed(filed?),
            Ok(_) => {}
            // It was over before that was heard.
            Err(_) if fate.is_done() => return Ok(teller.moved(size, reading.data)),
            Err(error) => return Err(error),
        }
    }
}

fn write_all(
    desk: &mut Remote,
    size: u64,
    of: Option<u64>,
    next: &SyncSender<()>,
    progress: impl FnMut(&Far),
) -> Result<Moved, TargetError> {
    let mut teller = Teller::new(of, progress);
    let (mut data, mut done, mut reads, mut ended) = (0, 0, false, false);
    while !ended || desk.in_flight > 0 {
        if !ended && !reads && desk.in_flight < usize::from(DEPTH) {
            next.send(()).map_err(|_| TargetError::Ended)?;
            reads = true;
        }
        teller.tell(done, &desk.waits);
        match desk.hear()? {
            Some(Event::Desk(Letter::Answer(Answer { at, result }))) => drop(at_byte(at, result)?),
            Some(Event::Piece(piece)) => {
                reads = false;
                let piece = piece?;
                ended = matches!(piece, Piece::End { .. });
                done = match &piece {
                    Piece::Bytes { at, bytes } => at + bytes.len() as u64,
                    Piece::Zeros { to: at } | Piece::End { at } => *at,
                };
                if done > size {
                    return Err(TargetError::TooLong { size });
                }
                if let Piece::Bytes { at, bytes } = piece {
                    data += bytes.len() as u64;
                    desk.ask(at, What::Write(bytes))?;
                }
            }
            _ => {}
        }
    }
    desk.ask(0, What::Flush)?;
    while desk.in_flight > 0 {
        if let Some(Event::Desk(Letter::Answer(Answer { at, result }))) = desk.hear()? {
            at_byte(at, result)?;
        }
    }
    Ok(teller.moved(done, data))
}

fn at_byte(at: u64, result: Result<Found, volume_client::BlockError>) -> Result<Found, TargetError> {
    result.map_err(|error| TargetError::Request { at, error })
}

/// What goes into a file next.
enum Put {
    Bytes { at: u64, bytes: Vec<u8> },
    Zeros { len: u64 },
    End,
}

/// A thread that writes a file in order.
fn writer(mut to: Sink, size: u64, tell: Sender<Happening>) -> Result<SyncSender<Put>, TargetError> {
    to.begin(size)?;
    let (puts, put) = sync_channel(reading::WINDOW + 1);
    spawn("file", move || {
        for put in put {
            let (len, done) = match put {
                Put::Bytes { at, bytes } => (bytes.len() as u64, to.put(at, &bytes)),
                Put::Zeros { len } => (len, to.skip(len)),
                Put::End => (0, to.end()),
            };
            if tell.send(Happening::Image(Event::Filed(done.map(|()| len)))).is_err() {
                return;
            }
        }
    })?;
    Ok(puts)
}

/// A thread that reads a file, piece by piece when it is told to.
fn reader(mut from: Source, tell: Sender<Happening>) -> Result<SyncSender<()>, TargetError> {
    let (nexts, next) = sync_channel(1);
    spawn("file", move || {
        for () in next {
            if tell.send(Happening::Image(Event::Piece(from.next()))).is_err() {
                return;
            }
        }
    })?;
    Ok(nexts)
}

/// Says how far it is, now and then.
struct Teller<P> {
    began: Instant,
    told: Instant,
    of: Option<u64>,
    progress: P,
}

impl<P: FnMut(&Far)> Teller<P> {
    fn new(of: Option<u64>, progress: P) -> Self {
        let now = Instant::now();
        Self { began: now, told: now, of, progress }
    }

    fn tell(&mut self, done: u64, waits_for: &[String]) {
        if self.told.elapsed() >= TELL_EVERY {
            self.told = Instant::now();
            (self.progress)(&Far { done, of: self.of, waits_for: waits_for.to_vec() });
        }
    }

    fn moved(&self, bytes: u64, data: u64) -> Moved {
        Moved { bytes, data, seconds: self.began.elapsed().as_secs_f64() }
    }
}

/// The desk, from this side.
struct Remote {
    mailbox: Mailbox<Mail>,
    heard: Receiver<Happening>,
    in_flight: usize,
    waits: Vec<String>,
}

/// Opens a desk, and closes it: after a failure at once.
fn with_desk<T>(visited: Visited, uses: impl FnOnce(&mut Remote) -> Result<T, TargetError>) -> Result<T, TargetError> {
    let Visited { setup, tell, heard, asks } = visited;
    let (mailbox, rx) = mailbox(MAILBOX)?;
    spawn("lane", move || {
        let desk = |client, arena: &memory::Arena| Some(Desk::new(client, arena.clone()));
        let ended = lane(&setup, (DEPTH, PIECE), desk, Desk::leaks, rx, |letter| match letter {
            // One that waits already is as good.
            Letter::WantsMap => drop(asks.try_send(())),
            letter => drop(tell.send(Happening::Image(Event::Desk(letter)))),
        });
        let _gone = tell.send(Happening::Ended(ended));
    })?;
    let mut desk = Remote { mailbox, heard, in_flight: 0, waits: Vec::new() };
    let used = uses(&mut desk);
    if let Err(error) = desk.close(used.is_ok()) {
        // What was done is done, and what failed said so.
        tracing::warn!(%error, "not ended in good order");
    }
    used
}

impl Remote {
    fn ask(&mut self, at: u64, what: What) -> Result<(), TargetError> {
        self.in_flight += 1;
        self.mailbox.send(Mail::Ask(Ask { at, what })).map_err(|_| TargetError::Ended)
    }

    /// What is heard next, if it is something for who moves the image.
    fn hear(&mut self) -> Result<Option<Event>, TargetError> {
        match self.heard.recv().map_err(|_| TargetError::Ended)? {
            Happening::Image(Event::Desk(Letter::Waits(waits))) => self.waits = waits,
            Happening::Image(event) => {
                self.in_flight -= usize::from(matches!(event, Event::Desk(Letter::Answer(_))));
                return Ok(Some(event));
            }
            Happening::Map(map) => drop(self.mailbox.send(Mail::Map(Box::new((*map).clone())))),
            Happening::Signal => return Err(TargetError::Interrupted),
            Happening::Gone => return Err(TargetError::Deleted),
            Happening::Ended(ended) => return ended.and(Err(TargetError::Ended)),
            _ => {}
        }
        Ok(None)
    }

    fn close(&mut self, well: bool) -> Result<(), TargetError> {
        let _full = self.mailbox.send(if well { Mail::Stop } else { Mail::Abort });
        let until = Instant::now() + GIVE_UP;
        loop {
            match self.heard.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(Happening::Ended(ended)) => return ended,
                Ok(_) => {}
                Err(_) => return Err(TargetError::Ended),
            }
        }
    }
}
