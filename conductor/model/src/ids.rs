//! Names of things. Each is its own type, so that one cannot be passed for another; none is ever used again for
//! something else (a number drawn at random has 64 bits, a counted one only grows).

use serde::de::Visitor;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::str::FromStr;

/// A number that people see in one way.
macro_rules! id {
    ($(#[$attribute:meta])* $name:ident($of:ty) $format:expr) => {
        $(#[$attribute])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        pub struct $name(pub $of);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, $format, self.0)
            }
        }
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }
    };
}

/// One that is counted up, or chosen: a number in JSON, too.
macro_rules! counted {
    ($(#[$doc:meta])* $name:ident($of:ty) $format:literal) => {
        id!($(#[$doc])* #[derive(Serialize, Deserialize)] #[serde(transparent)] $name($of) $format);
    };
}

/// One that is drawn at random: in JSON it is written as people see it, because many readers of JSON round numbers above 2^53.
macro_rules! drawn {
    ($(#[$doc:meta])* $name:ident $letter:literal) => {
        id!($(#[$doc])* $name(u64) concat!($letter, "{:016x}"));

        impl FromStr for $name {
            type Err = NotAnId;
            fn from_str(text: &str) -> Result<Self, NotAnId> {
                drawn($letter, text).map(Self)
            }
        }
        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }
        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                deserializer.deserialize_any(Drawn($letter)).map(Self)
            }
        }
    };
}

/// It does not look as it should: like `d00000000000000ab`, for a disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NotAnId(&'static str);

impl fmt::Display for NotAnId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "write it as it is listed: {} and 16 hexadecimal digits", self.0)
    }
}

impl std::error::Error for NotAnId {}

fn drawn(letter: &'static str, text: &str) -> Result<u64, NotAnId> {
    let digits = text.strip_prefix(letter).filter(|digits| digits.len() == 16 && !digits.starts_with('+'));
    digits.and_then(|digits| u64::from_str_radix(digits, 16).ok()).ok_or(NotAnId(letter))
}

/// Reads what `drawn` wrote, and the bare numbers that were written before.
struct Drawn(&'static str);

impl Visitor<'_> for Drawn {
    type Value = u64;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} and 16 hexadecimal digits", self.0)
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<u64, E> {
        drawn(self.0, text).map_err(E::custom)
    }

    fn visit_u64<E>(self, number: u64) -> Result<u64, E> {
        Ok(number)
    }
}

counted!(/// A volume: what a host attaches. Counted up by the conductor, never used twice.
    VolumeId(u32) "v{}");
counted!(/// The position of a shard in its volume: byte offset / shard size.
    ShardIndex(u32) "{}");
counted!(/// A storage node: one process per machine. Chosen by the operator, 1 or more.
    NodeId(u32) "n{}");
drawn!(/// One disk (a file or block device with one store), drawn at random when it is formatted.
    DiskId "d");
drawn!(/// One copy of one shard, drawn at random when the copy is created empty (K = 0); never listed again once unlisted.
    CopyId "c");
drawn!(/// Drawn at random each time a store is opened, kept in memory only: a restart is noticed by the first message.
    OpenId "o");
counted!(/// Version of one process's life; a client's higher one fences its lower ones.
    Incarnation(u64) "i{}");
counted!(/// Version of a shard's replica configuration. 0 is "none yet"; the first is 1.
    Epoch(u64) "e{}");
counted!(/// Position of a write in its shard's order within an epoch. 0 is "none yet"; the first is 1.
    Sequence(u64) "{}");
drawn!(/// One cluster: drawn at random when its conductor starts for the first time.
    ClusterId "k");
counted!(/// Number of a conductor's transaction; the first is 1, and it only grows.
    Commit(u64) "#{}");
counted!(/// A snapshot of a volume: counted up by the conductor, never used twice in a cluster.
    SnapshotId(u64) "s{}");
counted!(/// Something the conductor has given a node to do: counted up, never used twice in a cluster.
    OrderId(u64) "q{}");
counted!(/// Version of a volume's attachment; nodes refuse lower ones. 0 is "never attached".
    AttachGeneration(u64) "g{}");

/// A shard: a fixed-size range of a volume, the unit of placement and replication.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
pub struct ShardId {
    /// The volume it belongs to.
    pub volume: VolumeId,
    /// Its position there.
    pub index: ShardIndex,
}

impl fmt::Display for ShardId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.volume, self.index)
    }
}
impl fmt::Debug for ShardId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// (epoch, sequence): given to a write by the primary. Ordered by epoch first; no stamp is given out twice.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
pub struct Stamp {
    /// The epoch it was given in.
    pub epoch: Epoch,
    /// Its place in that epoch.
    pub sequence: Sequence,
}

impl fmt::Display for Stamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.epoch, self.sequence)
    }
}
impl fmt::Debug for Stamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_drawn_number_is_in_json_as_people_see_it() {
        let disk = DiskId(u64::MAX - 1);
        let json = serde_json::to_string(&disk).unwrap();
        assert_eq!((json.as_str(), disk.to_string().parse()), ("\"dfffffffffffffffe\"", Ok(disk)));
        assert_eq!(serde_json::from_str::<DiskId>(&json).unwrap(), disk);
        assert_eq!(serde_json::from_str::<DiskId>("18446744073709551614").unwrap(), disk, "as it was written before");
        assert_eq!(serde_json::to_string(&VolumeId(7)).unwrap(), "7");
        let key = std::collections::BTreeMap::from([(CopyId(0xab), 1)]);
        let json = serde_json::to_string(&key).unwrap();
        assert_eq!(json, "{\"c00000000000000ab\":1}");
        assert_eq!(serde_json::from_str::<std::collections::BTreeMap<CopyId, i32>>(&json).unwrap(), key);
        for bad in
            ["", "d", "31", "d1f", "c000000000000001f", "d000000000000001g", "d+00000000000001f", "d0000000000000001f"]
        {
            assert_eq!(bad.parse::<DiskId>(), Err(NotAnId("d")), "{bad}");
            assert!(serde_json::from_str::<DiskId>(&format!("\"{bad}\"")).is_err(), "{bad}");
        }
        assert!(serde_json::from_str::<DiskId>("-1").is_err());
    }
}
