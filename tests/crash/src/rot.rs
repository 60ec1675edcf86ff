//! Damage in one copy: bits that flip, writes that are reported and never happen, blocks that land elsewhere.
//!
//! Whatever is planted, every read gives the right data or says which block is damaged, in the store that was running and in the
//! one that is opened after it; and what was damaged reads right again when it was repaired with the content of another copy.
//! A fault is followed by more work and by rest: the newest write of a store that says nothing afterwards is beyond all proof. Where power is
//! cut, too, the damage is on the disk beside the journal, all of which is proven; what is right there says the same store on the disks without it.

use crate::content;
use crate::disk::{Disks, Fault, Stop};
use crate::engine::{Ability, Engine, Refused, Shape};
use crate::flying::{range, view};
use crate::points::Outcome;
use crate::world::{Counts, World};
use conductor_model::{BLOCK, Blocks, CopyId};
use node_store::{Store, StoreDone, StoreError, StoreOp, block_crcs};

/// Plants of one seed: the first into the same store, as it was, the others where power was cut.
pub const PLANTS: u64 = 30;
const OF_CUTS: u64 = 5;
/// Turns that fill the store.
const FILLING: u32 = 600;
/// Turns within which a fault finds a write.
const PATIENCE: u32 = 3_000;
/// Turns of work after a fault.
const AFTER: u32 = 80;
/// Steps from one cut to the next, at most.
const FAR: u64 = 3_000;
/// The shape with its journal on a disk of its own.
const EXTERNAL: u64 = 3;

/// Plant damage; only the one plant if that is asked for. `at` is told of each before it is run.
pub fn run<E: Engine>(seed: u64, only: Option<u64>, at: &dyn Fn(u64)) -> Outcome {
    let mut base = World::<E>::new(seed);
    work(&mut base, FILLING);
    assert!(base.quiesce(), "nothing stops this");
    base.restart();
    assert!(base.quiesce(), "nothing stops this");
    let plants = only.map_or(0..PLANTS, |plant| plant..plant + 1);
    let reached = plants.end - plants.start;
    let is_cut = |plant: &u64| *plant >= PLANTS - OF_CUTS;
    for plant in plants.clone().filter(|plant| !is_cut(plant)) {
        at(plant);
        let disks = Disks::from_images(base.disks.images(), sim::Rng::new(seed << 16 | plant));
        let mut world = base.on_copies_of(disks, seed << 16 | plant);
        match (seed * PLANTS + plant) % 4 {
            0 => flip_closed(&mut world),
            1 => flip_running(&mut world),
            2 => fault(&mut world, Fault::Lost),
            _ => fault(&mut world, Fault::Misdirected),
        }
        base.counts.add(&world.counts);
    }
    if E::can(Ability::OpensDamaged) && plants.clone().any(|plant| is_cut(&plant)) {
        let mut cuts = World::<E>::with(Shape { journal: EXTERNAL, data_blocks: 2_400, copies: 5 }, seed);
        work(&mut cuts, FILLING);
        // A journey: to reach one of them is to pass those before.
        for plant in PLANTS - OF_CUTS..plants.end {
            at(plant);
            flip_after_a_cut(&mut cuts, seed << 16 | plant);
        }
        base.counts.add(&cuts.counts);
    }
    Outcome { points: reached, counts: base.counts }
}

/// What a run of so many plants should have met: each kind of damage its share, much of it seen, much of it harmless.
pub fn missing(counts: &Counts, plants: u64) -> Vec<String> {
    let floors = [
        ("planted: flips, closed", plants / 5),
        ("planted: flips, running", plants / 5),
        ("planted: lost writes", plants / 5),
        ("planted: misdirected writes", plants / 5),
        ("planted: flips, power cut", plants / 7),
        ("damage: seen by reads", plants / 10),
        ("damage: healed or unused", plants / 10),
        ("repaired blocks", plants / 5),
    ];
    let met = |what: &str| counts.other.get(what).copied().unwrap_or(0);
    let missing = floors.into_iter().filter(|(what, floor)| met(what) < *floor);
    missing.map(|(what, floor)| format!("{what}: {} of {floor}", met(what))).collect()
}

fn work<E: Engine>(world: &mut World<E>, turns: u32) {
    for _ in 0..turns {
        world.act();
        assert!(world.turn(), "nothing stops this");
    }
}

/// A bit flips while the store is closed.
fn flip_closed<E: Engine>(world: &mut World<E>) {
    world.disks.flip().expect("something was written");
    world.counts.bump("planted: flips, closed");
    if open(world) {
        examine(world);
    }
}

/// A bit flips under a store that has read some of its metadata, and that works on.
fn flip_running<E: Engine>(world: &mut World<E>) {
    assert!(open(world), "nothing is damaged yet");
    work(world, 40);
    assert!(world.drain(), "nothing stops this");
    world.damaged = true;
    world.disks.flip().expect("something was written");
    world.counts.bump("planted: flips, running");
    work(world, AFTER);
    settle_and_examine(world);
}

/// Power is cut while the store works, and a bit flips where its journal is not.
fn flip_after_a_cut<E: Engine>(base: &mut World<E>, seed: u64) {
    let steps = base.disks.steps();
    let far = base.rng.below(FAR);
    base.disks.set_stop(Stop::Step(steps + far));
    loop {
        base.act();
        if base.rng.below(3) > 0 && !base.turn() {
            break;
        }
    }
    let mut disks = Disks::from_images(base.cut(), sim::Rng::new(seed));
    disks.flip_on(0).expect("something was written");
    let mut world = base.on_copies_of(disks, seed);
    world.counts.bump("planted: flips, power cut");
    if open(&mut world) {
        examine(&mut world);
    }
    base.counts.add(&world.counts);
}

/// A write goes wrong.
fn fault<E: Engine>(world: &mut World<E>, fault: Fault) {
    assert!(open(world), "nothing is damaged yet");
    world.damaged = true;
    world.disks.set_fault(fault);
    for _ in 0..PATIENCE {
        work(world, 1);
        if world.disks.planted().is_some() {
            break;
        }
    }
    assert!(world.disks.planted().is_some(), "a fault finds a write");
    world.counts.bump(if fault == Fault::Lost { "planted: lost writes" } else { "planted: misdirected writes" });
    work(world, AFTER);
    settle_and_examine(world);
}

fn settle_and_examine<E: Engine>(world: &mut World<E>) {
    assert!(world.quiesce(), "nothing stops this");
    if world.rng.coin() {
        // Only the one that is opened next sees it.
        world.store = None;
        if !open(world) {
            return;
        }
    }
    examine(world);
}

/// Open what may be damaged; false if it is refused with a word on the damage.
fn open<E: Engine>(world: &mut World<E>) -> bool {
    match world.open().expect("nothing stops this") {
        Ok(store) => {
            world.store = Some(store);
            true
        }
        Err(Refused::Damaged(_)) if !E::can(Ability::OpensDamaged) => {
            world.counts.bump("damage: not opened");
            false
        }
        Err(refused) => panic!("not opened after damage in one place: {refused:?}; {:?}", world.disks.planted()),
    }
}

/// All reads are right or say so; then all is repaired, and stays right.
fn examine<E: Engine>(world: &mut World<E>) {
    let damaged = read_all(world);
    world.counts.bump(if damaged.is_empty() { "damage: healed or unused" } else { "damage: seen by reads" });
    for (copy, view, block) in damaged {
        repair(world, copy, view, block);
    }
    for again in [false, true] {
        if again {
            assert!(world.quiesce(), "nothing stops this");
            world.store = None;
            if !open(world) {
                return;
            }
        }
        let left = read_all(world);
        assert!(left.is_empty(), "damaged after repair (opened again: {again}): {left:?}; {:?}", world.disks.planted());
    }
}

/// Read everything. Says which blocks of which views are damaged.
fn read_all<E: Engine>(world: &mut World<E>) -> Vec<(u64, Option<u64>, u32)> {
    let views: Vec<(u64, Option<u64>)> = world
        .copies
        .iter()
        .flat_map(|(id, copy)| copy.snapshots.iter().map(|(s, _)| (*id, Some(*s))).chain([(*id, None)]))
        .collect();
    let mut damaged = vec![];
    for (copy, view) in views {
        let blocks = world.image(copy, view).expect("it is there").len();
        let mut from = 0;
        while from < blocks {
            let longest = if world.rng.below(3) == 0 { 5 } else { 64 };
            let count = 1 + u32::try_from(world.rng.below(longest)).expect("small").min(blocks - from - 1);
            if !right(world, copy, view, from, count) {
                let single = (from..from + count).filter(|n| !right(world, copy, view, *n, 1));
                let before = damaged.len();
                damaged.extend(single.collect::<Vec<_>>().into_iter().map(|n| (copy, view, n)));
                assert!(
                    damaged.len() > before,
                    "a range of copy {copy} view {view:?} is damaged and none of its blocks is"
                );
            }
            from += count;
        }
    }
    damaged
}

/// True if it reads right, false if it says that it does not.
fn right<E: Engine>(world: &mut World<E>, copy: u64, view: Option<u64>, from: u32, count: u32) -> bool {
    match world.read(copy, view, range(from, count)) {
        Ok(data) => {
            let image = world.image(copy, view).expect("it is there");
            for (n, block) in (from..).zip(data.chunks(BLOCK)) {
                let found = content::of(block);
                assert!(
                    found == Some(image.get(n)),
                    "WRONG DATA: block {n} of copy {copy} view {view:?} reads as {found:?}, not {:?}; {:?}",
                    image.get(n),
                    world.disks.planted()
                );
            }
            true
        }
        Err(StoreError::Corrupt { copy: of, block }) => {
            assert!(of == CopyId(copy) && (from..from + count).contains(&block.0), "another block is named: {block}");
            false
        }
        Err(error) => panic!("copy {copy} view {view:?}: {error}"),
    }
}

/// Put a block right: with a repair, or where the engine has none with a write.
fn repair<E: Engine>(world: &mut World<E>, copy: u64, of: Option<u64>, block: u32) {
    let at = range(block, 1);
    let good = world.image(copy, of).expect("it is there").get(block);
    let data = content::memory(&world.arena, [good].into_iter()).expect("there is memory");
    let crcs = block_crcs(&data);
    let op = if E::can(Ability::Repair) {
        StoreOp::Repair { copy: CopyId(copy), view: view(of), at, data, crcs }
    } else {
        let (stamp, known_good) = (world.stamp(copy), world.known(copy));
        StoreOp::Write { copy: CopyId(copy), stamp, at, data, crcs, known_good, durable: true }
    };
    let done = world.alone(op);
    assert!(matches!(done, Ok(StoreDone::Done)), "the repair of block {} of copy {copy}: {done:?}", Blocks(block));
    world.counts.bump("repaired blocks");
    assert!(world.store().counters().strays == 0, "no completion belongs to nothing");
}
