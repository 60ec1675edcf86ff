//! Opens all disks of a reactor side by side: recovers the store of each, and makes one where that is asked for.
//!
//! ```text
//!   opening ──no store there, and asked to make one──► formatting ──► opening ──► open
//!    ▲ └───────the same, marked by something else, forced──► wiping ──┘ (before formatting)
//!    ├─ later: something could not be read
//!    └─ alone: there was no memory beside the others
//! ```
//! What cannot be read for a moment, as while a path to the disk is down, must not be taken for what is not there, nor for damage: it is
//! tried again for some seconds, and only what cannot be read then is done without.
//! So is a disk of which nothing comes back for a while, in whatever state: a long journal is no silence.
//! All read at the same time as far as there is memory. Who finds none begins again when no other one is under way, and fails if there is
//! none then.

use crate::journal::{self, Label};
use crate::limits::SILENCE;
use crate::{Error, head, marks};
use conductor_model::{Bytes, DiskId, NodeId};
use driver::{DiskIndex, Done, Errno, Op, Span, Time};
use memory::{Arena, Class};
use node_store::journaled::{Format, FormatOptions, Geometry, JournaledStore, Kind, Opening, Tuning, kind_of};
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
    /// Make one whatever else the disk is recognized as.
    pub(crate) force: bool,
    /// Where its journal is, if not on the disk itself.
    pub(crate) journal: Option<Journal>,
    /// How large it is to be if a store is made.
    pub(crate) journal_size: Option<u64>,
    /// Memory for metadata pages.
    pub(crate) cache: Bytes,
    /// Operations that the disks have.
    pub(crate) flying: u32,
    /// How often it was opened.
    pub(crate) attempts: u32,
    /// A write or a sync failed, and not just of a mirror. It is not opened again by this process: what could not be made durable looks as if it
    /// had been, once the kernel has told of the error.
    pub(crate) unwritten: bool,
    /// When it was opened last, or something came back.
    pub(crate) heard: Time,
    /// Another one was under way at some time since it was opened.
    pub(crate) beside: bool,
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
    /// Something could not be read: from then on, when all that was asked for is back, it is tried again.
    Later(Time),
    /// There was no memory for it beside the others: when none of them is under way it is opened again.
    Alone,
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

/// How often a disk of which something cannot be read is opened.
const ATTEMPTS: u32 = 6;
/// Between two of them.
const PAUSE: Span = Span::seconds(1);
/// How long nothing may come back.
const SILENT: Span = Span::seconds(SILENCE.as_secs());

impl Opener {
    pub(crate) fn new(arena: Arena, tasks: Vec<Task>) -> Self {
        Self { arena, disks: tasks.into_iter().map(|task| (task, None)).collect() }
    }

    /// Submits the first reads.
    pub(crate) fn start(&mut self, now: Time, out: &mut dyn FnMut(Op)) {
        (0..self.disks.len()).for_each(|n| self.open(n, now, out));
        self.open_alone(now, out);
    }

    /// Opens again what is due, and gives up what hangs.
    pub(crate) fn end_turn(&mut self, now: Time, out: &mut dyn FnMut(Op)) {
        for n in 0..self.disks.len() {
            let (task, state) = &mut self.disks[n];
            if due(task, state.as_ref()).is_none_or(|at| at > now) {
                continue;
            }
            if task.flying == 0 {
                self.open(n, now, out);
            } else {
                let path = task.path.clone();
                *state = Some(State::Failed(Error::Unreadable { path, source: head::silent() }));
            }
        }
        self.open_alone(now, out);
    }

    fn open(&mut self, n: usize, now: Time, out: &mut dyn FnMut(Op)) {
        let mut beside = false;
        for (m, (task, state)) in self.disks.iter_mut().enumerate() {
            if m != n && task.is_under_way(state.as_ref()) {
                (task.beside, beside) = (true, true);
            }
        }
        let (task, state) = &mut self.disks[n];
        task.beside = beside;
        *state = Some(task.open(now, &self.arena, out));
    }

    /// The first of those for which there was no memory, if there is nobody who has any.
    fn open_alone(&mut self, now: Time, out: &mut dyn FnMut(Op)) {
        if self.disks.iter().any(|(task, state)| task.is_under_way(state.as_ref())) {
            return;
        }
        if let Some(n) = self.disks.iter().position(|(_, state)| matches!(state, Some(State::Alone))) {
            self.open(n, now, out);
        }
    }

    /// When something is due.
    pub(crate) fn next_deadline(&self) -> Option<Time> {
        self.disks.iter().filter_map(|(task, state)| due(task, state.as_ref())).min()
    }

    /// An operation on one of the disks is over.
    pub(crate) fn done(&mut self, now: Time, done: Done, out: &mut dyn FnMut(Op)) {
        let Some(index) = done.op.disk() else { return };
        let Some((task, state)) = self.disks.iter_mut().find(|(task, _)| task.uses(index)) else { return };
        task.flying -= 1;
        task.heard = now;
        task.unwritten |= is_missing(&done);
        match state.take() {
            Some(State::Opening(mut opening)) => {
                let over = task.counted(out, |out| opening.done(now, done, out));
                task.unwritten |= opening.lacks_a_page();
                *state = Some(match over {
                    None => State::Opening(opening),
                    Some(Ok(store)) => State::Open(Box::new(store)),
                    Some(Err(OpenError::Disk(errno))) if !task.unwritten && task.attempts < ATTEMPTS => {
                        let path = task.path.display();
                        tracing::warn!(%path, %errno, "the disk cannot be read everywhere; it is tried again");
                        State::Later(now + PAUSE)
                    }
                    Some(Err(OpenError::NotAStore)) if task.format_as.is_some() => task.make(&self.arena, out),
                    Some(Err(why)) => task.ended(why),
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
                let over = task.counted(out, |out| format.done(done, out));
                *state = Some(match over {
                    None => State::Formatting(format),
                    Some(Ok(())) => {
                        tracing::info!(path = %task.path.display(), "made a store");
                        match task.label(true) {
                            Ok(()) => {
                                task.format_as = None;
                                task.open(now, &self.arena, out)
                            }
                            Err(why) => State::Failed(why),
                        }
                    }
                    Some(Err(why)) => task.ended(why),
                });
            }
            // It goes on with what is left of a copy-range, while others are still being opened.
            Some(State::Open(mut store)) => {
                task.counted(out, |out| {
                    store.done(now, done, out);
                    store.end_turn(now, out);
                });
                *state = Some(State::Open(store));
            }
            other => *state = other,
        }
        self.open_alone(now, out);
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

/// Whether what is over is a write or a sync that failed and that its disk is without from now on. A page's is none: in an opening that is a
/// mirror of one that is good in the other, or what [`Opening::lacks_a_page`] tells of.
fn is_missing(done: &Done) -> bool {
    let (Op::DiskWrite { tag, .. } | Op::DiskSync { tag, .. }) = done.op else { return false };
    done.result.is_err() && kind_of(tag) != Some(Kind::Pages)
}

/// When a disk is opened again; or given up, if nothing comes back before. One that is open is its store's to watch.
fn due(task: &Task, state: Option<&State>) -> Option<Time> {
    match state? {
        State::Open(_) | State::Failed(_) => None,
        State::Later(at) if task.flying == 0 => Some(*at),
        _ => (task.flying > 0).then(|| task.heard + SILENT),
    }
}

impl Task {
    fn uses(&self, disk: DiskIndex) -> bool {
        self.index == disk || self.journal.as_ref().is_some_and(|journal| journal.index == disk)
    }

    /// Whether it has memory that comes back, or is going to ask for some.
    fn is_under_way(&self, state: Option<&State>) -> bool {
        match state {
            Some(State::Open(_) | State::Failed(_)) | None => false,
            Some(State::Later(_) | State::Alone) => self.flying > 0,
            Some(State::Opening(_) | State::Wiping(_) | State::Formatting(_)) => true,
        }
    }

    /// It cannot be opened like this.
    fn ended(&mut self, why: OpenError) -> State {
        if why == OpenError::Memory && self.beside {
            self.attempts -= 1; // its disk is none the worse for it
            return State::Alone;
        }
        State::Failed(self.failed(why))
    }

    /// What asks the disk for something, counted.
    fn counted<T>(&mut self, out: &mut dyn FnMut(Op), ask: impl FnOnce(&mut dyn FnMut(Op)) -> T) -> T {
        let flying = &mut self.flying;
        ask(&mut |op| {
            *flying += 1;
            out(op);
        })
    }

    fn open(&mut self, now: Time, arena: &Arena, out: &mut dyn FnMut(Op)) -> State {
        if self.unwritten {
            return State::Failed(self.failed(OpenError::Disk(Errno::IO)));
        }
        self.attempts += 1;
        self.heard = now;
        let options = OpenOptions {
            disk: self.index,
            size: Bytes(self.bytes),
            cluster: Some(self.cluster),
            node: Some(self.node),
        };
        let journal = self.journal.as_ref().map(|journal| journal.index);
        let patient = self.attempts < ATTEMPTS;
        let tuning = Tuning { journal, cache: self.cache, patient, ..Tuning::default() };
        match self.counted(out, |out| Opening::start(options, tuning, arena, out)) {
            Ok(opening) => State::Opening(Box::new(opening)),
            Err(why) => self.ended(why),
        }
    }

    /// Makes a store on a disk without one.
    fn make(&mut self, arena: &Arena, out: &mut dyn FnMut(Op)) -> State {
        match marks::of_disk(&self.path, self.bytes) {
            Ok(None) => self.format(arena, out),
            Ok(Some(_)) if self.force => self.wipe(arena, out),
            Ok(Some(mark)) => State::Failed(Error::Marked { path: self.path.clone(), mark }),
            Err(source) => State::Failed(Error::Unreadable { path: self.path.clone(), source }),
        }
    }

    /// Zeros wherever marks are looked for, so that nobody takes the disk for what it was.
    fn wipe(&mut self, arena: &Arena, out: &mut dyn FnMut(Op)) -> State {
        let Some(zeros) = arena.take_zeroed(marks::ENDS, Class::Client) else {
            return self.ended(OpenError::Memory);
        };
        let (zeros, ends) = (zeros.filled(), marks::ends(self.bytes));
        let disk = self.index;
        self.counted(out, |out| {
            for at in ends {
                let parts = [zeros.share().whole()].into_iter().collect();
                out(Op::DiskWrite { disk, tag: 0, at, parts, durable: true });
            }
        });
        State::Wiping(ends.len())
    }

    fn format(&mut self, arena: &Arena, out: &mut dyn FnMut(Op)) -> State {
        let Some(disk) = self.format_as else { return State::Failed(self.failed(OpenError::NotAStore)) };
        let geometry = match self.geometry().and_then(|geometry| self.label(false).map(|()| geometry)) {
            Ok(geometry) => geometry,
            Err(why) => return State::Failed(why),
        };
        let identity = Identity { cluster: self.cluster, node: self.node, disk };
        let journal = self.journal.as_ref().map(|journal| journal.index);
        let options = FormatOptions { disk: self.index, journal, identity, geometry, overwrite: false };
        match self.counted(out, |out| Format::start(options, arena, out)) {
            Ok(format) => State::Formatting(Box::new(format)),
            Err(why) => self.ended(why),
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

#[cfg(test)]
mod tests {
    use super::*;
    use conductor_model::{BLOCK, Configuration, CopyId};
    use node_store::StoreOp;

    const DISK: DiskIndex = DiskIndex(0);

    fn opener() -> Opener {
        Opener::new(Arena::small(8 << 20), vec![task(DISK, 64 << 20)])
    }

    fn task(index: DiskIndex, bytes: u64) -> Task {
        Task {
            path: PathBuf::from("disk"),
            index,
            bytes,
            cluster: 7,
            node: NodeId(1),
            format_as: None,
            force: false,
            journal: None,
            journal_size: None,
            cache: Bytes(1 << 20),
            flying: 0,
            attempts: 0,
            unwritten: false,
            heard: Time::default(),
            beside: false,
        }
    }

    fn hangs(opener: Opener) -> bool {
        match opener.finish() {
            Err(Error::Unreadable { source, .. }) => head::is_silent(&source),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_disk_that_never_answers_is_given_up() {
        let (mut opener, mut asked) = (opener(), Vec::new());
        let begin = Time::default() + Span::seconds(100);
        opener.start(begin, &mut |op| asked.push(op));
        assert_eq!((asked.len(), opener.next_deadline()), (1, Some(begin + SILENT)));
        opener.end_turn(begin + SILENT - Span(1), &mut |op| asked.push(op));
        assert!(!opener.is_over());
        opener.end_turn(begin + SILENT, &mut |op| asked.push(op));
        assert!(opener.is_over() && asked.len() == 1 && opener.next_deadline().is_none());
        // It comes back when nobody waits any more.
        let op = asked.remove(0);
        opener.done(begin + SILENT, Done { op, result: Err(Errno::CANCELED) }, &mut |op| asked.push(op));
        assert!(asked.is_empty() && hangs(opener));
    }

    /// What an operation does to a disk in memory.
    fn on(image: &mut [u8], mut op: Op) -> Done {
        let place = |at: u64| usize::try_from(at).unwrap();
        let moved = match &mut op {
            Op::DiskRead { at, into, from, len, .. } => {
                into[*from..*from + *len].copy_from_slice(&image[place(*at)..][..*len]);
                *len
            }
            Op::DiskWrite { at, parts, .. } => {
                let bytes: Vec<u8> = parts.iter().flat_map(|p| &p.mem[p.from..p.from + p.len]).copied().collect();
                image[place(*at)..][..bytes.len()].copy_from_slice(&bytes);
                bytes.len()
            }
            _ => 0,
        };
        Done { op, result: Ok(u32::try_from(moved).unwrap()) }
    }

    #[test]
    fn a_sync_that_failed_is_not_asked_again() {
        let (mut opener, mut asked) = (opener(), Vec::new());
        let mut image = vec![0; 64 << 20];
        let identity = Identity { cluster: 7, node: NodeId(1), disk: conductor_model::DiskId(5) };
        let geometry = journal::geometry(std::path::Path::new("disk"), 64 << 20, None).unwrap();
        let options = FormatOptions { disk: DISK, journal: None, identity, geometry, overwrite: false };
        let mut format = Format::start(options, &opener.arena, &mut |op| asked.push(op)).unwrap();
        while let Some(op) = asked.pop() {
            let over = format.done(on(&mut image, op), &mut |op| asked.push(op));
            assert!(over.is_none_or(|result| result.is_ok()));
        }
        let now = Time::default();
        opener.start(now, &mut |op| asked.push(op));
        let mut syncs = 0;
        while let Some(op) = asked.pop() {
            let mut done = on(&mut image, op);
            if matches!(done.op, Op::DiskSync { .. }) {
                syncs += 1;
                done.result = Err(Errno::IO);
            }
            opener.done(now, done, &mut |op| asked.push(op));
        }
        assert!(syncs == 1 && opener.is_over() && opener.next_deadline().is_none());
        assert!(matches!(opener.finish(), Err(Error::Open { source: OpenError::Disk(Errno::IO), .. })));
    }

    /// A small store, and its journal's first byte.
    fn small() -> (Geometry, usize) {
        (Geometry::new(Bytes(12 << 20), 620, 340, 4).unwrap(), 16 * BLOCK)
    }

    fn formatted(geometry: Geometry, arena: &Arena) -> Vec<u8> {
        let (mut image, mut asked) = (vec![0; 12 << 20], Vec::new());
        let identity = Identity { cluster: 7, node: NodeId(1), disk: DiskId(5) };
        let options = FormatOptions { disk: DISK, journal: None, identity, geometry, overwrite: false };
        let mut format = Format::start(options, arena, &mut |op| asked.push(op)).unwrap();
        while let Some(op) = asked.pop() {
            let over = format.done(on(&mut image, op), &mut |op| asked.push(op));
            assert!(over.is_none_or(|result| result.is_ok()));
        }
        image
    }

    /// A copy is made there, and goes home.
    fn with_a_copy(image: &mut [u8], arena: &Arena) {
        let mut asked = Vec::new();
        let mut now = Time::default();
        let mut opener = Opener::new(arena.clone(), vec![task(DISK, image.len() as u64)]);
        opener.start(now, &mut |op| asked.push(op));
        while let Some(op) = asked.pop() {
            opener.done(now, on(image, op), &mut |op| asked.push(op));
        }
        let (_, mut store) = opener.finish().unwrap().remove(0);
        let config = Configuration {
            shard: conductor_model::ShardId::default(),
            epoch: conductor_model::Epoch(1),
            primary: CopyId(1),
            members: Vec::new(),
            full_set: vec![CopyId(1)],
            min_copies: 1,
            attach: conductor_model::AttachGeneration(1),
            size: Bytes(1 << 20),
            born: true,
            durability: conductor_model::Durability::Always,
            cache: conductor_model::Commit(0),
            card: None,
            parent: None,
        };
        let create = StoreOp::Create { copy: CopyId(1), config, parent: None };
        store.submit(now, node_store::Tag(1), create, &mut |op| asked.push(op));
        for _ in 0..10_000 {
            store.end_turn(now, &mut |op| asked.push(op));
            match asked.pop() {
                Some(op) => store.done(now, on(image, op), &mut |op| asked.push(op)),
                None => now = now + Span::millis(100),
            }
        }
        assert!(matches!(store.next_completion(), Some((_, Ok(_)))) && store.is_all_home());
    }

    #[test]
    fn a_mirror_that_cannot_be_put_right_is_not_what_keeps_a_disk_from_being_opened() {
        let arena = Arena::small(8 << 20);
        let (geometry, ring) = small();
        let mut image = formatted(geometry, &arena);
        with_a_copy(&mut image, &arena);
        // The first mirrors of all pages are bad, and stay bad; and a block of the journal behind its end cannot be read, ever.
        let pages: Vec<usize> = (0..image.len())
            .step_by(BLOCK)
            .filter(|at| image[*at..].starts_with(b"TPG2") && image[at + 8] == 1)
            .collect();
        let first = &pages[..pages.len() / 2];
        first.iter().for_each(|at| image[at + 200] ^= 1);
        let unread = (ring + 300 * BLOCK) as u64;
        let (mut opener, mut asked) = (Opener::new(arena, vec![task(DISK, image.len() as u64)]), Vec::new());
        let (mut now, mut unhealed) = (Time::default(), 0);
        opener.start(now, &mut |op| asked.push(op));
        while !opener.is_over() {
            while let Some(op) = asked.pop() {
                let failed = match &op {
                    Op::DiskRead { at, len, .. } => (*at..*at + *len as u64).contains(&unread),
                    Op::DiskWrite { at, .. } => first.iter().any(|bad| *bad as u64 == *at),
                    _ => false,
                };
                unhealed += u32::from(failed && matches!(op, Op::DiskWrite { .. }));
                let done = if failed { Done { op, result: Err(Errno::IO) } } else { on(&mut image, op) };
                opener.done(now, done, &mut |op| asked.push(op));
            }
            now = opener.next_deadline().map_or(now, |at| at.max(now));
            opener.end_turn(now, &mut |op| asked.push(op));
        }
        assert!(unhealed > 0);
        assert_eq!(opener.finish().unwrap().len(), 1);
    }

    #[test]
    fn disks_that_find_no_memory_beside_the_others_are_opened_behind_them() {
        const DISKS: u32 = 24;
        let (geometry, _) = small();
        let image = formatted(geometry, &Arena::small(8 << 20));
        let mut images: Vec<Vec<u8>> = (0..DISKS).map(|_| image.clone()).collect();
        let tasks = (0..DISKS).map(|n| task(DiskIndex(n), image.len() as u64)).collect();
        let mut opener = Opener::new(Arena::small(6 << 20), tasks);
        let (mut asked, now) = (std::collections::VecDeque::new(), Time::default());
        opener.start(now, &mut |op| asked.push_back(op));
        // The first one that was asked for comes first, so that all of them are under way.
        let mut waited = 0;
        while let Some(op) = asked.pop_front() {
            let at = op.disk().map(|disk| disk.0 as usize).unwrap();
            opener.done(now, on(&mut images[at], op), &mut |op| asked.push_back(op));
            opener.end_turn(now, &mut |op| asked.push_back(op));
            waited = waited.max(opener.disks.iter().filter(|(_, state)| matches!(state, Some(State::Alone))).count());
        }
        assert!(opener.is_over() && waited > 2, "{waited}");
        assert_eq!(opener.finish().unwrap().len(), DISKS as usize);
        // Who finds none and is alone has none.
        let mut opener = Opener::new(Arena::small(64 << 10), vec![task(DISK, image.len() as u64)]);
        opener.start(now, &mut |op| asked.push_back(op));
        while let Some(op) = asked.pop_front() {
            opener.done(now, on(&mut images[0], op), &mut |op| asked.push_back(op));
        }
        assert!(matches!(opener.finish(), Err(Error::Open { source: OpenError::Memory, .. })));
    }

    #[test]
    fn silence_counts_from_the_last_answer() {
        let (mut opener, mut asked) = (opener(), Vec::new());
        let mut now = Time::default();
        opener.start(now, &mut |op| asked.push(op));
        // Errors are answers, of which each is followed by a pause.
        for _ in 1..ATTEMPTS {
            now = now + SILENT - Span(1);
            opener.end_turn(now, &mut |op| asked.push(op));
            let op = asked.remove(0);
            opener.done(now, Done { op, result: Err(Errno::IO) }, &mut |op| asked.push(op));
            assert_eq!(opener.next_deadline(), Some(now + PAUSE));
            now = now + PAUSE;
            opener.end_turn(now, &mut |op| asked.push(op));
            assert!(!opener.is_over() && asked.len() == 1);
        }
        opener.end_turn(now + SILENT, &mut |op| asked.push(op));
        assert!(opener.is_over() && hangs(opener));
    }
}
