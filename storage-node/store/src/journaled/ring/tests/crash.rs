//! Loss of power and of the process, at every moment.

use super::super::Mark;
use super::disk::{Disk, Loss, Random};
use super::journal::{Journal, START, arena, scan};
use conductor_model::BLOCK;

/// At this very moment, whatever a loss of power leaves, what was promised is found, and nothing that was not appended.
fn survives(journal: &Journal, random: &mut Random) {
    for loss in Loss::ALL {
        for _ in 0..if loss == Loss::Tear { 4 } else { 1 } {
            let mut disk = Disk::of(journal.disk.after_power_loss(loss, random));
            let (found, _) = journal.check(&mut disk, journal.stable, random.next());
            // A second opening finds the same.
            assert_eq!(journal.check(&mut disk, journal.stable, random.next()).0, found, "{loss:?}");
        }
    }
}

#[test]
fn what_was_reported_survives_a_loss_of_power_at_every_step() {
    for seed in 0..12 {
        let mut random = Random::new(seed);
        let mut journal = Journal::new(96);
        let mut mark = (journal.ring.mark(), 0);
        for step in 0..60 {
            match random.below(6) {
                0 | 1 => {
                    let (body, blocks) = (random.below(200) as usize, random.below(4) as usize);
                    let durable = seed % 3 != 0 || random.one_in(2);
                    if journal.ring.fits(body, blocks as u32) {
                        journal.append(body, blocks, durable);
                    }
                    journal.turn();
                }
                2 if seed % 3 == 0 => {
                    journal.barrier();
                    journal.turn();
                }
                3 if step % 7 == 0 => {
                    let (at, over) = mark;
                    journal.trim(at, over);
                    mark = (journal.ring.mark(), journal.over);
                    journal.turn();
                }
                _ => {
                    let pick = random.below(2) as usize;
                    journal.complete(pick);
                    survives(&journal, &mut random);
                    journal.turn();
                }
            }
            survives(&journal, &mut random);
        }
        assert!(journal.ring.counters().groups > 5);
    }
}

/// At rest, one block rots: whatever the history of the ring, nothing that was promised is missing.
fn rots(journal: &mut Journal, random: &mut Random) {
    journal.rest();
    if journal.ring.stalled() {
        return;
    }
    let block = random.below(u64::from(journal.place.blocks)) as usize;
    let mut image = journal.disk.visible.clone();
    image[START as usize + block * BLOCK..][..BLOCK].fill(0x99);
    let (found, end) = scan(&mut Disk::of(image), journal.place, journal.tail, random.next(), &arena());
    let promised = journal.records[..journal.stable].iter().filter(|record| !record.body.is_empty());
    let promised: Vec<u64> = promised.map(|record| record.key).collect();
    let found: Vec<u64> = found.iter().map(|record| record.key).collect();
    assert!(end.is_ok() && found.starts_with(&promised), "block {block}: {end:?}, {found:?} of {promised:?}");
}

/// Long lives: laps around the ring, many openings, any mixture of events.
fn life(seed: u64, blocks: u32, largest: u64) {
    let mut random = Random::new(seed);
    let mut journal = Journal::new(blocks);
    let mut mark: Option<(Mark, usize)> = None;
    let (mut groups, mut openings) = (0, 0);
    let never_durable = seed % 5 == 1;
    for _ in 0..400 {
        match random.below(40) {
            0..16 => {
                let body = if random.one_in(30) { random.below(9000) } else { random.below(120) } as usize;
                let count = if random.one_in(4) { random.below(largest) } else { random.below(3) } as u32;
                if journal.ring.fits(body, count) {
                    journal.append(body, count as usize, !never_durable && !random.one_in(3));
                }
            }
            16 => {
                journal.barrier();
            }
            17..22 => journal.turn(),
            22..32 => {
                journal.complete(random.below(3) as usize);
                journal.turn();
            }
            32 => {
                let point = journal.ring.sync_point();
                let disk = &mut journal.disk;
                disk.submit(driver::Op::DiskSync { disk: driver::DiskIndex(7), tag: u64::MAX });
                disk.complete(disk.inflight.len() - 1);
                journal.ring.synced(point);
            }
            33 => {
                journal.now = journal.ring.next_deadline().unwrap_or(journal.now);
                journal.turn();
            }
            34 | 35 => mark = Some((journal.ring.mark(), journal.over)),
            36 | 37 => {
                if let Some((at, over)) = mark.take() {
                    journal.trim(at, over);
                    journal.turn();
                }
            }
            38 if random.one_in(3) => rots(&mut journal, &mut random),
            38 if random.one_in(2) => {
                groups += journal.ring.counters().groups;
                openings += 1;
                mark = None;
                let mut disk = std::mem::take(&mut journal.disk);
                disk.process_ends(&mut random);
                let over = journal.over;
                journal.reopen(disk, over);
            }
            39 if random.one_in(2) => {
                groups += journal.ring.counters().groups;
                openings += 1;
                mark = None;
                let loss = Loss::ALL[random.below(7) as usize];
                let image = journal.disk.after_power_loss(loss, &mut random);
                let stable = journal.stable;
                journal.reopen(Disk::of(image), stable);
            }
            _ => {}
        }
    }
    // Everything that was taken comes to its end, once there is room.
    for _ in 0..100 {
        journal.drain();
        if journal.over == journal.records.len() {
            break;
        }
        let (at, over) = (journal.ring.mark(), journal.over);
        journal.trim(at, over);
    }
    assert_eq!(journal.over, journal.records.len(), "seed {seed}");
    journal.arena.leaks().expect_err("the ring keeps the memory of its headers, and that only");
    assert!(groups + journal.ring.counters().groups > 20, "seed {seed}: {openings} openings");
}

#[test]
fn a_long_life_with_laps_and_crashes_never_loses_or_invents_a_record() {
    for seed in 0..150 {
        life(seed, 90 + (seed as u32 * 7) % 60, 12);
    }
}

#[test]
fn a_long_life_of_large_groups_never_loses_or_invents_a_record() {
    for seed in 0..12 {
        life(seed, 1400, 272);
    }
}
