//! The reactors of the process, and which disk is whose. Grows when a disk is added to a running node, and shrinks when a reactor's last
//! disk is taken out.

use crate::desk::Lane;
use conductor_model::DiskId;
use node_core::Mail;
use reactor::Mailbox;
use std::collections::BTreeMap;
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

#[derive(Default)]
struct State {
    mailboxes: BTreeMap<Lane, Mailbox<Mail>>,
    of_disk: BTreeMap<DiskId, Lane>,
}

/// See the module's head.
#[derive(Default)]
pub(crate) struct Lanes(RwLock<State>);

impl Lanes {
    /// A reactor with these disks takes mail from now on.
    pub(crate) fn add(&self, lane: Lane, mailbox: Mailbox<Mail>, disks: impl IntoIterator<Item = DiskId>) {
        let mut state = self.write();
        state.mailboxes.insert(lane, mailbox);
        state.of_disk.extend(disks.into_iter().map(|disk| (disk, lane)));
    }

    /// The disk is not used any more. If it was its reactor's last one, that is told to end: its number is returned.
    pub(crate) fn retire(&self, disk: DiskId) -> Option<Lane> {
        let mut state = self.write();
        let lane = state.of_disk.remove(&disk)?;
        if state.of_disk.values().any(|other| *other == lane) {
            return None;
        }
        let mailbox = state.mailboxes.remove(&lane)?;
        // One that has ended already has nothing to stop.
        let _ = mailbox.send(Mail::Stop);
        Some(lane)
    }

    /// Of a reactor that takes mail.
    pub(crate) fn mailbox(&self, lane: Lane) -> Option<Mailbox<Mail>> {
        self.read().mailboxes.get(&lane).cloned()
    }

    /// All that take mail.
    pub(crate) fn all(&self) -> Vec<Lane> {
        self.read().mailboxes.keys().copied().collect()
    }

    /// Is it one that is expected to run?
    pub(crate) fn has(&self, lane: Lane) -> bool {
        self.read().mailboxes.contains_key(&lane)
    }

    /// Which disk is whose.
    pub(crate) fn of_disk(&self) -> BTreeMap<DiskId, Lane> {
        self.read().of_disk.clone()
    }

    /// All are told to end.
    pub(crate) fn stop(&self) {
        for mailbox in self.read().mailboxes.values() {
            // One that has ended already has nothing to stop.
            let _ = mailbox.send(Mail::Stop);
        }
    }

    /// A panic ends the process, so whoever finds the lock poisoned is about to end as well.
    fn read(&self) -> RwLockReadGuard<'_, State> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, State> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}
