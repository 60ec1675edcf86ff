//! One reactor's storage node: a `driver::Machine` that owns the connections, the stores, the sessions and the shards.
//!
//! Each file of this folder is one thing that a node does, written as methods on `Node`:
//!
//! | file | what |
//! |---|---|
//! | `visitors` | who comes in, and whom that fences |
//! | `requests` | every request that comes in, dispatched; a client's: checks, lock |
//! | `reads` | what is read of the copy here, for whatever IOCB |
//! | `replies` | what is answered, and the end of a request |
//! | `ranges` | ranges that clients hold who share a volume |
//! | `space` | space on every copy, before a write is stamped |
//! | `stamping` | an IOCB gets its stamp, or waits for what that needs |
//! | `fanout` | a stamped IOCB's legs: local store, other copies, completion |
//! | `changes` | a stamped change is handed to a disk here |
//! | `crowd` | who waits for a place in a disk's store |
//! | `first_in_line` | who waits for memory to read into, and who comes first |
//! | `replica_changes` | what other primaries ask of the copies here under a stamp: writes and the like |
//! | `join` | a copy here joins an epoch |
//! | `deletion` | copies that the conductor has no more |
//! | `membership` | configurations, asking the conductor |
//! | `gather` | a primary's members are asked to join, and what they say of themselves |
//! | `disk_failed` | what a failed disk, or a store that refuses, means to who asked |
//! | `wishes` | what a primary asks for while it goes on: dropping, filling, adding copies; stepping down |
//! | `filling` | filling a syncing copy elsewhere |
//! | `filled_past` | a copy is filled past what no copy in sync has |
//! | `filled` | being filled: what a primary asks of a syncing copy here |
//! | `settle` | making the copies equal before serving |
//! | `orders` | what the conductor told primaries here to do in the order of writes |
//! | `barrier` | snapshots: placing a barrier, holding answers |
//! | `copy_range` | copy-range |
//! | `source` | what a copy-range copies, read here, asked for elsewhere, or given to who asks |
//! | `work` | what single copies do by themselves: dropping snapshots, flattening |
//! | `waits` | who waits for a completion of a store, and who for a reply on a link |
//! | `peers` | links to other reactors: connecting, who is there |
//! | `promises` | promises asked for, given, waited for |
//! | `settle_damage` | settling what the own copy cannot read |
//! | `verify` | looking at the content of copies here, and repairing it, for whoever asks |
//! | `heal` | putting right what does not read as it was written, from another copy |
//! | `rewrite` | writing again on every copy what no repair fits |
//! | `damage` | damage, counted and said |
//! | `scrub` | looking through everything, slowly |
//! | `lost` | a shard whose content is nowhere any more: requests end with errors |
//! | `troubles` | why a shard does not serve, for people |
//! | `view` | a look inside |

mod barrier;
mod changes;
mod copy_range;
mod crowd;
mod damage;
mod deletion;
mod disk_failed;
mod fanout;
mod filled;
mod filled_past;
mod filling;
mod first_in_line;
mod gather;
mod heal;
mod join;
mod lost;
mod membership;
mod orders;
mod peers;
mod promises;
mod ranges;
mod reads;
mod replica_changes;
mod replies;
mod requests;
mod rewrite;
mod scrub;
mod settle;
mod settle_damage;
mod source;
mod space;
mod stamping;
mod troubles;
mod verify;
mod view;
mod visitors;
mod waits;
mod wishes;
mod work;

use self::crowd::Crowd;
use self::deletion::Deletions;
use self::filling::Fillings;
use self::first_in_line::FirstInLine;
use self::orders::Orders;
use self::promises::Promises;
use self::requests::Incoming;
use self::source::Sources;
use self::space::Taken;
use self::waits::Waits;
use crate::counters::Counters;
use crate::iocb::ServerIocb;
use crate::iocbs::{IocbKey, Iocbs};
use crate::limits::{AWAY, NOTICEABLE_USE, PROMISE, STORE_OPS, TICK};
use crate::links::Links;
use crate::mail::{Letter, Mail};
use crate::primary::Primary;
use crate::replica::{Caller, Replica};
use crate::session::Sessions;
use conductor_model::api::{KeyList, Trouble};
use conductor_model::{Blocks, DiskId, NodeId, OpenId, ShardId};
use driver::{ConnId, DiskIndex, Done, Machine, Outbox, Time};
use memory::{Arena, Filling};
use node_store::Store;
use refcount::Table;
use slab::Slab;
use std::collections::{BTreeMap, VecDeque};
use tcp::{Net, NetEvent, Payload, Transport, Ways};

/// A disk with its opened store.
#[derive(Debug)]
pub struct Disk<S> {
    /// Its name.
    pub disk: DiskId,
    /// This opening.
    pub open: OpenId,
    /// The driver's number of it: where its completions come from.
    pub index: DiskIndex,
    /// The store, open and recovered.
    pub store: S,
}

/// What a node is made of.
#[derive(Debug)]
pub struct NodeOptions {
    /// Its number.
    pub node: NodeId,
    /// Random per life of the process; the same on all its reactors.
    pub process: u64,
    /// Which of the process's reactors this is.
    pub lane: u16,
}

/// Who is at the other end of a connection that came to us.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Visitor {
    /// With the serial of its key, if it has one of its own.
    Client {
        key: Option<u64>,
    },
    Node {
        name: String,
        caller: Caller,
    },
}

/// Rounds of one turn; what is left then is the next turn's, which follows at once.
const ROUNDS: usize = 4;

/// One reactor's storage node.
pub struct Node<S> {
    options: NodeOptions,
    arena: Arena,

    // Disks, each with its store.
    disks: Vec<Disk<S>>,
    /// What each disk's store has, and who waits for a place there.
    crowds: Vec<Crowd>,
    /// A store was given something since its last end of turn.
    store_touched: bool,
    damage: damage::Damage,
    deletions: Deletions,

    // Who is connected: clients and nodes that came, reactors that were called.
    net: Net,
    listeners: Vec<driver::ListenerId>,
    visitors: BTreeMap<ConnId, Visitor>,
    sessions: Sessions,
    last_session: u64,
    /// Which keys of clients there are, once the conductor has said so.
    keys: Option<KeyList>,
    links: Links,
    ways: Ways,
    promises: Promises,

    // Shards: the copy here, and what its primary knows if that is here.
    replicas: BTreeMap<ShardId, Replica>,
    primaries: BTreeMap<ShardId, Primary>,

    // Requests under way.
    iocbs: Iocbs,
    iocb_holds: Table<ServerIocb>,
    waits: Waits,
    taken: Taken,
    /// IOCBs that may be able to go on.
    runnable: VecDeque<IocbKey>,
    first_in_line: Option<FirstInLine>,
    arrivals: u64,

    // What keeps copies equal, and what the conductor has ordered.
    /// Settling pieces under way on the whole reactor.
    settling_pieces: usize,
    /// Shards whose settling may go on: a piece of it just finished, or a read that it waited for.
    may_settle_on: Vec<ShardId>,
    fillings: Fillings,
    orders: Orders,
    sources: Sources,
    scrubs: BTreeMap<ShardId, scrub::Scrub>,
    /// Questions about content that are being answered.
    services: Slab<verify::Service>,
    last_look: u64,

    // What is said to others.
    next_tick: Time,
    troubles: Vec<Trouble>,
    /// What was last said of each disk's blocks in use.
    said_used: Vec<Blocks>,
    traces: VecDeque<crate::iocb::Stages>,
    counters: Counters,
    stopping: bool,
}

impl<S: Store> Node<S> {
    /// A node over opened disks. `started` is when it had its disks to itself: it joins nothing for one promise time after (rule 14), unless
    /// its disks hold no copy at all, so that no process before it can have promised anything.
    pub fn new(
        options: NodeOptions,
        arena: Arena,
        net: Net,
        disks: Vec<Disk<S>>,
        listeners: Vec<driver::ListenerId>,
        started: Time,
    ) -> Self {
        let mut net = net;
        net.expect_needs(requests::needs);
        let mut replicas = BTreeMap::new();
        for (at, disk) in disks.iter().enumerate() {
            for (copy, config) in disk.store.copies() {
                let shard = config.shard;
                let mut replica = Replica::new(at, copy, config);
                replica.exists = true;
                replicas.insert(shard, replica);
            }
        }
        let until = if replicas.is_empty() { started } else { started + PROMISE };
        let disks_len = disks.len();
        let ways = Ways::new(Transport::Auto, options.lane);
        let said_used = disks.iter().map(|d| d.store.usage().used).collect();
        Self {
            options,
            arena,
            net,
            disks,
            listeners,
            sessions: Sessions::default(),
            visitors: BTreeMap::new(),
            keys: None,
            links: Links::default(),
            ways,
            replicas,
            primaries: BTreeMap::new(),
            iocbs: Iocbs::default(),
            iocb_holds: Table::new(),
            waits: Waits::default(),
            taken: Taken::default(),
            promises: Promises::new(until),
            fillings: Fillings::new(started),
            deletions: Deletions::default(),
            orders: Orders::default(),
            sources: Sources::default(),
            runnable: VecDeque::new(),
            first_in_line: None,
            arrivals: 0,
            store_touched: false,
            crowds: (0..disks_len).map(|_| Crowd::default()).collect(),
            settling_pieces: 0,
            services: Slab::new(),
            last_look: 0,
            damage: damage::Damage::new(disks_len),
            scrubs: BTreeMap::new(),
            next_tick: started,
            troubles: Vec::new(),
            said_used,
            may_settle_on: Vec::new(),
            last_session: 0,
            traces: VecDeque::new(),
            counters: Counters::default(),
            stopping: false,
        }
    }

    /// How many operations one disk's store may have of us at once.
    fn store_share(&self) -> usize {
        STORE_OPS / self.disks.len().max(1)
    }

    fn drain_net(&mut self, now: Time, out: &mut dyn Outbox<Letter>) {
        while let Some(event) = self.net.next_event() {
            match event {
                NetEvent::Hello { conn, peer } => self.hello(now, conn, &peer, out),
                NetEvent::Up { conn, peer, .. } => self.link_up(now, conn, &peer, out),
                NetEvent::Request { conn, op, body, payload, answer } => {
                    self.request(now, Incoming { conn, op, body: &body, payload, answer }, out);
                }
                NetEvent::Reply { conn, token, result } => self.link_reply(now, conn, token, result, out),
                NetEvent::Down { conn, reason, .. } => self.conn_down(now, conn, reason, out),
            }
        }
    }

    /// Goes on with every IOCB that may be able to; what that frees may free others.
    fn run_runnable(&mut self, now: Time, out: &mut dyn Outbox<Letter>) {
        loop {
            if let Some(shard) = self.may_settle_on.pop() {
                self.go_on_settling(now, shard, out);
            } else if let Some(key) = self.runnable.pop_front() {
                self.advance(now, key, out);
            } else if let Some(part) = self.orders.news.pop_front() {
                self.part_done(now, part);
            } else {
                self.post_reports(out);
                return;
            }
        }
    }

    /// Goes round until nothing moves: what a store answers at once (a read of what was never written) goes with this turn's send,
    /// and forwards leave before the local writes, because the network is the longer way.
    fn run_until_quiet(&mut self, now: Time, out: &mut dyn Outbox<Letter>) {
        self.store_touched |= self.disks.iter().any(|d| d.store.next_deadline().is_some_and(|at| at <= now));
        self.first_tries_again();
        for _ in 0..ROUNDS {
            for at in 0..self.disks.len() {
                self.drain_store(now, at, out);
            }
            self.run_runnable(now, out);
            self.net.end_turn(now, out);
            self.drain_net(now, out);
            if !self.has_more_to_do() {
                return;
            }
            self.store_touched = false;
            for at in 0..self.disks.len() {
                self.disks[at].store.end_turn(now, &mut |op| out.submit(op));
            }
        }
        // What the last of them answered goes on in the next turn.
        for at in 0..self.disks.len() {
            self.store_touched |= self.drain_store(now, at, out);
        }
    }

    /// Is there work that no completion and no deadline would bring back?
    fn has_more_to_do(&self) -> bool {
        self.store_touched
            || !self.runnable.is_empty()
            || !self.may_settle_on.is_empty()
            || !self.orders.news.is_empty()
    }

    fn reap(&mut self) {
        while let Some(gone) = self.iocb_holds.reap() {
            if let Some(iocb) = self.iocbs.try_remove(gone.key) {
                debug_assert!(iocb.answer.is_none(), "an IOCB is answered before it goes");
            }
        }
    }

    fn tick(&mut self, now: Time, late: bool, out: &mut dyn Outbox<Letter>) {
        if late {
            self.counters.count("tick.late");
            self.links.forgive(now);
        }
        self.tick_links(now, out);
        self.tick_parked(now, out);
        self.tick_primaries(now, out);
        self.tick_lost(now);
        self.tick_wishes(now, late, out);
        self.tick_fillings(now, out);
        self.tick_scrubs(now, out);
        self.tick_damage(now, out);
        self.tick_orders(now, out);
        self.tick_ranges(now);
        self.report_troubles(now, out);
        self.report_usage(out);
    }

    fn report_usage(&mut self, out: &mut dyn Outbox<Letter>) {
        for (disk, said) in self.disks.iter().zip(&mut self.said_used) {
            let used = disk.store.usage().used;
            if used.0.abs_diff(said.0) >= NOTICEABLE_USE {
                *said = used;
                out.post(Letter::Usage(disk.disk, used.bytes()));
            }
        }
    }

    fn stop(&mut self, now: Time, out: &mut dyn Outbox<Letter>) {
        self.stopping = true;
        self.net.stop(now, out);
    }
}

/// Memory that was just filled, as a payload.
pub(crate) fn whole_payload(filling: Filling) -> Payload {
    let crcs = wire::pieces(&filling);
    Payload { len: filling.len(), mem: filling.filled(), crcs }
}

impl<S: Store> Machine for Node<S> {
    type Mail = Mail;
    type Letter = Letter;

    fn start(&mut self, _now: Time, out: &mut dyn Outbox<Letter>) {
        for listener in std::mem::take(&mut self.listeners) {
            self.net.listen(listener, out);
        }
    }

    fn done(&mut self, now: Time, done: Done, out: &mut dyn Outbox<Letter>) {
        let Some(disk) = done.op.disk() else {
            self.net.done(now, done, out);
            self.drain_net(now, out);
            self.run_runnable(now, out);
            return;
        };
        if let Some(at) = self.disks.iter().position(|d| d.index == disk) {
            self.store_touched = true;
            self.disks[at].store.done(now, done, &mut |op| out.submit(op));
            self.drain_store(now, at, out);
            self.run_runnable(now, out);
        }
    }

    fn mail(&mut self, now: Time, mail: Mail, out: &mut dyn Outbox<Letter>) {
        match mail {
            Mail::Assign(configs) => {
                for config in configs {
                    self.adopt(now, config, out);
                }
            }
            Mail::Membership(shard, answer) => self.conductor_answered(now, shard, answer, out),
            Mail::Heard(sent) => self.conductor_promised(sent),
            Mail::FillRate(rate) => self.fillings.rate = rate,
            Mail::AbortedFillings(copies) => self.abort_fillings(copies),
            Mail::Reachable(all) => self.know_ways(now, all),
            Mail::Generations(list) => {
                for (volume, generation) in list {
                    let fence = self.sessions.set_generation(volume, generation);
                    self.fence(now, &fence, out);
                }
            }
            Mail::Readers(lists) => {
                for list in lists {
                    let fence = self.sessions.set_readers(list);
                    self.fence(now, &fence, out);
                }
            }
            Mail::Keys(keys) => self.keys_named(now, keys, out),
            Mail::Delete(copies) => self.delete_copies(now, copies, out),
            Mail::Orders(orders) => {
                self.scrubs_ordered(now, &orders, out);
                self.orders_named(now, orders);
            }
            Mail::Work(work) => self.work_named(now, work, out),
            Mail::Look(number) => out.post(Letter::View(number, Box::new(self.view()))),
            Mail::Stop => self.stop(now, out),
        }
        self.run_runnable(now, out);
    }

    fn end_turn(&mut self, now: Time, out: &mut dyn Outbox<Letter>) {
        if now >= self.next_tick {
            let late = now.since(self.next_tick) >= AWAY;
            self.next_tick = now + TICK;
            self.tick(now, late, out);
        }
        self.run_until_quiet(now, out);
        self.first_stays_first();
        self.reap();
    }

    fn next_deadline(&self) -> Option<Time> {
        if self.has_more_to_do() {
            return Some(Time::default());
        }
        let busy = !self.links.is_empty() || !self.primaries.is_empty() || self.replicas.values().any(Replica::parked);
        let stores = self.disks.iter().filter_map(|d| d.store.next_deadline());
        stores.chain(self.net.next_deadline()).chain(busy.then_some(self.next_tick)).min()
    }

    fn finished(&self) -> bool {
        self.stopping && self.net.finished() && self.disks.iter().all(|d| d.store.idle())
    }
}
