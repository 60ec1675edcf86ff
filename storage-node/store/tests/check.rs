//! The offline check: silent about what the engine left, and never silent about damage that a reader would meet. Never a panic.
#![allow(clippy::cast_possible_truncation, clippy::unwrap_used)] // a test: small numbers, and a panic is its way to fail

mod disk;

use conductor_model::{BLOCK, Bytes, CopyId, SnapshotId, Stamp};
use disk::*;
use driver::{DiskIndex, Span};
use memory::{Arena, Class};
use node_store::journaled::check::{CheckOptions, Depth, Part, Report, Severity, check};
use node_store::{Parent, Store, StoreDone, StoreError, StoreOp, View};

const BLOCKS: u32 = 160;
/// Damages of the whole image, and of its metadata.
const ROUNDS: u32 = 2_400;

fn snapshot(copy: u64, name: u64, sequence: u64) -> StoreOp {
    let (stamp, known_good) = (stamp(sequence), Stamp::default());
    StoreOp::Snapshot { copy: CopyId(copy), stamp, snapshot: SnapshotId(name), known_good }
}

/// Two copies, one a clone of the other's snapshot, with all kinds of changes, folded and in the journal.
fn written(arena: &Arena) -> Disk {
    let geometry = journaled_geometry(620, 256, 1200, 4);
    let mut disk = Disk::new(geometry.size().0 as usize, 7);
    Journaled::format(&mut disk, arena, geometry).unwrap();
    let mut store = open_engine::<Journaled>(&mut disk, arena).unwrap();
    let source = Parent { copy: CopyId(1), snapshot: SnapshotId(1) };
    let create = |copy, parent| StoreOp::Create { copy: CopyId(copy), config: config(1, BLOCKS), parent };
    let zero = StoreOp::Zero {
        copy: CopyId(1),
        stamp: stamp(5),
        at: range(30, 40),
        known_good: Stamp::default(),
        durable: true,
    };
    let share = StoreOp::Share {
        copy: CopyId(2),
        stamp: stamp(8),
        at: range(20, 50),
        from: source,
        known_good: Stamp::default(),
    };
    let steps = [
        create(1, None),
        write(arena, 1, range(3, 90), 1, 100),
        snapshot(1, 1, 2),
        write(arena, 1, range(10, 5), 3, 300),
        snapshot(1, 2, 4),
        zero,
        create(2, Some(source)),
        write(arena, 2, range(32, 16), 7, 400),
        share,
        StoreOp::DropSnapshot { copy: CopyId(1), snapshot: SnapshotId(2) },
    ];
    for (n, op) in steps.into_iter().enumerate() {
        run(&mut store, &mut disk, op).unwrap();
        if n % 3 == 2 {
            quiesce_at(NOW + Span::millis(5000), &mut store, &mut disk);
        }
    }
    quiesce_at(NOW + Span::millis(5000), &mut store, &mut disk);
    run(&mut store, &mut disk, write(arena, 1, range(0, 21), 9, 500)).unwrap();
    run(&mut store, &mut disk, write(arena, 2, range(100, 3), 10, 600)).unwrap();
    disk
}

fn look(image: &[u8], depth: Depth, arena: &Arena) -> Report {
    let options = CheckOptions { disk: DISK, size: Bytes(image.len() as u64), journal: None, depth };
    let mut read = |disk: DiskIndex, at: u64, into: &mut [u8]| {
        assert_eq!(disk, DISK);
        let bytes = usize::try_from(at).ok().and_then(|at| image.get(at..)?.get(..into.len()));
        bytes.map(|bytes| into.copy_from_slice(bytes)).is_some()
    };
    check(&options, arena, &mut read, &mut |_| ())
}

/// Opens the image and reads all of every view: how many blocks are damaged, or why it cannot be opened.
fn reads(image: &[u8], arena: &Arena) -> Result<u32, String> {
    let mut disk = Disk::from_image(image.to_vec());
    let mut store = open_engine::<Journaled>(&mut disk, arena).map_err(|error| error.to_string())?;
    let mut damaged = 0;
    for (copy, _) in store.copies() {
        let names = store.snapshots(copy).into_iter().map(View::Snapshot);
        for view in names.chain([View::Live]).collect::<Vec<_>>() {
            for block in 0..BLOCKS {
                let into = arena.take(BLOCK, Class::Client).unwrap();
                match run(&mut store, &mut disk, StoreOp::Read { copy, view, at: range(block, 1), into }) {
                    Ok(StoreDone::Read(..)) => {}
                    Err(StoreError::Corrupt { .. }) => damaged += 1,
                    other => panic!("{other:?}"),
                }
            }
        }
    }
    Ok(damaged)
}

#[test]
fn nothing_is_found_in_what_the_engine_left_and_all_of_it_is_told() {
    let arena = Arena::small(32 << 20);
    let disk = written(&arena);
    let report = look(&disk.visible, Depth::Data, &arena);
    assert_eq!(report.findings, []);
    assert!(report.totals.pages > 5 && report.totals.entries > 10 && report.totals.blocks > 90, "{:?}", report.totals);
    let content = &report.content;
    assert_eq!(content.copies.iter().map(|copy| copy.copy.0).collect::<Vec<_>>(), [1, 2]);
    assert_eq!(content.layers.iter().filter_map(|layer| layer.snapshot).collect::<Vec<_>>(), [SnapshotId(1)]);
    assert_eq!((content.journal.records, content.superblocks.len()), (3, 2));
    let mut disk = disk;
    let store = open_engine::<Journaled>(&mut disk, &arena).unwrap();
    assert_eq!(content.usage.map(|usage| usage.used), Some(store.usage().used));
    assert_eq!(reads(&disk.visible, &arena), Ok(0));
}

#[test]
fn whatever_is_damaged_it_ends_and_what_a_reader_would_meet_is_found() {
    let arena = Arena::small(32 << 20);
    let mut image = written(&arena).visible;
    let used: Vec<usize> =
        (0..image.len() / BLOCK).filter(|n| image[n * BLOCK..][..BLOCK].iter().any(|b| *b != 0)).collect();
    let mut random = Random(4711);
    let (mut found, mut opened, mut refused, mut corrupt) = (0, 0, 0, 0);
    for round in 0..ROUNDS {
        let mut before: Vec<(usize, Vec<u8>)> = vec![];
        let mut len = image.len();
        for _ in 0..1 + random.below(4) {
            let block = used[random.below(used.len() as u64) as usize] * BLOCK;
            before.push((block, image[block..][..BLOCK].to_vec()));
            match random.below(8) {
                0 => len = random.below(image.len() as u64) as usize,
                1 => image[block..][..BLOCK].fill(0),
                2 => {
                    // A block that is whole, and another's.
                    let other = used[random.below(used.len() as u64) as usize] * BLOCK;
                    image.copy_within(other..other + BLOCK, block);
                }
                3 => image[block + random.below(200) as usize] = random.next() as u8,
                _ => image[block + random.below(BLOCK as u64) as usize] ^= 1 << random.below(8),
            }
        }
        let report = look(&image[..len], Depth::Data, &arena);
        found += u32::from(!report.is_good());
        let fatal = report.findings.iter().any(|finding| finding.severity == Severity::Fatal);
        if round % 12 == 0 && len == image.len() {
            match reads(&image, &arena) {
                Ok(damaged) => {
                    opened += 1;
                    corrupt += u32::from(damaged > 0);
                    assert!(damaged == 0 || !report.is_good(), "round {round}: {damaged} blocks are damaged, unseen");
                    assert!(!fatal, "round {round}: it opens: {:?}", report.findings);
                }
                Err(why) => {
                    refused += 1;
                    assert!(fatal, "round {round}: {why}, and only this was found: {:?}", report.findings);
                }
            }
        }
        for (block, bytes) in before.into_iter().rev() {
            image[block..][..BLOCK].copy_from_slice(&bytes);
        }
    }
    assert!(found > ROUNDS / 2 && opened > 20 && corrupt > 5, "{found} found, {opened} {refused} {corrupt}");
    assert_eq!(look(&image, Depth::Data, &arena).findings, [], "all was put back");
}

#[test]
fn a_bad_mirror_is_a_notice_and_two_are_an_error_that_hides_no_other() {
    let arena = Arena::small(32 << 20);
    let mut image = written(&arena).visible;
    let pages: Vec<usize> =
        (0..image.len() / BLOCK).filter(|n| image[n * BLOCK..].starts_with(b"TPG2")).map(|n| n * BLOCK).collect();
    let (mut single, mut double) = (0, 0);
    for &page in &pages {
        let same: Vec<usize> =
            pages.iter().copied().filter(|at| image[*at..][..BLOCK] == image[page..][..BLOCK]).collect();
        if same[0] != page || same.len() != 2 {
            continue; // a page without a mirror is an older one
        }
        image[same[0] + 40] ^= 1;
        let one = look(&image, Depth::Structure, &arena);
        assert!(one.findings.iter().all(|finding| finding.severity == Severity::Notice), "{:?}", one.findings);
        image[same[1] + 41] ^= 1;
        let both = look(&image, Depth::Structure, &arena);
        single += u32::from(!one.is_good());
        double += u32::from(
            both.findings
                .iter()
                .any(|finding| finding.severity > Severity::Notice && [Part::Page, Part::Map].contains(&finding.part)),
        );
        assert!(!both.findings.iter().any(|finding| finding.what.contains("leaked")), "{:?}", both.findings);
        image[same[0] + 40] ^= 1;
        image[same[1] + 41] ^= 1;
    }
    assert!(single > 5 && double > 5, "{single} {double} of {}", pages.len());
}
