//! A journal on a disk, and the model that says what a scan must find.

use super::super::limits::{MAX_RECORD_BLOCKS, MAX_UNREADABLE};
use super::super::scan::ScanCounts;
use super::super::{Appended, JournalBlock, Mark, Ring, RingPlace, Scan, ScanError};
use super::disk::{Disk, Random};
use conductor_model::{BLOCK, DiskId};
use driver::{DiskIndex, Time};
use memory::{Arena, Class, Part};

pub(super) const START: u64 = 3 * BLOCK as u64;

pub(super) fn place(blocks: u32) -> RingPlace {
    RingPlace { disk: DiskIndex(7), start: START, blocks, disk_id: DiskId(0xd15c), kind: 9 }
}

pub(super) fn arena() -> Arena {
    Arena::small(24 << 20)
}

/// What was appended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Record {
    pub(super) key: u64,
    pub(super) body: Vec<u8>,
    pub(super) crcs: Vec<u32>,
    pub(super) durable: bool,
}

/// What was found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Found {
    pub(super) key: u64,
    pub(super) body: Vec<u8>,
    pub(super) crcs: Vec<u32>,
    pub(super) payload: Option<JournalBlock>,
    pub(super) damaged: Vec<u16>,
}

/// The payload that belongs to a key: as a client that writes the same twice, some are equal.
pub(super) fn block_of(key: u64, n: usize) -> Vec<u8> {
    let mut block = vec![u8::try_from(key % 5).unwrap(); BLOCK];
    block[..8].copy_from_slice(&(key % 7 + n as u64).to_le_bytes());
    block
}

pub(super) struct Journal {
    pub(super) place: RingPlace,
    pub(super) arena: Arena,
    pub(super) disk: Disk,
    pub(super) ring: Ring,
    pub(super) now: Time,
    /// Where the superblock says the journal begins.
    pub(super) tail: Mark,
    /// All records behind the tail, in order; and of what is to come: barriers as well, without a body.
    pub(super) records: Vec<Record>,
    /// Of these, so many are reported as over…
    pub(super) over: usize,
    /// …and so many are promised to be stable.
    pub(super) stable: usize,
    pub(super) places: Vec<Option<JournalBlock>>,
    next_key: u64,
    next_boot: u64,
}

/// What a scan gave, and how it ended.
type Scanned = (Vec<Found>, Result<super::super::ScanEnd, ScanError>);

/// Scans what is on a disk.
pub(super) fn scan(disk: &mut Disk, place: RingPlace, tail: Mark, boot: u64, arena: &Arena) -> Scanned {
    scan_within(MAX_UNREADABLE, disk, place, tail, boot, arena)
}

/// The same, where so many blocks may give errors.
pub(super) fn scan_within(
    bound: u32,
    disk: &mut Disk,
    place: RingPlace,
    tail: Mark,
    boot: u64,
    arena: &Arena,
) -> Scanned {
    let mut found = Vec::new();
    let mut scan = match Scan::start(place, tail, boot, bound, arena, &mut |op| disk.submit(op)) {
        Ok(scan) => scan,
        Err(error) => return (found, Err(error)),
    };
    let mut random = Random::new(boot);
    loop {
        while let Some(record) = scan.next_record() {
            found.push(Found {
                key: u64::from_le_bytes(*record.body.first_chunk().unwrap()),
                body: record.body.to_vec(),
                crcs: record.crcs.to_vec(),
                payload: record.payload,
                damaged: record.damaged.to_vec(),
            });
        }
        if let Some(end) = scan.end() {
            assert!(disk.inflight.is_empty(), "a scan that is over waits for nothing");
            return (found, end);
        }
        let pick = random.below(disk.inflight.len() as u64) as usize;
        let done = disk.complete(pick);
        scan.done(done, &mut |op| disk.submit(op));
    }
}

impl Journal {
    pub(super) fn new(blocks: u32) -> Self {
        Self::on(Disk::new(START as usize + blocks as usize * BLOCK), place(blocks))
    }

    pub(super) fn on(mut disk: Disk, place: RingPlace) -> Self {
        let arena = arena();
        let (found, end) = scan(&mut disk, place, Mark::FIRST, 1, &arena);
        assert_eq!(found, []);
        let ring = Ring::new(place, end.unwrap().state, &arena).unwrap();
        Self {
            place,
            arena,
            disk,
            ring,
            now: Time(1),
            tail: Mark::FIRST,
            records: Vec::new(),
            over: 0,
            stable: 0,
            places: Vec::new(),
            next_key: 1,
            next_boot: 2,
        }
    }

    pub(super) fn append(&mut self, body: usize, blocks: usize, durable: bool) -> u64 {
        let key = self.next_key;
        self.next_key += 1;
        let mut bytes = key.to_le_bytes().to_vec();
        bytes.resize(body.max(8), u8::try_from(key % 251).unwrap());
        let mut crcs = Vec::new();
        let payload = (blocks > 0).then(|| {
            // A block before it that is not part of it, if the arena's largest piece has room for that.
            let before = if blocks < MAX_RECORD_BLOCKS as usize { BLOCK } else { 0 };
            let mut memory = self.arena.take(before + blocks * BLOCK, Class::Client).expect("the test has memory");
            memory[..before].fill(0xee);
            for (n, block) in memory[before..].chunks_mut(BLOCK).enumerate() {
                block.copy_from_slice(&block_of(key, n));
                crcs.push(crc32c::crc32c(block));
            }
            Part { mem: memory.filled(), from: before, len: blocks * BLOCK }
        });
        self.ring.append(key, &bytes, payload, &crcs, durable);
        self.records.push(Record { key, body: bytes, crcs, durable });
        self.places.push(None);
        key
    }

    pub(super) fn barrier(&mut self) -> u64 {
        let key = self.next_key;
        self.next_key += 1;
        self.ring.barrier(key);
        self.records.push(Record { key, body: Vec::new(), crcs: Vec::new(), durable: true });
        self.places.push(None);
        key
    }

    pub(super) fn turn(&mut self) {
        let disk = &mut self.disk;
        self.ring.end_turn(self.now, &mut |op| disk.submit(op));
        self.collect();
    }

    /// One operation of the disk completes; `None` if there is none.
    pub(super) fn complete(&mut self, pick: usize) -> Option<Result<(), driver::Errno>> {
        if self.disk.inflight.is_empty() {
            return None;
        }
        let done = self.disk.complete(pick % self.disk.inflight.len());
        let result = self.ring.done(done);
        self.collect();
        Some(result)
    }

    fn collect(&mut self) {
        while let Some(Appended { key, payload }) = self.ring.next_finished() {
            let record = &self.records[self.over];
            assert_eq!(key, record.key, "records are over in their order");
            assert_eq!(payload.is_some(), !record.crcs.is_empty());
            self.places[self.over] = payload;
            self.over += 1;
            if record.durable {
                self.stable = self.over;
            }
        }
    }

    /// Turns until nothing is in flight.
    pub(super) fn drain(&mut self) {
        self.turn();
        while let Some(result) = self.complete(0) {
            result.unwrap();
            self.turn();
        }
        assert!(self.ring.idle() || self.ring.stalled());
    }

    /// Lets it rest until it is sealed.
    pub(super) fn rest(&mut self) {
        self.drain();
        if let Some(deadline) = self.ring.next_deadline() {
            self.now = deadline;
            self.drain();
        }
    }

    /// The journal is trimmed to where it was when `mark` was taken, with so many records over.
    pub(super) fn trim(&mut self, mark: Mark, over: usize) {
        self.tail = mark;
        self.ring.trim(mark);
        self.records.drain(..over);
        self.places.drain(..over);
        self.over -= over;
        self.stable = self.stable.saturating_sub(over);
        self.collect();
    }

    /// Opens what a disk holds, and compares it with what it must hold: a prefix, with at least `promised` records. Gives their number.
    pub(super) fn check(&self, disk: &mut Disk, promised: usize, boot: u64) -> (usize, super::super::ScanEnd) {
        let arena = arena();
        let (found, end) = scan(disk, self.place, self.tail, boot, &arena);
        let end = end.unwrap_or_else(|error| panic!("{error}"));
        arena.leaks().unwrap();
        assert_eq!(end.counts, ScanCounts { damaged_blocks: 0, unreadable_blocks: 0, ..end.counts });
        let expected: Vec<&Record> = self.records.iter().filter(|record| !record.body.is_empty()).collect();
        assert!(found.len() <= expected.len(), "{} found of {}", found.len(), expected.len());
        let keys = |records: &mut dyn Iterator<Item = u64>| records.collect::<Vec<_>>();
        let (is, was) = (keys(&mut found.iter().map(|r| r.key)), keys(&mut expected.iter().map(|r| r.key)));
        assert_eq!(is, was[..is.len()], "with {promised} promised");
        for (found, expected) in found.iter().zip(&expected) {
            assert_eq!((found.key, &found.body, &found.crcs), (expected.key, &expected.body, &expected.crcs));
            for (n, crc) in found.crcs.iter().enumerate() {
                let first = found.payload.expect("it has payload");
                let at = self.place.position_bytes(JournalBlock(first.0 + u32::try_from(n).unwrap())) as usize;
                assert_eq!(crc32c::crc32c(&disk.visible[at..][..BLOCK]), *crc, "payload of {found:?}");
            }
        }
        let promised = self.records[..promised].iter().filter(|record| !record.body.is_empty()).count();
        assert!(found.len() >= promised, "{} found, {promised} promised", found.len());
        (found.len(), end)
    }

    /// Everything stops; the disk holds `disk`; opens again, and goes on there.
    pub(super) fn reopen(&mut self, mut disk: Disk, promised: usize) {
        let boot = self.next_boot;
        self.next_boot += 1;
        let (found, end) = self.check(&mut disk, promised, boot);
        self.disk = disk;
        self.arena = arena();
        self.ring = Ring::new(self.place, end.state, &self.arena).unwrap();
        self.records.retain(|record| !record.body.is_empty());
        self.records.truncate(found);
        self.places = vec![None; found];
        // What was found is synced, and so is stable from now on.
        (self.over, self.stable) = (found, found);
    }
}
