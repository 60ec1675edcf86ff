//! One client of the NBD server: a state machine between a byte stream and a volume. No sockets, no clock, no disk.
//!
//! ```text
//!  received ─▶ stream ─▶ negotiation ─▶ commands ──poll──▶ Event::Request ─▶ volume
//!  next_recv ◀──┘            │              │                                  │
//!  take_output ◀── output ◀──┴──────────────┴───────────── finish ◀────────────┘
//! ```
//!
//! Its user posts the receive that [`Session::next_recv`] asks for, hands it back to [`Session::received`], takes events from
//! [`Session::poll`] until there are none, finishes every request once, and sends what [`Session::take_output`] gives, one send at
//! a time. Promises:
//!
//! - **Bounded**: [`Limits`] bound commands and bytes in flight, and memory is taken before a payload is read. Nothing the client
//!   sends grows anything else; when a limit or the arena is reached, it stops reading and goes on later.
//! - **A request is small**: reads and writes come in pieces that cross no multiple of [`PIECE`], and the replies are put
//!   together here. A large write needs no memory for all of it at once, so that clients cannot starve each other for ever.
//! - **One copy at most**: payloads are copied out of the stream buffer or received in place; read data is never copied.
//! - **Nothing said in clear counts over TLS**: options are negotiated anew, and whoever goes on in clear is not heard any more.
//! - Remote input never panics. After the end (`Event::Closed`) no reply is queued, but every request is still finished.
//!
//! Rules and numbers: `doc/proto.md` of the NBD project, as of the extended-headers extension, which is politely refused.
#![forbid(unsafe_code)]

mod command;
mod export;
mod fault;
mod limits;
mod negotiation;
mod output;
mod reply;
mod session;
mod stream;
mod wire;

pub use command::{Request, Ticket, What};
pub use export::{Export, ExportError};
pub use fault::{Closed, Fault};
pub use limits::{
    Limits, MAX_EXTENTS, MAX_OPTION, MAX_OPTIONS, MAX_PAYLOAD, MAX_SMALL_OUTPUT, MAX_STRING, MIN_BYTES, PIECE,
    STREAM_BUFFER,
};
pub use negotiation::Tls;
pub use output::{Data, Parts};
pub use reply::{Extent, Outcome};
pub use session::{Event, Recv, Session};
