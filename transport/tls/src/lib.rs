//! TLS 1.3 for a cluster's TCP: who trusts whom (`trust`), and the layer between a driver's streams and what is said on them (`layer`).
//!
//! ```text
//!   cluster key ──► Authority ──► Identity    a certificate of this life of a daemon, for what listens
//!                       └───────► Trust       the authority's public key: what whoever connects has to know
//!
//!   machine ── Op: Recv, Send, … in clear ──► Layer ── Op: Recv, Send, … sealed ──► driver
//!           ◄── Done ────────────────────────       ◄── Done ──────────────────────
//! ```
//!
//! Clients that know nothing of a cluster (NBD's) are shown a certificate of somebody else's making (`pem`).
//!
//! TLS keeps what is said to the two that say it, and says who listens; who connects is proven as it is without TLS (`wire`'s handshake,
//! a proof in each request to the conductor). Nothing here reads a clock, calls the system (but for random numbers) or writes a log.
#![forbid(unsafe_code)]

mod layer;
mod line;
mod pem;
mod trust;

pub use layer::{Counters, Layer, LayerOptions, Report};
pub use line::Failure;
pub use pem::PemFiles;
pub use rustls;
pub use trust::{Authority, Identity, Role, TlsError, Trust};
