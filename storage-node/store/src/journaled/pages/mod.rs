//! Paged arrays: records of a fixed length in copy-on-write pages, more of them than memory holds.
//!
//! ```text
//!                    root ──► page of pointers ──► … ──► leaves of records         one array
//!   get / get_mut ──► cache (bounded) ◄── loads ── places on the disk, each mirrored
//!   checkpoint: dirty pages ──► fresh places, both mirrors ──► map of taken places ──► (caller: sync, superblocks) ──► committed
//! ```
//! **Promised**: what a durable checkpoint points to is not overwritten before the next one is durable, so that a crash at
//! any point finds one of the two whole. Every page is checked against the pointer that led to it; one bad mirror is read
//! around and rewritten, two are [`Lookup::Damaged`], and no wrong byte is ever shown. A change that might not find room on the
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
//!   DiskSync; both superblocks                                 get_mut is allowed again
//!   committed()
//! ```
//!
//! The interface (bodies follow):
//!
//! ```text
//! impl Pages {
//!   fn new(region: Region, budget: Bytes, arena: Arena, tags: u64 /* ops carry tags | n, n < 2^32 */) -> Self;
//!   fn start_empty(&mut self);                 // a new store: no place is taken, no map yet (format: then a first checkpoint)
//!   fn load_map(&mut self, map: MapRef);       // an old one; both superblocks are of that checkpoint before anything is changed
//!   fn ready(&self) -> Option<Result<(), MapDamaged>>;   // get works before; get_mut says Load until then
//!   fn open_array(&mut self, name: ArrayName, record_len: usize, root: Root);
//!   fn close_array(&mut self, name: ArrayName) -> bool;  // false (and nothing done) while it has pages to be written
//!   fn root(&self, name: ArrayName) -> Root;             // of an array without dirty pages
//!   fn is_open(&self, name: ArrayName) -> bool;
//!   fn get(&mut self, name: ArrayName, index: u64) -> Lookup<'_>;
//!   fn get_mut(&mut self, name: ArrayName, index: u64) -> LookupMut<'_>;
//!   fn next_present(&mut self, name: ArrayName, from: u64) -> Next;
//!   fn free_array(&mut self, name: ArrayName) -> Step;   // leaves and pages that became zero are given back by the checkpoint
//!   fn pump(&mut self, out: &mut DiskOut<'_>);           // every turn
//!   fn done(&mut self, done: Done) -> bool;              // true: ask again what said Load, call checkpoint again
//!   fn checkpoint_inner(&mut self, out) -> Option<Result<Vec<(ArrayName, Root)>, Errno>>;
//!   fn checkpoint(&mut self, out) -> Option<Result<Checkpointed, Errno>>;
//!   fn committed(&mut self);
//!   fn failure(&self) -> Option<Errno>;        // a page write failed: nothing is written any more
//!   fn in_flight(&self) -> usize;              // operations on the disk
//!   fn starved(&self) -> bool;                 // wants memory of the arena and has nothing in flight: pump again soon
//!   fn free_places(&self) -> u32;  fn dirty(&self) -> Bytes;  fn cached(&self) -> Bytes;  fn counters(&self) -> PageCounters;
//! }
//! ```

mod limits;
mod names;
mod page;
mod places;

pub(crate) use names::{
    ArrayName, Checkpointed, Lookup, LookupMut, MapDamaged, MapRef, Next, PageCounters, Place, Region, Root, Step,
};
