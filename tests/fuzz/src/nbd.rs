//! One client of the NBD server, from its first byte on (`nbd-handshake`) or once it chose the export (`nbd-transmission`).
//!
//! Input: how each receive is cut, and what the volume answers, from the first bytes; then the client's bytes. Whatever the client sends:
//! limits hold, every request lies within the export, and every command, byte and piece of memory is given back in the end.

use crate::arena;
use crate::input::Input;
use conductor_model::Bytes;
use memory::{Arena, Class};
use nbd_session::{Event, Export, Extent, Fault, Limits, Outcome, PIECE, Request, Session, Ticket, Tls, What};

/// Not a whole number of blocks.
const SIZE: u64 = (1 << 20) + 512;
const LIMITS: Limits = Limits { commands: 4, bytes: Bytes(2 * PIECE) };
/// What a client says to get every extension.
const ALL: u8 = 1;

/// A session, what it wants done, and what it said.
struct Server {
    session: Session,
    arena: Arena,
    requests: Vec<(Ticket, What, u64)>,
    closed: bool,
    said: usize,
}

pub(crate) fn handshake(data: &[u8]) {
    let tls = match data.first().map_or(0, |first| first >> 1 & 3) {
        0 => Tls::Off,
        1 => Tls::Optional,
        _ => Tls::Required,
    };
    serve(data, &[], tls);
}

pub(crate) fn transmission(data: &[u8]) {
    let plain = data.first().is_some_and(|first| first & ALL == 0);
    serve(data, &entering(!plain), Tls::Off);
}

fn serve(data: &[u8], before: &[u8], tls: Tls) {
    let mut input = Input::new(data);
    let mut how = [u64::from_le_bytes(input.array()), 0];
    let mut next = move || {
        how[1] = how[1].wrapping_add(how[0] | 1);
        (how[1] ^ how[0].rotate_left(17)) >> 32
    };
    let mut export = Export::new("vol", "a volume", Bytes(SIZE)).expect("a short name");
    export.fast_zero = true;
    let arena = arena::shared();
    let in_use = arena.in_use();
    let mut server =
        Server { session: Session::new(export, LIMITS, tls), arena, requests: Vec::new(), closed: false, said: 0 };
    server.turn();
    let entered = server.feed(before, &mut || u64::MAX);
    assert!(entered && (before.is_empty() || server.session.is_transmitting()));
    server.feed(input.rest(), &mut next);
    server.end(in_use);
}

impl Server {
    fn turn(&mut self) {
        loop {
            while let Some(event) = self.session.poll(&self.arena) {
                match event {
                    Event::Request(Request { ticket, what, offset, len }) => {
                        assert!(offset.0.checked_add(len.0).is_some_and(|end| end <= SIZE), "within the export");
                        if let What::Write { payload, .. } = &what {
                            assert_eq!(payload.len() as u64, len.0);
                        }
                        if matches!(what, What::Read | What::Write { .. }) {
                            assert!(len.0 <= PIECE, "a piece at most");
                        }
                        self.requests.push((ticket, what, len.0));
                    }
                    Event::StartTls => self.session.secured(),
                    Event::Closed(_) => assert!(!std::mem::replace(&mut self.closed, true), "closed twice"),
                }
                assert!(
                    self.session.in_flight() <= LIMITS.commands && self.session.bytes_in_flight().0 <= LIMITS.bytes.0
                );
            }
            let Some(parts) = self.session.take_output(&self.arena, 8) else { return };
            self.said += parts.iter().map(|part| part.bytes().len()).sum::<usize>();
            drop(parts);
            self.session.sent();
        }
    }

    /// Everything is received, in receives of any length; what the session wants done is done when it reads no further, and now and then
    /// before. False if it ended before the last byte.
    fn feed(&mut self, mut bytes: &[u8], next: &mut dyn FnMut() -> u64) -> bool {
        while !bytes.is_empty() {
            if self.closed {
                return false;
            }
            let Some(mut recv) = self.session.next_recv(&self.arena) else {
                assert!(!self.requests.is_empty(), "it reads no further, and waits for nothing");
                self.finish(next());
                continue;
            };
            let space = &mut recv.into[recv.from..];
            assert!(!space.is_empty(), "a receive of nothing looks like the end of the stream");
            let most = if next().is_multiple_of(4) { 1 + next() % 40 } else { 1 + next() % 9000 };
            let n = space.len().min(bytes.len()).min(usize::try_from(most).unwrap_or(usize::MAX));
            space[..n].copy_from_slice(&bytes[..n]);
            bytes = &bytes[n..];
            self.session.received(recv.into, n);
            self.turn();
            if !self.requests.is_empty() && next().is_multiple_of(2) {
                self.finish(next());
            }
        }
        true
    }

    /// Ends one request, well or badly.
    fn finish(&mut self, how: u64) {
        let which = usize::try_from(how % self.requests.len() as u64).unwrap_or(0);
        let (ticket, what, len) = self.requests.swap_remove(which);
        let fails = (how >> 8).is_multiple_of(8);
        let outcome = match what {
            _ if fails => Outcome::Failed(Fault::Io),
            What::Read => match self.arena.take(usize::try_from(len).unwrap_or(usize::MAX), Class::Client) {
                Some(mut memory) => {
                    memory.fill(7);
                    Outcome::Data([memory.filled().whole()].into_iter().collect())
                }
                None => Outcome::Failed(Fault::Io),
            },
            What::BlockStatus { .. } => {
                let hole = how & 1 == 0;
                Outcome::Extents([Extent { len: Bytes(len), hole, zero: hole }].into_iter().collect())
            }
            _ => Outcome::Done,
        };
        drop(what);
        self.session.finish(ticket, outcome);
        self.turn();
    }

    fn end(mut self, in_use: usize) {
        if let Some(recv) = self.session.next_recv(&self.arena) {
            self.session.received(recv.into, 0);
            self.turn();
        } else if !self.closed {
            self.session.abandon();
            self.turn();
        }
        while !self.requests.is_empty() {
            self.finish(1 << 8);
        }
        assert!(self.closed && self.session.is_finished(), "closed, and nothing outstanding");
        assert_eq!(self.session.in_flight(), 0);
        drop(self.session);
        assert_eq!(self.arena.in_use(), in_use, "all memory is back");
    }
}

fn option(option: u32, data: &[u8]) -> Vec<u8> {
    [b"IHAVEOPT", &option.to_be_bytes()[..], &len(data), data].concat()
}

fn len(data: &[u8]) -> [u8; 4] {
    u32::try_from(data.len()).unwrap_or(u32::MAX).to_be_bytes()
}

fn string(text: &str) -> Vec<u8> {
    [&len(text.as_bytes())[..], text.as_bytes()].concat()
}

/// LIST (or SET) of one metadata context.
fn contexts(query: &str) -> Vec<u8> {
    [string("vol"), 1u32.to_be_bytes().to_vec(), string(query)].concat()
}

/// INFO and GO.
fn info(kinds: &[u16]) -> Vec<u8> {
    let count = u16::try_from(kinds.len()).unwrap_or(u16::MAX).to_be_bytes();
    [string("vol"), count.to_vec(), kinds.iter().flat_map(|kind| kind.to_be_bytes()).collect()].concat()
}

/// A client's way into the export, with all extensions or none.
fn entering(extensions: bool) -> Vec<u8> {
    let flags = 3u32.to_be_bytes().to_vec();
    let wanted = [option(8, &[]), option(10, &contexts("base:allocation"))].concat();
    [flags, if extensions { wanted } else { Vec::new() }, option(7, &info(&[]))].concat()
}

fn command(kind: u16, flags: u16, offset: u64, length: u32) -> Vec<u8> {
    let head = 0x2560_9513_u32.to_be_bytes();
    let (flags, kind, cookie) = (flags.to_be_bytes(), kind.to_be_bytes(), 0x11_u64.to_be_bytes());
    [&head[..], &flags, &kind, &cookie, &offset.to_be_bytes(), &length.to_be_bytes()].concat()
}

/// The first bytes: how receives are cut, and what is answered.
fn cut(first: u8) -> Vec<u8> {
    vec![first, 0x5a, 3, 4, 5, 6, 7, 8]
}

pub(crate) fn handshake_seeds() -> Vec<Vec<u8>> {
    let flags = 3u32.to_be_bytes().to_vec();
    let says = |options: &[Vec<u8>]| [&[cut(1), flags.clone()], options].concat().concat();
    vec![
        says(&[entering(true)[4..].to_vec(), command(0, 0, 0, 512)]),
        says(&[option(3, &[]), option(2, &[])]),
        says(&[option(6, &info(&[0, 1, 2, 3])), option(1, b"vol")]),
        says(&[option(9, &contexts("base:")), option(5, &[]), option(0x1234, b"x"), option(11, &[])]),
        [cut(0), 0u32.to_be_bytes().to_vec(), option(1, b"")].concat(),
        [cut(3), flags.clone(), option(8, &[]), option(5, b"x"), option(5, &[]), option(5, &[])].concat(),
        [cut(5), flags, option(3, &[]), option(5, &[])].concat(),
    ]
}

pub(crate) fn transmission_seeds() -> Vec<Vec<u8>> {
    let says = |first: u8, commands: &[Vec<u8>]| [&[cut(first)], commands].concat().concat();
    let write = [command(1, 1, 100, 600), vec![9; 600]].concat();
    let all = [
        command(0, 0, 0, 70_000),
        command(0, 4, 512, 4096),
        write,
        command(3, 0, 0, 0),
        command(4, 0, 0, 8192),
        command(5, 0, 0, 4096),
        command(6, 2, 4096, 4096),
        command(6, 16, 4096, 4096),
        command(7, 8, 0, 65536),
        command(0, 0, SIZE, 1),
        command(2, 0, 0, 0),
    ];
    vec![says(1, &all), says(0, &all), says(3, &all[..1]), says(1, &[command(1, 0, 0, u32::MAX), vec![1; 300]])]
}
