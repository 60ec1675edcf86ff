//! Fetches the volume's map: when the lane asks, and now and then to see that the volume has grown.

use crate::limits::MAP_EVERY;
use crate::nbd::Mail;
use conductor_client::Client;
use reactor::{Mailbox, NotSent};
use std::sync::mpsc::{Receiver, RecvTimeoutError};

/// Runs until the lane has ended. A conductor that is away is no trouble as long as no map changes.
pub(crate) fn run(client: &Client, volume: &str, asked: &Receiver<()>, mailbox: &Mailbox<Mail>) {
    let mut reachable = true;
    loop {
        match asked.recv_timeout(MAP_EVERY) {
            Ok(()) | Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        match client.map(volume) {
            Ok(map) => {
                reachable = true;
                // A full mailbox has a newer reason to ask again; the lane does.
                if let Err(NotSent::Ended(_)) = mailbox.send(Mail::Map(Box::new(map))) {
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
