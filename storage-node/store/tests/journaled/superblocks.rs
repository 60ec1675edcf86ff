//! The two superblocks: one is enough, whatever became of the other and whenever the power fails; and one of another disk's is none.

use super::disk::*;
use super::{create, fold};
use conductor_model::{BLOCK, DiskId};
use driver::{DiskIndex, Op};
use memory::Arena;
use node_store::journaled::check::{CheckOptions, Depth, Report, Severity, check};
use node_store::journaled::{FormatOptions, Geometry, JournaledStore, forget_foreign, identify};
use node_store::{Identity, OpenError};

const SUPERBLOCKS: [usize; 2] = [0, 8 * BLOCK];

fn geometry() -> Geometry {
    journaled_geometry(620, 340, 2000, 4)
}

/// A disk of that name with a copy, and so many folds behind it.
fn made(name: u64, folds: u64, arena: &Arena) -> Disk {
    let geometry = geometry();
    let mut disk = Disk::new(geometry.size().0 as usize, name);
    let identity = Identity { disk: DiskId(name), ..identity() };
    let options = FormatOptions { disk: DISK, journal: None, identity, geometry, overwrite: false };
    format_journaled(&mut disk, arena, options).unwrap();
    let mut store = open_engine::<Journaled>(&mut disk, arena).unwrap();
    create(&mut store, &mut disk, 1, None);
    for n in 0..folds {
        run(&mut store, &mut disk, write(arena, 1, range(5, 20), n + 1, name + n)).unwrap();
        fold(&mut store, &mut disk);
    }
    run(&mut store, &mut disk, write(arena, 1, range(100, 1), folds + 1, name)).unwrap();
    disk
}

fn holds(store: &mut JournaledStore, disk: &mut Disk, arena: &Arena, name: u64, folds: u64) {
    assert_eq!(read(store, disk, arena, 1, range(5, 1)).unwrap(), block_of(name + folds - 1));
    assert_eq!(read(store, disk, arena, 1, range(100, 1)).unwrap(), block_of(name));
}

fn look(image: &[u8], arena: &Arena) -> Report {
    let size = conductor_model::Bytes(image.len() as u64);
    let options = CheckOptions { disk: DISK, size, journal: None, depth: Depth::Data };
    check(&options, arena, &mut |_: DiskIndex, at, into| read_at(image, at, into), &mut |_| ())
}

fn read_at(image: &[u8], at: u64, into: &mut [u8]) -> bool {
    let bytes = image.get(at as usize..).and_then(|rest| rest.get(..into.len()));
    bytes.map(|bytes| into.copy_from_slice(bytes)).is_some()
}

#[test]
fn a_superblock_that_was_meant_for_another_disk_of_the_node_is_none() {
    let arena = Arena::small(32 << 20);
    for block in SUPERBLOCKS {
        // The other one's is newer, and older.
        for (folds, others) in [(2, 5), (5, 2)] {
            let (other, mut disk) = (made(0x1111, others, &arena), made(0x2222, folds, &arena));
            disk.visible[block..block + BLOCK].copy_from_slice(&other.visible[block..block + BLOCK]);
            let mut head = disk.visible[..16 * BLOCK].to_vec();
            forget_foreign(&mut head, &mut |at, into| read_at(&disk.visible, at, into));
            assert_eq!(identify(&head).unwrap().0.disk, DiskId(0x2222));
            let report = look(&disk.visible, &arena);
            assert_eq!(report.content.identity.unwrap().disk, DiskId(0x2222));
            assert!(report.findings.iter().all(|found| found.severity == Severity::Notice), "{:?}", report.findings);
            assert_eq!(report.findings.len(), 1);
            let mut disk = Disk::from_image(disk.visible);
            let mut store = open_engine::<Journaled>(&mut disk, &arena).unwrap();
            holds(&mut store, &mut disk, &arena, 0x2222, folds);
            assert!(look(&disk.visible, &arena).is_good(), "both are its own again");
        }
    }
}

#[test]
fn of_two_stores_superblocks_and_neithers_map_nothing_is_believed_and_nothing_written() {
    let arena = Arena::small(32 << 20);
    let (other, mut disk) = (made(0x1111, 3, &arena), made(0x2222, 2, &arena));
    disk.visible[..BLOCK].copy_from_slice(&other.visible[..BLOCK]);
    for page in disk.visible.chunks_exact_mut(BLOCK).filter(|page| page.starts_with(b"TPG2") && page[8] == 2) {
        page[100] ^= 1;
    }
    let before = disk.visible.clone();
    let mut disk = Disk::from_image(disk.visible);
    assert!(matches!(open_engine::<Journaled>(&mut disk, &arena), Err(OpenError::Damaged(_))));
    assert!(disk.visible == before);
    assert!(look(&before, &arena).findings.iter().any(|found| found.severity == Severity::Fatal));
}

#[test]
fn a_disk_that_cannot_be_opened_stays_what_it_was() {
    let arena = Arena::small(32 << 20);
    let mut image = made(0x2222, 2, &arena).visible;
    for page in image.chunks_exact_mut(BLOCK).filter(|page| page.starts_with(b"TPG2") && page[8] == 1) {
        page[100] ^= 1;
    }
    let mut disk = Disk::from_image(image.clone());
    assert!(matches!(open_engine::<Journaled>(&mut disk, &arena), Err(OpenError::Damaged(_))));
    assert!(disk.visible == image);
}

/// What is being written when the power fails may be neither what it was nor what it was to be.
#[test]
fn a_superblock_that_is_torn_while_the_other_one_is_bad_is_not_the_only_one() {
    let arena = Arena::small(32 << 20);
    let whole = made(0x2222, 2, &arena);
    for bad in [None, Some(0), Some(1)] {
        for unreadable in [false, true] {
            for torn in 0..2 {
                let mut disk = Disk::from_image(whole.visible.clone());
                if let Some(bad) = bad.map(|n| SUPERBLOCKS[n]) {
                    match unreadable {
                        true => disk.bad_sector = Some(bad + 700),
                        false => disk.visible[bad..bad + BLOCK].fill(0xa5),
                    }
                }
                // Opened as far as that one of the two is being written.
                let size = conductor_model::Bytes(disk.visible.len() as u64);
                let options = node_store::OpenOptions { disk: DISK, size, cluster: None, node: None };
                let mut opening = Journaled::start(options, &arena, &mut |op| disk.submit(op)).unwrap();
                let mut seen = 0;
                let place = loop {
                    let written = disk.inflight.iter().find_map(|(op, _)| match op {
                        Op::DiskWrite { at, .. } => Some(*at as usize).filter(|at| SUPERBLOCKS.contains(at)),
                        _ => None,
                    });
                    if let Some(at) = written {
                        if seen == torn {
                            break at;
                        }
                        seen += 1;
                    }
                    let done = disk.step().unwrap();
                    assert!(Journaled::go_on(&mut opening, done, &mut |op| disk.submit(op)).is_none());
                };
                let bad_sector = disk.bad_sector;
                let mut disk = Disk::from_image(disk.visible);
                disk.visible[place..place + BLOCK].fill(0x5a);
                disk.bad_sector = bad_sector;
                let mut store = open_engine::<Journaled>(&mut disk, &arena)
                    .unwrap_or_else(|error| panic!("{bad:?} was bad, {place} torn: {error}"));
                holds(&mut store, &mut disk, &arena, 0x2222, 2);
                assert!(look(&disk.visible, &arena).is_good());
            }
        }
    }
}
