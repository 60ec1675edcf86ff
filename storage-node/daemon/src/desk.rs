//! Where the reactors' letters lie until the control threads fetch them.
//!
//! Letters are merged as they come (the newest question per shard, the newest troubles per reactor), so what lies here is bounded by
//! what the node holds, however long the conductor is away. A reactor holds the lock for one map operation per letter.

use crate::limits::COUNT_AGAIN;
use conductor_client::Error as Refusal;
use conductor_model::api::{CopyWork, DiskIntegrity, Filling, MembershipRequest, OrderReport, Trouble};
use conductor_model::{Bytes, CopyId, DiskId, OrderId, ShardId};
use node_core::{Letter, View};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Words on orders, and on work, in one report; more go with the next.
pub(crate) const REPORTS_AT_ONCE: usize = 4096;

/// Which reactor.
pub(crate) type Lane = u16;

/// What was counted last, as far as it is still to be said.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) copies: Vec<(CopyId, Bytes)>,
    pub(crate) integrity: Vec<DiskIntegrity>,
}

#[derive(Debug, Default)]
struct State {
    /// The reactors there are.
    lanes: BTreeSet<Lane>,
    asks: BTreeMap<(Lane, ShardId), MembershipRequest>,
    /// Copies that are not (or no longer) on these reactors.
    dropped: BTreeMap<CopyId, BTreeSet<Lane>>,
    /// The newest word on each order.
    reports: BTreeMap<OrderId, OrderReport>,
    /// Work that is done, or whose copy is not there, on these reactors.
    worked: BTreeMap<CopyWork, BTreeSet<Lane>>,
    troubles: BTreeMap<Lane, Vec<Trouble>>,
    fillings: BTreeMap<Lane, Vec<Filling>>,
    used: BTreeMap<DiskId, Bytes>,
    failed: BTreeMap<DiskId, String>,
    looks: BTreeMap<u64, BTreeMap<Lane, View>>,
    last_look: u64,
    counts: Counts,
    /// The conductor has not heard the last count, or has forgotten it.
    count_again: bool,
    conductor: Option<Refusal>,
    stopping: bool,
}

impl State {
    /// Have all reactors said so?
    fn all_in(&self, said: Option<&BTreeSet<Lane>>) -> bool {
        said.is_some_and(|said| self.lanes.is_subset(said))
    }
}

/// See the module's head.
#[derive(Debug, Default)]
pub(crate) struct Desk {
    state: Mutex<State>,
    changed: Condvar,
}

impl Desk {
    /// There is one reactor more: what all have to say it has to say, too.
    pub(crate) fn begin_lane(&self, lane: Lane) {
        self.lock().lanes.insert(lane);
    }

    /// A reactor has nothing more to say, nor to be asked.
    pub(crate) fn end_lane(&self, lane: Lane) {
        let mut state = self.lock();
        state.lanes.remove(&lane);
        state.troubles.remove(&lane);
        state.fillings.remove(&lane);
        self.changed.notify_all();
    }

    /// A letter from a reactor.
    pub(crate) fn post(&self, lane: Lane, letter: Letter) {
        let mut state = self.lock();
        match letter {
            Letter::Ask(request) => {
                state.asks.insert((lane, request.shard), request);
                self.changed.notify_all();
            }
            Letter::Deleted(copy) => {
                state.dropped.entry(copy).or_default().insert(lane);
            }
            Letter::Report(report) => {
                state.reports.insert(report.id, report);
                self.changed.notify_all();
            }
            Letter::Worked(work) => {
                state.worked.entry(work).or_default().insert(lane);
                if state.all_in(state.worked.get(&work)) {
                    self.changed.notify_all();
                }
            }
            Letter::Troubles(troubles) => {
                state.troubles.insert(lane, troubles);
            }
            Letter::Fillings(fillings) => {
                state.fillings.insert(lane, fillings);
            }
            Letter::Usage(disk, used) => {
                state.used.insert(disk, used);
            }
            Letter::View(number, view) => {
                if let Some(look) = state.looks.get_mut(&number) {
                    look.insert(lane, *view);
                    self.changed.notify_all();
                }
            }
            Letter::Detour(detour) => tracing::warn!("{detour}"),
            Letter::Damage(what) => tracing::warn!(what, "DAMAGE"),
            Letter::DiskFailed(disk, why) => {
                if state.failed.insert(disk, why.clone()).is_none() {
                    tracing::error!(%disk, why, "DISK FAILED: its copies do not serve until it is replaced or the node restarted");
                }
            }
        }
    }

    /// Waits for questions to the conductor; none if it is time to stop.
    pub(crate) fn take_asks(&self, most: usize) -> Vec<(Lane, MembershipRequest)> {
        let idle = |state: &mut State| state.asks.is_empty() && !state.stopping;
        let mut state = self.changed.wait_while(self.lock(), idle).unwrap_or_else(PoisonError::into_inner);
        if state.stopping {
            return Vec::new();
        }
        let mut taken = Vec::new();
        while let Some(((lane, _), request)) = if taken.len() < most { state.asks.pop_first() } else { None } {
            taken.push((lane, request));
        }
        taken
    }

    /// Waits for something to say of orders and work: at most so much of each. Nothing if it is time to stop. It stays here until
    /// it is known to be heard.
    pub(crate) fn wait_for_reports(&self, most: usize) -> (Vec<OrderReport>, Vec<CopyWork>) {
        let done = |state: &State| -> Vec<CopyWork> {
            let said = state.worked.iter().filter(|(_, lanes)| state.all_in(Some(lanes)));
            said.map(|(work, _)| *work).take(most).collect()
        };
        let idle = |state: &mut State| state.reports.is_empty() && done(state).is_empty() && !state.stopping;
        let state = self.changed.wait_while(self.lock(), idle).unwrap_or_else(PoisonError::into_inner);
        if state.stopping {
            return Default::default();
        }
        (state.reports.values().take(most).cloned().collect(), done(&state))
    }

    /// The conductor knows this. What was said anew meanwhile is said again.
    pub(crate) fn forget_reports(&self, reports: &[OrderReport], worked: &[CopyWork]) {
        let mut state = self.lock();
        for report in reports {
            if state.reports.get(&report.id) == Some(report) {
                state.reports.remove(&report.id);
            }
        }
        for work in worked {
            state.worked.remove(work);
        }
    }

    /// Copies that are on no reactor any more. Each reactor has to say so: one that never had a copy says it at once.
    pub(crate) fn deleted(&self) -> Vec<CopyId> {
        let state = self.lock();
        state.dropped.iter().filter(|(_, lanes)| state.all_in(Some(lanes))).map(|(copy, _)| *copy).collect()
    }

    /// The conductor knows that these are gone.
    pub(crate) fn forget_deleted(&self, copies: &[CopyId]) {
        let mut state = self.lock();
        for copy in copies {
            state.dropped.remove(copy);
        }
    }

    /// The shards that are lost, those that wait, and behind them those that something else is wrong with: the conductor keeps so many.
    pub(crate) fn troubles(&self) -> Vec<Trouble> {
        let mut all: Vec<Trouble> = self.lock().troubles.values().flatten().cloned().collect();
        all.sort_by_key(|trouble| (trouble.ailment.is_some(), !trouble.lost));
        all
    }

    /// How far the primaries are with filling copies.
    pub(crate) fn fillings(&self) -> Vec<Filling> {
        self.lock().fillings.values().flatten().copied().collect()
    }

    /// What is in use on a disk, if that was said.
    pub(crate) fn used(&self, disk: DiskId) -> Option<Bytes> {
        self.lock().used.get(&disk).copied()
    }

    /// Disks that failed, and how.
    pub(crate) fn failed(&self) -> BTreeMap<DiskId, String> {
        self.lock().failed.clone()
    }

    /// Begins a look at all reactors; its number goes with `Mail::Look`.
    pub(crate) fn begin_look(&self) -> u64 {
        let mut state = self.lock();
        state.last_look += 1;
        let number = state.last_look;
        state.looks.insert(number, BTreeMap::new());
        number
    }

    /// What the reactors have said within the given time, in their order.
    pub(crate) fn finish_look(&self, number: u64, within: Duration) -> BTreeMap<Lane, View> {
        let waits = |state: &mut State| state.looks.get(&number).is_some_and(|look| look.len() < state.lanes.len());
        let (mut state, _) =
            self.changed.wait_timeout_while(self.lock(), within, waits).unwrap_or_else(PoisonError::into_inner);
        state.looks.remove(&number).unwrap_or_default()
    }

    /// Something was counted anew.
    pub(crate) fn counted(&self, counts: Counts) {
        self.lock().counts = counts;
    }

    /// What is to be said of it: what copies hold once, what befell the disks each time.
    pub(crate) fn counts(&self) -> Counts {
        let mut state = self.lock();
        Counts { copies: std::mem::take(&mut state.counts.copies), integrity: state.counts.integrity.clone() }
    }

    /// It was not heard.
    pub(crate) fn count_again(&self) {
        self.lock().count_again = true;
        self.changed.notify_all();
    }

    /// Sleeps until it is time to count: that long, or `COUNT_AGAIN` if it was not heard. True if it is time to stop.
    pub(crate) fn wait_to_count(&self, span: Duration) -> bool {
        let since = Instant::now();
        let mut state = self.lock();
        loop {
            let waits = if state.count_again { COUNT_AGAIN.min(span) } else { span };
            let left = waits.saturating_sub(since.elapsed());
            if state.stopping || left.is_zero() {
                state.count_again = false;
                return state.stopping;
            }
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// How the last call of the conductor went: `None` is well. True if that is a change which people have to hear of: one that is away
    /// has many ways to be, but says no for one reason. That it does not know this node is not said before it has heard who it is.
    pub(crate) fn conductor(&self, trouble: Option<Refusal>) -> bool {
        let sort = |why: &Refusal| match why.is_temporary() {
            true => None,
            false => Some((std::mem::discriminant(why), why.kind().map(str::to_owned))),
        };
        let mut state = self.lock();
        if state.conductor.is_some() && trouble.as_ref().is_some_and(Refusal::is_unknown_node) {
            return false;
        }
        let changed = state.conductor.as_ref().map(sort) != trouble.as_ref().map(sort);
        state.conductor = trouble;
        changed
    }

    /// What is wrong with the conductor.
    pub(crate) fn conductor_trouble(&self) -> Option<String> {
        self.lock().conductor.as_ref().map(ToString::to_string)
    }

    /// Tells all control threads to end.
    pub(crate) fn stop(&self) {
        self.lock().stopping = true;
        self.changed.notify_all();
    }

    /// Sleeps; true if it is time to stop.
    pub(crate) fn pause(&self, span: Duration) -> bool {
        let until = Instant::now() + span;
        let mut state = self.lock();
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if state.stopping || left.is_zero() {
                return state.stopping;
            }
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// A panic ends the process, so whoever finds the lock poisoned is about to end as well.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use conductor_model::Epoch;
    use conductor_model::api::{Ailment, MembershipChange, OrderState};

    fn of_lanes(lanes: Lane) -> Desk {
        let desk = Desk::default();
        (0..lanes).for_each(|lane| desk.begin_lane(lane));
        desk
    }

    #[test]
    fn a_copy_is_dropped_when_every_reactor_has_said_so() {
        let desk = of_lanes(2);
        desk.post(0, Letter::Deleted(CopyId(7)));
        assert!(desk.deleted().is_empty(), "reactor 1 may still be deleting it");
        desk.post(0, Letter::Deleted(CopyId(7)));
        assert!(desk.deleted().is_empty());
        desk.post(1, Letter::Deleted(CopyId(7)));
        assert_eq!(desk.deleted(), [CopyId(7)]);
        desk.forget_deleted(&[CopyId(7)]);
        assert!(desk.deleted().is_empty());
    }

    #[test]
    fn what_is_lost_is_named_before_what_waits_and_what_ails() {
        let desk = of_lanes(2);
        let trouble =
            |lost, ailment| Trouble { shard: ShardId::default(), waiting: 0, reason: String::new(), lost, ailment };
        desk.post(0, Letter::Troubles(vec![trouble(false, Some(Ailment::Unfilled)), trouble(false, None)]));
        desk.post(1, Letter::Troubles(vec![trouble(false, Some(Ailment::Unreadable)), trouble(true, None)]));
        let order: Vec<_> = desk.troubles().iter().map(|said| (said.lost, said.ailment.is_some())).collect();
        assert_eq!(order, [(true, false), (false, false), (false, true), (false, true)]);
    }

    #[test]
    fn a_reactor_that_is_added_has_to_say_so_too_and_one_that_ended_has_not() {
        let desk = of_lanes(1);
        desk.post(0, Letter::Deleted(CopyId(7)));
        desk.begin_lane(1);
        assert!(desk.deleted().is_empty(), "the new one may have it");
        desk.post(1, Letter::Deleted(CopyId(7)));
        assert_eq!(desk.deleted(), [CopyId(7)]);
        desk.post(1, Letter::Deleted(CopyId(8)));
        desk.end_lane(0);
        assert_eq!(desk.deleted(), [CopyId(7), CopyId(8)]);
    }

    #[test]
    fn a_conductor_that_refuses_for_another_reason_is_news_and_another_way_to_be_away_is_not() {
        let desk = of_lanes(1);
        let away = |why: &str| Some(Refusal::Unreachable { address: "c:1".to_owned(), why: why.to_owned() });
        let no = |kind: &str| Some(Refusal::Refused { kind: kind.to_owned(), message: kind.to_owned(), status: 409 });
        assert!(!desk.conductor(None), "all is well, as before");
        assert!(desk.conductor(away("timeout")) && !desk.conductor(away("connection refused")));
        assert!(!desk.conductor(no(conductor_model::UNKNOWN_NODE)), "it has not heard who this is");
        assert!(desk.conductor(no("other-cluster")) && !desk.conductor(no("other-cluster")));
        assert!(desk.conductor(no("in-use")));
        assert_eq!(desk.conductor_trouble().as_deref(), Some("in-use"));
        assert!(desk.conductor(None) && !desk.conductor(None));
    }

    #[test]
    fn the_newest_question_of_a_shard_replaces_older_ones() {
        let desk = of_lanes(1);
        let ask = |epoch| MembershipRequest {
            shard: ShardId::default(),
            epoch: Epoch(epoch),
            by: CopyId(1),
            change: MembershipChange::Born,
        };
        desk.post(0, Letter::Ask(ask(1)));
        desk.post(0, Letter::Ask(ask(2)));
        assert_eq!(desk.take_asks(10), [(0, ask(2))]);
        desk.stop();
        assert!(desk.take_asks(10).is_empty() && desk.pause(Duration::from_secs(60)));
    }

    #[test]
    fn a_word_on_an_order_stays_until_it_is_heard_and_a_newer_one_is_said_after_it() {
        let desk = of_lanes(2);
        let word = |damaged| {
            let state = OrderState::Done { damaged, repaired: 0 };
            OrderReport { id: OrderId(1), shard: ShardId::default(), epoch: Epoch(1), state }
        };
        let work = CopyWork::Flatten(CopyId(5));
        desk.post(0, Letter::Report(word(0)));
        desk.post(0, Letter::Worked(work));
        let (said, worked) = desk.wait_for_reports(10);
        assert_eq!((&said[..], &worked[..]), (&[word(0)][..], &[][..]), "the other reactor may have the copy");
        desk.post(1, Letter::Worked(work));
        desk.post(0, Letter::Report(word(1)));
        desk.forget_reports(&said, &worked);
        let (said, worked) = desk.wait_for_reports(10);
        assert_eq!((&said[..], &worked[..]), (&[word(1)][..], &[work][..]));
        desk.forget_reports(&said, &worked);
        desk.stop();
        assert_eq!(desk.wait_for_reports(10), (Vec::new(), Vec::new()));
    }

    #[test]
    fn a_count_is_said_once_and_taken_again_when_it_was_not_heard() {
        let desk = of_lanes(1);
        desk.counted(Counts { copies: vec![(CopyId(1), Bytes(2))], integrity: Vec::new() });
        assert_eq!(desk.counts().copies, [(CopyId(1), Bytes(2))]);
        assert_eq!(desk.counts().copies, []);
        desk.count_again();
        assert!(!desk.wait_to_count(Duration::from_secs(3600)), "or this test never ends");
        desk.stop();
        assert!(desk.wait_to_count(Duration::from_secs(3600)));
    }

    #[test]
    fn a_look_waits_for_all_reactors_and_not_for_ever() {
        let desk = of_lanes(2);
        let number = desk.begin_look();
        desk.post(1, Letter::View(number, Box::default()));
        desk.post(1, Letter::View(number + 1, Box::default()));
        assert_eq!(desk.finish_look(number, Duration::from_millis(5)).len(), 1);
        assert!(desk.finish_look(number, Duration::from_secs(5)).is_empty(), "it is over");
    }
}
