//! Disks, seen from a machine that knows what they must hold after a death.
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "helpers of tests, with small numbers")]

mod common;

use common::{BLOCKS, Expected, Hammer, Log};
use driver::Span;
use sim::{DiskId, DiskOptions, Full, Options, ProcessId, Setup, World};

struct Rig {
    world: World<(), ()>,
    disk: DiskId,
    hammer: ProcessId,
    expected: Log<Vec<Expected>>,
    completed: Log<u64>,
}

fn rig(seed: u64) -> Rig {
    let mut world = World::new(seed, Options::default());
    let disk = world.add_disk(DiskOptions::sized(BLOCKS * 4096));
    let (expected, numbers, completed) =
        (Log::<Vec<Expected>>::default(), Log::<u64>::default(), Log::<u64>::default());
    expected.borrow_mut().resize(BLOCKS as usize, Expected::default());
    let logs = (expected.clone(), numbers, completed.clone());
    let hammer = world.spawn(Setup::named("hammer").disk(disk), move |birth| {
        Hammer::new(birth.seed, logs.0.clone(), logs.1.clone(), logs.2.clone())
    });
    Rig { world, disk, hammer, expected, completed }
}

impl Rig {
    fn run(&mut self, millis: u64) {
        let until = self.world.now() + Span::millis(millis);
        self.world.run_until(until, |_, _| {});
    }

    /// Every sector holds the newest settled write of its block or one that came after. Says how many blocks are torn, and how
    /// many hold less than the newest write.
    fn check(&self) -> (usize, usize) {
        let (mut torn, mut behind) = (0, 0);
        for (block, expected) in self.expected.borrow().iter().enumerate() {
            let bytes = self.world.disk_bytes(self.disk, block as u64 * 4096, 4096);
            let numbers: Vec<u64> = bytes.chunks(512).map(|s| u64::from_le_bytes(s[..8].try_into().unwrap())).collect();
            for number in &numbers {
                let known = *number == expected.durable || expected.possible.contains(number);
                assert!(known, "block {block} holds {numbers:?}, not {expected:?}");
            }
            torn += usize::from(numbers.iter().any(|number| *number != numbers[0]));
            behind += usize::from(expected.possible.last().is_some_and(|last| numbers[0] < *last));
        }
        (torn, behind)
    }

    /// After a death all that is there is settled: the next life builds upon it.
    fn adopt(&self) {
        for (block, expected) in self.expected.borrow_mut().iter_mut().enumerate() {
            let bytes = self.world.disk_bytes(self.disk, block as u64 * 4096, 4096);
            expected.possible = bytes.chunks(512).map(|s| u64::from_le_bytes(s[..8].try_into().unwrap())).collect();
            expected.possible.sort_unstable();
            expected.durable = expected.possible[0];
            expected.inherited = expected.possible[7];
        }
    }
}

#[test]
fn completed_durable_writes_and_syncs_survive_every_kill_and_others_may_not() {
    let (mut torn, mut behind, mut never) = (0, 0, 0);
    for seed in 0..60 {
        let mut rig = rig(seed);
        for _ in 0..6 {
            rig.run(1 + seed % 7);
            rig.world.kill(rig.hammer);
            let (t, b) = rig.check();
            torn += t;
            behind += b;
            rig.adopt();
            rig.world.restart(rig.hammer);
        }
        assert!(*rig.completed.borrow() > 10);
        never += rig.world.count("disk.in_flight.never");
    }
    assert!(torn > 100 && behind > 100 && never > 50, "{torn} torn, {behind} behind, {never} never");
}

#[test]
fn the_same_seed_leaves_the_same_disk() {
    let end = |seed| {
        let mut rig = rig(seed);
        rig.run(20);
        rig.world.kill(rig.hammer);
        (rig.world.hash(), rig.world.disk_bytes(rig.disk, 0, BLOCKS as usize * 4096))
    };
    assert!(end(9) == end(9));
    assert!(end(9) != end(10));
}

#[test]
fn a_stuck_disk_does_nothing_until_it_goes_on() {
    let mut rig = rig(1);
    rig.run(10);
    rig.world.stick(rig.disk);
    rig.run(1);
    let before = *rig.completed.borrow();
    rig.run(10_000);
    assert_eq!(*rig.completed.borrow(), before);
    rig.world.unstick(rig.disk);
    rig.run(10);
    assert!(*rig.completed.borrow() > before);
}

#[test]
fn faults_happen_as_often_as_asked_for_and_are_counted() {
    let mut rig = rig(2);
    rig.world.disk(rig.disk).fail_writes = 3;
    rig.run(50);
    assert_eq!(rig.world.count("disk.write.error"), 3);
    rig.world.disk(rig.disk).full = Full::Everything;
    rig.run(20);
    assert!(rig.world.count("disk.full") > 0);
    let slow = rig.world.disk(rig.disk).latency.slower(1_000);
    rig.world.disk(rig.disk).latency = slow;
    rig.run(200);
    let before = *rig.completed.borrow();
    rig.run(100);
    assert!(*rig.completed.borrow() < before + 20);
}

#[test]
fn rot_changes_one_bit_for_good() {
    let mut rig = rig(3);
    rig.run(20);
    rig.world.kill(rig.hammer);
    let before = rig.world.disk_bytes(rig.disk, 0, BLOCKS as usize * 4096);
    let at = rig.world.rot_somewhere(rig.disk, 0..BLOCKS * 4096).unwrap();
    let after = rig.world.disk_bytes(rig.disk, 0, BLOCKS as usize * 4096);
    let differing: Vec<usize> = (0..before.len()).filter(|i| before[*i] != after[*i]).collect();
    assert_eq!(differing, [at as usize]);
    assert_eq!((before[at as usize] ^ after[at as usize]).count_ones(), 1);
}
