//! The witness on a plain file: what it writes it finds, and each way to lose or tear something is noticed.
#![allow(clippy::unwrap_used)] // a test: a panic is its way to fail

use replay::blocks::{self, Range};
use replay::files;
use replay::ledger::{Begun, Deed, Ledger, Moment};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const BYTES: u64 = 4 << 20;
const RANGE: Range = Range { first: 0, sectors: BYTES / 512 };

/// A directory of this test's own.
fn room(name: &str) -> PathBuf {
    let dir = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = fs::remove_dir_all(&dir);
    fs::create_dir_all(&dir).unwrap();
    dir
}

/// Runs `load` until `wanted` deeds are acknowledged.
fn until(ledger: &Ledger, wanted: u64, load: impl FnOnce(&AtomicBool) + Send) {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let load = scope.spawn(|| load(&stop));
        while ledger.acknowledged().unwrap() < wanted && !load.is_finished() {
            std::thread::sleep(Duration::from_millis(1));
        }
        stop.store(true, Ordering::Relaxed);
    });
}

fn written(dir: &Path) -> (PathBuf, PathBuf) {
    let (device, notes) = (dir.join("device"), dir.join("ledger"));
    File::create(&device).unwrap().set_len(BYTES).unwrap();
    let ledger = Ledger::create(&notes).unwrap();
    until(&ledger, 400, |stop| blocks::write(&device, RANGE, 7, false, &ledger, stop).unwrap());
    (device, notes)
}

/// The last acknowledged write that nothing has overwritten since.
fn last(moment: &Moment) -> (u64, u64) {
    let whole = |begun: &Begun| match begun.deed {
        Deed::Write { sector, sectors } if sector % 8 == 0 && sectors >= 8 => Some((sector, begun.id)),
        _ => None,
    };
    let wiped = |at: u64, id: u64| {
        moment.begun.iter().any(|later| match later.deed {
            Deed::Write { sector, sectors } | Deed::Zero { sector, sectors } => {
                later.id > id && sector < at + 8 && at < sector + sectors
            }
            _ => false,
        })
    };
    moment.begun.iter().rev().filter_map(whole).find(|(at, id)| !wiped(*at, *id)).unwrap()
}

#[test]
fn what_was_written_is_found() {
    let (device, notes) = written(&room("found"));
    let moment = Moment::read(&notes, None).unwrap();
    assert!(moment.acknowledged() >= 400);
    let found = blocks::check(&device, RANGE, &moment, false).unwrap();
    assert_eq!((found.blocks, found.open), (BYTES / 4096, 0));
}

#[test]
fn a_lost_write_a_torn_block_and_a_flipped_bit_are_noticed() {
    let (device, notes) = written(&room("lost"));
    let moment = Moment::read(&notes, None).unwrap();
    let (sector, _) = last(&moment);
    let file = File::options().read(true).write(true).open(&device).unwrap();
    let mut block = vec![0; 4096];
    file.read_exact_at(&mut block, sector * 512).unwrap();
    let spoilt = |from: usize, bytes: &[u8]| {
        let mut spoilt = block.clone();
        spoilt[from..][..bytes.len()].copy_from_slice(bytes);
        file.write_all_at(&spoilt, sector * 512).unwrap();
        file.sync_all().unwrap();
        blocks::check(&device, RANGE, &moment, false).err().expect("not noticed").to_string()
    };
    assert!(spoilt(0, &[0; 4096]).contains("1 blocks hold"));
    assert!(spoilt(3584, &[0; 512]).contains("1 blocks hold"));
    assert!(spoilt(100, &[block[100] ^ 4]).contains("1 blocks hold"));
    file.write_all_at(&block, sector * 512).unwrap();
    file.sync_all().unwrap();
    blocks::check(&device, RANGE, &moment, false).unwrap();
}

#[test]
fn a_write_under_way_may_be_there_or_not_and_one_after_the_mark_may_not() {
    let dir = room("under-way");
    let (device, notes) = written(&dir);
    let moment = Moment::read(&notes, None).unwrap();
    let (_, id) = last(&moment);
    let text = fs::read_to_string(&notes).unwrap();
    let at_mark = |mark: &str| {
        let path = dir.join("marked");
        fs::write(&path, mark).unwrap();
        Moment::read(&path, Some("1")).unwrap()
    };
    // The mark is set between its beginning and its acknowledgement: present is one of the two right states.
    let head = text.split(&format!("e {id}\n")).next().unwrap();
    let found = blocks::check(&device, RANGE, &at_mark(&format!("{text}m 1\nM 1\n")), false).unwrap();
    assert_eq!(found.open, 0);
    assert!(at_mark(&format!("{head}m 1\nM 1\n")).begun.iter().any(|begun| begun.id == id));
    // Before its beginning: what is on the device cannot be there.
    let before = text.lines().take_while(|line| !line.starts_with(&format!("b {id} "))).collect::<Vec<_>>().join("\n");
    let error =
        blocks::check(&device, RANGE, &at_mark(&format!("{before}\nm 1\nM 1\n")), false).err().expect("not noticed");
    assert!(error.to_string().contains("hold what they cannot"));
}

#[test]
fn a_write_that_failed_is_there_or_not_under_what_came_later() {
    let dir = room("failed");
    let notes = dir.join("ledger");
    fs::write(&notes, "b 1 0 8\ne 1\nb 2 0 4\nx 2\nb 3 0 1\ne 3\n").unwrap();
    let moment = Moment::read(&notes, None).unwrap();
    let device = dir.join("device");
    let check = |writes: &[u64]| {
        let mut raw = vec![0; 4096];
        for (sector, id) in (0..).zip(writes) {
            blocks::fill(sector, *id, &mut raw[usize::try_from(sector).unwrap() * 512..][..512]);
        }
        fs::write(&device, raw).unwrap();
        File::open(&device).unwrap().sync_all().unwrap();
        blocks::check(&device, Range { first: 0, sectors: 8 }, &moment, false).is_ok()
    };
    assert!(check(&[3, 2, 2, 2, 1, 1, 1, 1]), "it was done");
    assert!(check(&[3, 1, 1, 1, 1, 1, 1, 1]), "it was not");
    assert!(!check(&[3, 2, 1, 1, 1, 1, 1, 1]), "it is torn");
    assert!(!check(&[2, 2, 2, 2, 1, 1, 1, 1]), "what came later is lost");
}

#[test]
fn lost_changed_and_revived_files_are_noticed() {
    let dir = room("files");
    let (mnt, notes) = (dir.join("mnt"), dir.join("ledger"));
    fs::create_dir(&mnt).unwrap();
    let ledger = Ledger::create(&notes).unwrap();
    until(&ledger, 300, |stop| files::write(&mnt, 3, &ledger, stop).unwrap());
    let moment = Moment::read(&notes, None).unwrap();
    assert!(files::check(&mnt, &moment).unwrap() > 10);
    let gone = moment.begun.iter().find_map(|begun| match begun.deed {
        Deed::Remove { file } => Some(format!("file-{file}")),
        _ => None,
    });
    let kept = fs::read_dir(&mnt).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let kept = kept.filter(|name| name.starts_with("file-")).max().unwrap();
    for name in [kept.as_str(), "growing", "current"] {
        let before = fs::read(mnt.join(name)).unwrap();
        fs::remove_file(mnt.join(name)).unwrap();
        files::check(&mnt, &moment).unwrap_err();
        fs::write(mnt.join(name), &before[..before.len() - 1]).unwrap();
        files::check(&mnt, &moment).unwrap_err();
        let mut changed = before.clone();
        changed[0] ^= 1;
        fs::write(mnt.join(name), changed).unwrap();
        files::check(&mnt, &moment).unwrap_err();
        fs::write(mnt.join(name), before).unwrap();
    }
    let gone = mnt.join(gone.unwrap());
    fs::write(&gone, "back").unwrap();
    files::check(&mnt, &moment).unwrap_err();
    fs::remove_file(gone).unwrap();
    files::check(&mnt, &moment).unwrap();
}
