//! Every limit of a session, and what they add up to.
//!
//! The memory of one session: [`STREAM_BUFFER`] + `Limits::bytes` (payloads of writes until they are finished, data of reads until
//! it is sent, all in whole pages) + [`MAX_SMALL_OUTPUT`] and one reply per command (at most [`MAX_EXTENTS`] extents: 8 KiB).

use conductor_model::Bytes;

/// Boundaries that no piece of a read or write crosses: the largest payload of a node's message, and a divisor of every shard.
pub const PIECE: u64 = 1 << 20;
/// Largest payload of one command that is accepted, and advertised: what all clients assume when nothing is said.
pub const MAX_PAYLOAD: u32 = 32 << 20;
/// Where the stream is received: a dozen writes of 4 KiB in one system call.
pub const STREAM_BUFFER: usize = 64 << 10;
/// Rest of a payload from which it is received in place: a copy of less costs less than a system call.
pub(crate) const IN_PLACE: usize = 16 << 10;
/// Data of an option. Must fit the stream buffer beside its header; the longest useful one is two strings.
pub const MAX_OPTION: u32 = 32 << 10;
/// Options of one negotiation. Clients send less than ten.
pub const MAX_OPTIONS: u32 = 128;
/// Longest string of the protocol (its own limit).
pub const MAX_STRING: usize = 4096;
/// Extents in one answer to a block status: 8 KiB. A client asks again for what follows.
pub const MAX_EXTENTS: usize = 1024;
/// Data of a read that is held back until all of it is there, where the reply cannot be in pieces: so errors find their way into
/// the reply. It is what the kernel's client, which knows no structured replies, sends at most unless told otherwise. A larger one waits until
/// nothing else is in flight, goes out as its data comes, and an error in its midst ends the session: gathering it could need more memory
/// than there is.
pub(crate) const MAX_GATHERED: u64 = 4 << 20;
/// Bytes of queued headers and option replies above which no further command is read: about 3000 headers.
pub const MAX_SMALL_OUTPUT: usize = 64 << 10;
/// Small bytes of one send; they are copied into one buffer of the arena.
pub(crate) const HEADERS_PER_SEND: usize = 16 << 10;

/// What one session may have in flight.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Commands that were received and not answered.
    pub commands: usize,
    /// Payloads of writes not finished, and data of reads not sent, each with the whole pages that it is in. At least [`MIN_BYTES`].
    pub bytes: Bytes,
}

/// The smallest [`Limits::bytes`]: a piece, and the rest of the pages at both ends of a command.
pub const MIN_BYTES: u64 = PIECE + EDGES;
/// What the pages of a range are longer than the range, at most.
pub(crate) const EDGES: u64 = 2 * memory::PAGE as u64;

impl Default for Limits {
    /// The deepest queue that clients use (the kernel's is 128), and as many bytes as the largest command has.
    fn default() -> Self {
        Self { commands: 128, bytes: Bytes(MAX_PAYLOAD as u64) }
    }
}

const _: () = assert!(MAX_OPTION as usize + crate::wire::OPTION_HEADER <= STREAM_BUFFER);
const _: () = assert!(PIECE <= memory::MAX_LEN as u64);
