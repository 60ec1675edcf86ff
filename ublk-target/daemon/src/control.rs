//! The control socket: one line in, one JSON line out, one connection at a time.
//!
//! `look` → the record and what the lane tells of itself. `stop` → finish what is in flight and end. `stop now` → fail it and end.
//! The socket's directory entry is its protection: only its owner can connect.

use crate::error::TargetError;
use crate::happening::Happening;
use crate::limits::{ANSWER, CONTROL_IO, CONTROL_LINE, DETACH_CALL, DRAIN, GIVE_UP, LAST_CALL, LOCK_POLL};
use crate::record::{Holder, Place, Record, is_stopped, start_time};
use crate::subject::is_ended;
use crate::ublk;
use crate::view::TargetView;
use conductor_client::Client;
use conductor_model::views::Detach;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::mpsc::{Sender, sync_channel};
use std::thread;
use std::time::Instant;

/// The answer to `look`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Look {
    /// The attachment.
    pub record: Record,
    /// What its lanes say.
    pub target: TargetView,
    /// Its device is not usable yet.
    pub starting: bool,
}

/// The answer to everything else.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Said {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

/// The target's end: serves until the process ends.
pub(crate) fn serve(listener: &UnixListener, tell: &Sender<Happening>) {
    for stream in listener.incoming() {
        if let Err(error) = stream.and_then(|stream| answer(stream, tell)) {
            tracing::debug!(%error, "control connection");
            thread::sleep(LOCK_POLL); // out of descriptors, perhaps: not in a tight loop
        }
    }
}

fn answer(mut stream: UnixStream, tell: &Sender<Happening>) -> std::io::Result<()> {
    stream.set_write_timeout(Some(CONTROL_IO))?;
    let mut line = String::new();
    BufReader::new(Until(&stream, Instant::now() + CONTROL_IO)).take(CONTROL_LINE).read_line(&mut line)?;
    let mut answer = match line.trim() {
        "look" => {
            let (to, from) = sync_channel(1);
            let _ending = tell.send(Happening::Look(to));
            match from.recv_timeout(ANSWER) {
                Ok(Some(look)) => serde_json::to_vec(&look)?,
                _ => said(Some("its lanes do not answer".to_owned()))?,
            }
        }
        "stop" => said(stop(false, tell))?,
        "stop now" => said(stop(true, tell))?,
        other => said(Some(format!("no command {other:?}: look, stop, stop now")))?,
    };
    answer.push(b'\n');
    stream.write_all(&answer)
}

/// Reads until a moment: a byte now and then does not put it off.
struct Until<'a>(&'a UnixStream, Instant);

impl Read for Until<'_> {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        let left = self.1.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(ErrorKind::TimedOut.into());
        }
        self.0.set_read_timeout(Some(left))?;
        (&mut &*self.0).read(into)
    }
}

fn said(error: Option<String>) -> serde_json::Result<Vec<u8>> {
    serde_json::to_vec(&Said { error })
}

/// Why it does not end, if it does not. One that takes its time is ending.
fn stop(now: bool, tell: &Sender<Happening>) -> Option<String> {
    let (answer, from) = sync_channel(1);
    let _ending = tell.send(Happening::Stop { now, answer });
    from.recv_timeout(ANSWER).ok().flatten()
}

fn ask(place: &Place, command: &str) -> Result<String, TargetError> {
    let ask = || {
        let mut stream = connect(place)?;
        stream.set_read_timeout(Some(CONTROL_IO + ANSWER))?;
        stream.set_write_timeout(Some(CONTROL_IO))?;
        stream.write_all(format!("{command}\n").as_bytes())?;
        let mut answer = String::new();
        BufReader::new(stream).read_line(&mut answer)?;
        Ok(answer)
    };
    ask().map_err(|error: std::io::Error| silent(place, why_silent(place, &error)))
}

/// Why nothing was heard of it.
fn why_silent(place: &Place, error: &std::io::Error) -> String {
    // Somebody has stopped it, as a debugger does or Ctrl-Z.
    let stopped = place.holder().filter(|holder| is_stopped(holder.pid));
    match (stopped, error.kind()) {
        (Some(Holder { pid, .. }), _) => format!("process {pid} is stopped; `kill -CONT {pid}` lets it go on"),
        (None, ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
            format!("nothing was heard of it within {} s", (CONTROL_IO + ANSWER).as_secs())
        }
        (None, _) => error.to_string(),
    }
}

/// A target takes its lock first, and listens a moment later.
fn connect(place: &Place) -> std::io::Result<UnixStream> {
    let until = Instant::now() + CONTROL_IO;
    loop {
        match UnixStream::connect(place.socket()) {
            Err(error)
                if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused)
                    && Instant::now() < until =>
            {
                thread::sleep(LOCK_POLL);
            }
            outcome => return outcome,
        }
    }
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
/// kills one that does not answer; one that comes up takes back what it did so far. What a dead one left behind is cleaned up,
/// here and at the conductor.
pub fn detach(place: &Place, conductor: &Client, force: bool) -> Result<(), TargetError> {
    // The way down says what is wrong with a record.
    let record = place.read().ok().flatten();
    bring_down(place, conductor, force)?;
    if let Some(record) = record.filter(|record| !force && ublk::is_left_open(record)) {
        tracing::warn!(
            "{} was stopped under somebody who has it open, and was not seen: what is asked of it from now on fails",
            record.device
        );
    }
    Ok(())
}

fn bring_down(place: &Place, conductor: &Client, force: bool) -> Result<(), TargetError> {
    let volume = || place.volume().to_owned();
    if place.is_live()? {
        match ask(place, if force { "stop now" } else { "stop" }) {
            Ok(answer) => {
                if let Some(why) = serde_json::from_str::<Said>(&answer).ok().and_then(|said| said.error) {
                    return Err(TargetError::Refused { volume: volume(), why });
                }
            }
            // It has ended since.
            Err(_) if !place.is_live()? => {}
            Err(_) if force => end(place),
            Err(error) => return Err(error),
        }
        let asked = Instant::now();
        let mut until = asked + DRAIN + GIVE_UP + DETACH_CALL;
        let (mut killed, mut warned) = (false, force);
        while place.is_live()? {
            if !warned && asked.elapsed() > DRAIN - LAST_CALL {
                tracing::warn!(
                    "what is in flight and not over within {} s fails: {}",
                    LAST_CALL.as_secs(),
                    reason(place)
                );
                warned = true;
            }
            if Instant::now() >= until {
                // Killed and still there: another process has taken the attachment up, and is still coming up.
                if !force || killed {
                    let reason = reason(place);
                    return Err(TargetError::StillRuns { volume: volume(), reason });
                }
                end(place);
                killed = true;
                until += GIVE_UP;
            }
            thread::sleep(LOCK_POLL);
        }
        if place.read()?.is_none() {
            return Ok(());
        }
    }
    let Some(record) = place.read()? else {
        // It may have been lost.
        let ended = force && ublk::forget_unrecorded(place.volume(), conductor)?;
        return if ended { Ok(()) } else { Err(TargetError::NotAttached { volume: volume() }) };
    };
    // It died, left its device behind, or could not tell the conductor: we end it in its name.
    let Some(lock) = place.lock()? else { return Err(TargetError::Busy { volume: volume() }) };
    ublk::forget(&record, force)?;
    let said = match record.snapshot {
        // The conductor knows of no target of a snapshot.
        Some(_) => Ok(()),
        None => conductor.detach(&record.volume, &Detach { client: record.client, generation: record.generation }),
    };
    match said {
        Ok(()) => {}
        Err(error) if is_ended(&error) => {}
        Err(error) if force => tracing::warn!(%error, "the conductor still believes in the attachment"),
        Err(error) => return Err(error.into()),
    }
    place.remove()?;
    drop(lock);
    Ok(())
}

/// Kills the target, if the process of that number is still the one that took the lock.
fn end(place: &Place) {
    let Some(Holder { pid, started }) = place.holder() else { return };
    let Ok(raw) = i32::try_from(pid) else { return };
    if start_time(pid) == Some(started) {
        let _ = kill(Pid::from_raw(raw), Signal::SIGKILL);
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn a_target_that_does_not_answer_is_said_to_be_stopped_if_it_is() {
        let dir = std::env::temp_dir().join(format!("trine-silent-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let (place, mut target) = (Place::new(&dir, "db"), Command::new("sleep").arg("60").spawn().unwrap());
        let pid = target.id();
        std::fs::write(dir.join("db.pid"), format!("{pid} {}\n", start_time(pid).unwrap())).unwrap();
        let why = || why_silent(&place, &ErrorKind::WouldBlock.into());
        assert_eq!(why(), "nothing was heard of it within 10 s");
        kill(Pid::from_raw(pid.cast_signed()), Signal::SIGSTOP).unwrap();
        let until = Instant::now() + GIVE_UP;
        while !is_stopped(pid) && Instant::now() < until {
            thread::sleep(LOCK_POLL);
        }
        assert_eq!(why(), format!("process {pid} is stopped; `kill -CONT {pid}` lets it go on"));
        target.kill().unwrap();
        target.wait().unwrap();
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
