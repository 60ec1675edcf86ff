//! The beginning of a disk, which says whose it is: read without a lock, and waited for with a limit.
//!
//! A disk that hangs does not answer, and whoever waited for it would hang as well. So each is read by a thread of its own, which is left behind
//! then: it has nothing but the open disk and its memory, and ends when the disk answers. Until it has the disk is not asked again, and whoever
//! wants to know hears at once that it hangs: no more threads are left behind than there are disks that do.

use crate::disks;
use crate::limits::{MAX_SILENT, SILENCE};
use conductor_model::BLOCK;
use node_store::journaled::forget_foreign;
use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::Builder;
use std::time::{Duration, Instant};

/// How much of a disk a store's superblocks take: 64 KiB.
pub(crate) const HEAD: u64 = 64 << 10;

/// How often it is asked whether to stop, while a disk is waited for.
const AGAIN: Duration = Duration::from_millis(50);

/// The disks that threads were left behind with. Of the process, as these are.
static SILENT: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());

/// The first 64 KiB of a disk, or all of a shorter one. A block that cannot be read is zeros: what is there twice, in blocks 0 and 8, is still
/// there once. So is a superblock that another disk's came in the place of. Fails if neither of these can be read, or if the disk hangs.
pub(crate) fn head(path: &Path) -> io::Result<Vec<u8>> {
    ask(path, read)?.answer(Instant::now() + SILENCE, &|| false)
}

/// Those of several disks, side by side, in their order. Until it is to `stop`: who has not answered then counts as one that hangs.
pub(crate) fn heads<'a>(
    paths: impl IntoIterator<Item = &'a Path>,
    stop: &dyn Fn() -> bool,
) -> Vec<io::Result<Vec<u8>>> {
    let asked: Vec<_> = paths.into_iter().map(|path| ask(path, read)).collect();
    let until = Instant::now() + SILENCE;
    asked.into_iter().map(|asked| asked?.answer(until, stop)).collect()
}

/// Of a disk that did not answer in time.
pub(crate) fn silent() -> io::Error {
    let said = format!("it hangs, nothing that was asked for has come back in {} s", SILENCE.as_secs());
    io::Error::new(io::ErrorKind::TimedOut, said)
}

/// Whether the disk hangs; the kernel's own word on one is an answer.
pub(crate) fn is_silent(why: &io::Error) -> bool {
    why.kind() == io::ErrorKind::TimedOut && why.raw_os_error().is_none()
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    let file = disks::open(path)?;
    let mut head = read_blocks(&file)?;
    forget_foreign(&mut head, &mut |at, page| match reactor::glance(&file, at, 1) {
        Ok(block) if block.len() == page.len() => {
            page.copy_from_slice(&block);
            true
        }
        _ => false,
    });
    Ok(head)
}

fn read_blocks(file: &File) -> io::Result<Vec<u8>> {
    let blocks = usize::try_from(HEAD).unwrap_or(0) / BLOCK;
    let why = match reactor::glance(file, 0, blocks) {
        Ok(head) => return Ok(head),
        Err(why) => why,
    };
    let (mut head, mut any) = (Vec::new(), false);
    for n in 0..blocks {
        match reactor::glance(file, (n * BLOCK) as u64, 1) {
            Ok(block) if block.len() < BLOCK => break,
            Ok(block) => {
                any |= n == 0 || n == 8;
                head.extend(block);
            }
            Err(_) => head.resize(head.len() + BLOCK, 0),
        }
    }
    if any { Ok(head) } else { Err(why) }
}

/// A question to a disk.
struct Asked<T> {
    path: PathBuf,
    said: Receiver<io::Result<T>>,
}

fn ask<T: Send + 'static>(
    path: &Path,
    read: impl FnOnce(&Path) -> io::Result<T> + Send + 'static,
) -> io::Result<Asked<T>> {
    let silent_ones = lock();
    if silent_ones.contains(path) {
        return Err(silent());
    }
    if silent_ones.len() >= MAX_SILENT {
        return Err(io::Error::other("too many disks hang: no more are asked"));
    }
    let (say, said) = mpsc::channel();
    let of = path.to_path_buf();
    let run = move || {
        let answer = read(&of);
        let mut silent_ones = lock();
        if say.send(answer).is_err() {
            // Nobody has waited that long. From now on it is asked again.
            silent_ones.remove(&of);
        }
    };
    Builder::new().name("disk head".to_owned()).spawn(run)?;
    Ok(Asked { path: path.to_path_buf(), said })
}

impl<T> Asked<T> {
    fn answer(self, until: Instant, stop: &dyn Fn() -> bool) -> io::Result<T> {
        loop {
            let left = until.saturating_duration_since(Instant::now());
            match self.said.recv_timeout(left.min(AGAIN)) {
                Ok(answer) => return answer,
                Err(RecvTimeoutError::Timeout) if !left.is_zero() && !stop() => {}
                Err(_) => break,
            }
        }
        // Under the lock it has either been said by now, or is said to nobody.
        let mut silent_ones = lock();
        if let Ok(answer) = self.said.try_recv() {
            return answer;
        }
        drop(self.said);
        silent_ones.insert(self.path);
        Err(silent())
    }
}

/// A panic ends the process, so whoever finds the lock poisoned is about to end as well.
fn lock() -> MutexGuard<'static, BTreeSet<PathBuf>> {
    SILENT.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_that_hangs_is_given_up_and_asked_again_when_it_has_answered() {
        let path = Path::new("a disk that hangs");
        let (answers, waits) = mpsc::channel::<()>();
        let hangs = move |_: &Path| Ok(waits.recv().is_err());
        let soon = || Instant::now() + Duration::from_millis(20);
        let given_up = ask(path, hangs).unwrap().answer(soon(), &|| false).unwrap_err();
        assert!(is_silent(&given_up), "{given_up}");
        assert!(!is_silent(&io::Error::from_raw_os_error(nix::libc::ETIMEDOUT)), "that is an answer");
        let at_once = ask(path, |_| Ok(())).err().expect("one thread is there already");
        assert!(is_silent(&at_once), "{at_once}");
        drop(answers);
        while lock().contains(path) {
            std::thread::sleep(Duration::from_millis(1));
        }
        let late = Instant::now() + SILENCE;
        assert_eq!(ask(path, |_| Ok(7)).unwrap().answer(late, &|| false).unwrap(), 7);
        assert!(!lock().contains(path));
    }

    #[test]
    fn who_is_to_stop_does_not_wait_for_a_disk() {
        let path = Path::new("a disk that is not waited for");
        let (_answers, waits) = mpsc::channel::<()>();
        let asked = ask(path, move |_| Ok(waits.recv().is_err())).unwrap();
        assert!(is_silent(&asked.answer(Instant::now() + SILENCE, &|| true).unwrap_err()));
    }
}
