//! The sequences of one epoch: which was given out last, and up to where all are finished on every copy.

use crate::limits::WINDOW;
use conductor_model::Sequence;
use std::collections::VecDeque;

/// What is finished without a gap.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Prefix {
    /// Everything up to here is finished on every copy: F.
    pub(crate) to: Sequence,
    /// The newest of these that copies list above K: anything but a flush, and what was given up. K does not rise beyond it.
    pub(crate) listed: Sequence,
}

/// Sequences given out and finished, in one epoch of one shard.
#[derive(Debug, Default)]
pub(crate) struct Window {
    prefix: Prefix,
    /// Above the prefix, in order.
    above: VecDeque<Given>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Given {
    Out,
    Finished { listed: bool },
}

impl Window {
    /// The next stamp, if the window has room.
    pub(crate) fn stamp(&mut self) -> Option<Sequence> {
        if self.above.len() as u64 >= WINDOW {
            return None;
        }
        self.above.push_back(Given::Out);
        Some(self.last())
    }

    /// `sequence` is finished on every in-sync copy; `listed` if copies list it. Once per sequence.
    pub(crate) fn finished(&mut self, sequence: Sequence, listed: bool) {
        let at = sequence.0.checked_sub(self.prefix.to.0 + 1).and_then(|at| usize::try_from(at).ok());
        let Some(slot) = at.and_then(|at| self.above.get_mut(at)) else {
            debug_assert!(false, "finished what was never given out: {sequence}");
            return;
        };
        debug_assert_eq!(*slot, Given::Out, "finished twice: {sequence}");
        *slot = Given::Finished { listed };
        while let Some(Given::Finished { listed }) = self.above.front().copied() {
            self.above.pop_front();
            self.prefix.to.0 += 1;
            if listed {
                self.prefix.listed = self.prefix.to;
            }
        }
    }

    /// Is all finished that was given out?
    pub(crate) fn is_empty(&self) -> bool {
        self.above.is_empty()
    }

    /// The newest that was given out.
    pub(crate) fn last(&self) -> Sequence {
        Sequence(self.prefix.to.0 + self.above.len() as u64)
    }

    /// What is finished without a gap.
    pub(crate) fn prefix(&self) -> Prefix {
        self.prefix
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_prefix_has_no_gap() {
        let mut window = Window::default();
        let stamps: Vec<_> = (0..4).map(|_| window.stamp().unwrap()).collect();
        assert_eq!(stamps, [1, 2, 3, 4].map(Sequence));
        window.finished(Sequence(2), true);
        assert_eq!(window.prefix(), Prefix::default());
        window.finished(Sequence(1), true);
        assert_eq!(window.prefix(), Prefix { to: Sequence(2), listed: Sequence(2) });
        window.finished(Sequence(4), true);
        window.finished(Sequence(3), false);
        assert_eq!((window.prefix().to, window.above.len()), (Sequence(4), 0));
    }

    #[test]
    fn what_copies_do_not_list_is_below_the_prefix_and_nothing_above_it_counts() {
        let mut window = Window::default();
        (0..5).for_each(|_| _ = window.stamp());
        window.finished(Sequence(1), true);
        window.finished(Sequence(5), true);
        window.finished(Sequence(2), false);
        window.finished(Sequence(3), false);
        assert_eq!(window.prefix(), Prefix { to: Sequence(3), listed: Sequence(1) });
        window.finished(Sequence(4), false);
        assert_eq!(window.prefix(), Prefix { to: Sequence(5), listed: Sequence(5) });
    }

    #[test]
    fn the_window_is_bounded_and_opens_again() {
        let mut window = Window::default();
        for _ in 0..WINDOW {
            window.stamp().unwrap();
        }
        assert_eq!(window.stamp(), None);
        window.finished(Sequence(1), true);
        assert_eq!(window.stamp(), Some(Sequence(WINDOW + 1)));
    }
}
