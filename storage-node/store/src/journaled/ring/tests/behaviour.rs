//! What the journal asks of the disk, and when.

use super::super::limits::{MAX_BODY, MAX_FLYING, MAX_PAYLOAD_BLOCKS, MAX_RECORD_BLOCKS, SEAL_AFTER};
use super::super::{Appended, Mark};
use super::disk::Disk;
use super::journal::{Journal, arena, place, scan};
use conductor_model::BLOCK;
use driver::{DiskIndex, Errno, Op};
use memory::{Class, Part};

fn writes(journal: &Journal) -> Vec<(bool, usize)> {
    let write = |op: &Op| match op {
        Op::DiskWrite { durable, parts, .. } => Some((*durable, parts.len())),
        _ => None,
    };
    journal.disk.inflight.iter().filter_map(|(op, _)| write(op)).collect()
}

#[test]
fn many_records_are_one_write_and_their_payload_is_not_copied() {
    let mut journal = Journal::new(700);
    let before = journal.arena.in_use();
    let memory = journal.arena.take(4 * BLOCK, Class::Client).unwrap().filled();
    let address = memory.as_ptr();
    let part = |from: usize| Some(Part { mem: memory.share(), from: from * BLOCK, len: 2 * BLOCK });
    journal.ring.append(1, b"one", part(2), &[0, 0], true);
    journal.ring.append(2, b"two", None, &[], true);
    journal.ring.append(3, b"three", part(0), &[0, 0], true);
    journal.ring.end_turn(journal.now, &mut |op| journal.disk.submit(op));
    let [(Op::DiskWrite { disk, tag, at, parts, durable }, _)] = &journal.disk.inflight[..] else {
        panic!("one write");
    };
    assert_eq!((*disk, tag >> 56, *at, *durable), (DiskIndex(7), 9, super::journal::START, true));
    assert_eq!(parts.iter().map(|part| part.len).collect::<Vec<_>>(), [BLOCK, 2 * BLOCK, 2 * BLOCK]);
    assert_eq!((parts[1].bytes().as_ptr(), parts[2].bytes().as_ptr()), (address.wrapping_add(2 * BLOCK), address));
    journal.ring.done(journal.disk.complete(0)).unwrap();
    let finished: Vec<Appended> = std::iter::from_fn(|| journal.ring.next_finished()).collect();
    let payload = |n| Some(super::super::JournalBlock(n));
    assert_eq!(
        finished.iter().map(|f| (f.key, f.payload)).collect::<Vec<_>>(),
        [(1, payload(1)), (2, None), (3, payload(3))]
    );
    drop(memory);
    assert_eq!(journal.arena.in_use(), before, "the payload is given back, the header's memory is kept");
}

#[test]
fn the_first_group_never_waits_and_others_go_when_they_are_worth_a_write() {
    let mut journal = Journal::new(700);
    journal.append(40, 1, true);
    journal.turn();
    assert_eq!(writes(&journal).len(), 1, "one record alone goes at once");
    journal.append(40, 1, true);
    journal.turn();
    assert_eq!(writes(&journal).len(), 2, "as large as the one in flight");
    for n in 1..=8 {
        journal.append(40, 1, true);
        journal.turn();
        assert_eq!(writes(&journal).len(), MAX_FLYING, "{n} behind two");
    }
    journal.complete(0);
    journal.turn();
    assert_eq!(writes(&journal), [(true, 2), (true, 9)], "what waited went together");
    journal.complete(0);
    for n in 1..=4 {
        journal.append(40, 1, true);
        journal.turn();
        assert_eq!(writes(&journal).len(), if n < 4 { 1 } else { 2 }, "{n} behind 8");
    }
    journal.drain();
    assert_eq!((journal.over, journal.ring.counters().groups), (14, 4));
}

#[test]
fn a_deep_queue_goes_in_even_parts_side_by_side_and_a_shallow_one_in_one() {
    for (queued, parts) in [(31, vec![31]), (32, vec![16, 16]), (45, vec![22, 23])] {
        let mut journal = Journal::new(700);
        for _ in 0..queued {
            journal.append(40, 1, true);
        }
        journal.turn();
        let expected: Vec<_> = parts.iter().map(|blocks| (true, 1 + blocks)).collect();
        assert_eq!(writes(&journal), expected, "{queued} queued");
        journal.append(40, 1, true);
        journal.drain();
        assert_eq!(journal.over, queued + 1);
    }
}

#[test]
fn groups_are_reported_in_order_though_the_disk_ends_them_in_another() {
    let mut journal = Journal::new(700);
    journal.append(40, 1, true);
    journal.turn();
    journal.append(40, 1, true);
    journal.turn();
    journal.complete(1);
    assert_eq!((journal.over, journal.ring.mark()), (0, Mark::FIRST));
    journal.complete(0);
    assert_eq!((journal.over, journal.ring.mark().sequence), (2, 3));
}

#[test]
fn records_over_several_header_blocks_and_none_with_payload_are_found() {
    let mut journal = Journal::new(2000);
    for (body, blocks) in [(MAX_BODY, MAX_RECORD_BLOCKS), (5000, 0), (9, 0), (MAX_BODY, 0), (9, 300 - 28), (4090, 1)] {
        journal.append(body, blocks as usize, true);
    }
    journal.turn();
    assert!(writes(&journal).len() <= 2);
    journal.drain();
    for n in 0..3 {
        journal.append(MAX_BODY - n, 0, true);
        journal.drain();
    }
    let mut disk = Disk::of(std::mem::take(&mut journal.disk.visible));
    assert_eq!(journal.check(&mut disk, 9, 5).0, 9);
}

#[test]
fn more_than_a_group_takes_becomes_several_with_no_more_parts_than_the_kernel_takes() {
    let mut journal = Journal::new(3000);
    for _ in 0..2500 {
        journal.append(40, 1, true);
    }
    journal.turn();
    assert_eq!(writes(&journal).len(), MAX_FLYING);
    assert!(writes(&journal).iter().all(|(_, parts)| *parts <= 1 + MAX_PAYLOAD_BLOCKS as usize && *parts > 400));
    journal.drain();
    assert_eq!(journal.over, 2500);
    let mut disk = Disk::of(std::mem::take(&mut journal.disk.visible));
    journal.check(&mut disk, 2500, 5);
}

#[test]
fn a_failed_write_is_the_last_word() {
    let mut journal = Journal::new(700);
    journal.append(40, 1, true);
    journal.turn();
    journal.append(40, 1, true);
    journal.turn();
    journal.append(40, 1, true);
    journal.disk.fail_write = true;
    assert_eq!(journal.complete(0), Some(Err(Errno::IO)));
    assert_eq!(journal.complete(0), Some(Err(Errno::IO)), "the second was written, and is not reported");
    journal.append(40, 1, true);
    journal.barrier();
    journal.turn();
    journal.ring.synced(journal.ring.sync_point());
    assert_eq!((journal.over, journal.disk.inflight.len(), journal.ring.next_deadline()), (0, 0, None));
    assert!(journal.ring.idle());
}

#[test]
fn a_failed_sync_is_the_last_word() {
    let mut journal = Journal::new(700);
    journal.append(40, 1, false);
    journal.drain();
    journal.barrier();
    journal.turn();
    journal.disk.fail_write = true;
    assert_eq!(journal.complete(0), Some(Err(Errno::IO)));
    journal.barrier();
    journal.turn();
    assert_eq!((journal.over, journal.stable, journal.disk.inflight.len()), (1, 0, 0));
}

#[test]
fn records_that_need_not_be_durable_cost_no_sync_until_somebody_asks() {
    let mut journal = Journal::new(700);
    for _ in 0..3 {
        journal.append(40, 1, false);
        journal.turn();
        assert_eq!(writes(&journal), [(false, 2)]);
        journal.complete(0);
    }
    assert_eq!((journal.over, journal.disk.syncs), (3, 1), "one of the scan");
    journal.barrier();
    journal.turn();
    assert_eq!((journal.over, journal.disk.syncs), (3, 2), "the barrier waits for a sync");
    journal.complete(0);
    assert_eq!((journal.over, journal.stable), (4, 4));
    journal.barrier();
    journal.turn();
    assert_eq!((journal.over, journal.disk.syncs), (5, 2), "all is stable");
}

#[test]
fn a_barrier_behind_records_makes_their_own_write_durable() {
    let mut journal = Journal::new(700);
    journal.append(40, 1, false);
    journal.barrier();
    journal.turn();
    assert_eq!(writes(&journal), [(true, 2)]);
    journal.complete(0);
    assert_eq!((journal.over, journal.disk.syncs), (2, 1), "one of the scan");
}

#[test]
fn a_durable_record_behind_one_that_is_not_stable_takes_a_sync() {
    let mut journal = Journal::new(700);
    journal.append(40, 1, false);
    journal.drain();
    journal.append(40, 1, true);
    journal.turn();
    assert_eq!(writes(&journal), [(false, 2)]);
    journal.complete(0);
    journal.turn();
    assert_eq!((journal.over, journal.disk.inflight.len()), (1, 1), "it waits for the sync");
    journal.complete(0);
    assert_eq!(journal.over, 2);
    journal.append(40, 1, true);
    journal.turn();
    assert_eq!(writes(&journal), [(true, 2)], "and then durable writes do again");
}

#[test]
fn a_sync_made_for_another_reason_counts_for_what_was_written_before_it() {
    let mut journal = Journal::new(700);
    journal.append(40, 1, false);
    journal.drain();
    let point = journal.ring.sync_point();
    journal.append(40, 1, false);
    journal.turn();
    journal.complete(0);
    journal.ring.synced(point);
    journal.append(40, 1, true);
    journal.turn();
    assert_eq!(writes(&journal), [(false, 2)], "the second was not covered");
    journal.complete(0);
    journal.ring.synced(journal.ring.sync_point());
    journal.turn();
    assert_eq!((journal.over, journal.disk.syncs), (3, 1), "one of the scan");
}

#[test]
fn a_journal_that_rests_is_sealed_once() {
    let mut journal = Journal::new(700);
    journal.rest();
    assert_eq!((journal.disk.writes, journal.ring.next_deadline()), (0, None), "there is nothing to prove");
    journal.append(40, 1, true);
    journal.drain();
    assert_eq!((journal.disk.writes, journal.ring.next_deadline()), (1, Some(journal.now + SEAL_AFTER)));
    journal.now = journal.now + SEAL_AFTER;
    journal.drain();
    assert_eq!((journal.disk.writes, journal.ring.next_deadline(), journal.ring.counters().seals), (2, None, 1));
    journal.now = journal.now + SEAL_AFTER;
    journal.drain();
    assert_eq!(journal.disk.writes, 2);
    // What is trimmed needs no proof.
    journal.append(40, 1, true);
    journal.drain();
    let (at, over) = (journal.ring.mark(), journal.over);
    journal.trim(at, over);
    journal.rest();
    assert_eq!(journal.disk.writes, 3);
}

#[test]
fn a_full_ring_waits_for_a_trim_and_can_still_be_sealed_and_opened() {
    let mut journal = Journal::new(120);
    while journal.ring.fits(40, 3) {
        journal.append(40, 3, true);
        journal.drain();
    }
    assert!(!journal.ring.stalled() && journal.over == journal.records.len());
    while !journal.ring.stalled() {
        journal.append(40, 3, true);
        journal.drain();
    }
    let waits = journal.records.len();
    assert_eq!(journal.over, waits - 1);
    let (at, over) = (journal.ring.mark(), journal.over);
    // Loss of power now: nothing of it is lost, and what the opening writes finds room.
    let mut disk = Disk::of(journal.disk.visible.clone());
    journal.check(&mut disk, over, 5);
    journal.trim(at, over);
    journal.drain();
    assert_eq!((journal.over, journal.ring.stalled()), (1, false));
    journal.rest();
    assert_eq!(journal.ring.counters().seals, 1);
}

#[test]
fn openings_that_come_to_nothing_use_no_room() {
    let mut journal = Journal::new(96);
    journal.append(40, 3, true);
    journal.drain();
    journal.append(40, 3, true);
    journal.append(40, 1, true);
    journal.turn();
    let mut image = journal.disk.after_power_loss(super::disk::Loss::Headers, &mut super::disk::Random::new(1));
    let mut ends = Vec::new();
    for boot in 10..20 {
        let mut disk = Disk::of(image);
        let (found, end) = scan(&mut disk, place(96), Mark::FIRST, boot, &arena());
        assert_eq!(found.len(), 1);
        ends.push(end.unwrap());
        image = disk.visible;
    }
    assert_eq!((ends[0].counts.torn_groups, ends[1].counts.torn_groups), (1, 0), "the torn group is overwritten once");
    assert_eq!(ends[1].state.head, ends[9].state.head);
}

#[test]
fn a_torn_header_is_not_made_whole_by_what_is_written_in_its_place() {
    const SECTOR: usize = 512;
    let mut journal = Journal::new(96);
    journal.append(40, 3, true);
    journal.drain();
    let before = journal.disk.visible.clone();
    journal.append(40, 0, true);
    journal.drain();
    let whole = journal.disk.visible.clone();
    let at = (0..whole.len()).step_by(BLOCK).find(|&at| whole[at..at + BLOCK] != before[at..at + BLOCK]).unwrap();
    // Of the second group's header only the first sector is there, the rest is of an older lap.
    let mut torn = before;
    torn[at..at + SECTOR].copy_from_slice(&whole[at..at + SECTOR]);
    torn[at + SECTOR..at + BLOCK].fill(0x77);
    let mut disk = Disk::of(torn);
    let (found, end) = scan(&mut disk, place(96), Mark::FIRST, 10, &arena());
    assert!(found.len() == 1 && end.is_ok());
    // The next group in its place is torn as well: all but its first sector is there, and that is zeros.
    let mut torn = disk.visible;
    torn[at + SECTOR..at + BLOCK].fill(0);
    let (found, end) = scan(&mut Disk::of(torn), place(96), Mark::FIRST, 11, &arena());
    assert!(found.len() == 1 && end.is_ok());
}

#[test]
fn a_mark_is_in_a_superblock_what_it_was() {
    let mut journal = Journal::new(96);
    journal.append(40, 3, true);
    journal.drain();
    let mark = journal.ring.mark();
    assert_eq!(Mark::decode(&mark.encode()), mark);
    assert_ne!(mark, Mark::FIRST);
}
