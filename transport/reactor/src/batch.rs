//! How many completions a turn waits for, and how long at most.
//!
//! Small sends end within the enter that submits them, and so a wait that ended with them would end at once: it counts them in and asks for one
//! completion more. One that finds its socket full does not end, and then another completion has to come that nobody may be waiting with.
//! So such a wait has an end of its own. It is the longer, the more often it was for nothing: who answers after a millisecond would otherwise
//! have us wake up in vain each time.

use driver::{Span, Time};

/// The longest wait for more than one completion while sends find their sockets full: what one can cost everybody else.
const SHORTEST: Span = Span::micros(500);
/// The same while all ends as it should.
const LONGEST: Span = Span::millis(8);

/// The waits for more than one completion.
pub(crate) struct Batch {
    /// How long they may be.
    limit: Span,
    newest: Option<Wait>,
}

/// One that ends by itself: when it began, after how many completions, and with how many sends.
struct Wait {
    since: Time,
    seen: u64,
    sends: u32,
}

impl Batch {
    pub(crate) fn new() -> Self {
        Self { limit: SHORTEST, newest: None }
    }

    /// How many completions the enter that submits `sends` small sends waits for, and how long at most, if everything else has this
    /// `timeout`. Before it there were so many completions; `behind`: a send of an earlier one has not ended.
    pub(crate) fn wait(
        &mut self,
        now: Time,
        seen: u64,
        (sends, behind): (u32, bool),
        timeout: Option<Span>,
    ) -> (u32, Option<Span>) {
        let newest = self.newest.take();
        if behind {
            self.limit = SHORTEST;
        } else if let Some(Wait { since, seen: before, sends }) = newest
            && seen - before <= u64::from(sends)
            && now.since(since) >= self.limit
        {
            self.limit = Span(self.limit.0 * 2).min(LONGEST);
        }
        if sends == 0 {
            return (1, timeout);
        }
        let own = timeout.is_none_or(|timeout| timeout > self.limit);
        self.newest = own.then_some(Wait { since: now, seen, sends });
        (1 + sends, Some(timeout.map_or(self.limit, |timeout| timeout.min(self.limit))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(micros: u64) -> Time {
        Time::default() + Span::micros(micros)
    }

    #[test]
    fn waits_for_nothing_are_longer_each_time_until_a_send_is_left_behind() {
        let mut batch = Batch::new();
        assert_eq!(batch.wait(at(0), 0, (0, false), None), (1, None));
        assert_eq!(batch.wait(at(0), 0, (2, false), None), (3, Some(SHORTEST)));
        // Both sends ended, and nothing came.
        assert_eq!(batch.wait(at(500), 2, (0, false), None), (1, None));
        assert_eq!(batch.wait(at(9000), 3, (1, false), None), (2, Some(Span::millis(1))));
        for (n, limit) in (0..).zip([2, 4, 8, 8]) {
            let now = at(20_000 + 10_000 * n);
            assert_eq!(batch.wait(now, 4 + n, (1, false), None), (2, Some(Span::millis(limit))));
        }
        assert_eq!(batch.wait(at(60_000), 7, (1, true), None), (2, Some(SHORTEST)));
    }

    #[test]
    fn a_wait_that_ended_in_time_or_for_another_reason_says_nothing() {
        let mut batch = Batch::new();
        for (now, seen) in [(0, 0), (499, 1), (2000, 3)] {
            assert_eq!(batch.wait(at(now), seen, (1, false), None), (2, Some(SHORTEST)), "{now}");
        }
        // It was the machine that wanted its turn.
        assert_eq!(batch.wait(at(3000), 6, (1, false), Some(Span::micros(100))), (2, Some(Span::micros(100))));
        assert_eq!(batch.wait(at(4000), 7, (1, false), None), (2, Some(SHORTEST)));
    }
}
