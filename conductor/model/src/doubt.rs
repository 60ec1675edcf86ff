//! A state that may be from the past (rule 12): restored from a backup, or empty because it was lost.
//!
//! ```text
//! a node has seen a higher commit, a newer epoch, an unknown volume │
//! `conductor recover` made this state                               ├─► in doubt ──adopt──► leads again
//! ```
//! In doubt nobody is promoted, no epoch, order, deletion or attachment is given out; nodes that serve go on. Every node has to register
//! with this process, with all its copies. It is persisted: the conductor's own transactions would make it look newer. Commit numbers
//! continue above whatever is heard.

use crate::api::{Holding, Register};
use crate::events::Happened;
use crate::limits::{DOUBT_ASKS_MS, DOUBT_SETTLES_MS, MAX_AHEAD, MAX_NUMBER};
use crate::orders::Orders;
use crate::record::Recovery;
use crate::snapshots::Attempts;
use crate::{ClusterId, Commit, Conductor, Configuration, CopyId, Dirty, DiskId, Error, Key, Millis, NodeId};
use std::collections::BTreeMap;

/// What a node said of itself when it registered.
#[derive(Clone, Default, Debug)]
pub(crate) struct Heard {
    /// Its disks with all copies on them.
    pub(crate) disks: BTreeMap<DiskId, Vec<(CopyId, Configuration)>>,
    /// Clients that use volumes through it.
    pub(crate) attached: Vec<Holding>,
    pub(crate) at: Millis,
}

impl Conductor {
    /// An empty state for a cluster whose own was lost; without a name, the first node to register says which cluster.
    pub fn recovering(cluster: Option<ClusterId>, now: Millis) -> (Self, Dirty) {
        let (mut new, mut dirty) = Self::new(cluster.unwrap_or_default(), now);
        new.doubt(now, "its state was lost and is made again from what the nodes hold".to_owned(), &mut dirty);
        let dirty = new.seal(dirty);
        (new, dirty)
    }

    /// From now on this state may be from the past.
    pub fn restored(&mut self, now: Millis) -> Dirty {
        let mut dirty = Dirty::default();
        self.doubt(now, format!("it was restored from a backup of commit {}", self.meta.commit), &mut dirty);
        self.seal(dirty)
    }

    /// Why this conductor changes nothing by itself, if it does not.
    pub fn doubted(&self) -> Option<&str> {
        self.meta.recovery.as_ref().map(|recovery| recovery.why.as_str())
    }

    /// Refused while in doubt.
    pub(crate) fn check_trusted(&self) -> Result<(), Error> {
        self.meta.recovery.as_ref().map_or(Ok(()), |recovery| Err(Error::InDoubt(recovery.why.clone())))
    }

    pub(crate) fn doubt(&mut self, now: Millis, why: String, dirty: &mut Dirty) {
        if self.meta.recovery.is_some() {
            return;
        }
        self.date_events(now);
        self.meta.recovery = Some(Recovery { since: now, why: why.clone(), past: self.meta.commit });
        self.doubting = now;
        self.orders = Orders::default();
        self.attempts = Attempts::default();
        self.note(Happened::Doubted { why }, dirty);
    }

    /// The cluster that the node belongs to is this one; a conductor that lost its state may learn that.
    pub(crate) fn check_cluster(&self, register: &Register) -> Result<(), Error> {
        let (own, node) = (self.meta.cluster, register.node);
        if register.attached.iter().any(|a| a.generation.0 > MAX_NUMBER) {
            return Err(Error::Invalid(format!("{node} speaks of numbers above {MAX_NUMBER}")));
        }
        self.check_seen(node, register.seen)?;
        let mut copies =
            register.disks.iter().flat_map(|d| d.copies.iter().map(move |(copy, config)| (d, copy, config)));
        if let Some((disk, copy, config)) = copies.find(|(_, _, config)| !config.is_credible()) {
            return Err(Error::Invalid(format!(
                "disk {} of {node} holds copy {copy} of {} in a state that no conductor can have given out: start {node} without that disk \
                 and, if it has another one, `trine disk replace` it",
                disk.disk, config.shard
            )));
        }
        match register.cluster == own || (self.meta.recovery.is_some() && own == ClusterId(0)) {
            true => Ok(()),
            false => Err(Error::OtherCluster { node, its: register.cluster, own }),
        }
    }

    /// A commit that a node has seen is one that some conductor of this cluster has made, before this one or after the state that it has.
    pub(crate) fn check_seen(&self, node: NodeId, seen: Commit) -> Result<(), Error> {
        let own = self.meta.commit;
        if seen.0.saturating_sub(own.0) > MAX_AHEAD {
            return Err(Error::Invalid(format!(
                "{node} speaks of commit {seen}, and no conductor can have made so many since this one's {own}: what it knows is damaged, start it again"
            )));
        }
        Ok(())
    }

    /// What a registration says of the past.
    pub(crate) fn hear(&mut self, now: Millis, register: &Register, dirty: &mut Dirty) {
        if self.meta.cluster != register.cluster {
            self.meta.cluster = register.cluster;
            dirty.add(Key::Meta);
        }
        let node = register.node;
        let behind = (register.seen > self.meta.commit)
            .then(|| format!("{node} has seen commit {}, it only {}", register.seen, self.meta.commit));
        let unknown = register.disks.iter().flat_map(|d| &d.copies).map(|(_, config)| config.shard.volume).max();
        let unknown = unknown.filter(|volume| *volume >= self.meta.next_volume).map(|volume| {
            format!("{node} has copies of volume {volume}, it knows only those below {}", self.meta.next_volume)
        });
        let epoch = self.doubts(register).into_iter().next().map(|(shard, why)| format!("{shard}: {why}"));
        if let Some(why) = behind.or(unknown).or(epoch) {
            self.doubt(now, format!("its state is from the past: {why}"), dirty);
        }
        self.continue_above(register.seen, dirty);
        if self.meta.recovery.is_some() {
            self.date_events(now);
            let disks = register.disks.iter().map(|d| (d.disk, d.copies.clone())).collect();
            self.heard.insert(node, Heard { disks, attached: register.attached.clone(), at: now });
        }
    }

    /// Its own transactions come after what was heard of.
    pub(crate) fn continue_above(&mut self, seen: Commit, dirty: &mut Dirty) {
        if seen > self.meta.commit {
            self.meta.commit = seen;
            dirty.add(Key::Meta);
        }
    }

    /// What nodes said before the last Join that was under way is over, they are to say again.
    pub(crate) fn forget_early_words(&mut self, now: Millis) {
        let settled = Millis(self.doubting.0.saturating_add(DOUBT_SETTLES_MS));
        if now >= settled {
            self.heard.retain(|_, heard| heard.at >= settled);
        }
    }

    /// In how many seconds every node that runs has said what it holds, once nothing of what was given out is under way any more.
    pub(crate) fn unsettled_for(&self, now: Millis) -> Option<u64> {
        let left = (DOUBT_SETTLES_MS + DOUBT_ASKS_MS).saturating_sub(now.since(self.doubting));
        (left > 0).then(|| left.div_ceil(1000))
    }

    /// True if the node has not said yet what it holds.
    pub(crate) fn is_to_register(&self, node: NodeId) -> bool {
        self.meta.recovery.is_some() && !self.heard.contains_key(&node)
    }
}
