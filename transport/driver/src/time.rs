//! Time as logic sees it: handed in with each event, never read.

use std::fmt;
use std::ops::{Add, Sub};

/// Nanoseconds on CLOCK_BOOTTIME (or the simulator's clock). A driver reads it after it reaped the events, so it is never
/// older than an event that it is given with (rule 14).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Time(pub u64);

/// A length of time in nanoseconds.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Span(pub u64);

impl Span {
    /// So many milliseconds.
    pub const fn millis(n: u64) -> Self {
        Self(n * 1_000_000)
    }
    /// So many microseconds.
    pub const fn micros(n: u64) -> Self {
        Self(n * 1_000)
    }
    /// So many seconds.
    pub const fn seconds(n: u64) -> Self {
        Self(n * 1_000_000_000)
    }
    /// In whole milliseconds.
    pub const fn as_millis(self) -> u64 {
        self.0 / 1_000_000
    }
}

impl Time {
    /// How long ago `earlier` was; nothing if it is in the future.
    pub fn since(self, earlier: Self) -> Span {
        Span(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Span> for Time {
    type Output = Self;
    fn add(self, span: Span) -> Self {
        Self(self.0.saturating_add(span.0))
    }
}
impl Sub<Span> for Time {
    type Output = Self;
    fn sub(self, span: Span) -> Self {
        Self(self.0.saturating_sub(span.0))
    }
}
impl fmt::Debug for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "t{}.{:06}ms", self.0 / 1_000_000, self.0 % 1_000_000)
    }
}
impl fmt::Debug for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:06}ms", self.0 / 1_000_000, self.0 % 1_000_000)
    }
}
