//! The NBD lane's thread: a reactor with the machine, from its arena to the proof that nothing is left.

use super::{Letter, Mail, NbdOptions, NbdTarget};
use crate::error::TargetError;
use crate::happening::Happening;
use crate::limits::{
    ARENA, DEPTH, LISTEN_AGAIN, LISTEN_PATIENCE, LOOK, MAILBOX, MAX_SESSIONS, SESSION_BYTES, SPARE_DEPTH, SPIN,
    TLS_NETWORK, TLS_SESSIONS,
};
use crate::setup::{NbdTls, Setup, say};
use crate::view::TargetView;
use driver::Address;
use memory::{Arena, ArenaOptions, Backing, Shares};
use nbd_session::Export;
use reactor::{
    Limits, Listener, MailRx, Mailbox, NotSent, OwnRing, Reactor, ReactorError, Uring, mailbox, spare_cores,
};
use std::io::ErrorKind;
use std::sync::mpsc::{Receiver, Sender, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

/// A lane that runs, and the way to it.
pub(crate) struct NbdLane {
    mailbox: Mailbox<Mail>,
    /// Where it listens.
    pub(crate) address: Address,
    /// It serves when it holds its ranges of a shared volume.
    pub(crate) shared: bool,
    views: Receiver<(u64, Box<TargetView>)>,
    looks: u64,
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
            Letter::WantsMap => drop(self.asks.try_send(())),
            Letter::View(number, view) => drop(self.views.try_send((number, view))),
            Letter::Held(all) => drop(self.tell.send(Happening::Held(all))),
            Letter::Word(word) => say(&word),
            Letter::Crowded => {
                tracing::warn!(most = MAX_SESSIONS, "an NBD client was turned away: so many are connected")
            }
        }
    }
}

/// Where clients connect. Who does before there is a lane waits for it.
pub(crate) struct Listening {
    listener: Listener,
    address: Address,
}

impl Listening {
    /// Listens as soon as nobody else does. The kernel ends a killed target's accepts behind the scenes, and until then its address is taken.
    pub(crate) fn claim(at: &Address) -> Result<Self, ReactorError> {
        let until = Instant::now() + LISTEN_PATIENCE;
        let (listener, address) = loop {
            match Listener::bind(at) {
                Err(ReactorError::Listen { error, .. })
                    if error.kind() == ErrorKind::AddrInUse && Instant::now() < until =>
                {
                    thread::sleep(LISTEN_AGAIN);
                }
                outcome => break outcome?,
            }
        };
        // What a client leaves behind when it goes, and that it went, are here at once (rule 24).
        listener.widen(SESSION_BYTES);
        Ok(Self { listener, address })
    }
}

impl NbdLane {
    /// Starts the thread; returns when it serves. It asks for maps by `asks`, and its end is told.
    pub(crate) fn start(
        setup: Setup,
        (listening, tls): (Listening, NbdTls),
        asks: SyncSender<()>,
        tell: Sender<Happening>,
    ) -> Result<Self, TargetError> {
        let (mailbox, rx) = mailbox(MAILBOX)?;
        let (views_tx, views) = sync_channel(1);
        let (started_tx, started) = sync_channel(1);
        let shared = setup.shared.is_some();
        let post = Post { views: views_tx, asks, tell: tell.clone() };
        let Listening { listener, address } = listening;
        let thread = move || {
            let ended = match reactor(&setup, listener, &tls, rx) {
                Ok((reactor, arena)) => {
                    let _ = started_tx.send(Ok(()));
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
        started.recv().map_err(|_| TargetError::Ended)??;
        Ok(Self { mailbox, address, shared, views, looks: 0 })
    }

    /// Sends to a lane that may have its hands full for a moment. One that has ended has said so, too.
    pub(crate) fn send(&self, mail: Mail) {
        const TRIES: u32 = 100;
        let mut mail = mail;
        for _ in 0..TRIES {
            match self.mailbox.send(mail) {
                Err(NotSent::Full(back)) => mail = back,
                Ok(()) | Err(NotSent::Ended(_)) => return,
            }
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// A look inside; `None` if it does not answer.
    pub(crate) fn look(&mut self) -> Option<TargetView> {
        self.looks += 1;
        let until = Instant::now() + LOOK;
        self.mailbox.send(Mail::Look(self.looks)).ok()?;
        let mut view = loop {
            match self.views.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok((number, view)) if number == self.looks => break view,
                Ok(_) => {} // an answer that was too late for its question
                Err(_) => return None,
            }
        };
        if let Some(counters) = self.mailbox.counters(LOOK) {
            view.add_reactor(&counters);
        }
        Some(*view)
    }
}

type NbdReactor = Reactor<NbdTarget, OwnRing>;

fn reactor(
    setup: &Setup,
    listener: Listener,
    tls: &NbdTls,
    mail: MailRx<Mail>,
) -> Result<(NbdReactor, Arena), TargetError> {
    let limits = Limits::default();
    let mut driver = Uring::new(OwnRing::new(&limits)?, limits)?;
    let listener = driver.accept_on(listener);
    let secure = |is: bool, bytes| if is { bytes } else { 0 };
    let more = secure(setup.trust.is_some(), TLS_NETWORK) + secure(tls.identity().is_some(), TLS_SESSIONS);
    let bytes = ARENA + more;
    let arena = Arena::new(ArenaOptions { bytes, backing: Backing::Heap, shares: Shares::only_client() })?;
    let mut export = Export::new(&setup.name, &description(setup), setup.map.size)?;
    export.read_only = setup.read_only;
    export.fast_zero = true;
    let depth = setup.depth.unwrap_or(DEPTH).saturating_add(SPARE_DEPTH);
    let mut client = setup.client(0, depth, &arena)?;
    if let Some(error) = client.open_rdma(|| driver.open_rdma(&arena))? {
        tracing::warn!(%error, "no RDMA here: everything goes over TCP");
    }
    if let Some(layer) = setup.tls(tls.identity(), &arena)? {
        driver.open_tls(layer);
    }
    let machine =
        NbdTarget::new(NbdOptions { client, arena: arena.clone(), export, tls: tls.into(), listeners: vec![listener] });
    let mut reactor = Reactor::start(machine, driver, mail)?;
    if spare_cores(1) {
        reactor = reactor.spin(SPIN);
    }
    Ok((reactor, arena))
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

fn description(setup: &Setup) -> String {
    let what = if setup.map.snapshot.is_some() { "snapshot" } else { "volume" };
    format!("trine {what} {}", setup.name)
}
