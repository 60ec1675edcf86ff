//! The frame: header, checksums, credits, handshake. Pure.
//!
//! ```text
//!   | header, 32 bytes | body, op-specific, ≤ 128 bytes | payload, ≤ 1 MiB |
//!     header CRC covers header and body;  payload CRC covers the CRCs of the payload's 4 KiB pieces
//! ```
//!
//! Promises: whatever bytes come in, an answer or an error goes out, never a panic; nothing that fails a check is handed on;
//! the checks cannot be switched off. Never reads a clock, a random source, or a data message's body beyond its session prefix.
#![forbid(unsafe_code)]

mod bytes;
mod card;
mod crcs;
mod credits;
mod handshake;
mod header;
mod identity;
pub mod prefix;
mod reason;
mod request;
mod secrets;
mod state;
mod tag;
mod ticket;

pub use card::{Card, ClientKey, KEY_MARK, Key, MAX_CARD, MAX_KEY_NAME, MAX_KEY_VOLUMES, is_key_name, key_of};
pub use crcs::{Copying, Crcs, PIECE, copy_pieces, pieces, tree};
pub use credits::{CreditError, Credits};
pub use handshake::{
    Challenge, HandshakeError, Hello, HelloAck, MAC_LEN, Mac, NONCE_LEN, Nonce, Proof, Reject, Transcript,
};
pub use header::{
    Body, FLAG_REPLY, Flags, HEADER_LEN, Header, HeaderError, MAGIC, MAX_BODY, MAX_HANDSHAKE_BODY, Op, VERSION,
};
pub use identity::{
    HelloInfo, Limits, MAX_DEPTH, MAX_NAME, MAX_OPENS, MAX_PAYLOAD, READ_ONLY, Role, SHARED, SessionId,
};
pub use prefix::PREFIX_LEN;
pub use reason::Reason;
pub use request::{MAX_AUTHORIZATION, Over, RequestChallenge, RequestProof};
pub use secrets::{ClusterKey, Secret, Secrets, over_tls};
pub use state::{Happening, State};
pub use tag::ProtectionKey;
pub use ticket::{Attached, Ticket};
