//! What goes wrong, when, and when it is over.

use crate::director::{Alarm, Director, NODES, Sim, VOLUME, endpoint, second};
use crate::disk_faults::Failing;
use crate::mail::{LaneMail, Mail};
use crate::workload::{Kind, Wish};
use conductor_model::views::{Scrub, ScrubVerb};
use conductor_model::{BLOCK, Bytes};
use driver::{Address, Span};
use sim::{DiskOptions, Latency, NetworkOptions, ProcessId, State};
use std::net::SocketAddr;

/// A volume does not grow beyond this.
const LARGEST: u64 = 6 << 20;

/// How long a straggler takes at most: longer than a restarted node joins nothing, so that a whole epoch fits in.
const STRAGGLE: Span = Span::millis(5_000);

/// How often a spot is hammered, with how many requests, and its blocks.
const HAMMERED: u32 = 20;
const PER_ROUND: u32 = 2;
const SPOT: u64 = 3;

/// How a fault ends.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Undo {
    Heal(ProcessId, ProcessId),
    Mended(usize, SocketAddr),
    Restart(usize),
    Resume(ProcessId),
    Conductor,
    ConductorFast,
    Disk(usize),
    /// Somebody has seen to its disk, and starts the node again if it has given up on it.
    Mend(usize),
    Unstick(usize),
    /// No new operation of its disk is held up; those that are come when they come.
    Brisk(usize),
    /// Rather the second half of it: the last shard gets a new epoch, by a little growth, or others do, by another node's restart.
    NewEpoch(usize, bool),
    /// Requests for few blocks from this offset on keep coming, so many times more.
    Hammer(u64, u32),
    /// Rather the second half of it.
    Reset(ProcessId, ProcessId),
    Network,
}

/// What can go wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fault {
    Reset,
    Silence,
    Partition,
    OneWay,
    CutCable,
    Kill,
    PowerCut,
    KillTwo,
    KillAll,
    Pause,
    ClientPause,
    ClientKill,
    ClientSuperseded,
    ConductorCrash,
    ConductorDiesUnpersisted,
    ConductorSlow,
    SlowDiskKill,
    StuckDisk,
    StragglingDisk,
    ReadError,
    WriteError,
    DeadDisk,
    FullDisk,
    ThinDisk,
    SlowNetwork,
    FlakyNetwork,
    Rot,
    Grow,
}

impl Fault {
    /// Every one of them. The order is part of what a seed means: one is drawn by its place here.
    pub(crate) const ALL: [Self; 28] = [
        Self::Reset,
        Self::Silence,
        Self::Partition,
        Self::OneWay,
        Self::CutCable,
        Self::Kill,
        Self::PowerCut,
        Self::KillTwo,
        Self::KillAll,
        Self::Pause,
        Self::ClientPause,
        Self::ClientKill,
        Self::ClientSuperseded,
        Self::ConductorCrash,
        Self::ConductorDiesUnpersisted,
        Self::ConductorSlow,
        Self::SlowDiskKill,
        Self::StuckDisk,
        Self::StragglingDisk,
        Self::ReadError,
        Self::WriteError,
        Self::DeadDisk,
        Self::FullDisk,
        Self::ThinDisk,
        Self::SlowNetwork,
        Self::FlakyNetwork,
        Self::Rot,
        Self::Grow,
    ];

    /// Under which it is counted (`coverage`).
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Reset => "fault.reset",
            Self::Silence => "fault.silence",
            Self::Partition => "fault.partition",
            Self::OneWay => "fault.one-way",
            Self::CutCable => "fault.cut-cable",
            Self::Kill => "fault.kill",
            Self::PowerCut => "fault.power-cut",
            Self::KillTwo => "fault.kill-two",
            Self::KillAll => "fault.kill-all",
            Self::Pause => "fault.pause",
            Self::ClientPause => "fault.client-pause",
            Self::ClientKill => "fault.client-kill",
            Self::ClientSuperseded => "fault.client-superseded",
            Self::ConductorCrash => "fault.conductor-crash",
            Self::ConductorDiesUnpersisted => "fault.conductor-dies-unpersisted",
            Self::ConductorSlow => "fault.conductor-slow",
            Self::SlowDiskKill => "fault.slow-disk-kill",
            Self::StuckDisk => "fault.stuck-disk",
            Self::StragglingDisk => "fault.straggling-disk",
            Self::ReadError => "fault.read-error",
            Self::WriteError => "fault.write-error",
            Self::DeadDisk => "fault.dead-disk",
            Self::FullDisk => "fault.full-disk",
            Self::ThinDisk => "fault.thin-disk",
            Self::SlowNetwork => "fault.slow-network",
            Self::FlakyNetwork => "fault.flaky-network",
            Self::Rot => "fault.rot",
            Self::Grow => "fault.grow",
        }
    }
}

/// Blocks that rot at once, at most.
const ROTTEN: u64 = 24;

fn slow_disk() -> DiskOptions {
    let mut options = DiskOptions::sized(crate::node::DISK_BYTES);
    options.latency = Latency::micros(500, 40_000).tailed(50_000, Span::millis(200));
    options
}

/// Some operations take very long, while others that come later overtake them.
fn straggling_disk() -> DiskOptions {
    let mut options = DiskOptions::sized(crate::node::DISK_BYTES);
    options.latency = Latency::micros(10, 150).tailed(150_000, STRAGGLE);
    options
}

impl Director {
    /// Starts to break things.
    pub(crate) fn start_faults(&mut self, w: &mut Sim) {
        self.faulty = true;
        (self.lost_ppm, self.twice_ppm) = (30_000, 30_000);
        let after = self.rng.span(Span::millis(400));
        self.alarm(w, after, Alarm::Fault);
        if self.administered {
            self.alarm(w, after, Alarm::Administer);
        }
    }

    pub(crate) fn next_fault(&mut self, w: &mut Sim) {
        if !self.faulty {
            return;
        }
        let fault = Fault::ALL[self.rng.index(Fault::ALL.len())];
        if self.break_something(w, fault) {
            self.faults += 1;
            self.count(fault.name(), 1);
            w.tell(|| fault.name().to_owned());
        }
        let after = Span::millis(50 + self.rng.below(1_500));
        self.alarm(w, after, Alarm::Fault);
    }

    pub(crate) fn some_span(&mut self, most_ms: u64) -> Span {
        // Mostly short, sometimes long enough for every deadline.
        let most = if self.rng.chance(200_000) { most_ms } else { most_ms / 5 };
        Span(Span::millis(10).0 + self.rng.below(Span::millis(most).0))
    }

    /// Two processes that talk to each other.
    fn pair(&mut self, w: &Sim) -> Option<(ProcessId, ProcessId)> {
        let one = self.rng.index(NODES);
        let a = self.nodes[one].process;
        let lanes = self.live_lanes(w);
        if self.rng.coin() {
            return (!lanes.is_empty()).then(|| lanes[self.rng.index(lanes.len())]).map(|lane| (lane, a));
        }
        let b = self.nodes[(one + 1 + self.rng.index(NODES - 1)) % NODES].process;
        Some((a, b))
    }

    pub(crate) fn kill_node(&mut self, w: &mut Sim, node: usize, cut: bool) -> bool {
        let process = self.nodes[node].process;
        if w.state(process) == State::Dead {
            return false;
        }
        self.harvest_node(w, node);
        if cut {
            w.cut_power(process);
        } else {
            w.kill(process);
        }
        let after = self.some_span(6_000);
        self.alarm(w, after, Alarm::Undo(Undo::Restart(node)));
        true
    }

    /// Does it, or says that it cannot be done now.
    fn break_something(&mut self, w: &mut Sim, fault: Fault) -> bool {
        // Drawn also for what strikes no node, so that what is drawn next does not depend on that.
        let node = self.rng.index(NODES);
        match fault {
            Fault::Reset => self.strike(w, false),
            Fault::Silence => self.strike(w, true),
            Fault::Partition => self.partition(w, false),
            Fault::OneWay => self.partition(w, true),
            Fault::CutCable => self.cut_cable(w, node),
            Fault::Kill => self.kill_node(w, node, false),
            Fault::PowerCut => self.kill_node(w, node, true),
            Fault::KillTwo => self.kill_two(w, node),
            Fault::KillAll => self.kill_all(w),
            Fault::Pause => self.pause(w, self.nodes[node].process),
            Fault::ClientPause => self.pause_client(w),
            Fault::ClientKill => self.replace_client(w, true),
            Fault::ClientSuperseded => self.replace_client(w, false),
            Fault::ConductorCrash => self.crash_conductor(w, false),
            Fault::ConductorDiesUnpersisted => self.crash_conductor(w, true),
            Fault::ConductorSlow => self.slow_conductor(w),
            Fault::SlowDiskKill => self.slow_disk(w, node),
            Fault::StuckDisk => self.stick_disk(w, node),
            Fault::StragglingDisk => self.straggle_disk(w, node),
            Fault::ReadError => self.fail_disk(w, node, Failing::Reads),
            Fault::WriteError => self.fail_disk(w, node, Failing::Writes),
            Fault::DeadDisk => self.fail_disk(w, node, Failing::Dead),
            Fault::FullDisk => self.fail_disk(w, node, Failing::Full),
            Fault::ThinDisk => self.fail_disk(w, node, Failing::Thin),
            Fault::SlowNetwork => self.worsen_network(w, false),
            Fault::FlakyNetwork => self.worsen_network(w, true),
            Fault::Rot => self.rot(w),
            Fault::Grow => self.grow(w, 256),
        }
    }

    // ---- the network

    /// The present connections between two processes end, or carry nothing any more without a word.
    fn strike(&mut self, w: &mut Sim, silently: bool) -> bool {
        let Some((a, b)) = self.pair(w) else { return false };
        if silently {
            w.silence_between(a, b);
        } else {
            w.reset_between(a, b);
        }
        true
    }

    fn partition(&mut self, w: &mut Sim, one_way: bool) -> bool {
        let Some((a, b)) = self.pair(w) else { return false };
        match (one_way, self.rng.coin()) {
            (false, _) => w.partition(a, b),
            (true, true) => w.partition_one_way(a, b),
            (true, false) => w.partition_one_way(b, a),
        }
        let after = self.some_span(12_000);
        self.alarm(w, after, Alarm::Undo(Undo::Heal(a, b)));
        true
    }

    /// One of a node's two cables.
    fn cut_cable(&mut self, w: &mut Sim, node: usize) -> bool {
        if !self.two_networks {
            return false;
        }
        let address = if self.rng.coin() { endpoint(node) } else { second(node) };
        w.cut(self.nodes[node].process, Address::Tcp(address));
        let after = self.some_span(12_000);
        self.alarm(w, after, Alarm::Undo(Undo::Mended(node, address)));
        true
    }

    /// All of it is slow, or loses connections.
    fn worsen_network(&mut self, w: &mut Sim, flaky: bool) -> bool {
        let slow = NetworkOptions::default().latency.slower(1 + self.rng.below(200));
        let network = w.network();
        if flaky {
            (network.reset_ppm, network.silent_ppm) = (10_000, 2_000);
        } else {
            network.latency = slow;
        }
        let after = self.some_span(5_000);
        self.alarm(w, after, Alarm::Undo(Undo::Network));
        true
    }

    // ---- processes

    fn kill_two(&mut self, w: &mut Sim, node: usize) -> bool {
        let cut = self.rng.coin();
        let one = self.kill_node(w, node, cut);
        self.kill_node(w, (node + 1) % NODES, cut) || one
    }

    fn kill_all(&mut self, w: &mut Sim) -> bool {
        let mut any = false;
        for node in 0..NODES {
            let cut = self.rng.coin();
            any |= self.kill_node(w, node, cut);
        }
        any
    }

    fn pause(&mut self, w: &mut Sim, process: ProcessId) -> bool {
        if w.state(process) != State::Running {
            return false;
        }
        w.pause(process);
        let after = self.some_span(9_000);
        self.alarm(w, after, Alarm::Undo(Undo::Resume(process)));
        true
    }

    /// One lane of it.
    fn pause_client(&mut self, w: &mut Sim) -> bool {
        let lanes = self.live_lanes(w);
        if lanes.is_empty() {
            return false;
        }
        let lane = lanes[self.rng.index(lanes.len())];
        self.pause(w, lane)
    }

    /// The client dies, or hangs and is taken for dead; another life of it attaches.
    fn replace_client(&mut self, w: &mut Sim, kill: bool) -> bool {
        if self.attaching {
            return false;
        }
        if kill {
            self.kill_client(w, self.current);
        } else {
            for lane in self.clients[self.current].lanes.clone() {
                self.pause(w, lane);
            }
        }
        if self.rng.coin() {
            self.rename_client();
        }
        let after = self.some_span(2_000);
        self.attach(w, after);
        true
    }

    // ---- the conductor

    /// It dies now, or between its next decision and the moment when that is persistent.
    fn crash_conductor(&mut self, w: &mut Sim, unpersisted: bool) -> bool {
        if unpersisted {
            self.service.crash_at_next_change();
        } else {
            self.service.crash();
        }
        let after = self.some_span(8_000);
        self.alarm(w, after, Alarm::Undo(Undo::Conductor));
        true
    }

    /// What is said to it and by it is late, lost or doubled more often.
    fn slow_conductor(&mut self, w: &mut Sim) -> bool {
        (self.lost_ppm, self.twice_ppm, self.late) = (250_000, 250_000, Span::millis(1_500));
        let after = self.some_span(10_000);
        self.alarm(w, after, Alarm::Undo(Undo::ConductorFast));
        true
    }

    // ---- disks

    /// The end of it kills the node every other time.
    fn slow_disk(&mut self, w: &mut Sim, node: usize) -> bool {
        *w.disk(self.nodes[node].disk) = slow_disk();
        let after = self.some_span(2_000);
        self.alarm(w, after, Alarm::Undo(Undo::Disk(node)));
        true
    }

    fn stick_disk(&mut self, w: &mut Sim, node: usize) -> bool {
        w.stick(self.nodes[node].disk);
        if self.rng.coin() {
            // Those who wait for it lose their connection, and ask again.
            let other = self.nodes[(node + 1 + self.rng.index(NODES - 1)) % NODES].process;
            let soon = Span::millis(20 + self.rng.below(300));
            self.alarm(w, soon, Alarm::Undo(Undo::Reset(self.nodes[node].process, other)));
        }
        let after = Span(self.some_span(8_000).0 + Span::millis(300).0);
        self.alarm(w, after, Alarm::Undo(Undo::Unstick(node)));
        true
    }

    /// Some of what this disk is asked now takes very long, and the shards get new epochs meanwhile.
    fn straggle_disk(&mut self, w: &mut Sim, node: usize) -> bool {
        let at_end = self.rng.coin();
        let spot = self.spot(w, at_end);
        // A primary's disk every other time: what it holds is what clients read.
        let primary = spot.and_then(|spot| self.primary_of(spot));
        let node = primary.filter(|_| self.rng.coin()).unwrap_or(node);
        *w.disk(self.nodes[node].disk) = straggling_disk();
        // Soon over, so that few of the store's own log writes, which everything waits for, are among the stragglers.
        let brief = Span::millis(10 + self.rng.below(40));
        self.alarm(w, brief, Alarm::Undo(Undo::Brisk(node)));
        let soon = Span(brief.0 + self.rng.below(Span::millis(40).0));
        self.alarm(w, soon, Alarm::Undo(Undo::NewEpoch(node, at_end)));
        if let Some(spot) = spot {
            self.hammer(w, spot, HAMMERED);
        }
        true
    }

    fn rot(&mut self, w: &mut Sim) -> bool {
        // Always of the same disk: two copies of a block that rot between two looks are a loss that nobody can prevent.
        let disk = self.nodes[self.rots].disk;
        let blocks = 1 + self.rng.below(ROTTEN);
        let rotten = (0..blocks).filter(|_| w.rot_somewhere(disk, crate::node::home_of_data()).is_some()).count();
        self.scrub(w, VOLUME);
        rotten > 0
    }

    /// Has a volume scrubbed, if the conductor is there; every other time it stops in between.
    pub(crate) fn scrub(&mut self, w: &Sim, volume: &str) -> bool {
        let verb = if self.faulty && self.rng.coin() { ScrubVerb::Pause } else { ScrubVerb::Start };
        let scrub = Scrub { verb, rate: None };
        let now = self.now(w);
        self.service.is_up() && self.service.command(|m| m.change_scrub(now, volume, &scrub)).is_ok()
    }

    /// Where few blocks are: anywhere, or in the last shard, which gets a new epoch when the volume grows.
    fn spot(&mut self, w: &Sim, at_end: bool) -> Option<u64> {
        let blocks = self.service.model().show(self.now(w), VOLUME).ok()?.info.size.0 / BLOCK as u64;
        let span = if at_end { blocks.min(16) } else { blocks };
        let first = blocks - span + self.rng.below(span.saturating_sub(SPOT) + 1);
        Some(first * BLOCK as u64)
    }

    /// The node that is primary there, as far as the conductor knows.
    pub(crate) fn primary_of(&self, spot: u64) -> Option<usize> {
        let map = self.service.model().map(VOLUME).ok()?;
        let shard = map.shards.get(usize::try_from(spot / map.shard_size.0).ok()?)?;
        (0..NODES).find(|node| endpoint(*node) == shard.endpoint)
    }

    /// Has the clients write and read the same few blocks now, and again soon.
    fn hammer(&mut self, w: &mut Sim, spot: u64, left: u32) {
        let mut shared = self.shared.borrow_mut();
        for _ in 0..PER_ROUND {
            // Writes at first; then ever fewer, so that what a late one left is read before it is overwritten.
            let kind = if self.rng.below(HAMMERED.into()) < left.into() { Kind::Write } else { Kind::Read };
            let first = self.rng.below(SPOT);
            let count = self.rng.below(SPOT - first) + 1;
            let wish = Wish { kind, offset: spot + first * BLOCK as u64, len: count * BLOCK as u64 };
            shared.script.push_back(wish);
        }
        drop(shared);
        for lane in self.live_lanes(w) {
            w.mail_after(lane, Span(0), Mail::Lane(LaneMail::Wake));
        }
        if left > 0 {
            // Closely at first, while the disk straggles; then now and then, for as long as stragglers may take.
            let wait = if left + 4 > HAMMERED { Span::millis(6) } else { Span::millis(50 + self.rng.below(500)) };
            self.alarm(w, wait, Alarm::Undo(Undo::Hammer(spot, left - 1)));
        }
    }

    /// The volume grows by up to so many blocks: its last shard gets a new epoch.
    fn grow(&mut self, w: &mut Sim, most: u64) -> bool {
        if !self.service.is_up() {
            return false;
        }
        let now = self.now(w);
        let Ok(detail) = self.service.model().show(now, VOLUME) else { return false };
        let more = (1 + self.rng.below(most)) * BLOCK as u64;
        let size = Bytes((detail.info.size.0 + more).min(LARGEST));
        let rng = &mut self.rng;
        let grown = self.service.command(|model| model.resize(now, VOLUME, size, &mut || rng.next_u64()));
        if grown.is_err() || size == detail.info.size {
            return false;
        }
        let Ok(map) = self.service.model().map(VOLUME) else { return false };
        for lane in self.live_lanes(w) {
            w.mail_after(lane, Span::millis(1), Mail::Lane(LaneMail::Map(map.clone())));
        }
        true
    }

    pub(crate) fn undo(&mut self, w: &mut Sim, undo: Undo) {
        if !matches!(undo, Undo::Hammer(..)) {
            w.tell(|| format!("over: {undo:?}"));
        }
        match undo {
            Undo::Heal(a, b) => w.heal(a, b),
            Undo::Mended(node, address) => w.mend(self.nodes[node].process, &Address::Tcp(address)),
            Undo::Restart(node) => {
                let process = self.nodes[node].process;
                if w.state(process) == State::Dead && !self.inspect.get() {
                    w.restart(process);
                    self.count("node.restarted", 1);
                    self.may_fail_again(w, node);
                }
            }
            Undo::Resume(process) => w.resume(process),
            Undo::Conductor => {
                if let Err(corrupt) = self.service.restart(self.now(w)) {
                    self.shared.borrow_mut().failures.push(corrupt.to_string().into());
                }
                self.count("conductor.restarted", 1);
            }
            Undo::ConductorFast => {
                (self.lost_ppm, self.twice_ppm, self.late) = (30_000, 30_000, Span::millis(4));
            }
            Undo::Disk(node) => {
                if self.rng.coin() && self.faulty {
                    let cut = self.rng.coin();
                    self.kill_node(w, node, cut);
                }
                *w.disk(self.nodes[node].disk) = DiskOptions::sized(crate::node::DISK_BYTES);
            }
            Undo::Mend(node) => self.mend(w, node),
            Undo::Unstick(node) => w.unstick(self.nodes[node].disk),
            Undo::Brisk(node) => *w.disk(self.nodes[node].disk) = DiskOptions::sized(crate::node::DISK_BYTES),
            Undo::NewEpoch(..) | Undo::Hammer(..) if !self.faulty => {}
            Undo::Hammer(spot, left) => self.hammer(w, spot, left),
            Undo::NewEpoch(node, grow) => {
                if !grow || !self.grow(w, 4) {
                    let other = (node + 1 + self.rng.index(NODES - 1)) % NODES;
                    let cut = self.rng.coin();
                    self.kill_node(w, other, cut);
                }
            }
            Undo::Reset(a, b) => w.reset_between(a, b),
            Undo::Network => *w.network() = NetworkOptions::default(),
        }
    }

    /// Nothing is broken any more, and nothing will be.
    pub(crate) fn end_faults(&mut self, w: &mut Sim) {
        self.faulty = false;
        w.heal_all();
        self.undo(w, Undo::Conductor);
        self.undo(w, Undo::Network);
        (self.lost_ppm, self.twice_ppm, self.late) = (0, 0, Span::millis(4));
        for node in 0..NODES {
            self.undo(w, Undo::Unstick(node));
            self.undo(w, Undo::Disk(node));
            self.undo(w, Undo::Resume(self.nodes[node].process));
            self.undo(w, Undo::Mend(node));
            self.undo(w, Undo::Restart(node));
        }
        for lane in self.live_lanes(w) {
            self.undo(w, Undo::Resume(lane));
        }
    }
}
