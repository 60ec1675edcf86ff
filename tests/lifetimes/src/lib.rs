//! The lifetimes of a connection (`docs/lifetimes.md`) as one source of tests for every driver.
//!
//! ```text
//!   cases ── Order ──► Peer (a `tcp::Net`) on its driver: a process of the simulator, or a reactor on a thread of its own
//!         ◄── Told ───
//! ```
//!
//! A case speaks to two peers and knows neither clock nor driver: it waits for what must come. `tests/host.rs` runs all of them over the
//! simulator and over TCP on loopback, the program of this package over RDMA, in the guest test `7.2/rdma`.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, reason = "tests: what fails ends them, with where")]

mod cases;
mod peer;
mod reactors;
mod simulated;

pub use cases::{CASES, Case};
pub use peer::{Look, Order, Peer, Told};
pub use reactors::{Over, Reactors};
pub use simulated::Simulated;

use driver::Address;

/// One of the two.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Who {
    /// The connecting one.
    Client,
    /// The accepting one.
    Server,
}

/// Two peers on their drivers. Panics if something that is waited for does not come.
pub trait Ends {
    /// Where the server listens.
    fn address(&self) -> Address;
    /// Where nobody does.
    fn nowhere(&self) -> Address;
    /// Has a peer do something.
    fn tell(&mut self, who: Who, order: Order);
    /// The next that a peer tells.
    fn next(&mut self, who: Who) -> Told;
    /// Lets a moment pass.
    fn pause(&mut self);
    /// A peer's process is gone, at whatever it was.
    fn kill(&mut self, who: Who);
    /// Descriptors of this process, where the driver has any.
    fn descriptors(&self) -> Option<usize>;
    /// Stops both and sees that nothing is left.
    fn end(self: Box<Self>);
}

/// Runs each case on a pair of its own; `rounds` is how often connections come and go in those that have them do so.
pub fn run(
    cases: impl IntoIterator<Item = (&'static str, Case)>,
    rounds: usize,
    mut pair: impl FnMut() -> Box<dyn Ends>,
) {
    for (name, case) in cases {
        println!("{name}");
        let mut ends = pair();
        case(ends.as_mut(), rounds);
        ends.end();
    }
}
