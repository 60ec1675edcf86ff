//! What a link asks of its queue pair. Each owns what it touches and comes back exactly once.

use memory::{Filling, Part};
use smallvec::SmallVec;

use crate::message::SAYING;

/// A work request.
#[derive(Debug)]
pub enum Work {
    /// Receive one message.
    Receive {
        /// Where to.
        into: Filling,
    },
    /// Send one message: bytes of the stream, gathered.
    Data {
        /// What goes with it.
        immediate: u32,
        /// The bytes, at most [`crate::SLOT`] in [`crate::PIECES`] pieces.
        parts: SmallVec<[Part; 4]>,
    },
    /// Send one message, of which the device takes a copy when it is posted.
    Say {
        /// What goes with it.
        immediate: u32,
        /// Its bytes.
        bytes: [u8; SAYING],
        /// How many of them.
        len: usize,
    },
    /// Read the peer's memory.
    Take {
        /// Where to.
        into: Filling,
        /// First byte to fill.
        from: usize,
        /// Bytes.
        len: usize,
        /// The peer's address.
        at: u64,
        /// The peer's key.
        key: u32,
    },
    /// Write to the peer's memory.
    Give {
        /// What.
        part: Part,
        /// The peer's address.
        at: u64,
        /// The peer's key.
        key: u32,
    },
    /// Open a window for the peer. Over when the window is **shut**, or the queue pair destroyed: so long the peer may use it.
    Open {
        /// Which window.
        window: u8,
        /// The key that it will have.
        key: u32,
        /// What is seen through it.
        lent: Lent,
    },
    /// Shut a window; what its `Open` owned comes back behind this.
    Shut {
        /// Which window.
        window: u8,
        /// Its key.
        key: u32,
    },
}

/// Memory that is open to the peer.
#[derive(Debug)]
pub enum Lent {
    /// It may read this.
    Out(Part),
    /// It may write `into[from..from + len]`.
    In {
        /// The memory.
        into: Filling,
        /// First byte.
        from: usize,
        /// Bytes.
        len: usize,
    },
}

impl Lent {
    /// The bytes that are open: address and length.
    pub fn range(&self) -> (u64, usize) {
        let bytes = match self {
            Self::Out(part) => part.bytes(),
            Self::In { into, from, len } => &into[*from..*from + *len],
        };
        (bytes.as_ptr().addr() as u64, bytes.len())
    }
}

/// A message that arrived.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Received {
    /// Bytes.
    pub len: usize,
    /// What came with it.
    pub immediate: u32,
}

/// Why a work request came to nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Failed {
    /// The queue pair is in error, or gone.
    Flushed,
    /// It could not be posted, or is what put the queue pair in error: the device's status.
    Error(i32),
}

/// A work request that is over: what it owned is back.
#[derive(Debug)]
pub struct Finished {
    /// The request.
    pub work: Work,
    /// What came of it. The message is a `Receive`'s.
    pub result: Result<Received, Failed>,
}
