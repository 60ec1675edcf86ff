//! What the commands that use a volume themselves have in common: who they are, and what they say if others use it.

use crate::attach::{default_name, host, key_mark};
use crate::config::ClusterArgs;
use crate::output::{Exit, Failure, Outcome};
use std::path::Path;
use target_daemon::{Subject, TargetError, Visit};

/// As a client of its own, named after this host and `what` it does: one name for all of them, so that what a killed one left is taken over by
/// the next.
pub(crate) fn visit(cluster: &ClusterArgs, subject: Subject, what: &str) -> Outcome<Visit> {
    let (host, key) = (host()?, cluster.key()?);
    let client_name = default_name(&key_mark(&key), &subject, &host, Path::new(""), &format!("#{what}"));
    Ok(Visit { subject, conductor: cluster.client()?, key, client_name, host, volume: None })
}

/// None of them takes a volume from anybody.
pub(crate) fn in_use(error: TargetError, volume: &str, command: &str) -> Failure {
    match &error {
        TargetError::Conductor(refused) if refused.kind() == Some("attached") => {
            let way = format!("detach it there first, or read a snapshot of it: trine {command} {volume}@SNAPSHOT");
            Failure::new(Exit::Refused, format!("volume {volume} is in use (see `trine volume show {volume}`): {way}"))
        }
        _ => error.into(),
    }
}
