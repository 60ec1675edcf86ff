//! Damage to what was durable is told from what a crash cut short, and survived where there is an echo.

use super::super::group::{Head, Header, encode, put_record, seems_header};
use super::super::limits::TELLING_BLOCKS;
use super::super::scan::ScanCounts;
use super::super::{JournalBlock, Mark, ScanEnd, ScanError};
use super::disk::{Disk, Loss, Random};
use super::journal::{Found, Journal, START, arena, place, scan, scan_within};
use conductor_model::{BLOCK, DiskId};

/// Where a block of the ring is on the disk.
fn byte(block: u32) -> usize {
    START as usize + block as usize * BLOCK
}

/// All headers on the disk that read well, by place.
fn headers(disk: &Disk, blocks: u32) -> Vec<Header> {
    let block = |n: u32| &disk.visible[byte(n)..][..BLOCK];
    let at = |n| seems_header(block(n), &place(blocks), n).map(|len| disk.visible[byte(n)..byte(n + len)].to_vec());
    (0..blocks).filter_map(|n| Header::decode(at(n)?, &place(blocks))).collect()
}

/// Groups of many shapes, one after the other, the last one sealed.
fn sealed_journal(blocks: u32, groups: u64) -> Journal {
    let mut random = Random::new(u64::from(blocks));
    let mut journal = Journal::new(blocks);
    for n in 0..groups {
        for _ in 0..=random.below(3) {
            let body = if n % 4 == 3 { 5000 } else { 20 + random.below(60) };
            journal.append(body as usize, random.below(4) as usize, true);
        }
        journal.drain();
    }
    journal.rest();
    assert_eq!((journal.stable, journal.ring.counters().seals), (journal.records.len(), 1));
    journal
}

/// So many groups of one shape in a small ring, none of which is needed any more.
fn emptied(groups: u32) -> Journal {
    let mut journal = Journal::new(96);
    for _ in 0..groups {
        journal.append(30, 3, true);
        journal.drain();
        let (at, over) = (journal.ring.mark(), journal.over);
        journal.trim(at, over);
    }
    journal
}

fn flip(disk: &mut Disk, at: usize) {
    disk.visible[at] ^= 0x10;
}

fn found_in(journal: &Journal, disk: &mut Disk) -> (Vec<Found>, Result<ScanEnd, ScanError>) {
    scan(disk, journal.place, journal.tail, 99, &arena())
}

fn keys(found: &[Found]) -> Vec<u64> {
    found.iter().map(|record| record.key).collect()
}

fn all_keys(journal: &Journal) -> Vec<u64> {
    journal.records.iter().map(|record| record.key).collect()
}

/// The damaged payload blocks, by their place in the ring.
fn damaged(found: &[Found]) -> Vec<u32> {
    found.iter().flat_map(|record| record.damaged.iter().map(|n| record.payload.unwrap().0 + u32::from(*n))).collect()
}

#[test]
fn one_rotten_block_anywhere_loses_no_record_and_no_other_block() {
    let journal = sealed_journal(200, 14);
    let headers = headers(&journal.disk, 200);
    let is_header = |block: u32| headers.iter().any(|h| (h.head.at.position.0..h.payload()).contains(&block));
    let seal = headers.iter().map(|h| h.head.at.position.0).max().unwrap();
    assert!(headers.len() == 15 && headers.iter().any(|h| h.blocks > 2), "groups of several header blocks");
    let mut random = Random::new(5);
    for block in 0..journal.ring.mark().position.0 {
        let mut disk = Disk::of(journal.disk.visible.clone());
        flip(&mut disk, byte(block) + random.below(BLOCK as u64) as usize);
        let (found, end) = found_in(&journal, &mut disk);
        let counts = end.unwrap_or_else(|error| panic!("block {block}: {error}")).counts;
        assert_eq!(keys(&found), all_keys(&journal), "block {block}");
        let rotten = if is_header(block) { vec![] } else { vec![block] };
        assert_eq!((damaged(&found), counts.damaged_blocks), (rotten.clone(), rotten.len() as u64), "block {block}");
        let echoed = is_header(block) && block < seal;
        assert_eq!((counts.damaged_headers, counts.torn_groups), (u64::from(echoed), 0), "block {block}");
    }
}

#[test]
fn two_rotten_blocks_are_survived_or_reported_but_never_taken_for_a_crash() {
    let journal = sealed_journal(200, 14);
    let seal = headers(&journal.disk, 200).iter().map(|h| h.head.at.position.0).max().unwrap();
    let mut random = Random::new(6);
    let mut lost = 0;
    for _ in 0..1500 {
        let mut disk = Disk::of(journal.disk.visible.clone());
        let (one, other) = (random.below(u64::from(seal)), random.below(u64::from(seal)));
        for block in [one, other] {
            disk.visible[byte(block as u32)..][..BLOCK].fill(0xa7);
        }
        match found_in(&journal, &mut disk) {
            (found, Ok(end)) => {
                assert_eq!((keys(&found), end.counts.torn_groups), (all_keys(&journal), 0), "blocks {one} {other}");
            }
            (found, Err(ScanError::Damaged { .. })) => {
                assert!(all_keys(&journal).starts_with(&keys(&found)));
                lost += 1;
            }
            (_, Err(error)) => panic!("{error}"),
        }
    }
    assert!((1..400).contains(&lost), "two headers in a row are rare: {lost}");
}

#[test]
fn a_range_of_many_groups_that_rotted_is_damage_and_no_end_of_the_journal() {
    let journal = sealed_journal(400, 40);
    let headers = headers(&journal.disk, 400);
    let (first, last) = (&headers[5], &headers[35]);
    let mut disk = Disk::of(journal.disk.visible.clone());
    disk.visible[byte(first.head.at.position.0)..byte(last.head.at.position.0)].fill(0);
    let (_, end) = found_in(&journal, &mut disk);
    assert_eq!(end.unwrap_err(), ScanError::Damaged { sequence: first.head.at.sequence });
}

#[test]
fn rotten_payload_of_the_newest_group_is_damage_when_it_was_sealed_and_torn_when_not() {
    let mut journal = Journal::new(96);
    journal.append(30, 2, true);
    journal.drain();
    let last = journal.append(30, 3, true);
    journal.drain();
    let first_payload = journal.places[1].unwrap().0;
    let unsealed = journal.disk.visible.clone();
    journal.rest();
    for (image, sealed) in [(unsealed, false), (journal.disk.visible.clone(), true)] {
        let mut disk = Disk::of(image);
        flip(&mut disk, byte(first_payload + 1) + 77);
        let (found, end) = found_in(&journal, &mut disk);
        let counts = end.unwrap().counts;
        assert_eq!(keys(&found).contains(&last), sealed);
        assert_eq!((counts.torn_groups, counts.damaged_blocks), (u64::from(!sealed), u64::from(sealed)));
        assert_eq!(damaged(&found), if sealed { vec![first_payload + 1] } else { vec![] });
    }
}

#[test]
fn a_rotten_header_is_replaced_by_its_echo_on_both_sides_of_the_wrap() {
    let mut journal = Journal::new(96);
    let mut wraps = 0;
    for round in 0..80 {
        let (at, over) = (journal.ring.mark(), journal.over);
        journal.trim(at, over);
        for _ in 0..3 {
            journal.append(40, 2 + round % 5, true);
            journal.drain();
        }
        journal.rest();
        let blocks: Vec<u32> = journal.places.iter().map(|place| place.unwrap().0 - 1).collect();
        wraps += u32::from(!blocks.is_sorted());
        for header in blocks {
            let mut disk = Disk::of(journal.disk.visible.clone());
            disk.visible[byte(header)..][..BLOCK].fill(0);
            let (found, end) = found_in(&journal, &mut disk);
            assert_eq!((keys(&found), end.unwrap().counts.damaged_headers), (all_keys(&journal), 1));
        }
    }
    assert!(wraps > 5, "the ring's end was met {wraps} times");
}

#[test]
fn the_journal_goes_on_behind_damage_and_the_damage_stays_reported() {
    let mut journal = sealed_journal(200, 6);
    let payload = journal.places.iter().flatten().next().unwrap().0;
    let header = headers(&journal.disk, 200)[3].head.at.position.0;
    flip(&mut journal.disk, byte(payload));
    flip(&mut journal.disk, byte(header));
    let mut image = journal.disk.visible.clone();
    for lap in 0..3 {
        let mut disk = Disk::of(image);
        let arena = arena();
        let (found, end) = scan(&mut disk, journal.place, journal.tail, 50 + lap, &arena);
        let end = end.unwrap();
        assert_eq!((found.len() as u64, damaged(&found)), (journal.records.len() as u64 + lap, vec![payload]));
        assert_eq!((end.counts.damaged_blocks, end.counts.damaged_headers), (1, 1));
        let mut ring = super::super::Ring::new(journal.place, end.state, &arena).unwrap();
        ring.append(1, &[7; 9], None, &[], true);
        ring.end_turn(journal.now, &mut |op| disk.submit(op));
        while !disk.inflight.is_empty() {
            ring.done(disk.complete(0)).unwrap();
        }
        image = disk.visible;
    }
}

#[test]
fn blocks_that_give_errors_are_like_rotten_ones() {
    let journal = sealed_journal(600, 14);
    let headers = headers(&journal.disk, 600);
    let payload = headers[2].payload();
    assert!(headers[2].head.payload_blocks > 0);
    let unreadable = |from: u32, to: u32| {
        let mut disk = Disk::of(journal.disk.visible.clone());
        disk.unreadable = byte(from)..byte(to);
        let (found, end) = found_in(&journal, &mut disk);
        (found, end.unwrap().counts)
    };
    let (found, counts) = unreadable(payload, payload + 1);
    assert_eq!((keys(&found), damaged(&found)), (all_keys(&journal), vec![payload]));
    assert_eq!(counts.unreadable_blocks, 1);
    let header = headers[4].head.at.position.0;
    let (found, counts) = unreadable(header, header + 1);
    assert_eq!((keys(&found), counts.damaged_headers), (all_keys(&journal), 1));
    // The free part of the ring, over the border of two pieces.
    let (found, counts) = unreadable(500, 560);
    assert_eq!((keys(&found), counts.unreadable_blocks), (all_keys(&journal), 60));
}

#[test]
fn a_disk_that_reads_nothing_is_a_failed_disk() {
    let mut disk = Disk::new(byte(3000));
    disk.unreadable = 0..byte(3000);
    let (found, end) = scan(&mut disk, place(3000), Mark::FIRST, 1, &arena());
    assert_eq!((found, end.unwrap_err()), (vec![], ScanError::Disk(driver::Errno::IO)));
}

#[test]
fn a_mark_that_is_too_old_is_damage() {
    let mut journal = Journal::new(96);
    journal.append(30, 1, true);
    journal.drain();
    let (old, over) = (journal.ring.mark(), journal.over);
    journal.trim(old, over);
    for _ in 0..40 {
        journal.append(30, 4, true);
        journal.drain();
        let (at, over) = (journal.ring.mark(), journal.over);
        journal.trim(at, over);
    }
    journal.append(30, 1, true);
    journal.rest();
    let (_, end) = scan(&mut journal.disk, journal.place, old, 9, &arena());
    assert_eq!(end.unwrap_err(), ScanError::Damaged { sequence: old.sequence });
    let beyond = Mark { position: JournalBlock(96), ..old };
    let (_, end) = scan(&mut journal.disk, journal.place, beyond, 9, &arena());
    assert_eq!(end.unwrap_err(), ScanError::Mark { position: 96, blocks: 96 });
}

#[test]
fn groups_of_another_store_are_not_found() {
    let mut journal = sealed_journal(200, 6);
    let other = super::super::RingPlace { disk_id: DiskId(0xd15d), ..journal.place };
    let (found, end) = scan(&mut journal.disk, other, Mark::FIRST, 9, &arena());
    assert_eq!((found, end.unwrap().counts), (vec![], ScanCounts::default()));
}

/// A group that continues the chain but for one thing is no group of the chain.
#[test]
fn only_a_group_that_continues_the_chain_in_every_respect_is_found() {
    let mut journal = Journal::new(96);
    journal.append(40, 1, true);
    journal.drain();
    let (mark, echo) = (journal.ring.mark(), headers(&journal.disk, 96)[0].bytes.clone());
    let found_with = |head: Head, block: u32| {
        let mut disk = Disk::of(journal.disk.visible.clone());
        let mut record = Vec::new();
        put_record(&2u64.to_le_bytes(), &[], &mut record);
        encode(&head, &record, &mut echo.clone(), &mut disk.visible[byte(block)..]);
        keys(&found_in(&journal, &mut disk).0)
    };
    let right = Head { disk: journal.place.disk_id, boot: 5, at: mark, durable_through: 0, payload_blocks: 0 };
    let here = mark.position.0;
    let with = |at: Mark| Head { at, ..right };
    assert_eq!(found_with(right, here), [1, 2]);
    let wrong = [
        Head { disk: DiskId(4), ..right },
        with(Mark { sequence: mark.sequence - 1, ..mark }),
        with(Mark { sequence: mark.sequence + 1, ..mark }),
        with(Mark { previous_crc: mark.previous_crc ^ 1, ..mark }),
        with(Mark { previous_boot: mark.previous_boot ^ 1, ..mark }),
        with(Mark { position: JournalBlock(here + 1), ..mark }),
        Head { payload_blocks: 1, ..right },
    ];
    for head in wrong {
        assert_eq!(found_with(head, here), [1], "{head:?}");
    }
    assert_eq!(found_with(with(Mark { position: JournalBlock(here + 1), ..mark }), here + 1), [1], "behind a gap");
}

#[test]
fn hostile_bytes_never_panic() {
    let journal = sealed_journal(96, 5);
    let mut random = Random::new(77);
    for _ in 0..400 {
        let mut disk = Disk::of(journal.disk.visible.clone());
        let header = headers(&disk, 96)[random.below(6) as usize].clone();
        // Any field of the fixed part, with a checksum that is right.
        let at = byte(header.head.at.position.0);
        for _ in 0..=random.below(3) {
            disk.visible[at + 8 + random.below(120) as usize] = random.next() as u8;
        }
        let end = at + header.blocks as usize * BLOCK;
        let crc = crc32c::crc32c(&disk.visible[at + 8..end]);
        disk.visible[at + 4..at + 8].copy_from_slice(&crc.to_le_bytes());
        let (_found, _end) = found_in(&journal, &mut disk);
    }
}

#[test]
fn a_group_that_was_given_up_at_the_rings_start_does_not_come_back_when_what_replaced_it_rots() {
    let mut journal = emptied(22);
    assert_eq!(journal.ring.mark().position.0, 88);
    let first = journal.append(30, 0, true);
    journal.drain();
    journal.append(30, 8, true);
    journal.turn();
    let image = journal.disk.after_power_loss(Loss::Headers, &mut Random::new(3));
    let stable = journal.stable;
    journal.reopen(Disk::of(image), stable);
    let mut keys_expected = vec![first];
    for _ in 0..2 {
        keys_expected.push(journal.append(30, 0, true));
        journal.drain();
    }
    journal.rest();
    let (found, end) = found_in(&journal, &mut Disk::of(journal.disk.visible.clone()));
    assert!(end.is_ok());
    assert_eq!(keys(&found), keys_expected, "undamaged");
    for header in headers(&journal.disk, 96) {
        let mut disk = Disk::of(journal.disk.visible.clone());
        flip(&mut disk, byte(header.head.at.position.0) + 20);
        let (found, end) = found_in(&journal, &mut disk);
        assert!(end.is_ok());
        assert_eq!(keys(&found), keys_expected, "without the header at {}", header.head.at.position.0);
    }
}

#[test]
fn what_followed_a_group_that_was_given_up_has_the_wrong_echo_of_what_replaced_it() {
    let mut journal = emptied(17);
    let first = journal.append(30, 0, true);
    journal.drain();
    let head = journal.ring.mark().position.0;
    journal.append(30, 8, true);
    journal.turn();
    journal.append(30, 2, true);
    journal.turn();
    assert_eq!(journal.disk.inflight.len(), 2);
    let image = journal.disk.after_power_loss(Loss::Newest, &mut Random::new(3));
    let stable = journal.stable;
    journal.reopen(Disk::of(image), stable);
    let mut keys_expected = vec![first];
    keys_expected.push(journal.append(30, 40, true));
    journal.drain();
    journal.rest();
    let (found, end) = found_in(&journal, &mut Disk::of(journal.disk.visible.clone()));
    assert!(end.is_ok());
    assert_eq!(keys(&found), keys_expected, "undamaged");
    let mut disk = Disk::of(journal.disk.visible.clone());
    flip(&mut disk, byte(head) + 20);
    let (found, end) = found_in(&journal, &mut disk);
    assert!(end.is_ok());
    assert_eq!(keys(&found), keys_expected);
}

#[test]
fn what_cannot_be_read_ends_an_opening_that_will_be_repeated() {
    let journal = sealed_journal(600, 14);
    let headers = headers(&journal.disk, 600);
    let from = headers[headers.len() - 4].head.at.position.0;
    let mut disk = Disk::of(journal.disk.visible.clone());
    disk.unreadable = byte(from)..byte(600);
    let scanned = scan_within(0, &mut disk, journal.place, journal.tail, 99, &arena());
    assert!(
        matches!(scanned, (_, Err(ScanError::Disk(_)))),
        "sealed groups are there, and were taken for the journal's end"
    );
    disk.unreadable = 0..0;
    assert_eq!(keys(&scan_within(0, &mut disk, journal.place, journal.tail, 99, &arena()).0), all_keys(&journal));
}

#[test]
fn a_ring_that_is_blank_or_older_than_its_mark_is_not_taken_for_an_empty_journal() {
    let mut journal = Journal::new(TELLING_BLOCKS);
    let blank = journal.disk.visible.clone();
    let mut images = Vec::new();
    for _ in 0..12 {
        journal.append(30, 2, true);
        journal.drain();
        images.push(journal.disk.visible.clone());
    }
    let (at, over) = (journal.ring.mark(), journal.over);
    journal.trim(at, over);
    // All there, or without its newest header, which may have rotted: nobody can tell from a picture that is a little older.
    let mut rotten = Disk::of(images[11].clone());
    let newest = headers(&rotten, TELLING_BLOCKS).last().unwrap().head.at.position.0;
    flip(&mut rotten, byte(newest) + 20);
    for disk in [&mut Disk::of(images[11].clone()), &mut rotten, &mut Disk::of(images[5].clone())] {
        let (found, end) = found_in(&journal, disk);
        assert!(found.is_empty() && end.is_ok(), "{end:?}");
    }
    let zeros = vec![0; blank.len()];
    for image in [&images[3], &images[0], &blank, &zeros] {
        let (found, end) = found_in(&journal, &mut Disk::of(image.clone()));
        assert!(found.is_empty() && matches!(end, Err(ScanError::OtherJournal { .. })), "{end:?}");
    }
}
