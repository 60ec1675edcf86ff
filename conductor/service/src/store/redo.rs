//! Transactions of any size, each of them only while the leader's key is ours.
//!
//! etcd takes 128 operations and 1.5 MiB at once; one node's death may change 25,600 shards. A transaction that fits is one of etcd's.
//! A larger one goes in four steps, every operation of which compares the leader's key:
//!
//! ```text
//! stage   pending/0 … pending/N-1   what changes, one line each, up to 1 MiB in a key; in any order
//! head    head = N                  one small transaction: from here on the whole is done, before here nothing is
//! apply   record/…                  the changes themselves, as many at once as etcd takes; in any order, each key once
//! clear   no head, no pending/…     one small transaction
//! ```
//! **Why that is atomic.** Records are read by a new leader only, and not before `take_over` is through. With a head it repeats *apply* to the
//! end from what was staged: values are absolute and each key occurs once, so whatever part was applied before changes nothing; then it
//! clears. Without a head nothing was applied, for *apply* begins when the head is written, and what was staged is thrown away. A crash in
//! `take_over` leaves one of these two states. No two do this at once: each step compares the leader's key, and of one reign nothing arrives
//! after the next one's key is made. Within a reign there is one transaction at a time, and none after one whose outcome is unknown.

use super::etcd::{Change, Etcd};
use crate::{Error, limits};
use etcd_client::{Compare, CompareOp, DeleteOptions, GetOptions, Txn, TxnOp};
use std::sync::Arc;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

/// etcd, while the leader's key is ours.
#[derive(Clone)]
pub(crate) struct Guarded {
    etcd: Etcd,
    /// Create revision of our leader's key.
    revision: i64,
    /// Operations until the test's crash.
    #[cfg(test)]
    pub(super) budget: Arc<std::sync::atomic::AtomicI64>,
}

impl Guarded {
    pub(super) fn new(etcd: Etcd, revision: i64) -> Self {
        Self {
            etcd,
            revision,
            #[cfg(test)]
            budget: Arc::new(i64::MAX.into()),
        }
    }

    pub(super) fn etcd(&self) -> &Etcd {
        &self.etcd
    }

    /// Makes changes durable, all or none.
    pub(super) async fn commit(&self, changes: &[Change]) -> Result<(), Error> {
        self.decide(changes, None).await
    }

    /// Makes the first records, however many, and with them what they look like: nobody finds the ones without the other.
    pub(super) async fn found(&self, changes: &[Change]) -> Result<(), Error> {
        let format = TxnOp::put(self.etcd.key("format"), super::FORMAT.to_string(), None);
        self.decide(changes, Some(format)).await
    }

    /// All of the changes and, where it is decided that they are made, one operation more.
    async fn decide(&self, changes: &[Change], beside: Option<TxnOp>) -> Result<(), Error> {
        self.check(changes)?;
        if pieces(changes, limits::TXN_CHANGES).nth(1).is_none() {
            let operations = self.operations(changes).into_iter().chain(beside).collect();
            return self.run("write a transaction", operations).await;
        }
        let parts: Vec<String> = pieces(changes, usize::MAX).map(lines).collect();
        let count = parts.len();
        let stage = parts.into_iter().enumerate().map(|(n, part)| vec![TxnOp::put(self.pending(n), part, None)]);
        self.run_all("stage a transaction", stage).await?;
        let head = TxnOp::put(self.etcd.key("head"), count.to_string(), None);
        let head = std::iter::once(head).chain(beside).collect();
        self.run("decide a transaction", head).await?;
        self.apply(changes).await?;
        self.clear().await
    }

    /// Ends what an earlier leader has begun: it is done, or it never was.
    pub(super) async fn take_over(&self) -> Result<(), Error> {
        if let Some(head) = self.etcd.get("head").await? {
            let damaged = |why: &str| Error::Damaged { place: self.etcd.place.to_string(), why: why.to_owned() };
            let staged = self.etcd.all("pending/").await?;
            if String::from_utf8_lossy(&head) != staged.len().to_string() {
                return Err(damaged("parts of a decided transaction are missing"));
            }
            let mut changes = Vec::new();
            for (_, part) in staged {
                let part = String::from_utf8(part).map_err(|_| damaged("a staged transaction is no text"))?;
                changes.extend(part.lines().map(|line| match line.split_once(' ') {
                    Some((key, value)) => (key.to_owned(), Some(value.as_bytes().to_vec())),
                    None => (line.to_owned(), None),
                }));
            }
            tracing::info!(changes = changes.len(), "finishing the last leader's transaction");
            self.apply(&changes).await?;
        }
        self.clear().await
    }

    async fn apply(&self, changes: &[Change]) -> Result<(), Error> {
        let pieces = pieces(changes, limits::TXN_CHANGES).map(|piece| self.operations(piece));
        self.run_all("write a part of a transaction", pieces).await
    }

    async fn clear(&self) -> Result<(), Error> {
        let all = TxnOp::delete(self.etcd.key("pending/"), Some(DeleteOptions::new().with_prefix()));
        self.run("clear a transaction", vec![TxnOp::delete(self.etcd.key("head"), None), all]).await
    }

    /// An error unless the leader's key is ours at a moment after this call.
    pub(super) async fn confirm(&self) -> Result<(), Error> {
        // A member answers a transaction without operations from what it has, however old.
        let key = GetOptions::new().with_keys_only();
        self.run("confirm that it leads", vec![TxnOp::get(self.etcd.key("leader"), Some(key))]).await
    }

    /// One transaction of etcd's, or nothing.
    async fn run(&self, what: &'static str, operations: Vec<TxnOp>) -> Result<(), Error> {
        #[cfg(test)]
        if self.budget.fetch_sub(1, std::sync::atomic::Ordering::SeqCst) <= 0 {
            return Err(Error::Deposed("the test's crash".to_owned()));
        }
        let mut txn = Txn::new();
        if !mutant::on("leader_not_compared") {
            let ours = Compare::create_revision(self.etcd.key("leader"), CompareOp::Equal, self.revision);
            txn = txn.when([ours]);
        }
        match self.etcd.txn(what, txn.and_then(operations)).await?.succeeded() {
            true => Ok(()),
            false => Err(Error::Deposed(format!("it was to {what}, and another conductor leads"))),
        }
    }

    /// Several, in any order, some at a time.
    async fn run_all(&self, what: &'static str, all: impl Iterator<Item = Vec<TxnOp>>) -> Result<(), Error> {
        let at_once = Arc::new(Semaphore::new(limits::TXNS_AT_ONCE));
        let mut running = JoinSet::new();
        for operations in all {
            // The semaphore is never closed.
            let place = Arc::clone(&at_once).acquire_owned().await;
            while let Some(ended) = running.try_join_next() {
                ended.unwrap_or(Err(Error::LedgerEnded))?;
            }
            let this = self.clone();
            running.spawn(async move {
                let _place = place;
                this.run(what, operations).await
            });
        }
        while let Some(ended) = running.join_next().await {
            ended.unwrap_or(Err(Error::LedgerEnded))?;
        }
        Ok(())
    }

    fn pending(&self, n: usize) -> String {
        // In order: etcd sorts by name.
        self.etcd.key(&format!("pending/{n:06}"))
    }

    fn operations(&self, changes: &[Change]) -> Vec<TxnOp> {
        let one = |(key, value): &Change| {
            let key = self.etcd.key(&format!("record/{key}"));
            match value {
                Some(value) => TxnOp::put(key, value.as_slice(), None),
                None => TxnOp::delete(key, None),
            }
        };
        changes.iter().map(one).collect()
    }

    fn check(&self, changes: &[Change]) -> Result<(), Error> {
        match changes.iter().find(|change| size(change) > limits::TXN_BYTES) {
            Some(large) => Err(Error::TooLarge { key: large.0.clone(), bytes: size(large) }),
            None => Ok(()),
        }
    }
}

/// One line for each change: the key, and behind a space what it is to hold. Keys have no spaces, JSON from serde no line ends.
fn lines(changes: &[Change]) -> String {
    let line = |(key, value): &Change| match value {
        Some(value) => format!("{key} {}\n", String::from_utf8_lossy(value)),
        None => format!("{key}\n"),
    };
    changes.iter().map(line).collect()
}

fn size((key, value): &Change) -> usize {
    key.len() + value.as_ref().map_or(0, Vec::len) + limits::CHANGE_BYTES
}

/// Cuts changes into as few pieces as hold `most` changes and `limits::TXN_BYTES` each.
fn pieces(changes: &[Change], most: usize) -> impl Iterator<Item = &[Change]> {
    let mut rest = changes;
    std::iter::from_fn(move || {
        let mut bytes = 0;
        let fits = |change: &&Change| {
            bytes += size(change);
            bytes <= limits::TXN_BYTES
        };
        let count = rest.iter().take(most).take_while(fits).count().max(1).min(rest.len());
        let (piece, behind) = rest.split_at(count);
        rest = behind;
        (!piece.is_empty()).then_some(piece)
    })
}

/// As `driver::mutant`, which the control plane does not link.
mod mutant {
    #[cfg(debug_assertions)]
    pub(super) fn on(name: &str) -> bool {
        std::env::var("TRINE_MUTANT").as_deref() == Ok(name)
    }

    #[cfg(not(debug_assertions))]
    pub(super) const fn on(_name: &str) -> bool {
        false
    }
}

#[cfg(test)]
mod tests;
