//! The control socket: one JSON request per line, one JSON answer per line. `{"look":true}` is answered with a [`NodeLook`].
//!
//! For people on the same machine: whoever may open the socket's file may look. It changes nothing.

use crate::control::Control;
use crate::limits::{LOOK, SOCKET, SOCKET_LINE};
use crate::{Error, NodeLook};
use serde::{Deserialize, Serialize};
use std::fs::{self, Permissions};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Request {
    look: bool,
}

/// Listens; replaces the file of a process that is gone.
pub(crate) fn listen(path: &Path) -> Result<UnixListener, Error> {
    let bind = || {
        let deserted = UnixStream::connect(path).is_err_and(|e| e.kind() == io::ErrorKind::ConnectionRefused);
        if deserted {
            fs::remove_file(path)?;
        }
        let listener = UnixListener::bind(path)?;
        fs::set_permissions(path, Permissions::from_mode(0o600))?;
        Ok(listener)
    };
    bind().map_err(|source| Error::Control { path: path.to_path_buf(), source })
}

/// The socket's thread: one client after the other, until the process stops and knocks once more.
pub(crate) fn serve(listener: &UnixListener, control: &Control) {
    for stream in listener.incoming() {
        if control.desk.pause(std::time::Duration::ZERO) {
            return;
        }
        // A client that goes away in the middle is its own affair; a failed accept is tried again after a pause.
        if stream.and_then(|stream| answer(&stream, control)).is_err() {
            control.desk.pause(std::time::Duration::from_millis(10));
        }
    }
}

fn answer(stream: &UnixStream, control: &Control) -> io::Result<()> {
    stream.set_read_timeout(Some(SOCKET))?;
    stream.set_write_timeout(Some(SOCKET))?;
    let mut lines = BufReader::new(stream);
    loop {
        let mut line = String::new();
        if Read::by_ref(&mut lines).take(SOCKET_LINE).read_line(&mut line)? == 0 {
            return Ok(());
        }
        let answer = match serde_json::from_str::<Request>(&line) {
            Ok(Request { look: true }) => serde_json::to_value(NodeLook::of(control)),
            Ok(Request { look: false }) => Ok(serde_json::json!({ "error": "nothing asked for" })),
            Err(why) => Ok(serde_json::json!({ "error": why.to_string() })),
        };
        writeln!(&mut &*stream, "{}", answer.map_err(io::Error::from)?)?;
    }
}

/// The client's side: a look inside the node that listens at `path`.
pub fn ask_for_look(path: &Path) -> Result<NodeLook, Error> {
    let ask = || -> io::Result<NodeLook> {
        let mut stream = UnixStream::connect(path)?;
        stream.set_read_timeout(Some(LOOK + SOCKET))?;
        stream.set_write_timeout(Some(SOCKET))?;
        writeln!(stream, "{}", serde_json::to_string(&Request { look: true })?)?;
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line)?;
        Ok(serde_json::from_str(&line)?)
    };
    ask().map_err(|source| Error::NoLook { path: path.to_path_buf(), source })
}
