//! What is crashed: an engine behind the store's seam, and what only its author knows about its disk.

mod journaled;
mod simple;

pub use journaled::Journaled;
pub use simple::Simple;

use crate::disk::{Disks, Open};
use crate::moment::Moment;
use driver::{Done, Time};
use memory::Arena;
use node_store::{DiskOut, Store};

/// What not every engine can do.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Ability {
    /// Snapshots, rollbacks, their dropping, clones and flattening, copy-range.
    Snapshots,
    /// Repair.
    Repair,
    /// Extents.
    Extents,
    /// Marks of a filling.
    Marks,
    /// A power cut after a kill loses nothing that the life in between read.
    KillThenPowerCut,
    /// Damage in one place never keeps it from opening.
    OpensDamaged,
    /// Usage is what the copies hold, to the block.
    ExactUsage,
}

/// How large a store is made. Small: its journal wraps all the time, and it fills up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shape {
    /// 0 to 3, from the smallest journal to the largest.
    pub journal: u64,
    /// Blocks for data, about.
    pub data_blocks: u32,
    /// Copies that it can hold.
    pub copies: u32,
}

/// Why there is no store.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Refused {
    /// What is on the disk is not what was written.
    Damaged(String),
    /// All else: never right in these tests.
    Other(String),
}

/// A formatting or an opening under way.
pub trait Progress<T> {
    /// One of its operations is over; `Some` when it is over itself.
    fn done(&mut self, now: Time, done: Done, out: &mut DiskOut<'_>) -> Option<Result<T, Refused>>;
}

/// A formatting or an opening that began.
pub type Begun<T> = Result<Box<dyn Progress<T>>, Refused>;

/// An engine.
pub trait Engine {
    /// Its store.
    type Store: Store;
    /// Its name on the command line.
    const NAME: &'static str;

    /// Can it do this?
    fn can(ability: Ability) -> bool;
    /// The sizes of the disks of a store of this shape.
    fn disks(shape: Shape) -> Vec<u64>;
    /// Make a store.
    fn format(shape: Shape, arena: &Arena, out: &mut DiskOut<'_>) -> Begun<()>;
    /// Open it.
    fn open(shape: Shape, arena: &Arena, out: &mut DiskOut<'_>) -> Begun<Self::Store>;
    /// The offline checker's complaints.
    fn check(disks: &Disks) -> Vec<String>;
    /// Does it meet this moment at all?
    fn meets(moment: Moment) -> bool;
    /// What goes on inside, from what is open on the disk and from the store's own word; what was submitted is known already.
    fn moments(shape: Shape, store: &Self::Store, open: &[Open]) -> Vec<Moment>;
}
