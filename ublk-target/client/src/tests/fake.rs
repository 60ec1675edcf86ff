//! The engine with connections that the test drives by hand.

use super::{endpoint, map};
use crate::engine::{Body, Engine, Network, NotPosted, Post, Reply, Settings};
use crate::limits::MAX_LINKS;
use crate::request::{BlockDone, BlockError, BlockOp, BlockRequest, Extent};
use conductor_model::Bytes;
use conductor_model::api::VolumeMap;
use driver::{ConnId, Span, Time};
use memory::{Arena, Class};
use node_protocol::{IoBody, RangeBody, ReplyBody, StaleBody, Status};
use std::net::SocketAddr;
use tcp::Payload;
use wire::{Op, Reason};

/// A request on a connection, not answered.
#[derive(Debug)]
pub(super) struct OnWire {
    pub(super) token: u64,
    pub(super) op: Op,
    pub(super) body: IoBody,
    /// It is about a range: then there is no such body.
    pub(super) range: Option<RangeBody>,
    pub(super) data: Vec<u8>,
}

#[derive(Debug)]
pub(super) struct FakeConn {
    pub(super) id: ConnId,
    pub(super) to: SocketAddr,
    pub(super) up: bool,
    /// We closed it; the engine is told by `settle`.
    pub(super) closed: Option<Reason>,
    pub(super) posted: Vec<OnWire>,
    /// Something was sent on it.
    pub(super) used: bool,
    pub(super) credits: usize,
}

#[derive(Debug, Default)]
pub(super) struct FakeNet {
    pub(super) conns: Vec<FakeConn>,
    pub(super) made: u32,
    /// Closed by us though they were up and nothing was sent on them.
    pub(super) in_vain: u32,
    pub(super) credits: usize,
}

impl Network for FakeNet {
    fn connect(&mut self, to: SocketAddr) -> ConnId {
        assert!(!self.conns.iter().any(|c| c.to == to), "one connection per endpoint at a time");
        assert!(self.conns.len() < MAX_LINKS, "no more connections at a time than there are places");
        self.made += 1;
        let id = ConnId { slot: self.made, generation: 0 };
        let credits = self.credits;
        self.conns.push(FakeConn { id, to, up: false, closed: None, posted: Vec::new(), used: false, credits });
        id
    }
    fn credits(&self, conn: ConnId) -> usize {
        self.conns.iter().find(|c| c.id == conn).unwrap().credits
    }
    fn request(&mut self, conn: ConnId, post: Post) -> Result<(), NotPosted> {
        let (body, range) = match post.body {
            Body::Io(body) => (body, None),
            Body::Range(range) => (IoBody::default(), Some(range)),
        };
        let sequence = body.sequence;
        let twice = range.is_none() && self.conns.iter().any(|c| c.posted.iter().any(|p| p.body.sequence == sequence));
        assert!(!twice, "two of one part on live connections");
        let conn = self.conns.iter_mut().find(|c| c.id == conn).unwrap();
        assert!(conn.up, "nothing is sent before HelloAck");
        if conn.closed.is_some() {
            return Err(NotPosted::Gone);
        }
        if conn.credits == 0 {
            return Err(NotPosted::Credit);
        }
        conn.credits -= 1;
        conn.used = true;
        let data = post.payload.map(|p| {
            assert_eq!(p.crcs, wire::pieces(p.bytes()));
            p.bytes().to_vec()
        });
        conn.posted.push(OnWire { token: post.token, op: post.op, body, range, data: data.unwrap_or_default() });
        Ok(())
    }
    fn close(&mut self, conn: ConnId, why: Reason) {
        let conn = self.conns.iter_mut().find(|c| c.id == conn).unwrap();
        self.in_vain += u32::from(conn.up && !conn.used && conn.closed.is_none());
        conn.closed.get_or_insert(why);
    }
}

/// An engine, its network and the time.
pub(super) struct Bench {
    pub(super) engine: Engine,
    pub(super) net: FakeNet,
    pub(super) now: Time,
    pub(super) arena: Arena,
    pub(super) completions: Vec<(u64, Result<Vec<u8>, BlockError>)>,
    /// What was on connections that ended: the node may still have it.
    pub(super) lost: Vec<(SocketAddr, OnWire)>,
}

pub(super) const SETTINGS: Settings = Settings { lane: 0, depth: 16, read_only: false, io_timeout: None };

impl Bench {
    pub(super) fn new(shards: &[(u64, u16)], settings: Settings) -> Self {
        Self::of(&map(shards), settings)
    }

    pub(super) fn of(map: &VolumeMap, settings: Settings) -> Self {
        let arena = Arena::small(16 << 20);
        let engine = Engine::new(settings, map, arena.clone()).unwrap();
        let net = FakeNet { credits: 64, ..FakeNet::default() };
        Self { engine, net, now: Time(1_000_000_000), arena, completions: Vec::new(), lost: Vec::new() }
    }

    pub(super) fn submit(&mut self, tag: u64, op: BlockOp, offset: u64, len: u64) -> bool {
        self.ask(BlockRequest { tag, op, offset: Bytes(offset), len: Bytes(len), fua: false })
    }

    pub(super) fn ask(&mut self, request: BlockRequest) -> bool {
        self.engine.submit(self.now, request).is_ok()
    }

    pub(super) fn data(&self, bytes: &[u8]) -> BlockOp {
        let mut data = self.arena.take(bytes.len().max(1), Class::Client).unwrap();
        data[..bytes.len()].copy_from_slice(bytes);
        BlockOp::Write { data: data.filled(), crcs: None }
    }

    pub(super) fn write(&mut self, tag: u64, offset: u64, bytes: &[u8]) -> bool {
        let op = self.data(bytes);
        self.submit(tag, op, offset, bytes.len() as u64)
    }

    /// Turns until nothing happens by itself any more.
    pub(super) fn turn(&mut self) {
        loop {
            self.engine.turn(self.now, &mut self.net);
            self.engine.reap(self.now);
            while let Some(done) = self.engine.next_completion() {
                let result = done.result.map(|done| match done {
                    BlockDone::Read(parts) => parts.iter().flat_map(|part| part.bytes().to_vec()).collect(),
                    BlockDone::Extents(extents) => {
                        let word = |e: &Extent| format!("{}{} ", if e.is_data { "data " } else { "hole " }, e.len.0);
                        extents.iter().map(word).collect::<String>().into_bytes()
                    }
                    BlockDone::Done => Vec::new(),
                });
                assert!(!self.completions.iter().any(|(tag, _)| *tag == done.tag), "completed once");
                self.completions.push((done.tag, result));
            }
            let Some(at) = self.net.conns.iter().position(|c| c.closed.is_some()) else { break };
            let id = self.net.conns[at].id;
            let reason = self.net.conns[at].closed.unwrap();
            self.lose(id, reason);
        }
    }

    pub(super) fn pass(&mut self, span: Span) {
        self.now = self.now + span;
        self.turn();
    }

    /// The connection that is open to a port.
    pub(super) fn conn(&self, port: u16) -> ConnId {
        self.net.conns.iter().find(|c| c.to == endpoint(port)).expect("a connection").id
    }

    pub(super) fn has_conn(&self, port: u16) -> bool {
        self.net.conns.iter().any(|c| c.to == endpoint(port))
    }

    pub(super) fn up(&mut self, port: u16) {
        let id = self.conn(port);
        self.net.conns.iter_mut().find(|c| c.id == id).unwrap().up = true;
        self.engine.up(self.now, id);
        self.turn();
    }

    /// Ends a connection; what was on it comes back lost.
    pub(super) fn lose(&mut self, id: ConnId, reason: Reason) {
        let at = self.net.conns.iter().position(|c| c.id == id).unwrap();
        let conn = self.net.conns.remove(at);
        for lost in &conn.posted {
            self.engine.answered(self.now, id, lost.token, None, &mut Deaf);
        }
        self.engine.down(self.now, id, reason, &mut self.net);
        self.lost.extend(conn.posted.into_iter().map(|lost| (conn.to, lost)));
    }

    pub(super) fn posted(&self, port: u16) -> &[OnWire] {
        &self.net.conns.iter().find(|c| c.to == endpoint(port)).expect("a connection").posted
    }

    pub(super) fn sequences(&self, port: u16) -> Vec<u64> {
        self.posted(port).iter().map(|p| p.body.sequence.get()).collect()
    }

    /// Answers the `nth` request on the connection to `port`.
    pub(super) fn answer(&mut self, port: u16, nth: usize, status: Status, data: &[u8]) {
        let id = self.conn(port);
        let conn = self.net.conns.iter_mut().find(|c| c.id == id).unwrap();
        conn.credits += 1;
        let request = conn.posted.remove(nth);
        self.reply(id, request.token, status, data);
        self.turn();
    }

    /// As the shard's primary in that epoch answers a request that names an older one.
    pub(super) fn answer_stale(&mut self, port: u16, nth: usize, epoch: u64, cache: u64) {
        let body = StaleBody { reply: ReplyBody::new(Status::StaleEpoch), epoch: epoch.into(), cache: cache.into() };
        self.answer_body(port, nth, body.bytes());
    }

    pub(super) fn answer_body(&mut self, port: u16, nth: usize, body: &[u8]) {
        let id = self.conn(port);
        let conn = self.net.conns.iter_mut().find(|c| c.id == id).unwrap();
        conn.credits += 1;
        let token = conn.posted.remove(nth).token;
        let reply = Reply { op: Op::REPLY, body, payload: None };
        self.engine.answered(self.now, id, token, Some(reply), &mut self.net);
        self.turn();
    }

    pub(super) fn reply(&mut self, conn: ConnId, token: u64, status: Status, data: &[u8]) {
        let payload = (!data.is_empty()).then(|| {
            let mut mem = self.arena.take(data.len(), Class::Client).unwrap();
            mem.copy_from_slice(data);
            Payload { mem: mem.filled(), len: data.len(), crcs: wire::pieces(data) }
        });
        let body = ReplyBody::new(status);
        let reply = Reply { op: Op::REPLY, body: body.bytes(), payload };
        self.engine.answered(self.now, conn, token, Some(reply), &mut self.net);
    }

    pub(super) fn results(&self) -> Vec<(u64, Result<usize, BlockError>)> {
        self.completions.iter().map(|(tag, result)| (*tag, result.as_ref().map(Vec::len).map_err(|e| *e))).collect()
    }

    /// Nothing is left of anything.
    pub(super) fn assert_clean(&mut self) {
        self.turn();
        assert!(self.engine.is_idle());
        assert!(self.engine.parts.is_empty());
        self.engine.table.leaks().unwrap();
        self.completions.clear();
        assert_eq!(self.arena.in_use(), 4096, "only the block of zeros");
    }
}

/// For calls that cannot close anything that is still there: the connection has ended already.
struct Deaf;

impl Network for Deaf {
    fn connect(&mut self, _: SocketAddr) -> ConnId {
        unreachable!("connections are made at the end of a turn")
    }
    fn credits(&self, _: ConnId) -> usize {
        unreachable!("requests are sent at the end of a turn")
    }
    fn request(&mut self, _: ConnId, _: Post) -> Result<(), NotPosted> {
        unreachable!("requests are sent at the end of a turn")
    }
    fn close(&mut self, _: ConnId, _: Reason) {}
}
