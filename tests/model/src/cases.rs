//! What `make model` explores: each configuration to its end, and each switch until it is caught.

use crate::explore::{Explained, Outcome, explore};
use std::fmt::Debug;
use std::hash::Hash;

/// What an exploration must come to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Expect {
    /// Nothing is found in exactly so many states: a model that lost a possibility shows here.
    Clean(usize),
    /// The rule is broken, and this is what a user sees of it.
    Caught(&'static str),
}

/// One exploration.
pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    pub(crate) expect: Expect,
    pub(crate) run: Box<dyn Fn(usize) -> Outcome>,
}

impl Case {
    pub(crate) fn new<M>(name: &'static str, about: &'static str, expect: Expect, model: M) -> Self
    where
        M: Explained + Clone + Send + Sync + 'static,
        M::State: Debug + Hash + Send + Sync + Clone + PartialEq,
        M::Action: Debug + Clone + PartialEq,
    {
        Self { name, about, expect, run: Box::new(move |threads| explore(model.clone(), threads)) }
    }

    /// The line of the report, and whether it came as expected.
    pub(crate) fn judge(&self, outcome: &Outcome) -> (bool, String) {
        let seconds = outcome.time.as_secs_f64();
        match (&outcome.found, self.expect) {
            (None, Expect::Clean(states)) if states == outcome.states => {
                (true, format!("{} states, {} steps deep, {seconds:.1} s", states, outcome.depth - 1))
            }
            (None, Expect::Clean(states)) => (
                false,
                format!("{} states, and {states} were expected: say why in tests/model/src/cases.rs", outcome.states),
            ),
            (None, Expect::Caught(what)) => {
                (false, format!("NOT CAUGHT: no {what} in {} states, {seconds:.1} s", outcome.states))
            }
            (Some(found), Expect::Caught(what)) if found.violation == what => {
                (true, format!("{what} in {} steps ({} states, {seconds:.1} s)", found.steps.len(), outcome.states))
            }
            (Some(found), _) => (false, format!("{}\n    {}", found.violation, found.steps.join("\n    "))),
        }
    }
}

/// The configurations that `make model` explores.
pub(crate) fn configurations() -> Vec<Case> {
    let mut cases = crate::failover::cases::configurations();
    cases.extend(crate::filling::cases::configurations());
    cases.extend(crate::barrier::configurations());
    cases
}

/// Larger ones, for a soak.
pub(crate) fn larger() -> Vec<Case> {
    let mut cases = crate::failover::cases::larger();
    cases.extend(crate::filling::cases::larger());
    cases
}

/// Rules broken on purpose.
pub(crate) fn switches() -> Vec<Case> {
    let mut cases = crate::failover::cases::switches();
    cases.extend(crate::filling::cases::switches());
    cases.extend(crate::barrier::switches());
    cases
}

#[cfg(test)]
mod tests {
    use super::{Case, switches};

    #[test]
    fn every_broken_rule_is_caught_as_what_a_user_loses() {
        let wrong = |case: &Case| {
            let (as_expected, line) = case.judge(&(case.run)(1));
            println!("{} {line}", case.name);
            (!as_expected).then(|| format!("{}: {line}", case.name))
        };
        let wrong: Vec<String> = switches().iter().filter_map(wrong).collect();
        assert!(wrong.is_empty(), "{wrong:?}");
    }
}
