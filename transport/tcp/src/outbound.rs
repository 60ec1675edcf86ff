//! From messages to one send: heads packed side by side in one buffer, payloads as their own parts, nothing copied.
//!
//! ```text
//!   queue   [head][head payload][head][head payload]
//!   parts   scratch 0..2 | payload | scratch 2..4 | payload
//! ```

use driver::{Conn, Messages, Part, Parts, why};
use memory::Filling;
use refcount::Hold;
use std::collections::VecDeque;
use wire::{Body, Credits, HEADER_LEN, Header};

use crate::Payload;
use crate::budget::Charge;
use crate::inbound::Take;
use crate::limits::{SCRATCH, SEND_BYTES, SEND_PARTS};

/// Receive slots of an established connection: its requests, its replies, and two out-of-band messages.
pub const fn rx_slots(depth: u16) -> usize {
    2 * depth as usize + 2
}

/// A message on its way: the connection is held from here until the send that carries it is over.
pub(crate) struct Message {
    pub(crate) hold: Hold<Conn, why::Tx>,
    pub(crate) header: Header,
    pub(crate) body: Body,
    pub(crate) payload: Option<Payload>,
    /// What the payload counts for.
    pub(crate) charge: Option<Charge>,
}

/// What a send takes with it.
pub(crate) type Batch = (Messages, Parts);

/// The sending half of a stream.
#[derive(Default)]
pub(crate) struct Outbound {
    pub(crate) queue: VecDeque<Message>,
    /// For heads; away while a send reads it, then used again.
    scratch: Option<Filling>,
    /// The lists of a send, empty, to be used again.
    spare: Batch,
    /// What the payloads of the send that is out count for.
    charges: Vec<Charge>,
}

impl Outbound {
    /// All that is ready and fits into one send. `None`: nothing to send, or no memory for the heads (the queue says which).
    pub(crate) fn pack(&mut self, credits: &mut Credits, take: Take<'_>) -> Option<Batch> {
        if self.queue.is_empty() {
            return None;
        }
        let mut scratch = self.scratch.take().or_else(|| take(SCRATCH))?;
        // First all heads, while the scratch can be written; then the messages go.
        let (mut at, mut bytes, mut messages, mut pieces) = (0, 0, 0, 0);
        for message in &mut self.queue {
            let more = message.payload.as_ref().map_or(0, |payload| payload.len);
            let room = at + HEADER_LEN + message.body.len() <= SCRATCH && pieces + 2 < SEND_PARTS;
            if !room || (bytes > 0 && bytes + more > SEND_BYTES) {
                break;
            }
            message.header.credits = credits.give();
            at += message.header.put(&message.body, &mut scratch[at..]);
            bytes += more;
            pieces += if more > 0 { 2 } else { 0 };
            messages += 1;
        }
        let scratch = scratch.filled();
        let (mut on, mut parts) = (std::mem::take(&mut self.spare.0), std::mem::take(&mut self.spare.1));
        let (mut from, mut to) = (0, 0);
        for message in self.queue.drain(..messages) {
            on.push(message.hold);
            self.charges.extend(message.charge);
            to += HEADER_LEN + message.body.len();
            if let Some(payload) = message.payload {
                parts.push(Part { mem: scratch.share(), from, len: to - from });
                parts.push(Part { from: 0, len: payload.len, mem: released_early(payload.mem) });
                from = to;
            }
        }
        if from < to {
            parts.push(Part { mem: scratch, from, len: to - from });
        }
        Some((on, parts))
    }

    /// A send is over: its payloads are let go, its scratch and its lists are kept for the next.
    pub(crate) fn sent(&mut self, (on, mut parts): Batch) {
        debug_assert!(on.is_empty(), "the holds are given back first");
        self.charges.clear();
        let first = parts.drain(..).next();
        self.scratch = first.and_then(|part| part.mem.try_filling().ok());
        self.spare = (on, parts);
    }

    /// Lets go of what is not yet sent; says how many messages that was.
    pub(crate) fn clear(&mut self) -> u64 {
        let flushed = self.queue.len() as u64;
        *self = Self::default();
        flushed
    }
}

/// Mutant: the send's hold on the payload is given back when the send is submitted. If it was the last, the memory's next
/// owner writes to it before the driver has read it.
fn released_early(mem: memory::Reads) -> memory::Reads {
    if !driver::mutant::on("bd_released_at_send") {
        return mem;
    }
    match mem.try_filling() {
        Ok(mut reused) => {
            reused.fill(0xdb);
            reused.filled()
        }
        Err(held) => held,
    }
}
