//! The buffer that the byte stream is received into, and what of it was not consumed yet.

use crate::limits::STREAM_BUFFER;
use memory::{Arena, Class, Filling};

/// Unconsumed bytes are `start..end`. While a receive is posted the memory is with it, and nothing is unconsumed to look at.
#[derive(Default)]
pub(crate) struct Stream {
    memory: Option<Filling>,
    start: usize,
    end: usize,
}

impl Stream {
    /// What was received and not consumed.
    pub(crate) fn bytes(&self) -> &[u8] {
        self.memory.as_deref().and_then(|memory| memory.get(self.start..self.end)).unwrap_or(&[])
    }

    /// The first `n` of them are done with.
    pub(crate) fn consume(&mut self, n: usize) {
        assert!(n <= self.end - self.start, "consumed more than was received");
        self.start += n;
    }

    /// Memory to receive into, and where; what is unconsumed moves to its front. `None`: the arena has none.
    pub(crate) fn lend(&mut self, arena: &Arena) -> Option<(Filling, usize)> {
        let mut memory = match self.memory.take() {
            Some(memory) => memory,
            None => arena.take(STREAM_BUFFER, Class::Client)?,
        };
        if self.start > 0 {
            memory.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
        debug_assert!(self.end < memory.len(), "the longest thing that is parsed in one piece fits");
        Some((memory, self.end))
    }

    /// The memory is back with `n` more bytes in it.
    pub(crate) fn give_back(&mut self, memory: Filling, n: usize) {
        self.end = (self.end + n).min(memory.len());
        self.memory = Some(memory);
    }

    /// Forgets everything.
    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }
}
