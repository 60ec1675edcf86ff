//! Both ends of a conversation: a session with a disk in memory, and the words of a client.

#![allow(dead_code, reason = "each test uses its part")]

pub(crate) mod ram_disk;

use conductor_model::Bytes;
use memory::Arena;
use nbd_session::{Closed, Event, Export, Limits, Outcome, Request, Session, Tls};
use ram_disk::RamDisk;

pub(crate) const READ: u16 = 0;
pub(crate) const WRITE: u16 = 1;
pub(crate) const DISC: u16 = 2;
pub(crate) const FLUSH: u16 = 3;
pub(crate) const TRIM: u16 = 4;
pub(crate) const CACHE: u16 = 5;
pub(crate) const ZEROES: u16 = 6;
pub(crate) const STATUS: u16 = 7;

pub(crate) const FUA: u16 = 1;
pub(crate) const NO_HOLE: u16 = 2;
pub(crate) const DF: u16 = 4;
pub(crate) const ONE: u16 = 8;
pub(crate) const FAST: u16 = 16;

/// A session, what it said, and what it wants done.
pub(crate) struct Server {
    pub(crate) session: Session,
    pub(crate) arena: Arena,
    pub(crate) sent: Vec<u8>,
    pub(crate) requests: Vec<Request>,
    pub(crate) closed: Option<Closed>,
    /// The session wants its stream to be TLS.
    pub(crate) wants_tls: bool,
    /// The client takes what it is sent.
    pub(crate) listens: bool,
}

impl Server {
    pub(crate) fn new(export: Export, limits: Limits, arena: usize) -> Self {
        Self::with_tls(export, limits, arena, Tls::Off)
    }

    pub(crate) fn with_tls(export: Export, limits: Limits, arena: usize, tls: Tls) -> Self {
        let mut server = Self {
            session: Session::new(export, limits, tls),
            arena: Arena::small(arena),
            sent: Vec::new(),
            requests: Vec::new(),
            closed: None,
            wants_tls: false,
            listens: true,
        };
        server.turn();
        server
    }

    /// Takes all events and all output.
    pub(crate) fn turn(&mut self) {
        loop {
            while let Some(event) = self.session.poll(&self.arena) {
                match event {
                    Event::Request(request) => self.requests.push(request),
                    Event::StartTls => {
                        assert!(self.session.take_output(&self.arena, 3).is_none(), "all is said");
                        assert!(!std::mem::replace(&mut self.wants_tls, true), "wanted twice");
                    }
                    Event::Closed(why) => assert_eq!(self.closed.replace(why), None, "closed twice"),
                }
            }
            if !self.drain() {
                return;
            }
        }
    }

    fn drain(&mut self) -> bool {
        if !self.listens {
            return false;
        }
        let Some(parts) = self.session.take_output(&self.arena, 3) else { return false };
        for part in &parts {
            self.sent.extend(part.bytes());
        }
        drop(parts);
        self.session.sent();
        true
    }

    /// One receive of at most `most` of the bytes. Returns how many it took; 0 if the session wants none, or there are none.
    pub(crate) fn receive(&mut self, bytes: &[u8], most: usize) -> usize {
        self.turn();
        if bytes.is_empty() {
            return 0;
        }
        let Some(mut recv) = self.session.next_recv(&self.arena) else { return 0 };
        let space = &mut recv.into[recv.from..];
        assert!(!space.is_empty(), "a receive of nothing looks like the end of the stream");
        let n = space.len().min(bytes.len()).min(most.max(1));
        space[..n].copy_from_slice(&bytes[..n]);
        self.session.received(recv.into, n);
        self.turn();
        n
    }

    /// All bytes, as large receives. Panics if the session stops reading.
    pub(crate) fn feed(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let n = self.receive(bytes, usize::MAX);
            assert!(n > 0 || self.closed.is_some(), "the session stopped reading");
            if n == 0 {
                return;
            }
            bytes = &bytes[n..];
        }
    }

    /// What was sent since the last call.
    pub(crate) fn said(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.sent)
    }

    /// Feeds, and says what was answered.
    pub(crate) fn ask(&mut self, bytes: &[u8]) -> Vec<u8> {
        self.feed(bytes);
        self.said()
    }

    /// Finishes the request at `index`.
    pub(crate) fn finish(&mut self, index: usize, outcome: Outcome) {
        let request = self.requests.remove(index);
        self.session.finish(request.ticket, outcome);
        self.turn();
    }

    /// Carries out all requests.
    pub(crate) fn work(&mut self, disk: &mut RamDisk) {
        while !self.requests.is_empty() {
            let request = self.requests.remove(0);
            let (ticket, outcome) = disk.run(request, &self.arena).expect("enough memory");
            self.session.finish(ticket, outcome);
            self.turn();
        }
    }

    /// Data for a read, all of one byte.
    pub(crate) fn data(&self, byte: u8, len: usize) -> Outcome {
        let mut memory = self.arena.take(len, memory::Class::Client).expect("enough memory");
        memory.fill(byte);
        Outcome::Data([memory.filled().whole()].into_iter().collect())
    }
}

pub(crate) fn export(size: u64) -> Export {
    let mut export = Export::new("vol", "a volume", Bytes(size)).expect("short");
    export.fast_zero = true;
    export
}

/// A server that a client has just entered, with all extensions or none.
pub(crate) fn entered(export: Export, limits: Limits, arena: usize, extensions: bool) -> Server {
    let mut server = Server::new(export, limits, arena);
    server.feed(&handshake(extensions));
    assert!(server.session.is_transmitting());
    server.said();
    server
}

pub(crate) fn handshake(extensions: bool) -> Vec<u8> {
    let mut bytes = 3u32.to_be_bytes().to_vec();
    if extensions {
        bytes.extend(option(8, &[]));
        bytes.extend(option(10, &contexts("vol", &["base:allocation"])));
    }
    bytes.extend(option(7, &info("vol", &[])));
    bytes
}

pub(crate) fn option(option: u32, data: &[u8]) -> Vec<u8> {
    let len = u32::try_from(data.len()).expect("short");
    [b"IHAVEOPT", &option.to_be_bytes()[..], &len.to_be_bytes(), data].concat()
}

pub(crate) fn option_reply(option: u32, kind: u32, data: &[u8]) -> Vec<u8> {
    let len = u32::try_from(data.len()).expect("short");
    let head = 0x0003_e889_0455_65a9_u64.to_be_bytes();
    [&head[..], &option.to_be_bytes(), &kind.to_be_bytes(), &len.to_be_bytes(), data].concat()
}

pub(crate) fn string(text: &str) -> Vec<u8> {
    [&u32::try_from(text.len()).expect("short").to_be_bytes(), text.as_bytes()].concat()
}

pub(crate) fn info(name: &str, kinds: &[u16]) -> Vec<u8> {
    let mut bytes = string(name);
    bytes.extend(u16::try_from(kinds.len()).expect("few").to_be_bytes());
    bytes.extend(kinds.iter().flat_map(|kind| kind.to_be_bytes()));
    bytes
}

pub(crate) fn contexts(name: &str, queries: &[&str]) -> Vec<u8> {
    let mut bytes = string(name);
    bytes.extend(u32::try_from(queries.len()).expect("few").to_be_bytes());
    bytes.extend(queries.iter().flat_map(|query| string(query)));
    bytes
}

pub(crate) fn command(kind: u16, flags: u16, cookie: u64, offset: u64, len: u32) -> Vec<u8> {
    let head = 0x2560_9513_u32.to_be_bytes();
    let (flags, kind) = (flags.to_be_bytes(), kind.to_be_bytes());
    [&head[..], &flags, &kind, &cookie.to_be_bytes(), &offset.to_be_bytes(), &len.to_be_bytes()].concat()
}

pub(crate) fn simple(cookie: u64, error: u32) -> Vec<u8> {
    [&0x6744_6698_u32.to_be_bytes()[..], &error.to_be_bytes(), &cookie.to_be_bytes()].concat()
}

pub(crate) fn chunk(cookie: u64, done: bool, kind: u16, payload: &[u8]) -> Vec<u8> {
    let head = 0x668e_33ef_u32.to_be_bytes();
    let len = u32::try_from(payload.len()).expect("short");
    let (flags, kind) = (u16::from(done).to_be_bytes(), kind.to_be_bytes());
    [&head[..], &flags, &kind, &cookie.to_be_bytes(), &len.to_be_bytes(), payload].concat()
}

pub(crate) fn data_chunk(cookie: u64, done: bool, offset: u64, data: &[u8]) -> Vec<u8> {
    chunk(cookie, done, 1, &[&offset.to_be_bytes(), data].concat())
}

pub(crate) fn error_chunk(cookie: u64, done: bool, error: u32, message: &str, offset: Option<u64>) -> Vec<u8> {
    let mut payload = error.to_be_bytes().to_vec();
    payload.extend(u16::try_from(message.len()).expect("short").to_be_bytes());
    payload.extend(message.as_bytes());
    payload.extend(offset.iter().flat_map(|offset| offset.to_be_bytes()));
    chunk(cookie, done, if offset.is_some() { 0x8002 } else { 0x8001 }, &payload)
}
