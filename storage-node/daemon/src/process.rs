//! The process from start to stop.
//!
//! ```text
//!   check ─► cluster (conductor) ─► disks made ─► reactors open ─► registered ─► ready ─► SIGTERM ─► reactors drain ─► leak report
//! ```

use crate::adding::Adder;
use crate::control::{Control, Pauses};
use crate::desk::{Desk, Lane};
use crate::lanes::Lanes;
use crate::limits::{MAIL, STOP};
use crate::look::MemoryLook;
use crate::options::huge_pages_needed;
use crate::thread::{self, Plan, random};
use crate::{DiskPlan, Error, NodeOptions, disks, socket, without};
use conductor_client::Client;
use conductor_model::ClusterId;
use conductor_model::api::DiskReport;
use memory::HugePages;
use nix::sys::signal::{SigSet, Signal};
use node_core::Mail;
use reactor::{MailRx, Mailbox};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex};
use std::thread::{Builder, JoinHandle};
use std::time::Instant;
use wire::{ClusterKey, Key};

/// A node that is registered and serves.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Ready {
    /// Where its reactors listen, as others are told.
    pub endpoints: Vec<SocketAddr>,
    /// Its disks as they were reported.
    pub disks: Vec<DiskReport>,
}

/// What the main thread waits for.
pub(crate) enum Event {
    Signal,
    /// There is one reactor more.
    Began,
    Opened {
        lane: Lane,
        endpoint: SocketAddr,
        disks: Vec<DiskReport>,
    },
    Ended {
        lane: Lane,
        outcome: Result<(), Error>,
    },
    Registered(Result<(), conductor_client::Error>),
}

/// Runs a node until SIGTERM or SIGINT; a second signal ends it at once. `ready` is called when it is registered.
pub fn run(options: NodeOptions, ready: impl FnOnce(&Ready)) -> Result<(), Error> {
    options.check()?;
    if options.huge_pages {
        HugePages::read().check(huge_pages_needed(options.memory, options.reactors))?;
    }
    abort_on_panic();
    reactor::raise_open_files();
    let (tell, events) = mpsc::channel();
    watch_signals(tell.clone())?;
    let client = Client::new(&options.conductor)?.with_key(Key::Cluster(ClusterKey(options.key)))?;
    let Some(cluster) = find_cluster(&client, &events, &options.disks)? else { return Ok(()) };
    let mut spread: Vec<Vec<DiskPlan>> =
        (0..).take(options.reactors).map(|lane| options.disks_of(lane).cloned().collect()).collect();
    // Nobody else says anything yet. A file of many gigabytes takes minutes.
    let stopped = Cell::new(false);
    let stop = || {
        stopped.set(stopped.get() || matches!(events.try_recv(), Ok(Event::Signal)));
        stopped.get()
    };
    let on_files = !options.memory_dirs.is_empty();
    while let Err(why) = disks::prepare(&spread.concat(), options.sparse, &stop) {
        if stopped.get() {
            return Ok(());
        }
        without::leave_out(&mut spread, why, on_files)?;
    }

    let process = random()?;
    let mut node = Process { tell, events, desk: Arc::default(), running: 0, process };
    let shared = Arc::new(options.clone());
    // Until all are open nothing was served: there is nothing to wait for, and a store can be left at any moment.
    let (mailboxes, opened) = loop {
        let mailboxes = node.start_lanes(&shared, &spread, cluster)?;
        match node.wait_until_open(&mailboxes)? {
            Opening::Signal => return Ok(()),
            Opening::All(opened) => break (mailboxes, opened),
            Opening::Failed(Error::TwoCopies { path, shard }) => {
                tracing::info!(path = %path.display(), %shard, "a copy was on its way between disks: a reactor of its own for this one");
                let of_it = spread.iter_mut().find_map(|plans| {
                    let at = plans.iter().position(|plan| plan.path == path)?;
                    (plans.len() > 1).then(|| plans.remove(at))
                });
                let alone = of_it.ok_or(Error::TwoCopies { path, shard })?;
                spread.push(vec![alone]);
            }
            Opening::Failed(why) => without::leave_out(&mut spread, why, on_files)?,
        }
    };
    let outcome = node.serve(&options, cluster, client, &mailboxes, opened, ready);
    let stopped = node.wait_until_stopped();
    outcome.and(stopped)
}

/// Each reactor's endpoint and disks.
type OpenLanes = BTreeMap<Lane, (SocketAddr, Vec<DiskReport>)>;

/// How the opening of all disks ended.
enum Opening {
    All(OpenLanes),
    /// The disks are to be spread anew: two of one reactor hold copies of one shard, or one cannot be used. The reactors have ended.
    Failed(Error),
    Signal,
}

struct Process {
    /// Drawn at random for its life.
    process: u64,
    tell: Sender<Event>,
    events: Receiver<Event>,
    desk: Arc<Desk>,
    /// Reactor threads that have not said that they ended.
    running: usize,
}

impl Process {
    fn start_lanes(
        &mut self,
        options: &Arc<NodeOptions>,
        spread: &[Vec<DiskPlan>],
        cluster: ClusterId,
    ) -> Result<Vec<Mailbox<Mail>>, Error> {
        let process = self.process;
        self.desk = Arc::default();
        let mut mailboxes = Vec::new();
        for (lane, disks) in (0..).zip(spread.to_vec()) {
            self.desk.begin_lane(lane);
            let (mailbox, mail) = reactor::mailbox(MAIL)?;
            mailboxes.push(mailbox);
            let (options, desk, tell) = (Arc::clone(options), Arc::clone(&self.desk), self.tell.clone());
            let run = move || {
                let plan = Plan { options: &options, disks: &disks, lane, cluster, process };
                let outcome = run_lane(&plan, mail, &desk, &tell);
                let _ = tell.send(Event::Ended { lane, outcome });
            };
            spawn(format!("reactor {lane}"), run)?;
            self.running += 1;
        }
        Ok(mailboxes)
    }

    /// Until every reactor has opened its disks, or cannot.
    fn wait_until_open(&mut self, mailboxes: &[Mailbox<Mail>]) -> Result<Opening, Error> {
        let mut opened = BTreeMap::new();
        let mut failed = None;
        while opened.len() < mailboxes.len() && (failed.is_none() || opened.len() < self.running) {
            match self.events.recv() {
                Ok(Event::Opened { lane, endpoint, disks }) => drop(opened.insert(lane, (endpoint, disks))),
                Ok(Event::Ended { outcome: Err(why), .. })
                    if matches!(why, Error::TwoCopies { .. }) || without::is_of_one_disk(&why) =>
                {
                    self.running -= 1;
                    failed.get_or_insert(why);
                }
                Ok(Event::Ended { lane, outcome }) => {
                    outcome?;
                    return Err(Error::Ended(lane));
                }
                Ok(Event::Signal | Event::Registered(_) | Event::Began) | Err(_) => return Ok(Opening::Signal),
            }
        }
        let Some(failed) = failed else { return Ok(Opening::All(opened)) };
        mailboxes.iter().for_each(|mailbox| drop(mailbox.send(Mail::Stop)));
        while self.running > 0 {
            match self.events.recv() {
                Ok(Event::Ended { outcome, .. }) => {
                    self.running -= 1;
                    outcome?;
                }
                Ok(Event::Signal) | Err(_) => return Ok(Opening::Signal),
                Ok(_) => {}
            }
        }
        Ok(Opening::Failed(failed))
    }

    /// From opened disks to a signal; the reactors are told to stop when it returns.
    fn serve(
        &mut self,
        options: &NodeOptions,
        cluster: ClusterId,
        client: Client,
        mailboxes: &[Mailbox<Mail>],
        opened: OpenLanes,
        ready: impl FnOnce(&Ready),
    ) -> Result<(), Error> {
        let endpoints = opened.values().map(|(endpoint, _)| *endpoint).collect();
        let disks: Vec<(Lane, DiskReport)> =
            opened.into_iter().flat_map(|(lane, (_, disks))| disks.into_iter().map(move |d| (lane, d))).collect();
        let ready_node = Ready { endpoints, disks: disks.iter().map(|(_, d)| d.clone()).collect() };
        let lanes = Lanes::default();
        for (lane, mailbox) in (0..).zip(mailboxes) {
            let here = disks.iter().filter(|(on, _)| *on == lane);
            lanes.add(lane, mailbox.clone(), here.map(|(_, d)| d.disk));
        }
        let control = Arc::new(Control {
            node: options.node,
            memory: MemoryLook::of(options),
            host: options.host.clone(),
            rack: options.rack.clone(),
            rdma: options.is_rdma(),
            cluster,
            client,
            desk: Arc::clone(&self.desk),
            lanes,
            disks: Mutex::new(disks),
            regrouped: AtomicBool::new(false),
            seen: AtomicU64::new(0),
        });
        let mut helpers = Helpers::default();
        let outcome = self.serve_with(options, &control, &mut helpers, ready, &ready_node);
        tracing::info!("stopping");
        self.desk.stop();
        control.lanes.stop();
        helpers.end();
        // A disk may just have been added.
        control.lanes.stop();
        outcome
    }

    fn serve_with(
        &mut self,
        options: &NodeOptions,
        control: &Arc<Control>,
        helpers: &mut Helpers,
        ready: impl FnOnce(&Ready),
        ready_node: &Ready,
    ) -> Result<(), Error> {
        let next = Mutex::new(u16::try_from(control.lanes.all().len()).unwrap_or(u16::MAX));
        let (cluster, process, tell) = (control.cluster, self.process, self.tell.clone());
        let adder = Adder { options: options.clone(), cluster, process, control: Arc::clone(control), tell, next };
        let adder = Arc::new(adder);
        let remembering = Arc::clone(&adder);
        if let Some(path) = &options.control {
            let listener = socket::listen(path)?;
            helpers.socket = Some(path.clone());
            helpers.threads.push(spawn("control socket".to_owned(), move || socket::serve(&listener, &adder))?);
        }
        let (asking, beating, tell) = (Arc::clone(control), Arc::clone(control), self.tell.clone());
        let (reporting, counting) = (Arc::clone(control), Arc::clone(control));
        helpers.threads.push(spawn("reporting".to_owned(), move || reporting.report())?);
        helpers.threads.push(spawn("asking".to_owned(), move || asking.ask())?);
        helpers.threads.push(spawn("counting".to_owned(), move || counting.count())?);
        let beat = move || {
            remembering.remember();
            let registered = beating.register_first();
            let go_on = registered.is_ok();
            let _ = tell.send(Event::Registered(registered));
            if go_on {
                beating.beat();
            }
        };
        helpers.threads.push(spawn("heartbeat".to_owned(), beat)?);
        let mut ready = Some(ready);
        loop {
            match self.events.recv() {
                Ok(Event::Registered(Ok(()))) => {
                    if let Some(ready) = ready.take() {
                        ready(ready_node);
                    }
                }
                Ok(Event::Registered(Err(why))) => return Err(why.into()),
                Ok(Event::Ended { lane, outcome }) => {
                    self.running -= 1;
                    if control.lanes.has(lane) {
                        return outcome.and(Err(Error::Ended(lane)));
                    }
                    // Its last disk was taken out.
                    outcome?;
                    tracing::info!(lane, "a reactor without disks has ended");
                }
                Ok(Event::Began) => self.running += 1,
                Ok(Event::Opened { .. }) => {}
                Ok(Event::Signal) | Err(_) => return Ok(()),
            }
        }
    }

    /// The worst that any reactor says at its end.
    fn wait_until_stopped(mut self) -> Result<(), Error> {
        let until = Instant::now() + STOP;
        let mut worst = Ok(());
        while self.running > 0 {
            match self.events.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(Event::Ended { outcome, .. }) => {
                    self.running -= 1;
                    worst = worst.and(outcome);
                }
                Ok(Event::Began) => self.running += 1,
                Ok(_) => {}
                Err(_) => return worst.and(Err(Error::NotStopped)),
            }
        }
        if worst.is_ok() {
            tracing::info!("stopped; nothing leaked");
        }
        worst
    }
}

/// The control threads, and what wakes the one that waits for visitors.
#[derive(Default)]
struct Helpers {
    threads: Vec<JoinHandle<()>>,
    socket: Option<PathBuf>,
}

impl Helpers {
    /// They have been told; a heartbeat under way is waited for.
    fn end(self) {
        if let Some(path) = &self.socket {
            // A knock wakes it from its accept.
            drop(UnixStream::connect(path));
            let _ = std::fs::remove_file(path);
        }
        for thread in self.threads {
            let _ = thread.join();
        }
    }
}

fn run_lane(plan: &Plan<'_>, mail: MailRx<Mail>, desk: &Desk, tell: &Sender<Event>) -> Result<(), Error> {
    let opened = thread::open(plan, mail)?;
    let news = Event::Opened { lane: plan.lane, endpoint: opened.endpoint, disks: opened.disks.clone() };
    let _ = tell.send(news);
    opened.run(desk)
}

/// The cluster's name, without which no disk can be told from a foreign one. A conductor that lost its state learns it from the nodes
/// (`recover --from-nodes`): one that has stores says whose they are, one without waits for the others. `None` if a signal came first.
fn find_cluster(client: &Client, events: &Receiver<Event>, plans: &[DiskPlan]) -> Result<Option<ClusterId>, Error> {
    let mut pauses = Pauses::new();
    let mut said = "";
    loop {
        let (waits, why) = match client.version() {
            Ok(version) if version.cluster != ClusterId(0) => return Ok(Some(version.cluster)),
            Ok(_) => {
                if let Some(cluster) = disks::cluster_of(plans)? {
                    tracing::info!(%cluster, "the conductor does not know its cluster yet: the stores here do");
                    return Ok(Some(cluster));
                }
                let why = "it does not know its cluster yet, and no disk here does: start nodes that hold data first";
                ("waiting until the conductor knows its cluster", why.to_owned())
            }
            Err(why) if why.is_temporary() => ("waiting for the conductor", why.to_string()),
            Err(why) => return Err(why.into()),
        };
        if said != waits {
            tracing::warn!(why, "{waits}");
            said = waits;
        }
        if events.recv_timeout(pauses.next()).is_ok() {
            return Ok(None);
        }
    }
}

pub(crate) fn spawn(name: String, run: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, Error> {
    let spawned = Builder::new().name(name).spawn(run);
    spawned.map_err(|source| Error::System { what: "start a thread", source })
}

/// Half a node is worse than none: its peers would wait for the other half.
fn abort_on_panic() {
    let say = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        say(info);
        std::process::abort();
    }));
}

/// Signals are taken by one thread; all threads started later inherit the mask.
fn watch_signals(tell: Sender<Event>) -> Result<(), Error> {
    let mut set = SigSet::empty();
    set.add(Signal::SIGTERM);
    set.add(Signal::SIGINT);
    let failed = |errno: nix::errno::Errno| Error::System { what: "watch for signals", source: errno.into() };
    set.thread_block().map_err(failed)?;
    spawn("signals".to_owned(), move || {
        let mut first = true;
        while set.wait().is_ok() {
            if !std::mem::replace(&mut first, false) {
                tracing::warn!("a second signal: ending at once");
                std::process::exit(1);
            }
            let _ = tell.send(Event::Signal);
        }
    })?;
    Ok(())
}
