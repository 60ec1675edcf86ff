//! What is to be sent, in order: small bytes (headers, option replies), which are copied, and data of reads, which is not.

use crate::limits::{HEADERS_PER_SEND, PIECE};
use memory::{Arena, Class, Part};
use smallvec::SmallVec;
use std::collections::VecDeque;

/// The parts of a send.
pub type Parts = SmallVec<[Part; 1]>;
/// The data of a read.
pub type Data = SmallVec<[Part; 2]>;

enum Entry {
    /// So many bytes from the front of `small`. Never two in a row.
    Small(usize),
    /// And how many bytes count no more when it is sent.
    Data(Part, u64),
}

/// The queue. Its storage is reused.
#[derive(Default)]
pub(crate) struct Output {
    small: VecDeque<u8>,
    entries: VecDeque<Entry>,
}

impl Output {
    pub(crate) fn small(&mut self, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        self.small.extend(bytes);
        match self.entries.back_mut() {
            Some(Entry::Small(len)) => *len += bytes.len(),
            _ => self.entries.push_back(Entry::Small(bytes.len())),
        }
    }

    /// The data of a read, without a copy. So much counts until all of it is sent.
    pub(crate) fn data(&mut self, mut parts: Data, charged: u64) {
        parts.retain(|part| part.len > 0);
        let last = parts.len().saturating_sub(1);
        for (n, part) in parts.into_iter().enumerate() {
            self.entries.push_back(Entry::Data(part, if n == last { charged } else { 0 }));
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Small bytes that wait.
    pub(crate) fn small_len(&self) -> usize {
        self.small.len()
    }

    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }

    /// The next `max_parts` parts at most, up to [`PIECE`] of data, and how many bytes count no more when they are sent. `None`: nothing to
    /// send, or no memory for the headers (then nothing has changed).
    pub(crate) fn take(&mut self, arena: &Arena, max_parts: usize) -> Option<(Parts, u64)> {
        let (mut count, mut small, mut long) = (0, 0, 0);
        for entry in self.entries.iter().take(max_parts) {
            match entry {
                Entry::Small(len) => small += len,
                // Who takes a send is seen to be there: so it is no more than a slow one takes in a while.
                Entry::Data(part, _) if long > 0 && long + part.len as u64 > PIECE => break,
                Entry::Data(part, _) => long += part.len as u64,
            }
            count += 1;
        }
        let small = small.min(HEADERS_PER_SEND);
        let headers = if small == 0 {
            None
        } else {
            let mut memory = arena.take(small, Class::Client)?;
            for (to, from) in memory.iter_mut().zip(self.small.drain(..small)) {
                *to = from;
            }
            Some(memory.filled())
        };
        let (mut parts, mut copied, mut over) = (Parts::new(), 0, 0);
        while parts.len() < count {
            match self.entries.pop_front() {
                None => break,
                Some(Entry::Data(part, charged)) => {
                    over += charged;
                    parts.push(part);
                }
                Some(Entry::Small(len)) => {
                    let now = len.min(small - copied);
                    if now < len {
                        self.entries.push_front(Entry::Small(len - now));
                    }
                    if let (Some(headers), 1..) = (&headers, now) {
                        parts.push(Part { mem: headers.share(), from: copied, len: now });
                        copied += now;
                    }
                    if now < len {
                        break;
                    }
                }
            }
        }
        (!parts.is_empty()).then_some((parts, over))
    }
}
