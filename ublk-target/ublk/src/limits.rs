//! Every limit of a device, with its reason.
//!
//! Memory of one queue: `depth` × `io_buf_bytes` for the kernel's copies (touched only as far as requests are large), about
//! 100 B per tag here, and a completion queue of 16 B × ([`RING`]'s sum + 2 × depth).

use driver::Span;
use reactor::Limits;

/// Queues of one device: one thread each, and no machine gains from more.
pub const MAX_QUEUES: u16 = 64;
/// Requests in flight per queue: more only wait elsewhere. The kernel's own limit is 4096.
pub const MAX_DEPTH: u16 = 1024;
/// Longest READ or WRITE: one buffer of the arena.
pub const MAX_IO_BYTES: u32 = 1 << 20;

/// Longest DISCARD and WRITE_ZEROES, in sectors (64 MiB): short enough to end well within the I/O timeout of a slow node, long
/// enough that 1 TiB is 16384 requests.
pub(crate) const MAX_ZERO_SECTORS: u32 = 64 << 20 >> 9;

/// Streams of one queue: those of the volume client's links, and as many that are being closed beside the ones that take their place.
const STREAMS: u16 = 512;
const _: () = assert!(STREAMS as usize >= 2 * volume_client::limits::MAX_LINKS);
/// Connects that are under way.
const OPENING: u32 = 64;
/// Our operations on a queue's ring: a receive and a send per stream. The completion queue holds their sum and two completions
/// per tag.
pub(crate) const RING: Limits =
    Limits { ops: STREAMS as u32 * 2 + OPENING, streams: STREAMS, submissions: 256, connect: Span::seconds(12) };

/// Mail that waits for a queue.
pub(crate) const MAIL: usize = 64;

/// A request for which there was no memory or no place is tried again after this, or with the next completion.
pub(crate) const HELD_WAIT: Span = Span::millis(1);
/// A queue that was told to leave waits this long for what is in flight; what is left then is asked again by the kernel.
pub(crate) const LEAVE_WAIT: Span = Span::seconds(5);
/// And then this long for goodbyes to nodes.
pub(crate) const GOODBYE_WAIT: Span = Span::seconds(2);

/// Between two looks whether the kernel has noticed that a daemon is gone: libublk's own 100 ms would be the longest part of
/// a recovery.
pub(crate) const RECOVER_POLL: std::time::Duration = std::time::Duration::from_millis(5);
/// A daemon that ended is noticed after milliseconds; before 6.13, if all its requests were in flight, by a timer of 30 s that begins
/// anew with each of them.
pub(crate) const RECOVER_WAIT: std::time::Duration = std::time::Duration::from_secs(40);

/// A device that is open is looked at again for so long before it counts as used: udev opens it for some milliseconds whenever somebody
/// who wrote to it closes it.
pub(crate) const IN_USE_WAIT: std::time::Duration = std::time::Duration::from_secs(1);
/// Between two looks.
pub(crate) const IN_USE_POLL: std::time::Duration = std::time::Duration::from_millis(50);
/// Opening a device, and writing out what the kernel has of it, is given so long: whoever has it locked longer uses it.
pub(crate) const IN_USE_ASK: std::time::Duration = std::time::Duration::from_secs(3);
/// Looking into the mappings of all processes takes a tenth of this where there are thousands.
pub(crate) const IN_USE_LOOK: std::time::Duration = std::time::Duration::from_secs(2);
/// The number of a device that was removed is waited for so long: the kernel frees it within milliseconds, or when who has the device open
/// closes it.
pub(crate) const GONE_WAIT: std::time::Duration = std::time::Duration::from_secs(1);
/// Between two looks.
pub(crate) const GONE_POLL: std::time::Duration = std::time::Duration::from_millis(1);
