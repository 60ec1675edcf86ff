//! The lane's thread: a reactor with the NBD machine, from its arena to the proof that nothing is left.

use crate::error::TargetError;
use crate::limits::{ARENA, CONN_DEPTH, MAILBOX, SPIN};
use crate::nbd::{Letter, Mail, NbdOptions, NbdTarget};
use crate::view::TargetView;
use conductor_model::api::VolumeMap;
use driver::{Address, Span};
use memory::{Arena, ArenaOptions, Backing, Shares};
use nbd_session::Export;
use reactor::{Limits, MailRx, Mailbox, OwnRing, Reactor, Uring, mailbox, spare_cores};
use std::hash::{BuildHasher, RandomState};
use std::rc::Rc;
use std::sync::mpsc::{Receiver, Sender, SyncSender, sync_channel};
use std::thread;
use volume_client::{ClientOptions, VolumeClient};
use wire::ClusterKey;

/// What a lane is made of. Crosses to its thread.
pub(crate) struct Setup {
    pub(crate) map: VolumeMap,
    pub(crate) client_name: String,
    pub(crate) process: u64,
    pub(crate) key: ClusterKey,
    pub(crate) read_only: bool,
    pub(crate) io_timeout: Option<Span>,
    pub(crate) depth: u16,
    pub(crate) listen: Address,
}

/// What the main thread hears of a lane.
pub(crate) enum Happening {
    /// A signal to end.
    Signal,
    /// Somebody asked for an end; `true`: at once.
    Stop(bool),
    /// The volume was attached elsewhere.
    Fenced,
    /// The lane's thread is over.
    Ended(Result<(), TargetError>),
}

/// A lane that runs.
pub(crate) struct Lane {
    pub(crate) mailbox: Mailbox<Mail>,
    /// Where it listens.
    pub(crate) address: Address,
    /// Answers to looks.
    pub(crate) views: Receiver<(u64, Box<TargetView>)>,
    /// It wants a map.
    pub(crate) asked: Receiver<()>,
}

/// Where a lane's letters go. Nothing here waits: a lane never does.
struct Post {
    views: SyncSender<(u64, Box<TargetView>)>,
    asks: SyncSender<()>,
    tell: Sender<Happening>,
}

impl Post {
    fn letter(&self, letter: Letter) {
        // A receiver that is full or gone has what it needs, or needs nothing.
        match letter {
            Letter::WantMap => drop(self.asks.try_send(())),
            Letter::View(number, view) => drop(self.views.try_send((number, view))),
            Letter::Fenced => drop(self.tell.send(Happening::Fenced)),
        }
    }
}

/// Starts the thread; returns when it listens.
pub(crate) fn start(setup: Setup, tell: Sender<Happening>) -> Result<Lane, TargetError> {
    let (mailbox, rx) = mailbox(MAILBOX)?;
    let (views_tx, views) = sync_channel(1);
    let (asks, asked) = sync_channel(1);
    let (started_tx, started) = sync_channel(1);
    let post = Post { views: views_tx, asks, tell: tell.clone() };
    let thread = move || {
        let ended = match reactor(setup, rx) {
            Ok((reactor, arena, address)) => {
                let _ = started_tx.send(Ok(address));
                work(reactor, &arena, &post)
            }
            Err(error) => {
                let _ = started_tx.send(Err(error));
                Ok(())
            }
        };
        let _ = tell.send(Happening::Ended(ended));
    };
    thread::Builder::new().name("lane".into()).spawn(thread).map_err(TargetError::system("start a thread"))?;
    let address = started.recv().map_err(|_| TargetError::Ended)??;
    Ok(Lane { mailbox, address, views, asked })
}

type NbdReactor = Reactor<NbdTarget, OwnRing>;

fn reactor(setup: Setup, mail: MailRx<Mail>) -> Result<(NbdReactor, Arena, Address), TargetError> {
    let limits = Limits::default();
    let mut driver = Uring::new(OwnRing::new(&limits)?, limits)?;
    let (listener, address) = driver.listen(&setup.listen)?;
    let arena = Arena::new(ArenaOptions { bytes: ARENA, backing: Backing::Heap, shares: Shares::only_client() })?;
    let mut export = Export::new(&setup.map.name, &description(&setup.map), setup.map.size)?;
    export.read_only = setup.read_only;
    export.fast_zero = true;
    let options = ClientOptions {
        name: setup.client_name,
        process: setup.process,
        attach: setup.map.attach,
        lane: 0,
        read_only: setup.read_only,
        io_timeout: setup.io_timeout,
        depth: setup.depth,
        conn_depth: CONN_DEPTH,
        secrets: Rc::new(setup.key),
        random: Box::new(random),
    };
    let client = VolumeClient::new(options, &setup.map, arena.clone())?;
    let machine = NbdTarget::new(NbdOptions { client, arena: arena.clone(), export, listeners: vec![listener] });
    let mut reactor = Reactor::start(machine, driver, mail)?;
    if spare_cores(1) {
        reactor = reactor.spin(SPIN);
    }
    Ok((reactor, arena, address))
}

fn work(reactor: NbdReactor, arena: &Arena, post: &Post) -> Result<(), TargetError> {
    let ended = reactor.run(|letter| post.letter(letter))?;
    let leaks = |report: refcount::LeakReport| TargetError::Leaks(report.to_string());
    ended.machine.leaks().map_err(leaks)?;
    let left = ended.streams_left_open;
    drop(ended.machine);
    arena.leaks().map_err(leaks)?;
    if left > 0 {
        return Err(TargetError::Leaks(format!("{left} streams were left open")));
    }
    Ok(())
}

fn description(map: &VolumeMap) -> String {
    format!("trine volume {} ({} bytes)", map.name, map.size.0)
}

/// A random number. Where the system has none left, the hasher's keys, which came from it, still make unlike ones.
pub(crate) fn random() -> u64 {
    getrandom::u64().unwrap_or_else(|_| RandomState::new().hash_one(0))
}
