//! An IOCB gets its stamp, from which on it takes effect: if there is space on every copy and a place in the window, and nothing else
//! keeps it.

use super::Node;
use super::space::Space;
use crate::iocb::{IocbPhase, Kind, Stage};
use crate::iocbs::IocbKey;
use crate::limits::MOST_UNFLUSHED;
use crate::mail::Letter;
use crate::primary::Primary;
use crate::replica::Replica;
use crate::window::Prefix;
use conductor_model::{ShardId, Stamp};
use driver::{Outbox, Time};
use node_protocol::Status;
use node_store::Store;

/// What comes of an IOCB that was to be stamped.
#[derive(PartialEq, Eq, Debug)]
#[must_use]
pub(super) enum Stamping {
    /// It has its stamp, or was answered instead.
    Over,
    /// Something is missing for now: it is tried again.
    Later,
}

/// What an IOCB is stamped with.
struct Granted {
    stamp: Stamp,
    covers: Prefix,
    /// Of metadata, that are counted as taken for it.
    pages: u32,
}

/// What keeps an IOCB from its stamp.
enum Kept {
    /// For now. What is counted for it, where whoever has it wait does not count by itself.
    Waits(Option<&'static str>),
    /// For good: what it was to do was given up.
    Withdrawn,
    /// For good: some copy's disk is full.
    NoSpace,
}

impl Space {
    fn or_kept(self) -> Result<(), Kept> {
        match self {
            Self::Found => Ok(()),
            Self::Awaited => Err(Kept::Waits(Some("write.waits-for-room"))),
            Self::None => Err(Kept::NoSpace),
        }
    }
}

impl<S: Store> Node<S> {
    /// Gives an IOCB its stamp and starts its legs, unless it has to wait or there is no space for it.
    pub(super) fn stamp(&mut self, now: Time, key: IocbKey, out: &mut dyn Outbox<Letter>) -> Stamping {
        self.abandon_stamp(key);
        match self.gate(now, key) {
            Ok(granted) => self.take_effect(now, key, &granted, out),
            Err(Kept::Waits(counted)) => {
                counted.into_iter().for_each(|name| self.counters.count(name));
                return Stamping::Later;
            }
            // What it did in an older epoch is equal on all copies since this one was settled; what it reads as may be gone.
            Err(Kept::Withdrawn) => self.answer(now, key, Status::NoSnapshot),
            Err(Kept::NoSpace) if self.iocbs[key].kind == Kind::Rewrite => self.not_rewritten(now, key),
            Err(Kept::NoSpace) => {
                self.counters.count("write.no-space");
                self.answer(now, key, Status::NoSpace);
            }
        }
        Stamping::Over
    }

    /// Asks for all that a stamp needs. The window is last: what it gives out is used.
    fn gate(&mut self, now: Time, key: IocbKey) -> Result<Granted, Kept> {
        let iocb = &self.iocbs[key];
        let (shard, kind, range, stamped) = (iocb.shard, iocb.kind, iocb.range, iocb.stamp.is_some());
        if matches!(kind, Kind::Share(_) | Kind::Rollback(_)) && iocb.order.is_none() {
            return Err(Kept::Withdrawn);
        }
        // What is written again may be zeros, which take none.
        let takes_none = kind == Kind::Rewrite && iocb.payload.is_none();
        let disk = self.replicas.get(&shard).map(|replica| replica.disk);
        if disk.is_some_and(|disk| !self.has_place_in_store(disk, key)) {
            return Err(Kept::Waits(None));
        }
        if kind.takes_space() && !takes_none && !stamped {
            self.find_space(now, key, range.count.0.into()).or_kept()?;
        }
        if kind == Kind::Zero && !stamped && disk.is_some_and(|disk| self.disks[disk].store.leeway().discarding) {
            // It would wait in the store, stamped: nothing says there that it is not the disk that hangs.
            return Err(Kept::Waits(Some("zero.waits-for-others")));
        }
        let pages = if stamped { 0 } else { kind.takes_pages(range.count, || self.is_layered(shard)) };
        if pages > 0 {
            self.find_pages(now, key, pages).or_kept()?;
        }
        if matches!(kind, Kind::Barrier(_) | Kind::Rollback(_) | Kind::Share(_)) && !self.bypass_filling(shard) {
            return Err(Kept::Waits(None));
        }
        let primary = self.primaries.get_mut(&shard).ok_or(Kept::Waits(None))?;
        if kind.waits_for_flush() && primary.unflushed() >= MOST_UNFLUSHED {
            return Err(Kept::Waits(Some("write.waits-for-flush")));
        }
        let covers = primary.window.prefix();
        let sequence = primary.window.stamp().ok_or(Kept::Waits(Some("window.full")))?;
        Ok(Granted { stamp: Stamp { epoch: primary.config.epoch, sequence }, covers, pages })
    }

    /// From here on it takes effect.
    fn take_effect(&mut self, now: Time, key: IocbKey, granted: &Granted, out: &mut dyn Outbox<Letter>) {
        let Granted { stamp, covers, pages } = *granted;
        let iocb = &mut self.iocbs[key];
        iocb.stages.mark(Stage::Stamped, now);
        if iocb.stamp.is_some() {
            self.counters.count("write.stamped-again");
        } else if iocb.kind.takes_space() {
            self.taken.blocks += u64::from(iocb.range.count.0);
        }
        iocb.pages += pages;
        self.taken.pages += pages;
        iocb.stamp = Some(stamp);
        iocb.started_at = now;
        iocb.phase = IocbPhase::Stamped;
        iocb.covers = covers;
        self.start_legs(now, key, out);
    }

    /// Does anything show through a hole of this shard?
    fn is_layered(&self, shard: ShardId) -> bool {
        let snapshots = |replica: &Replica| !self.disks[replica.disk].store.snapshots(replica.copy).is_empty();
        let cloned = |primary: &Primary| primary.config.parent.is_some();
        self.replicas.get(&shard).is_some_and(snapshots) || self.primaries.get(&shard).is_some_and(cloned)
    }

    /// A stamp of the present epoch that is given up, because the epoch was settled once more, leaves no gap below K and F: what it
    /// did is equal on all copies by then, and it is never sent again.
    pub(super) fn abandon_stamp(&mut self, key: IocbKey) {
        let iocb = &self.iocbs[key];
        let Some(primary) = self.primaries.get_mut(&iocb.shard) else { return };
        if iocb.phase == IocbPhase::Stamped
            && let Some(stamp) = iocb.stamp.filter(|stamp| stamp.epoch == primary.config.epoch)
        {
            primary.window.finished(stamp.sequence, false);
        }
    }
}
