//! Aligned memory behind buffer descriptors: one mapping per reactor, cut into buffers that know who holds them.
//!
//! ```text
//!   Arena::take ──▶ Filling ──filled──▶ Reads ──share──▶ Reads, Reads …
//!     ▲              one writer           ▲ │               no writer
//!     │                 ▲                 │ └─try_filling (the last reader only)
//!     └──── the pages, at the drop of the last one
//! ```
//!
//! - **One writer or many readers**: a `Filling` is the only way to the bytes while it lives, and becomes `Reads` for ever.
//! - **Urgent work never waits for memory held by less urgent work** (replication rule 21): each [`Class`] has pages of its own,
//!   which no other can use or cut up, and shares the rest. Within a class, who waits for a large piece may have that region
//!   kept for it ([`Arena::reserve`]): whoever wants small ones would take each of its parts as it comes back.
//! - **Memory moves between volumes, and its content with it**: whoever takes a buffer overwrites every byte that it exposes,
//!   or takes it with [`Arena::take_zeroed`].
//! - **Nobody forgets a buffer unseen**: [`Arena::leaks`] names what is held, and why.
//! - After warming up, taking and giving back allocate nothing and enter no kernel. Nothing here blocks or crosses threads.
#![deny(clippy::undocumented_unsafe_blocks)]

mod arena;
mod buddy;
mod buffer;
mod fault;
mod file;
mod huge;
mod mapping;
mod named;
mod numa;
mod reservation;

pub use arena::{Arena, ArenaError, ArenaOptions, Backing, Class, Shares, set_aside};
pub use buffer::{Filling, Part, Reads, why};
pub use file::MappedFile;
pub use huge::{HugePages, TooFewHugePages};
pub use named::{NamedError, NamedFiles};
pub use numa::{MemoryNodes, OnNode, Placement, resident};
pub use reservation::Reservation;

/// The unit and the alignment of all buffers: a page, and a block of the store (O_DIRECT wants both).
pub const PAGE: usize = 4096;

/// The largest buffer: the largest payload (1 MiB), and 64 KiB for headers, checksums and journal records around it.
pub const MAX_LEN: usize = (1 << 20) + (64 << 10);
