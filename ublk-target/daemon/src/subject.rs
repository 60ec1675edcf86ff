//! What a target serves: a volume, or one of its snapshots, `VOLUME@SNAPSHOT`.
//!
//! A snapshot is only read: by any number of targets at once, none of which the conductor knows. Everywhere on the host it goes by its
//! whole name, which no volume can have.

use crate::error::TargetError;
use conductor_client::{Client, Error};
use conductor_model::api::VolumeMap;
use conductor_model::{VolumeId, check_snapshot_name, check_volume_name};
use std::fmt;
use std::str::FromStr;

/// See the module's head.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Subject {
    /// The volume's name.
    volume: String,
    /// The snapshot's.
    snapshot: Option<String>,
}

impl FromStr for Subject {
    type Err = conductor_model::Error;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        let (volume, snapshot) = match name.split_once('@') {
            Some((volume, snapshot)) => (volume, Some(snapshot)),
            None => (name, None),
        };
        check_volume_name(volume)?;
        snapshot.map_or(Ok(()), check_snapshot_name)?;
        Ok(Self { volume: volume.to_owned(), snapshot: snapshot.map(str::to_owned) })
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.volume)?;
        self.snapshot.as_ref().map_or(Ok(()), |snapshot| write!(f, "@{snapshot}"))
    }
}

impl Subject {
    /// True for a snapshot.
    pub fn is_snapshot(&self) -> bool {
        self.snapshot.is_some()
    }

    /// Where it is served.
    pub(crate) fn map(&self, conductor: &Client) -> Result<VolumeMap, Error> {
        match &self.snapshot {
            Some(snapshot) => conductor.snapshot_map(&self.volume, snapshot),
            None => conductor.map(&self.volume),
        }
    }

    /// The same of what is known to be this volume's.
    pub(crate) fn map_of(&self, conductor: &Client, volume: VolumeId) -> Result<VolumeMap, Error> {
        match &self.snapshot {
            Some(snapshot) => conductor.snapshot_map_of(&self.volume, snapshot, volume),
            None => conductor.map_of(&self.volume, volume),
        }
    }
}

/// A target that goes on with a dead one's device must show the same content.
pub(crate) fn check_same(record: &crate::Record, map: &VolumeMap) -> Result<(), TargetError> {
    if record.snapshot == map.snapshot && record.volume_id == map.volume {
        return Ok(());
    }
    let why = format!("{} shows another one of that name, which was deleted: `trine detach` it first", record.device);
    Err(TargetError::Refused { volume: record.volume.clone(), why })
}

/// True if a conductor that was to end an attachment has ended it already: somebody else has the volume, it is deleted, or the key was removed.
pub(crate) fn is_ended(error: &Error) -> bool {
    matches!(error.kind(), Some("not-attached" | "no-volume" | "forbidden" | "key-removed"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_snapshot_is_named_after_its_volume() {
        let parse = |name: &str| name.parse::<Subject>();
        assert!(!parse("db").unwrap().is_snapshot());
        let snapshot = parse("db@monday").unwrap();
        assert!(snapshot.is_snapshot());
        assert_eq!((snapshot.volume.as_str(), snapshot.to_string().as_str()), ("db", "db@monday"));
        for bad in ["", "@", "db@", "@monday", "db@a@b", "db@../x", "../x", "DB"] {
            assert!(parse(bad).is_err(), "{bad:?}");
        }
    }
}
