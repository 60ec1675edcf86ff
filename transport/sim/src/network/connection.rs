//! One stream between two processes: two ends, and what each has on the wire towards the other.

use crate::kernel::ProcessId;
use driver::{Address, Errno, Op, Part, StreamId, Time};
use std::collections::VecDeque;

/// One end of one connection; the number is never used twice.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct EndId {
    pub(crate) connection: u64,
    pub(crate) side: usize,
}

impl EndId {
    pub(crate) fn other(self) -> Self {
        Self { side: 1 - self.side, ..self }
    }
}

pub(crate) struct Connection {
    pub(crate) ends: [End; 2],
    /// The address that it was made to.
    pub(crate) to: Address,
    /// Nothing passes any more, and nobody is told.
    pub(crate) silent: bool,
}

impl Connection {
    /// This end and the other one.
    pub(crate) fn pair(&mut self, side: usize) -> (&mut End, &mut End) {
        let [a, b] = &mut self.ends;
        if side == 0 { (a, b) } else { (b, a) }
    }
}

pub(crate) struct End {
    pub(crate) process: ProcessId,
    /// False once closed here, or its process died.
    pub(crate) alive: bool,
    /// The connect that is not answered yet.
    pub(crate) connecting: Option<Op>,
    /// The machine's name for it; none before the accept or connect is done.
    pub(crate) stream: Option<StreamId>,
    /// Shut down here.
    pub(crate) shut: bool,
    /// The peer's end of stream has arrived.
    pub(crate) ended: bool,
    /// Reset, or given up.
    pub(crate) failed: Option<Errno>,
    /// Arrived and not read.
    pub(crate) inbox: VecDeque<u8>,
    pub(crate) receives: VecDeque<Op>,
    /// When the last receive completed: the next one does not before.
    pub(crate) last_receive: Time,
    pub(crate) sending: Option<Sending>,
    /// Waits for the peer's end, whatever is unread before it.
    pub(crate) watch: Option<Op>,
    /// The sender waits for the peer to read.
    pub(crate) wants_room: bool,
    /// Towards the peer, in order.
    pub(crate) wire: VecDeque<(Time, Segment)>,
    pub(crate) wire_bytes: usize,
    /// When the last piece put on the wire arrives: the next one does not before.
    pub(crate) last_arrival: Time,
    /// Since when it waits for an acknowledgement in vain.
    pub(crate) doubt: Option<Time>,
}

impl End {
    pub(crate) fn new(process: ProcessId, connecting: Option<Op>) -> Self {
        Self {
            process,
            alive: true,
            connecting,
            stream: None,
            shut: false,
            ended: false,
            failed: None,
            inbox: VecDeque::new(),
            receives: VecDeque::new(),
            last_receive: Time(0),
            sending: None,
            watch: None,
            wants_room: false,
            wire: VecDeque::new(),
            wire_bytes: 0,
            last_arrival: Time(0),
            doubt: None,
        }
    }

    /// Nothing of it reaches the peer any more, but for what is on the wire.
    pub(crate) fn drop_operations(&mut self) {
        self.receives.clear();
        self.sending = None;
        self.watch = None;
        self.connecting = None;
    }
}

pub(crate) enum Segment {
    Data(Vec<u8>),
    /// End of stream.
    Fin,
}

impl Segment {
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Data(bytes) => bytes.len(),
            Self::Fin => 0,
        }
    }
}

/// A send under way.
pub(crate) struct Sending {
    pub(crate) op: Op,
    pub(crate) left: usize,
    /// The next part to read, and how much of it was read.
    part: usize,
    skip: usize,
}

impl Sending {
    pub(crate) fn new(op: Op) -> Self {
        let left = parts(&op).iter().map(|part| part.len).sum();
        Self { op, left, part: 0, skip: 0 }
    }

    /// The whole length.
    pub(crate) fn total(&self) -> usize {
        parts(&self.op).iter().map(|part| part.len).sum()
    }

    /// Reads the next `len` bytes from the operation's memory, as it is now.
    pub(crate) fn read(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(len);
        let parts = parts(&self.op);
        while bytes.len() < len {
            let part = &parts[self.part];
            let n = (part.len - self.skip).min(len - bytes.len());
            bytes.extend_from_slice(&part.mem[part.from + self.skip..part.from + self.skip + n]);
            self.skip += n;
            if self.skip == part.len {
                self.part += 1;
                self.skip = 0;
            }
        }
        self.left -= len;
        bytes
    }
}

fn parts(op: &Op) -> &[Part] {
    match op {
        Op::Send { parts, .. } => parts,
        _ => &[],
    }
}
