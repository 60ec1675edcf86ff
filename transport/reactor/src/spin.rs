//! Looking before sleeping: a wake-up costs more than a short wait, where a core is to spare.
//!
//! It adapts: each look in vain doubles the number of turns without one, each success starts over.

use driver::Span;
use std::time::{Duration, Instant};

/// Turns without a look, at most, after looks in vain.
const MAX_PAUSE: u32 = 64;

/// Cores under which spinning takes from others what it gives to one: see the performance budget.
const FEW_CORES: usize = 2;

/// True if this machine has cores to spare for `reactors` of them that spin.
pub fn spare_cores(reactors: usize) -> bool {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    cores > FEW_CORES && reactors < cores
}

/// When to look, and for how long.
#[derive(Debug)]
pub(crate) struct Spin {
    longest: Duration,
    pause: u32,
    skip: u32,
}

impl Spin {
    pub(crate) fn off() -> Self {
        Self::up_to(Span(0))
    }

    pub(crate) fn up_to(longest: Span) -> Self {
        Self { longest: Duration::from_nanos(longest.0), pause: 0, skip: 0 }
    }

    pub(crate) fn is_off(&self) -> bool {
        self.longest.is_zero()
    }

    /// Whether to look before a sleep of at most `timeout`.
    pub(crate) fn worth_it(&mut self, timeout: Option<Span>) -> bool {
        if self.is_off() || timeout == Some(Span(0)) {
            return false;
        }
        if self.skip > 0 {
            self.skip -= 1;
            return false;
        }
        true
    }

    /// Looks until there is something, or time is up.
    pub(crate) fn look(&mut self, mut ready: impl FnMut() -> bool) {
        let start = Instant::now();
        while start.elapsed() < self.longest {
            if ready() {
                self.pause = 0;
                return;
            }
            std::hint::spin_loop();
        }
        self.pause = (self.pause * 2).clamp(1, MAX_PAUSE);
        self.skip = self.pause;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_in_vain_become_rare_and_a_success_brings_them_back() {
        let mut spin = Spin::up_to(Span::micros(1));
        let mut looks = 0;
        for _ in 0..1000 {
            if spin.worth_it(None) {
                spin.look(|| false);
                looks += 1;
            }
        }
        assert!((10..30).contains(&looks), "{looks}");
        while !spin.worth_it(None) {}
        spin.look(|| true);
        assert!(spin.worth_it(None));
        assert!(!spin.worth_it(Some(Span(0))) && !Spin::off().worth_it(None));
    }
}
