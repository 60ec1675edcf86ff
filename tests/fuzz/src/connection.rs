//! One connection of `tcp`, accepting side: from its first byte on (`stream`), or once it is established (`connection`).
//!
//! Input of `stream`: how receives are cut u8, then the peer's bytes. Of `connection`: how receives are cut u8, then messages, whose
//! checksums are made right. Whatever comes, the connection ends within its deadlines and everything is given back.

use crate::arena;
use crate::input::Input;
use crate::line::{KEY, Line, Message, client, frame};
use crate::store::Disk;
use driver::{ConnId, Done, ListenerId, Machine, Outbox, Span, Time};
use std::rc::Rc;
use tcp::{Admission, Net, NetEvent, NetOptions};
use wire::{HEADER_LEN, Hello, HelloInfo, Limits, MAX_PAYLOAD, Nonce, Op, PREFIX_LEN, Role, SessionId};

const MESSAGES: usize = 24;
/// Longer than any deadline of a connection.
const LONG: Span = Span::seconds(120);

/// Answers every request with its own body and payload, and makes requests of its own.
struct Echo {
    net: Net,
    info: HelloInfo,
    stopped: bool,
    /// Requests made and not answered.
    asked: usize,
    up: Vec<ConnId>,
}

impl Echo {
    fn new() -> Self {
        let info = HelloInfo::new(Role::Node, "server", 2);
        let mut last = 0u64;
        let random = move || {
            last += 1;
            last.wrapping_mul(0x9e37_79b9_7f4a_7c15)
        };
        let mut options = NetOptions::new(info.clone(), Rc::new(KEY), Box::new(random));
        options.depth = 8;
        options.max_conns = 4;
        Self { net: Net::new(options, arena::shared()), info, stopped: false, asked: 0, up: Vec::new() }
    }

    fn events(&mut self, now: Time, out: &mut dyn Outbox<()>) {
        while let Some(event) = self.net.next_event() {
            match event {
                NetEvent::Hello { conn, .. } => {
                    let admission = Admission { hello: self.info.clone(), session: SessionId(7) };
                    self.net.accept_peer(now, conn, admission, out);
                }
                NetEvent::Up { conn, .. } => {
                    self.up.push(conn);
                    for token in 0..2 {
                        let asked = self.net.request(now, conn, Op(20), &[0; 24], None, token, now + Span::seconds(20));
                        self.asked += usize::from(asked.is_ok());
                    }
                }
                NetEvent::Request { body, payload, answer, .. } => {
                    if let Some(payload) = &payload {
                        assert!(payload.len <= MAX_PAYLOAD as usize);
                        assert_eq!(wire::pieces(payload.bytes()), payload.crcs, "what is delivered was checked");
                    }
                    self.net.reply(now, answer, Op::REPLY, &body, payload);
                }
                NetEvent::Reply { .. } => self.asked = self.asked.checked_sub(1).expect("one reply for each request"),
                NetEvent::Down { conn, .. } => self.up.retain(|up| *up != conn),
            }
        }
    }
}

impl Machine for Echo {
    type Mail = ();
    type Letter = ();

    fn start(&mut self, _: Time, out: &mut dyn Outbox<()>) {
        self.net.listen(ListenerId(0), out);
    }
    fn done(&mut self, now: Time, done: Done, out: &mut dyn Outbox<()>) {
        self.net.done(now, done, out);
        self.events(now, out);
    }
    fn mail(&mut self, now: Time, (): (), out: &mut dyn Outbox<()>) {
        self.stopped = true;
        self.net.stop(now, out);
    }
    fn end_turn(&mut self, now: Time, out: &mut dyn Outbox<()>) {
        self.net.end_turn(now, out);
        self.events(now, out);
    }
    fn next_deadline(&self) -> Option<Time> {
        self.net.next_deadline()
    }
    fn finished(&self) -> bool {
        self.net.finished()
    }
}

fn line() -> Line<'static, Echo> {
    let mut line = Line::new(Echo::new(), Disk::new(&[]), Time(1_000_000_000));
    line.turn();
    line
}

/// The peer ends, and the machine after it; nothing is left of either.
fn end(mut line: Line<'_, Echo>, in_use: usize) {
    line.end();
    line.pass(LONG);
    assert!(line.machine.up.is_empty() && line.machine.asked == 0, "everything was told");
    line.machine.mail(line.now, (), &mut line.out);
    line.pass(LONG);
    let net = &line.machine.net;
    assert!(line.machine.stopped && net.conns(line.now).is_empty(), "{:?}", net.refs());
    assert_eq!(net.counters().stale_completions, 0);
    drop(line);
    assert_eq!(arena::shared().in_use(), in_use, "all memory is back");
}

pub(crate) fn stream(data: &[u8]) {
    let in_use = arena::shared().in_use();
    let mut input = Input::new(data);
    let cut = input.u8();
    let mut line = line();
    line.send(input.rest(), cut);
    while line.hear().is_some() {}
    end(line, in_use);
}

pub(crate) fn established(data: &[u8]) {
    let in_use = arena::shared().in_use();
    let mut input = Input::new(data);
    let cut = input.u8();
    let mut line = line();
    let (session, key) = line.enter(&client());
    for _ in 0..MESSAGES {
        if input.is_empty() || line.is_over() {
            break;
        }
        let bytes = Message::read(&mut input).frame(session, &key);
        line.send(&bytes, cut);
        while line.hear().is_some() {}
    }
    end(line, in_use);
}

pub(crate) fn stream_seeds() -> Vec<Vec<u8>> {
    let limits = Limits { depth: 16, max_payload: 1 << 20 };
    let hello = Hello { nonce: Nonce([9; 16]), limits, info: client() }.encode().expect("within limits");
    let said = frame(Op::HELLO, &hello);
    let seed = |cut: u8, parts: &[&[u8]]| [&[cut], &parts.concat()[..]].concat();
    vec![
        seed(255, &[&said]),
        seed(3, &[&said, &frame(Op::PROOF, &[1; 32])]),
        seed(255, &[&frame(Op::PING, &[])]),
        seed(255, &[&said[..HEADER_LEN + 5]]),
    ]
}

pub(crate) fn established_seeds() -> Vec<Vec<u8>> {
    let ask = |slot: u8, payload: usize| Message {
        op: 17,
        stamped: true,
        slot,
        body: vec![0; PREFIX_LEN + 8],
        payload: vec![5; payload],
        ..Message::default()
    };
    let plain = |op: Op| Message { op: op.0, ..Message::default() };
    let reply =
        |slot: u8, credits: u8| Message { op: 9, reply: true, slot, credits, body: vec![0; 8], ..Message::default() };
    let seed = |cut: u8, messages: &[Message]| {
        let mut bytes = vec![cut];
        messages.iter().for_each(|message| message.write(&mut bytes));
        bytes
    };
    vec![
        seed(255, &[ask(0, 0), ask(1, 600), ask(2, 3000)]),
        seed(20, &[plain(Op::PING), ask(0, 100), plain(Op::GOODBYE)]),
        seed(255, &[reply(0, 1), reply(1, 1), ask(3, 5)]),
        seed(255, &[plain(Op::PONG), reply(9, 200)]),
        seed(255, &[Message { stamped: false, ..ask(0, 0) }]),
    ]
}
