//! Fetches the volume's map: when a lane asks, and now and then to see that the volume has grown.
//!
//! One question at a time, whatever the number of lanes, and a pause between two. While a conductor does not answer, the lanes ask on.

use crate::happening::Happening;
use crate::limits::{GONE, MAP_EVERY, MAP_PAUSE};
use crate::subject::Subject;
use conductor_client::Client;
use conductor_model::{SnapshotId, VolumeId};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::Instant;

/// Runs until the lanes or the main thread have ended. A conductor that is away is no trouble as long as no map changes. It is asked by name;
/// what has the name by now may be something else than what the lanes serve, of which it is told nothing.
///
/// Who writes to a volume that is deleted is fenced by its nodes, as long as they know of it: nodes that started since do not, nor does one that
/// is gone; nor can that one fence who has a key that was removed. A snapshot's readers have no attachment that could be. There nodes only say
/// that it is not here, as they do of one that has moved, and a lane asks for a map. If that is so, and the conductor knows of none, it is gone. The conductor's word alone is not enough, whose
/// state may have been lost: it counts from when a lane asks, one that leads another cluster knows nothing of this one, and one in doubt does
/// not say that there is none.
pub(crate) fn run(
    client: &Client,
    subject: &Subject,
    whose: (VolumeId, Option<SnapshotId>),
    asked: &Receiver<()>,
    tell: &Sender<Happening>,
) {
    let (mut fresh, mut unknown) = (true, None::<Instant>);
    let led = || client.version().ok().map(|version| version.cluster);
    let cluster = led();
    loop {
        let is_wanted = match asked.recv_timeout(MAP_EVERY) {
            Ok(()) => true,
            Err(RecvTimeoutError::Timeout) => false,
            Err(RecvTimeoutError::Disconnected) => return,
        };
        let was_fresh = std::mem::replace(&mut fresh, false);
        let answer = subject.map_of(client, whose.0);
        let deleted = || format!("{subject} is deleted, or has another name");
        let no_more = match &answer {
            Ok(map) => ((map.volume, map.snapshot) != whose).then(deleted),
            Err(error) => match error.kind() {
                Some("no-volume" | "no-snapshot") => Some(deleted()),
                Some("key-removed") => Some(error.to_string()),
                _ => None,
            },
        };
        let is_unknown = no_more.is_some();
        unknown = unknown.filter(|_| is_unknown || answer.is_err()).or((is_unknown && is_wanted).then(Instant::now));
        let is_gone = is_wanted && unknown.is_some_and(|since| since.elapsed() > GONE);
        let no_more = no_more.filter(|_| is_gone && cluster.is_some() && led() == cluster);
        if let Some(no_more) = no_more {
            tracing::error!("{no_more}: every request fails");
            if tell.send(Happening::Gone).is_err() {
                return;
            }
        }
        match answer {
            Ok(map) if !is_unknown => {
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
