//! The power fails between any two steps of the disk.

use super::disk::Random;
use super::rig::{Crashed, Rig};

/// Rounds of changes, each with its checkpoint, in a region so small that places are used again and again.
fn work(rig: &mut Rig, seed: u64) -> Result<(), Crashed> {
    let mut random = Random(seed | 1);
    let names = rig.names();
    for round in 0..8 {
        for _ in 0..12 {
            let name = names[random.below(names.len() as u64) as usize];
            let (index, value) = (random.below(60) + 1018 * random.below(2), random.below(40));
            rig.set(name, index, value)?;
        }
        if round == 2 {
            rig.free(names[2])?;
        }
        rig.checkpoint_among(round % 3)?;
    }
    Ok(())
}

#[test]
fn a_crash_at_any_step_leaves_the_last_checkpoint_whole_and_the_store_usable() {
    for seed in 1..=3 {
        let mut steps = 0;
        for power in 0.. {
            let mut rig = Rig::new(240, &[1, 7], seed);
            rig.patrols = power % 2 == 1;
            rig.power = power;
            let outcome = work(&mut rig, seed);
            steps = power;
            if outcome.is_ok() {
                break;
            }
            rig.crash();
            rig.verify();
            // What is written next must not disturb it before it is committed, nor itself.
            rig.power = power % 23;
            if work(&mut rig, seed + 9).is_err() {
                rig.crash();
                rig.verify();
            }
            work(&mut rig, seed + 20).unwrap();
            rig.crash();
            rig.verify();
        }
        assert!(steps > 100, "only {steps} steps were cut");
    }
}

#[test]
fn pages_written_early_change_nothing_before_their_checkpoint() {
    for seed in 1..12 {
        let mut rig = Rig::new(3000, &[], seed);
        let names = rig.names();
        (0..400).for_each(|n| rig.set(names[0], n * 2, n + 1).unwrap());
        rig.checkpoint().unwrap();
        let mut random = Random(seed | 1);
        rig.power = 100 * seed;
        let mut cut = false;
        for n in 0..3000 {
            let index = random.below(1200);
            if rig.set(names[0], index, n + 1).is_err() {
                cut = true;
                break;
            }
        }
        if !cut {
            rig.verify();
            rig.quiesce();
        }
        assert!(rig.pages.counters().written_early > 0);
        rig.crash();
        assert_eq!(rig.model.len(), 400);
        rig.verify();
    }
}
