//! What is wrong with a run, and of which kind: what a user would have lost comes before what only a test can see.
//!
//! A breach that nobody has lost anything by yet (a refused request, an order that the store was promised and not given) is *noted*: the
//! run goes on, so that what comes of it is seen too, and fails at its end. So a broken rule is known by its harm, not by the first
//! alarm on the way there (`tests/mutants`).

use std::fmt;
use std::str::FromStr;

/// A kind of failure, the worst first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Kind {
    /// A client read what no order of the operations explains: stale, lost, or nobody's.
    WrongRead,
    /// In-sync copies of a shard differ at the end.
    UnequalCopies,
    /// A machine or an assertion panicked.
    Panic,
    /// Something came not to its end, or left something behind, or a process could not go on.
    Other,
    /// A request failed that may not (noted).
    Refused,
    /// A caller broke the store's contract (noted).
    Contract,
}

impl Kind {
    const ALL: [(Self, &str); 6] = [
        (Self::WrongRead, "wrong-read"),
        (Self::UnequalCopies, "unequal-copies"),
        (Self::Panic, "panic"),
        (Self::Other, "other"),
        (Self::Refused, "refused"),
        (Self::Contract, "contract"),
    ];

    /// Those named, with commas between them; `any` is all of them.
    ///
    /// # Errors
    /// If one is not known.
    pub fn several(names: &str) -> Result<Vec<Self>, String> {
        if names == "any" {
            return Ok(Self::ALL.map(|(kind, _)| kind).to_vec());
        }
        names.split(',').map(str::parse).collect()
    }

    /// Does the run go on after it?
    pub(crate) fn is_noted(self) -> bool {
        matches!(self, Self::Refused | Self::Contract)
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = Self::ALL.iter().find(|(kind, _)| kind == self).map_or("", |(_, name)| name);
        f.write_str(name)
    }
}

impl FromStr for Kind {
    type Err = String;
    fn from_str(name: &str) -> Result<Self, String> {
        let found = Self::ALL.iter().find(|(_, known)| *known == name).map(|(kind, _)| *kind);
        let names = || Self::ALL.map(|(_, name)| name).join(", ");
        found.ok_or_else(|| format!("{name:?} is no kind of failure; those are {}", names()))
    }
}

/// Something that is wrong.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Failure {
    /// What kind of thing.
    pub kind: Kind,
    /// In words.
    pub what: String,
}

impl Failure {
    pub(crate) fn new(kind: Kind, what: impl Into<String>) -> Self {
        Self { kind, what: what.into() }
    }
}

impl From<String> for Failure {
    fn from(what: String) -> Self {
        Self::new(Kind::Other, what)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.kind, self.what)
    }
}

/// The worst of all that was found, the first of its kind.
pub(crate) fn worst(found: impl IntoIterator<Item = Failure>) -> Option<Failure> {
    found.into_iter().min_by_key(|failure| failure.kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_user_loses_comes_before_what_only_a_test_sees() {
        let of = |kind, what: &str| Failure::new(kind, what);
        let found = [of(Kind::Contract, "a"), of(Kind::Other, "b"), of(Kind::WrongRead, "c"), of(Kind::WrongRead, "d")];
        assert_eq!(worst(found), Some(of(Kind::WrongRead, "c")));
        assert_eq!(worst([]), None);
    }

    #[test]
    fn kinds_are_read_as_they_are_written() {
        for (kind, _) in Kind::ALL {
            assert_eq!(kind.to_string().parse(), Ok(kind));
        }
        assert!("anything".parse::<Kind>().is_err());
        assert_eq!(Kind::several("contract,panic"), Ok(vec![Kind::Contract, Kind::Panic]));
        assert!(Kind::several("panic,anything").is_err() && Kind::several("any").is_ok_and(|all| all.len() == 6));
    }
}
