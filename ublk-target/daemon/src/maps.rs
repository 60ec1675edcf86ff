//! Fetches the volume's map: when a lane asks, and now and then to see that the volume has grown.
//!
//! One question at a time, whatever the number of lanes, and a pause between two. While a conductor does not answer, the lanes ask on.

use crate::happening::Happening;
use crate::limits::{MAP_EVERY, MAP_PAUSE};
use crate::subject::Subject;
use conductor_client::Client;
use conductor_model::{SnapshotId, VolumeId};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};

/// Runs until the lanes or the main thread have ended. A conductor that is away is no trouble as long as no map changes. It is asked by name;
/// what has the name by now may be something else than what the lanes serve, of which it is told nothing.
pub(crate) fn run(
    client: &Client,
    subject: &Subject,
    whose: (VolumeId, Option<SnapshotId>),
    asked: &Receiver<()>,
    tell: &Sender<Happening>,
) {
    let mut fresh = true;
    loop {
        match asked.recv_timeout(MAP_EVERY) {
            Ok(()) | Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        let was_fresh = std::mem::replace(&mut fresh, false);
        match subject.map(client) {
            Ok(map) if (map.volume, map.snapshot) == whose => {
                fresh = true;
                if tell.send(Happening::Map(Arc::new(map))).is_err() {
                    return;
                }
            }
            Ok(_) if was_fresh => {
                tracing::warn!("{subject} is something else by now: what this target serves is deleted");
            }
            Err(error) if was_fresh => tracing::warn!(%error, "no new map; I/O goes on with the one there is"),
            Ok(_) | Err(_) => {}
        }
        std::thread::sleep(MAP_PAUSE);
    }
}
