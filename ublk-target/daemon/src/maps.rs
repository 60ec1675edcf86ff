//! Fetches the volume's map: when a lane asks, and now and then to see that the volume has grown.

use crate::happening::Happening;
use crate::limits::MAP_EVERY;
use conductor_client::Client;
use conductor_model::api::VolumeMap;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender};
use std::sync::{Arc, Mutex, PoisonError};

/// Lanes that are being started. A ublk device is started by reading from it, so its lanes may need a new map before anybody can
/// send them mail.
pub(crate) type Early = Arc<Mutex<Vec<SyncSender<Arc<VolumeMap>>>>>;

/// Runs until the lanes or the main thread have ended. A conductor that is away is no trouble as long as no map changes.
pub(crate) fn run(client: &Client, volume: &str, asked: &Receiver<()>, early: &Early, tell: &Sender<Happening>) {
    let mut reachable = true;
    loop {
        match asked.recv_timeout(MAP_EVERY) {
            Ok(()) | Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        match client.map(volume) {
            Ok(map) => {
                reachable = true;
                let map = Arc::new(map);
                for lane in early.lock().unwrap_or_else(PoisonError::into_inner).iter() {
                    let _has_one = lane.try_send(Arc::clone(&map));
                }
                if tell.send(Happening::Map(map)).is_err() {
                    return;
                }
            }
            Err(error) => {
                if std::mem::replace(&mut reachable, false) {
                    tracing::warn!(%error, "no new map; I/O goes on with the one there is");
                }
            }
        }
    }
}
