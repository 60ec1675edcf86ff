//! Whatever the disk holds: right data, or a clear word. Never a panic, never wrong data.
#![allow(clippy::cast_possible_truncation, clippy::unwrap_used)] // a test: small numbers, and a panic is its way to fail

mod disk;

use conductor_model::{BLOCK, Bytes, CopyId, DiskId, NodeId};
use disk::*;
use driver::Errno;
use memory::Arena;
use node_store::simple::{FormatOptions, Geometry, Identity, OpenError, OpenOptions, Opening, SimpleStore};
use node_store::{Store, StoreDone, StoreError, StoreOp, Tag};

const BLOCKS: u32 = 64;

fn small() -> Geometry {
    Geometry::new(Bytes(900 * BLOCK as u64), 8, 4).expect("large enough")
}

/// A store with blocks 0..48 of copy 1 written (some twice), the rest empty; a last write to block 63 ends the log.
fn written(arena: &Arena) -> Disk {
    let mut disk = Disk::new(900 * BLOCK, 5);
    format(&mut disk, arena, small()).unwrap();
    let mut store = open(&mut disk, arena).unwrap();
    let create = StoreOp::Create { copy: CopyId(1), config: config(1, BLOCKS), parent: None };
    run(&mut store, &mut disk, create).unwrap();
    for n in 0..60u32 {
        run(&mut store, &mut disk, write(arena, 1, range(n % 48, 1), u64::from(n) + 1, u64::from(n % 48))).unwrap();
    }
    run(&mut store, &mut disk, write(arena, 1, range(63, 1), 99, 63)).unwrap();
    drain(&mut store, &mut disk);
    disk
}

/// Read all blocks: each is right or reported. Says how many were reported.
fn right_or_reported(store: &mut SimpleStore, disk: &mut Disk, arena: &Arena) -> u32 {
    let mut reported = 0;
    for n in 0..BLOCKS - 1 {
        match read(store, disk, arena, 1, range(n, 1)) {
            Ok(block) => {
                let expected = if n < 48 { block_of(u64::from(n)) } else { vec![0; BLOCK] };
                assert!(block == expected, "block {n} is wrong");
            }
            Err(StoreError::Corrupt { copy: CopyId(1), block }) => {
                assert_eq!(block.0, n);
                reported += 1;
            }
            Err(other) => panic!("{other}"),
        }
    }
    assert_eq!(store.counters().corrupt, u64::from(reported));
    reported
}

#[test]
fn a_flipped_bit_gives_right_data_or_a_clear_error() {
    let arena = Arena::small(4 << 20);
    let image = written(&arena).visible;
    let mut random = Random(99);
    let (mut refused, mut corrupt, mut right) = (0, 0, 0);
    for round in 0..1500 {
        let mut disk = Disk::from_image(image.clone());
        // Every second one in the metadata: it is small beside the rest.
        let reach = if round % 2 == 0 { 130 * BLOCK } else { image.len() };
        let at = random.below(reach as u64) as usize;
        disk.visible[at] ^= 1 << random.below(8);
        match open(&mut disk, &arena) {
            Err(OpenError::Damaged(_)) => refused += 1,
            Err(other) => panic!("{other}"),
            Ok(mut store) => match right_or_reported(&mut store, &mut disk, &arena) {
                0 => right += 1,
                _ => corrupt += 1,
            },
        }
    }
    println!("{refused} refused, {corrupt} corrupt, {right} right");
    assert!(refused > 10 && corrupt > 10 && right > 100);
}

/// Bytes of a sealed structure that starts here, by its magic.
fn sealed(image: &[u8], at: usize) -> Option<usize> {
    match &image[at..at + 4] {
        b"TRS1" | b"TRL1" | b"TRH1" => Some(BLOCK),
        b"TRK1" => Some(64 << 10),
        _ => None,
    }
}

#[test]
fn forged_metadata_with_good_checksums_never_panics() {
    let arena = Arena::small(4 << 20);
    let image = written(&arena).visible;
    let places: Vec<(usize, usize)> =
        (0..image.len()).step_by(BLOCK).filter_map(|at| Some((at, sealed(&image, at)?))).collect();
    assert!(places.len() > 10);
    let mut random = Random(7);
    let (mut refused, mut opened) = (0, 0);
    for _ in 0..3000 {
        let mut disk = Disk::from_image(image.clone());
        let (at, len) = places[random.below(places.len() as u64) as usize];
        for _ in 0..=random.below(4) {
            let reach = if random.one_in(4) { len as u64 - 8 } else { 200 };
            let byte = at + 8 + random.below(reach) as usize;
            disk.visible[byte] = [0, 1, 0xff, random.next() as u8][random.below(4) as usize];
        }
        let crc = crc32c::crc32c(&disk.visible[at + 8..at + len]);
        disk.visible[at + 4..at + 8].copy_from_slice(&crc.to_le_bytes());
        match open(&mut disk, &arena) {
            Err(_) => refused += 1,
            Ok(mut store) => {
                opened += 1;
                for (copy, config) in store.copies() {
                    for n in (0..u32::try_from(config.size.0 / BLOCK as u64).unwrap().min(BLOCKS)).step_by(7) {
                        let _ = read(&mut store, &mut disk, &arena, copy.0, range(n, 1));
                    }
                    let _ = run(&mut store, &mut disk, write(&arena, copy.0, range(0, 1), 1000, 7));
                }
            }
        }
    }
    println!("{refused} refused, {opened} opened");
    assert!(refused > 300 && opened > 300);
}

#[test]
fn random_bytes_are_no_store() {
    let arena = Arena::small(4 << 20);
    let mut disk = Disk::new(900 * BLOCK, 3);
    assert_eq!(open(&mut disk, &arena).err(), Some(OpenError::NotAStore));
    let mut random = Random(3);
    disk.visible.iter_mut().for_each(|byte| *byte = random.next() as u8);
    assert_eq!(open(&mut disk, &arena).err(), Some(OpenError::NotAStore));
    let mut tiny = Disk::from_image(vec![0; BLOCK]);
    assert!(matches!(open(&mut tiny, &arena).err(), Some(OpenError::Truncated { .. })));
}

#[test]
fn random_metadata_behind_a_good_superblock_is_refused() {
    let arena = Arena::small(4 << 20);
    let image = written(&arena).visible;
    let mut random = Random(4);
    for _ in 0..50 {
        let mut disk = Disk::from_image(image.clone());
        disk.visible[BLOCK..8 * BLOCK].iter_mut().for_each(|byte| *byte = random.next() as u8);
        disk.visible[9 * BLOCK..].iter_mut().for_each(|byte| *byte = random.next() as u8);
        assert!(matches!(open(&mut disk, &arena).err(), Some(OpenError::Damaged(_))));
    }
}

#[test]
fn a_disk_that_became_smaller_is_refused_and_a_larger_one_is_not() {
    let arena = Arena::small(4 << 20);
    let mut image = written(&arena).visible;
    image.resize(1000 * BLOCK, 0);
    let mut disk = Disk::from_image(image.clone());
    let mut store = open(&mut disk, &arena).unwrap();
    assert_eq!(right_or_reported(&mut store, &mut disk, &arena), 0);
    image.truncate(899 * BLOCK);
    assert!(matches!(open(&mut Disk::from_image(image), &arena).err(), Some(OpenError::Truncated { .. })));
}

#[test]
fn one_superblock_is_enough() {
    let arena = Arena::small(4 << 20);
    let image = written(&arena).visible;
    for lost in [0, 8] {
        let mut disk = Disk::from_image(image.clone());
        disk.visible[lost * BLOCK..][..BLOCK].fill(0xee);
        let mut store = open(&mut disk, &arena).unwrap();
        assert_eq!(right_or_reported(&mut store, &mut disk, &arena), 0);
    }
}

#[test]
fn a_lost_page_before_the_last_group_is_damage_and_the_last_group_is_a_torn_write() {
    let arena = Arena::small(4 << 20);
    let image = written(&arena).visible;
    let sequence = |at: usize| u64::from_le_bytes(image[at + 24..at + 32].try_into().unwrap());
    let mut pages: Vec<usize> =
        (0..image.len()).step_by(BLOCK).filter(|&at| image[at..].starts_with(b"TRL1")).collect();
    pages.sort_by_key(|&at| sequence(at));
    let [.., before, last] = pages[..] else { panic!("a log of several pages") };
    let mut disk = Disk::from_image(image.clone());
    disk.visible[before..before + BLOCK].fill(0);
    assert!(matches!(open(&mut disk, &arena).err(), Some(OpenError::Damaged(_))));
    let mut disk = Disk::from_image(image.clone());
    disk.visible[last..last + BLOCK].fill(0);
    let mut store = open(&mut disk, &arena).unwrap();
    assert_eq!(right_or_reported(&mut store, &mut disk, &arena), 0);
    assert_eq!(read(&mut store, &mut disk, &arena, 1, range(63, 1)).unwrap(), vec![0; BLOCK]);
}

#[test]
fn a_store_is_not_formatted_over_by_accident_nor_opened_by_a_stranger() {
    let arena = Arena::small(4 << 20);
    let mut disk = written(&arena);
    assert_eq!(format(&mut disk, &arena, small()).err(), Some(OpenError::AlreadyFormatted));
    let options =
        OpenOptions { disk: DISK, size: Bytes(900 * BLOCK as u64), cluster: Some(0xc1), node: Some(NodeId(1)) };
    let mut attempt = |options| {
        let mut opening = Opening::start(options, &arena, &mut |op| disk.submit(op)).unwrap();
        loop {
            let done = disk.step().unwrap();
            if let Some(result) = opening.done(NOW, done, &mut |op| disk.submit(op)) {
                return result.err();
            }
        }
    };
    assert_eq!(attempt(OpenOptions { cluster: Some(2), ..options }), Some(OpenError::OtherCluster(0xc1)));
    assert_eq!(attempt(OpenOptions { node: Some(NodeId(2)), ..options }), Some(OpenError::OtherNode(NodeId(1))));
    assert_eq!(attempt(options), None);
    let again = FormatOptions { disk: DISK, identity: identity(), geometry: small(), overwrite: true };
    assert_eq!(format_with(&mut disk, &arena, again).err(), Some(OpenError::SameDiskId(identity().disk)));
    let fresh = FormatOptions { identity: Identity { disk: DiskId(2), ..identity() }, ..again };
    format_with(&mut disk, &arena, fresh).unwrap();
    let store = open(&mut disk, &arena).unwrap();
    assert_eq!((store.disk_id(), store.copies()), (DiskId(2), vec![]));
}

#[test]
fn after_a_failed_write_nothing_is_done_any_more_until_the_store_is_opened_again() {
    let arena = Arena::small(4 << 20);
    let mut disk = written(&arena);
    let mut store = open(&mut disk, &arena).unwrap();
    for n in 0..6 {
        let op = write(&arena, 1, range(n, 1), 200 + u64::from(n), 500);
        store.submit(NOW, Tag(u64::from(n)), op, &mut |op| disk.submit(op));
    }
    store.end_turn(NOW, &mut |op| disk.submit(op));
    disk.fail_write = true;
    quiesce(&mut store, &mut disk);
    let mut failed = 0;
    while let Some((_, result)) = store.next_completion() {
        failed += u32::from(result.err() == Some(StoreError::Disk(Errno::IO)));
    }
    assert!(failed >= 1);
    assert!(store.idle());
    let ops = [
        StoreOp::Above { copy: CopyId(1) },
        write(&arena, 1, range(9, 1), 300, 9),
        StoreOp::Join { copy: CopyId(1), config: config(2, BLOCKS) },
    ];
    for op in ops {
        assert_eq!(run(&mut store, &mut disk, op).err(), Some(StoreError::Disk(Errno::IO)));
    }
    assert_eq!(store.failure(), Some(Errno::IO));
    let mut store = open(&mut disk, &arena).unwrap();
    for n in 6..48 {
        assert_eq!(read(&mut store, &mut disk, &arena, 1, range(n, 1)).unwrap(), block_of(u64::from(n)));
    }
}

#[test]
fn a_failed_read_fails_alone() {
    let arena = Arena::small(4 << 20);
    let mut disk = written(&arena);
    let mut store = open(&mut disk, &arena).unwrap();
    disk.fail_reads = 1;
    assert_eq!(read(&mut store, &mut disk, &arena, 1, range(3, 1)).err(), Some(StoreError::Disk(Errno::IO)));
    assert_eq!(read(&mut store, &mut disk, &arena, 1, range(3, 1)).unwrap(), block_of(3));
    assert!(matches!(run(&mut store, &mut disk, write(&arena, 1, range(3, 1), 300, 9)), Ok(StoreDone::Done)));
}
