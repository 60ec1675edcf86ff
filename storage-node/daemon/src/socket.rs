//! The control socket: one JSON request per line, one JSON answer per line. `{"look":true}` is answered with a [`NodeLook`],
//! `{"add":{"paths":[…],"create":null,"force":false}}` with the disks that were added, anything that fails with `{"error":"…"}`.
//!
//! For people on the same machine: whoever may open the socket's file may look, and add disks.

use crate::adding::{AddedDisk, Adder, NewDisks};
use crate::limits::{ADD, LOOK, SOCKET, SOCKET_LINE};
use crate::{Error, NodeLook};
use serde::{Deserialize, Serialize};
use std::fs::{self, Permissions};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::Instant;

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Request {
    #[serde(default)]
    look: bool,
    #[serde(default)]
    add: Option<NewDisks>,
}

/// Listens; replaces the socket of a process that is gone, and no other file: connecting to any kind of it is refused.
pub(crate) fn listen(path: &Path) -> Result<UnixListener, Error> {
    let bind = || {
        let is_socket = path.symlink_metadata().is_ok_and(|found| found.file_type().is_socket());
        let deserted = || UnixStream::connect(path).is_err_and(|e| e.kind() == io::ErrorKind::ConnectionRefused);
        if is_socket && deserted() {
            fs::remove_file(path)?;
        }
        let listener = UnixListener::bind(path)?;
        fs::set_permissions(path, Permissions::from_mode(0o600))?;
        Ok(listener)
    };
    bind().map_err(|source| Error::Control { path: path.to_path_buf(), source })
}

/// The socket's thread: one client after the other, until the process stops and knocks once more.
pub(crate) fn serve(listener: &UnixListener, adder: &Adder) {
    let control = &adder.control;
    for stream in listener.incoming() {
        if control.desk.pause(std::time::Duration::ZERO) {
            return;
        }
        // A client that goes away in the middle is its own affair; a failed accept is tried again after a pause.
        if stream.and_then(|stream| answer(&stream, adder)).is_err() {
            control.desk.pause(std::time::Duration::from_millis(10));
        }
    }
}

fn answer(stream: &UnixStream, adder: &Adder) -> io::Result<()> {
    stream.set_write_timeout(Some(SOCKET))?;
    let mut lines = BufReader::new(Until(stream, Instant::now()));
    loop {
        let mut line = String::new();
        lines.get_mut().1 = Instant::now() + SOCKET;
        if Read::by_ref(&mut lines).take(SOCKET_LINE).read_line(&mut line)? == 0 {
            return Ok(());
        }
        let answer = match serde_json::from_str::<Request>(&line) {
            Ok(Request { add: Some(new), .. }) => match adder.add(&new) {
                Ok(added) => serde_json::to_value(added),
                Err(why) => Ok(serde_json::json!({ "error": full(&why) })),
            },
            Ok(Request { look: true, .. }) => serde_json::to_value(NodeLook::of(&adder.control)),
            Ok(Request { look: false, .. }) => Ok(serde_json::json!({ "error": "nothing asked for" })),
            Err(why) => Ok(serde_json::json!({ "error": why.to_string() })),
        };
        writeln!(&mut &*stream, "{}", answer.map_err(io::Error::from)?)?;
    }
}

/// Reads until a moment: a byte now and then does not put it off.
struct Until<'a>(&'a UnixStream, Instant);

impl Read for Until<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let left = self.1.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        self.0.set_read_timeout(Some(left))?;
        (&mut &*self.0).read(into)
    }
}

/// With what caused it, where it does not name that itself.
fn full(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |cause| cause.source());
    causes.map(ToString::to_string).fold(error.to_string(), |said, cause| match said.ends_with(&cause) {
        true => said,
        false => format!("{said}: {cause}"),
    })
}

/// The client's side: a look inside the node that listens at `path`.
pub fn ask_for_look(path: &Path) -> Result<NodeLook, Error> {
    let request = Request { look: true, add: None };
    let look = ask(path, &request, LOOK + SOCKET).and_then(|answer| Ok(serde_json::from_value(answer)?));
    look.map_err(|source| Error::NoLook { path: path.to_path_buf(), source })
}

/// The same: has the node that listens at `path` add disks. The error is the node's own sentence.
pub fn ask_to_add(path: &Path, new: &NewDisks) -> Result<Vec<AddedDisk>, Error> {
    let request = Request { look: false, add: Some(new.clone()) };
    let failed = |source| Error::NoLook { path: path.to_path_buf(), source };
    let answer = ask(path, &request, ADD).map_err(failed)?;
    if let Some(why) = answer["error"].as_str() {
        return Err(Error::NotAdded(why.to_owned()));
    }
    serde_json::from_value(answer).map_err(|why| failed(why.into()))
}

fn ask(path: &Path, request: &Request, limit: std::time::Duration) -> io::Result<serde_json::Value> {
    let mut stream = UnixStream::connect(path)?;
    stream.set_read_timeout(Some(limit))?;
    stream.set_write_timeout(Some(SOCKET))?;
    writeln!(stream, "{}", serde_json::to_string(request)?)?;
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line)?;
    Ok(serde_json::from_str(&line)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("it failed")]
    struct Silent(#[source] io::Error);

    #[test]
    fn only_the_socket_of_a_process_that_is_gone_is_replaced() {
        let dir = std::env::temp_dir().join(format!("trine-control-{}", std::process::id()));
        fs::create_dir(&dir).unwrap();
        let (path, link) = (dir.join("disk0"), dir.join("link"));
        fs::write(&path, "data").unwrap();
        std::os::unix::fs::symlink(&path, &link).unwrap();
        for place in [&path, &link] {
            assert!(matches!(listen(place), Err(Error::Control { .. })));
        }
        assert_eq!(fs::read(&path).unwrap(), b"data");
        let socket = dir.join("control.sock");
        let living = listen(&socket).unwrap();
        assert!(listen(&socket).is_err(), "somebody answers there");
        drop(living);
        listen(&socket).unwrap();
        fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn a_cause_is_said_once() {
        let why = || io::Error::other("no luck");
        assert_eq!(full(&Silent(why())), "it failed: no luck");
        let said = full(&Error::Unreadable { path: "disk0".into(), source: why() });
        assert_eq!(said, "cannot read disk disk0: no luck");
    }
}
