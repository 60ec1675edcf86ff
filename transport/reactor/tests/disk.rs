//! Disks on the real kernel: durable, direct, and ours alone.
#![allow(clippy::unwrap_used, dead_code, reason = "a test, and helpers that not every test uses")]

mod common;

use common::{Bench, Dir, any_port, driver};
use driver::{DiskIndex, Errno, Op};
use reactor::{DiskOptions, Limits, Mapped, ReactorError};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

const SIZE: u64 = 32 << 20;

fn disk_file(dir: &Dir) -> PathBuf {
    let path = dir.0.join("disk");
    File::create(&path).unwrap().set_len(SIZE).unwrap();
    path
}

fn read(bench: &mut Bench, disk: DiskIndex, at: u64, len: usize) -> (Result<u32, Errno>, Vec<u8>) {
    let into = bench.page(len + 4096, 0xEE);
    bench.submit(Op::DiskRead { disk, tag: 5, at, into, from: 4096, len });
    let done = bench.dones(1).pop().unwrap();
    let Op::DiskRead { into, tag: 5, .. } = done.op else { panic!("{:?}", done.op) };
    assert!(into[..4096].iter().all(|byte| *byte == 0xEE), "only what was asked for");
    (done.result, into[4096..].to_vec())
}

#[test]
fn what_is_written_durably_is_read_back_and_punched_away() {
    let dir = Dir::new();
    let mut bench = Bench::new();
    let disk = bench.reactor.driver().open_disk(&disk_file(&dir), DiskOptions::default()).unwrap();
    let info = bench.reactor.driver().disk_info(disk).unwrap();
    assert_eq!((info.bytes, info.block_device, info.direct), (SIZE, false, true));
    for durable in [true, false] {
        let parts = [1, 2].map(|byte| bench.page(1 << 20, byte).filled().whole()).into_iter().collect();
        assert_eq!(bench.result(Op::DiskWrite { disk, tag: 1, at: 8192, parts, durable }), Ok(2 << 20));
        assert_eq!(bench.result(Op::DiskSync { disk, tag: 2 }), Ok(0));
        let (result, bytes) = read(&mut bench, disk, 8192 + (1 << 20) - 4096, 8192);
        assert_eq!((result, bytes), (Ok(8192), [[1; 4096], [2; 4096]].concat()));
        assert_eq!(bench.result(Op::DiskPunch { disk, tag: 3, at: 8192, len: 2 << 20 }), Ok(0));
        let (result, bytes) = read(&mut bench, disk, 8192, 4096);
        assert_eq!((result, bytes), (Ok(4096), vec![0; 4096]));
    }
    bench.assert_empty();
}

#[test]
fn a_write_of_more_pieces_than_the_kernel_takes_goes_on_where_it_stopped() {
    // Not in memory, where the ring has no part in it.
    let dir = Dir::below(Path::new(env!("CARGO_TARGET_TMPDIR")));
    let mut bench = Bench::new();
    let disk = bench.reactor.driver().open_disk(&disk_file(&dir), DiskOptions::default()).unwrap();
    let page = bench.page(8192, 3).filled();
    let parts = (0..1500).map(|_| memory::Part { mem: page.share(), from: 4096, len: 4096 }).collect();
    drop(page);
    assert_eq!(bench.result(Op::DiskWrite { disk, tag: 1, at: 0, parts, durable: true }), Ok(1500 * 4096));
    assert_eq!(bench.reactor.driver().counters().resumed, 1);
    assert_eq!(read(&mut bench, disk, 1499 * 4096, 8192).1, [[3; 4096], [0; 4096]].concat());
    bench.assert_empty();
}

#[test]
fn a_file_in_memory_is_read_and_written_without_the_ring() {
    let dir = Dir::below(Path::new("/dev/shm"));
    let mut bench = Bench::new();
    let disk = bench.reactor.driver().open_disk(&disk_file(&dir), DiskOptions::default()).unwrap();
    assert!(bench.reactor.driver().disk_info(disk).unwrap().in_memory);
    // The first turn with an enter also posts what wakes the reactor.
    for at in [0, 4096] {
        assert_eq!(read(&mut bench, disk, at, 4096).1, vec![0; 4096]);
    }
    let before = bench.reactor.driver().counters().sqes;
    let page = bench.page(8192, 3).filled();
    let parts = (0..1500).map(|_| memory::Part { mem: page.share(), from: 4096, len: 4096 }).collect();
    drop(page);
    assert_eq!(bench.result(Op::DiskWrite { disk, tag: 1, at: 4096, parts, durable: true }), Ok(1500 * 4096));
    assert_eq!(bench.result(Op::DiskSync { disk, tag: 2 }), Ok(0));
    assert_eq!(read(&mut bench, disk, 1500 * 4096, 8192), (Ok(8192), [[3; 4096], [0; 4096]].concat()));
    assert_eq!(bench.reactor.driver().counters().sqes, before, "no request of these went through the kernel's queue");
    // What it cannot do there, it says as everywhere.
    assert_eq!(read(&mut bench, disk, SIZE - 4096, 8192).0, Err(Errno::IO));
    assert_eq!(read(&mut bench, disk, 100, 4096).0, Err(Errno(libc::EINVAL)));
    let parts = [bench.page(100, 1).filled().whole()].into_iter().collect();
    assert_eq!(bench.result(Op::DiskWrite { disk, tag: 4, at: 0, parts, durable: true }), Err(Errno(libc::EINVAL)));
    assert_eq!(bench.result(Op::DiskPunch { disk, tag: 3, at: 4096, len: 4096 }), Ok(0));
    assert_eq!(read(&mut bench, disk, 4096, 4096), (Ok(4096), vec![0; 4096]));
    bench.assert_empty();
}

#[test]
fn what_is_over_without_the_ring_costs_an_enter_every_other_turn() {
    let dir = Dir::below(Path::new("/dev/shm"));
    let mut bench = Bench::new();
    let disk = bench.reactor.driver().open_disk(&disk_file(&dir), DiskOptions::default()).unwrap();
    let (here, there) = bench.pair(&any_port());
    let sync = || Op::DiskSync { disk, tag: 1 };
    let heard = bench.recv(there, 4096);
    bench.submit(heard);
    let before = bench.reactor.driver().counters();
    let mut all = Vec::new();
    let word = bench.page(4096, 7).filled().whole();
    let word = bench.send(here, [word]);
    bench.submit(word);
    // One that never runs out of such work. A send does not wait for it; nor does a machine believe that it has heard everybody when it has not.
    for turn in 1..=10 {
        bench.submit(sync());
        if turn == 4 {
            std::thread::sleep(std::time::Duration::from_millis(2));
        }
        bench.reactor.turn().unwrap();
        let now = bench.reactor.driver().counters();
        let slow = now.enters - before.enters;
        // A thread that stood still by itself enters more often.
        assert!(slow >= [1, 1, 2, 3, 3, 4, 4, 5, 5, 6][turn - 1], "{slow} enters in {turn} turns");
        all.push(slow);
    }
    assert!(all.windows(2).filter(|two| two[0] == two[1]).count() >= 2, "some turns need none: {all:?}");
    let dones = std::mem::take(&mut bench.reactor.machine().dones);
    let of_streams = dones.iter().filter(|done| matches!(done.op, Op::Send { .. } | Op::Recv { .. })).count();
    assert_eq!((of_streams, dones.len()), (2, 12), "streams are heard beside it: {dones:?}");
    drop(dones);
    for stream in [here, there] {
        assert_eq!(bench.result(Op::Close { stream }), Ok(0));
    }
    bench.assert_empty();
}

#[test]
fn a_read_past_the_end_and_an_unaligned_one_are_errors() {
    let dir = Dir::new();
    let mut bench = Bench::new();
    let disk = bench.reactor.driver().open_disk(&disk_file(&dir), DiskOptions::default()).unwrap();
    assert_eq!(read(&mut bench, disk, SIZE - 4096, 8192).0, Err(Errno::IO));
    assert_eq!(read(&mut bench, disk, 100, 4096).0, Err(Errno(libc::EINVAL)), "also where the file system would do it");
    assert_eq!(read(&mut bench, DiskIndex(9), 0, 4096).0, Err(Errno(libc::EBADF)));
    bench.assert_empty();
}

#[test]
fn a_second_opener_is_refused_until_the_first_is_gone() {
    let dir = Dir::new();
    let path = disk_file(&dir);
    let mut first = driver(Limits::default());
    first.open_disk(&path, DiskOptions::default()).unwrap();
    let error = driver(Limits::default()).open_disk(&path, DiskOptions::default()).unwrap_err();
    assert!(matches!(error, ReactorError::DiskInUse { .. }) && error.to_string().contains("disk"), "{error}");
    drop(first);
    driver(Limits::default()).open_disk(&path, DiskOptions::default()).unwrap();
}

#[test]
fn what_is_no_disk_is_refused_with_its_path() {
    let dir = Dir::new();
    let mut driver = driver(Limits::default());
    let error = driver.open_disk(&dir.0, DiskOptions::default()).unwrap_err();
    assert!(matches!(error, ReactorError::NotADisk { .. }), "{error}");
    let error = driver.open_disk(&dir.0.join("none"), DiskOptions::default()).unwrap_err();
    assert!(error.to_string().contains("none"), "{error}");
}

const HEAD: usize = 64 << 10;
const WHOLE: usize = 32 << 20;
const JOURNAL: u64 = SIZE - HEAD as u64;

#[test]
fn a_journal_on_a_file_is_mapped_behind_its_head_and_does_all_that_a_disk_does() {
    let dir = Dir::new();
    let path = disk_file(&dir);
    std::fs::write(&path, vec![5; 32 << 20]).unwrap();
    let mut bench = Bench::new();
    let disk = bench.reactor.driver().open_journal(&path, HEAD as u64).unwrap();
    let info = bench.reactor.driver().disk_info(disk).unwrap();
    assert_eq!((info.bytes, info.block_device, info.mapped), (JOURNAL, false, Some(Mapped::Cached)));
    for (durable, byte) in [(true, 1), (false, 2)] {
        let parts = [byte, byte + 10].map(|byte| bench.page(8192, byte).filled().whole()).into_iter().collect();
        assert_eq!(bench.result(Op::DiskWrite { disk, tag: 1, at: 4096, parts, durable }), Ok(16384));
        let (result, bytes) = read(&mut bench, disk, 8192, 8192);
        assert_eq!((result, bytes), (Ok(8192), [[byte; 4096], [byte + 10; 4096]].concat()));
        assert_eq!(bench.result(Op::DiskSync { disk, tag: 2 }), Ok(0));
    }
    // The head is not the disk's, and what is before and behind the write is as it was.
    let on_file = std::fs::read(&path).unwrap();
    assert!(on_file[..HEAD + 4096].iter().chain(&on_file[HEAD + 4096 + 16384..]).all(|b| *b == 5));
    assert_eq!(on_file[HEAD + 4096..][..16384], [[2; 8192], [12; 8192]].concat());
    let whole = |bench: &mut Bench, at, len| {
        let parts = [bench.page(len, 3).filled().whole()].into_iter().collect();
        bench.result(Op::DiskWrite { disk, tag: 1, at, parts, durable: true })
    };
    assert_eq!(whole(&mut bench, JOURNAL - 4096, 4096), Ok(4096));
    assert_eq!(whole(&mut bench, JOURNAL - 4096, 8192), Err(Errno::NO_SPACE));
    assert_eq!(whole(&mut bench, 100, 4096), Err(Errno(libc::EINVAL)));
    assert_eq!(read(&mut bench, disk, JOURNAL - 4096, 8192).0, Err(Errno::IO), "past the end");
    let error = driver(Limits::default()).open_journal(&path, HEAD as u64).map(|_| ()).unwrap_err();
    assert!(matches!(error, ReactorError::DiskInUse { .. }), "{error}");
    bench.assert_empty();
}

#[test]
fn a_journals_file_has_all_its_blocks_and_keeps_them() {
    use std::os::unix::fs::MetadataExt;
    let dir = Dir::new();
    let path = disk_file(&dir);
    let mut bench = Bench::new();
    let disk = bench.reactor.driver().open_journal(&path, HEAD as u64).unwrap();
    assert_eq!(bench.result(Op::DiskPunch { disk, tag: 3, at: 0, len: 1 << 20 }), Ok(0));
    assert!(std::fs::metadata(&path).unwrap().blocks() * 512 >= SIZE, "it was sparse");
    let empty = dir.0.join("empty");
    File::create(&empty).unwrap();
    let error = bench.reactor.driver().open_journal(&empty, HEAD as u64).unwrap_err();
    assert!(matches!(error, ReactorError::MapDisk { .. }) && error.to_string().contains("empty"), "{error}");
    bench.assert_empty();
}

/// A page that could not be written looks like one that was, to whoever reads it from the cache.
#[test]
fn nothing_of_a_journals_file_is_believed_because_it_is_in_the_page_cache() {
    let dir = Dir::new();
    let path = disk_file(&dir);
    std::fs::write(&path, vec![5; WHOLE]).unwrap();
    let file = File::open(&path).unwrap();
    assert!(cached_pages(&file) > 0);
    let mut driver = driver(Limits::default());
    let disk = driver.open_journal(&path, HEAD as u64).unwrap();
    let kept = cached_pages(&file);
    assert!(driver.disk_info(disk).unwrap().in_memory || kept == 0, "{kept} pages");
}

/// How many of its pages are in the page cache.
fn cached_pages(file: &File) -> usize {
    let mut pages = vec![0u8; WHOLE / 4096];
    // SAFETY: the mapping is a new one, which nobody looks into, and ends here; `pages` has a byte for each of its pages.
    unsafe {
        let map = libc::mmap(std::ptr::null_mut(), WHOLE, libc::PROT_READ, libc::MAP_SHARED, file.as_raw_fd(), 0);
        assert_ne!(map, libc::MAP_FAILED);
        assert_eq!(libc::mincore(map, WHOLE, pages.as_mut_ptr()), 0);
        assert_eq!(libc::munmap(map, WHOLE), 0);
    }
    pages.iter().filter(|page| **page & 1 == 1).count()
}

#[test]
fn a_journals_file_that_is_cut_short_is_an_io_error_from_then_on() {
    let dir = Dir::new();
    let path = disk_file(&dir);
    let mut bench = Bench::new();
    let disk = bench.reactor.driver().open_journal(&path, HEAD as u64).unwrap();
    File::options().write(true).open(&path).unwrap().set_len(1 << 20).unwrap();
    for at in [2 << 20, 0] {
        let parts = [bench.page(4096, 3).filled().whole()].into_iter().collect();
        assert_eq!(bench.result(Op::DiskWrite { disk, tag: 1, at, parts, durable: true }), Err(Errno::IO));
    }
    bench.assert_empty();
}
