//! The world: what a test does to it. How it goes on from there is in `turns`.

use crate::content::{BLOCK, Image};
use crate::disks::{DiskId, Disks, blocks_of};
use crate::kernel::{Event, Host, Kernel, ProcessId};
use crate::network::Network;
use crate::options::{DiskOptions, NetworkOptions, Options};
use crate::process::{Birth, Body, Fitted, Item, Process, Setup, State};
use crate::random::Rng;
use crate::size;
use crate::trace::KINDS;
use driver::{Address, Machine, Span, Time, Vecs};
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::ops::Range;

/// Processes whose machines take mail that `A` can be turned into and post letters that turn into `L`.
pub struct World<A, L> {
    pub(crate) k: Kernel,
    pub(crate) options: Options,
    pub(crate) network: Network,
    pub(crate) disks: Disks,
    pub(crate) processes: Vec<Process<A, L>>,
    pub(crate) mails: BTreeMap<u64, A>,
    next_mail: u64,
    pub(crate) news: VecDeque<News<L>>,
    pub(crate) out: Vecs<L>,
}

/// What the test is told.
#[derive(Debug, PartialEq, Eq)]
pub enum News<L> {
    /// A machine posted a letter.
    Letter {
        /// Which process.
        from: ProcessId,
        /// In which of its lives.
        life: u32,
        /// What it posted.
        letter: L,
    },
    /// An alarm that the test set.
    Alarm(u64),
    /// A machine was told to stop, and has.
    Finished(ProcessId),
}

/// What one step brought.
#[derive(Debug, PartialEq, Eq)]
pub enum Step<L> {
    /// Something to tell.
    News(News<L>),
    /// Something inside the world.
    Quiet,
    /// Nothing: no event is scheduled, and without one there will never be any.
    Idle,
}

/// Why what a test waited for did not happen.
#[derive(Debug)]
pub enum Stall {
    /// No event is scheduled any more. The text says what is outstanding where.
    Idle(String),
    /// The time ran out. The text says what is outstanding where.
    Late(String),
}

impl fmt::Display for Stall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Idle(report) => write!(f, "nothing is scheduled, but something is expected\n{report}"),
            Self::Late(report) => write!(f, "the time ran out\n{report}"),
        }
    }
}

impl std::error::Error for Stall {}

impl<A, L> World<A, L> {
    /// An empty world.
    pub fn new(seed: u64, options: Options) -> Self {
        Self {
            k: Kernel::new(seed),
            options,
            network: Network::new(options.network),
            disks: Disks::default(),
            processes: Vec::new(),
            mails: BTreeMap::new(),
            next_mail: 0,
            news: VecDeque::new(),
            out: Vecs::default(),
        }
    }

    // ---- processes

    /// Starts a process. Its machines are made by `factory`, one for each life.
    ///
    /// # Panics
    /// If one of its disks or addresses belongs to another process.
    pub fn spawn<M, F>(&mut self, setup: Setup, mut factory: F) -> ProcessId
    where
        M: Machine + 'static,
        A: TryInto<M::Mail> + 'static,
        M::Letter: Into<L>,
        F: FnMut(Birth) -> M + 'static,
        L: 'static,
    {
        let process = ProcessId(u32::try_from(self.processes.len()).unwrap_or(u32::MAX));
        self.k.hosts.push(Host {
            name: setup.name,
            life: 0,
            state: State::Dead,
            powered: true,
            clock: setup.clock,
            boot: Time(0),
            outstanding: [0; KINDS.len()],
        });
        self.network.add(process, setup.listeners);
        self.processes.push(Process {
            factory: Box::new(move |birth| Box::new(Fitted(factory(birth))) as Box<dyn Body<A, L>>),
            body: None,
            disks: setup.disks,
            ready: VecDeque::new(),
            turn_at: None,
            spins: 0,
        });
        self.restart(process);
        process
    }

    /// Kills a process (SIGKILL). Its peers see its streams end or break; of its disks' unsettled writes each is kept, torn or
    /// lost, and so is what it had in flight: as bad as a power loss, which it may have been.
    pub fn kill(&mut self, process: ProcessId) {
        self.end(process, false, "process.killed");
    }

    /// Cuts a process's power: as `kill`, but its peers hear nothing until they ask, and nobody answers before the restart. Its
    /// clock starts anew.
    pub fn cut_power(&mut self, process: ProcessId) {
        self.end(process, true, "process.power_cut");
    }

    fn end(&mut self, process: ProcessId, cut: bool, name: &'static str) {
        if self.k.host(process).state == State::Dead {
            if cut {
                self.k.host_mut(process).powered = false;
            }
            return;
        }
        self.k.trace.event(self.k.now, process, name);
        self.bury(process, cut);
        for disk in self.processes[process.index()].disks.clone() {
            self.disks.abandon(&mut self.k, disk);
        }
    }

    /// What any end of a process has in common.
    pub(crate) fn bury(&mut self, process: ProcessId, cut: bool) {
        let host = self.k.host_mut(process);
        host.state = State::Dead;
        host.powered = !cut;
        host.outstanding = [0; KINDS.len()];
        self.network.abandon(&mut self.k, process, cut);
        let it = &mut self.processes[process.index()];
        it.body = None;
        it.turn_at = None;
        for item in it.ready.drain(..) {
            if let Item::Mail(mail) = item {
                self.mails.remove(&mail);
            }
        }
    }

    /// Gives a dead process another life, on the same disks and addresses.
    ///
    /// # Panics
    /// If it is alive, or another process uses one of its disks.
    pub fn restart(&mut self, process: ProcessId) {
        assert!(self.k.host(process).state == State::Dead, "{process:?} is alive");
        for disk in &self.processes[process.index()].disks {
            let holder = &mut self.disks.get_mut(*disk).holder;
            assert!(holder.is_none(), "{disk:?} is locked by {holder:?}");
            *holder = Some(process);
        }
        let now = self.k.now;
        let seed = self.k.rng.next_u64();
        let host = self.k.host_mut(process);
        if !host.powered {
            host.powered = true;
            host.boot = now;
        }
        host.state = State::Running;
        host.life += 1;
        let life = host.life;
        self.k.trace.event(now, process, "process.started");
        self.network.powered_on(&mut self.k, process);
        let local = self.k.local(process);
        let it = &mut self.processes[process.index()];
        it.spins = 0;
        let mut body = (it.factory)(Birth { process, life, now: local, seed });
        body.start(local, &mut self.out);
        self.after_turn(process, body);
    }

    /// Stops a process (SIGSTOP): it gets no turns; the kernel below goes on with what it has submitted.
    pub fn pause(&mut self, process: ProcessId) {
        if self.k.host(process).state == State::Running {
            self.k.trace.event(self.k.now, process, "process.paused");
            self.k.host_mut(process).state = State::Paused;
        }
    }

    /// Lets a paused process go on (SIGCONT).
    pub fn resume(&mut self, process: ProcessId) {
        if self.k.host(process).state == State::Paused {
            self.k.trace.event(self.k.now, process, "process.resumed");
            self.k.host_mut(process).state = State::Running;
            self.plan_turn(process, self.k.now);
        }
    }

    /// Whether it runs.
    pub fn state(&self, process: ProcessId) -> State {
        self.k.host(process).state
    }

    /// How often it was started.
    pub fn life(&self, process: ProcessId) -> u32 {
        self.k.host(process).life
    }

    /// Its machine, if it is alive and an `M`.
    pub fn machine<M: 'static>(&self, process: ProcessId) -> Option<&M> {
        self.processes[process.index()].body.as_ref()?.as_any().downcast_ref()
    }

    /// Sends mail to the current life of a process; it gets there after `span`, or not at all if that life ends before.
    pub fn mail_after(&mut self, process: ProcessId, span: Span, mail: A) {
        if self.k.host(process).state == State::Dead {
            self.k.trace.count("mail.lost");
            return;
        }
        self.next_mail += 1;
        self.mails.insert(self.next_mail, mail);
        let life = self.k.host(process).life;
        self.k.schedule_in(span, Event::Mail { process, life, mail: self.next_mail });
    }

    /// Tells the test `News::Alarm(id)` at `at` (now, if that is over).
    pub fn alarm_at(&mut self, at: Time, id: u64) {
        self.k.schedule(at.max(self.k.now), Event::Alarm { id });
    }

    /// What a process's clock shows.
    pub fn local(&self, process: ProcessId) -> Time {
        self.k.local(process)
    }

    // ---- network

    /// How the network behaves, to be changed at will.
    pub fn network(&mut self) -> &mut NetworkOptions {
        &mut self.network.options
    }

    /// Nothing passes between the two any more.
    pub fn partition(&mut self, a: ProcessId, b: ProcessId) {
        self.partition_one_way(a, b);
        self.partition_one_way(b, a);
    }

    /// Nothing gets from one to the other any more; the other way it does.
    pub fn partition_one_way(&mut self, from: ProcessId, to: ProcessId) {
        self.k.trace.event(self.k.now, from, "net.partition");
        self.network.block(from, to);
    }

    /// Ends the partition between the two, both ways.
    pub fn heal(&mut self, a: ProcessId, b: ProcessId) {
        self.k.trace.event(self.k.now, a, "net.heal");
        self.network.unblock(&mut self.k, a, b);
        self.network.unblock(&mut self.k, b, a);
    }

    /// Nothing passes any more on connections to one of a process's addresses; on those to its others it does.
    pub fn cut(&mut self, process: ProcessId, address: Address) {
        self.k.trace.event(self.k.now, process, "net.cut");
        self.network.cut(address);
    }

    /// It does again.
    pub fn mend(&mut self, process: ProcessId, address: &Address) {
        self.k.trace.event(self.k.now, process, "net.mended");
        self.network.mend(&mut self.k, address);
    }

    /// Ends all partitions and cuts.
    pub fn heal_all(&mut self) {
        for address in self.network.cuts().to_vec() {
            self.network.mend(&mut self.k, &address);
        }
        for (from, to) in self.network.blocked() {
            self.k.trace.event(self.k.now, from, "net.heal");
            self.network.unblock(&mut self.k, from, to);
        }
    }

    /// Breaks all streams between the two.
    pub fn reset_between(&mut self, a: ProcessId, b: ProcessId) {
        self.network.strike(&mut self.k, a, b, false);
    }

    /// Makes all streams that are now between the two black holes, which neither is told. New ones work.
    pub fn silence_between(&mut self, a: ProcessId, b: ProcessId) {
        self.network.strike(&mut self.k, a, b, true);
    }

    // ---- disks

    /// A new, empty disk.
    pub fn add_disk(&mut self, options: DiskOptions) -> DiskId {
        self.disks.add(options)
    }

    /// How a disk behaves, to be changed at will.
    pub fn disk(&mut self, disk: DiskId) -> &mut DiskOptions {
        &mut self.disks.get_mut(disk).options
    }

    /// From now on nothing that is on its way to the disk or back gets on.
    pub fn stick(&mut self, disk: DiskId) {
        self.disks.set_stuck(&mut self.k, disk, true);
    }

    /// It does again.
    pub fn unstick(&mut self, disk: DiskId) {
        self.disks.set_stuck(&mut self.k, disk, false);
    }

    /// Flips one bit of the byte at `at`, for good.
    pub fn rot(&mut self, disk: DiskId, at: u64, bit: u8) {
        self.k.trace.count("disk.rot");
        let byte = size(at % BLOCK as u64);
        self.disks.get_mut(disk).content.flip(at / BLOCK as u64, byte * 8 + usize::from(bit % 8));
    }

    /// Flips a bit somewhere in what was written to this range of bytes, and says in which byte.
    pub fn rot_somewhere(&mut self, disk: DiskId, range: Range<u64>) -> Option<u64> {
        let blocks = blocks_of(range.start, range.end.saturating_sub(range.start));
        let content = &self.disks.get(disk).content;
        let nth = self.k.rng.index(content.used(blocks.clone()));
        let block = content.nth_used(blocks, nth)?;
        let at = block * BLOCK as u64 + self.k.rng.below(BLOCK as u64);
        let bit = self.k.rng.below(8);
        self.rot(disk, at, u8::try_from(bit).unwrap_or(0));
        Some(at)
    }

    /// All that is on a disk, as a copy of it would have it.
    pub fn image(&self, disk: DiskId) -> Image {
        self.disks.get(disk).content.image()
    }

    /// Puts that back, while nobody has the disk.
    pub fn put_back(&mut self, disk: DiskId, image: &Image) {
        let disk = self.disks.get_mut(disk);
        assert!(disk.holder.is_none(), "a disk that somebody has is not written over");
        disk.content.put_back(image);
    }

    /// What reads of this range would see.
    pub fn disk_bytes(&self, disk: DiskId, at: u64, len: usize) -> Vec<u8> {
        self.disks.get(disk).peek(at, len)
    }

    // ---- time

    /// The world's time.
    pub fn now(&self) -> Time {
        self.k.now
    }

    /// One event.
    pub fn step(&mut self) -> Step<L> {
        if self.news.is_empty() {
            match self.k.pop() {
                Some(event) => self.happen(event),
                None => return Step::Idle,
            }
        }
        self.news.pop_front().map_or(Step::Quiet, Step::News)
    }

    /// All that happens up to and at `until`; `director` is told the news at the moment when there is some. Afterwards it is `until`.
    pub fn run_until(&mut self, until: Time, mut director: impl FnMut(&mut Self, News<L>)) {
        while !self.news.is_empty() || self.k.next_at().is_some_and(|at| at <= until) {
            if let Step::News(news) = self.step() {
                director(self, news);
            }
        }
        self.k.now = self.k.now.max(until);
    }

    /// Goes on until `done` says so (it is asked after each event) or, at the latest, until `limit`.
    ///
    /// # Errors
    /// If the time ran out, or nothing is scheduled any more.
    pub fn run_until_done(
        &mut self,
        limit: Time,
        mut director: impl FnMut(&mut Self, News<L>),
        mut done: impl FnMut(&Self) -> bool,
    ) -> Result<(), Stall> {
        while !done(self) {
            if self.news.is_empty() && self.k.next_at().is_some_and(|at| at > limit) {
                return Err(Stall::Late(self.report()));
            }
            match self.step() {
                Step::News(news) => director(self, news),
                Step::Quiet => {}
                Step::Idle => return Err(Stall::Idle(self.report())),
            }
        }
        Ok(())
    }

    // ---- what happened

    /// Chance, for the test's own decisions. (They become part of what the seed determines.)
    pub fn rng(&mut self) -> &mut Rng {
        &mut self.k.rng
    }

    /// A hash over every event so far that a process noticed: equal for equal seeds and tests.
    pub fn hash(&self) -> u64 {
        self.k.trace.hash()
    }

    /// How often what happened, faults and events alike, by name.
    pub fn counts(&self) -> &BTreeMap<&'static str, u64> {
        self.k.trace.counts()
    }

    /// How often this happened.
    pub fn count(&self, name: &str) -> u64 {
        self.counts().get(name).copied().unwrap_or(0)
    }

    /// Counts something of the test's own.
    pub fn note(&mut self, name: &'static str) {
        self.k.trace.count(name);
    }

    /// Something of the test's own for those who read the trace; not asked for if none is kept.
    pub fn tell(&mut self, write: impl FnOnce() -> String) {
        let now = self.k.now;
        self.k.trace.line(|line| fmt::Write::write_fmt(line, format_args!("{now:?} {}", write())));
    }

    /// From now on the last so many events are kept in words (0: none, which is fast).
    pub fn keep_trace(&mut self, lines: usize) {
        self.k.trace.keep(lines);
    }

    /// The events that were kept, oldest first.
    pub fn trace(&self) -> impl Iterator<Item = &str> {
        self.k.trace.lines()
    }

    /// Who lives, and what is outstanding where.
    pub fn report(&self) -> String {
        let mut text = format!("at {:?}, next event {:?}\n", self.k.now, self.k.next_at());
        for (host, it) in self.k.hosts.iter().zip(&self.processes) {
            text += &format!("  {} {:?} life {}: {} ready,", host.name, host.state, host.life, it.ready.len());
            for (kind, n) in KINDS.iter().zip(host.outstanding).filter(|(_, n)| *n > 0) {
                text += &format!(" {n} {kind}");
            }
            text += "\n";
        }
        text + &self.network.report()
            + &format!("  blocked: {:?}, cut: {:?}\n", self.network.blocked(), self.network.cuts())
    }
}
