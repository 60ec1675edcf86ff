//! What the offline tools say of disks that a test made.
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation)] // a test: small numbers, and a panic is its way to fail

use conductor_model::{
    AttachGeneration, BLOCK, BlockRange, Blocks, Bytes, Configuration, CopyId, CopyState, DiskId, Durability, Epoch,
    Member, NodeId, OpenId, Sequence, ShardId, ShardIndex, SnapshotId, Stamp, VolumeId,
};
use driver::{DiskIndex, Done, Op, Time};
use memory::{Arena, Class};
use node_daemon::offline::check::{Depth, Part, Report, Severity};
use node_daemon::offline::{Difference, Journals, Offline, OfflineError, View, inspect};
use node_store::journaled::{Format, FormatOptions, Geometry, JournaledStore, Opening, Tuning};
use node_store::{Identity, OpenOptions, Store, StoreOp, Tag, block_crcs};
use std::cell::RefCell;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

const SIZE: u64 = 64 << 20;
const NOW: Time = Time(1);

struct Dir(PathBuf);

impl Dir {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("trine-offline-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir(&path).unwrap();
        Self(path)
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A disk file that executes operations at once.
struct Disk {
    path: PathBuf,
    file: File,
    arena: Arena,
    waiting: RefCell<Vec<Op>>,
}

impl Disk {
    fn format(dir: &Dir, node: u32) -> (Self, JournaledStore) {
        let path = dir.0.join(format!("disk{node}"));
        let file = File::options().read(true).write(true).create(true).truncate(false).open(&path).unwrap();
        file.set_len(SIZE).unwrap();
        let disk = Self { path, file, arena: Arena::small(8 << 20), waiting: RefCell::default() };
        let identity = Identity { cluster: 7, node: NodeId(node), disk: DiskId(u64::from(node)) };
        let geometry = Geometry::of_disk(Bytes(SIZE)).unwrap();
        let options = FormatOptions { disk: DiskIndex(0), journal: None, identity, geometry, overwrite: false };
        let mut format = Format::start(options, &disk.arena, &mut |op| disk.submit(op)).unwrap();
        while format.done(disk.step().unwrap(), &mut |op| disk.submit(op)).is_none() {}
        let store = disk.open();
        (disk, store)
    }

    fn open(&self) -> JournaledStore {
        let options = OpenOptions { disk: DiskIndex(0), size: Bytes(SIZE), cluster: None, node: None };
        let mut opening = Opening::start(options, Tuning::default(), &self.arena, &mut |op| self.submit(op)).unwrap();
        loop {
            if let Some(store) = opening.done(NOW, self.step().unwrap(), &mut |op| self.submit(op)) {
                return store.unwrap();
            }
        }
    }

    fn submit(&self, op: Op) {
        self.waiting.borrow_mut().push(op);
    }

    fn step(&self) -> Option<Done> {
        let mut op = self.waiting.borrow_mut().pop()?;
        let result = match &mut op {
            Op::DiskRead { at, into, from, len, .. } => {
                self.file.read_exact_at(&mut into[*from..*from + *len], *at).unwrap();
                *len as u32
            }
            Op::DiskWrite { at, parts, .. } => {
                let bytes: Vec<u8> = parts.iter().flat_map(|p| &p.mem[p.from..p.from + p.len]).copied().collect();
                self.file.write_all_at(&bytes, *at).unwrap();
                bytes.len() as u32
            }
            _ => 0,
        };
        Some(Done { op, result: Ok(result) })
    }

    fn run(&self, store: &mut JournaledStore, op: StoreOp) {
        store.submit(NOW, Tag(1), op, &mut |op| self.submit(op));
        loop {
            store.end_turn(NOW, &mut |op| self.submit(op));
            if let Some((_, result)) = store.next_completion() {
                result.unwrap();
                return;
            }
            store.done(NOW, self.step().unwrap(), &mut |op| self.submit(op));
        }
    }

    fn write(&self, store: &mut JournaledStore, copy: u64, sequence: u64, from: u32, bytes: &[u8]) {
        let mut data = self.arena.take(bytes.len(), Class::Client).unwrap();
        data.copy_from_slice(bytes);
        let at = BlockRange { from: Blocks(from), count: Blocks((bytes.len() / BLOCK) as u32) };
        let stamp = Stamp { epoch: Epoch(1), sequence: Sequence(sequence) };
        let (copy, crcs, data) = (CopyId(copy), block_crcs(bytes), data.filled());
        self.run(store, StoreOp::Write { copy, stamp, at, data, crcs, known_good: Stamp::default(), durable: true });
    }
}

fn config(shard: u32, copies: &[u64]) -> Configuration {
    let member = |copy: &u64| Member {
        copy: CopyId(*copy),
        node: NodeId(1),
        disk: DiskId(1),
        open: OpenId(1),
        state: CopyState::InSync,
        since: conductor_model::Epoch(0),
        past: false,
        endpoint: ([127, 0, 0, 1], 1).into(),
    };
    Configuration {
        shard: ShardId { volume: VolumeId(1), index: ShardIndex(shard) },
        epoch: Epoch(1),
        primary: CopyId(copies[0]),
        members: copies.iter().map(member).collect(),
        full_set: copies.iter().map(|copy| CopyId(*copy)).collect(),
        min_copies: 2,
        attach: AttachGeneration(1),
        size: Bytes(16 << 20),
        born: true,
        durability: Durability::Always,
        cache: conductor_model::Commit(0),
        card: None,
        parent: None,
    }
}

/// Three disks with a copy each of shard 0, all written the same.
fn three_copies(dir: &Dir) -> Vec<(Disk, JournaledStore)> {
    (1..=3)
        .map(|node| {
            let (disk, mut store) = Disk::format(dir, node);
            let copy = u64::from(node);
            disk.run(&mut store, StoreOp::Create { copy: CopyId(copy), config: config(0, &[1, 2, 3]), parent: None });
            for n in 0..4u8 {
                disk.write(&mut store, copy, u64::from(n) + 1, u32::from(n) * 300, &vec![n + 1; 20 * BLOCK]);
            }
            (disk, store)
        })
        .collect()
}

fn paths(disks: &[(Disk, JournaledStore)]) -> Vec<PathBuf> {
    disks.iter().map(|(disk, _)| disk.path.clone()).collect()
}

/// What an inspection says, which leaves every byte as it was.
fn looked_at(path: &Path, depth: Depth) -> Report {
    let before = std::fs::read(path).unwrap();
    let report = inspect(path, &mut Journals(&[]), depth, &mut |_| ()).unwrap();
    assert!(std::fs::read(path).unwrap() == before, "it was written to");
    report
}

/// Change a byte.
fn flip(path: &Path, at: u64) {
    let file = File::options().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 4], at).unwrap();
}

/// Overwrite a block on the disk behind its store's back.
fn rot(path: &Path, content: u8) {
    let file = File::options().read(true).write(true).open(path).unwrap();
    let mut bytes = vec![0; SIZE as usize];
    file.read_exact_at(&mut bytes, 0).unwrap();
    let at = bytes.chunks(BLOCK).position(|block| block.iter().all(|byte| *byte == content)).unwrap();
    file.write_all_at(&[content ^ 0x80], (at * BLOCK + 77) as u64).unwrap();
}

#[test]
fn equal_copies_are_equal_and_every_held_block_was_compared() {
    let dir = Dir::new();
    let mut disks = three_copies(&dir);
    // Zeros that were written and blocks never written read the same.
    let (disk, store) = &mut disks[1];
    disk.write(store, 2, 9, 2000, &[0; BLOCK]);
    let mut offline = Offline::open(&paths(&disks), &mut Journals(&[])).unwrap();
    let mut done = 0;
    let compared = offline.compare(&mut |blocks| done += blocks).unwrap();
    assert_eq!(compared.len(), 1);
    assert!(compared[0].is_equal());
    assert_eq!((compared[0].copies.len(), compared[0].members, compared[0].blocks, done), (3, 3, 81, 81));
}

#[test]
fn a_block_that_differs_is_named_with_its_disks() {
    let dir = Dir::new();
    let mut disks = three_copies(&dir);
    let (disk, store) = &mut disks[2];
    disk.write(store, 3, 9, 310, &[0xEE; 2 * BLOCK]);
    let compared = Offline::open(&paths(&disks), &mut Journals(&[])).unwrap().compare(&mut |_| ()).unwrap();
    assert!(!compared[0].is_equal());
    assert_eq!((compared[0].different, compared[0].blocks), (2, 80));
    assert_eq!(compared[0].first, Some(Difference::Content { block: Blocks(310), disks: (0, 2) }));
}

#[test]
fn snapshots_that_several_have_are_compared_and_holes_are_zeros() {
    let dir = Dir::new();
    let mut disks = three_copies(&dir);
    for (n, (disk, store)) in (1..).zip(&mut disks) {
        let stamp = Stamp { epoch: Epoch(1), sequence: Sequence(10) };
        let snapshot = |name| StoreOp::Snapshot {
            copy: CopyId(n),
            stamp,
            snapshot: SnapshotId(name),
            known_good: Stamp::default(),
        };
        // Zeros in the snapshot of one, holes in those of the others.
        if n == 1 {
            disk.write(store, n, 9, 1000, &[0; 4 * BLOCK]);
        }
        disk.run(store, snapshot(1));
        disk.write(store, n, 11, 0, &[0x55; 2 * BLOCK]);
        if n < 3 {
            if n == 2 {
                disk.write(store, n, 12, 5, &[0x66; BLOCK]);
            }
            disk.run(store, snapshot(2));
            disk.write(store, n, 13, 5, &[0x77; BLOCK]);
        } else {
            disk.write(store, n, 13, 5, &[0x77; BLOCK]);
        }
    }
    let compared = Offline::open(&paths(&disks), &mut Journals(&[])).unwrap().compare(&mut |_| ()).unwrap();
    let of = |view| compared.iter().find(|compared| compared.view == view).unwrap();
    assert_eq!(compared.len(), 3);
    assert!(of(View::Live).is_equal());
    let first = of(View::Snapshot(SnapshotId(1)));
    assert_eq!((first.copies.len(), first.different, first.blocks), (3, 0, 84));
    let second = of(View::Snapshot(SnapshotId(2)));
    assert_eq!((second.copies.len(), second.different), (2, 1));
    assert_eq!(second.first, Some(Difference::Content { block: Blocks(5), disks: (0, 1) }));
}

#[test]
fn a_damaged_block_is_found_by_compare_and_by_a_check_of_data_and_all_others_are_still_looked_at() {
    let dir = Dir::new();
    let disks = three_copies(&dir);
    let paths = paths(&disks);
    rot(&paths[1], 2); // the first block of the second write: block 300
    // Blocks 300 to 303 are in the journal, as an edge of the write.
    let report = looked_at(&paths[1], Depth::Data);
    let found: Vec<_> = report.findings.iter().map(|found| (found.part, found.severity, found.by_scrub)).collect();
    assert_eq!(found, [(Part::Journal, Severity::Error, true)], "{:?}", report.findings);
    for path in [&paths[0], &paths[2]] {
        assert_eq!(looked_at(path, Depth::Data).findings, []);
    }
    let compared = Offline::open(&paths, &mut Journals(&[])).unwrap().compare(&mut |_| ()).unwrap();
    assert_eq!((compared[0].different, compared[0].blocks), (1, 80));
    assert_eq!(compared[0].first, Some(Difference::Damaged { block: Blocks(300), disk: 1 }));
    // Block 0: in a chunk of its own, which the journal has nothing of.
    let bytes = std::fs::read(&paths[0]).unwrap();
    let chunk = bytes.chunks(16 * BLOCK).position(|chunk| chunk.iter().all(|byte| *byte == 1)).unwrap();
    flip(&paths[0], (chunk * 16 * BLOCK) as u64 + 77);
    assert_eq!(looked_at(&paths[0], Depth::Structure).findings, []);
    let report = looked_at(&paths[0], Depth::Data);
    assert_eq!((report.findings.len(), report.totals.blocks), (1, 80));
    let found = &report.findings[0];
    assert!(found.part == Part::Block && found.by_scrub && found.at.starts_with("0 of copy"), "{found}");
}

#[test]
fn what_is_in_the_store_is_told_and_as_much_as_can_be_of_a_damaged_one() {
    let dir = Dir::new();
    let disks = three_copies(&dir);
    let path = &paths(&disks)[0];
    let whole = looked_at(path, Depth::Catalog);
    let content = &whole.content;
    assert!(whole.is_good());
    assert_eq!(content.identity.map(|identity| (identity.cluster, identity.node)), Some((7, NodeId(1))));
    assert_eq!((content.copies.len(), content.layers.len()), (1, 1));
    let copy = &content.copies[0];
    assert_eq!((copy.held.len(), copy.known_good, copy.live), (4, Stamp::default(), content.layers[0].layer));
    assert_eq!(content.usage.map(|usage| usage.copies), Some(1));
    assert!(content.journal.records > 4 && content.journal.head.is_some());
    // One superblock is enough.
    flip(path, 100);
    let damaged = looked_at(path, Depth::Data);
    assert_eq!(
        damaged.findings.iter().map(|found| (found.part, found.severity)).collect::<Vec<_>>(),
        [(Part::Superblock, Severity::Notice)]
    );
    assert_eq!(damaged.content.copies, content.copies);
    // None is too few, and is said so.
    flip(path, 8 * BLOCK as u64 + 100);
    let gone = looked_at(path, Depth::Data);
    assert_eq!((gone.findings.len(), gone.findings[0].severity, gone.content.identity), (2, Severity::Fatal, None));
}

#[test]
fn a_disk_in_use_and_a_file_that_is_no_store_are_refused_in_one_sentence() {
    let dir = Dir::new();
    let disks = three_copies(&dir);
    let paths = paths(&disks);
    let held = Offline::open(&paths[..1], &mut Journals(&[])).unwrap();
    let refused = Offline::open(&paths, &mut Journals(&[])).unwrap_err().to_string();
    assert!(refused.contains("in use") && refused.contains("disk1") && !refused.contains('\n'), "{refused}");
    let refused = inspect(&paths[0], &mut Journals(&[]), Depth::Catalog, &mut |_| ()).unwrap_err().to_string();
    assert!(refused.contains("in use"), "{refused}");
    drop(held);
    Offline::open(&paths, &mut Journals(&[])).unwrap();
    let other = dir.0.join("other");
    File::create(&other).unwrap().set_len(SIZE).unwrap();
    let refused = Offline::open(&[paths[0].clone(), other], &mut Journals(&[])).unwrap_err();
    assert!(matches!(refused, OfflineError::Open { .. }) && refused.to_string().contains("no store"), "{refused}");
    assert!(matches!(Offline::open(&[], &mut Journals(&[])), Err(OfflineError::HowMany)));
}
