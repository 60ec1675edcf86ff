//! Random operations on an engine, each done as well by the simple engine, as a flat model: there a snapshot is a copy of its own,
//! written block by block, and so are clones; what is shared is written again. Every read must be the same on both.

use crate::engine::{Ability, Engine, Shape, Simple};
use crate::flying::{What, range};
use crate::mood::config;
use crate::points::Outcome;
use crate::world::{Counts, Seen, World};
use conductor_model::{BLOCK, BlockRange, CopyId, Stamp};
use node_store::{StoreDone, StoreOp, block_crcs};
use std::collections::BTreeMap;

/// Operations of one seed.
pub const OPERATIONS: u64 = 5_000;
/// Sizes of copies here: the flat model writes all of a copy for each snapshot of it.
const COPY_BLOCKS: std::ops::Range<u64> = 40..160;
/// One restart for so many turns.
const RESTARTS: u64 = 600;
/// What counts as an operation; what only looks at lists does not.
const KINDS: [&str; 13] = [
    "write",
    "write unsynced",
    "zero",
    "zero unsynced",
    "snapshot",
    "clone",
    "rollback",
    "copy-range",
    "create",
    "delete",
    "drop",
    "read",
    "read of a snapshot",
];

/// Run a seed.
pub fn run<E: Engine>(seed: u64) -> Outcome {
    let mut world = World::<E>::new(seed);
    world.copy_blocks = COPY_BLOCKS;
    world.seen = Some(vec![]);
    let mut flat = Flat::new(seed);
    while operations(&world) < OPERATIONS {
        world.act();
        if world.rng.below(3) > 0 {
            assert!(world.turn(), "nothing stops this");
        }
        flat.follow(world.seen.as_mut().expect("it is kept"));
        if world.rng.below(RESTARTS) == 0 {
            world.restart();
            flat.follow(world.seen.as_mut().expect("it is kept"));
            flat.compare(&mut world);
        }
    }
    assert!(world.drain(), "nothing stops this");
    flat.follow(world.seen.as_mut().expect("it is kept"));
    flat.compare(&mut world);
    world.end_of_world();
    Outcome { points: operations(&world), counts: world.counts }
}

/// Kinds of which a run of so many operations did fewer than one in a thousand, of those that the engine can do.
pub fn missing<E: Engine>(counts: &Counts, operations: u64) -> Vec<String> {
    let floor = operations / 1_000;
    let family = ["snapshot", "clone", "rollback", "copy-range", "drop", "read of a snapshot"];
    let can = |kind: &&str| E::can(Ability::Snapshots) || !family.contains(kind);
    let did = |kind: &str| counts.operations.get(kind).copied().unwrap_or(0);
    let missing = KINDS.into_iter().filter(can).filter(|kind| did(kind) < floor);
    let mut missing: Vec<String> = missing.map(|kind| format!("{kind}: {} of {floor}", did(kind))).collect();
    if counts.other.get("restarts").copied().unwrap_or(0) * 2_000 < operations {
        missing.push(format!("restarts: fewer than {}", operations / 2_000));
    }
    missing
}

fn operations<E: Engine>(world: &World<E>) -> u64 {
    KINDS.iter().filter_map(|kind| world.counts.operations.get(kind)).sum()
}

/// The simple engine, and which of its copies stands for which view.
struct Flat {
    world: World<Simple>,
    names: BTreeMap<(u64, Option<u64>), u64>,
    next: u64,
    sequence: u64,
}

impl Flat {
    fn new(seed: u64) -> Self {
        let shape = Shape { journal: 3, data_blocks: 9_000, copies: 64 };
        Self { world: World::with(shape, seed), names: BTreeMap::new(), next: 1, sequence: 0 }
    }

    fn follow(&mut self, seen: &mut Vec<Seen>) {
        for Seen { copy, what, data } in seen.drain(..) {
            self.apply(copy, what, data);
        }
    }

    fn stamp(&mut self) -> Stamp {
        self.sequence += 1;
        let mut stamp = Stamp::default();
        (stamp.epoch.0, stamp.sequence.0) = (1, self.sequence);
        stamp
    }

    fn done(&mut self, op: StoreOp) {
        let done = self.world.alone(op);
        assert!(matches!(done, Ok(StoreDone::Done)), "the flat model: {done:?}");
    }

    fn name(&self, copy: u64, view: Option<u64>) -> CopyId {
        CopyId(self.names[&(copy, view)])
    }

    fn read(&mut self, copy: u64, view: Option<u64>, at: BlockRange) -> Vec<u8> {
        let name = self.name(copy, view);
        self.world.read(name.0, None, at).unwrap_or_else(|error| panic!("the flat model: {error}"))
    }

    fn write(&mut self, name: CopyId, at: BlockRange, bytes: &[u8]) {
        let mut data = self.world.arena.take(bytes.len(), memory::Class::Client).expect("there is memory");
        data.copy_from_slice(bytes);
        let (stamp, data) = (self.stamp(), data.filled());
        let crcs = block_crcs(&data);
        self.done(StoreOp::Write { copy: name, stamp, at, data, crcs, known_good: stamp, durable: true });
    }

    fn blocks(&self, copy: u64, view: Option<u64>) -> u32 {
        let name = self.name(copy, view);
        let copies = node_store::Store::copies(self.world.store());
        let config = copies.into_iter().find(|(id, _)| *id == name).expect("it is there").1;
        crate::world::blocks(config.size)
    }

    fn create(&mut self, copy: u64, view: Option<u64>, blocks: u32) {
        let name = self.next;
        self.next += 1;
        self.names.insert((copy, view), name);
        self.done(StoreOp::Create { copy: CopyId(name), config: config(name, blocks), parent: None });
    }

    fn delete(&mut self, copy: u64, view: Option<u64>) {
        if let Some(name) = self.names.remove(&(copy, view)) {
            self.done(StoreOp::Delete { copy: CopyId(name) });
        }
    }

    /// `to` reads as `from` in this range. Empty pieces are discarded: the copies stay thin.
    fn duplicate(&mut self, from: (u64, Option<u64>), to: (u64, Option<u64>), at: BlockRange) {
        const PIECE: u32 = 16;
        let (mut next, end, name) = (at.from.0, at.from.0 + at.count.0, self.name(to.0, to.1));
        while next < end {
            let piece = range(next, PIECE.min(end - next));
            let bytes = self.read(from.0, from.1, piece);
            if bytes.iter().all(|byte| *byte == 0) {
                let stamp = self.stamp();
                self.done(StoreOp::Zero { copy: name, stamp, at: piece, known_good: stamp, durable: true });
            } else {
                self.write(name, piece, &bytes);
            }
            next += piece.count.0;
        }
    }

    fn apply(&mut self, copy: u64, what: What, data: Option<Vec<u8>>) {
        match what {
            What::Write { at, .. } => self.write(self.name(copy, None), at, &data.expect("it is kept")),
            What::Zero { at, .. } => {
                let (stamp, name) = (self.stamp(), self.name(copy, None));
                self.done(StoreOp::Zero { copy: name, stamp, at, known_good: stamp, durable: true });
            }
            What::Share { at, from: (source, snapshot), .. } => {
                self.duplicate((source, Some(snapshot)), (copy, None), at);
            }
            What::Read { view, at } => {
                let bytes = self.read(copy, view, at);
                assert!(
                    data.as_deref() == Some(&bytes),
                    "blocks {at} of copy {copy} view {view:?}: the engines differ"
                );
            }
            What::Snapshot { id, .. } => {
                let blocks = self.blocks(copy, None);
                self.create(copy, Some(id), blocks);
                self.duplicate((copy, None), (copy, Some(id)), range(0, blocks));
            }
            What::Rollback { id, .. } => {
                let (now, then) = (self.blocks(copy, None), self.blocks(copy, Some(id)));
                self.duplicate((copy, Some(id)), (copy, None), range(0, then));
                if now > then {
                    let (stamp, name, at) = (self.stamp(), self.name(copy, None), range(then, now - then));
                    self.done(StoreOp::Zero { copy: name, stamp, at, known_good: stamp, durable: true });
                }
            }
            What::Drop { id } => self.delete(copy, Some(id)),
            What::Create { config, parent } => {
                self.create(copy, None, crate::world::blocks(config.size));
                if let Some((source, snapshot)) = parent {
                    let blocks = self.blocks(source, Some(snapshot));
                    self.duplicate((source, Some(snapshot)), (copy, None), range(0, blocks));
                }
            }
            What::Join { config: joined } => {
                let name = self.name(copy, None);
                let mut own = config(name.0, crate::world::blocks(joined.size));
                own.epoch = joined.epoch;
                self.done(StoreOp::Join { copy: name, config: own });
            }
            What::Delete => {
                let views: Vec<Option<u64>> =
                    self.names.keys().filter(|(id, _)| *id == copy).map(|(_, v)| *v).collect();
                views.into_iter().for_each(|view| self.delete(copy, view));
            }
            What::Repair { .. }
            | What::Extents { .. }
            | What::Sync { .. }
            | What::Flatten
            | What::Above
            | What::Known { .. }
            | What::Mark { .. } => {}
        }
    }

    /// All that both hold, block by block.
    fn compare<E: Engine>(&mut self, world: &mut World<E>) {
        let mut views: Vec<(u64, Option<u64>)> = vec![];
        for (id, copy) in &world.copies {
            views.push((*id, None));
            views.extend(copy.snapshots.iter().map(|(snapshot, _)| (*id, Some(*snapshot))));
        }
        let mut named: Vec<(u64, Option<u64>)> = self.names.keys().copied().collect();
        views.sort_unstable();
        named.sort_unstable();
        assert_eq!(views, named, "both know the same copies and snapshots");
        for (copy, view) in views {
            let blocks = self.blocks(copy, view);
            assert_eq!(Some(blocks), world.image(copy, view).map(crate::model::Image::len), "the size of copy {copy}");
            for from in (0..blocks).step_by(64) {
                let at = range(from, 64.min(blocks - from));
                let ours = world.read(copy, view, at).unwrap_or_else(|error| panic!("copy {copy}: {error}"));
                assert!(
                    ours == self.read(copy, view, at),
                    "blocks {at} of copy {copy} view {view:?}: the engines differ"
                );
                assert_eq!(ours.len(), at.count.0 as usize * BLOCK);
            }
        }
    }
}
