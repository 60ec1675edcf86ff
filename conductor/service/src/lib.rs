//! The conductor as a process: HTTP + JSON over `conductor-model`, state in a redb file, or in etcd with several conductors.
//!
//! One thread owns the model and the records (`ledger`): it runs the commands that are waiting, writes what they changed in
//! one durable transaction, and only then lets their answers go. If writing fails the process stops, or follows the next leader: what is
//! in memory is never ahead of the records. HTTP (`routes`) carries no decision. Long polls are held here, never in the model.
//! With etcd, `leader` decides when this conductor leads, and `front` who answers.
#![forbid(unsafe_code)]

mod answer;
pub mod backup;
mod clock;
mod connections;
mod front;
mod gate;
mod leader;
mod ledger;
mod limits;
mod routes;
mod secure;
mod store;

use clock::Clock;
pub use connections::serve_to_all;
use front::Front;
use ledger::Ledger;
use std::fmt;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;
use store::Records;
use store::etcd::Validity;
use store::redb::Store as File;
use tls::{Authority, Identity, Role};
use tokio::sync::watch;
use wire::{ClusterKey, Over};

/// How to run a conductor.
#[derive(Clone)]
pub struct Options {
    /// Where to listen; port 0 takes any free one.
    pub listen: SocketAddr,
    /// Where its state is kept.
    pub store: Store,
    /// Where others reach this conductor, HOST:PORT; if not given, where it listens.
    pub advertise: Option<String>,
    /// Listen beyond loopback although nothing is encrypted.
    pub plaintext: bool,
    /// Speak TLS, and nothing else, with a certificate of the authority that follows from the key.
    pub tls: bool,
    /// The cluster's key: whoever asks for anything has to prove that it has this one, or one of a client's.
    pub key: [u8; 32],
    /// Whether a cluster has to be there; else one is made where none is.
    pub existing: bool,
    /// How often every volume is scrubbed; `None` is never.
    pub scrub_every: Option<Duration>,
    /// How long a copy that is out of reach is waited for before another one is made.
    pub replace_after: Duration,
    /// Whether copies are moved so that disks are evenly used and copies far apart.
    pub rebalance: bool,
}

/// Where a conductor's state is kept.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Store {
    /// In this file. Its directory must exist.
    Redb(PathBuf),
    /// In etcd, together with other conductors.
    Etcd(EtcdStore),
}

/// What etcd, and what in it.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct EtcdStore {
    /// `http://HOST:PORT` or `https://HOST:PORT` of its members.
    pub urls: Vec<String>,
    /// How the names of all keys of this cluster begin.
    pub prefix: String,
    /// Who asks, where etcd wants to know.
    pub user: Option<EtcdUser>,
    /// How its members are spoken to over TLS.
    pub tls: Option<EtcdTls>,
}

/// A user of etcd's.
#[derive(Clone, PartialEq, Eq)]
pub struct EtcdUser {
    /// Its name.
    pub name: String,
    /// What proves it.
    pub password: String,
}

impl fmt::Debug for EtcdUser {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("EtcdUser").field(&self.name).finish()
    }
}

/// Who is who, where etcd speaks TLS. All of it is PEM.
#[derive(Clone, PartialEq, Eq)]
pub struct EtcdTls {
    /// The certificates of whoever has signed those of its members.
    pub authority: String,
    /// What this conductor shows to them, if they want to see something: a certificate, and its key.
    pub identity: Option<(String, String)>,
}

impl fmt::Debug for EtcdTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EtcdTls").finish_non_exhaustive()
    }
}

/// Why a conductor does not run (any more).
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file is locked.
    #[error("{0} is in use by another conductor")]
    InUse(PathBuf),
    /// The file is no database, or a part of it makes no sense.
    #[error("cannot open the conductor's state {path}")]
    Open {
        /// The file.
        path: PathBuf,
        /// Why.
        source: Box<redb::Error>,
    },
    /// The system does not give the file out, which says nothing of what is in it.
    #[error("the system does not open or read the conductor's state {path}")]
    Withheld {
        /// The file.
        path: PathBuf,
        /// Why.
        source: Box<redb::Error>,
    },
    /// There is no file, and none can be made.
    #[error("cannot make the conductor's state {path}")]
    Make {
        /// The file.
        path: PathBuf,
        /// Why.
        source: Box<redb::Error>,
    },
    /// None is made, as one has to be there.
    #[error("no cluster's state is at {place}")]
    NoCluster {
        /// The file, or etcd's addresses and the prefix.
        place: String,
    },
    /// What is kept makes no sense.
    #[error("the conductor's state {place} is damaged: {why}")]
    Damaged {
        /// The file, or etcd's addresses and the prefix.
        place: String,
        /// What is wrong.
        why: String,
    },
    /// Another program version's file.
    #[error("the conductor's state {place} has format {found}, this program reads {}", store::FORMAT)]
    Format {
        /// The file, or etcd's addresses and the prefix.
        place: String,
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
    /// etcd did not do something, or it is unknown whether it did. Answers that depend on it were not sent.
    #[error("etcd at {place} did not {what}: {why}")]
    Etcd {
        /// Its addresses, and the prefix.
        place: String,
        /// What was asked of it.
        what: &'static str,
        /// Why.
        why: String,
    },
    /// Nothing is written over.
    #[error(
        "{place} has {whose}: name another prefix; or, if that is to be lost, stop all conductors and have `etcdctl del --prefix` remove it"
    )]
    Occupied {
        /// etcd's address, and the prefix.
        place: String,
        /// What is there.
        whose: String,
    },
    /// The records are a conductor's.
    #[error("at {place} the conductor {leader} leads: stop all conductors before their state is made again")]
    Led {
        /// etcd's address, and the prefix.
        place: String,
        /// The conductor.
        leader: String,
    },
    /// This conductor does not lead any more.
    #[error("leadership is lost: {0}")]
    Deposed(String),
    /// A record that etcd would not take.
    #[error("the record {key} has {bytes} B: more than the {} that etcd takes with others", limits::TXN_BYTES)]
    TooLarge {
        /// Which.
        key: String,
        /// Its size, with its key.
        bytes: usize,
    },
    /// Other conductors would send nodes and people there.
    #[error("{0} is no address that others can reach: say with the advertise option where this conductor is")]
    Advertise(SocketAddr),
    /// Anybody who can reach that address could delete volumes.
    #[error(
        "{0} is reachable from other machines and nothing is encrypted: ask for TLS, or allow it with the plaintext option"
    )]
    Plaintext(SocketAddr),
    /// There is no certificate.
    #[error(transparent)]
    Tls(#[from] tls::TlsError),
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

/// Runs a conductor until `stop` is ready; calls `ready` with its address once it answers, if only that another one leads. Requests
/// under way are given some seconds to end. When this returns the file is closed, or the leader's key given back.
pub async fn run(
    options: Options,
    ready: impl FnOnce(SocketAddr),
    stop: impl Future<Output = ()> + Send + 'static,
) -> Result<(), Error> {
    let Options { listen, store, advertise, plaintext, tls, key, existing, scrub_every, replace_after, rebalance } =
        options;
    if !listen.ip().is_loopback() && !plaintext && !tls {
        return Err(Error::Plaintext(listen));
    }
    let refused = |source| Error::Listen { address: listen, source };
    let listener = tokio::net::TcpListener::bind(listen).await.map_err(refused)?;
    let address = listener.local_addr().map_err(refused)?;
    let advertise = match advertise {
        Some(advertise) => advertise,
        None if matches!(store, Store::Etcd(_)) && address.ip().is_unspecified() => {
            return Err(Error::Advertise(address));
        }
        None => address.to_string(),
    };
    let key = ClusterKey(key);
    let identity = if tls { Some(identity(&key, address, &advertise)?) } else { None };
    let gate = gate::Gate::new(key, if tls { Over::Tls } else { Over::Clear })?;
    let front = Front::new(&advertise, gate);
    let (stopping, stopped) = watch::channel(false);
    let (draining, drained) = watch::channel(false);
    let stopping = std::sync::Arc::new(stopping);
    let stopper = std::sync::Arc::clone(&stopping);
    let asked = tokio::spawn(async move {
        stop.await;
        stopper.send_replace(true);
    });
    let bounded = connections::Bounded::new(listener, identity);
    let graceful = connections::serve(bounded, front.clone().router(), wait(stopped.clone()));
    let late = stopped.clone();
    let server = tokio::spawn(async move {
        let too_late = async {
            wait(late).await;
            tokio::time::sleep(limits::GRACE).await;
        };
        tokio::select! {
            () = graceful => {}
            () = too_late => {}
        }
        draining.send_replace(true);
    });
    let leading = Leading { existing, scrub_every, replace_after, rebalance };
    let clock = Clock::start();
    let ended = match store {
        Store::Redb(path) => {
            let place = path.display().to_string();
            let opened = tokio::task::spawn_blocking(move || File::open(path, existing, clock.now())).await;
            // redb panics over some damage: of where pages are free, say.
            let why = "it cannot be read".to_owned();
            match opened.unwrap_or(Err(Error::Damaged { place, why })) {
                Ok((file, model)) => {
                    let until = async {
                        wait(drained.clone()).await;
                        Ok(())
                    };
                    leading.lead(&front, file, model, clock, None, until, || ready(address)).await
                }
                Err(error) => Err(error),
            }
        }
        Store::Etcd(at) => {
            ready(address);
            leader::run(&at, &front, &leading, clock, &stopped, &drained).await
        }
    };
    stopping.send_replace(true);
    asked.abort();
    // It ends in bounded time, and only with the runtime otherwise.
    let _ = server.await;
    tracing::info!("conductor stopped");
    ended
}

/// What this conductor shows to whoever connects; foreign clients look for the address that they asked for.
fn identity(key: &ClusterKey, address: SocketAddr, advertise: &str) -> Result<Identity, Error> {
    let advertised = advertise.rsplit_once(':').map_or(advertise, |(host, _)| host);
    let hosts = [&address.ip().to_string(), advertised.trim_matches(['[', ']']), "localhost"].map(str::to_owned);
    Ok(Authority::new(&key.authority_seed())?.identity(Role::Conductor, &hosts)?)
}

/// Ready when this says so. A sender that is gone is as good as that.
async fn wait(mut told: watch::Receiver<bool>) {
    let _ = told.wait_for(|told| *told).await;
}

/// How to lead.
pub(crate) struct Leading {
    existing: bool,
    scrub_every: Option<Duration>,
    replace_after: Duration,
    rebalance: bool,
}

impl Leading {
    /// Answers from this state and keeps it, until told to end, or until it cannot be kept. When this returns nothing writes any more.
    #[expect(clippy::too_many_arguments, reason = "what a reign is made of")]
    async fn lead(
        &self,
        front: &Front,
        store: impl Records,
        mut model: conductor_model::Conductor,
        clock: Clock,
        validity: Option<Validity>,
        until: impl Future<Output = Result<(), Error>>,
        ready: impl FnOnce(),
    ) -> Result<(), Error> {
        let millis = |duration: Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        let cluster = model.cluster();
        model.set_scrub_every(self.scrub_every.map(millis));
        model.set_replace_after(millis(self.replace_after));
        model.set_rebalance(self.rebalance);
        model.announce();
        model.set_seed(getrandom::u64().map_err(Error::Random)?);
        let (ledger, mut owner) = Ledger::start(store, model, clock)?;
        tracing::info!(address = front.address(), %cluster, "conductor ready");
        front.lead(routes::router(ledger.clone(), front.gate().clone()), validity);
        let ticking = tokio::spawn(tick(ledger.clone()));
        ready();
        let ended = tokio::select! {
            ended = until => ended,
            failed = owner.ended() => Err(failed),
        };
        front.follow(None, None);
        ticking.abort();
        ledger.stop().await;
        let closed = tokio::task::spawn_blocking(move || owner.join()).await.map_err(|_| Error::LedgerEnded)?;
        ended.and(closed)
    }
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
