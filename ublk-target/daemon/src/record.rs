//! What is known of an attachment on its host: a few files beside each other.
//!
//! ```text
//!   DIR/attached/VOLUME.json   the record: written whole or not at all, removed by a clean detach
//!                VOLUME.pid    locked as long as the target lives: a dead one cannot be mistaken for a living one; whose it is
//!                VOLUME.sock   the control socket
//!                VOLUME.log    what it had to say
//! ```
//!
//! A record whose lock nobody holds is a dead attachment: `trine attach` takes it up again, `trine detach` ends it. A lock that is held
//! without a record of its holder's is a target that comes up.

use crate::error::TargetError;
use crate::limits::LOCK_POLL;
use conductor_model::{AttachGeneration, ClusterId, SnapshotId, VolumeId};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

/// Looking whether somebody holds a lock takes less than this by far.
const LOOKED_AT: Duration = Duration::from_millis(200);
/// Longest path of a socket, in bytes.
const MAX_SOCKET_PATH: usize = 107;

/// One attachment.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Record {
    /// The volume, or `VOLUME@SNAPSHOT`.
    pub volume: String,
    /// The snapshot's number; none for the volume itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<SnapshotId>,
    /// Its cluster.
    pub cluster: ClusterId,
    /// Its number there.
    pub volume_id: VolumeId,
    /// The target's process.
    pub pid: u32,
    /// When that process started, in clock ticks since boot: pids are used again.
    pub started: u64,
    /// Milliseconds since 1970.
    pub since_ms: u64,
    /// `/dev/ublkbN`, or an NBD URI.
    pub device: String,
    /// Its name at the conductor, and at the nodes.
    pub client: String,
    /// The attach generation that it was given; of a snapshot's, the one it found.
    pub generation: AttachGeneration,
    /// It refuses writes.
    pub read_only: bool,
    /// A block device that was never served so far. If its target dies then, what reads the partition table has it locked for ever: the
    /// device is not asked whether anybody uses it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub starting: bool,
}

impl Record {
    /// True if it was written by the process that `holder` is: not by a target before it.
    pub fn is_of(&self, holder: Holder) -> bool {
        (self.pid, self.started) == (holder.pid, holder.started)
    }
}

/// The process that is the target.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Holder {
    /// Its number.
    pub pid: u32,
    /// When it started, in clock ticks since boot.
    pub started: u64,
}

impl Holder {
    /// The process that calls.
    pub(crate) fn this() -> Self {
        let pid = std::process::id();
        Self { pid, started: start_time(pid).unwrap_or(0) }
    }
}

/// The files of one volume's attachment.
#[derive(Clone, Debug)]
pub struct Place {
    volume: String,
    dir: PathBuf,
}

/// The right to be the target of a volume on this host. Released by the kernel, however the process ends.
#[derive(Debug)]
pub struct Lock {
    _file: File,
}

impl Place {
    /// The attachment of `volume` under `DIR/attached`; `dir` is that directory.
    pub fn new(dir: &Path, volume: &str) -> Self {
        Self { volume: volume.to_owned(), dir: dir.to_owned() }
    }

    /// All that have a record in `dir`, or a target that comes up, by name.
    pub fn all(dir: &Path) -> Result<Vec<Self>, TargetError> {
        let entries = match fs::read_dir(dir) {
            Ok(entries) => entries,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(TargetError::file("list", dir)(error)),
        };
        let mut volumes = BTreeSet::new();
        for entry in entries {
            let name = entry.map_err(TargetError::file("list", dir))?.file_name();
            let Some(name) = name.to_str() else { continue };
            if let Some(volume) = name.strip_suffix(".json") {
                volumes.insert(volume.to_owned());
            } else if let Some(volume) = name.strip_suffix(".pid")
                && Self::new(dir, volume).is_live()?
            {
                volumes.insert(volume.to_owned());
            }
        }
        Ok(volumes.into_iter().map(|volume| Self::new(dir, &volume)).collect())
    }

    /// The volume's name.
    pub fn volume(&self) -> &str {
        &self.volume
    }

    fn file(&self, ending: &str) -> PathBuf {
        self.dir.join(format!("{}.{ending}", self.volume))
    }
    /// The control socket. One whose path would be too long for the kernel is called by a number.
    pub fn socket(&self) -> PathBuf {
        let path = self.file("sock");
        if path.as_os_str().len() <= MAX_SOCKET_PATH {
            return path;
        }
        self.dir.join(format!("{:08x}.sock", crc32c::crc32c(self.volume.as_bytes())))
    }
    /// The log.
    pub fn log(&self) -> PathBuf {
        self.file("log")
    }
    fn record(&self) -> PathBuf {
        self.file("json")
    }

    /// Becomes the volume's target on this host. `None` if somebody else is.
    pub fn lock(&self) -> Result<Option<Lock>, TargetError> {
        fs::create_dir_all(&self.dir).map_err(TargetError::file("create", &self.dir))?;
        let path = self.file("pid");
        let file = OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(&path);
        let mut file = file.map_err(TargetError::file("open", &path))?;
        let until = Instant::now() + LOOKED_AT;
        loop {
            match file.try_lock() {
                Ok(()) => break,
                // Who only looks whether somebody has it (`is_live`) has it for a moment.
                Err(TryLockError::WouldBlock) if Instant::now() < until && !self.is_held() => thread::sleep(LOCK_POLL),
                Err(TryLockError::WouldBlock) => return Ok(None),
                Err(TryLockError::Error(error)) => return Err(TargetError::file("lock", &path)(error)),
            }
        }
        // A clean detach removes the file: a lock on one that nobody finds any more would keep nobody out.
        let same = || Ok::<_, std::io::Error>(fs::metadata(&path)?.ino() == file.metadata()?.ino());
        if !same().unwrap_or(false) {
            return Ok(None);
        }
        let Holder { pid, started } = Holder::this();
        let written = file.set_len(0).and_then(|()| writeln!(file, "{pid} {started}"));
        written.map_err(TargetError::file("write", &path))?;
        Ok(Some(Lock { _file: file }))
    }

    /// True if its target lives.
    pub fn is_live(&self) -> Result<bool, TargetError> {
        let path = self.file("pid");
        match File::open(&path) {
            Ok(file) => match file.try_lock_shared() {
                Ok(()) => Ok(false),
                Err(TryLockError::WouldBlock) => Ok(true),
                Err(TryLockError::Error(error)) => Err(TargetError::file("lock", &path)(error)),
            },
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
            Err(error) => Err(TargetError::file("open", &path)(error)),
        }
    }

    /// True if who took the lock last is still there.
    fn is_held(&self) -> bool {
        self.holder().is_some_and(|Holder { pid, started }| start_time(pid) == Some(started))
    }

    /// Who holds the lock, or held it last.
    pub fn holder(&self) -> Option<Holder> {
        let text = fs::read_to_string(self.file("pid")).ok()?;
        let (pid, started) = text.trim().split_once(' ')?;
        Some(Holder { pid: pid.parse().ok()?, started: started.parse().ok()? })
    }

    /// The record, if there is one.
    pub fn read(&self) -> Result<Option<Record>, TargetError> {
        let path = self.record();
        match fs::read(&path) {
            Ok(bytes) => {
                serde_json::from_slice(&bytes).map(Some).map_err(|error| TargetError::BadRecord { path, error })
            }
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(TargetError::file("read", &path)(error)),
        }
    }

    /// Writes the record: whole, and on stable storage, or not at all.
    pub fn write(&self, record: &Record) -> Result<(), TargetError> {
        let (path, new) = (self.record(), self.file("json.new"));
        let text = serde_json::to_vec_pretty(record).unwrap_or_default();
        let written = || {
            let mut file = OpenOptions::new().create(true).truncate(true).write(true).mode(0o600).open(&new)?;
            file.write_all(&text)?;
            file.sync_all()?;
            fs::rename(&new, &path)?;
            File::open(&self.dir)?.sync_all()
        };
        written().map_err(TargetError::file("write", &path))
    }

    /// After a clean detach there is nothing that the next target takes up.
    pub(crate) fn remove_record(&self) -> Result<(), TargetError> {
        remove(&[self.record()])
    }

    /// What a target removes at its end: the socket, and where it leaves no record, everything. The lock's file last: from then on what is
    /// there may be the next one's.
    pub(crate) fn close(&self) -> Result<(), TargetError> {
        if self.record().exists() { remove(&[self.socket()]) } else { self.remove() }
    }

    /// Removes what a clean detach leaves nothing of. The log stays.
    pub fn remove(&self) -> Result<(), TargetError> {
        remove(&[self.record(), self.socket(), self.file("pid")])
    }
}

fn remove(paths: &[PathBuf]) -> Result<(), TargetError> {
    for path in paths {
        match fs::remove_file(path) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                return Err(TargetError::file("remove", path)(error));
            }
            _ => {}
        }
    }
    Ok(())
}

/// When process `pid` started, in clock ticks since boot; `None` if there is none.
pub(crate) fn start_time(pid: u32) -> Option<u64> {
    field(pid, 22)?.parse().ok()
}

/// Is process `pid` there, and stopped by a signal or a debugger?
pub(crate) fn is_stopped(pid: u32) -> bool {
    field(pid, 3).is_some_and(|state| ["T", "t"].contains(&state.as_str()))
}

/// A field, from the third on, of proc_pid_stat(5).
fn field(pid: u32, number: usize) -> Option<String> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name, which is the second, may hold anything, parentheses too.
    let (_, fields) = stat.rsplit_once(')')?;
    fields.split_ascii_whitespace().nth(number.checked_sub(3)?).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dir(name: &str) -> PathBuf {
        let dir = std::env::temp_dir().join(format!("trine-record-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        dir
    }

    fn record(volume: &str) -> Record {
        Record {
            volume: volume.into(),
            snapshot: None,
            cluster: ClusterId(0xc1),
            volume_id: VolumeId(7),
            pid: std::process::id(),
            started: start_time(std::process::id()).unwrap(),
            since_ms: 1,
            device: "nbd+unix:///?socket=/x".into(),
            client: format!("host/{volume}"),
            generation: AttachGeneration(3),
            read_only: false,
            starting: false,
        }
    }

    #[test]
    fn a_target_is_live_exactly_as_long_as_its_lock_is_held() {
        let dir = dir("live");
        let place = Place::new(&dir, "db");
        assert!(!place.is_live().unwrap());
        let lock = place.lock().unwrap().unwrap();
        assert!(place.is_live().unwrap() && place.lock().unwrap().is_none());
        assert!(record("db").is_of(place.holder().unwrap()));
        drop(lock);
        assert!(!place.is_live().unwrap() && place.lock().unwrap().is_some());
        fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn who_only_looks_keeps_nobody_from_becoming_the_target() {
        let dir = dir("looks");
        let place = Place::new(&dir, "db");
        let over = std::sync::atomic::AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(std::sync::atomic::Ordering::Relaxed) {
                    assert!(place.is_live().is_ok());
                }
            });
            for _ in 0..2000 {
                let lock = place.lock().unwrap();
                over.store(lock.is_none(), std::sync::atomic::Ordering::Relaxed);
                assert!(lock.is_some(), "nobody has it");
                // As of a target that is dead.
                fs::write(place.file("pid"), "1 1\n").unwrap();
            }
            over.store(true, std::sync::atomic::Ordering::Relaxed);
        });
        fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn a_record_is_read_back_and_a_clean_detach_leaves_none() {
        let dir = dir("record");
        let place = Place::new(&dir, "db");
        let _lock = place.lock().unwrap().unwrap();
        assert_eq!(place.read().unwrap(), None);
        place.write(&record("db")).unwrap();
        assert_eq!(place.read().unwrap(), Some(record("db")));
        let names: Vec<_> = Place::all(&dir).unwrap().iter().map(|place| place.volume().to_owned()).collect();
        assert_eq!(names, ["db"]);
        place.remove().unwrap();
        place.remove().unwrap();
        assert!(Place::all(&dir).unwrap().is_empty() && place.read().unwrap().is_none());
        fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn a_target_that_comes_up_is_listed_before_it_has_a_record_and_not_when_it_has_gone() {
        let dir = dir("starting");
        let place = Place::new(&dir, "db");
        let count = || Place::all(&dir).unwrap().len();
        let lock = place.lock().unwrap().unwrap();
        assert_eq!((count(), place.read().unwrap()), (1, None));
        drop(lock);
        assert_eq!(count(), 0);
        fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn what_is_no_record_is_named() {
        let dir = dir("bad");
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join("db.json"), "{}").unwrap();
        let error = Place::new(&dir, "db").read().unwrap_err().to_string();
        assert!(error.contains("db.json") && error.contains("remove it"), "{error}");
        fs::remove_dir_all(&dir).unwrap();
    }
}
