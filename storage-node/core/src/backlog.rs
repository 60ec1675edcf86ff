//! Legs that wait for a link's credits, by the disks they go to.
//!
//! ```text
//!   legs ──▶ lane of disk 1  ─┐
//!        ──▶ lane of disk 2  ─┴─▶ a credit: the disk with the fewest legs running is next
//! ```
//! A disk that hangs keeps the credits of its legs. Where there are others behind the same link, no disk gets more than twice what is
//! free, and something is left to each of them however many hang.

use crate::iocbs::IocbKey;
use conductor_model::{CopyId, DiskId, Stamp};
use smallvec::SmallVec;
use std::collections::VecDeque;

/// A leg of another copy, waiting for a credit or sent. It may be overtaken by events: whoever takes it from the queue looks whether it still
/// waits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct RemoteLeg {
    pub(crate) iocb: IocbKey,
    pub(crate) stamp: Stamp,
    pub(crate) copy: CopyId,
    /// Where the copy is.
    pub(crate) disk: DiskId,
}

#[derive(Debug)]
struct Lane {
    disk: DiskId,
    waiting: VecDeque<RemoteLeg>,
    /// Legs that were sent, and are not answered.
    running: u16,
}

/// What waits for one link.
#[derive(Default, Debug)]
pub(crate) struct Backlog {
    lanes: SmallVec<[Lane; 1]>,
}

impl Backlog {
    /// Puts a leg behind all others of its disk.
    pub(crate) fn push(&mut self, leg: RemoteLeg) {
        self.lane(leg.disk).waiting.push_back(leg);
    }

    /// Puts a leg where its stamp belongs.
    pub(crate) fn insert(&mut self, leg: RemoteLeg) {
        let lane = self.lane(leg.disk);
        let at = lane.waiting.partition_point(|w| w.stamp < leg.stamp);
        lane.waiting.insert(at, leg);
    }

    /// Takes the leg that gets one of `free` credits. `beside`: the link leads to several disks.
    pub(crate) fn next(&mut self, free: u16, beside: bool) -> Option<RemoteLeg> {
        let beside = beside && !driver::mutant::on("a_disk_takes_all_credits");
        let most = if beside { free.saturating_mul(2) } else { u16::MAX };
        let may = |lane: &&mut Lane| !lane.waiting.is_empty() && lane.running < most;
        self.lanes.iter_mut().filter(may).min_by_key(|lane| lane.running)?.waiting.pop_front()
    }

    /// A leg was sent.
    pub(crate) fn started(&mut self, disk: DiskId) {
        let lane = self.lane(disk);
        lane.running = lane.running.saturating_add(1);
    }

    /// One that was sent is answered.
    pub(crate) fn ended(&mut self, disk: DiskId) {
        let lane = self.lane(disk);
        lane.running = lane.running.saturating_sub(1);
    }

    /// The connection is gone, and with it all that was sent.
    pub(crate) fn cut(&mut self) {
        self.lanes.retain(|lane| !lane.waiting.is_empty());
        self.lanes.iter_mut().for_each(|lane| lane.running = 0);
    }

    /// All that waits.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &RemoteLeg> {
        self.lanes.iter().flat_map(|lane| &lane.waiting)
    }

    /// Of a disk; there are no more than a node has.
    fn lane(&mut self, disk: DiskId) -> &mut Lane {
        let at = self.lanes.iter().position(|lane| lane.disk == disk).unwrap_or_else(|| {
            self.lanes.push(Lane { disk, waiting: VecDeque::new(), running: 0 });
            self.lanes.len() - 1
        });
        &mut self.lanes[at]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use conductor_model::{Epoch, Sequence};

    const CREDITS: u16 = 120;

    fn leg(disk: u64, sequence: u64) -> RemoteLeg {
        let stamp = Stamp { epoch: Epoch(1), sequence: Sequence(sequence) };
        RemoteLeg { iocb: IocbKey(0), stamp, copy: CopyId(disk), disk: DiskId(disk) }
    }

    /// Sends what may be sent; of which disks.
    fn drain(backlog: &mut Backlog, sent: &mut u16, beside: bool) -> Vec<u64> {
        let mut of = Vec::new();
        while *sent < CREDITS
            && let Some(leg) = backlog.next(CREDITS - *sent, beside)
        {
            backlog.started(leg.disk);
            *sent += 1;
            of.push(leg.disk.0);
        }
        of
    }

    #[test]
    fn one_disk_alone_gets_all_credits_in_the_order_of_its_legs() {
        let (mut backlog, mut sent) = (Backlog::default(), 0);
        (1..=200).filter(|n| *n != 7).for_each(|n| backlog.push(leg(1, n)));
        backlog.insert(leg(1, 7));
        let first: Vec<_> = backlog.iter().take(10).map(|leg| leg.stamp.sequence.0).collect();
        assert_eq!(first, (1..=10).collect::<Vec<_>>());
        assert_eq!(drain(&mut backlog, &mut sent, false).len(), 120);
        assert_eq!(backlog.iter().count(), 80);
    }

    #[test]
    fn disks_that_hang_leave_credits_to_the_others() {
        let (mut backlog, mut sent) = (Backlog::default(), 0);
        for hung in 1..=3 {
            (0..200).for_each(|n| backlog.push(leg(hung, n)));
            let got = drain(&mut backlog, &mut sent, true);
            assert!(!got.is_empty() && got.iter().all(|disk| *disk == hung), "{got:?}");
        }
        assert!(sent < CREDITS, "they have {sent} of {CREDITS}");
        // The one that works goes on, for ever.
        for n in 0..1000 {
            backlog.push(leg(4, n));
            assert_eq!(drain(&mut backlog, &mut sent, true), [4]);
            backlog.ended(DiskId(4));
            sent -= 1;
        }
    }

    #[test]
    fn credits_that_come_back_go_to_the_disk_with_the_fewest_legs() {
        let (mut backlog, mut sent) = (Backlog::default(), 110);
        (0..30).for_each(|n| backlog.push(leg(1, n)));
        (0..30).for_each(|n| backlog.push(leg(2, n)));
        let got = drain(&mut backlog, &mut sent, true);
        let of_second = got.iter().filter(|disk| **disk == 2).count();
        assert!((got.len() / 2..=got.len().div_ceil(2)).contains(&of_second), "{got:?}");
    }

    #[test]
    fn with_its_connection_gone_a_disk_holds_no_credits() {
        let (mut backlog, mut sent) = (Backlog::default(), 0);
        (0..200).for_each(|n| backlog.push(leg(1, n)));
        let before = drain(&mut backlog, &mut sent, true).len();
        backlog.cut();
        assert_eq!(drain(&mut backlog, &mut 0, true).len(), before, "as if nothing had been sent");
    }
}
