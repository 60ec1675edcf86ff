//! What the offline tools say of disks that a test made.
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation)] // a test: small numbers, and a panic is its way to fail

use conductor_model::{
    AttachGeneration, BLOCK, BlockRange, Blocks, Bytes, Configuration, CopyId, CopyState, DiskId, Durability, Epoch,
    Member, NodeId, OpenId, Sequence, ShardId, ShardIndex, Stamp, VolumeId,
};
use driver::{DiskIndex, Done, Op, Time};
use memory::{Arena, Class};
use node_daemon::offline::{Difference, Offline, OfflineError};
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
    let mut offline = Offline::open(&paths(&disks)).unwrap();
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
    let compared = Offline::open(&paths(&disks)).unwrap().compare(&mut |_| ()).unwrap();
    assert!(!compared[0].is_equal());
    assert_eq!((compared[0].different, compared[0].blocks), (2, 80));
    assert_eq!(compared[0].first, Some(Difference::Content { block: Blocks(310), disks: (0, 2) }));
}

#[test]
fn a_damaged_block_is_found_by_compare_and_by_check_and_all_others_are_still_looked_at() {
    let dir = Dir::new();
    let disks = three_copies(&dir);
    let paths = paths(&disks);
    rot(&paths[1], 2); // the first block of the second write: block 300
    let mut offline = Offline::open(&paths).unwrap();
    let compared = offline.compare(&mut |_| ()).unwrap();
    assert_eq!((compared[0].different, compared[0].blocks), (1, 80));
    assert_eq!(compared[0].first, Some(Difference::Damaged { block: Blocks(300), disk: 1 }));
    let mut done = 0;
    let checked = offline.check(&mut |blocks| done += blocks).unwrap();
    let counts: Vec<_> = checked.iter().map(|c| (c.disk, c.good, c.damaged, c.first_damaged)).collect();
    assert_eq!(counts, [(0, 80, 0, None), (1, 79, 1, Some(Blocks(300))), (2, 80, 0, None)]);
    assert_eq!(done, 240);
}

#[test]
fn content_tells_whose_a_disk_is_and_what_it_holds() {
    let dir = Dir::new();
    let disks = three_copies(&dir);
    let mut offline = Offline::open(&paths(&disks)[..1]).unwrap();
    let content = offline.content(0).unwrap();
    assert_eq!((content.identity.cluster, content.identity.node), (7, NodeId(1)));
    assert_eq!((content.usage.used, content.copies.len()), (Blocks(80), 1));
    let copy = &content.copies[0];
    assert_eq!((copy.held, copy.above, copy.known_good), (Blocks(80), 4, Stamp::default()));
    assert!(offline.compare(&mut |_| ()).unwrap().is_empty(), "one disk has nothing to be compared with");
}

#[test]
fn a_disk_in_use_and_a_file_that_is_no_store_are_refused_in_one_sentence() {
    let dir = Dir::new();
    let disks = three_copies(&dir);
    let paths = paths(&disks);
    let held = Offline::open(&paths[..1]).unwrap();
    let refused = Offline::open(&paths).unwrap_err().to_string();
    assert!(refused.contains("in use") && refused.contains("disk1") && !refused.contains('\n'), "{refused}");
    drop(held);
    Offline::open(&paths).unwrap();
    let other = dir.0.join("other");
    File::create(&other).unwrap().set_len(SIZE).unwrap();
    let refused = Offline::open(&[paths[0].clone(), other]).unwrap_err();
    assert!(matches!(refused, OfflineError::Open { .. }) && refused.to_string().contains("no store"), "{refused}");
    assert!(matches!(Offline::open(&[]), Err(OfflineError::HowMany)));
}
