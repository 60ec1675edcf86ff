//! Where stores are stopped.
//!
//! Three kinds of seeds, [`POINTS`] points each. A *sweep* (every third seed) runs one workload again and again from a fresh store and
//! stops it at durable write or sync number b + 1, b + 2, …: at every one. A *journey* lives on one set of disks. It is stopped
//! where chance has it, some places far from the last, or in the midst of what it has met least; a *hot* one where a few blocks that are written
//! over and over are folded a part at a time.

use crate::disk::Stop;
use crate::engine::{Ability, Engine, Shape};
use crate::moment::{FLOOR, FULL_RUN, Moment};
use crate::mood::Mood;
use crate::world::{Counts, World};

/// Points of one seed.
pub const POINTS: u64 = 50;
/// Where sweeps begin: early, or when the store has wrapped its journal and written its metadata.
const SWEEP_STARTS: [u64; 4] = [0, 50, 300, 1_000];
/// Deepest a journey goes between two stops, in durable writes and syncs.
const FAR: u64 = 400;
/// Every so many seeds there is one whose copies are written where they were written just before.
const HOT: u64 = 10;
/// Turns that a journey waits for the moment it aims at.
const PATIENCE: u32 = 1_500;

/// What a seed came to.
pub struct Outcome {
    /// Points reached.
    pub points: u64,
    /// What was done and met.
    pub counts: Counts,
}

/// Run a seed, or a sweep's single point of it (a journey runs up to it). `at` is told of each point before it is run.
pub fn run<E: Engine>(seed: u64, only: Option<u64>, at: &dyn Fn(u64)) -> Outcome {
    match seed {
        _ if seed.is_multiple_of(3) => sweep::<E>(seed, only, at),
        _ if seed % HOT == HOT - 1 && E::meets(Moment::FoldPart) => hot_journey::<E>(seed, only, at),
        _ => journey::<E>(seed, only, at),
    }
}

fn sweep<E: Engine>(seed: u64, only: Option<u64>, at: &dyn Fn(u64)) -> Outcome {
    let mut counts = Counts::default();
    let start = SWEEP_STARTS[usize::try_from(seed / 3 % 4).expect("small")];
    let points = only.map_or(0..POINTS, |point| point..point + 1);
    let reached = points.end - points.start;
    for point in points {
        at(point);
        let mut world = World::<E>::new(seed);
        let event = world.disks.events() + start + point;
        world.disks.set_stop(match point % 3 {
            0 => Stop::Before(event + 1),
            1 => Stop::Unheard(event + 1),
            _ => Stop::After(event + 1),
        });
        work(&mut world);
        world.crash();
        // What was recovered serves.
        (0..40).for_each(|_| {
            world.act();
            assert!(world.turn(), "nothing stops this");
        });
        world.restart();
        world.end_of_world();
        counts.add(&world.counts);
    }
    Outcome { points: reached, counts }
}

fn journey<E: Engine>(seed: u64, only: Option<u64>, at: &dyn Fn(u64)) -> Outcome {
    let mut world = World::<E>::new(seed);
    let last = only.map_or(POINTS, |point| point + 1);
    for point in 0..last {
        at(point);
        if world.rng.below(4) > 0 {
            work_until(&mut world);
        } else {
            let (events, steps) = (world.disks.events(), world.disks.steps());
            let reach = 1 << world.rng.below(9);
            let far = 1 + world.rng.below(reach.min(FAR));
            world.disks.set_stop(match world.rng.below(5) {
                0 => Stop::Before(events + far),
                1 => Stop::Unheard(events + far),
                2 => Stop::After(events + far),
                _ => Stop::Step(steps + far * 2),
            });
            work(&mut world);
        }
        world.crash();
        if world.rng.below(8) == 0 {
            world.restart();
        }
    }
    world.end_of_world();
    Outcome { points: last, counts: world.counts }
}

/// The same few blocks over and over: stopped in the midst of a fold of what is oldest, or some steps on.
fn hot_journey<E: Engine>(seed: u64, only: Option<u64>, at: &dyn Fn(u64)) -> Outcome {
    let mut world = World::<E>::with(Shape { journal: seed / HOT % 2, data_blocks: 9_000, copies: 5 }, seed);
    let last = only.map_or(POINTS, |point| point + 1);
    for point in 0..last {
        at(point);
        for _ in 0..PATIENCE {
            world.mood = Mood::Hot;
            world.act();
            assert!(world.turn(), "nothing stops this");
            if world.is_in(Moment::FoldPart) {
                break;
            }
        }
        let (steps, reach) = (world.disks.steps(), 1 << world.rng.below(7));
        world.disks.set_stop(Stop::Step(steps + world.rng.below(reach)));
        work(&mut world);
        world.crash();
    }
    world.end_of_world();
    Outcome { points: last, counts: world.counts }
}

/// The same few blocks over and over, without durability, on a store whose journal is on a disk of its own: power is cut whenever
/// `wanted` says so of the store. How often it did.
pub fn hot<E: Engine>(seed: u64, wanted: impl Fn(&E::Store) -> bool) -> u64 {
    let mut world = World::<E>::with(Shape { journal: 3, data_blocks: 9_000, copies: 5 }, seed);
    let mut met = 0;
    for _ in 0..POINTS {
        for _ in 0..PATIENCE {
            world.mood = Mood::Hot;
            world.act();
            assert!(world.turn(), "nothing stops this");
            if wanted(world.store()) {
                met += 1;
                break;
            }
        }
        let steps = world.disks.steps();
        world.disks.set_stop(Stop::Step(steps + world.rng.below(4)));
        work(&mut world);
        world.crash();
    }
    world.end_of_world();
    met
}

/// Work until the moment that this world has met least, then a few steps on.
fn work_until<E: Engine>(world: &mut World<E>) {
    let mut aims: Vec<Moment> = Moment::ALL.iter().copied().filter(|moment| E::meets(*moment)).collect();
    aims.retain(|moment| !matches!(moment, Moment::Recovery | Moment::FoldPart));
    let least = aims.iter().map(|moment| world.counts.moments.get(*moment)).min().unwrap_or(0);
    aims.retain(|moment| world.counts.moments.get(*moment) == least);
    let aim = aims[world.rng.index(aims.len())];
    (0..world.rng.below(100)).for_each(|_| {
        world.act();
        assert!(world.turn(), "nothing stops this");
    });
    for _ in 0..PATIENCE {
        if aim == Moment::Seal {
            world.mood = Mood::Quiet;
        } else if world.rng.below(4) == 0 {
            world.act_towards(aim);
        }
        world.act();
        if world.is_in(aim) {
            break;
        }
        if world.rng.below(3) > 0 {
            assert!(world.turn(), "nothing stops this");
        }
    }
    // A seal is over soon.
    let within = if aim == Moment::Seal { 2 } else { 4 };
    let steps = world.disks.steps();
    world.disks.set_stop(Stop::Step(steps + world.rng.below(within)));
    work(world);
}

/// Until the disks stop.
fn work<E: Engine>(world: &mut World<E>) {
    loop {
        world.act();
        if world.rng.below(3) > 0 && !world.turn() {
            return;
        }
    }
}

/// Moments that a run of so many points should have met more often, and those this engine does not know.
pub fn missing<E: Engine>(counts: &Counts, points: u64) -> (Vec<String>, Vec<&'static str>) {
    let floor = FLOOR * points.min(FULL_RUN) / FULL_RUN;
    let (known, unknown): (Vec<Moment>, Vec<Moment>) = Moment::ALL.iter().partition(|moment| E::meets(**moment));
    let missing = known.into_iter().filter(|moment| counts.moments.get(*moment) < floor);
    let missing = missing.map(|moment| format!("{}: {} of {floor}", moment.text(), counts.moments.get(moment)));
    (missing.collect(), unknown.into_iter().map(Moment::text).collect())
}

/// True if this engine can be killed as well.
pub fn kills<E: Engine>() -> bool {
    E::can(Ability::KillThenPowerCut)
}
