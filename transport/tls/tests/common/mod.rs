//! Two layers with a stream between them, whose pieces a test chooses, and a machine on each side that a test plays.

use driver::{Address, Conn, ConnId, Done, Errno, Op, Provider, Span, StreamId, Time, why};
use memory::{Arena, ArenaOptions, Backing, Class, Filling, Shares};
use refcount::{Hold, Table};
use smallvec::smallvec;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use tls::{Authority, Failure, Layer, LayerOptions, Role, Trust};

pub(crate) const STREAM: StreamId = StreamId(7);

pub(crate) fn authority(seed: u8) -> Authority {
    Authority::new(&[seed; 32]).unwrap()
}

/// One side: its layer, its driver, and what its machine got back.
pub(crate) struct Side {
    pub(crate) layer: Layer,
    pub(crate) arena: Arena,
    conns: Table<Conn>,
    pub(crate) owner: Option<Hold<Conn, why::Owner>>,
    /// What the driver was asked for and has not done.
    recv: Option<Op>,
    /// A send that is not done until the test says so.
    pub(crate) slow: bool,
    sending: VecDeque<Op>,
    pub(crate) dones: Vec<Done>,
    pub(crate) failures: Rc<RefCell<Vec<Failure>>>,
    /// Bytes that came for it.
    pub(crate) arrived: VecDeque<u8>,
    pub(crate) ended: bool,
    /// All that it sent.
    pub(crate) said: Vec<u8>,
    sent: Vec<u8>,
    shut: bool,
    pub(crate) closed: bool,
}

impl Side {
    pub(crate) fn new(identity: Option<u8>, trust: Option<Trust>) -> Self {
        Self::with(identity, None, trust)
    }

    pub(crate) fn with(identity: Option<u8>, on_request: Option<u8>, trust: Option<Trust>) -> Self {
        let options = ArenaOptions { bytes: 4 << 20, backing: Backing::SmallPages, shares: Shares::even(4 << 20) };
        let arena = Arena::new(options).unwrap();
        let failures = Rc::new(RefCell::new(Vec::new()));
        let told = Rc::clone(&failures);
        let options = LayerOptions {
            identity: identity.map(|seed| authority(seed).identity(Role::Node, &[]).unwrap()),
            on_request: on_request.map(|seed| authority(seed).identity(Role::Node, &[]).unwrap()),
            trust,
            in_clear: b"this is TLS".to_vec(),
            report: Box::new(move |_, failure| told.borrow_mut().push(failure.clone())),
        };
        let layer = Layer::new(options, arena.clone()).unwrap();
        let conns = Table::new();
        let conn = Conn::new(ConnId { slot: 1, generation: 1 }, Provider::Framed);
        let owner = Some(conns.insert(conn));
        Self {
            layer,
            arena,
            conns,
            owner,
            recv: None,
            slow: false,
            sending: VecDeque::new(),
            dones: Vec::new(),
            failures,
            arrived: VecDeque::new(),
            ended: false,
            said: Vec::new(),
            sent: Vec::new(),
            shut: false,
            closed: false,
        }
    }

    pub(crate) fn owner(&self) -> &Hold<Conn, why::Owner> {
        self.owner.as_ref().unwrap()
    }

    /// All memory that there is; what only payloads can have is last.
    pub(crate) fn take_all(&self) -> Vec<Filling> {
        let all = [Class::Settle, Class::Client];
        all.iter().flat_map(|class| std::iter::from_fn(|| self.arena.take(4096, *class))).collect()
    }

    /// The machine's wishes.
    pub(crate) fn connect(&mut self) {
        let to = Address::Tcp(([127, 0, 0, 1], 1).into());
        self.layer.submit(Op::Connect { on: self.owner().share(), to, within: Span::seconds(12) });
    }

    pub(crate) fn recv(&mut self, bytes: usize) {
        let into = self.arena.take(bytes, Class::Client).unwrap();
        self.layer.submit(Op::Recv { stream: STREAM, on: self.owner().share(), into, from: 0 });
    }

    pub(crate) fn send(&mut self, parts: &[&[u8]]) {
        let parts = parts.iter().map(|bytes| {
            let mut mem = self.arena.take(bytes.len(), Class::Client).unwrap();
            mem.copy_from_slice(bytes);
            mem.filled().whole()
        });
        let parts = parts.collect();
        self.layer.submit(Op::Send { stream: STREAM, on: smallvec![self.owner().share()], parts });
    }

    /// How that ended, which is known at once.
    pub(crate) fn secure(&mut self) -> Result<u32, Errno> {
        self.layer.submit(Op::Secure { stream: STREAM });
        let done = self.layer.next_done().unwrap();
        assert!(matches!(done.op, Op::Secure { stream: STREAM }));
        done.result
    }

    pub(crate) fn shutdown(&mut self) {
        self.layer.submit(Op::Shutdown { stream: STREAM });
    }

    pub(crate) fn close(&mut self) {
        self.layer.submit(Op::Close { stream: STREAM });
    }

    /// What came back of receives, all bytes in order.
    pub(crate) fn take_received(&mut self) -> (Vec<u8>, Option<Result<u32, Errno>>) {
        let (mut bytes, mut end) = (Vec::new(), None);
        for done in std::mem::take(&mut self.dones) {
            match done {
                Done { op: Op::Recv { into, from, .. }, result: Ok(n @ 1..) } => {
                    bytes.extend(&into[from..][..n as usize]);
                }
                Done { op: Op::Recv { .. }, result } => end = Some(result),
                other => self.dones.push(other),
            }
        }
        (bytes, end)
    }

    pub(crate) fn result_of(&mut self, is: impl Fn(&Op) -> bool) -> Option<Result<u32, Errno>> {
        let at = self.dones.iter().position(|done| is(&done.op))?;
        Some(self.dones.remove(at).result)
    }

    pub(crate) fn has_recv_posted(&self) -> bool {
        self.recv.is_some()
    }

    /// The driver's part: takes wishes, does what can be done with pieces of so many bytes. True if anything moved.
    pub(crate) fn drive(&mut self, now: Time, piece: usize) -> bool {
        let mut moved = false;
        while let Some(op) = self.layer.next_op() {
            moved = true;
            let result = match &op {
                Op::Connect { .. } | Op::Accept { .. } => Ok(STREAM.0),
                Op::Recv { .. } => {
                    assert!(self.recv.replace(op).is_none(), "one receive at a time");
                    continue;
                }
                Op::Send { .. } => {
                    assert!(self.sending.is_empty(), "one send at a time");
                    self.sending.push_back(op);
                    continue;
                }
                Op::Shutdown { .. } => {
                    self.send_out(now);
                    self.shut = true;
                    Ok(0)
                }
                Op::Close { .. } => {
                    assert!(self.recv.is_none() && self.sending.is_empty(), "a close stands alone");
                    self.closed = true;
                    Ok(0)
                }
                other => panic!("{other:?}"),
            };
            self.layer.done(now, Done { op, result });
        }
        moved |= self.send_out(now);
        let there = self.arrived.len().min(piece);
        if (there > 0 || self.ended || self.shut) && self.recv.is_some() {
            moved = true;
            let Some(Op::Recv { stream, on, mut into, from }) = self.recv.take() else { unreachable!() };
            let n = there.min(into.len() - from);
            let n = if self.shut { 0 } else { n };
            for (byte, arrived) in into[from..].iter_mut().zip(self.arrived.drain(..n)) {
                *byte = arrived;
            }
            let result = Ok(u32::try_from(n).unwrap());
            self.layer.done(now, Done { op: Op::Recv { stream, on, into, from }, result });
        }
        self.layer.turn(now);
        while let Some(done) = self.layer.next_done() {
            moved = true;
            self.dones.push(done);
        }
        moved
    }

    /// What goes out at once does so before what was asked for behind it.
    fn send_out(&mut self, now: Time) -> bool {
        let mut moved = false;
        while let Some(op) = self.sending.pop_front_if(|_| !self.slow || self.shut) {
            moved = true;
            let result = if self.shut { Err(Errno(32)) } else { Ok(0) };
            if let (Op::Send { parts, .. }, Ok(_)) = (&op, result) {
                parts.iter().for_each(|part| self.sent.extend(part.bytes()));
            }
            self.layer.done(now, Done { op, result });
        }
        moved
    }

    /// Nothing is held any more but what the test holds.
    pub(crate) fn assert_at_rest(mut self) {
        self.dones.clear();
        drop(self.layer);
        drop((self.recv.take(), std::mem::take(&mut self.sending)));
        drop(self.owner.take());
        while self.conns.reap().is_some() {}
        self.conns.leaks().unwrap();
        self.arena.leaks().unwrap();
    }
}

/// A client and a server; the server has accepted.
pub(crate) fn pair(client: Option<Trust>, server: Option<u8>) -> (Side, Side) {
    meet(Side::new(None, client), Side::new(server, None))
}

/// The first has connected to the second.
pub(crate) fn meet(mut a: Side, mut b: Side) -> (Side, Side) {
    a.connect();
    b.layer.submit(Op::Accept { listener: driver::ListenerId(0) });
    assert!(b.drive(Time(0), 1));
    assert_eq!(b.result_of(|op| matches!(op, Op::Accept { .. })), Some(Ok(STREAM.0)));
    (a, b)
}

/// Goes on until nothing moves.
pub(crate) fn settle(a: &mut Side, b: &mut Side, piece: usize) {
    settle_at(Time(0), a, b, piece);
}

/// The same, later.
pub(crate) fn settle_at(now: Time, a: &mut Side, b: &mut Side, piece: usize) {
    loop {
        let moved = a.drive(now, piece) | b.drive(now, piece);
        let said = std::mem::take(&mut a.sent);
        b.arrived.extend(&said);
        a.said.extend(said);
        let said = std::mem::take(&mut b.sent);
        a.arrived.extend(&said);
        b.said.extend(said);
        a.ended |= b.shut || b.closed;
        b.ended |= a.shut || a.closed;
        if !moved {
            return;
        }
    }
}
