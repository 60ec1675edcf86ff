//! etcd, as the conductors of one cluster use it: the leader's key, its lease, and the records.
//!
//! ```text
//! PREFIX leader          address of the leader; under its lease: gone when that runs out
//! PREFIX format          "1"
//! PREFIX record/KEY      a record as JSON, under the same key as in a file (`redb`)
//! PREFIX head, pending/N a transaction that is too large for etcd, on its way (`redo`)
//! ```
//! Who creates `leader` leads until the key is gone: a *reign*. Every transaction compares the key's create revision with the reign's own,
//! so that a deposed leader can write nothing, however late it finds out. What it reads is its own memory; that it may answer from it
//! only until its lease may have run out, counted from *before* the last keepalive was sent and ended early (`limits::LEASE_MARGIN`). A
//! keepalive counts when the key was ours behind it; if the lease or the key is gone, the reign ends at once.
//!
//! A reign uses one member of etcd: one that is dead or stands still would else get its share of the calls, and end every reign.
//!
//! Each operation is sent once, but for a question for many keys (`page`). What becomes of one that is not answered is unknown, so the reign
//! ends with it: nothing of an earlier try can arrive late and undo what was written since. The next reign reads what there is.

use super::page::Page;
use super::redo::Guarded;
use super::{Records, changes, encode, new_cluster, restore, tell_of_new};
use crate::clock::uptime;
use crate::{Error, EtcdStore, EtcdTls, limits};
use conductor_model::{Conductor, Key, Millis, Record};
use etcd_client::{
    Certificate, Client, Compare, CompareOp, ConnectOptions, GetOptions, Identity, KvClient, LeaseClient, PutOptions,
    TlsOptions, Txn, TxnOp, TxnResponse,
};
use std::error::Error as _;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::{OnceCell, watch};
use tokio::time::{sleep, timeout};

/// A connection to one member, and where this cluster's keys are. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Etcd {
    member: Arc<Member>,
    prefix: Arc<str>,
    /// For messages.
    pub(super) place: Arc<str>,
}

/// Where a member is, and how it is spoken to. With a password it is asked for a token before anything else.
struct Member {
    url: String,
    options: ConnectOptions,
    client: OnceCell<Client>,
    /// Questions for many keys so far.
    #[cfg(test)]
    pages: std::sync::atomic::AtomicUsize,
}

/// Until when a lease is certain to hold, by `uptime`.
#[derive(Clone, Debug)]
pub(crate) struct Validity(watch::Receiver<Duration>);

impl Validity {
    pub(crate) fn holds(&self) -> bool {
        uptime() < *self.0.borrow()
    }

    /// Ready when the lease may have run out.
    pub(crate) async fn lapsed(&mut self) -> Error {
        while self.holds() {
            let until = *self.0.borrow_and_update();
            tokio::select! {
                () = sleep(until.saturating_sub(uptime())) => {}
                _ = self.0.changed() => {}
            }
        }
        Error::Deposed("its lease was not renewed in time".to_owned())
    }
}

/// One conductor's time as the leader.
pub(crate) struct Reign {
    pub(super) guarded: Guarded,
    pub(super) lease: i64,
    ttl: Duration,
    extend: watch::Sender<Duration>,
}

/// The records while a reign lasts.
pub(crate) struct Store {
    guarded: Guarded,
    validity: Validity,
    runtime: Handle,
}

impl Etcd {
    /// Its members, in the order given. Nothing is sent yet.
    pub(crate) fn members(at: &EtcdStore) -> Result<Vec<Self>, Error> {
        if at.urls.is_empty() {
            let why = "no address is given".to_owned();
            return Err(Error::Etcd { place: at.prefix.clone(), what: "connect", why });
        }
        let mut options = ConnectOptions::new()
            .with_connect_timeout(limits::ETCD_CONNECT)
            .with_keep_alive(limits::ETCD_PING_EVERY, limits::ETCD_PING)
            .with_keep_alive_while_idle(false)
            .with_require_leader(true);
        if let Some(user) = &at.user {
            // Of what was refused for the want of a token nothing was done: it is said once more with a new one.
            options = options.with_user(&*user.name, &*user.password).with_auto_token_refresh(true);
        }
        if let Some(EtcdTls { authority, identity }) = &at.tls {
            let tls = TlsOptions::new().ca_certificate(Certificate::from_pem(authority));
            let shown = identity.as_ref().map(|(certificate, key)| Identity::from_pem(certificate, key));
            options = options.with_tls(shown.into_iter().fold(tls, TlsOptions::identity));
        }
        let member = |url: &String| {
            let place = format!("{url} ({})", at.prefix).into();
            let member = Member {
                url: url.clone(),
                options: options.clone(),
                client: OnceCell::new(),
                #[cfg(test)]
                pages: 0.into(),
            };
            Self { member: Arc::new(member), prefix: at.prefix.as_str().into(), place }
        };
        Ok(at.urls.iter().map(member).collect())
    }

    /// Nothing is sent before it is needed: who is let in only with a password would not be told apart from a member that is away.
    async fn client(&self) -> Result<&Client, Error> {
        let Member { url, options, client, .. } = &*self.member;
        let connect = || self.within(limits::ETCD_CALL, "let it in", Client::connect([url], Some(options.clone())));
        client.get_or_try_init(connect).await
    }

    async fn kv(&self) -> Result<KvClient, Error> {
        Ok(self.client().await?.kv_client().max_decoding_message_size(limits::ETCD_ANSWER))
    }

    async fn leases(&self) -> Result<LeaseClient, Error> {
        Ok(self.client().await?.lease_client())
    }

    pub(super) fn key(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }

    /// One operation, sent once, with a deadline.
    async fn within<T>(
        &self,
        limit: Duration,
        what: &'static str,
        call: impl Future<Output = Result<T, etcd_client::Error>>,
    ) -> Result<T, Error> {
        match timeout(limit, call).await {
            Ok(answer) => answer.map_err(|why| self.trouble(what, words(&why))),
            Err(_) => Err(self.trouble(what, format!("no answer within {limit:?}"))),
        }
    }

    fn trouble(&self, what: &'static str, why: String) -> Error {
        Error::Etcd { place: self.place.to_string(), what, why }
    }

    pub(super) async fn txn(&self, what: &'static str, txn: Txn) -> Result<TxnResponse, Error> {
        let mut kv = self.kv().await?;
        self.within(limits::ETCD_CALL, what, kv.txn(txn)).await
    }

    /// One value.
    pub(super) async fn get(&self, name: &str) -> Result<Option<Vec<u8>>, Error> {
        let mut kv = self.kv().await?;
        let mut answer = self.within(limits::ETCD_CALL, "read a key", kv.get(self.key(name), None)).await?;
        Ok(answer.take_kvs().pop().map(|pair| pair.into_key_value().1))
    }

    /// Everything below `name`, as of one moment, without that in the keys.
    pub(super) async fn all(&self, name: &str) -> Result<Vec<(String, Vec<u8>)>, Error> {
        let prefix = self.key(name);
        // The first key behind all that begin with it.
        let end = format!("{}{}", &prefix[..prefix.len() - 1], '0');
        debug_assert!(prefix.ends_with('/'), "0 is what comes after a slash");
        let (mut from, mut revision, mut found) = (prefix.clone(), 0, Vec::new());
        let mut page = Page::FIRST;
        loop {
            #[cfg(test)]
            self.member.pages.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
            let options = GetOptions::new().with_range(end.clone()).with_limit(page.limit()).with_revision(revision);
            let mut kv = self.kv().await?;
            let asked = kv.get(from.clone(), Some(options));
            let mut answer = match (self.within(limits::ETCD_CALL, "read the records", asked).await, page.smaller()) {
                (Ok(answer), _) => answer,
                (Err(error), None) => return Err(error),
                (Err(error), Some(smaller)) => {
                    tracing::debug!(%error, ?smaller, "fewer records are asked for at once");
                    page = smaller;
                    continue;
                }
            };
            // All pages are of the first one's moment.
            revision = answer.header().map_or(revision, |h| if revision == 0 { h.revision() } else { revision });
            let (more, before, mut bytes) = (answer.more(), found.len(), 0);
            for pair in answer.take_kvs() {
                let (key, value) = pair.into_key_value();
                bytes += key.len() + value.len();
                let key = String::from_utf8_lossy(&key[prefix.len().min(key.len())..]).into_owned();
                found.push((key, value));
            }
            page = page.behind(found.len() - before, bytes);
            match found.last() {
                Some((last, _)) if more => from = format!("{prefix}{last}\0"),
                _ => return Ok(found),
            }
        }
    }

    #[cfg(test)]
    pub(super) fn pages(&self) -> usize {
        self.member.pages.load(std::sync::atomic::Ordering::SeqCst)
    }

    /// Where the leader says that it can be reached; `None` if nobody leads.
    pub(crate) async fn leader(&self) -> Result<Option<String>, Error> {
        Ok(self.get("leader").await?.map(|address| String::from_utf8_lossy(&address).into_owned()))
    }

    /// Becomes the leader, unless somebody else is.
    pub(crate) async fn campaign(&self, address: &str) -> Result<Option<Reign>, Error> {
        let asked = uptime();
        let seconds = i64::try_from(limits::LEASE.as_secs()).unwrap_or(i64::MAX);
        let mut lease = self.leases().await?;
        let granted = self.within(limits::ETCD_CALL, "get a lease", lease.grant(seconds, None)).await?;
        let (lease, ttl) = (granted.id(), Duration::from_secs(u64::try_from(granted.ttl()).unwrap_or(0)));
        let nobody = Compare::create_revision(self.key("leader"), CompareOp::Equal, 0);
        let take = TxnOp::put(self.key("leader"), address, Some(PutOptions::new().with_lease(lease)));
        let answer = self.txn("become the leader", Txn::new().when([nobody]).and_then([take])).await?;
        if !answer.succeeded() {
            self.revoke(lease).await;
            return Ok(None);
        }
        let revision = answer.header().map_or(0, |header| header.revision());
        let (extend, _) = watch::channel(certain(asked, ttl));
        Ok(Some(Reign { guarded: Guarded::new(self.clone(), revision), lease, ttl, extend }))
    }

    /// Gives a lease back, so that nobody waits for its end. If that fails, they wait.
    pub(super) async fn revoke(&self, lease: i64) {
        let revoked = async {
            let mut leases = self.leases().await?;
            self.within(limits::KEEP_CALL, "give its lease back", leases.revoke(lease)).await
        };
        if let Err(error) = revoked.await {
            tracing::debug!(%error, "the lease ends by itself");
        }
    }
}

impl Reign {
    pub(crate) fn validity(&self) -> Validity {
        Validity(self.extend.subscribe())
    }

    /// Keeps the lease until etcd says that it, or the leader's key, is not ours any more.
    pub(crate) async fn keep(&self) -> Error {
        let etcd = self.guarded.etcd();
        loop {
            let asked = uptime();
            let kept = async {
                self.keep_lease().await?;
                self.guarded.confirm().await
            };
            let late = |_| Err(etcd.trouble("keep its lease", format!("no answer within {:?}", limits::KEEP_CALL)));
            match timeout(limits::KEEP_CALL, kept).await.unwrap_or_else(late) {
                Ok(()) => drop(self.extend.send_replace(certain(asked, self.ttl))),
                Err(lost @ Error::Deposed(_)) => {
                    self.extend.send_replace(Duration::ZERO);
                    return lost;
                }
                // Nothing is lost before the time is up: `Validity` tells.
                Err(error) => tracing::warn!(%error, "the leader's lease was not kept"),
            }
            sleep((asked + limits::KEEP_EVERY).saturating_sub(uptime())).await;
        }
    }

    async fn keep_lease(&self) -> Result<(), Error> {
        let etcd = self.guarded.etcd();
        match etcd.leases().await?.keep_alive(self.lease).await {
            Ok(_) => Ok(()),
            // The library's word for a lease that etcd does not know any more.
            Err(etcd_client::Error::LeaseKeepAliveError(_)) => {
                Err(Error::Deposed("etcd has ended its lease".to_owned()))
            }
            Err(why) => Err(etcd.trouble("keep its lease", words(&why))),
        }
    }

    /// Finishes what the last reign left, and reads the records; a cluster that is not there is made, unless one has to be. `now` is asked when they are
    /// read: nobody was heard before.
    pub(crate) async fn take_over(&self, existing: bool, now: impl FnOnce() -> Millis) -> Result<Conductor, Error> {
        let read = self.read(existing, now).await;
        if !matches!(read, Err(Error::Deposed(_) | Error::Etcd { .. })) {
            // What the next leader changes meanwhile looks like damage.
            self.guarded.confirm().await?;
        }
        read
    }

    async fn read(&self, existing: bool, now: impl FnOnce() -> Millis) -> Result<Conductor, Error> {
        self.guarded.take_over().await?;
        let etcd = self.guarded.etcd();
        let format = etcd.get("format").await?;
        let format = format.map(|text| String::from_utf8_lossy(&text).parse().unwrap_or(0));
        let began = uptime();
        let records = etcd.all("record/").await?;
        let (now, count) = (now(), records.len());
        if let Some(model) = restore(&etcd.place, format, records, now)? {
            let took = uptime().saturating_sub(began);
            tracing::info!(records = count, ?took, "the records are read");
            return Ok(model);
        }
        let (model, dirty) = new_cluster(&etcd.place, existing, now)?;
        self.guarded.found(&encoded(&changes(&model, &dirty))?).await?;
        tell_of_new(&etcd.place, &model);
        Ok(model)
    }

    /// What the ledger writes to.
    pub(crate) fn store(&self) -> Store {
        Store { guarded: self.guarded.clone(), validity: self.validity(), runtime: Handle::current() }
    }

    /// Ends it in good order: the next one may begin.
    pub(crate) async fn abdicate(self) {
        self.guarded.etcd().revoke(self.lease).await;
    }
}

impl Records for Store {
    fn commit(&mut self, changes: &[(Key, Option<Record>)]) -> Result<(), Error> {
        let changes = encoded(changes)?;
        self.runtime.block_on(self.guarded.commit(&changes))
    }

    fn is_ours(&self) -> Result<(), Error> {
        match self.validity.holds() {
            true => Ok(()),
            false => Err(Error::Deposed("its lease may have run out".to_owned())),
        }
    }
}

/// Until when a lease that was granted or kept by a call sent at `asked` is certain to hold.
fn certain(asked: Duration, ttl: Duration) -> Duration {
    asked + ttl.saturating_sub(limits::LEASE_MARGIN)
}

/// What changes, as it is kept: the key, and the value or none.
pub(super) type Change = (String, Option<Vec<u8>>);

pub(super) fn encoded(changes: &[(Key, Option<Record>)]) -> Result<Vec<Change>, Error> {
    let one = |(key, record): &(Key, Option<Record>)| Ok((key.to_string(), record.as_ref().map(encode).transpose()?));
    let all: Result<_, std::io::Error> = changes.iter().map(one).collect();
    all.map_err(|source| Error::System { what: "write a record as JSON", source })
}

/// What went wrong, without the protocol's details, and what is at the bottom of it.
fn words(error: &etcd_client::Error) -> String {
    let (said, mut cause) = match error {
        etcd_client::Error::GRpcStatus(status) => (status.message().to_owned(), status.source()),
        etcd_client::Error::TransportError(error) => (error.to_string(), error.source()),
        other => (other.to_string(), None),
    };
    while let Some(deeper) = cause.and_then(std::error::Error::source) {
        cause = Some(deeper);
    }
    match cause.map(ToString::to_string).filter(|cause| !said.contains(cause)) {
        Some(cause) => format!("{said}: {cause}"),
        None => said,
    }
}
