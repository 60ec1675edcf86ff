//! The sequences of one epoch: which was given out last, and up to where all are finished on every copy.

use crate::limits::WINDOW;
use conductor_model::Sequence;
use std::collections::VecDeque;

/// Sequences given out and finished, in one epoch of one shard.
#[derive(Debug, Default)]
pub(crate) struct Window {
    /// Everything up to here is finished on every copy. It is F, and, once settling is done, K too; of a flush volume
    /// K is what was flushed (`Primary::flushed`).
    prefix: u64,
    /// Above the prefix, in order: finished or not.
    above: VecDeque<bool>,
}

impl Window {
    /// The next stamp, if the window has room.
    pub(crate) fn stamp(&mut self) -> Option<Sequence> {
        if self.above.len() as u64 >= WINDOW {
            return None;
        }
        self.above.push_back(false);
        Some(Sequence(self.prefix + self.above.len() as u64))
    }

    /// `sequence` is finished on every in-sync copy. Once per sequence.
    pub(crate) fn finished(&mut self, sequence: Sequence) {
        let at = sequence.0.checked_sub(self.prefix + 1).and_then(|at| usize::try_from(at).ok());
        let Some(slot) = at.and_then(|at| self.above.get_mut(at)) else {
            debug_assert!(false, "finished what was never given out: {sequence}");
            return;
        };
        debug_assert!(!*slot, "finished twice: {sequence}");
        *slot = true;
        while self.above.front() == Some(&true) {
            self.above.pop_front();
            self.prefix += 1;
        }
    }

    /// Is all finished that was given out?
    pub(crate) fn is_empty(&self) -> bool {
        self.above.is_empty()
    }

    /// The newest that was given out.
    pub(crate) fn last(&self) -> Sequence {
        Sequence(self.prefix + self.above.len() as u64)
    }

    /// The gapless prefix.
    pub(crate) fn prefix(&self) -> Sequence {
        Sequence(self.prefix)
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
        window.finished(Sequence(2));
        assert_eq!(window.prefix(), Sequence(0));
        window.finished(Sequence(1));
        assert_eq!(window.prefix(), Sequence(2));
        window.finished(Sequence(4));
        window.finished(Sequence(3));
        assert_eq!((window.prefix(), window.above.len()), (Sequence(4), 0));
    }

    #[test]
    fn the_window_is_bounded_and_opens_again() {
        let mut window = Window::default();
        for _ in 0..WINDOW {
            window.stamp().unwrap();
        }
        assert_eq!(window.stamp(), None);
        window.finished(Sequence(1));
        assert_eq!(window.stamp(), Some(Sequence(WINDOW + 1)));
    }
}
