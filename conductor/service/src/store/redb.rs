//! The conductor's file: a redb database with two tables.
//!
//! ```text
//! format   "format" → 1
//! records  "meta" | "node/0000000001" | "volume/…" | "shard/…/…" | "drop/…/…" | "snapshot/…/…" |
//!          "work/…/…/…" | "copy/…" | "scrub/…" | "event/…" → the record as JSON
//! ```
//! Opened under redb's exclusive lock. Every change is one transaction that is durable when `commit` returns.

use super::{FORMAT, Records, encode, new_cluster, restore, tell_of_new};
use crate::Error;
use crate::backup::Part;
use conductor_model::{Conductor, Key, Millis, Record};
use redb::{Database, DatabaseError, Durability, ReadableDatabase, ReadableTable, TableDefinition};
use std::path::{Path, PathBuf};

const FORMATS: TableDefinition<'_, &str, u64> = TableDefinition::new("format");
const RECORDS: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("records");

/// The open file.
#[derive(Debug)]
pub(crate) struct Store {
    database: Database,
    path: PathBuf,
}

impl Store {
    /// Opens the file and builds the state from it. Where there is none it is made with a new cluster inside, unless one has to be there.
    pub(crate) fn open(path: PathBuf, existing: bool, now: Millis) -> Result<(Self, Conductor), Error> {
        let place = path.display().to_string();
        let found = match std::fs::metadata(&path) {
            Ok(found) => Some(found.len()),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
            Err(error) => return Err(unopened(&path, error.into())),
        };
        match found {
            // Should another have made it in this moment, it is that one's.
            None => {
                let (model, _) = new_cluster(&place, existing, now)?;
                if Self::make(&path, &model)? {
                    tell_of_new(&place, &model);
                }
            }
            // No database is: what made it empty took a cluster's state.
            Some(0) => return Err(Error::Damaged { place, why: "the file is empty".to_owned() }),
            Some(_) => {}
        }
        let failed = |error| match error {
            DatabaseError::DatabaseAlreadyOpen => Error::InUse(path.clone()),
            other => unopened(&path, other.into()),
        };
        let mut database = Database::create(&path).map_err(failed)?;
        // What is read later is compared with nothing.
        if !database.check_integrity().map_err(failed)? {
            return Err(Error::Damaged { place, why: "a part of it is not what was written".to_owned() });
        }
        let store = Self { database, path };
        let (format, records) = store.read().map_err(|error| unopened(&store.path, *error))?;
        match restore(&place, format, records, now)? {
            Some(model) => Ok((store, model)),
            None => Err(Error::Damaged { place, why: "no cluster is in it".to_owned() }),
        }
    }

    /// Makes a file with this state: all of it, durably, or nothing, as one that was cut short could not be told from one that was damaged.
    /// False if there is one.
    pub(crate) fn make(path: &Path, model: &Conductor) -> Result<bool, Error> {
        let failed = |error: redb::Error| Error::Make { path: path.to_owned(), source: Box::new(error) };
        let (part, file) = Part::beside(path).map_err(|error| failed(error.into()))?;
        let database = Database::builder().create_file(file).map_err(|error| failed(error.into()))?;
        let all: Vec<_> = model.snapshot().into_iter().map(|record| (record.key(), Some(record))).collect();
        Self { database, path: path.to_owned() }.write(&all).map_err(failed)?;
        part.place(path).map_err(|error| failed(error.into()))
    }

    #[expect(clippy::type_complexity, reason = "one caller")]
    fn read(&self) -> Result<(Option<u64>, Vec<(String, Vec<u8>)>), Box<redb::Error>> {
        let boxed = |e: redb::Error| Box::new(e);
        let read = self.database.begin_read().map_err(|e| boxed(e.into()))?;
        let format = match read.open_table(FORMATS) {
            Ok(table) => table.get("format").map_err(|e| boxed(e.into()))?.map(|v| v.value()),
            Err(redb::TableError::TableDoesNotExist(_)) => None,
            Err(other) => return Err(boxed(other.into())),
        };
        let mut records = Vec::new();
        match read.open_table(RECORDS) {
            Ok(table) => {
                for entry in table.iter().map_err(|e| boxed(e.into()))? {
                    let (key, value) = entry.map_err(|e| boxed(e.into()))?;
                    records.push((key.value().to_owned(), value.value().to_vec()));
                }
            }
            Err(redb::TableError::TableDoesNotExist(_)) => {}
            Err(other) => return Err(boxed(other.into())),
        }
        Ok((format, records))
    }

    fn write(&self, changes: &[(Key, Option<Record>)]) -> Result<(), redb::Error> {
        let mut write = self.database.begin_write()?;
        write.set_durability(Durability::Immediate)?;
        // Else a newest transaction that has rotted counts as one that never ended, and a state from the past is opened.
        write.set_two_phase_commit(true);
        {
            write.open_table(FORMATS)?.insert("format", FORMAT)?;
            let mut table = write.open_table(RECORDS)?;
            for (key, record) in changes {
                let key = key.to_string();
                match record {
                    Some(record) => {
                        table.insert(key.as_str(), encode(record)?.as_slice())?;
                    }
                    None => drop(table.remove(key.as_str())?),
                }
            }
        }
        write.commit()?;
        Ok(())
    }
}

/// Only what the file itself says is held against it: an errno is about permissions, a limit or the disk.
fn unopened(path: &Path, error: redb::Error) -> Error {
    let is_systems = match &error {
        redb::Error::Io(error) => error.raw_os_error().is_some(),
        // Said after the first one only.
        redb::Error::PreviousIo => true,
        _ => false,
    };
    let (path, source) = (path.to_owned(), Box::new(error));
    if is_systems { Error::Withheld { path, source } } else { Error::Open { path, source } }
}

impl Records for Store {
    fn commit(&mut self, changes: &[(Key, Option<Record>)]) -> Result<(), Error> {
        let written = self.write(changes);
        written.map_err(|source| Error::Persist { path: self.path.clone(), source: Box::new(source) })
    }

    /// The file is locked.
    fn is_ours(&self) -> Result<(), Error> {
        Ok(())
    }
}
