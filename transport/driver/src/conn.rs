//! What a connection is to the count: a name that is not given to another one while anybody holds it.
//!
//! The connection's state lives in its provider's slab under the same `ConnId`; the slot is freed when the reaper hands the
//! `Conn` back, that is, after the last hold went.

use std::cell::{Cell, OnceCell};
use std::fmt;
use std::rc::Rc;

/// A connection's name: a slot and how often it was used before. A stale one matches nothing.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnId {
    /// Index in the provider's slab.
    pub slot: u32,
    /// Which use of that slot.
    pub generation: u32,
}

/// Which part of a machine a connection belongs to: decides where its completions go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Provider {
    /// Trine's own frames (`tcp::Net`).
    Framed,
    /// A client of the NBD server.
    Nbd,
}

/// What the two ends of one TLS session know, and nobody in the middle of two (RFC 9266: `tls-exporter`). Proofs that are made with it say
/// nothing on any other stream.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Binding(pub [u8; 32]);

/// Whether a peer has proven who it is. It outlives its connection, and holds nothing of that.
#[derive(Clone, Debug, Default)]
pub struct Proven(Rc<Cell<bool>>);

impl Proven {
    /// Whether it has by now.
    pub fn is(&self) -> bool {
        self.0.get()
    }
}

/// The counted part of a connection.
#[derive(Debug)]
pub struct Conn {
    /// Its name.
    pub id: ConnId,
    /// Whose it is.
    pub provider: Provider,
    binding: OnceCell<Binding>,
    proven: Proven,
}

impl Conn {
    /// One whose stream is not there yet.
    pub fn new(id: ConnId, provider: Provider) -> Self {
        Self { id, provider, binding: OnceCell::new(), proven: Proven::default() }
    }

    /// For the driver: the stream is TLS, and its handshake is over. Nothing that was received over TLS reaches the machine before this. A
    /// connection has one stream; a second word changes nothing.
    pub fn bind(&self, binding: Binding) {
        let _ = self.binding.set(binding);
    }

    /// What is bound to its stream; none if that is in clear.
    pub fn binding(&self) -> Option<Binding> {
        self.binding.get().copied()
    }

    /// For the machine: the peer has proven who it is. Until then a driver that has no room for others may end the stream.
    pub fn prove(&self) {
        self.proven.0.set(true);
    }

    /// For the driver: to be looked at for as long as the stream is there, whoever holds the connection meanwhile.
    pub fn proven(&self) -> Proven {
        self.proven.clone()
    }
}

refcount::reasons! {
    /// Why a connection is held.
    pub mod why for super::Conn as "conn" labelled (|conn| (u64::from(conn.id.slot), u64::from(conn.id.generation))) {
        /// By its provider's slab, from birth to removal.
        Owner "owner",
        /// By each posted receive slot (2·depth + 2 at rest).
        Rx "rx",
        /// By each posted send: queued → completed, flushed or failed.
        Tx "tx",
        /// By the watch for the peer's end: posted → over.
        Watch "watch",
        /// By each IOCB that will answer on it.
        Answers "answers",
    }
}

impl fmt::Debug for Binding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Binding")
    }
}

impl fmt::Display for ConnId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}#{}", self.slot, self.generation)
    }
}
impl fmt::Debug for ConnId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
