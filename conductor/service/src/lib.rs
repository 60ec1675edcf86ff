//! The conductor as a process: HTTP + JSON over `conductor-model`, state in a redb file.
//!
//! One thread owns the model and the file (`ledger`): it runs the commands that are waiting, writes what they changed in
//! one durable transaction, and only then lets their answers go. If writing fails the process stops: what is in memory is
//! never ahead of the file. HTTP (`routes`) carries no decision. Long polls are held here, never in the model.
#![forbid(unsafe_code)]

mod answer;
mod care;
mod connections;
mod ledger;
mod limits;
mod routes;
mod snapshots;
mod store;

use ledger::Ledger;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;
use store::Store;

/// How to run a conductor.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where to listen; port 0 takes any free one.
    pub listen: SocketAddr,
    /// The file with its state; made if there is none. Its directory must exist.
    pub store: PathBuf,
    /// Listen beyond loopback although nothing is encrypted and nobody is authenticated.
    pub plaintext: bool,
    /// How often every volume is scrubbed; `None` is never.
    pub scrub_every: Option<Duration>,
    /// How long a copy that is out of reach is waited for before another one is made.
    pub replace_after: Duration,
}

/// Why a conductor does not run (any more).
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file is locked.
    #[error("{0} is in use by another conductor")]
    InUse(PathBuf),
    /// The file cannot be opened or read.
    #[error("cannot open the conductor's state {path}")]
    Open {
        /// The file.
        path: PathBuf,
        /// Why.
        source: Box<redb::Error>,
    },
    /// What the file holds makes no sense.
    #[error("the conductor's state {path} is damaged: {why}")]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
    /// Another program version's file.
    #[error("the conductor's state {path} has format {found}, this program reads {}", store::FORMAT)]
    Format {
        /// The file.
        path: PathBuf,
        /// What it says.
        found: u64,
    },
    /// A transaction could not be made durable. Its answers were not sent.
    #[error("cannot write the conductor's state {path}; the conductor stops")]
    Persist {
        /// The file.
        path: PathBuf,
        /// Why.
        source: Box<redb::Error>,
    },
    /// Anybody who can reach that address could delete volumes.
    #[error("{0} is reachable from other machines and nothing is encrypted: allow it with the plaintext option")]
    Plaintext(SocketAddr),
    /// The address cannot be listened on.
    #[error("cannot listen on {address}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// Why.
        source: io::Error,
    },
    /// The operating system gives no thread, signal or connection.
    #[error("cannot {what}")]
    System {
        /// What for.
        what: &'static str,
        /// Why.
        source: io::Error,
    },
    /// The operating system gives no random numbers.
    #[error("no random numbers")]
    Random(#[source] getrandom::Error),
    /// The thread that owns the state ended by itself: a bug.
    #[error("the conductor's state thread ended unexpectedly")]
    LedgerEnded,
}

/// Runs a conductor until `stop` is ready; calls `ready` with its address once it can be connected to. Requests under way
/// are given some seconds to end. When this returns the file is closed.
pub async fn run(
    options: Options,
    ready: impl FnOnce(SocketAddr),
    stop: impl Future<Output = ()> + Send + 'static,
) -> Result<(), Error> {
    let Options { listen, store, plaintext, scrub_every, replace_after } = options;
    if !listen.ip().is_loopback() && !plaintext {
        return Err(Error::Plaintext(listen));
    }
    let refused = |source| Error::Listen { address: listen, source };
    let listener = tokio::net::TcpListener::bind(listen).await.map_err(refused)?;
    let address = listener.local_addr().map_err(refused)?;
    let clock = ledger::Clock::start();
    let opened = tokio::task::spawn_blocking(move || Store::open(store, clock.now())).await;
    let (store, mut model) = opened.map_err(|_| Error::LedgerEnded)??;
    let cluster = model.cluster();
    model.set_scrub_every(scrub_every.map(|every| u64::try_from(every.as_millis()).unwrap_or(u64::MAX)));
    model.set_replace_after(u64::try_from(replace_after.as_millis()).unwrap_or(u64::MAX));
    model.announce();
    model.set_seed(getrandom::u64().map_err(Error::Random)?);
    let (ledger, mut owner) = Ledger::start(store, model, clock)?;
    tracing::info!(%address, %cluster, "conductor ready");

    let (stopping, stopped) = tokio::sync::watch::channel(false);
    let mut asked = stopped.clone();
    let until_stopped = async move {
        // An error is a dropped sender: as good as a stop.
        let _ = asked.wait_for(|stop| *stop).await;
    };
    let server = axum::serve(connections::Bounded::new(listener), routes::router(ledger.clone()))
        .with_graceful_shutdown(until_stopped);
    let mut server = tokio::spawn(server.into_future());
    let ticking = tokio::spawn(tick(ledger.clone()));
    ready(address);

    let ended = tokio::select! {
        () = stop => Ok(()),
        failed = owner.ended() => Err(failed),
    };
    stopping.send_replace(true);
    if tokio::time::timeout(limits::GRACE, &mut server).await.is_err() {
        server.abort();
    }
    ticking.abort();
    ledger.stop().await;
    let closed = tokio::task::spawn_blocking(move || owner.join()).await.map_err(|_| Error::LedgerEnded)?;
    tracing::info!("conductor stopped");
    ended.and(closed)
}

/// Tells the model the time whenever it has something to do, and now and then.
async fn tick(ledger: Ledger) {
    let mut news = ledger.news();
    loop {
        let now = |model: &mut conductor_model::Conductor, now: conductor_model::Millis| {
            let dirty = model.tick(now);
            (model.next_deadline().map(|due| due.since(now)), dirty)
        };
        let Ok(due) = ledger.ask(now).await else { return };
        let pause = due.map_or(limits::TICK_MOST, Duration::from_millis).clamp(limits::TICK_LEAST, limits::TICK_MOST);
        // A transaction may have set an earlier deadline.
        tokio::time::sleep(limits::TICK_LEAST).await;
        let _ = tokio::time::timeout(pause - limits::TICK_LEAST, news.changed()).await;
    }
}

/// Runs a conductor on a runtime of its own until SIGTERM or SIGINT.
pub fn serve(options: Options, ready: impl FnOnce(SocketAddr)) -> Result<(), Error> {
    use tokio::signal::unix::{SignalKind, signal};
    let system = |what| move |source| Error::System { what, source };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(limits::WORKERS)
        .enable_all()
        .build()
        .map_err(system("start the conductor's threads"))?;
    runtime.block_on(async {
        let mut term = signal(SignalKind::terminate()).map_err(system("watch for SIGTERM"))?;
        let mut int = signal(SignalKind::interrupt()).map_err(system("watch for SIGINT"))?;
        let stop = async move {
            tokio::select! {
                _ = term.recv() => {}
                _ = int.recv() => {}
            }
        };
        run(options, ready, stop).await
    })
}
