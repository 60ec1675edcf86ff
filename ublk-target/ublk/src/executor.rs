//! What executes the block requests of one queue.

use driver::{Machine, Outbox, Time};
use memory::{Arena, Filling};
use reactor::ReactorError;
use tls::Layer;
use volume_client::{BlockRequest, Completion};

/// Which queue of a device.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct QueueId(pub u16);

impl std::fmt::Display for QueueId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// A machine that also takes block requests. In a turn it sees the ring's completions of its operations first, then new
/// requests, then completions that came without the ring (RDMA, TLS), then mail, then `end_turn`; what is over then is taken by
/// `next_completion`.
pub trait Executor: Machine {
    /// Called once, before it starts: one whose streams may go over RDMA opens it for its arena. An error is the end of the queue.
    fn open_rdma(&mut self, open: &mut dyn FnMut(&Arena) -> Result<(), ReactorError>) -> Result<(), ReactorError> {
        let _unused = open;
        Ok(())
    }
    /// Called once, likewise: one whose streams are TLS gives what makes them so.
    fn take_tls(&mut self) -> Option<Layer> {
        None
    }
    /// Memory for the payload of a write; `None` is back-pressure.
    fn memory(&self, len: usize) -> Option<Filling>;
    /// Takes a request, or gives it back to be submitted again in a later turn.
    fn submit(&mut self, now: Time, request: BlockRequest) -> Result<(), BlockRequest>;
    /// The next request that is over: each that was taken, once.
    fn next_completion(&mut self) -> Option<Completion>;
    /// Requests that were taken and have not been handed back.
    fn in_flight(&self) -> usize;
    /// Finish what is in flight; no more will come. `finished` then.
    fn stop(&mut self);
    /// Fail what is in flight, and stop.
    fn abort(&mut self, now: Time, out: &mut dyn Outbox<Self::Letter>);
}
