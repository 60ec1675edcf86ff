//! Every limit of a link, and why it has that value.
//!
//! Memory per connection: `RX · SLOT` = 528 KiB of registered memory for as long as it lives. That is what posting ahead costs
//! without a shared receive queue; TCP's kernel buffers cost about as much.

use driver::Span;

/// Messages in flight per direction that a link is made for: at 4 KiB each, 128 KiB, which is more than one round trip on any
/// network that RDMA is used on.
const DEPTH: u16 = 32;
/// Receives posted: messages of both kinds, and two that nobody plans for.
pub const RX: u16 = 2 * DEPTH + 2;
/// Bytes of one receive: a 4 KiB block with the heads around it, rounded up to what the arena gives out.
pub const SLOT: usize = 8 << 10;
/// A part above this is moved by READ or WRITE; up to it the receiver would copy it anyway.
pub const LARGE: usize = 16 << 10;
/// Pieces of memory gathered into one message.
pub const PIECES: usize = 8;
/// Windows of a connection: parts that can be open to the peer at a time. One is for the receive, the others for the large parts of one
/// send; more wait.
pub const WINDOWS: u8 = 8;
/// Parts that the peer has offered and that were not received: of one send, which has no more than half as many.
pub(crate) const OFFERS: usize = 256;
/// Works that are not back, receives and all. Of a legal peer there are fewer: those in its queue, and a message, each perhaps with a window
/// or a WRITE, for every receive that it can have posted.
pub(crate) const POSTED: usize = 16 * RX as usize;
/// What the kernel waits for a neighbour's answer at a time. The answer wakes it, but not where that was there before the kernel began to wait, as it is
/// on a link without any delay: then only the end of this has it look again.
pub const LOOK: Span = Span::millis(250);
/// So often it is asked before a peer counts as unreachable: for five seconds.
pub const LOOKS: u8 = 20;
/// From a device to a route.
pub const ROUTE: Span = Span::seconds(5);
/// From the start to a connection.
pub const CONNECT: Span = Span::seconds(12);
/// A queue pair in error that has not given back everything by then is destroyed as it is, which ends the device's work as surely.
pub const DRAIN: Span = Span::seconds(3);

/// Credits that only control messages may use, besides as many as the peer may owe, and the last one, which only a message that returns
/// credits may.
pub(crate) const FOR_CONTROL: u16 = 2;
pub(crate) const FOR_CREDITS: u16 = 1;

const _: () = assert!(RX >= 8, "a quarter of the receives returned at a time must be at least two");
