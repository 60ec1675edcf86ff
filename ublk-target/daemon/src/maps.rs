//! Fetches the volume's map: when a lane asks, and now and then to see that the volume has grown.
//!
//! One question at a time, whatever the number of lanes, and a pause between two. While a conductor does not answer, the lanes ask on.

use crate::happening::Happening;
use crate::limits::{MAP_EVERY, MAP_PAUSE};
use crate::subject::Subject;
use conductor_client::Client;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};

/// Runs until the lanes or the main thread have ended. A conductor that is away is no trouble as long as no map changes.
pub(crate) fn run(client: &Client, subject: &Subject, asked: &Receiver<()>, tell: &Sender<Happening>) {
    let mut reachable = true;
    loop {
        match asked.recv_timeout(MAP_EVERY) {
            Ok(()) | Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        match subject.map(client) {
            Ok(map) => {
                reachable = true;
                if tell.send(Happening::Map(Arc::new(map))).is_err() {
                    return;
                }
            }
            Err(error) => {
                if std::mem::replace(&mut reachable, false) {
                    tracing::warn!(%error, "no new map; I/O goes on with the one there is");
                }
            }
        }
        std::thread::sleep(MAP_PAUSE);
    }
}
