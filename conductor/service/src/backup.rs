//! Backups of a conductor's records, and states made from them or from nothing (rule 12), in a file or in etcd.
//!
//! A backup is text: a head with what it is of, a record of JSON in each line, and a last line with the CRC32C of all before it.
//! ```text
//! {"trine":"conductor backup","version":1,"cluster":…,"commit":…,"taken":…,"records":N}
//! {"meta":{…}} …
//! {"crc32c":"0123abcd"}
//! ```
//! It is consistent: the records of one transaction. What is made from it, or from nothing, is in doubt until it is adopted.

use crate::store::{found::found, redb};
use crate::{Error, EtcdStore, Store, clock::Clock};
use conductor_model::{ClusterId, Commit, Conductor, Dirty, Millis, Record};
use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, RenameFlags, renameat2};
use serde::{Deserialize, Serialize};
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Of the text, not of the records in it.
const VERSION: u32 = 1;
const WHAT: &str = "conductor backup";

/// Why there is no backup, or no state made of it.
#[derive(Debug, thiserror::Error)]
pub enum BackupError {
    /// Nothing is written over.
    #[error("{0} exists: name another file, or move it away")]
    Exists(PathBuf),
    /// The file cannot be written or read.
    #[error("cannot {what} {path}")]
    Io {
        /// What for.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It is no backup, or not whole.
    #[error("{path} cannot be used: {why}")]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
    /// The state cannot be made.
    #[error("the conductor's state cannot be made")]
    State(#[from] Error),
}

/// What a backup is of.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Head {
    trine: String,
    version: u32,
    /// The cluster.
    pub cluster: ClusterId,
    /// Its newest transaction.
    pub commit: Commit,
    /// When it was taken.
    pub taken: Millis,
    /// How many records follow.
    pub records: u64,
}

#[derive(Serialize, Deserialize)]
struct Tail {
    crc32c: String,
}

/// The text of a backup.
pub(crate) fn text(
    cluster: ClusterId,
    commit: Commit,
    taken: Millis,
    records: &[Record],
) -> Result<String, serde_json::Error> {
    let count = records.len() as u64;
    let head = Head { trine: WHAT.to_owned(), version: VERSION, cluster, commit, taken, records: count };
    let mut text = serde_json::to_string(&head)? + "\n";
    for record in records {
        text += &serde_json::to_string(record)?;
        text.push('\n');
    }
    let tail = Tail { crc32c: format!("{:08x}", crc32c::crc32c(text.as_bytes())) };
    Ok(text + &serde_json::to_string(&tail)? + "\n")
}

/// Takes a backup apart; one sentence if it is none.
fn parse(text: &str) -> Result<(Head, Vec<Record>), String> {
    let at = text.trim_end().rfind('\n').map(|at| at + 1).ok_or("it is no backup of a conductor")?;
    let (body, tail) = text.split_at(at);
    let head = body.lines().next().unwrap_or_default();
    let head: Head = serde_json::from_str(head).map_err(|_| "it is no backup of a conductor")?;
    if head.trine != WHAT {
        return Err("it is no backup of a conductor".to_owned());
    }
    if head.version != VERSION {
        return Err(format!("it has version {}, this program reads {VERSION}", head.version));
    }
    let tail: Tail = serde_json::from_str(tail.trim_end()).map_err(|_| "its end is missing")?;
    if tail.crc32c != format!("{:08x}", crc32c::crc32c(body.as_bytes())) {
        return Err("its checksum is wrong".to_owned());
    }
    let records = body.lines().skip(1).map(serde_json::from_str).collect::<Result<Vec<Record>, _>>();
    let records = records.map_err(|error| format!("a record is not as expected: {error}"))?;
    match records.len() as u64 == head.records {
        true => Ok((head, records)),
        false => Err(format!("it has {} records instead of {}", records.len(), head.records)),
    }
}

/// Keeps a backup: all of it, durably, or nothing. Returns what it is of.
pub fn keep(path: &Path, text: &str) -> Result<Head, BackupError> {
    let (head, _) = parse(text).map_err(|why| BackupError::Damaged { path: path.to_owned(), why })?;
    let io = |what| move |source| BackupError::Io { what, path: path.to_owned(), source };
    let (part, mut file) = Part::beside(path).map_err(io("write"))?;
    let written = file.write_all(text.as_bytes()).and_then(|()| file.sync_all());
    written.map_err(io("write"))?;
    match part.place(path).map_err(io("name"))? {
        true => Ok(head),
        false => Err(BackupError::Exists(path.to_owned())),
    }
}

/// Makes a state from a backup.
pub fn recover(backup: &Path, store: &Store) -> Result<Head, BackupError> {
    let io = |source| BackupError::Io { what: "read", path: backup.to_owned(), source };
    let damaged = |why| BackupError::Damaged { path: backup.to_owned(), why };
    let (head, records) = parse(&fs::read_to_string(backup).map_err(io)?).map_err(damaged)?;
    let now = Clock::start().now();
    let mut model = Conductor::restore(records, now).map_err(|corrupt| damaged(corrupt.to_string()))?;
    let _: Dirty = model.restored(now);
    make(store, &model)?;
    Ok(head)
}

/// Makes a state that knows nothing but that its cluster's was lost; which one, the first node says, if it is not given.
pub fn recover_from_nodes(cluster: Option<ClusterId>, store: &Store) -> Result<(), BackupError> {
    let (model, _) = Conductor::recovering(cluster, Clock::start().now());
    make(store, &model)
}

fn make(store: &Store, model: &Conductor) -> Result<(), BackupError> {
    match store {
        Store::Redb(path) => make_file(path, model),
        Store::Etcd(at) => make_in_etcd(at, model),
    }
}

fn make_in_etcd(at: &EtcdStore, model: &Conductor) -> Result<(), BackupError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|source| Error::System { what: "start a runtime", source })?;
    Ok(runtime.block_on(found(at, model))?)
}

fn make_file(store: &Path, model: &Conductor) -> Result<(), BackupError> {
    if store.exists() {
        return Err(BackupError::Exists(store.to_owned()));
    }
    match redb::Store::make(store, model)? {
        true => Ok(()),
        false => Err(BackupError::Exists(store.to_owned())),
    }
}

/// A file that is being written, in the directory where it is to be, and gone unless it is given its name there.
///
/// What it is called until then nobody else's file is: neither another's that is being written for the same name, nor what one that was
/// killed has left.
pub(crate) struct Part(PathBuf);

impl Part {
    /// A new file, to read and to write.
    pub(crate) fn beside(path: &Path) -> io::Result<(Self, File)> {
        let mut name = path.file_name().unwrap_or_default().to_owned();
        name.push(format!(".{:016x}.part", getrandom::u64().map_err(io::Error::other)?));
        let part = path.with_file_name(name);
        let file = File::options().read(true).write(true).create_new(true).open(&part)?;
        Ok((Self(part), file))
    }

    /// Gives the file, which is whole and durable, its name. False if there is one of that name, to which nothing happens.
    pub(crate) fn place(self, path: &Path) -> io::Result<bool> {
        let named = match renameat2(AT_FDCWD, &self.0, AT_FDCWD, path, RenameFlags::RENAME_NOREPLACE) {
            // Not every file system can do that; a link does as much, where there are links.
            Err(Errno::EINVAL | Errno::ENOSYS) => fs::hard_link(&self.0, path),
            named => named.map_err(io::Error::from),
        };
        match named {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Ok(false),
            named => named?,
        }
        let directory = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        File::open(directory).and_then(|directory| directory.sync_all())?;
        Ok(true)
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        // Under this name it is of no use, or there no more.
        let _ = fs::remove_file(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn backup() -> String {
        let (model, _) = Conductor::new(ClusterId(7), Millis(1));
        text(model.cluster(), model.commit(), Millis(5), &model.snapshot()).unwrap()
    }

    #[test]
    fn a_backup_is_whole_or_refused() {
        let text = backup();
        let (head, records) = parse(&text).unwrap();
        assert_eq!((head.cluster, head.commit, head.taken, records.len()), (ClusterId(7), Commit(1), Millis(5), 1));
        for cut in 0..text.len() - 1 {
            assert!(parse(&text[..cut]).is_err(), "{cut} bytes of it");
        }
        assert_eq!(
            parse(&text.replace("\"next_volume\":1", "\"next_volume\":2")).unwrap_err(),
            "its checksum is wrong"
        );
        assert!(parse("").is_err() && parse("hello\nworld\n").is_err());
    }

    /// Neither what was there, nor what somebody else writes for the same name.
    #[test]
    fn of_two_backups_with_one_name_there_is_one_and_others_files_stay() {
        let dir = std::env::temp_dir().join(format!("trine-backups-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let mine = dir.join("mine");
        fs::write(&mine, "mine").unwrap();
        let (file, state) = (dir.join("b"), dir.join("s.redb"));
        for of in [&file, &state] {
            std::os::unix::fs::symlink(&mine, of.with_added_extension("part")).unwrap();
        }
        let text = backup();
        let done = std::thread::scope(|scope| {
            let (file, text) = (&file, &text);
            let both: Vec<_> = (0..8).map(|_| scope.spawn(move || keep(file, text))).collect();
            let done = both.into_iter().map(|keeps| match keeps.join().unwrap() {
                Ok(_) => 1,
                Err(BackupError::Exists(_)) => 0,
                Err(other) => panic!("{other:?}"),
            });
            done.sum::<usize>()
        });
        assert_eq!(done, 1);
        recover(&file, &Store::Redb(state.clone())).unwrap();
        assert_eq!(fs::read_to_string(&mine).unwrap(), "mine");
        for of in [&file, &state] {
            fs::remove_file(of.with_added_extension("part")).unwrap();
        }
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 3);
        fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn nothing_is_written_over() {
        let dir = std::env::temp_dir().join(format!("trine-backup-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let (file, state) = (dir.join("b"), dir.join("s.redb"));
        let store = Store::Redb(state.clone());
        keep(&file, &backup()).unwrap();
        assert!(matches!(keep(&file, &backup()), Err(BackupError::Exists(_))));
        recover(&file, &store).unwrap();
        assert!(matches!(recover(&file, &store), Err(BackupError::Exists(_))));
        assert!(matches!(recover_from_nodes(None, &store), Err(BackupError::Exists(_))));
        assert!(matches!(recover(&dir.join("none"), &Store::Redb(dir.join("t"))), Err(BackupError::Io { .. })));
        let left: Vec<_> = fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left.len(), 2, "{left:?}");
        let (_, model) = redb::Store::open(state, true, Millis(9)).unwrap();
        assert_eq!(model.cluster(), ClusterId(7));
        assert!(model.doubted().unwrap().contains("backup of commit #1"));
        fs::remove_dir_all(&dir).unwrap();
    }
}
