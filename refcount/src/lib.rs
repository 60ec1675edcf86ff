//! Who keeps an object alive, and why: typed holds, a reaper, live tables.
//!
//! A count kept by hand is a debt nobody signed for. Here a count is a *hold*: a value that is taken for a reason,
//! moved when it is handed over, and given back exactly once, by being dropped.
//!
//! ```text
//!                 insert::<Owner>(conn)                    share::<Rx>()
//!   a Conn ────────────────────────────▶ Hold<Conn, Owner> ────────────▶ Hold<Conn, Rx>
//!     ▲                                          │ rename::<Tx>()               │
//!     │                                          ▼                              │
//!     │                                  Hold<Conn, Tx>                         │
//!     │ reap()                                   │ drop                    drop │
//!     │                                          ▼                              ▼
//!     └──────────── reaper's queue ◀──────── the last one         (one fewer, nothing else)
//! ```
//!
//! What this crate promises:
//!
//! - **A hold cannot be copied, nor given back twice**: it is neither `Clone` nor `Copy`, and `drop` consumes it.
//! - **A hold that was forgotten has a name**: every [`Table`] knows its live objects and their holds by reason
//!   (`conn 17: 1 owner + 66 rx + 3 tx`), and [`Table::leaks`] says so at the end of a reactor.
//! - **Nothing is torn down on the spot**: the drop of the last hold queues the object; its value comes back, whole, out
//!   of [`Table::reap`], which a reactor calls outside any completion handler. Objects come back in the order in which
//!   they were let go. (A table that is dropped early lets each object go with its last hold.)
//! - **Nothing rises from the dead**: a new hold is taken from a live one or by `insert`, so a count that reached zero
//!   stays there. This needs no check; there is no way to write it.
//! - **No allocation in steady state**: an object's place is pooled, and the queue has room for every place there is.
//!
//! Two kinds, one interface: [`Table`] and [`Hold`] are for objects that stay on one reactor (a few plain instructions
//! per hold), [`atomic::Table`] and [`atomic::Hold`] for those whose holds cross threads.
//!
//! # Example
//!
//! ```
//! struct Conn { id: u64 }
//!
//! refcount::reasons! {
//!     /// Why somebody keeps a connection.
//!     pub mod why for Conn as "conn" labelled (|conn| conn.id) {
//!         Owner "owner",
//!         /// A posted receive.
//!         Rx "rx",
//!         Tx "tx",
//!     }
//! }
//! use refcount::{Hold, Table};
//!
//! let table = Table::new();
//! let owner: Hold<Conn, why::Owner> = table.insert(Conn { id: 17 });
//! let receives: Vec<_> = (0..66).map(|_| owner.share::<why::Rx>()).collect();
//! assert_eq!(table.report()[0].to_string(), "conn 17: 1 owner + 66 rx");
//! assert_eq!(owner.counts().of::<why::Rx>(), 66);
//!
//! drop(owner);
//! assert!(table.reap().is_none(), "66 receives still need it");
//! drop(receives);
//! assert_eq!(table.reap().map(|conn| conn.id), Some(17));
//! assert!(table.leaks().is_ok());
//! ```
//!
//! # What does not compile
//!
//! A hold given back twice:
//! ```compile_fail,E0382
//! # struct Conn; refcount::reasons! { mod why for Conn as "conn" { Owner "owner" } }
//! let hold = refcount::Table::new().insert::<why::Owner>(Conn);
//! drop(hold);
//! drop(hold);
//! ```
//! A hold used after it was given back, or after it got another reason:
//! ```compile_fail,E0382
//! # struct Conn; refcount::reasons! { mod why for Conn as "conn" { Owner "owner", Rx "rx" } }
//! let hold = refcount::Table::new().insert::<why::Owner>(Conn);
//! let renamed = hold.rename::<why::Rx>();
//! hold.share::<why::Rx>();
//! ```
//! A hold copied, of either kind:
//! ```compile_fail,E0277
//! # #[derive(Clone)] struct Conn; refcount::reasons! { mod why for Conn as "conn" { Owner "owner" } }
//! fn copy<C: Clone>(it: &C) -> C { it.clone() }
//! copy(&refcount::Table::new().insert::<why::Owner>(Conn));
//! ```
//! ```compile_fail,E0277
//! # #[derive(Clone)] struct Conn; refcount::reasons! { mod why for Conn as "conn" { Owner "owner" } }
//! fn copy<C: Clone>(it: &C) -> C { it.clone() }
//! copy(&refcount::atomic::Table::new().insert::<why::Owner>(Conn));
//! ```
//! A reason that belongs to another kind of object:
//! ```compile_fail,E0277
//! # struct Conn; refcount::reasons! { mod why for Conn as "conn" { Owner "owner" } }
//! # struct Page; refcount::reasons! { mod uses for Page as "page" { Reads "reads" } }
//! refcount::Table::<Conn>::new().insert::<uses::Reads>(Conn);
//! ```
//! A reason written by hand whose index is not in the list:
//! ```compile_fail,E0080
//! # struct Conn; refcount::reasons! { mod why for Conn as "conn" { Owner "owner" } }
//! enum Stray {}
//! impl refcount::Reason<Conn> for Stray { const INDEX: usize = 1; }
//! refcount::Table::new().insert::<Stray>(Conn);
//! ```
//! A plain hold sent to another thread:
//! ```compile_fail,E0277
//! # struct Conn; refcount::reasons! { mod why for Conn as "conn" { Owner "owner" } }
//! let hold = refcount::Table::new().insert::<why::Owner>(Conn);
//! std::thread::spawn(move || drop(hold));
//! ```

#![forbid(unsafe_code)]

pub mod atomic;
mod plain;
mod report;

pub use plain::{Hold, Table};
pub use report::{Counts, Entry, Label, LeakReport, Tally};

/// A kind of object that is kept alive by holds. Usually written by [`reasons!`].
pub trait Counted: 'static {
    /// The name of the kind in reports: `conn`, `iocb`, `session`.
    const KIND: &'static str;
    /// The names of its reasons, in the order of [`Reason::INDEX`]; at most [`MAX_REASONS`].
    const REASONS: &'static [&'static str];

    /// Which one of its kind this is, for reports. Runs while the table is being read: it must be cheap and must not
    /// touch the object's table.
    fn label(&self) -> Label {
        Label::Unnamed
    }
}

/// A reason to hold a `T`: a type, never a value. Usually written by [`reasons!`].
pub trait Reason<T: Counted>: 'static {
    /// Its place in [`Counted::REASONS`]; checked when the reason is compiled into use.
    const INDEX: usize;
}

/// Reasons one kind of object may have: the longest list of the design, a connection's, has seven, and twelve counters with
/// their total are no longer than a cache line.
pub const MAX_REASONS: usize = 12;

/// Holds on one object at a time. Every hold is a value somebody keeps, so only a loop that forgets holds gets here; it is
/// half the counter's range so that atomic counters cannot wrap while threads find out. Past it, taking a hold panics.
pub const MAX_HOLDS: u32 = u32::MAX / 2;

/// `R`'s place in `T`'s list, proven at compile time to be in it.
const fn index<T: Counted, R: Reason<T>>() -> usize {
    const {
        assert!(T::REASONS.len() <= MAX_REASONS, "more reasons than MAX_REASONS");
        assert!(R::INDEX < T::REASONS.len(), "a reason's INDEX lies outside REASONS");
        R::INDEX
    }
}

/// Declares the reasons to hold a kind of object: a module of reason types, [`Counted`] for the object, and [`Reason`]
/// for each. `labelled (|it| …)` is optional and may give anything that turns into a [`Label`].
///
/// ```
/// struct Replica { volume: u64, shard: u64 }
///
/// refcount::reasons! {
///     /// Why somebody keeps a replica.
///     pub mod why for Replica as "replica" labelled (|it| (it.volume, it.shard)) {
///         /// The map that says this node serves it.
///         Map "map",
///         Iocb "iocb",
///     }
/// }
/// let table = refcount::Table::new();
/// let _map = table.insert::<why::Map>(Replica { volume: 3, shard: 0 });
/// assert_eq!(table.report()[0].to_string(), "replica 3/0: 1 map");
/// ```
#[macro_export]
macro_rules! reasons {
    (
        $(#[$about:meta])*
        $vis:vis mod $module:ident for $object:ty as $kind:literal $(labelled (|$it:ident| $label:expr))? {
            $($(#[$meaning:meta])* $reason:ident $name:literal),+ $(,)?
        }
    ) => {
        $(#[$about])*
        #[doc = concat!("Reasons to hold a `", $kind, "`.")]
        #[allow(unreachable_pub, reason = "the module's own visibility is the caller's choice")]
        $vis mod $module {
            $(
                $(#[$meaning])*
                #[doc = concat!("Shown as `", $name, "`.")]
                pub enum $reason {}
            )+
            /// The reasons in their order, which gives each its index.
            #[doc(hidden)]
            pub enum __Order { $($reason),+ }
        }
        impl $crate::Counted for $object {
            const KIND: &'static str = $kind;
            const REASONS: &'static [&'static str] = &[$($name),+];
            $(
                fn label(&self) -> $crate::Label {
                    let $it = self;
                    $crate::Label::from($label)
                }
            )?
        }
        $(
            impl $crate::Reason<$object> for $module::$reason {
                const INDEX: usize = $module::__Order::$reason as usize;
            }
        )+
    };
}
