//! One thread, one ring, one disk: the machine runs until what was asked for is there.

use crate::load::Pattern;
use crate::machine::{Bench, COPY, Command, Load, State};
use crate::tally::Tally;
use anyhow::{Context, bail};
use conductor_model::{
    AttachGeneration, BLOCK, BlockRange, Blocks, Bytes, Configuration, CopyState, DiskId, Durability, Epoch, Member,
    NodeId, OpenId, ShardId, ShardIndex, VolumeId,
};
use driver::{DiskIndex, Span};
use memory::{Arena, ArenaOptions, Backing, Class, Shares};
use nix::sys::resource::{UsageWho, getrusage};
use node_store::journaled::{Format, FormatOptions, Geometry, JournaledStore, Opening, Tuning};
use node_store::{Identity, OpenOptions, Store as _, StoreDone, StoreOp, View, block_crcs};
use reactor::{DiskOptions, Limits, OwnRing, Reactor, Uring, clock, mailbox};
use std::path::Path;
use std::time::Duration;

/// Memory of the reactor: 16 MiB of content, and what the store wants.
const ARENA: usize = 64 << 20;
/// Copies that the store has room for.
const COPIES: u32 = 64;
/// A journal that took nothing for so long is full.
const FULL_AFTER: Span = Span::millis(3000);
/// Blocks of one read when content is looked at.
const LOOK: u32 = 16;

/// See the module's head.
pub(crate) struct Rig {
    reactor: Reactor<Bench, OwnRing>,
    arena: Arena,
    disk: DiskIndex,
    size: Bytes,
}

/// What a load came to.
pub(crate) struct Ran {
    pub(crate) requests: u64,
    pub(crate) bytes: u64,
    pub(crate) seconds: f64,
    /// User and system time of this process.
    pub(crate) cpu: f64,
    pub(crate) enters: u64,
    /// Microseconds.
    pub(crate) p50: f64,
    pub(crate) p99: f64,
    pub(crate) pattern: Pattern,
}

impl Ran {
    pub(crate) fn rate(&self) -> f64 {
        self.requests as f64 / self.seconds
    }
}

fn cpu() -> anyhow::Result<f64> {
    let usage = getrusage(UsageWho::RUSAGE_SELF)?;
    let seconds = |time: nix::sys::time::TimeVal| time.tv_sec() as f64 + time.tv_usec() as f64 / 1e6;
    Ok(seconds(usage.user_time()) + seconds(usage.system_time()))
}

fn configuration(volume: u64) -> Configuration {
    let member = Member {
        copy: COPY,
        node: NodeId(1),
        disk: DiskId(1),
        open: OpenId(1),
        state: CopyState::InSync,
        since: conductor_model::Epoch(0),
        past: false,
        endpoint: ([127, 0, 0, 1], 1).into(),
    };
    Configuration {
        shard: ShardId { volume: VolumeId(1), index: ShardIndex(0) },
        epoch: Epoch(1),
        primary: COPY,
        members: vec![member],
        full_set: vec![COPY],
        min_copies: 1,
        attach: AttachGeneration(1),
        size: Bytes(volume),
        born: true,
        durability: Durability::Always,
        cache: conductor_model::Commit(0),
        card: None,
        parent: None,
    }
}

impl Rig {
    pub(crate) fn new(path: &Path, size: u64, bench: Bench) -> anyhow::Result<Self> {
        let options = ArenaOptions { bytes: ARENA, backing: Backing::Heap, shares: Shares::even(ARENA / 2) };
        let arena = Arena::new(options)?;
        let limits = Limits { ops: 2048, streams: 1, submissions: 256, ..Limits::default() };
        let mut driver = Uring::new(OwnRing::new(&limits)?, limits)?;
        let disk = driver.open_disk(path, DiskOptions::default())?;
        let (_, mail) = mailbox(1)?;
        Ok(Self { reactor: Reactor::start(bench, driver, mail)?, arena, disk, size: Bytes(size) })
    }

    /// The process dies: what is in flight is over, what is in memory is gone. What the machine knew of the disk is given back.
    pub(crate) fn crash(mut self) -> Bench {
        std::mem::replace(self.reactor.machine(), Bench::new(0)).reborn()
    }

    fn tell(&mut self, command: Command) {
        self.reactor.mail(clock::now(), command);
    }

    fn until(&mut self, reached: impl Fn(&Bench) -> bool) -> anyhow::Result<()> {
        loop {
            let machine = self.reactor.machine();
            if let Some(failure) = machine.failure.take() {
                bail!(failure);
            }
            if reached(machine) {
                return Ok(());
            }
            self.reactor.turn()?;
        }
    }

    pub(crate) fn format(&mut self, journal: u64, places: u64, volume: u64) -> anyhow::Result<()> {
        let ring = u32::try_from(journal / BLOCK as u64)?;
        let geometry =
            Geometry::new(self.size, ring, u32::try_from(places)?, COPIES).context("the sizes do not fit together")?;
        let identity = Identity { cluster: 1, node: NodeId(1), disk: DiskId(clock::now().0) };
        let options = FormatOptions { disk: self.disk, journal: None, identity, geometry, overwrite: false };
        let arena = self.arena.clone();
        self.tell(Command::Format(Box::new(move |out| {
            Format::start(options, &arena, out).map_err(|error| error.to_string())
        })));
        self.until(|bench| matches!(bench.state, State::Formatted))?;
        self.open()?;
        self.ask(StoreOp::Create { copy: COPY, config: configuration(volume), parent: None })?;
        Ok(())
    }

    /// How long it took to be ready to serve.
    pub(crate) fn open(&mut self) -> anyhow::Result<Duration> {
        let options = OpenOptions { disk: self.disk, size: self.size, cluster: Some(1), node: Some(NodeId(1)) };
        let arena = self.arena.clone();
        let began = clock::now();
        self.tell(Command::Open(Box::new(move |out| {
            Opening::start(options, Tuning::default(), &arena, out).map_err(|error| error.to_string())
        })));
        self.until(|bench| matches!(bench.state, State::Open(_)))?;
        Ok(Duration::from_nanos(clock::now().since(began).0))
    }

    pub(crate) fn ask(&mut self, op: StoreOp) -> anyhow::Result<StoreDone> {
        self.tell(Command::Single(op));
        self.until(|bench| bench.single.is_some())?;
        match self.reactor.machine().single.take() {
            Some(result) => Ok(result?),
            None => bail!("an operation ended without an outcome"),
        }
    }

    pub(crate) fn snapshot(&mut self, id: u64) -> anyhow::Result<()> {
        let (stamp, known_good) = self.reactor.machine().stamps();
        let snapshot = conductor_model::SnapshotId(id);
        self.ask(StoreOp::Snapshot { copy: COPY, stamp, snapshot, known_good })?;
        Ok(())
    }

    /// Writes until the pattern or the time is over.
    pub(crate) fn write(
        &mut self,
        pattern: Pattern,
        blocks: u32,
        depth: usize,
        time: Option<Duration>,
    ) -> anyhow::Result<Ran> {
        self.reactor.machine().load = None;
        let seed = clock::now().0;
        let (cpu_before, enters) = (cpu()?, self.reactor.driver().counters().enters);
        let began = clock::now();
        let until = time.map(|time| began + Span(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)));
        let load = Load::new(&self.arena, pattern, blocks, depth, until, seed)?;
        self.tell(Command::Load(load));
        self.until(|bench| bench.load.as_ref().is_none_or(Load::is_over))?;
        let seconds = clock::now().since(began).0 as f64 / 1e9;
        let load = self.reactor.machine().load.take();
        let mut load = load.context("the load is gone")?;
        load.latencies.sort_unstable();
        let at = |percent: usize| {
            let n = load.latencies.len() * percent / 100;
            load.latencies.get(n).map_or(0.0, |&latency| f64::from(latency) / 1000.0)
        };
        Ok(Ran {
            requests: load.done,
            bytes: load.blocks * BLOCK as u64,
            seconds,
            cpu: cpu()? - cpu_before,
            enters: self.reactor.driver().counters().enters - enters,
            p50: at(50),
            p99: at(99),
            pattern: load.into_pattern(),
        })
    }

    /// Writes on while no superblock gets to the disk, until the journal takes nothing more. Blocks that are free in it then.
    pub(crate) fn fill_journal(&mut self, pattern: Pattern, depth: usize) -> anyhow::Result<u64> {
        self.reactor.machine().hold_superblocks = true;
        let load = Load::new(&self.arena, pattern, 1, depth, None, 1)?;
        self.tell(Command::Load(load));
        let mut last = (0, clock::now());
        loop {
            self.until(|_| true)?;
            let turned = self.reactor.machine().load.as_ref().map_or(0, |load| load.done);
            let now = clock::now();
            if turned != last.0 {
                last = (turned, now);
            } else if now.since(last.1) > FULL_AFTER {
                return Ok(u64::from(self.store()?.journal_free().0));
            }
            self.reactor.mail(now, Command::Poke);
            self.reactor.turn()?;
        }
    }

    /// Waits until all is home.
    pub(crate) fn settle(&mut self) -> anyhow::Result<()> {
        self.until(|bench| bench.store().is_none_or(|store| store.is_all_home() && store.idle()))
    }

    /// Reads so many places back.
    pub(crate) fn verify(&mut self, places: u32, seed: u64) -> anyhow::Result<()> {
        let mut random = crate::load::Random::new(seed);
        let span = u32::try_from(self.reactor.machine().expected.len())? - LOOK;
        for _ in 0..places {
            let at = BlockRange { from: Blocks(random.below(span)), count: Blocks(LOOK) };
            let into = self.arena.take(LOOK as usize * BLOCK, Class::Client).context("no memory to read into")?;
            let StoreDone::Read(bytes, _) = self.ask(StoreOp::Read { copy: COPY, view: View::Live, at, into })? else {
                bail!("a read ended without data");
            };
            let machine = self.reactor.machine();
            let good = (at.from.0..).zip(block_crcs(&bytes)).all(|(block, crc)| {
                machine.unknown.contains(&block) || machine.expected.get(block as usize) == Some(&crc)
            });
            if !good {
                bail!("blocks {at} do not read as they were written");
            }
        }
        Ok(())
    }

    pub(crate) fn store(&mut self) -> anyhow::Result<&JournaledStore> {
        self.reactor.machine().store().context("the store is not open")
    }

    pub(crate) fn tally(&mut self) -> Tally {
        self.reactor.machine().tally
    }

    pub(crate) fn cached_most(&mut self) -> u64 {
        self.reactor.machine().cached_most
    }
}
