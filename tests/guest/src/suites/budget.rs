//! The table of suites: what is run, where, and how many minutes it may take.

use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

use anyhow::{Result, ensure};
use serde::Deserialize;

/// `make test` promises to be done in this time, from a bare machine, on two cores.
const WHOLE_RUN_MINUTES: f64 = 60.0;
/// A suite is killed at this many times its planned minutes: it hangs, or the machine is far slower than any that was planned for.
const KILLED_AT: f64 = 2.5;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Budget {
    pub(crate) suites: Vec<Suite>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Suite {
    pub(crate) name: String,
    #[serde(rename = "where")]
    pub(crate) place: Place,
    pub(crate) minutes: f64,
    /// A shell command, run in the project's root.
    pub(crate) run: String,
}

/// Where the code under test runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Place {
    Host,
    Guest,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Host => "host",
            Self::Guest => "guest",
        })
    }
}

impl Place {
    pub(crate) fn phrase(self) -> &'static str {
        match self {
            Self::Host => "on the host",
            Self::Guest => "in the guest",
        }
    }
}

impl Budget {
    pub(crate) fn parse(text: &str) -> Result<Self> {
        let budget: Self = toml::from_str(text)?;
        let mut names = BTreeSet::new();
        for Suite { name, minutes, .. } in &budget.suites {
            let plain = !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || "-._".contains(c));
            ensure!(plain, "'{name}' cannot be the name of a suite: letters, digits, '-', '.' and '_' only");
            ensure!(names.insert(name), "there are two suites called '{name}'");
            ensure!(*minutes > 0.0 && *minutes <= WHOLE_RUN_MINUTES, "suite '{name}' plans {minutes} minutes");
        }
        let planned: f64 = budget.suites.iter().map(|suite| suite.minutes).sum();
        ensure!(
            planned <= WHOLE_RUN_MINUTES,
            "the suites plan {planned} minutes, more than the {WHOLE_RUN_MINUTES} of the whole run"
        );
        Ok(budget)
    }
}

impl Suite {
    pub(crate) fn planned(&self) -> Duration {
        Duration::from_secs_f64(self.minutes * 60.0)
    }

    pub(crate) fn killed_at(&self) -> Duration {
        self.planned().mul_f64(KILLED_AT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn suite(name: &str, minutes: f64) -> String {
        format!("[[suites]]\nname = '{name}'\nwhere = 'host'\nminutes = {minutes}\nrun = 'true'\n")
    }

    #[test]
    fn the_projects_own_table_is_valid() {
        Budget::parse(include_str!("../../../budget.toml")).expect("tests/budget.toml");
    }

    #[test]
    fn suites_keep_the_order_of_the_table() {
        let budget = Budget::parse(&(suite("b", 1.0) + &suite("a", 0.5))).expect("valid");
        assert_eq!(budget.suites.iter().map(|suite| suite.name.as_str()).collect::<Vec<_>>(), ["b", "a"]);
        assert_eq!(budget.suites[1].killed_at(), Duration::from_secs(75));
    }

    #[test]
    fn a_table_that_promises_too_much_or_repeats_itself_is_refused() {
        assert!(Budget::parse(&(suite("a", 40.0) + &suite("b", 30.0))).is_err());
        assert!(Budget::parse(&(suite("a", 1.0) + &suite("a", 1.0))).is_err());
        assert!(Budget::parse(&suite("../a", 1.0)).is_err());
        assert!(Budget::parse(&suite("a", 0.0)).is_err());
    }
}
