//! Disks rebuilt from logs that are written here by hand, as drivers/md/dm-log-writes.c writes them.
#![allow(clippy::unwrap_used)] // a test: a panic is its way to fail

use replay::log::Log;
use replay::rebuild::{Fate, durable, loose};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

const FLUSH: u64 = 1;
const FUA: u64 = 2;
const DISCARD: u64 = 4;
const MARK: u64 = 8;
/// Bytes of the disks here.
const DISK: usize = 64 * 512;

struct Written {
    raw: Vec<u8>,
    entries: u64,
}

impl Written {
    fn new() -> Self {
        Self { raw: vec![0; 512], entries: 0 }
    }

    fn entry(mut self, sector: u64, sectors: u64, flags: u64, name: &str, data: &[u8]) -> Self {
        let mut head = vec![0; 512];
        for (n, word) in [sector, sectors, flags, name.len() as u64].iter().enumerate() {
            head[n * 8..][..8].copy_from_slice(&word.to_le_bytes());
        }
        head[32..][..name.len()].copy_from_slice(name.as_bytes());
        self.raw.extend(head);
        self.raw.extend(data);
        self.entries += 1;
        self
    }

    /// A write of sectors that are full of `byte`.
    fn write(self, sector: u64, sectors: u64, flags: u64, byte: u8) -> Self {
        self.entry(sector, sectors, flags, "", &vec![byte; usize::try_from(sectors).unwrap() * 512])
    }

    fn flush(self) -> Self {
        self.entry(0, 0, FLUSH, "", &[])
    }

    fn mark(self, name: &str) -> Self {
        self.entry(0, 0, MARK, name, &[])
    }

    fn into_log(mut self, name: &str) -> Log {
        for (n, word) in [0x006a_7366_7773_6872, 1, self.entries, 512].iter().enumerate() {
            self.raw[n * 8..][..8].copy_from_slice(&u64::to_le_bytes(*word));
        }
        let path = path(&format!("{name}.log"));
        std::fs::write(&path, &self.raw).unwrap();
        Log::open(&path).unwrap()
    }
}

fn path(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name)
}

fn disk(name: &str) -> File {
    let file = File::options().read(true).write(true).create(true).truncate(true).open(path(name)).unwrap();
    file.set_len(DISK as u64).unwrap();
    file
}

/// The first byte of each sector; each must be full of it.
fn sectors(disk: &File) -> Vec<u8> {
    let mut content = vec![0; DISK];
    disk.read_exact_at(&mut content, 0).unwrap();
    content
        .chunks(512)
        .map(|sector| {
            assert!(sector.iter().all(|byte| *byte == sector[0]), "a sector is torn");
            sector[0]
        })
        .collect()
}

fn with(changes: &[(usize, u8)]) -> Vec<u8> {
    let mut all = vec![0; DISK / 512];
    for (n, byte) in changes {
        all[*n] = *byte;
    }
    all
}

#[test]
fn a_disk_is_brought_from_mark_to_mark() {
    let log = Written::new()
        .write(0, 2, FUA, 1)
        .mark("1")
        .write(1, 1, 0, 2)
        .flush()
        .mark("1+")
        .entry(0, 1, DISCARD, "", &[])
        .write(3, 1, FUA, 3)
        .mark("2")
        .write(4, 1, FUA, 4)
        .into_log("steps");
    let disk = disk("steps");
    durable(&log, &disk, None, "1").unwrap();
    assert_eq!(sectors(&disk), with(&[(0, 1), (1, 1)]));
    assert_eq!(durable(&log, &disk, Some("1"), "1+").unwrap().whole, 1);
    assert_eq!(sectors(&disk), with(&[(0, 1), (1, 2)]));
    durable(&log, &disk, Some("1+"), "2").unwrap();
    assert_eq!(sectors(&disk), with(&[(1, 2), (3, 3)]));
    durable(&log, &disk, Some("2"), "1").unwrap_err();
    durable(&log, &disk, None, "3").unwrap_err();
}

#[test]
fn what_was_not_durable_is_there_or_not() {
    let written =
        || (10..30).fold(Written::new().mark("1"), |log, sector| log.write(sector, 1, 0, 9)).flush().mark("1+");
    let log = written().write(40, 1, FUA, 4).into_log("some");
    let mut seen = std::collections::HashSet::new();
    for seed in 0..20 {
        let disk = disk("some");
        let applied = loose(&log, &disk, "1", Fate::Some, seed).unwrap();
        let there = sectors(&disk);
        let count = there.iter().filter(|byte| **byte == 9).count() as u64;
        assert_eq!((applied.whole, applied.dropped, applied.torn), (count, 20 - count, 0));
        assert_eq!(applied.lost, 20 - count);
        assert_eq!(there[40], 0, "a later write is not there");
        seen.insert(there);
    }
    assert!(seen.len() > 15, "only {} ways in 20 seeds", seen.len());
}

#[test]
fn all_that_was_not_durable_can_be_lost_and_only_what_differs_counts() {
    let log = Written::new().mark("1").write(3, 2, 0, 9).write(4, 2, 0, 0).write(8, 1, 0, 7).flush().mark("1+");
    let log = log.into_log("none");
    let disk = disk("none");
    disk.write_all_at(&[7; 512], 8 * 512).unwrap();
    let applied = loose(&log, &disk, "1", Fate::None, 1).unwrap();
    assert_eq!((applied.whole, applied.dropped), (0, 3));
    assert_eq!(sectors(&disk), with(&[(8, 7)]));
    // Sector 4 was written twice, last with what is there; sector 8 with what is there.
    assert_eq!(applied.lost, 1);
}

#[test]
fn a_torn_write_is_torn_at_sectors_and_the_next_durable_one_is_never_whole() {
    let log = Written::new()
        .mark("1")
        .write(0, 8, 0, 7)
        .flush()
        .mark("1+")
        .write(9, 2, 0, 5)
        .write(16, 4, FUA, 8)
        .into_log("torn");
    let (mut torn, mut begun) = (0, 0);
    for seed in 0..40 {
        let disk = disk("torn");
        loose(&log, &disk, "1", Fate::Torn, seed).unwrap();
        let there = sectors(&disk);
        torn += usize::from((1..8).contains(&there[..8].iter().filter(|byte| **byte == 7).count()));
        let next = there[16..20].iter().filter(|byte| **byte == 8).count();
        assert!(next < 4, "a write that nobody saw complete is there as a whole");
        begun += usize::from(next > 0);
        assert_eq!(there[9..11], [0, 0], "nor is what was not durable later");
    }
    assert!(torn > 20 && begun > 20, "torn {torn}, begun {begun}");
}

#[test]
fn what_is_no_moment_is_refused() {
    let log = Written::new().mark("1").write(0, 1, FUA, 1).mark("1+").into_log("running");
    let error = loose(&log, &disk("running"), "1", Fate::Some, 1).unwrap_err();
    assert!(error.to_string().contains("not suspended"), "{error}");
    let log = Written::new().write(0, 1, 1 << 9, 1).mark("1").into_log("flags");
    let error = durable(&log, &disk("flags"), None, "1").unwrap_err();
    assert!(format!("{error:#}").contains("unknown"), "{error:#}");
    std::fs::write(path("nothing.log"), [0; 4096]).unwrap();
    assert!(Log::open(&path("nothing.log")).is_err());
}
