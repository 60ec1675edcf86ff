//! A byte stream over a queue pair: what is posted, who owns which memory until which completion, and when the peer may touch it.
//!
//! ```text
//!                 Op: Recv, Send                        Work: Receive, Data, Say, Take, Give, Open, Shut
//!   driver's user ───────────────► Link ───────────────────────────────────────► queue pair
//!                 ◄───────────────      ◄───────────────────────────────────────
//!                 Done                                  Finished
//! ```
//!
//! The operations are those of every driver, so what runs above a TCP stream runs above this one and raises the same events. Bytes
//! of small parts travel in messages into receives that the peer posted ahead; a part above [`LARGE`] is moved by the **accepting**
//! side straight between registered buffers: READ for what the connecting side sends, WRITE for what it receives.
//!
//! ```text
//!   connecting                                accepting
//!   Send part ── Open window, Lend ─────────► Recv in place ── Take (READ)      a client's write
//!     Shut ◄──────────────────────── Taken ──
//!   Recv in place ◄───────────────── Offer ── Send part                         a client's read
//!     Open window ── Grant ─────────────────► Give (WRITE), Given behind it
//!     Shut ◄──────────────────────── Given ──
//! ```
//!
//! Promises: every operation and every `Work` comes back exactly once; all receives are posted before the connection is up; a legal
//! peer never finds none posted; the accepting side opens no memory to anybody; the connecting side opens exactly the bytes of one
//! part, for one direction, and has them back only when their window is shut or the queue pair is destroyed.
//!
//! Never: calls the system, reads a clock, posts what the queue pair has no room for by its own sum, trusts a length of the peer's.
#![forbid(unsafe_code)]

pub mod cm;
mod credits;
mod limits;
mod link;
mod message;
mod receiving;
mod sending;
mod windows;
mod work;

pub use limits::{CONNECT, DRAIN, LARGE, LOOK, LOOKS, PIECES, ROUTE, RX, SLOT, WINDOWS};
pub use link::{End, Link, Out};
pub use message::{Introduction, SAYING};
pub use work::{Failed, Finished, Lent, Received, Work};
