//! A shard whose blocks have content like no other's, so that each is found on the disks of its three copies: it is written, read,
//! scrubbed and flipped there. No copy is ever left behind: what a test does to one is seen on that one.

use super::{Cluster, Prepared, shard};
use conductor_model::api::{Order, OrderReport, OrderState, ShardOrder};
use conductor_model::{BLOCK, BlockRange, Blocks, Bytes, Durability, OrderId};
use node_core::Mail;
use node_protocol::{Status, op};
use sim::ProcessId;

const DISK_BYTES: u64 = 24 << 20;
const VOLUME: u32 = 1;
/// Size of the shard.
pub const BLOCKS: u32 = 1024;
/// Blocks of one write, at most.
const LONGEST: u32 = 256;

pub fn range(from: u32, count: u32) -> BlockRange {
    BlockRange { from: Blocks(from), count: Blocks(count) }
}

/// Content of a block that is like no other's.
pub fn content(block: u32, version: u32) -> Vec<u8> {
    let seed = u64::from(block) << 32 | u64::from(version) << 8 | 0xa5;
    (0..BLOCK as u64 / 8).flat_map(|n| (seed ^ n << 48).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes()).collect()
}

/// Content of several blocks.
pub fn contents(from: u32, count: u32, version: u32) -> Vec<u8> {
    (from..from + count).flat_map(|block| content(block, version)).collect()
}

pub struct Copies {
    pub c: Cluster,
    client: ProcessId,
}

impl Copies {
    /// Node 0 is primary; all is empty.
    pub fn new(seed: u64) -> Self {
        let mut c = Cluster::with_disks(seed, 1, DISK_BYTES);
        (c.blocks, c.fixed) = (BLOCKS, true);
        c.create(VOLUME, &[0, 1, 2], None, Durability::Always);
        let client = c.client(VOLUME, 0);
        Self { c, client }
    }

    /// Kills all nodes and starts them again, each with these things done to its store first.
    pub fn restart(&mut self, plans: impl IntoIterator<Item = (usize, Vec<Prepared>)>) {
        let c = &mut self.c;
        for process in c.nodes.clone() {
            c.w.kill(process);
        }
        for (node, plan) in plans {
            *c.plans[node].borrow_mut() = plan.into();
        }
        // None of them is told anything before all are open: the next epoch names the openings of all.
        let mut config = c.configs.remove(&shard(VOLUME)).unwrap();
        c.opened.iter_mut().for_each(Vec::clear);
        for process in c.nodes.clone() {
            c.w.restart(process);
        }
        c.until_just("the stores open again", |c| c.opened.iter().all(|disks| disks.len() == 1));
        assert!(c.plans.iter().all(|plan| plan.borrow().is_empty()), "all that was planned is done");
        config.epoch.0 += 1;
        for (member, disks) in config.members.iter_mut().zip(&c.opened) {
            member.open = disks[0].1;
        }
        c.configs.insert(shard(VOLUME), config.clone());
        c.mail(0, Mail::Assign(vec![config]));
        c.until_just("the shard serves again", |c| c.role(VOLUME).contains("serving"));
        self.client = c.client(VOLUME, 0);
    }

    /// A counter of a node.
    pub fn counter(&self, node: usize, name: &str) -> u64 {
        self.c.view(node).expect("it serves").counters.get(name).copied().unwrap_or(0)
    }

    // ---- reads and writes

    fn ask_read(&mut self, client: ProcessId, at: BlockRange) -> u64 {
        let (offset, len) = (at.from.bytes().0, u32::try_from(at.count.bytes().0).unwrap());
        self.c.ask(client, VOLUME, op::READ, offset, len, Vec::new())
    }

    /// Sends a read of blocks; its answer comes with `Cluster::answer`.
    pub fn send_read(&mut self, at: BlockRange) -> u64 {
        self.ask_read(self.client, at)
    }

    /// An answer, at the moment when it is there.
    fn answer(&mut self, token: u64) -> (Status, Vec<u8>) {
        self.c.until_just("an answer", |c| c.answers.contains_key(&token));
        self.c.answer(token)
    }

    fn data(&mut self, token: u64) -> Result<Vec<u8>, Status> {
        let (status, data) = self.answer(token);
        if status == Status::Ok { Ok(data) } else { Err(status) }
    }

    pub fn read(&mut self, at: BlockRange) -> Result<Vec<u8>, Status> {
        let token = self.send_read(at);
        self.data(token)
    }

    /// What a reader of a snapshot gets.
    pub fn read_snapshot(&mut self, snapshot: u64, at: BlockRange) -> Result<Vec<u8>, Status> {
        let reader = self.c.client(VOLUME, snapshot);
        let token = self.ask_read(reader, at);
        self.data(token)
    }

    /// Reads blocks and looks whether each is that of this version.
    pub fn assert_reads(&mut self, at: BlockRange, version: u32) {
        let data = self.read(at).unwrap_or_else(|status| panic!("blocks {at}: {status:?}"));
        assert_eq!(data.len() as u64, at.count.bytes().0, "all of it");
        for (block, bytes) in (at.from.0..).zip(data.chunks(BLOCK)) {
            assert!(bytes == content(block, version), "block {block} is wrong");
        }
    }

    pub fn write_bytes(&mut self, offset: u64, data: Vec<u8>) -> Status {
        let len = u32::try_from(data.len()).unwrap();
        let token = self.c.ask(self.client, VOLUME, op::WRITE, offset, len, data);
        self.answer(token).0
    }

    /// Writes blocks with their content of a version.
    pub fn write(&mut self, at: BlockRange, version: u32) {
        let mut from = at.from.0;
        while u64::from(from) < at.end() {
            let count = LONGEST.min(u32::try_from(at.end()).unwrap() - from);
            let status = self.write_bytes(u64::from(from) * BLOCK as u64, contents(from, count, version));
            assert_eq!(status, Status::Ok);
            from += count;
        }
    }

    // ---- rot and scrubs

    /// Where a node's disk holds a block's content of a version.
    pub fn find(&mut self, node: usize, block: u32, version: u32) -> Vec<u64> {
        self.c.find(node, &content(block, version))
    }

    /// Flips a bit of a block's content wherever a node's disk holds it.
    pub fn rot(&mut self, node: usize, block: u32, version: u32) {
        let places = self.find(node, block, version);
        assert!(!places.is_empty(), "node {node} holds block {block}");
        for at in places {
            self.c.flip(node, at + u64::from(block * 7 % 4096), u8::try_from(block % 8).unwrap());
        }
    }

    /// Names a scrub.
    pub fn order_scrub(&mut self, id: u64, from: u32, rate: u64) {
        let what = ShardOrder::Scrub { from: Blocks(from), rate: Bytes(rate) };
        self.c.orders(&[Order { id: OrderId(id), shard: shard(VOLUME), what }]);
    }

    /// Scrubs everything: damaged and repaired blocks.
    pub fn scrub(&mut self, id: u64) -> (u64, u64) {
        self.order_scrub(id, 0, 1 << 30);
        let over = |r: &OrderReport| r.id == OrderId(id) && !matches!(r.state, OrderState::Running { .. });
        self.c.until_just("the scrub", |c| c.reports.iter().any(over));
        match self.c.outcome(id).state {
            OrderState::Done { damaged, repaired } => (damaged, repaired),
            other => panic!("scrub {id}: {other:?}"),
        }
    }
}
