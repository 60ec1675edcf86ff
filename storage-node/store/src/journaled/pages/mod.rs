//! Paged arrays: records of a fixed length in copy-on-write pages, more of them than memory holds.
//!
//! ```text
//!                    root ──► page of pointers ──► … ──► leaves of records         one array
//!   get / get_mut ──► cache (bounded) ◄── loads ── places on the disk, each mirrored
//!   checkpoint: dirty pages ──► fresh places, both mirrors ──► map of taken places ──► (caller: sync, superblocks) ──► committed
//! ```
//! **Promised**: what a durable checkpoint points to is not overwritten before the next one is durable, so that a crash at
//! any point finds one of the two whole. Every page is checked against the pointer that led to it; one bad mirror is read
//! around and rewritten, two are [`Lookup::Damaged`] until the caller gives the page up, and no wrong byte is ever shown. A change that might not find room on the
//! disk is refused before anything is touched ([`LookupMut::Full`]). The cache keeps to its budget.
//!
//! **Never**: a place is not chosen twice, a page is not changed where it is, and after a failed write no checkpoint ends
//! (the store distrusts the disk). Nothing here syncs: the caller does.
//!
//! The map itself is mirrored and written in turn to two areas; a page of it that went bad is replaced by the next checkpoint but
//! one, not healed.
//!
//! How a checkpoint goes, `get` being served all the time:
//!
//! ```text
//!   loop { checkpoint_inner(out) → roots of inner arrays }     no get_mut meanwhile
//!   get_mut the records those roots live in                    dirtied together with the array's first change: so they have places
//!   loop { checkpoint(out) → the other roots, the map }        no get_mut meanwhile
//!   DiskSync; both superblocks                                 get_mut is allowed again: it belongs to the next checkpoint
//!   committed()
//! ```

mod cache;
mod checkpoint;
mod flight;
mod flush;
mod free;
mod limits;
mod load;
mod lost;
mod map_load;
mod names;
mod page;
mod patrol;
mod places;
#[cfg(test)]
mod tests;
mod tree;
mod walk;

pub(crate) use flight::Pages;
pub(crate) use lost::GivenUp;
pub(crate) use names::{ArrayName, Lookup, LookupMut, MapRef, Next, Place, Region, Root, Step};
pub(crate) use places::begins_map_of;
pub(crate) use walk::{Finder, Flaw, FlawedPage, PageRead, PlaceSet, TakenPlaces, Walk};
