//! What the director sends to the machines, and what they send back.

use crate::inspector::Found;
use conductor_model::api::{DiskReport, VolumeMap};

/// To a machine.
pub(crate) enum Mail {
    /// To a node's reactor.
    Node(node_core::Mail),
    /// To a client's lane.
    Lane(LaneMail),
}

/// To a client's lane.
pub(crate) enum LaneMail {
    /// A map, asked for or not.
    Map(VolumeMap),
    /// There is something to do.
    Wake,
    /// Finish and end.
    Stop,
}

/// From a machine.
#[derive(Debug)]
pub(crate) enum Letter {
    /// A node's disk is formatted or open, and the node serves.
    Opened(DiskReport),
    /// What a node says to the conductor.
    Node(node_core::Letter),
    /// What an inspector found.
    Found(Vec<Found>),
    /// A lane wants a fresh map.
    WantsMap,
    /// A machine stopped; what it left behind, if anything.
    Stopped(Result<(), String>),
    /// A machine cannot go on.
    Failed(String),
}

impl TryFrom<Mail> for node_core::Mail {
    type Error = ();
    fn try_from(mail: Mail) -> Result<Self, ()> {
        if let Mail::Node(mail) = mail { Ok(mail) } else { Err(()) }
    }
}

impl TryFrom<Mail> for LaneMail {
    type Error = ();
    fn try_from(mail: Mail) -> Result<Self, ()> {
        if let Mail::Lane(mail) = mail { Ok(mail) } else { Err(()) }
    }
}
