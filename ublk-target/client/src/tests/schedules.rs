//! Random schedules against a flat byte model: three nodes that execute requests at any time between their arrival and their answer,
//! execute what a lost connection carried at any time until they acknowledge the next one (rule 8), refuse old epochs, and lose
//! connections; shards that move, which the map may show before the old primary knows; maps that come late.
//!
//! Requests in flight together do not overlap, so every byte has one right value (rule 24), but after a failed change: then it has
//! the value that the next read sees, and keeps it. Another lane, which sees none of this lane's connections, works in between.

use super::fake::{Bench, OnWire, SETTINGS};
use super::{SHARD, endpoint, map};
use crate::engine::Settings;
use crate::request::{BlockError, BlockOp};
use driver::Span;
use node_protocol::{Status, op};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use wire::Reason;

const SHARDS: usize = 3;
const SIZE: usize = SHARDS * SHARD as usize;
const PORTS: u16 = 3;

#[derive(Clone, Copy, PartialEq, Debug)]
enum Does {
    Read,
    Write(u8),
    Zero,
    Discard,
}

struct World {
    bench: Bench,
    /// Epoch and port of each shard, as it is served.
    shards: Vec<(u64, u16)>,
    /// As the conductor decided, and tells: served from a later moment on.
    decided: Vec<(u64, u16)>,
    disk: Vec<u8>,
    /// What reads must see; `None` after a failed change.
    model: Vec<Option<u8>>,
    flying: BTreeMap<u64, (Does, usize, usize)>,
    /// Executed, not answered: by token.
    executed: BTreeMap<u64, (Status, Vec<u8>)>,
    limbo: Vec<(SocketAddr, OnWire)>,
    next_tag: u64,
    unfenced: u64,
}

impl World {
    fn new(io_timeout: Option<Span>) -> Self {
        let shards = vec![(1, 1), (1, 2), (1, 1)];
        let mut bench = Bench::new(&shards, Settings { io_timeout, ..SETTINGS });
        bench.net.credits = 4;
        Self {
            bench,
            decided: shards.clone(),
            shards,
            disk: vec![0; SIZE],
            model: vec![Some(0); SIZE],
            flying: BTreeMap::new(),
            executed: BTreeMap::new(),
            limbo: Vec::new(),
            next_tag: 0,
            unfenced: 0,
        }
    }

    fn submit(&mut self, random: u32) {
        let unit = [1, 512, 4096][random as usize % 3];
        let from = (random as usize / 3 * 7919 * unit) % SIZE;
        let len = (1 + (random as usize >> 7) % 24) * unit;
        let to = (from + len).min(SIZE);
        if self.flying.values().any(|&(_, start, end)| from < end && start < to) {
            return;
        }
        let tag = self.next_tag;
        self.next_tag += 1;
        let does = [Does::Read, Does::Write(random as u8 | 1), Does::Zero, Does::Discard][(random >> 13) as usize % 4];
        let op = match does {
            Does::Read => BlockOp::Read,
            Does::Write(fill) => self.bench.data(&vec![fill; to - from]),
            Does::Zero => BlockOp::WriteZeroes,
            Does::Discard => BlockOp::Discard,
        };
        if self.bench.submit(tag, op, from as u64, (to - from) as u64) {
            self.flying.insert(tag, (does, from, to));
        }
    }

    /// A node executes a request that was sent to it.
    fn execute(shards: &[(u64, u16)], disk: &mut [u8], to: SocketAddr, request: &OnWire) -> (Status, Vec<u8>) {
        let index = request.body.shard().index.0 as usize;
        if request.body.epoch.get() > shards[index].0 {
            return (Status::Later, Vec::new());
        }
        if (request.body.epoch.get(), to) != (shards[index].0, endpoint(shards[index].1)) {
            return (Status::StaleEpoch, Vec::new());
        }
        let from = index * SHARD as usize + request.body.offset.get() as usize;
        let range = &mut disk[from..from + request.body.len() as usize];
        match request.op {
            op::READ => return (Status::Ok, range.to_vec()),
            op::WRITE => range.copy_from_slice(&request.data),
            _ => range.fill(0),
        }
        (Status::Ok, Vec::new())
    }

    /// Another lane of the same client reads or writes what is not in flight here: at once, on a connection of its own, so that
    /// nothing of it fences this lane.
    fn other_lane(&mut self, random: u32) {
        let from = (random as usize * 4096) % SIZE;
        let to = (from + 8 * 4096).min(SIZE);
        if self.flying.values().any(|&(_, start, end)| from < end && start < to) {
            return;
        }
        if random >> 31 == 0 {
            self.disk[from..to].fill(random as u8);
        }
        for at in from..to {
            if random >> 31 == 0 {
                self.model[at] = Some(self.disk[at]);
            }
            assert_eq!(*self.model[at].get_or_insert(self.disk[at]), self.disk[at], "byte {at}");
        }
    }

    /// Port and position of a random request on a connection.
    fn pick(&self, random: u32) -> Option<(u16, usize)> {
        let all: Vec<_> = (1..=PORTS)
            .filter(|port| self.bench.has_conn(*port))
            .flat_map(|port| (0..self.bench.posted(port).len()).map(move |at| (port, at)))
            .collect();
        all.get(random as usize % all.len().max(1)).copied()
    }

    fn execute_posted(&mut self, (port, at): (u16, usize)) {
        let request = &self.bench.posted(port)[at];
        if !self.executed.contains_key(&request.token) {
            let done = Self::execute(&self.shards, &mut self.disk, endpoint(port), request);
            self.executed.insert(self.bench.posted(port)[at].token, done);
        }
    }

    fn answer(&mut self, (port, at): (u16, usize), later: bool) {
        let token = self.bench.posted(port)[at].token;
        let (status, data) = if later && !self.executed.contains_key(&token) {
            (Status::Later, Vec::new())
        } else {
            self.execute_posted((port, at));
            self.executed.remove(&token).unwrap()
        };
        self.bench.answer(port, at, status, &data);
    }

    /// The copies of a shard join its new epoch: its old primary serves nothing any more, its new one everything.
    fn take_over(&mut self, shard: usize) {
        self.shards[shard] = self.decided[shard];
    }

    fn up(&mut self, port: u16) {
        let new = self.bench.net.conns.iter().any(|c| c.to == endpoint(port) && !c.up);
        if new {
            // Before HelloAck: all that is unstamped is dropped.
            self.collect();
            self.limbo.retain(|(to, _)| *to != endpoint(port));
            self.bench.up(port);
        }
    }

    /// What connections carried when they ended, and was not executed.
    fn collect(&mut self) {
        for (to, request) in std::mem::take(&mut self.bench.lost) {
            if self.executed.remove(&request.token).is_none() {
                self.limbo.push((to, request));
            }
        }
        if self.bench.engine.counters.unfenced > self.unfenced {
            // The client gave up on a node: here the network lost what it still had.
            self.unfenced = self.bench.engine.counters.unfenced;
            self.limbo.clear();
        }
    }

    fn step(&mut self, action: u8, random: u32) {
        let port = 1 + (random % u32::from(PORTS)) as u16;
        match action {
            0..=4 => self.submit(random),
            5..=9 => {
                if let Some(at) = self.pick(random) {
                    self.answer(at, false);
                }
            }
            10..=11 => {
                if let Some(at) = self.pick(random) {
                    self.execute_posted(at);
                }
            }
            12 if self.bench.has_conn(port) => self.bench.lose(self.bench.conn(port), Reason::PeerClosed),
            13..=15 => self.up(port),
            16 => {
                let shard = &mut self.decided[(random >> 8) as usize % SHARDS];
                *shard = (shard.0 + 1, port);
            }
            17 => assert!(self.bench.engine.map(self.bench.now, &map(&self.decided))),
            23 => self.take_over((random >> 8) as usize % SHARDS),
            18 => self.bench.pass(Span::millis(u64::from(random % 1200))),
            19 => {
                if let Some(at) = self.pick(random) {
                    self.answer(at, true);
                }
            }
            20 if !self.limbo.is_empty() => {
                let (to, request) = self.limbo.remove(random as usize % self.limbo.len());
                Self::execute(&self.shards, &mut self.disk, to, &request);
            }
            21..=22 => self.other_lane(random),
            _ => {}
        }
        self.bench.turn();
        self.collect();
        self.check();
    }

    fn check(&mut self) {
        for (tag, result) in std::mem::take(&mut self.bench.completions) {
            let (does, from, to) = self.flying.remove(&tag).expect("completed once");
            let change = match (&result, does) {
                (Ok(bytes), Does::Read) => {
                    assert_eq!(bytes.len(), to - from);
                    for (at, byte) in (from..to).zip(bytes) {
                        assert_eq!(*self.model[at].get_or_insert(*byte), *byte, "byte {at}");
                    }
                    continue;
                }
                (Err(_), Does::Read) => continue,
                (Ok(_), Does::Write(fill)) => Some(fill),
                (Ok(_), _) => Some(0),
                (Err(error), _) => {
                    assert_eq!(*error, BlockError::TimedOut);
                    None
                }
            };
            let range = match does {
                Does::Discard => from.next_multiple_of(4096)..(to / 4096 * 4096).max(from.next_multiple_of(4096)),
                _ => from..to,
            };
            self.model[range].fill(change);
        }
    }

    /// Everything works from now on: everything completes.
    fn heal(&mut self) {
        for _ in 0..200 {
            if self.flying.is_empty() {
                break;
            }
            self.step(18, 199);
            self.step(17, 0);
            (0..SHARDS).for_each(|shard| self.take_over(shard));
            (1..=PORTS).for_each(|port| self.up(port));
            while let Some(at) = self.pick(0) {
                self.answer(at, false);
            }
            self.step(u8::MAX, 0);
        }
        assert!(self.flying.is_empty(), "never answered: {:?}", self.flying);
        let wrong = self.model.iter().zip(&self.disk).position(|(model, disk)| model.is_some_and(|byte| byte != *disk));
        assert_eq!(wrong, None, "the disk is what was acknowledged");
        self.bench.assert_clean();
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]
    #[test]
    fn every_read_sees_what_was_acknowledged_under_any_schedule(
        timeout in any::<bool>(),
        steps in proptest::collection::vec((0u8..=23, any::<u32>()), 50..400),
    ) {
        let mut world = World::new(timeout.then_some(Span::millis(700)));
        for (action, random) in steps {
            world.step(action, random);
        }
        world.heal();
    }
}
