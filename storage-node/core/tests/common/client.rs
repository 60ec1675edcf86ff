//! A bare client: one connection, requests as they are asked for, every answer told. It resends nothing.

use super::{KEY, Said};
use conductor_model::{Bytes, Epoch, ShardId};
use driver::{Address, ConnId, Done, Machine, Outbox, Span, Time};
use memory::{Arena, Class};
use node_protocol::{IoBody, RangeBody, ReplyBody};
use sim::{Birth, Rng};
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::rc::Rc;
use tcp::{Attempt, Net, NetEvent, NetOptions, Payload};
use wire::{HelloInfo, Op};

/// One request.
pub struct Ask {
    pub token: u64,
    pub op: Op,
    pub shard: ShardId,
    pub epoch: Epoch,
    pub offset: u64,
    pub len: u32,
    pub data: Vec<u8>,
    /// It is about a range, not I/O.
    pub range: Option<RangeBody>,
}

pub struct Client {
    net: Net,
    arena: Arena,
    to: SocketAddr,
    info: HelloInfo,
    up: Option<ConnId>,
    waiting: VecDeque<Ask>,
}

impl Client {
    pub fn new(to: SocketAddr, info: HelloInfo, birth: Birth) -> Self {
        let arena = Arena::small(16 << 20);
        let mut nonces = Rng::new(birth.seed);
        let options = NetOptions::new(info.clone(), Rc::new(KEY), Box::new(move || nonces.next_u64()));
        Self { net: Net::new(options, arena.clone()), arena, to, info, up: None, waiting: VecDeque::new() }
    }

    fn send(&mut self, now: Time) {
        let Some(conn) = self.up else { return };
        while let Some(Ask { token, op, shard, epoch, offset, len, data, range }) = self.waiting.pop_front() {
            let body = IoBody::new(shard, epoch, token, Bytes(offset), len);
            let payload = (!data.is_empty()).then(|| {
                let mut into = self.arena.take(data.len(), Class::Client).unwrap();
                into.copy_from_slice(&data);
                Payload { len: data.len(), crcs: wire::pieces(&into), mem: into.filled() }
            });
            let body = range.as_ref().map_or(body.bytes(), RangeBody::bytes);
            self.net.request(now, conn, op, body, payload, token, now + Span::seconds(600)).unwrap();
        }
    }

    fn events(&mut self, now: Time, out: &mut dyn Outbox<Said>) {
        while let Some(event) = self.net.next_event() {
            match event {
                NetEvent::Up { conn, .. } => {
                    self.up = Some(conn);
                    self.send(now);
                }
                NetEvent::Reply { token, result: Ok((_, body, payload)), .. } => {
                    let data = payload.map(|p| p.bytes().to_vec()).unwrap_or_default();
                    out.post(Said::Answered(token, ReplyBody::status_of(&body).unwrap(), data));
                }
                NetEvent::Down { .. } => {
                    self.up = None;
                    out.post(Said::Down);
                }
                _ => {}
            }
        }
    }
}

impl Machine for Client {
    type Mail = Ask;
    type Letter = Said;

    fn start(&mut self, now: Time, out: &mut dyn Outbox<Said>) {
        self.net.connect(now, Attempt::only(Address::Tcp(self.to)), self.info.clone(), out);
    }
    fn done(&mut self, now: Time, done: Done, out: &mut dyn Outbox<Said>) {
        self.net.done(now, done, out);
        self.events(now, out);
    }
    fn mail(&mut self, now: Time, ask: Ask, _out: &mut dyn Outbox<Said>) {
        self.waiting.push_back(ask);
        self.send(now);
    }
    fn end_turn(&mut self, now: Time, out: &mut dyn Outbox<Said>) {
        self.net.end_turn(now, out);
        self.events(now, out);
    }
    fn next_deadline(&self) -> Option<Time> {
        self.net.next_deadline()
    }
    fn finished(&self) -> bool {
        false
    }
}
