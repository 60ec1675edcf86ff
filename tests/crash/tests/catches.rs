//! Stores that break their promises are caught: what these tests say of an engine means something.
#![allow(clippy::unwrap_used)] // a test: a panic is its way to fail

use conductor_model::{Blocks, Configuration, CopyId, SnapshotId};
use crash::{Ability, Begun, Disks, Engine, Moment, Open, Progress, Refused, Shape, Simple, operations, points, rot};
use driver::{Done, Op, Time};
use memory::Arena;
use node_store::simple::SimpleStore;
use node_store::{Counters, DiskOut, FillMark, Leeway, Store, StoreDone, StoreError, StoreOp, Tag, Usage};
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// What is broken.
trait Break: 'static {
    fn disk(op: Op) -> Op {
        op
    }
    fn asked(op: StoreOp) -> StoreOp {
        op
    }
}

/// It asks for nothing to be durable.
struct Careless;
impl Break for Careless {
    fn disk(op: Op) -> Op {
        match op {
            Op::DiskWrite { disk, tag, at, parts, .. } => Op::DiskWrite { disk, tag, at, parts, durable: false },
            other => other,
        }
    }
}

/// It discards half of what it is asked to.
struct Lazy;
impl Break for Lazy {
    fn asked(op: StoreOp) -> StoreOp {
        match op {
            StoreOp::Zero { copy, stamp, mut at, known_good, durable } => {
                at.count = Blocks(at.count.0.div_ceil(2));
                StoreOp::Zero { copy, stamp, at, known_good, durable }
            }
            other => other,
        }
    }
}

/// It believes every known-good point that it is told twice over.
struct Hopeful;
impl Break for Hopeful {
    fn asked(op: StoreOp) -> StoreOp {
        match op {
            StoreOp::KnownGood { copy, mut stamp } => {
                stamp.sequence.0 *= 2;
                StoreOp::KnownGood { copy, stamp }
            }
            other => other,
        }
    }
}

struct Broken<B>(PhantomData<B>);
struct BrokenStore<B>(SimpleStore, PhantomData<B>);
struct Opening<B>(Box<dyn Progress<SimpleStore>>, PhantomData<B>);

impl<B: Break> Progress<BrokenStore<B>> for Opening<B> {
    fn done(&mut self, now: Time, done: Done, out: &mut DiskOut<'_>) -> Option<Result<BrokenStore<B>, Refused>> {
        Some(self.0.done(now, done, out)?.map(|store| BrokenStore(store, PhantomData)))
    }
}

impl<B: Break> Engine for Broken<B> {
    type Store = BrokenStore<B>;
    const NAME: &'static str = "broken";

    fn can(ability: Ability) -> bool {
        Simple::can(ability)
    }
    fn disks(shape: Shape) -> Vec<u64> {
        Simple::disks(shape)
    }
    fn format(shape: Shape, arena: &Arena, out: &mut DiskOut<'_>) -> Begun<()> {
        Simple::format(shape, arena, out)
    }
    fn open(shape: Shape, arena: &Arena, out: &mut DiskOut<'_>) -> Begun<BrokenStore<B>> {
        Ok(Box::new(Opening(Simple::open(shape, arena, out)?, PhantomData)))
    }
    fn check(disks: &Disks) -> Vec<String> {
        Simple::check(disks)
    }
    fn meets(moment: Moment) -> bool {
        Simple::meets(moment)
    }
    fn moments(shape: Shape, store: &BrokenStore<B>, open: &[Open]) -> Vec<Moment> {
        Simple::moments(shape, &store.0, open)
    }
}

impl<B: Break> Store for BrokenStore<B> {
    fn submit(&mut self, now: Time, tag: Tag, op: StoreOp, out: &mut DiskOut<'_>) {
        self.0.submit(now, tag, B::asked(op), &mut |op| out(B::disk(op)));
    }
    fn done(&mut self, now: Time, done: Done, out: &mut DiskOut<'_>) {
        self.0.done(now, done, &mut |op| out(B::disk(op)));
    }
    fn end_turn(&mut self, now: Time, out: &mut DiskOut<'_>) {
        self.0.end_turn(now, &mut |op| out(B::disk(op)));
    }
    fn next_completion(&mut self) -> Option<(Tag, Result<StoreDone, StoreError>)> {
        self.0.next_completion()
    }
    fn next_deadline(&self) -> Option<Time> {
        self.0.next_deadline()
    }
    fn patrol(&mut self, looked_through: Blocks) {
        self.0.patrol(looked_through);
    }
    fn idle(&self) -> bool {
        self.0.idle()
    }
    fn usage(&self) -> Usage {
        self.0.usage()
    }
    fn leeway(&self) -> Leeway {
        self.0.leeway()
    }
    fn copies(&self) -> Vec<(CopyId, Configuration)> {
        self.0.copies()
    }
    fn snapshots(&self, copy: CopyId) -> Vec<SnapshotId> {
        self.0.snapshots(copy)
    }
    fn fill_mark(&self, copy: CopyId) -> FillMark {
        self.0.fill_mark(copy)
    }
    fn used_by(&self, copy: CopyId) -> Blocks {
        self.0.used_by(copy)
    }
    fn counters(&self) -> Counters {
        self.0.counters()
    }
}

/// The first complaint of a few seeds.
fn complaint(run: impl Fn(u64)) -> Option<String> {
    (0..4).find_map(|seed| {
        let failure = catch_unwind(AssertUnwindSafe(|| run(seed))).err()?;
        let text = failure.downcast_ref::<String>().cloned();
        Some(text.or_else(|| failure.downcast_ref::<&str>().map(|text| (*text).to_owned())).unwrap_or_default())
    })
}

fn points_of<E: Engine>(seed: u64) {
    points::run::<E>(seed, None, &|_| ());
}

#[test]
fn a_store_that_acknowledges_before_it_is_durable_is_caught() {
    let complaint = complaint(points_of::<Broken<Careless>>).expect("it is caught");
    assert!(
        complaint.contains("after a crash") || complaint.contains("damaged") || complaint.contains("a crash leaves")
    );
}

#[test]
fn a_store_that_discards_too_little_is_caught() {
    let complaint = complaint(|seed| drop(operations::run::<Broken<Lazy>>(seed))).expect("it is caught");
    let words = ["wrong data", "differ", "usage", "not listed"];
    assert!(words.iter().any(|word| complaint.contains(word)), "{complaint}");
}

#[test]
fn a_store_whose_known_good_point_runs_ahead_is_caught() {
    let complaint = complaint(points_of::<Broken<Hopeful>>).expect("it is caught");
    assert!(complaint.contains("above all that was told"), "{complaint}");
}

#[test]
fn the_simple_engine_passes() {
    assert_eq!(complaint(points_of::<Simple>), None);
    assert_eq!(complaint(|seed| drop(rot::run::<Simple>(seed, None, &|_| ()))), None);
}
