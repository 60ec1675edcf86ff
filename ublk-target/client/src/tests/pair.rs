//! The whole client over whole connections: two scripted nodes that are a `tcp::Net` each, and pipes in memory.

use super::{SHARD, endpoint, map};
use crate::limits::SAY_WAIT;
use crate::request::{BlockDone, BlockError, BlockOp, BlockRequest};
use crate::{ClientOptions, VolumeClient, Word};
use conductor_model::TransportAddress;
use conductor_model::api::{Reachable, VolumeMap};
use conductor_model::{AttachGeneration, Bytes};
use driver::{Address, ConnId, Done, Errno, ListenerId, Op, Span, Time, Vecs};
use memory::{Arena, Class};
use node_protocol::{IoBody, ReplyBody, Status, op};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::rc::Rc;
use tcp::{Admission, Answer, Net, NetEvent, NetOptions, Payload, rx_slots};
use wire::{ClusterKey, HelloInfo, Reason, Role, SessionId};

const DEPTH: u16 = 8;
const CLIENT: usize = 2;

/// One end of a stream.
#[derive(Default)]
struct End {
    peer: u32,
    owner: usize,
    inbox: VecDeque<u8>,
    over: bool,
    recv: Option<Op>,
}

/// Pipes between machines 0, 1 (nodes) and 2 (the client).
#[derive(Default)]
struct Pipes {
    ends: BTreeMap<u32, End>,
    accepts: BTreeMap<usize, Op>,
    made: u32,
    done: VecDeque<(usize, Done)>,
    /// RDMA leads to the same nodes.
    rdma: bool,
    /// It carries nothing large: what is sent behind that is not delivered either.
    narrow: bool,
    /// Ends over RDMA, and those on which something large was sent.
    over_rdma: BTreeSet<u32>,
    stuck: BTreeSet<u32>,
    /// What each end goes over; and what leads nowhere, without a word.
    over: BTreeMap<u32, Address>,
    cut: Vec<Address>,
    /// Connects over what is cut.
    held: Vec<(usize, Op)>,
}

/// Another address of a node over TCP.
fn second(node: u16) -> SocketAddr {
    endpoint(node + 100)
}

impl Pipes {
    fn is_cut(&self, end: u32) -> bool {
        self.over.get(&end).is_some_and(|over| self.cut.contains(over))
    }

    /// All leads somewhere again; who tried meanwhile is told that he came too late.
    fn heal(&mut self) {
        self.cut.clear();
        self.done.extend(self.held.drain(..).map(|(owner, op)| (owner, Done { op, result: Err(Errno::TIMED_OUT) })));
    }

    fn submit(&mut self, owner: usize, op: Op) {
        let result = match &op {
            Op::Accept { .. } => {
                self.accepts.insert(owner, op);
                return;
            }
            Op::Connect { to, .. } if self.cut.contains(to) => return self.held.push((owner, op)),
            Op::Connect { to, .. } => {
                let node = (0..2).find(|node| {
                    let at = endpoint(*node as u16 + 1);
                    let tcp = [at, second(*node as u16 + 1)].map(Address::Tcp);
                    tcp.contains(to) || (self.rdma && *to == Address::Rdma(at))
                });
                match node.and_then(|node| Some((node, self.accepts.remove(&node)?))) {
                    None => Err(Errno::REFUSED),
                    Some((node, accept)) => {
                        let (near, far) = (self.made + 1, self.made + 2);
                        self.made += 2;
                        self.ends.insert(near, End { peer: far, owner, ..End::default() });
                        self.ends.insert(far, End { peer: near, owner: node, ..End::default() });
                        self.over.extend([near, far].map(|end| (end, to.clone())));
                        if matches!(to, Address::Rdma(_)) {
                            self.over_rdma.extend([near, far]);
                        }
                        self.done.push_back((node, Done { op: accept, result: Ok(far) }));
                        Ok(near)
                    }
                }
            }
            Op::Recv { stream, .. } => {
                let stream = stream.0;
                self.ends.get_mut(&stream).unwrap().recv = Some(op);
                return self.receive(stream);
            }
            Op::Send { stream, parts, .. } => {
                let end = &self.ends[&stream.0];
                let (over, peer) = (end.over, end.peer);
                let bytes: Vec<u8> = parts.iter().flat_map(|part| part.bytes().to_vec()).collect();
                if self.narrow && self.over_rdma.contains(&stream.0) && bytes.len() > 4096 {
                    self.stuck.insert(stream.0);
                }
                let lost = self.stuck.contains(&stream.0) || self.is_cut(stream.0);
                match self.ends.get_mut(&peer).filter(|_| !over) {
                    None => Err(Errno::RESET),
                    Some(_) if lost => Ok(bytes.len() as u32),
                    Some(peer_end) => {
                        peer_end.inbox.extend(&bytes);
                        self.receive(peer);
                        Ok(bytes.len() as u32)
                    }
                }
            }
            Op::Shutdown { stream } => {
                let (stream, peer) = (stream.0, self.ends[&stream.0].peer);
                let told = if self.is_cut(stream) { 1 } else { 2 };
                for end in [stream, peer].into_iter().take(told) {
                    if let Some(it) = self.ends.get_mut(&end) {
                        it.over = true;
                        self.receive(end);
                    }
                }
                Ok(0)
            }
            Op::Close { stream } => {
                let end = self.ends.remove(&stream.0).unwrap();
                assert!(end.recv.is_none(), "closed with a receive posted");
                let cut = self.is_cut(stream.0);
                if let Some(peer) = self.ends.get_mut(&end.peer).filter(|_| !cut) {
                    peer.over = true;
                    self.receive(end.peer);
                }
                Ok(0)
            }
            other => panic!("{other:?} is not for pipes"),
        };
        self.done.push_back((owner, Done { op, result }));
    }

    fn receive(&mut self, stream: u32) {
        let end = self.ends.get_mut(&stream).unwrap();
        if end.inbox.is_empty() && !end.over {
            return;
        }
        let Some(Op::Recv { stream, on, mut into, from }) = end.recv.take() else { return };
        let n = (into.len() - from).min(end.inbox.len());
        for (byte, arrived) in into[from..].iter_mut().zip(end.inbox.drain(..n)) {
            *byte = arrived;
        }
        self.done.push_back((end.owner, Done { op: Op::Recv { stream, on, into, from }, result: Ok(n as u32) }));
    }
}

/// A request that a node has, and that the test answers.
struct Waiting {
    op: wire::Op,
    body: IoBody,
    payload: Option<Payload>,
    answer: Answer,
}

struct World {
    now: Time,
    pipes: Pipes,
    client: VolumeClient,
    nodes: Vec<Net>,
    conns: Vec<Vec<ConnId>>,
    waiting: Vec<Vec<Waiting>>,
    /// Nodes refuse this client as fenced.
    fence: bool,
    maps_wanted: u32,
    arena: Arena,
    completions: Vec<(u64, Result<Vec<u8>, BlockError>)>,
}

fn random(seed: u64) -> Box<dyn FnMut() -> u64> {
    let mut state = seed;
    Box::new(move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state
    })
}

impl World {
    fn new() -> Self {
        Self::with(tcp::Transport::Tcp, &map(&[(1, 1), (1, 2)]))
    }

    fn with(transport: tcp::Transport, map: &VolumeMap) -> Self {
        let secrets = Rc::new(ClusterKey([9; 32]));
        let arena = Arena::small(64 << 20);
        let options = ClientOptions {
            name: "host".into(),
            process: 77,
            attach: AttachGeneration(3),
            lane: 1,
            read_only: false,
            io_timeout: None,
            depth: 16,
            conn_depth: DEPTH,
            card: None,
            transport,
            secrets: secrets.clone(),
            random: random(1),
        };
        let mut pipes = Pipes::default();
        let nodes = (0..2).map(|node| {
            let name = HelloInfo::new(Role::Node, format!("n{node}"), 100 + node as u64);
            let mut net = Net::new(NetOptions::new(name, secrets.clone(), random(5 + node as u64)), arena.clone());
            let mut out = Vecs::<()>::default();
            net.listen(ListenerId(node), &mut out);
            out.ops.into_iter().for_each(|op| pipes.submit(node as usize, op));
            net
        });
        Self {
            now: Time(1_000_000_000),
            nodes: nodes.collect(),
            pipes,
            client: VolumeClient::new(options, map, arena.clone()).unwrap(),
            conns: vec![Vec::new(), Vec::new()],
            waiting: vec![Vec::new(), Vec::new()],
            fence: false,
            maps_wanted: 0,
            arena,
            completions: Vec::new(),
        }
    }

    /// What the link to a node goes over.
    fn over(&self, node: u16) -> Option<Address> {
        let links = self.client.view(self.now).links;
        links.into_iter().find(|link| link.endpoint == endpoint(node))?.over
    }

    fn submit(&mut self, tag: u64, op: BlockOp, offset: u64, len: u64) {
        self.client
            .submit(self.now, BlockRequest { tag, op, offset: Bytes(offset), len: Bytes(len), fua: false })
            .unwrap();
    }

    fn write(&mut self, tag: u64, offset: u64, bytes: &[u8]) {
        let mut data = self.arena.take(bytes.len(), Class::Client).unwrap();
        data.copy_from_slice(bytes);
        self.submit(tag, BlockOp::Write { data: data.filled(), crcs: None }, offset, bytes.len() as u64);
    }

    /// Turns of all machines until nothing moves.
    fn run(&mut self) {
        for turn in 0.. {
            assert!(turn < 1000, "it never comes to rest");
            let mut out: Vec<Vecs<()>> = (0..3).map(|_| Vecs::default()).collect();
            while let Some((owner, done)) = self.pipes.done.pop_front() {
                match owner {
                    CLIENT => self.client.done(self.now, done, &mut out[CLIENT]),
                    node => self.nodes[node].done(self.now, done, &mut out[node]),
                }
            }
            for (node, out) in out.iter_mut().enumerate().take(CLIENT) {
                self.serve(node, out);
                self.nodes[node].end_turn(self.now, out);
                self.serve(node, out);
            }
            self.client.end_turn(self.now, &mut out[CLIENT]);
            while let Some(done) = self.client.next_completion() {
                let bytes = done.result.map(|done| match done {
                    BlockDone::Read(parts) => parts.iter().flat_map(|part| part.bytes().to_vec()).collect(),
                    BlockDone::Extents(_) | BlockDone::Done => Vec::new(),
                });
                self.completions.push((done.tag, bytes));
            }
            self.maps_wanted += u32::from(self.client.wants_map(self.now));
            let mut moved = self.client.next_deadline().is_some_and(|at| at <= self.now);
            for (owner, out) in out.into_iter().enumerate() {
                moved |= !out.ops.is_empty();
                out.ops.into_iter().for_each(|op| self.pipes.submit(owner, op));
            }
            if !moved && self.pipes.done.is_empty() {
                return;
            }
        }
    }

    fn serve(&mut self, node: usize, out: &mut Vecs<()>) {
        let net = &mut self.nodes[node];
        while let Some(event) = net.next_event() {
            match event {
                NetEvent::Hello { conn, peer } => {
                    assert_eq!((peer.role, peer.lane, peer.volume), (Role::Client, 1, 1));
                    assert_eq!((peer.incarnation, peer.generation), (3, 3));
                    if self.fence {
                        net.reject_peer(self.now, conn, Reason::Fenced, out);
                        continue;
                    }
                    // Rule 8: the lane's former connection is fenced first, and what it left unstamped is dropped.
                    for old in self.conns[node].drain(..) {
                        net.close(self.now, old, Reason::Fenced, out);
                    }
                    self.waiting[node].clear();
                    self.conns[node].push(conn);
                    let hello = HelloInfo::new(Role::Node, format!("n{node}"), 100 + node as u64);
                    net.accept_peer(self.now, conn, Admission { hello, session: SessionId(5) }, out);
                }
                NetEvent::Request { op, body, payload, answer, .. } => {
                    let body = IoBody::parse(&body).unwrap();
                    self.waiting[node].push(Waiting { op, body, payload, answer });
                }
                NetEvent::Up { .. } | NetEvent::Down { .. } => {}
                NetEvent::Reply { .. } => panic!("the node asked for nothing"),
            }
        }
    }

    fn answer(&mut self, node: usize, nth: usize, data: &[u8]) {
        let Waiting { answer, .. } = self.waiting[node].remove(nth);
        let payload = (!data.is_empty()).then(|| {
            let mut mem = self.arena.take(data.len(), Class::Client).unwrap();
            mem.copy_from_slice(data);
            Payload { mem: mem.filled(), len: data.len(), crcs: wire::pieces(data) }
        });
        self.nodes[node].reply(self.now, answer, wire::Op::REPLY, ReplyBody::new(Status::Ok).bytes(), payload);
        self.run();
    }

    fn pass(&mut self, span: Span) {
        self.now = self.now + span;
        self.run();
    }

    /// The client has ended, and nothing of it is left.
    fn assert_over(&mut self) {
        self.run();
        assert!(self.client.finished());
        self.client.leaks().unwrap();
    }
}

#[test]
fn writes_and_reads_travel_to_their_primaries_and_back() {
    let mut w = World::new();
    let bytes: Vec<u8> = (0..20_000u32).map(|i| (i * 7) as u8).collect();
    w.write(1, SHARD - 10_000, &bytes);
    w.run();
    let halves: Vec<u8> = w.waiting.iter().flat_map(|of| of[0].payload.as_ref().unwrap().bytes().to_vec()).collect();
    assert_eq!(halves, bytes);
    assert!(w.waiting.iter().all(|of| of.len() == 1 && of[0].op == op::WRITE));
    w.answer(1, 0, b"");
    w.answer(0, 0, b"");
    w.submit(2, BlockOp::Read, SHARD - 3, 6);
    w.run();
    assert_eq!(w.waiting[0][0].body.len(), 3);
    w.answer(0, 0, b"abc");
    w.answer(1, 0, b"def");
    assert_eq!(w.completions, [(1, Ok(Vec::new())), (2, Ok(b"abcdef".to_vec()))]);
    // At rest: each connection its owner and its receives, no IOCB.
    let view = w.client.view(w.now);
    let at_rest = format!("1 owner + {} rx", rx_slots(DEPTH));
    assert_eq!(view.refs.len(), 2, "{:?}", view.refs);
    assert!(view.refs.iter().all(|line| line.starts_with("conn ") && line.ends_with(&at_rest)), "{:?}", view.refs);
    assert!(view.links.iter().all(|link| link.state == "up" && link.posted == 0));
    assert!(w.client.next_deadline().is_none_or(|at| at > w.now), "nothing is due");
    w.client.stop();
    assert!(
        w.client.next_deadline().is_some_and(|at| at <= w.now),
        "who is told after a turn does not wait for the next one"
    );
    w.assert_over();
}

#[test]
fn a_request_outlives_its_connection() {
    let mut w = World::new();
    w.write(1, 0, &[1; 512]);
    w.write(2, 512, &[2; 512]);
    w.run();
    let conn = w.conns[0].pop().unwrap();
    let mut out = Vecs::<()>::default();
    w.nodes[0].close(w.now, conn, Reason::Stopping, &mut out);
    out.ops.into_iter().for_each(|op| w.pipes.submit(0, op));
    w.run();
    assert_eq!(w.maps_wanted, 1);
    w.pass(Span::seconds(1));
    let again: Vec<_> = w.waiting[0].iter().map(|waiting| waiting.body.sequence.get()).collect();
    assert_eq!(again, [1, 2]);
    let waiting = w.client.view(w.now).waiting;
    assert_eq!((waiting[0].parts, waiting[0].shard.index.0), (2, 0));
    assert!(waiting[0].reason.contains("has not answered"), "{}", waiting[0].reason);
    // What has the volume's name by now is none of its business, nor is where that is reached.
    let mut foreign = map(&[(1, 1)]);
    foreign.volume.0 += 1;
    foreign.reachable = vec![Reachable { endpoint: endpoint(1), addresses: vec![TransportAddress::Tcp(second(1))] }];
    w.client.map(w.now, &foreign);
    assert_eq!(w.client.view(w.now).counters["bad_maps"], 1);
    assert!(!w.client.ways.are_several(endpoint(1)));
    w.client.stop();
    w.run();
    assert!(!w.client.finished(), "what is in flight is finished first");
    w.answer(0, 1, b"");
    w.answer(0, 0, b"");
    assert_eq!(w.completions, [(2, Ok(Vec::new())), (1, Ok(Vec::new()))]);
    w.assert_over();
}

#[test]
fn a_node_that_is_away_makes_requests_wait_visibly() {
    let mut w = World::new();
    let accepts = std::mem::take(&mut w.pipes.accepts);
    w.write(1, 0, &[1; 512]);
    for _ in 0..10 {
        w.pass(Span::seconds(1));
    }
    let view = w.client.view(w.now);
    assert_eq!((w.completions.len(), view.waiting.len(), view.requests), (0, 1, 1));
    assert!(view.waiting[0].reason.contains("could not connect"), "{}", view.waiting[0].reason);
    assert!(view.counters["connects"] >= 10);
    let Some(Word::Waits(wait)) = w.client.next_word() else { panic!("not a word") };
    assert!(wait.longest >= SAY_WAIT && wait.reason.contains("could not connect"), "{wait:?}");
    assert_eq!(w.client.next_word(), None, "once");
    w.pipes.accepts = accepts;
    w.pass(Span::seconds(1));
    w.answer(0, 0, b"");
    assert_eq!(w.completions.len(), 1);
    // All that waits is looked through once a second, not in each turn.
    assert!(w.client.next_deadline().is_some_and(|at| at <= w.now + Span::seconds(1)));
    w.pass(Span::seconds(1));
    assert_eq!(w.client.next_word(), Some(Word::GoesOn));
    w.write(2, 0, &[1; 512]);
    w.pass(Span::seconds(4));
    assert_eq!(w.client.next_word(), None, "as long as a failover takes");
}

/// The endpoint of node 1 and its RDMA address.
fn with_rdma() -> Reachable {
    Reachable { endpoint: endpoint(1), addresses: vec![TransportAddress::Rdma(endpoint(1))] }
}

#[test]
fn when_rdma_leads_there_again_the_connection_over_tcp_makes_room_and_no_request_is_lost() {
    let mut all = map(&[(1, 1), (1, 2)]);
    all.reachable = vec![with_rdma()];
    let mut w = World::with(tcp::Transport::Auto, &all);
    let over = |w: &World| matches!(w.over(1), Some(Address::Rdma(_)));
    w.write(1, 0, &[1; 512]);
    w.run();
    w.pass(Span::seconds(1));
    assert!(matches!(w.client.next_word(), Some(Word::Detour(around)) if around.endpoint == endpoint(1)));
    w.answer(0, 0, b"");
    assert!(!over(&w));
    let until = |w: &mut World, at: u64| {
        while w.now < Time(at * 1_000_000_000) {
            w.pass(Span::millis(100));
        }
    };
    // The look after half a minute finds nobody, the one a minute later does; but there is a request that is not answered.
    until(&mut w, 80);
    w.pipes.rdma = true;
    w.write(2, 0, &[2; 512]);
    until(&mut w, 93);
    assert!(!over(&w), "a request that rightly waits is not cut off");
    w.write(3, 0, &[3; 512]);
    w.run();
    assert_eq!(w.waiting[0].len(), 2, "and no other waits behind it");
    w.answer(0, 0, b"");
    w.answer(0, 0, b"");
    // The request's own deadline was not reached, so the connection is still the first one.
    let mut tag = 3;
    while !over(&w) {
        tag += 1;
        w.write(tag, 0, &[4; 512]);
        while w.waiting[0].is_empty() {
            w.pass(Span::millis(100));
        }
        w.answer(0, 0, b"");
        assert!(w.now < Time(230_000_000_000), "it stays with TCP");
    }
    let view = w.client.view(w.now);
    assert_eq!((view.counters["made_room"], view.counters["lost"], view.counters["resent"]), (1, 0, 0));
    assert_eq!(w.completions.len() as u64, tag);
    w.client.stop();
    w.assert_over();
}

#[test]
fn a_cut_cable_costs_little_more_than_a_second_where_there_is_another_address_and_a_mended_one_is_found() {
    let mut all = map(&[(1, 1), (1, 2)]);
    all.reachable = vec![Reachable { endpoint: endpoint(1), addresses: vec![TransportAddress::Tcp(second(1))] }];
    let mut w = World::with(tcp::Transport::Auto, &all);
    // Lane 1 begins at the second address.
    let (near, far) = (Address::Tcp(second(1)), Address::Tcp(endpoint(1)));
    let mut tag = 0;
    // Requests without end, one at a time; the longest that one waited.
    let mut go_on = |w: &mut World, span: Span| {
        let (until, mut longest) = (w.now + span, Span(0));
        while w.now < until {
            tag += 1;
            let since = w.now;
            w.write(tag, 0, &[1; 512]);
            w.run();
            while w.waiting[0].is_empty() {
                w.pass(Span::millis(50));
                assert!(w.now.since(since) < Span::seconds(10), "{tag}: nothing is sent any more");
            }
            w.answer(0, 0, b"");
            longest = longest.max(w.now.since(since));
            w.pass(Span::millis(100));
        }
        (longest.as_millis(), tag)
    };
    assert_eq!(go_on(&mut w, Span::seconds(2)).0, 0);
    assert_eq!(w.over(1), Some(near.clone()));
    w.pipes.cut = vec![near.clone()];
    let (longest, _) = go_on(&mut w, Span::seconds(100));
    assert!((1_000..1_500).contains(&longest), "{longest} ms");
    assert_eq!(w.over(1), Some(far.clone()), "looks that find nobody change nothing");
    let told = w.client.next_word();
    assert!(matches!(told, Some(Word::Detour(tcp::Detour { why: Reason::PeerSilent, .. }))), "{told:?}");
    let ways = w.client.view(w.now).links[0].ways.clone();
    assert_eq!(ways.iter().map(|way| way.up).collect::<Vec<_>>(), [false, true]);
    assert!(ways[0].failures >= 2 && ways[0].last.is_some(), "{ways:?}");
    w.pipes.heal();
    let (longest, _) = go_on(&mut w, Span::seconds(200));
    assert!(longest <= 550, "{longest} ms: the way back is taken when nothing is under way");
    assert_eq!(w.over(1), Some(near.clone()));
    // Both, one after the other.
    for (cut, left) in [(&near, &far), (&far, &near)] {
        w.pipes.heal();
        w.pipes.cut = vec![cut.clone()];
        let (longest, _) = go_on(&mut w, Span::seconds(20));
        assert!(longest < 1_500, "{longest} ms");
        assert_eq!(w.over(1).as_ref(), Some(left));
    }
    w.pipes.heal();
    let (_, tag) = go_on(&mut w, Span::seconds(1));
    let view = w.client.view(w.now);
    assert_eq!((w.completions.len() as u64, view.counters["made_room"]), (tag, 1));
    assert!(w.completions.iter().all(|(_, result)| result.is_ok()));
    w.client.stop();
    w.assert_over();
}

#[test]
fn a_node_whose_answers_rightly_wait_is_not_taken_for_silent() {
    let mut all = map(&[(1, 1), (1, 2)]);
    all.reachable = vec![Reachable { endpoint: endpoint(1), addresses: vec![TransportAddress::Tcp(second(1))] }];
    let mut w = World::with(tcp::Transport::Auto, &all);
    // Something is said more often than it is asked whether anybody is there.
    for tag in 0..7 {
        w.write(tag, 0, &[1; 512]);
        for _ in 0..16 {
            w.pass(Span::millis(25));
        }
    }
    assert_eq!(w.waiting[0].len(), 7);
    let view = w.client.view(w.now);
    assert_eq!((view.counters["connects"], view.counters["lost"]), (1, 0), "{view:?}");
    (0..7).for_each(|_| w.answer(0, 0, b""));
    w.client.stop();
    w.assert_over();
}

#[test]
fn where_rdma_comes_up_and_carries_nothing_large_requests_go_over_tcp() {
    let mut all = map(&[(1, 1), (1, 2)]);
    all.reachable = vec![with_rdma()];
    let mut w = World::with(tcp::Transport::Auto, &all);
    (w.pipes.rdma, w.pipes.narrow) = (true, true);
    // Requests without end, one at a time: each gets through, and few have to wait until RDMA is given up.
    let (mut tag, mut waited) = (0, Vec::new());
    while w.now < Time(600_000_000_000) {
        tag += 1;
        let since = w.now;
        w.write(tag, 0, &[1; 8192]);
        while w.waiting[0].is_empty() {
            w.pass(Span::millis(100));
            assert!(w.now.since(since) < Span::seconds(5), "{tag}: nothing is sent any more");
        }
        w.answer(0, 0, b"");
        if w.now.since(since) > Span::seconds(1) {
            waited.push(since.0 / 1_000_000_000);
        }
        w.pass(Span::millis(100));
    }
    assert!(
        (3..=5).contains(&waited.len()),
        "at first, and after each look, which are farther apart each time: {waited:?}"
    );
    assert!(matches!(w.client.next_word(), Some(Word::Detour(around)) if around.endpoint == endpoint(1)));
    assert_eq!(w.client.next_word(), None, "said once");
    assert_eq!(w.completions.len() as u64, tag);
    assert!(w.completions.iter().all(|(_, result)| result.is_ok()));
    w.client.stop();
    w.assert_over();
}

#[test]
fn a_newer_attachment_fences_the_client() {
    let mut w = World::new();
    w.fence = true;
    w.write(1, 0, &[1; 512]);
    w.run();
    assert_eq!(w.completions, [(1, Err(BlockError::Fenced))]);
    assert!(w.client.is_fenced());
    w.client.stop();
    w.assert_over();
    let told: Vec<_> = std::iter::from_fn(|| w.client.next_word()).collect();
    assert_eq!(told, [Word::Fenced]);
}

#[test]
fn an_abort_with_everything_in_flight_leaves_nothing_behind() {
    let mut w = World::new();
    // More than the connection has credits for, so that some are queued.
    (0..14).for_each(|tag| w.write(tag, tag * 4096, &[1; 4096]));
    w.submit(14, BlockOp::Read, SHARD, 40_000);
    w.run();
    assert_eq!((w.waiting[0].len(), w.waiting[1].len()), (usize::from(DEPTH), 1));
    let mut out = Vecs::<()>::default();
    w.client.abort(w.now, &mut out);
    out.ops.into_iter().for_each(|op| w.pipes.submit(CLIENT, op));
    w.run();
    assert_eq!(w.completions.len(), 15);
    assert!(w.completions.iter().all(|(_, result)| *result == Err(BlockError::Stopped)));
    w.assert_over();
}

#[test]
fn a_client_without_a_name_or_with_a_damaged_map_is_not_made() {
    let options = |name: &str| ClientOptions {
        name: name.into(),
        process: 1,
        attach: AttachGeneration(1),
        lane: 0,
        read_only: false,
        io_timeout: None,
        depth: 1,
        conn_depth: 1,
        card: None,
        transport: tcp::Transport::Tcp,
        secrets: Rc::new(ClusterKey([0; 32])),
        random: random(1),
    };
    let arena = Arena::small(1 << 20);
    assert!(VolumeClient::new(options(""), &map(&[(1, 1)]), arena.clone()).is_err());
    let mut broken = map(&[(1, 1)]);
    broken.shards.clear();
    assert!(VolumeClient::new(options("host"), &broken, arena).is_err());
}
