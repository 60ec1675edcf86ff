//! In which order groups become durable, and what may be reported.
//!
//! ```text
//! durable_through ≤ written_through ≤ last built
//!      groups:  │ stable │ written, waits for a sync │ in flight │ in flight │
//! ```
//! A group is over when it is written and all before it are over; if one of its records is to be stable, when all up to it is. A
//! write that is stable by itself says nothing about older ones that are not: behind such a one, a stable record takes a sync.

use super::{Appended, Mark};
use std::collections::VecDeque;

/// A group that is not over; or a barrier, which is a group that is written and has no number of its own.
#[derive(Debug)]
pub(super) struct Group {
    /// Its number; a barrier's is that of the group before.
    pub(super) sequence: u64,
    /// What the next one continues.
    pub(super) end: Mark,
    /// Its write was asked to be stable, and all before it are or were.
    pub(super) stable_write: bool,
    /// One of its records is to be stable.
    pub(super) needs_stable: bool,
    pub(super) written: bool,
    /// What to report.
    pub(super) records: Vec<Appended>,
}

/// The groups that are not over, and how far the journal is durable.
#[derive(Debug)]
pub(super) struct Order {
    groups: VecDeque<Group>,
    /// All up to this one is stable.
    durable_through: u64,
    /// All up to this one is written.
    written_through: u64,
    /// The newest whose write was not asked to be stable.
    unstable: u64,
    /// The sync in flight, and what it covers.
    sync: Option<u64>,
    /// Over, and not yet reported…
    over: VecDeque<Group>,
    /// …beyond so many records of the first of them.
    reported: usize,
    /// Behind the newest group that is reported.
    mark: Mark,
    spare: Vec<Vec<Appended>>,
}

impl Order {
    /// All before `mark` is stable.
    pub(super) fn new(mark: Mark) -> Self {
        Self {
            groups: VecDeque::new(),
            durable_through: mark.sequence - 1,
            written_through: mark.sequence - 1,
            unstable: 0,
            sync: None,
            over: VecDeque::new(),
            reported: 0,
            mark,
            spare: Vec::new(),
        }
    }

    pub(super) fn durable_through(&self) -> u64 {
        self.durable_through
    }

    pub(super) fn written_through(&self) -> u64 {
        self.written_through
    }

    pub(super) fn mark(&self) -> Mark {
        self.mark
    }

    /// True if something written is not stable, so that a stable write would promise too much.
    pub(super) fn unstable(&self) -> bool {
        self.unstable > self.durable_through
    }

    /// An empty list with room.
    pub(super) fn list(&mut self) -> Vec<Appended> {
        self.spare.pop().unwrap_or_default()
    }

    pub(super) fn push(&mut self, group: Group) {
        if !group.stable_write && !group.written {
            self.unstable = group.sequence;
        }
        self.groups.push_back(group);
    }

    /// The write of a group is over. False if it is none of ours.
    pub(super) fn written(&mut self, sequence: u64) -> bool {
        let Some(group) = self.groups.iter_mut().find(|group| group.sequence == sequence && !group.written) else {
            return false;
        };
        group.written = true;
        self.settle();
        true
    }

    /// All up to `sequence`, which is written, is stable.
    pub(super) fn stable(&mut self, sequence: u64) {
        self.durable_through = self.durable_through.max(sequence);
        self.settle();
    }

    /// What a sync that is to be sent now covers; `None` if none is needed, or one is on its way.
    pub(super) fn begin_sync(&mut self) -> Option<u64> {
        let first = self.groups.front()?;
        let waits = first.needs_stable && !first.stable_write;
        if !waits || self.sync.is_some() || first.sequence > self.written_through {
            return None;
        }
        self.sync = Some(self.written_through);
        self.sync
    }

    /// The sync is over. False if there was none.
    pub(super) fn synced(&mut self) -> bool {
        let Some(through) = self.sync.take() else { return false };
        self.stable(through);
        true
    }

    /// What is over can be reported.
    pub(super) fn settle(&mut self) {
        for group in &self.groups {
            if !group.written {
                break;
            }
            self.written_through = self.written_through.max(group.sequence);
            if group.stable_write {
                // All before it are: those that were asked to be are written, and there were no others.
                self.durable_through = self.durable_through.max(group.sequence);
            }
        }
        while let Some(group) = self.groups.front() {
            let over = group.written && (!group.needs_stable || group.sequence <= self.durable_through);
            if !over {
                break;
            }
            self.over.extend(self.groups.pop_front());
        }
        self.drop_reported();
    }

    /// The mark passes the groups of which nothing is left to report.
    fn drop_reported(&mut self) {
        while self.over.front().is_some_and(|group| group.records.len() == self.reported) {
            let Some(mut group) = self.over.pop_front() else { break };
            self.mark = group.end;
            self.reported = 0;
            group.records.clear();
            if self.spare.len() < super::limits::MAX_FLYING {
                self.spare.push(group.records);
            }
        }
    }

    pub(super) fn next_finished(&mut self) -> Option<Appended> {
        let next = *self.over.front()?.records.get(self.reported)?;
        self.reported += 1;
        self.drop_reported();
        Some(next)
    }

    /// True if nothing is waited for.
    pub(super) fn idle(&self) -> bool {
        self.groups.is_empty() && self.sync.is_none()
    }
}
