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
//! Each operation is sent once. What becomes of one that is not answered is unknown, so the reign ends with it: nothing of an earlier
//! try can arrive late and undo what was written since. The next reign reads what there is.

use super::redo::Guarded;
use super::{Records, changes, encode, restore};
use crate::clock::uptime;
use crate::{Error, EtcdStore, limits};
use conductor_model::{ClusterId, Conductor, Key, Millis, Record};
use etcd_client::{
    Client, Compare, CompareOp, ConnectOptions, GetOptions, KvClient, LeaseClient, PutOptions, Txn, TxnOp, TxnResponse,
};
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

/// A connection to one member, and where this cluster's keys are. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Etcd {
    kv: KvClient,
    lease: LeaseClient,
    prefix: Arc<str>,
    /// For messages.
    pub(super) place: Arc<str>,
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
    pub(crate) async fn members(at: &EtcdStore) -> Result<Vec<Self>, Error> {
        let mut members = Vec::with_capacity(at.urls.len());
        if at.urls.is_empty() {
            let why = "no address is given".to_owned();
            return Err(Error::Etcd { place: at.prefix.clone(), what: "connect", why });
        }
        for url in &at.urls {
            members.push(Self::connect(url, &at.prefix).await?);
        }
        Ok(members)
    }

    async fn connect(url: &str, prefix: &str) -> Result<Self, Error> {
        let place: Arc<str> = format!("{url} ({prefix})").into();
        let options = ConnectOptions::new()
            .with_connect_timeout(limits::ETCD_CONNECT)
            .with_keep_alive(limits::ETCD_PING_EVERY, limits::ETCD_PING)
            .with_keep_alive_while_idle(false)
            .with_require_leader(true);
        let client = Client::connect([url], Some(options)).await;
        let client =
            client.map_err(|why| Error::Etcd { place: place.to_string(), what: "connect", why: words(&why) })?;
        let kv = client.kv_client().max_decoding_message_size(limits::ETCD_ANSWER);
        Ok(Self { kv, lease: client.lease_client(), prefix: prefix.into(), place })
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
        self.within(limits::ETCD_CALL, what, self.kv.clone().txn(txn)).await
    }

    /// One value.
    pub(super) async fn get(&self, name: &str) -> Result<Option<Vec<u8>>, Error> {
        let mut kv = self.kv.clone();
        let mut answer = self.within(limits::ETCD_CALL, "read a key", kv.get(self.key(name), None)).await?;
        Ok(answer.take_kvs().pop().map(|pair| pair.into_key_value().1))
    }

    /// Everything below `name`, as of one moment, without that in the keys.
    pub(super) async fn all(&self, name: &str) -> Result<Vec<(String, Vec<u8>)>, Error> {
        let prefix = self.key(name);
        // The first key behind all that begin with it.
        let end = format!("{}{}", &prefix[..prefix.len() - 1], '0');
        debug_assert!(prefix.ends_with('/'), "0 is what comes after a slash");
        let page = i64::try_from(limits::ETCD_PAGE).unwrap_or(i64::MAX);
        let (mut from, mut revision, mut found) = (prefix.clone(), 0, Vec::new());
        loop {
            let page = GetOptions::new().with_range(end.clone()).with_limit(page).with_revision(revision);
            let mut kv = self.kv.clone();
            let mut answer = self.within(limits::ETCD_CALL, "read the records", kv.get(from, Some(page))).await?;
            // All pages are of the first one's moment.
            revision = answer.header().map_or(revision, |h| if revision == 0 { h.revision() } else { revision });
            let more = answer.more();
            for pair in answer.take_kvs() {
                let (key, value) = pair.into_key_value();
                let key = String::from_utf8_lossy(&key[prefix.len().min(key.len())..]).into_owned();
                found.push((key, value));
            }
            match found.last() {
                Some((last, _)) if more => from = format!("{prefix}{last}\0"),
                _ => return Ok(found),
            }
        }
    }

    /// Where the leader says that it can be reached; `None` if nobody leads.
    pub(crate) async fn leader(&self) -> Result<Option<String>, Error> {
        Ok(self.get("leader").await?.map(|address| String::from_utf8_lossy(&address).into_owned()))
    }

    /// Becomes the leader, unless somebody else is.
    pub(crate) async fn campaign(&self, address: &str) -> Result<Option<Reign>, Error> {
        let asked = uptime();
        let seconds = i64::try_from(limits::LEASE.as_secs()).unwrap_or(i64::MAX);
        let mut lease = self.lease.clone();
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
        let mut client = self.lease.clone();
        if let Err(error) = self.within(limits::KEEP_CALL, "give its lease back", client.revoke(lease)).await {
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
        let mut lease = etcd.lease.clone();
        match lease.keep_alive(self.lease).await {
            Ok(_) => Ok(()),
            // The library's word for a lease that etcd does not know any more.
            Err(etcd_client::Error::LeaseKeepAliveError(_)) => {
                Err(Error::Deposed("etcd has ended its lease".to_owned()))
            }
            Err(why) => Err(etcd.trouble("keep its lease", words(&why))),
        }
    }

    /// Finishes what the last reign left, and reads the records; a cluster that is not there yet is made. `now` is asked when they are
    /// read: nobody was heard before.
    pub(crate) async fn take_over(&self, now: impl FnOnce() -> Millis) -> Result<Conductor, Error> {
        let read = self.read(now).await;
        if !matches!(read, Err(Error::Deposed(_) | Error::Etcd { .. })) {
            // What the next leader changes meanwhile looks like damage.
            self.guarded.confirm().await?;
        }
        read
    }

    async fn read(&self, now: impl FnOnce() -> Millis) -> Result<Conductor, Error> {
        self.guarded.take_over().await?;
        let etcd = self.guarded.etcd();
        let format = etcd.get("format").await?;
        let format = format.map(|text| String::from_utf8_lossy(&text).parse().unwrap_or(0));
        let records = etcd.all("record/").await?;
        let now = now();
        if let Some(model) = restore(&etcd.place, format, records, now)? {
            return Ok(model);
        }
        tracing::warn!(
            prefix = &*etcd.prefix,
            etcd = &*etcd.place,
            "etcd has no cluster under this prefix: a new one is made. If there should be one, stop all conductors and check the addresses \
             and the prefix that they were given, and that etcd has its data"
        );
        let cluster = ClusterId(getrandom::u64().map_err(Error::Random)?);
        let (model, dirty) = Conductor::new(cluster, now);
        self.guarded.found(&encoded(&changes(&model, &dirty))?).await?;
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

/// What went wrong, without the protocol's details.
fn words(error: &etcd_client::Error) -> String {
    match error {
        etcd_client::Error::GRpcStatus(status) => status.message().to_owned(),
        other => other.to_string(),
    }
}
