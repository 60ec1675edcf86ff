//! A limit on what an attachment asks of the nodes, over all its lanes: requests, and bytes, a second.
//!
//! A request is admitted when all before it are paid for, each a second's share of the rate (the generic cell rate algorithm). Who has
//! asked for little has a tenth of a second's worth at once. Nothing is ever turned away or overtaken: what comes early waits, as the client
//! would wait for a slower disk, and its time-out counts from when it is admitted.

use conductor_model::Bytes;
use driver::{Span, Time};
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicU64, Ordering};

/// What may be asked for at once after a pause.
const BURST: Span = Span::millis(100);

/// What is asked for at most: of each, if there is a limit.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Limits {
    /// Requests a second; a flush is none.
    pub iops: Option<NonZeroU64>,
    /// Bytes read and written a second.
    pub bandwidth: Option<NonZeroU64>,
}

/// When what is asked for may be sent: one for all lanes of an attachment.
#[derive(Debug)]
pub struct Pace {
    requests: Option<Toll>,
    bytes: Option<Toll>,
}

#[derive(Debug)]
struct Toll {
    /// A second.
    rate: NonZeroU64,
    /// When all that was asked for is paid for, in nanoseconds.
    paid: AtomicU64,
}

impl Toll {
    fn new(rate: NonZeroU64) -> Self {
        Self { rate, paid: AtomicU64::new(0) }
    }

    /// Has one that takes so much pay behind all before it: when it may be sent.
    fn admit(&self, now: Time, amount: u64) -> Time {
        let cost = u128::from(amount) * 1_000_000_000 / u128::from(self.rate.get());
        let cost = u64::try_from(cost).unwrap_or(u64::MAX);
        let from = |paid: u64| paid.max(now.0.saturating_sub(BURST.0));
        let pay = |paid: u64| Some(from(paid).saturating_add(cost));
        // A number by itself: nothing else is read or written under it.
        let paid = self.paid.fetch_update(Ordering::Relaxed, Ordering::Relaxed, pay).unwrap_or_else(|paid| paid);
        Time(from(paid)).max(now)
    }
}

impl Pace {
    /// `None` if nothing is limited.
    pub fn new(limits: Limits) -> Option<Self> {
        let Limits { iops, bandwidth } = limits;
        let is_limited = iops.is_some() || bandwidth.is_some();
        is_limited.then(|| Self { requests: iops.map(Toll::new), bytes: bandwidth.map(Toll::new) })
    }

    /// Has a request that moves so many bytes pay behind all before it: when it may be sent.
    pub(crate) fn admit(&self, now: Time, bytes: Bytes) -> Time {
        let requests = self.requests.iter().map(|toll| toll.admit(now, 1));
        requests.chain(self.bytes.iter().map(|toll| toll.admit(now, bytes.0))).fold(now, Time::max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pace(iops: u64, bandwidth: u64) -> Pace {
        Pace::new(Limits { iops: NonZeroU64::new(iops), bandwidth: NonZeroU64::new(bandwidth) }).unwrap()
    }

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn requests_are_admitted_at_the_rate_behind_a_tenth_of_a_second_that_is_free() {
        let pace = pace(1000, 0);
        let now = Time(7 * SECOND);
        let waits: Vec<u64> = (0..1100).map(|_| pace.admit(now, Bytes(4096)).0 - now.0).collect();
        assert_eq!(waits.iter().filter(|wait| **wait == 0).count(), 101, "a tenth of a second's, and the next");
        assert!(waits.is_sorted() && waits[1099] == 999 * SECOND / 1000, "{}", waits[1099]);
        let later = Time(now.0 + 60 * SECOND);
        let free = (0..1000).filter(|_| pace.admit(later, Bytes(4096)) == later).count();
        assert_eq!(free, 101, "a long pause saves no more than a short one");
    }

    #[test]
    fn both_limits_hold_and_one_that_is_larger_than_its_burst_waits_for_nobody_but_those_before_it() {
        let pace = pace(100, 1 << 20);
        let now = Time(7 * SECOND);
        assert_eq!(pace.admit(now, Bytes(8 << 20)), now);
        let behind = pace.admit(now, Bytes(4096)).0 - now.0;
        assert!((7 * SECOND..=8 * SECOND).contains(&behind), "{behind}");
        assert!(Pace::new(Limits::default()).is_none());
    }
}
