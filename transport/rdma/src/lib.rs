//! Streams over RDMA: a driver for the stream operations of [`driver::Op`], on librdmacm and verbs.
//!
//! ```text
//!   Op ──► Rdma ── Line ┬ Link (pure: rdma-link)   what is posted, who owns it, credits, windows
//!   Done ◄──            └ Pair (verbs)             queue pair, completion queue, windows, works in flight
//!            └ Channel, Device                     events; protection domain, arena registered once
//! ```
//!
//! What runs above a TCP stream runs above this one. **Memory**: every part and every `Recv` lies in the arena that this was made
//! with; it is registered once per device, without access for peers. **Keys**: a peer only ever gets the key of a type-2 memory
//! window: one part, one direction, one queue pair, from its message until the answer; a device without such windows is refused.
//! **Ends**: a connection that ends puts its queue pair in error, waits until every work is back (at most [`rdma_link::DRAIN`], then
//! destroying it says the same), destroys it, and only then gives back what was open to the peer.
//!
//! Never blocks, reads no clock. A process on a host without the libraries links and runs; [`Rdma::new`] says what is missing.
#![deny(clippy::undocumented_unsafe_blocks)]

mod destroyer;
mod error;
mod line;
mod rdma;
mod stranger;
mod verbs;

pub use error::RdmaError;
pub use rdma::{Counters, Rdma};
