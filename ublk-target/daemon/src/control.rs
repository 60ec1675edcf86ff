//! The control socket: one line in, one JSON line out, one connection at a time.
//!
//! `look` → the record and what the lane tells of itself. `stop` → finish what is in flight and end. `stop now` → fail it and end.
//! The socket's directory entry is its protection: only its owner can connect.

use crate::error::TargetError;
use crate::lane::Happening;
use crate::limits::{CONTROL_IO, CONTROL_LINE, DETACH_CALL, DRAIN, GIVE_UP, LOCK_POLL, LOOK};
use crate::nbd::Mail;
use crate::record::{Place, Record, start_time};
use crate::view::TargetView;
use conductor_client::Client;
use conductor_model::views::Detach;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use reactor::Mailbox;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::mpsc::{Receiver, Sender};
use std::thread;
use std::time::Instant;

/// The answer to `look`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Look {
    /// The attachment.
    pub record: Record,
    /// The lane.
    pub target: TargetView,
    /// What its reactor did so far.
    pub reactor: BTreeMap<String, u64>,
}

/// The answer to everything else.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Said {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

/// The target's end.
pub(crate) struct Server {
    pub(crate) listener: UnixListener,
    pub(crate) record: Record,
    pub(crate) mailbox: Mailbox<Mail>,
    pub(crate) views: Receiver<(u64, Box<TargetView>)>,
    pub(crate) tell: Sender<Happening>,
}

impl Server {
    /// Serves until the process ends.
    pub(crate) fn run(self) {
        for (number, stream) in (0..).zip(self.listener.incoming()) {
            match stream.and_then(|stream| self.serve(stream, number)) {
                Ok(()) => {}
                Err(error) => {
                    tracing::debug!(%error, "control connection");
                    thread::sleep(LOCK_POLL); // out of descriptors, perhaps: not in a tight loop
                }
            }
        }
    }

    fn serve(&self, mut stream: UnixStream, number: u64) -> std::io::Result<()> {
        stream.set_read_timeout(Some(CONTROL_IO))?;
        stream.set_write_timeout(Some(CONTROL_IO))?;
        let mut line = String::new();
        BufReader::new(&stream).take(CONTROL_LINE).read_line(&mut line)?;
        let said = |error: Option<String>| serde_json::to_vec(&Said { error });
        let mut answer = match line.trim() {
            "look" => match self.look(number) {
                Ok(look) => serde_json::to_vec(&look)?,
                Err(why) => said(Some(why))?,
            },
            "stop" => self.stop(false, &said)?,
            "stop now" => self.stop(true, &said)?,
            other => said(Some(format!("no command {other:?}: look, stop, stop now")))?,
        };
        answer.push(b'\n');
        stream.write_all(&answer)
    }

    fn stop<E>(&self, now: bool, said: &impl Fn(Option<String>) -> Result<Vec<u8>, E>) -> Result<Vec<u8>, E> {
        // A main thread that no longer listens is ending.
        let _ = self.tell.send(Happening::Stop(now));
        said(None)
    }

    fn look(&self, number: u64) -> Result<Look, String> {
        let until = Instant::now() + LOOK;
        self.mailbox.send(Mail::Look(number)).map_err(|error| error.to_string())?;
        let view = loop {
            let left = until.saturating_duration_since(Instant::now());
            match self.views.recv_timeout(left) {
                Ok((of, view)) if of == number => break view,
                Ok(_) => {} // an answer that was too late for its question
                Err(_) => return Err("the lane does not answer".to_owned()),
            }
        };
        let counters = self.mailbox.counters(LOOK).unwrap_or_default();
        let reactor = [
            ("turns", counters.turns),
            ("enters", counters.enters),
            ("sqes", counters.sqes),
            ("cqes", counters.cqes),
            ("wakes", counters.wakes),
            ("waited", counters.waited),
            ("stale", counters.stale),
        ];
        let reactor = reactor.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        Ok(Look { record: self.record.clone(), target: *view, reactor })
    }
}

fn ask(place: &Place, command: &str) -> Result<String, TargetError> {
    let ask = || {
        let mut stream = UnixStream::connect(place.socket())?;
        stream.set_read_timeout(Some(CONTROL_IO + LOOK + LOOK))?;
        stream.set_write_timeout(Some(CONTROL_IO))?;
        stream.write_all(format!("{command}\n").as_bytes())?;
        let mut answer = String::new();
        BufReader::new(stream).read_line(&mut answer)?;
        Ok(answer)
    };
    ask().map_err(|error: std::io::Error| silent(place, error.to_string()))
}

fn silent(place: &Place, why: String) -> TargetError {
    TargetError::Silent { volume: place.volume().to_owned(), why }
}

/// Looks into a living target.
pub fn look(place: &Place) -> Result<Look, TargetError> {
    let answer = ask(place, "look")?;
    serde_json::from_str(&answer).map_err(|error| {
        let said = serde_json::from_str::<Said>(&answer).ok().and_then(|said| said.error);
        silent(place, said.unwrap_or_else(|| error.to_string()))
    })
}

/// Ends an attachment, and waits until it has ended. A living target finishes what is in flight first, unless `force`, which also
/// kills one that does not answer. What a dead one left behind is cleaned up, here and at the conductor.
pub fn detach(place: &Place, conductor: &Client, force: bool) -> Result<(), TargetError> {
    let volume = || place.volume().to_owned();
    let Some(record) = place.read()? else {
        return Err(if place.is_live()? {
            TargetError::Busy { volume: volume() }
        } else {
            TargetError::NotAttached { volume: volume() }
        });
    };
    if place.is_live()? {
        match ask(place, if force { "stop now" } else { "stop" }) {
            Ok(_) => {}
            Err(_) if force => end(&record),
            Err(error) => return Err(error),
        }
        let mut until = Instant::now() + DRAIN + GIVE_UP + DETACH_CALL;
        while place.is_live()? {
            if Instant::now() >= until {
                if !force {
                    let reason = reason(place);
                    return Err(TargetError::StillRuns { volume: volume(), reason });
                }
                end(&record);
                until += GIVE_UP;
            }
            thread::sleep(LOCK_POLL);
        }
        if place.read()?.is_none() {
            return Ok(());
        }
    }
    // It died, or could not tell the conductor: so do we, in its name.
    let Some(lock) = place.lock()? else { return Err(TargetError::Busy { volume: volume() }) };
    let said = conductor.detach(&record.volume, &Detach { client: record.client, generation: record.generation });
    match said {
        Ok(()) => {}
        // Somebody else has it, or it is gone: nothing is left of this attachment there.
        Err(error) if matches!(error.kind(), Some("not-attached" | "no-volume")) => {}
        Err(error) if force => tracing::warn!(%error, "the conductor still believes in the attachment"),
        Err(error) => return Err(error.into()),
    }
    place.remove()?;
    drop(lock);
    Ok(())
}

/// Kills the target, if the process of that number is still the one that wrote the record.
fn end(record: &Record) {
    let Ok(pid) = i32::try_from(record.pid) else { return };
    if start_time(record.pid) == Some(record.started) {
        let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
    }
}

/// What a target that does not end waits for.
fn reason(place: &Place) -> String {
    match look(place) {
        Ok(look) => match look.target.waiting.first() {
            Some(wait) => format!("shard {}: {}", wait.shard, wait.reason),
            None => format!("{} requests are in flight", look.target.requests),
        },
        Err(error) => error.to_string(),
    }
}
