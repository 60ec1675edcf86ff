//! Opens all disks of a reactor side by side: recovers the store of each, and makes one where that is asked for.
//!
//! ```text
//!   opening ──no store there, and asked to make one──► formatting ──► opening ──► open
//!      └───────the same, marked by something else, forced──► wiping ──┘ (before formatting)
//! ```

use crate::journal::{self, Label};
use crate::{Error, marks};
use conductor_model::{Bytes, DiskId, NodeId};
use driver::{DiskIndex, Done, Op, Time};
use memory::{Arena, Class};
use node_store::journaled::{Format, FormatOptions, Geometry, JournaledStore, Opening, Tuning};
use node_store::{Identity, OpenError, OpenOptions, Store};
use std::path::PathBuf;

/// One disk that is to be opened.
#[derive(Debug)]
pub(crate) struct Task {
    pub(crate) path: PathBuf,
    pub(crate) index: DiskIndex,
    pub(crate) bytes: u64,
    pub(crate) cluster: u64,
    pub(crate) node: NodeId,
    /// Make a store if there is none, under this freshly drawn name.
    pub(crate) format_as: Option<DiskId>,
    /// What else the disk was recognized as.
    pub(crate) marks: Option<&'static str>,
    /// Make one even so.
    pub(crate) force: bool,
    /// Where its journal is, if not on the disk itself.
    pub(crate) journal: Option<Journal>,
    /// How large it is to be if a store is made.
    pub(crate) journal_size: Option<u64>,
    /// Memory for metadata pages.
    pub(crate) cache: Bytes,
}

/// A journal on a disk of its own.
#[derive(Debug)]
pub(crate) struct Journal {
    pub(crate) path: PathBuf,
    pub(crate) index: DiskIndex,
    /// Room for the ring.
    pub(crate) bytes: u64,
}

impl Journal {
    pub(crate) fn place(&self) -> journal::Place<'_> {
        journal::Place { path: &self.path, bytes: self.bytes }
    }
}

#[derive(Debug)]
enum State {
    Opening(Box<Opening>),
    /// So many writes of zeros are out.
    Wiping(usize),
    Formatting(Box<Format>),
    Open(Box<JournaledStore>),
    Failed(Error),
}

/// All of them.
#[derive(Debug)]
pub(crate) struct Opener {
    arena: Arena,
    disks: Vec<(Task, Option<State>)>,
}

impl Opener {
    pub(crate) fn new(arena: Arena, tasks: Vec<Task>) -> Self {
        Self { arena, disks: tasks.into_iter().map(|task| (task, None)).collect() }
    }

    /// Submits the first reads.
    pub(crate) fn start(&mut self, out: &mut dyn FnMut(Op)) {
        for (task, state) in &mut self.disks {
            *state = Some(task.open(&self.arena, out));
        }
    }

    /// An operation on one of the disks is over.
    pub(crate) fn done(&mut self, now: Time, done: Done, out: &mut dyn FnMut(Op)) {
        let (Op::DiskRead { disk, .. }
        | Op::DiskWrite { disk, .. }
        | Op::DiskPunch { disk, .. }
        | Op::DiskSync { disk, .. }) = &done.op
        else {
            return;
        };
        let index = *disk;
        let Some((task, state)) = self.disks.iter_mut().find(|(task, _)| task.uses(index)) else { return };
        match state.take() {
            Some(State::Opening(mut opening)) => {
                *state = Some(match opening.done(now, done, out) {
                    None => State::Opening(opening),
                    Some(Ok(store)) => State::Open(Box::new(store)),
                    Some(Err(OpenError::NotAStore)) if task.format_as.is_some() => task.make(&self.arena, out),
                    Some(Err(why)) => State::Failed(task.failed(why)),
                });
            }
            Some(State::Wiping(left)) => {
                *state = Some(match (done.result, left) {
                    (Err(errno), _) => State::Failed(task.failed(OpenError::Disk(errno))),
                    (Ok(_), 0 | 1) => task.format(&self.arena, out),
                    (Ok(_), left) => State::Wiping(left - 1),
                });
            }
            Some(State::Formatting(mut format)) => {
                *state = Some(match format.done(done, out) {
                    None => State::Formatting(format),
                    Some(Ok(())) => {
                        tracing::info!(path = %task.path.display(), "made a store");
                        match task.label(true) {
                            Ok(()) => {
                                task.format_as = None;
                                task.open(&self.arena, out)
                            }
                            Err(why) => State::Failed(why),
                        }
                    }
                    Some(Err(why)) => State::Failed(task.failed(why)),
                });
            }
            // It goes on with what is left of a copy-range, while others are still being opened.
            Some(State::Open(mut store)) => {
                store.done(now, done, out);
                store.end_turn(now, out);
                *state = Some(State::Open(store));
            }
            other => *state = other,
        }
    }

    /// True when all are open, or one cannot be.
    pub(crate) fn is_over(&self) -> bool {
        let is = |state: &Option<State>, failed: bool| match state {
            Some(State::Open(_)) => !failed,
            Some(State::Failed(_)) => failed,
            _ => false,
        };
        self.disks.iter().all(|(_, s)| is(s, false)) || self.disks.iter().any(|(_, s)| is(s, true))
    }

    /// The stores in the order of the tasks, or the first failure.
    pub(crate) fn finish(self) -> Result<Vec<(DiskIndex, JournaledStore)>, Error> {
        let mut open = Vec::with_capacity(self.disks.len());
        for (task, state) in self.disks {
            match state {
                Some(State::Open(store)) => open.push((task.index, *store)),
                Some(State::Failed(why)) => return Err(why),
                // Another one has failed before it was over; its error is found further on.
                _ => {}
            }
        }
        Ok(open)
    }
}

impl Task {
    fn uses(&self, disk: DiskIndex) -> bool {
        self.index == disk || self.journal.as_ref().is_some_and(|journal| journal.index == disk)
    }

    fn open(&self, arena: &Arena, out: &mut dyn FnMut(Op)) -> State {
        let options = OpenOptions {
            disk: self.index,
            size: Bytes(self.bytes),
            cluster: Some(self.cluster),
            node: Some(self.node),
        };
        let journal = self.journal.as_ref().map(|journal| journal.index);
        let tuning = Tuning { journal, cache: self.cache, ..Tuning::default() };
        match Opening::start(options, tuning, arena, out) {
            Ok(opening) => State::Opening(Box::new(opening)),
            Err(why) => State::Failed(self.failed(why)),
        }
    }

    /// Makes a store on a disk without one.
    fn make(&self, arena: &Arena, out: &mut dyn FnMut(Op)) -> State {
        match self.marks {
            None => self.format(arena, out),
            Some(_) if self.force => self.wipe(arena, out),
            Some(mark) => State::Failed(Error::Marked { path: self.path.clone(), mark }),
        }
    }

    /// Zeros wherever marks are looked for, so that nobody takes the disk for what it was.
    fn wipe(&self, arena: &Arena, out: &mut dyn FnMut(Op)) -> State {
        let Some(zeros) = arena.take_zeroed(marks::ENDS, Class::Client) else {
            return State::Failed(self.failed(OpenError::Memory));
        };
        let (zeros, ends) = (zeros.filled(), marks::ends(self.bytes));
        for at in ends {
            let parts = [zeros.share().whole()].into_iter().collect();
            out(Op::DiskWrite { disk: self.index, tag: 0, at, parts, durable: true });
        }
        State::Wiping(ends.len())
    }

    fn format(&self, arena: &Arena, out: &mut dyn FnMut(Op)) -> State {
        let Some(disk) = self.format_as else { return State::Failed(self.failed(OpenError::NotAStore)) };
        let geometry = match self.geometry().and_then(|geometry| self.label(false).map(|()| geometry)) {
            Ok(geometry) => geometry,
            Err(why) => return State::Failed(why),
        };
        let identity = Identity { cluster: self.cluster, node: self.node, disk };
        let journal = self.journal.as_ref().map(|journal| journal.index);
        let options = FormatOptions { disk: self.index, journal, identity, geometry, overwrite: false };
        match Format::start(options, arena, out) {
            Ok(format) => State::Formatting(Box::new(format)),
            Err(why) => State::Failed(self.failed(why)),
        }
    }

    /// How the disk is to be divided.
    fn geometry(&self) -> Result<Geometry, Error> {
        match &self.journal {
            None => journal::geometry(&self.path, self.bytes, self.journal_size),
            Some(journal) => journal::geometry_beside(&self.path, self.bytes, self.journal_size, journal.place()),
        }
    }

    /// Says on the journal whose it is: before its store is made, if it may be taken, and when that is `made`.
    fn label(&self, made: bool) -> Result<(), Error> {
        let Some((journal, disk)) = self.journal.as_ref().zip(self.format_as) else { return Ok(()) };
        let wipe = !made && journal::may_take(journal.place(), self.force)?;
        Label { cluster: self.cluster, disk, made }.write(&journal.path, journal.bytes + journal::HEAD, wipe)
    }

    fn failed(&self, source: OpenError) -> Error {
        Error::Open { path: self.path.clone(), source }
    }
}
