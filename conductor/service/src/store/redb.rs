//! The conductor's file: a redb database with two tables.
//!
//! ```text
//! format   "format" → 1
//! records  "meta" | "node/0000000001" | "volume/…" | "shard/…/…" | "drop/…/…" | "snapshot/…/…" |
//!          "work/…/…/…" | "copy/…" | "scrub/…" | "event/…" → the record as JSON
//! ```
//! Opened under redb's exclusive lock. Every change is one transaction that is durable when `commit` returns.

use super::{FORMAT, Records, changes, encode, restore};
use crate::Error;
use conductor_model::{ClusterId, Conductor, Key, Millis, Record};
use redb::{Database, DatabaseError, Durability, ReadableDatabase, ReadableTable, TableDefinition};
use std::fs::File;
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
    /// Opens the file, or makes it with a new cluster inside, and builds the state from it.
    pub(crate) fn open(path: PathBuf, now: Millis) -> Result<(Self, Conductor), Error> {
        let is_new = !path.exists();
        let database = Database::create(&path).map_err(|error| match error {
            DatabaseError::DatabaseAlreadyOpen => Error::InUse(path.clone()),
            other => Error::Open { path: path.clone(), source: Box::new(other.into()) },
        })?;
        let mut store = Self { database, path };
        if is_new {
            store.sync_directory()?;
        }
        let found = store.read().map_err(|source| Error::Open { path: store.path.clone(), source })?;
        let (format, records) = found;
        if let Some(model) = restore(&store.path.display().to_string(), format, records, now)? {
            return Ok((store, model));
        }
        let cluster = ClusterId(getrandom::u64().map_err(Error::Random)?);
        let (model, dirty) = Conductor::new(cluster, now);
        store.commit(&changes(&model, &dirty))?;
        Ok((store, model))
    }

    /// Makes a file with this state, where there is none.
    pub(crate) fn make(path: PathBuf, model: &Conductor) -> Result<(), Error> {
        let failed = |error: DatabaseError| Error::Open { path: path.clone(), source: Box::new(error.into()) };
        let database = Database::create(&path).map_err(failed)?;
        let all: Vec<_> = model.snapshot().into_iter().map(|record| (record.key(), Some(record))).collect();
        Self { database, path }.commit(&all)
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

    /// A new file is durable only with its name.
    fn sync_directory(&self) -> Result<(), Error> {
        let parent = self.path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let synced = File::open(parent).and_then(|directory| directory.sync_all());
        synced.map_err(|error| Error::Open { path: self.path.clone(), source: Box::new(error.into()) })
    }
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
