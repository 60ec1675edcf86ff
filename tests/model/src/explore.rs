//! Runs one model to its end, or to the first state that must not be.

use stateright::{Checker, HasDiscoveries, Model};
use std::fmt::Debug;
use std::hash::Hash;
use std::time::{Duration, Instant};

/// A model that can say what is wrong with a state.
pub(crate) trait Explained: Model {
    fn violation_of(&self, state: &Self::State) -> Option<String>;
}

/// A way to a state that must not be: what is wrong there, and the steps.
#[derive(Debug)]
pub(crate) struct Counterexample {
    pub(crate) violation: String,
    pub(crate) steps: Vec<String>,
}

#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) states: usize,
    pub(crate) depth: usize,
    pub(crate) time: Duration,
    pub(crate) found: Option<Counterexample>,
}

/// Breadth first: a counterexample is one of the shortest.
pub(crate) fn explore<M>(model: M, threads: usize) -> Outcome
where
    M: Explained + Clone + Send + Sync + 'static,
    M::State: Debug + Hash + Send + Sync + Clone + PartialEq,
    M::Action: Debug + Clone + PartialEq,
{
    let began = Instant::now();
    let explain = model.clone();
    let checker = model.checker().threads(threads).finish_when(HasDiscoveries::Any).spawn_bfs().join();
    let found = checker.discoveries().into_values().next().map(|path| Counterexample {
        violation: explain.violation_of(path.last_state()).unwrap_or_else(|| "nothing".to_owned()),
        steps: path.into_actions().iter().map(|action| format!("{action:?}")).collect(),
    });
    Outcome { states: checker.unique_state_count(), depth: checker.max_depth(), time: began.elapsed(), found }
}
