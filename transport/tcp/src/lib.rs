//! Framed connections over byte streams: one receive drains many messages, one send carries all that is ready.
//!
//! ```text
//!                  Done                                  NetEvent
//!   driver ───────────────────────► Net ───────────────────────────► machine (node core, volume client)
//!          ◄───────────────────────     ◄───────────────────────────
//!            Op: Recv, Send, …            connect, request, reply, close
//! ```
//!
//! Promises: every `request` that was taken has exactly one reply event; every announced connection exactly one `Down`, after
//! them; what was submitted comes back exactly once before a connection's slot is used again; bytes that fail a check are
//! never delivered; no remote input panics, and a peer that has not proven itself costs at most 12 KiB, 20 KiB over TLS, and a deadline.
//!
//! Never: calls the system, reads a clock, has two sends or two receives outstanding on one stream, delivers a data request
//! without a valid session tag, reads its body beyond the session prefix.
#![forbid(unsafe_code)]

mod budget;
mod closing;
mod connection;
mod counters;
mod event;
mod handshake;
mod inbound;
mod limits;
mod listener;
mod messages;
mod net;
mod outbound;
mod slots;
mod turn;
mod ways;

pub use counters::{ConnStatus, Counters};
pub use event::{Admission, Answer, Lost, NetEvent, Payload, Refused};
pub use handshake::refusal;
pub use limits::{
    ACCEPT_BURST, ACCEPT_EVERY, ACCEPT_EVERY_TLS, ADMISSION_DEADLINE, CLIENT_PING, CLIENT_SILENT, CLOSING_LONG,
    CONNECT_DEADLINE, COPY_LIMIT, DRAIN_DEADLINE, FRAME_STUCK, HANDSHAKE_DEADLINE, MAX_HANDSHAKES, PEER_SILENT,
    PING_IDLE, SEND_STUCK, client_bytes,
};
pub use net::{Needs, Net, NetOptions};
pub use outbound::rx_slots;
pub use ways::{Attempt, BRIEF, Detour, PROBE_FIRST, PROBE_MAX, Transport, WayView, Ways};
