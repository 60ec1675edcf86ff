//! An NBD client of a few lines: the old handshake, simple replies.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

/// What a client says to choose the export.
pub(crate) fn hello() -> Vec<u8> {
    let mut bytes = Vec::new();
    bytes.extend(3u32.to_be_bytes()); // fixed newstyle, no zeroes
    bytes.extend(b"IHAVEOPT");
    bytes.extend(1u32.to_be_bytes()); // EXPORT_NAME
    bytes.extend(2u32.to_be_bytes());
    bytes.extend(b"db");
    bytes
}

/// A command for a range of bytes.
pub(crate) fn command(kind: u16, flags: u16, cookie: u64, (offset, len): (u64, u32), payload: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    bytes.extend(0x2560_9513u32.to_be_bytes());
    bytes.extend(flags.to_be_bytes());
    bytes.extend(kind.to_be_bytes());
    bytes.extend(cookie.to_be_bytes());
    bytes.extend(offset.to_be_bytes());
    bytes.extend(len.to_be_bytes());
    bytes.extend(payload);
    bytes
}

pub(crate) struct NbdClient {
    pub(crate) stream: UnixStream,
    pub(crate) size: u64,
    next: u64,
}

impl NbdClient {
    /// A connection that has not said anything.
    pub(crate) fn silent(path: &Path) -> UnixStream {
        let stream = UnixStream::connect(path).unwrap();
        stream.set_read_timeout(Some(super::LONG)).unwrap();
        stream
    }

    pub(crate) fn connect(path: &Path) -> Self {
        let mut stream = Self::silent(path);
        let mut greeting = [0; 18];
        stream.read_exact(&mut greeting).unwrap();
        assert_eq!(&greeting[..16], b"NBDMAGICIHAVEOPT");
        stream.write_all(&hello()).unwrap();
        let mut info = [0; 10];
        stream.read_exact(&mut info).unwrap();
        Self { stream, size: u64::from_be_bytes(info[..8].try_into().unwrap()), next: 1 }
    }

    /// Sends a command, and gives its cookie.
    pub(crate) fn send(&mut self, kind: u16, flags: u16, offset: u64, len: u32, payload: &[u8]) -> u64 {
        let cookie = self.next;
        self.next += 1;
        self.stream.write_all(&command(kind, flags, cookie, (offset, len), payload)).unwrap();
        cookie
    }

    /// The next reply without data: cookie and error.
    pub(crate) fn reply(&mut self) -> (u64, u32) {
        let mut reply = [0; 16];
        self.stream.read_exact(&mut reply).unwrap();
        assert_eq!(reply[..4], 0x6744_6698u32.to_be_bytes());
        let error = u32::from_be_bytes(reply[4..8].try_into().unwrap());
        (u64::from_be_bytes(reply[8..].try_into().unwrap()), error)
    }

    pub(crate) fn write(&mut self, offset: u64, data: &[u8]) -> u32 {
        let cookie = self.send(1, 0, offset, data.len() as u32, data);
        let (of, error) = self.reply();
        assert_eq!(of, cookie);
        error
    }

    pub(crate) fn read(&mut self, offset: u64, len: usize) -> Vec<u8> {
        let cookie = self.send(0, 0, offset, len as u32, &[]);
        assert_eq!(self.reply(), (cookie, 0));
        let mut data = vec![0; len];
        self.stream.read_exact(&mut data).unwrap();
        data
    }

    /// FLUSH, TRIM, WRITE_ZEROES.
    pub(crate) fn other(&mut self, kind: u16, offset: u64, len: u32) -> u32 {
        let cookie = self.send(kind, 0, offset, len, &[]);
        let (of, error) = self.reply();
        assert_eq!(of, cookie);
        error
    }

    /// True if the other side has ended the stream.
    pub(crate) fn is_closed(stream: &mut UnixStream) -> bool {
        let mut rest = Vec::new();
        match stream.read_to_end(&mut rest) {
            Ok(_) => true,
            Err(error) => error.kind() == std::io::ErrorKind::ConnectionReset,
        }
    }
}
