//! Takes a disk, and gives its last user a moment to be gone.
//!
//! The lock lives as long as the file description that I/O uses (rule 2): after kill -9 the kernel ends the dead process's operations
//! on its ring behind the scenes, and only then lets go. A successor that comes at once finds the disk in use, and must
//! not give up for that; one that finds it in use by a living process must, soon enough for a person.

use crate::journal::HEAD;
use driver::DiskIndex;
use reactor::{DiskOptions, OwnRing, ReactorError, Uring};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

/// How often a disk in use is tried again.
const AGAIN: Duration = Duration::from_millis(10);

/// Opens and locks the disk as soon as nobody else has it, within `patience`.
pub(crate) fn claim(
    uring: &mut Uring<OwnRing>,
    path: &Path,
    options: DiskOptions,
    patience: Duration,
) -> Result<DiskIndex, ReactorError> {
    patiently(path, patience, || uring.open_disk(path, options))
}

/// The same with what a journal is on: the disk that is its ring.
pub(crate) fn claim_journal(
    uring: &mut Uring<OwnRing>,
    path: &Path,
    patience: Duration,
) -> Result<DiskIndex, ReactorError> {
    patiently(path, patience, || uring.open_journal(path, HEAD))
}

fn patiently(
    path: &Path,
    patience: Duration,
    mut open: impl FnMut() -> Result<DiskIndex, ReactorError>,
) -> Result<DiskIndex, ReactorError> {
    let until = Instant::now() + patience;
    let mut waited = false;
    loop {
        match open() {
            Err(ReactorError::DiskInUse { .. }) if Instant::now() < until => {
                if !std::mem::replace(&mut waited, true) {
                    tracing::info!(path = %path.display(), "the disk is in use: waiting for its last user to be gone");
                }
                thread::sleep(AGAIN);
            }
            outcome => return outcome,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use reactor::Limits;
    use std::fs::File;

    #[test]
    fn a_disk_is_taken_when_its_last_user_lets_go_and_refused_while_it_does_not() {
        let path = std::env::temp_dir().join(format!("trine-claim-{}", std::process::id()));
        let holder = File::create(&path).unwrap();
        holder.set_len(1 << 20).unwrap();
        holder.lock().unwrap();
        let limits = Limits { ops: 8, streams: 1, submissions: 8, ..Limits::default() };
        let mut uring = Uring::new(OwnRing::new(&limits).unwrap(), limits).unwrap();
        let options = DiskOptions { allow_buffered: true };
        let refused = claim(&mut uring, &path, options, Duration::from_millis(30)).unwrap_err();
        assert!(matches!(refused, ReactorError::DiskInUse { .. }), "{refused}");
        let lets_go = thread::spawn(move || {
            thread::sleep(Duration::from_millis(50));
            drop(holder);
        });
        claim(&mut uring, &path, options, Duration::from_secs(30)).unwrap();
        lets_go.join().unwrap();
        std::fs::remove_file(&path).unwrap();
    }
}
