//! What people read: how often an object is held for which reason, which objects are live, which ones leaked.
//!
//! Nothing here keeps an object alive or changes a count; all of it is a copy, taken at one moment.

use std::fmt;
use std::marker::PhantomData;
use std::ops::Deref;

use crate::{Counted, MAX_REASONS, Reason, index};

/// Which one of its kind an object is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Label {
    /// The kind says it all.
    #[default]
    Unnamed,
    /// One number: `conn 17`.
    Number(u64),
    /// A number within a number: `replica 3/0`.
    Pair(u64, u64),
}

impl From<u64> for Label {
    fn from(number: u64) -> Self {
        Self::Number(number)
    }
}

impl From<u32> for Label {
    fn from(number: u32) -> Self {
        Self::Number(number.into())
    }
}

impl From<(u64, u64)> for Label {
    fn from((outer, inner): (u64, u64)) -> Self {
        Self::Pair(outer, inner)
    }
}

/// Holds counted by reason: `1 owner + 66 rx + 3 tx`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tally {
    reasons: &'static [&'static str],
    by_reason: [u32; MAX_REASONS],
}

impl Tally {
    /// Holds for all reasons together.
    pub fn total(&self) -> u32 {
        self.by_reason.iter().sum()
    }

    /// Every reason of the kind in its fixed order with its count, zeros included.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u32)> {
        self.reasons.iter().copied().zip(self.by_reason)
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        for (reason, count) in self.iter().filter(|(_, count)| *count > 0) {
            write!(f, "{separator}{count} {reason}")?;
            separator = " + ";
        }
        if separator.is_empty() { f.write_str("no holds") } else { Ok(()) }
    }
}

/// The [`Tally`] of one object, which also knows reasons as types: `counts.of::<why::Rx>()`.
pub struct Counts<T> {
    tally: Tally,
    of: PhantomData<fn() -> T>,
}

impl<T: Counted> Counts<T> {
    pub(crate) fn new(by_reason: [u32; MAX_REASONS]) -> Self {
        Self { tally: Tally { reasons: T::REASONS, by_reason }, of: PhantomData }
    }

    /// Holds for reason `R`.
    pub fn of<R: Reason<T>>(&self) -> u32 {
        self.tally.by_reason[index::<T, R>()]
    }

    /// The object's line in a report.
    pub(crate) fn entry(&self, value: &T) -> Entry {
        Entry { kind: T::KIND, label: value.label(), counts: self.tally }
    }
}

impl<T> Deref for Counts<T> {
    type Target = Tally;

    fn deref(&self) -> &Tally {
        &self.tally
    }
}

impl<T> fmt::Debug for Counts<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.tally.fmt(f)
    }
}

impl<T> fmt::Display for Counts<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.tally.fmt(f)
    }
}

/// One live object in a report: `conn 17: 1 owner + 66 rx + 3 tx`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its kind, [`Counted::KIND`].
    pub kind: &'static str,
    /// Which one of its kind.
    pub label: Label,
    /// Who keeps it.
    pub counts: Tally,
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", Name(self.kind, self.label), self.counts)
    }
}

/// An object's name: its kind and its label.
struct Name(&'static str, Label);

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.1 {
            Label::Unnamed => f.write_str(self.0),
            Label::Number(number) => write!(f, "{} {number}", self.0),
            Label::Pair(outer, inner) => write!(f, "{} {outer}/{inner}", self.0),
        }
    }
}

/// A hold's `Debug`: whose it is and what for, `conn 17 (rx)`.
pub(crate) fn fmt_hold<T: Counted, R: Reason<T>>(value: &T, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    write!(f, "{} ({})", Name(T::KIND, value.label()), T::REASONS[index::<T, R>()])
}

/// Objects that are still held when nothing should be: the error of [`Table::leaks`](crate::Table::leaks).
/// Shown as one line per object, with its reasons.
#[derive(Clone, PartialEq, Eq)]
pub struct LeakReport {
    /// The objects and who keeps them; never empty.
    pub entries: Vec<Entry>,
}

impl LeakReport {
    pub(crate) fn check(entries: Vec<Entry>) -> Result<(), Self> {
        if entries.is_empty() { Ok(()) } else { Err(Self { entries }) }
    }
}

impl fmt::Display for LeakReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "still held: {}", self.entries.len())?;
        self.entries.iter().try_for_each(|entry| write!(f, "\n  {entry}"))
    }
}

// What a failed `leaks().unwrap()` prints is meant for people too.
impl fmt::Debug for LeakReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for LeakReport {}
