//! Everything around the cores: the nodes' control threads, the way to the conductor, the client's attachment, alarms.

mod control;

use crate::conductor::Service;
use crate::inspector::Found;
use crate::lane::{Attachment, Lane};
use crate::mail::{LaneMail, Letter, Mail};
use crate::node::{Home, NodeProcess};
use crate::strict::Breaches;
use crate::volumes::Volumes;
use crate::workload::{LONGEST_BYTES, Workload};
use conductor_model::api::{DiskReport, Trouble, VolumeMap};
use conductor_model::views::{Attach, VolumeState};
use conductor_model::{Answer, Bytes, CopyId, Millis, Request, ShardId};
use driver::{Address, Span, Time};
use memory::Shares;
use sim::{DiskId, DiskOptions, News, ProcessId, Rng, Setup, State, World};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::rc::Rc;

pub(crate) type Sim = World<Mail, Letter>;

/// The volume's name.
pub(crate) const VOLUME: &str = "vol";
/// How often a node says that it lives.
const HEARTBEAT: Span = Span::millis(500);
/// Before an attach that got no answer is asked again.
const ATTACH_AGAIN: Span = Span::millis(300);
/// How often the director looks whether a phase is over.
const TICK: Span = Span::millis(5);
/// Storage nodes.
pub(crate) const NODES: usize = 3;

/// Who asked the conductor.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Source {
    Node(usize, u32, Time),
    Lane(ProcessId, u32),
    /// The attachment of this number.
    Attach(u64),
}

/// What the director wants to be told at a certain time.
pub(crate) enum Alarm {
    /// A request reaches the conductor.
    Asked(Source, Request),
    /// An answer is back.
    Answered(Source, ShardId, Answer),
    /// A node's heartbeat is due.
    Beat(usize, u32),
    /// An attach is due.
    Attach(u64),
    /// The next fault is due.
    Fault,
    /// Somebody does something to volumes.
    Administer,
    /// The end of a fault.
    Undo(crate::faults::Undo),
    /// Look around.
    Tick,
}

/// A node and what its control thread knows.
pub(crate) struct NodeHost {
    pub(crate) process: ProcessId,
    pub(crate) disk: DiskId,
    /// The last of its lives in which the disk may fail.
    pub(crate) bad_until: u32,
    /// The last of its lives in which it said that the disk had failed.
    pub(crate) failed_in: u32,
    control: Option<Control>,
}

struct Control {
    life: u32,
    report: DiskReport,
    registered: bool,
    after: u64,
    troubles: Vec<Trouble>,
    used: Bytes,
    dropped: Vec<CopyId>,
    /// The last answer named orders.
    has_orders: bool,
}

/// The lanes of one client process; it may be started again under another generation.
pub(crate) struct ClientHost {
    pub(crate) lanes: Vec<ProcessId>,
    attachment: Rc<RefCell<Option<Attachment>>>,
}

pub(crate) struct Director {
    pub(crate) rng: Rng,
    pub(crate) shared: Rc<RefCell<Workload>>,
    pub(crate) service: Service,
    pub(crate) volumes: Volumes,
    /// Somebody takes snapshots, clones, rolls back and deletes.
    pub(crate) administered: bool,
    /// Nodes have two addresses each.
    pub(crate) two_networks: bool,
    pub(crate) nodes: Vec<NodeHost>,
    /// Two: a new client may run beside one that does not know yet that it is superseded.
    pub(crate) clients: Vec<ClientHost>,
    /// Which of them is the current one.
    pub(crate) current: usize,
    lanes: u16,
    conn_depth: u16,
    pub(crate) client_name: String,
    names: u32,
    attempt: u64,
    /// True from wanting an attachment until its lanes run.
    pub(crate) attaching: bool,
    alarms: BTreeMap<u64, Alarm>,
    last_alarm: u64,
    /// Per million: messages to and from the conductor that are lost, or come twice; and how late they come at most.
    pub(crate) lost_ppm: u32,
    pub(crate) twice_ppm: u32,
    pub(crate) late: Span,
    pub(crate) faults: u32,
    pub(crate) faulty: bool,
    /// The node whose disk rots.
    pub(crate) rots: usize,
    pub(crate) inspect: Rc<Cell<bool>>,
    pub(crate) breaches: Breaches,
    pub(crate) found: Vec<Vec<Found>>,
    /// Nodes are told to stop: nothing that was broken is seen to any more.
    pub(crate) stopping: bool,
    pub(crate) stopped: u32,
    /// Counters of machines that are gone, and the director's own.
    pub(crate) counts: BTreeMap<String, u64>,
    /// Why the conductor refused a change of membership the last time.
    last_refusal: String,
    /// Set by the tick that saw the end of the phase.
    ticked: bool,
}

pub(crate) fn endpoint(node: usize) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, u8::try_from(node + 1).unwrap_or(0)], 7000))
}

/// Its other address, where there are two networks.
pub(crate) fn second(node: usize) -> SocketAddr {
    SocketAddr::from(([10, 1, 0, u8::try_from(node + 1).unwrap_or(0)], 7000))
}

impl Director {
    pub(crate) fn new(w: &mut Sim, shared: Rc<RefCell<Workload>>) -> Self {
        let mut rng = w.rng().fork();
        let cluster = rng.next_u64();
        let inspect = Rc::new(Cell::new(false));
        let breaches = Breaches::default();
        let depth = [12, 24, 128, 128][rng.index(4)];
        // As little memory as a node may have, too, so that requests wait for it.
        let least = Shares::least_even(LONGEST_BYTES);
        let arena = [least, least, least, 8 << 20, 24 << 20][rng.index(5)];
        let rots = rng.index(NODES);
        let two_networks = rng.coin();
        let mut nodes = Vec::new();
        for node in 0..NODES {
            let disk = w.add_disk(DiskOptions::sized(crate::node::DISK_BYTES));
            let home = Home {
                node: conductor_model::NodeId(u32::try_from(node + 1).unwrap_or(0)),
                cluster,
                endpoint: endpoint(node),
                second: two_networks.then(|| second(node)),
                depth,
                arena,
                inspect: Rc::clone(&inspect),
                breaches: Rc::clone(&breaches),
            };
            let offset = rng.below(1_000_000_000_000);
            let ppm = i32::try_from(rng.below(400)).unwrap_or(0) - 200;
            let setup = Setup::named(format!("node {}", node + 1))
                .disk(disk)
                .listen(Address::Tcp(endpoint(node)))
                .clock(sim::Clock { offset, ppm });
            let setup = if two_networks { setup.listen(Address::Tcp(second(node))) } else { setup };
            let process = w.spawn(setup, move |birth| NodeProcess::new(home.clone(), birth));
            nodes.push(NodeHost { process, disk, bad_until: 0, failed_in: 0, control: None });
        }
        let service = Service::new(cluster, Millis(0));
        let lanes = u16::try_from(rng.up_to(3)).unwrap_or(1);
        let conn_depth = [4, 16, 64, 64][rng.index(4)];
        let host = || ClientHost { lanes: Vec::new(), attachment: Rc::default() };
        let mut this = Self {
            rng,
            shared,
            service,
            volumes: Volumes::default(),
            administered: false,
            two_networks,
            nodes,
            clients: vec![host(), host()],
            current: 0,
            lanes,
            conn_depth,
            client_name: "host".to_owned(),
            names: 0,
            attempt: 0,
            attaching: false,
            alarms: BTreeMap::new(),
            last_alarm: 0,
            lost_ppm: 0,
            twice_ppm: 0,
            late: Span::millis(4),
            faults: 0,
            faulty: false,
            rots,
            inspect,
            breaches,
            found: Vec::new(),
            stopping: false,
            stopped: 0,
            counts: BTreeMap::new(),
            last_refusal: String::new(),
            ticked: false,
        };
        this.alarm(w, TICK, Alarm::Tick);
        this
    }

    pub(crate) fn count(&mut self, name: &str, n: u64) {
        if n > 0 {
            *self.counts.entry(name.to_owned()).or_default() += n;
        }
    }

    pub(crate) fn alarm(&mut self, w: &mut Sim, after: Span, alarm: Alarm) {
        self.last_alarm += 1;
        self.alarms.insert(self.last_alarm, alarm);
        w.alarm_at(w.now() + after, self.last_alarm);
    }

    pub(crate) fn fail(&self, what: String) {
        self.shared.borrow_mut().failures.push(what.into());
    }

    /// What the conductor's clock shows.
    pub(crate) fn now(&self, w: &Sim) -> Millis {
        Millis(w.now().0 / 1_000_000)
    }

    /// Lets time pass until `done`, which is asked now and then.
    pub(crate) fn run(
        &mut self,
        w: &mut Sim,
        what: &str,
        limit: Span,
        mut done: impl FnMut(&mut Self, &mut Sim) -> bool,
    ) -> Result<(), String> {
        let limit = w.now() + limit;
        loop {
            if let Some(failure) = self.shared.borrow().failures.iter().find(|f| !f.kind.is_noted()) {
                return Err(failure.what.clone());
            }
            if std::mem::take(&mut self.ticked) && done(self, w) {
                return Ok(());
            }
            if w.now() > limit {
                return Err(format!("{what} did not come to its end\n{}", self.report(w)));
            }
            match w.step() {
                sim::Step::News(news) => self.news(w, news),
                sim::Step::Quiet => {}
                sim::Step::Idle => return Err(format!("{what}: nothing is scheduled\n{}", w.report())),
            }
        }
    }

    /// Every listed copy of every shard is in sync, as far as the conductor knows.
    pub(crate) fn all_in_sync(&self) -> bool {
        let model = self.service.model();
        let volumes = model.list(Millis(0)).into_iter().filter(|volume| volume.state == VolumeState::Active);
        volumes.map(|volume| model.show(Millis(0), &volume.name)).all(|detail| {
            detail.is_ok_and(|detail| detail.shards.iter().all(|config| config.in_sync() == config.members.len()))
        })
    }

    fn news(&mut self, w: &mut Sim, news: News<Letter>) {
        match news {
            News::Alarm(id) => match self.alarms.remove(&id) {
                Some(alarm) => self.ring(w, alarm),
                None => debug_assert!(false, "an alarm that was not set"),
            },
            News::Finished(_) => {}
            News::Letter { from, life, letter } => self.letter(w, from, life, letter),
        }
    }

    fn ring(&mut self, w: &mut Sim, alarm: Alarm) {
        match alarm {
            Alarm::Asked(source, request) => {
                self.asked(w, source, &request);
                self.look_at_volumes(w);
            }
            Alarm::Answered(source, shard, answer) => self.answered(w, source, shard, answer),
            Alarm::Beat(node, life) => {
                self.service.tick(self.now(w));
                self.look_at_volumes(w);
                self.beat(w, node, life);
            }
            Alarm::Attach(attempt) if attempt == self.attempt && self.attaching => self.ask_attach(w),
            Alarm::Attach(_) => {}
            Alarm::Fault => self.next_fault(w),
            Alarm::Administer => self.administer(w),
            Alarm::Undo(undo) => {
                if !self.stopping {
                    self.undo(w, undo);
                }
            }
            Alarm::Tick => {
                self.ticked = true;
                self.alarm(w, TICK, Alarm::Tick);
            }
        }
    }

    fn letter(&mut self, w: &mut Sim, from: ProcessId, life: u32, letter: Letter) {
        if w.life(from) != life || (w.state(from) == State::Dead && !matches!(letter, Letter::Stopped(_))) {
            return;
        }
        let node = self.nodes.iter().position(|n| n.process == from);
        match (letter, node) {
            (Letter::Opened(report), Some(node)) => {
                let used = report.used;
                let control = Control {
                    life,
                    report,
                    registered: false,
                    after: 0,
                    troubles: Vec::new(),
                    used,
                    dropped: Vec::new(),
                    has_orders: false,
                };
                self.nodes[node].control = Some(control);
                self.beat(w, node, life);
            }
            (Letter::Node(letter), Some(node)) => self.node_says(w, node, life, letter),
            (Letter::Found(found), Some(_)) => self.found.push(found),
            (Letter::WantsMap, None) if let Some(map) = self.map_of(from) => {
                w.mail_after(from, Span::millis(1), Mail::Lane(LaneMail::Map(map)));
            }
            (Letter::WantsMap, None) => {
                self.ask(w, Source::Lane(from, life), Request::Map(VOLUME.to_owned()));
            }
            (Letter::Stopped(Ok(())), _) => self.stopped += 1,
            (Letter::Stopped(Err(held)), _) => self.fail(format!("{from:?} stopped and still holds: {held}")),
            (Letter::Failed(_), Some(node)) if life <= self.nodes[node].bad_until => self.gave_up(w, node),
            (Letter::Failed(error), _) => self.fail(format!("{from:?} cannot go on: {error}")),
            (other, _) => self.fail(format!("{from:?} sent {other:?}")),
        }
    }

    /// True if every node serves and is registered.
    pub(crate) fn all_registered(&self) -> bool {
        self.nodes.iter().all(|n| n.control.as_ref().is_some_and(|c| c.registered))
    }

    // ---- the client

    /// Wants the volume for a new life of the client.
    pub(crate) fn attach(&mut self, w: &mut Sim, after: Span) {
        self.attempt += 1;
        self.attaching = true;
        self.alarm(w, after, Alarm::Attach(self.attempt));
    }

    fn ask_attach(&mut self, w: &mut Sim) {
        let attach = Attach {
            client: self.client_name.clone(),
            read_only: false,
            shared: false,
            force: true,
            host: String::new(),
            resumes: None,
        };
        self.ask(w, Source::Attach(self.attempt), Request::Attach(VOLUME.to_owned(), attach));
    }

    /// From now on the client calls itself something else.
    pub(crate) fn rename_client(&mut self) {
        self.names += 1;
        self.client_name = format!("host-{}", self.names);
    }

    fn start_lanes(&mut self, w: &mut Sim, map: VolumeMap) {
        self.attaching = false;
        self.count("client.started", 1);
        // The other one may still run, not knowing that it is superseded.
        let alive = |w: &Sim, host: &ClientHost| host.lanes.iter().any(|lane| w.state(*lane) != State::Dead);
        if alive(w, &self.clients[self.current]) {
            self.current = 1 - self.current;
        }
        self.kill_client(w, self.current);
        let process = self.rng.next_u64();
        let (name, conn_depth) = (self.client_name.clone(), self.conn_depth);
        let attachment = Attachment { name, process, lane: 0, conn_depth, map };
        let host = &mut self.clients[self.current];
        *host.attachment.borrow_mut() = Some(attachment);
        if host.lanes.is_empty() {
            for lane in 0..self.lanes {
                let (shared, attachment) = (Rc::clone(&self.shared), Rc::clone(&host.attachment));
                let setup = Setup::named(format!("lane {}.{lane}", self.current));
                host.lanes.push(w.spawn(setup, move |birth| {
                    let attachment = attachment.borrow().clone();
                    let attachment = attachment.unwrap_or_else(|| unreachable!("set before its lanes are started"));
                    Lane::new(Attachment { lane, ..attachment }, Rc::clone(&shared), birth)
                }));
            }
        } else {
            for lane in host.lanes.clone() {
                w.restart(lane);
            }
        }
    }

    /// Kills a client's lanes.
    pub(crate) fn kill_client(&mut self, w: &mut Sim, client: usize) {
        for lane in self.clients[client].lanes.clone() {
            self.harvest_lane(w, lane);
            w.kill(lane);
        }
    }

    /// The lanes that are not dead, of both clients.
    pub(crate) fn live_lanes(&self, w: &Sim) -> Vec<ProcessId> {
        let all = self.clients.iter().flat_map(|c| &c.lanes).copied().chain(self.volumes.readers());
        all.filter(|lane| w.state(*lane) != State::Dead).collect()
    }

    /// True if nobody waits for an answer.
    pub(crate) fn all_answered(&self, w: &Sim) -> bool {
        let idle = |lane: &ProcessId| {
            let client = w.machine::<Lane>(*lane).and_then(Lane::client);
            client.is_none_or(|client| client.in_flight() == 0)
        };
        let shared = self.shared.borrow();
        shared.left == 0 && shared.script.is_empty() && !self.attaching && self.live_lanes(w).iter().all(idle)
    }

    // ---- counters

    /// Adds up a lane's counters before it is gone.
    pub(crate) fn harvest_lane(&mut self, w: &Sim, lane: ProcessId) {
        let Some(client) = w.machine::<Lane>(lane).and_then(Lane::client) else { return };
        let counters = client.counters().named();
        let net = client.net_counters().clone();
        for (name, n) in counters {
            self.count(&format!("client.{}", name.replace('_', "-")), n);
        }
        self.harvest_net(&net, "client");
    }

    /// Adds up a node's counters before it is gone.
    pub(crate) fn harvest_node(&mut self, w: &Sim, node: usize) {
        let Some(node) = w.machine::<NodeProcess>(self.nodes[node].process).and_then(NodeProcess::node) else { return };
        let view = node.view();
        for (name, n) in view.counters {
            self.count(name, n);
        }
        for what in ["net.closed.bad-frame", "net.closed.bad-payload"] {
            if self.counts.get(what).is_some_and(|n| *n > 0) {
                self.fail(format!("{what}: bytes did not arrive as they were sent"));
            }
        }
    }

    fn harvest_net(&mut self, net: &tcp::Counters, whose: &str) {
        for reason in wire::Reason::ALL {
            self.count(&format!("{whose}.closed.{reason:?}").to_lowercase(), net.closed_for(reason));
        }
        let bad = net.closed_for(wire::Reason::BadFrame) + net.closed_for(wire::Reason::BadPayload);
        if bad > 0 {
            self.fail("a client met bytes that did not arrive as they were sent".to_owned());
        }
    }

    /// What everybody is doing, for people.
    pub(crate) fn report(&self, w: &Sim) -> String {
        let mut text = w.report();
        for host in &self.nodes {
            let Some(node) = w.machine::<NodeProcess>(host.process).and_then(NodeProcess::node) else { continue };
            let view = node.view();
            text += &format!("{:?}: at rest: {}\n", host.process, node.is_at_rest());
            for copy in view.copies {
                text += &format!(
                    "    {} {} {} {}: {} requests\n",
                    copy.shard, copy.copy, copy.epoch, copy.role, copy.requests
                );
            }
            text += &format!("    {}\n", view.refs.join("\n    "));
        }
        for lane in self.live_lanes(w) {
            let Some(machine) = w.machine::<Lane>(lane) else { continue };
            if let Some(client) = machine.client() {
                let view = client.view(w.local(lane));
                text += &format!(
                    "{lane:?}: {:?} {:?}\n    {}\n",
                    view.links,
                    view.waiting,
                    machine.waiting().join("\n    ")
                );
            }
        }
        for config in self.service.model().show(self.now(w), VOLUME).map(|d| d.shards).unwrap_or_default() {
            let members: Vec<String> = config.members.iter().map(|m| format!("{} {:?}", m.copy, m.state)).collect();
            text += &format!("{} {} of {}: {}\n", config.shard, config.epoch, config.primary, members.join(", "));
        }
        text += &format!("conductor up: {}, commit {}\n", self.service.is_up(), self.service.model().commit());
        text += &format!("the last refusal of a membership: {}\n", self.last_refusal);
        let shared = self.shared.borrow();
        text + &format!(
            "{} requests left, {} scripted, attaching: {}\n",
            shared.left,
            shared.script.len(),
            self.attaching
        )
    }
}
