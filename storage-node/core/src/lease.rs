//! May the primary serve a read now? Only while every other in-sync copy has promised not to follow another primary (rule 9).
//!
//! A promise counts for a shard only if it was sent after that copy had joined the shard's epoch; the answer to the Join is itself one
//! (rule 13). It is counted from when the question was *sent*, and ended 10 % early (rule 14).

use crate::limits::PROMISE;
use crate::links::Promise;
use conductor_model::CopyId;
use driver::{Span, Time};
use std::collections::BTreeMap;

/// The promises of one shard's epoch that came with Join answers.
#[derive(Debug, Default)]
pub(crate) struct Lease {
    members: BTreeMap<CopyId, Joined>,
}

#[derive(Clone, Copy, Debug)]
struct Joined {
    /// When its answer was known to this primary.
    answered: Time,
    until: Time,
}

/// Until when a promise of length `granted`, asked for at `sent`, may be relied upon.
pub(crate) fn relied_until(sent: Time, granted: Span) -> Time {
    let granted = granted.0.min(PROMISE.0);
    if driver::mutant::on("promise_not_ended_early") {
        sent + Span(granted * 2)
    } else {
        sent + Span(granted - granted / 10)
    }
}

impl Lease {
    /// A copy has joined: asked at `sent`, its answer known at `answered`.
    pub(crate) fn joined(&mut self, copy: CopyId, sent: Time, answered: Time) {
        self.members.insert(copy, Joined { answered, until: relied_until(sent, PROMISE) });
    }

    /// The process that had promised is gone; its successor's word is about nothing that it has joined.
    pub(crate) fn void(&mut self, copy: CopyId) {
        self.members.remove(&copy);
    }

    /// Is the promise of `copy`, whose link holds `promise`, valid at `now`?
    pub(crate) fn holds(&self, now: Time, copy: CopyId, promise: Option<Promise>) -> bool {
        let Some(joined) = self.members.get(&copy) else { return false };
        let renewed = promise.filter(|p| p.sent >= joined.answered).map_or(Time::default(), |p| p.until);
        now < joined.until.max(renewed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_promise_from_before_the_join_counts_for_nothing() {
        let mut lease = Lease::default();
        let copy = CopyId(1);
        let at = |ms| Time(0) + Span::millis(ms);
        assert!(!lease.holds(at(0), copy, Some(Promise { sent: at(0), until: at(9000) })), "it has not joined");
        lease.joined(copy, at(100), at(150));
        let early = Promise { sent: at(149), until: at(9000) };
        assert!(lease.holds(at(1899), copy, Some(early)));
        assert!(!lease.holds(at(1900), copy, Some(early)), "2 s from sending the Join, less a tenth");
        let late = Promise { sent: at(150), until: at(5000) };
        assert!(lease.holds(at(4999), copy, Some(late)));
    }
}
