//! Clients: who has which volume, and how.

use crate::api::RangeInfo;
use crate::{AttachGeneration, Millis, NodeId, VolumeId};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// A client that wants a volume.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Attach {
    /// Its name: the same one may attach again, to recover.
    pub client: String,
    /// It will not write, and shares the volume with others that do not.
    #[serde(default)]
    pub read_only: bool,
    /// It writes only in ranges that it holds, and shares the volume with others that do so.
    #[serde(default)]
    pub shared: bool,
    /// Take the volume from whoever has it.
    #[serde(default)]
    pub force: bool,
    /// The machine that it runs on, for people; empty if it does not say.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub host: String,
    /// It goes on with what an earlier life of it has left, which was given this generation: a device, with requests that wait in it and
    /// a file system's memory of the volume. Only if nobody else has had the volume since.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resumes: Option<AttachGeneration>,
}

/// A client that is done with a volume.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Detach {
    /// Its name.
    pub client: String,
    /// The generation it was given.
    pub generation: AttachGeneration,
}

/// Who has a volume, alone. Its generation is the volume's newest.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Attachment {
    /// The client.
    pub client: String,
    /// Its machine, as it says; may be empty.
    #[serde(default)]
    pub host: String,
    /// Since when.
    pub since: Millis,
    /// The generation with which that began: later ones are its own, resumed.
    #[serde(default)]
    pub first: AttachGeneration,
}

/// One of those who use a volume together: they all read what nobody writes, or all write what they hold ranges of.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Reader {
    /// The client.
    pub client: String,
    /// Its machine, as it says; may be empty.
    #[serde(default)]
    pub host: String,
    /// The generation that it was given: each has its own.
    pub generation: AttachGeneration,
    /// It writes, in ranges that it holds.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub shared: bool,
    /// Since when.
    pub since: Millis,
    /// The generation with which that began: later ones are its own, resumed.
    #[serde(default)]
    pub first: AttachGeneration,
}

/// A client that the cluster knows.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ClientInfo {
    /// Its name.
    pub name: String,
    /// Its machine, as it said when it attached; may be empty.
    pub host: String,
    /// What it has attached, by the volume's name.
    pub volumes: Vec<ClientVolume>,
    /// Its sessions at nodes, as these told last.
    pub sessions: Vec<ClientSession>,
    /// The key that was added under this name, if one was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<KeyInfo>,
}

/// A client's presence on one reactor of a node.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ClientSession {
    /// The node.
    pub node: NodeId,
    /// The volume, or VOLUME@SNAPSHOT.
    pub of: String,
    /// The attach generation; a snapshot's readers have none.
    pub generation: AttachGeneration,
    /// It writes nothing.
    pub read_only: bool,
    /// The number of the key that it has proved to have; none if that is the cluster's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<u64>,
    /// That is a former key, and holds until then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub former_until: Option<Millis>,
    /// Ranges that it holds or waits for; some of them, if there are many.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ranges: Vec<RangeInfo>,
    /// Its connections.
    pub connections: u32,
    /// Its requests in flight.
    pub requests: u32,
    /// When the node told of it.
    pub heard: Millis,
}

/// A volume that a client has.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ClientVolume {
    /// The volume.
    pub volume: String,
    /// It shares the volume with other readers.
    pub read_only: bool,
    /// It shares the volume with others that write what they hold; if it is neither, it has the volume alone.
    #[serde(default)]
    pub shared: bool,
    /// The generation that it was given: also the incarnation that nodes know it by.
    pub generation: AttachGeneration,
    /// Since when.
    pub since: Millis,
}

/// A client whose attachments are to end.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Evict {
    /// Its name.
    pub client: String,
}

/// A key for a client.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NewKey {
    /// Its name: up to 32 letters, digits or `-_.`; its clients' names begin with it and `@`.
    pub name: String,
    /// The volumes that it is for.
    pub volumes: Vec<String>,
    /// It is for reading alone.
    #[serde(default)]
    pub read_only: bool,
}

/// A key that is to be renewed.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RotateKey {
    /// Its name.
    pub name: String,
    /// For how long the one that there is holds beside the new one.
    pub grace_ms: u64,
}

/// A key that is to be one no more.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RemoveKey {
    /// Its name.
    pub name: String,
}

/// A client's key, without its secret, which is kept nowhere.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct KeyInfo {
    /// Its name.
    pub name: String,
    /// Its number.
    pub serial: u64,
    /// The volumes that it is for.
    pub volumes: Vec<KeyVolume>,
    /// It is for reading alone.
    pub read_only: bool,
    /// When it was added, or renewed.
    pub added: Millis,
    /// Those that it was made in the place of, and that still hold.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub former: Vec<FormerKey>,
}

/// A key that was renewed.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RotatedKey {
    /// The new one.
    #[serde(flatten)]
    pub key: KeyInfo,
    /// Where the former one was to hold no more: nodes that may still take it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unconfirmed: Vec<NodeId>,
}

/// A key that another one was made in the place of.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct FormerKey {
    /// Its number.
    pub serial: u64,
    /// It holds until then.
    pub until: Millis,
    /// Clients that have sessions with it, as nodes told last.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub used_by: BTreeSet<String>,
}

/// A volume that a key is for.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct KeyVolume {
    /// Its id.
    pub id: VolumeId,
    /// Its name, unless it was deleted.
    pub name: Option<String>,
}
