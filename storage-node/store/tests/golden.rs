//! The format is what `docs/disk-format.md` says, to the byte: an image of today's format is read, and made again, exactly.
//!
//! `golden/v4.txt` is that image. When [`FORMAT_VERSION`] is raised, a new one is made by `cargo test -p node-store --test golden -- --ignored`,
//! which writes `golden/v<version>.txt`; look at what changed in it, write that into the document, name the new file in `IMAGE`, and
//! delete the old one. A change of these bytes under the same version is an incompatible store under a name that says otherwise,
//! unless only the order of writes changed.
#![allow(clippy::cast_possible_truncation, clippy::unwrap_used)] // a test: small numbers, and a panic is its way to fail

mod disk;

use conductor_model::card::{SnapshotCard, VolumeCard};
use conductor_model::{BLOCK, Blocks, Bytes, CopyId, SnapshotId, Stamp};
use disk::*;
use driver::{DiskIndex, Span};
use memory::{Arena, Class};
use node_store::journaled::FORMAT_VERSION;
use node_store::journaled::check::{CheckOptions, Depth, check};
use node_store::{FillMark, OpenError, Parent, Store, StoreDone, StoreOp, View};
use std::collections::BTreeMap;
use std::fmt::Write;

const IMAGE: &str = include_str!("golden/v4.txt");
const BLOCKS: u32 = 64;

/// A block of one word.
fn word(seed: u64) -> [u8; 8] {
    (seed * 0x0101_0101_0101).to_le_bytes()
}

fn plain(arena: &Arena, copy: u64, from: u32, seeds: std::ops::Range<u64>, sequence: u64) -> StoreOp {
    let count = (seeds.end - seeds.start) as usize;
    let mut data = arena.take(count * BLOCK, Class::Client).unwrap();
    for (block, seed) in data.chunks_mut(BLOCK).zip(seeds) {
        block.chunks_mut(8).for_each(|to| to.copy_from_slice(&word(seed)));
    }
    let data = data.filled();
    let crcs = node_store::block_crcs(&data);
    let (at, known_good) = (range(from, count as u32), Stamp::default());
    StoreOp::Write { copy: CopyId(copy), stamp: stamp(sequence), at, data, crcs, known_good, durable: true }
}

fn mark(copy: u64) -> StoreOp {
    let mark = FillMark { base: stamp(copy), cursor: Blocks(16 * copy as u32), upto: stamp(copy + 2) };
    StoreOp::Mark { copy: CopyId(copy), mark, known_good: None }
}

/// A configuration that knows its volume.
fn carded() -> conductor_model::Configuration {
    let (size, created) = (Bytes(u64::from(BLOCKS) * BLOCK as u64), conductor_model::Millis(7));
    let card = VolumeCard {
        version: conductor_model::Commit(5),
        name: "db".to_owned(),
        size,
        shard_size: size,
        copies: 3,
        created,
        parent: None,
        snapshots: vec![SnapshotCard { id: SnapshotId(6), name: "before".to_owned(), size, created }],
        more: false,
    };
    conductor_model::Configuration { card: Some(Box::new(card)), ..config(1, BLOCKS) }
}

/// A copy with a snapshot and a clone of it; whole chunks, single blocks and a mark, folded; a discard, a write and a mark in the journal.
fn make(arena: &Arena) -> Disk {
    let geometry = journaled_geometry(620, 256, 200, 4);
    let mut disk = Disk::new(geometry.size().0 as usize, 3);
    Journaled::format(&mut disk, arena, geometry).unwrap();
    let mut store = open_engine::<Journaled>(&mut disk, arena).unwrap();
    let parent = Some(Parent { copy: CopyId(1), snapshot: SnapshotId(6) });
    let create = |copy, parent| {
        let config = if copy == 1 { carded() } else { config(1, BLOCKS) };
        StoreOp::Create { copy: CopyId(copy), config, parent }
    };
    run(&mut store, &mut disk, create(1, None)).unwrap();
    run(&mut store, &mut disk, plain(arena, 1, 14, 1..20, 1)).unwrap();
    let (copy, snapshot, known_good) = (CopyId(1), SnapshotId(6), Stamp::default());
    run(&mut store, &mut disk, StoreOp::Snapshot { copy, stamp: stamp(2), snapshot, known_good }).unwrap();
    run(&mut store, &mut disk, create(2, parent)).unwrap();
    run(&mut store, &mut disk, plain(arena, 2, 20, 30..32, 3)).unwrap();
    run(&mut store, &mut disk, mark(2)).unwrap();
    quiesce_at(NOW + Span::millis(5000), &mut store, &mut disk);
    run(&mut store, &mut disk, plain(arena, 1, 15, 40..42, 4)).unwrap();
    let known_good = stamp(2);
    run(&mut store, &mut disk, StoreOp::Zero { copy, stamp: stamp(5), at: range(30, 20), known_good, durable: true })
        .unwrap();
    run(&mut store, &mut disk, mark(1)).unwrap();
    disk
}

/// What each block of each view holds: the seed of its words, 0 for zeros.
fn expected() -> BTreeMap<(u64, Option<u64>), Vec<u64>> {
    let snapshot: Vec<u64> = (0..u64::from(BLOCKS)).map(|n| if (14..33).contains(&n) { n - 13 } else { 0 }).collect();
    let (mut live, mut clone) = (snapshot.clone(), snapshot.clone());
    (live[15], live[16]) = (40, 41);
    live[30..50].fill(0);
    (clone[20], clone[21]) = (30, 31);
    [((1, Some(6)), snapshot), ((1, None), live), ((2, None), clone)].into()
}

/// Lines `block n`, `block n = m` (the same as an earlier one), and within a block `byte word × count`, hexadecimal.
fn text(image: &[u8]) -> String {
    let mut text = format!("format {FORMAT_VERSION}\nblocks {:x}\n", image.len() / BLOCK);
    let mut seen: BTreeMap<&[u8], usize> = BTreeMap::new();
    for (n, block) in image.chunks(BLOCK).enumerate().filter(|(_, block)| block.iter().any(|byte| *byte != 0)) {
        if let Some(first) = seen.get(block) {
            writeln!(text, "block {n:x} = {first:x}").unwrap();
            continue;
        }
        seen.insert(block, n);
        writeln!(text, "block {n:x}").unwrap();
        let words: Vec<u64> = block.chunks(8).map(|word| u64::from_be_bytes(word.try_into().unwrap())).collect();
        let mut at = 0;
        while at < words.len() {
            let count = words[at..].iter().take_while(|word| **word == words[at]).count();
            if words[at] != 0 {
                let times = if count == 1 { String::new() } else { format!(" {count:x}") };
                writeln!(text, "{:x} {:x}{times}", at * 8, words[at]).unwrap();
            }
            at += count;
        }
    }
    text
}

fn image(text: &str) -> Vec<u8> {
    let hex = |word: &str| usize::from_str_radix(word, 16).unwrap();
    let (mut image, mut block) = (vec![], 0);
    for line in text.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        match words[..] {
            ["format", _] => {}
            ["blocks", n] => image = vec![0; hex(n) * BLOCK],
            ["block", n] => block = hex(n) * BLOCK,
            ["block", n, "=", first] => {
                let first = hex(first) * BLOCK;
                image.copy_within(first..first + BLOCK, hex(n) * BLOCK);
            }
            [at, word, ..] => {
                let count = words.get(2).map_or(1, |count| hex(count));
                let bytes = u64::from_str_radix(word, 16).unwrap().to_be_bytes();
                image[block + hex(at)..].chunks_mut(8).take(count).for_each(|to| to.copy_from_slice(&bytes));
            }
            _ => panic!("{line}"),
        }
    }
    image
}

#[test]
fn the_image_of_this_version_opens_and_reads_as_it_was_written() {
    let arena = Arena::small(32 << 20);
    assert!(IMAGE.starts_with(&format!("format {FORMAT_VERSION}\n")), "make an image of the new version: see the head");
    let bytes = image(IMAGE);
    let options = CheckOptions { disk: DISK, size: Bytes(bytes.len() as u64), journal: None, depth: Depth::Data };
    let mut look = |_: DiskIndex, at: u64, into: &mut [u8]| {
        into.copy_from_slice(&bytes[at as usize..][..into.len()]);
        true
    };
    assert_eq!(check(&options, &arena, &mut look, &mut |_| ()).findings, []);
    let mut disk = Disk::from_image(bytes);
    let mut store = open_engine::<Journaled>(&mut disk, &arena).unwrap();
    assert_eq!(store.copies(), [(CopyId(1), carded()), (CopyId(2), config(1, BLOCKS))]);
    assert_eq!(store.snapshots(CopyId(1)), [SnapshotId(6)]);
    for copy in [1, 2] {
        let StoreOp::Mark { mark, .. } = mark(copy) else { panic!("a mark") };
        assert_eq!(store.fill_mark(CopyId(copy)), mark);
    }
    match run(&mut store, &mut disk, StoreOp::Above { copy: CopyId(1) }).unwrap() {
        StoreDone::Above { known_good, held } => {
            assert_eq!(known_good, stamp(2));
            assert_eq!(
                held.iter().map(|held| (held.stamp, held.at)).collect::<Vec<_>>(),
                [(stamp(4), range(15, 2)), (stamp(5), range(30, 20))]
            );
        }
        other => panic!("{other:?}"),
    }
    for ((copy, snapshot), seeds) in expected() {
        let view = snapshot.map_or(View::Live, |name| View::Snapshot(SnapshotId(name)));
        let into = arena.take(BLOCKS as usize * BLOCK, Class::Client).unwrap();
        let read = StoreOp::Read { copy: CopyId(copy), view, at: range(0, BLOCKS), into };
        let StoreDone::Read(bytes, _) = run(&mut store, &mut disk, read).unwrap() else { panic!("a read") };
        for (n, (block, seed)) in bytes.chunks(BLOCK).zip(seeds).enumerate() {
            assert!(block.chunks(8).all(|found| found == word(seed)), "block {n} of copy {copy}, {view:?}");
        }
    }
}

#[test]
fn a_store_of_the_version_before_is_refused_by_its_number() {
    let mut bytes = image(IMAGE);
    for at in [0, 8 * BLOCK] {
        bytes[at + 8..at + 12].copy_from_slice(&(FORMAT_VERSION - 1).to_le_bytes());
        let crc = crc32c::crc32c(&bytes[at + 8..at + BLOCK]);
        bytes[at + 4..at + 8].copy_from_slice(&crc.to_le_bytes());
    }
    let refused = open_engine::<Journaled>(&mut Disk::from_image(bytes), &Arena::small(32 << 20)).unwrap_err();
    assert_eq!(refused, OpenError::Version(FORMAT_VERSION - 1));
    assert_eq!(refused.to_string(), "the store has format version 3, which this program does not know");
}

#[test]
fn the_same_operations_give_the_same_bytes() {
    let arena = Arena::small(32 << 20);
    let (made, golden) = (make(&arena).visible, image(IMAGE));
    assert_eq!(made.len(), golden.len());
    let differ = (0..made.len() / BLOCK).find(|n| made[n * BLOCK..][..BLOCK] != golden[n * BLOCK..][..BLOCK]);
    let of = |image: &[u8], n: usize| text(&image[n * BLOCK..][..BLOCK]);
    if let Some(n) = differ {
        panic!("block {n:x} is now\n{}and was\n{}", of(&made, n), of(&golden, n));
    }
    assert_eq!(image(&text(&made)), made, "the text tells all of it");
}

#[test]
#[ignore = "writes the image of a new format version: make golden"]
fn write_the_golden_image() {
    let path = format!("{}/tests/golden/v{FORMAT_VERSION}.txt", env!("CARGO_MANIFEST_DIR"));
    std::fs::write(path, text(&make(&Arena::small(32 << 20)).visible)).unwrap();
}
