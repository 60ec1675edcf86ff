//! Where the conductor's records are kept: behind one seam, in a file of its own (`redb`) or in etcd, shared with other conductors.
//!
//! ```text
//! ledger ──► Records ─┬─ redb    one file, locked: nobody else writes
//!                     └─ etcd ── redo: each transaction only while the leader's key is ours, large ones in steps
//! ```

pub(crate) mod etcd;
pub(crate) mod found;
mod page;
pub(crate) mod redb;
mod redo;

use crate::Error;
use conductor_model::{ClusterId, Conductor, Dirty, Key, Millis, Record};

/// What the records look like.
pub(crate) const FORMAT: u64 = 1;

/// Where the ledger puts changed records.
pub(crate) trait Records: Send + 'static {
    /// Makes the changes durable, all or none; `None` removes a record.
    fn commit(&mut self, changes: &[(Key, Option<Record>)]) -> Result<(), Error>;

    /// An error once somebody else may have changed the records: what was read from them may not be answered any more.
    fn is_ours(&self) -> Result<(), Error>;
}

/// The present content of what a command changed.
pub(crate) fn changes(model: &Conductor, dirty: &Dirty) -> Vec<(Key, Option<Record>)> {
    dirty.keys().map(|key| (key, model.record(key))).collect()
}

/// The state that is kept at `place`; `None` if nothing is.
fn restore(
    place: &str,
    format: Option<u64>,
    records: Vec<(String, Vec<u8>)>,
    now: Millis,
) -> Result<Option<Conductor>, Error> {
    let damaged = |why: String| Error::Damaged { place: place.to_owned(), why };
    match format {
        Some(FORMAT) => {}
        Some(found) => return Err(Error::Format { place: place.to_owned(), found }),
        None if records.is_empty() => return Ok(None),
        None => return Err(damaged("it has records and no format".to_owned())),
    }
    let mut parsed = Vec::with_capacity(records.len());
    for (key, value) in records {
        let record: Record = serde_json::from_slice(&value).map_err(|error| damaged(format!("{key}: {error}")))?;
        if record.key().to_string() != key {
            return Err(damaged(format!("{key} holds {}", record.key())));
        }
        parsed.push(record);
    }
    Conductor::restore(parsed, now).map(Some).map_err(|corrupt| damaged(corrupt.to_string()))
}

/// A cluster where none is kept. That one was may be unknown to whoever starts a conductor, but not to who says so.
fn new_cluster(place: &str, existing: bool, now: Millis) -> Result<(Conductor, Dirty), Error> {
    if existing {
        return Err(Error::NoCluster { place: place.to_owned() });
    }
    let cluster = ClusterId(getrandom::u64().map_err(Error::Random)?);
    Ok(Conductor::new(cluster, now))
}

/// When it is durable: nobody is to look for what could not be made.
fn tell_of_new(place: &str, model: &Conductor) {
    tracing::warn!(
        place,
        cluster = %model.cluster(),
        "no cluster's state was here: a new cluster is made. If there should be one, stop all conductors and check where they were told \
         that it is; if it is lost, `trine conductor recover` makes it again from what the nodes hold"
    );
}

fn encode(record: &Record) -> Result<Vec<u8>, std::io::Error> {
    serde_json::to_vec(record).map_err(std::io::Error::other)
}
