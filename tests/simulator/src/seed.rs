//! One seed from the first boot to the last comparison.

use crate::checker;
use crate::content::SECTOR;
use crate::director::{Director, NODES, Sim, VOLUME};
use crate::history::{History, Operation, What};
use crate::inspector::Found;
use crate::lane::Lane;
use crate::mail::{LaneMail, Mail};
use crate::node::NodeProcess;
use crate::verdict::{self, Failure};
use crate::workload::{Kind, Mood, Wish, Workload};
use conductor_model::views::{NewVolume, ScrubInfo, ScrubState};
use conductor_model::{BLOCK, Bytes, Epoch, Millis};
use driver::Span;
use sim::{Options, State, World};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

/// Requests of each seed, at least.
pub const OPERATIONS: usize = 800;
/// Faults of each seed, at least.
pub const FAULTS: u32 = 3;
/// More requests when the faults were too few by then.
const MORE: usize = 60;
/// Virtual time for booting.
const BOOT: Span = Span::seconds(20);
/// Virtual time for the traffic.
const TRAFFIC: Span = Span::seconds(600);
/// Virtual time for everything to come back, once nothing is broken any more.
const RECOVERY: Span = Span::seconds(120);
/// Virtual time after which a store that is asked for nothing has folded: it begins after one second.
const FOLDED: Span = Span::seconds(5);
/// Bytes of one read of the last look at the whole volume.
const SCAN: u64 = 128 << 10;

/// What became of a seed.
#[derive(Debug)]
pub struct Outcome {
    /// The seed.
    pub seed: u64,
    /// A hash over everything that any process noticed and any client saw.
    pub hash: u64,
    /// Client operations, those without effect (flushes) not counted.
    pub operations: usize,
    /// Sector reads that were checked.
    pub checked: u64,
    /// Faults injected.
    pub faults: u32,
    /// Virtual time.
    pub time: Span,
    /// What happened how often.
    pub counts: BTreeMap<String, u64>,
    /// The worst of what is wrong.
    pub failure: Option<Failure>,
    /// The last events in words, if they were asked for.
    pub trace: Vec<String>,
}

/// Runs a seed, with somebody at work on volumes or not; keeps so many lines of its trace.
pub fn run(seed: u64, volumes: bool, trace: usize) -> Outcome {
    let mut w: Sim = World::new(seed, Options::default());
    w.keep_trace(trace);
    let mut rng = w.rng().fork();
    let shard = Bytes([1, 2][rng.index(2)] << 20);
    let size = Bytes(shard.0 * 2 + (rng.below(200) + 1) * BLOCK as u64);
    let mood = Mood::new(&mut rng, size.0, shard.0);
    let shared = Rc::new(RefCell::new(Workload::new(mood, OPERATIONS)));
    let mut director = Director::new(&mut w, Rc::clone(&shared));
    director.administered = volumes;
    let played = play(&mut w, &mut director, size, shard);
    let mut shared = shared.borrow_mut();
    // However far it came: what clients have seen by then has an order. Unless it is unknown what a rollback wrote in between.
    let told = director.volumes.tell(&mut shared.history);
    let known = told.is_some();
    let checked = if known { checker::check(&shared.history) } else { Ok(0) };
    let checked = checked.map_err(|violation| {
        let checker::Violation { sector, what, .. } = &violation;
        let what = format!("sector {sector} (block {}): {what}\n{}", sector / 8, blame(&shared.history, &violation));
        Failure::new(verdict::Kind::WrongRead, what)
    });
    let breaches = director.breaches.take();
    let breaches = (!breaches.is_empty()).then(|| Failure::new(verdict::Kind::Contract, breaches.join("\n  ")));
    let (checked, violation) = checked.map_or_else(|v| (0, Some(v)), |checked| (checked, None));
    let mut counts = director.counts;
    for (name, n) in w.counts().iter().chain(&shared.counts) {
        *counts.entry((*name).to_owned()).or_default() += n;
    }
    let filled_past = counts.get("fill.lost").is_some_and(|blocks| *blocks > 0);
    let found = violation
        .into_iter()
        .chain(told.and_then(Result::err))
        .chain(shared.failures.iter().cloned())
        .chain(shared.unexplained.iter().filter(|_| !filled_past).cloned())
        .chain(played.err())
        .chain(breaches);
    let accused = counts.contains_key("join.of-the-past").then(|| {
        Failure::new(verdict::Kind::Contract, "a disk was called one from the past, and nobody puts any back here")
    });
    let failure = verdict::worst(found.chain(accused));
    Outcome {
        seed,
        hash: w.hash(),
        operations: shared.history.operations.len(),
        checked,
        faults: director.faults,
        time: Span(w.now().0),
        counts,
        failure,
        trace: w.trace().map(str::to_owned).collect(),
    }
}

fn play(w: &mut Sim, d: &mut Director, size: Bytes, shard: Bytes) -> Result<(), Failure> {
    d.run(w, "booting", BOOT, |d, _| d.all_registered())?;
    let new = NewVolume { shard_size: shard, ..NewVolume::new(VOLUME, size) };
    let now = d.now(w);
    let rng = &mut d.rng;
    d.service.command(|m| m.create(now, &new, &mut || rng.next_u64())).map_err(|error| error.to_string())?;
    d.attach(w, Span(0));

    d.start_faults(w);
    d.run(w, "the traffic", TRAFFIC, |d, _| {
        let mut shared = d.shared.borrow_mut();
        if shared.left == 0 && d.faults < FAULTS {
            shared.left += MORE;
        }
        shared.left == 0
    })?;
    d.end_faults(w);
    d.run(w, "the recovery", RECOVERY, |d, w| d.all_answered(w))?;
    d.run(w, "the return of every copy", RECOVERY, |d, _| d.all_in_sync())?;
    d.run(w, "what was begun with volumes", RECOVERY, |d, w| d.volumes_rest(w))?;

    // What is home already and not yet read from there may have rotted unseen by any look: a store that is asked for nothing folds.
    let folded = w.now() + FOLDED;
    d.run(w, "what is on its way home", RECOVERY, |_, w| w.now() >= folded)?;

    // A copy that was being filled meanwhile has not been looked through: once more, then.
    loop {
        let before = epochs(d);
        for volume in d.service.model().list(d.now(w)) {
            scrub(w, d, &volume.name)?;
        }
        d.run(w, "the return of every copy after the scrub", RECOVERY, |d, _| d.all_in_sync())?;
        if epochs(d) == before {
            break;
        }
    }
    let end = d.service.model().show(d.now(w), VOLUME).map_err(|error| error.to_string())?;
    scan(w, d, end.info.size.0)?;
    d.run(w, "the last look", RECOVERY, |d, w| d.all_answered(w))?;
    let mood = d.shared.borrow().mood.clone();
    d.read_snapshots(w, &mood)?;
    d.run(w, "the reading of snapshots", RECOVERY, |d, _| d.snapshots_are_read())?;
    d.run(w, "coming to rest", RECOVERY, |d, w| d.all_in_sync() && at_rest(d, w).is_ok())
        .map_err(|stall| format!("{}\n{stall}", at_rest(d, w).err().unwrap_or_default()))?;

    stop(w, d)?;
    let found = inspect(w, d)?;
    let volumes = d.service.model().list(d.now(w));
    compare(&found, volumes.iter().map(|volume| volume.shards as usize).sum())
}

/// The operations that touched the sector, for people.
fn blame(history: &History, v: &checker::Violation) -> String {
    let touched = history.operations.iter().filter(|o| o.first <= v.sector && v.sector < o.first + o.sectors);
    let at = |o: &Operation| usize::try_from(v.sector - o.first).unwrap_or(0);
    let lines = touched.map(|o| {
        let what = match &o.what {
            What::Read(values) => format!("Read {:?}", values.get(at(o))),
            other => format!("{other:?}"),
        };
        let mark = if v.operations.contains(&o.id) { "→" } else { " " };
        format!(
            "  {mark} {} g{} {what} {} … {:?} (from {} for {})",
            o.id, o.generation, o.began, o.end, o.first, o.sectors
        )
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// The epoch of every shard.
fn epochs(d: &Director) -> Vec<Epoch> {
    let model = d.service.model();
    let shown = model.list(Millis(0)).into_iter().filter_map(|volume| model.show(Millis(0), &volume.name).ok());
    shown.flat_map(|volume| volume.shards).map(|shard| shard.epoch).collect()
}

/// Looks through every copy: what rotted and nobody read is put right, too.
fn scrub(w: &mut Sim, d: &mut Director, volume: &str) -> Result<(), String> {
    let began = d.now(w);
    let started = |info: &ScrubInfo| info.started.is_some_and(|at| at >= began);
    d.run(w, "the scrub", RECOVERY, |d, w| {
        let Ok(info) = d.service.model().scrub(volume) else { return false };
        if started(&info) && info.state == ScrubState::Idle {
            return true;
        }
        // One that had begun before comes to its end first: it has passed what rotted behind it.
        if info.state != ScrubState::Running {
            d.scrub(w, volume);
        }
        false
    })
    .map_err(|stall| format!("{:?}\n{stall}", d.service.model().scrub(volume)))?;
    let info = d.service.model().scrub(volume).map_err(|error| error.to_string())?;
    d.count("scrub.damaged", info.damaged_ever);
    d.count("scrub.repaired", info.repaired_ever);
    if info.damaged == info.repaired { Ok(()) } else { Err(format!("the last scrub of {volume}: {info:?}")) }
}

/// Reads the whole volume once more.
fn scan(w: &mut Sim, d: &mut Director, size: u64) -> Result<(), String> {
    let mut offset = 0;
    while offset < size {
        let len = SCAN.min(size - offset);
        d.shared.borrow_mut().script.push_back(Wish { kind: Kind::Read, offset, len });
        offset += len;
    }
    let map = d.service.model().map(VOLUME).map_err(|error| error.to_string())?;
    for lane in d.live_lanes(w) {
        // It may have missed that the volume grew.
        w.mail_after(lane, Span(0), Mail::Lane(LaneMail::Map(map.clone())));
        w.mail_after(lane, Span(0), Mail::Lane(LaneMail::Wake));
    }
    Ok(())
}

/// Whether nothing is in flight and every connection holds what an idle one holds (`docs/lifetimes.md`).
fn at_rest(d: &Director, w: &Sim) -> Result<(), String> {
    let idle = |refs: &[String]| {
        let odd = refs.iter().find(|line| {
            let held = line.split_once(": ").map_or("", |(_, held)| held);
            let slots = held.strip_prefix("1 owner + ").and_then(|rest| rest.strip_suffix(" rx"));
            !slots.and_then(|n| n.parse::<u32>().ok()).is_some_and(|n| n >= 4 && n.is_multiple_of(2))
        });
        odd.map_or(Ok(()), |line| Err(format!("held at rest: {line}")))
    };
    for host in &d.nodes {
        let node = w.machine::<NodeProcess>(host.process).and_then(NodeProcess::node).ok_or("a node is away")?;
        if !node.is_at_rest() {
            return Err(format!("{:?} is not at rest", host.process));
        }
        idle(&node.view().refs)?;
    }
    for lane in d.live_lanes(w) {
        let Some(client) = w.machine::<Lane>(lane).and_then(Lane::client) else { continue };
        idle(&client.view(w.local(lane)).refs)?;
    }
    Ok(())
}

/// Stops everything in order: clients, then nodes. Each says what it still held.
fn stop(w: &mut Sim, d: &mut Director) -> Result<(), String> {
    let lanes = d.live_lanes(w);
    for lane in &lanes {
        d.harvest_lane(w, *lane);
        w.mail_after(*lane, Span(0), Mail::Lane(LaneMail::Stop));
    }
    d.run(w, "stopping the client", RECOVERY, |_, w| lanes.iter().all(|lane| w.state(*lane) == State::Dead))?;
    d.stopping = true;
    // Last of all it would find somebody to take over from who is slow to end: copies of two epochs, in good order.
    d.service.crash();
    for node in 0..NODES {
        d.harvest_node(w, node);
        w.mail_after(d.nodes[node].process, Span(0), Mail::Node(node_core::Mail::Stop));
    }
    d.run(w, "stopping the nodes", RECOVERY, |d, w| d.nodes.iter().all(|n| w.state(n.process) == State::Dead))?;
    let expected = u32::try_from(lanes.len() + NODES).unwrap_or(0);
    if d.stopped == expected { Ok(()) } else { Err(format!("{} of {expected} stopped as told", d.stopped)) }
}

/// Opens each store once more and reads all that is in it.
fn inspect(w: &mut Sim, d: &mut Director) -> Result<Vec<Vec<Found>>, String> {
    d.inspect.set(true);
    for host in &d.nodes {
        w.restart(host.process);
    }
    d.run(w, "the inspection", RECOVERY, |d, _| d.found.len() == NODES)?;
    Ok(std::mem::take(&mut d.found))
}

/// Three copies of each shard and of each of its snapshots, equal block by block.
fn compare(found: &[Vec<Found>], shards: usize) -> Result<(), Failure> {
    let unequal = verdict::Kind::UnequalCopies;
    let mut by_shard: BTreeMap<_, Vec<&Found>> = BTreeMap::new();
    for copy in found.iter().flatten() {
        by_shard.entry((copy.shard, copy.snapshot)).or_default().push(copy);
    }
    let live = by_shard.keys().filter(|(_, snapshot)| snapshot.is_none()).count();
    if live != shards {
        return Err(Failure::new(unequal, format!("copies of {live} shards instead of {shards}")));
    }
    for ((shard, snapshot), copies) in by_shard {
        let shard = snapshot.map_or(shard.to_string(), |snapshot| format!("{shard} in snapshot {snapshot}"));
        if copies.len() != NODES {
            let names: Vec<String> = copies.iter().map(|found| found.copy.to_string()).collect();
            return Err(Failure::new(unequal, format!("{shard} has the copies {}", names.join(", "))));
        }
        for pair in copies.windows(2) {
            let (a, b) = (pair[0], pair[1]);
            if a.epoch != b.epoch || a.blocks.len() != b.blocks.len() {
                let what = format!("{shard}: {} in {} and {} in {}", a.copy, a.epoch, b.copy, b.epoch);
                return Err(Failure::new(unequal, what));
            }
            if let Some(block) = a.blocks.iter().zip(&b.blocks).position(|(x, y)| x != y) {
                let sector = block * BLOCK / SECTOR;
                let what = format!(
                    "{shard}: copies {} and {} differ in block {block} (sector {sector} of the shard)",
                    a.copy, b.copy
                );
                return Err(Failure::new(unequal, what));
            }
        }
    }
    Ok(())
}
