//! Counters by name, counted on every request several times.

use std::collections::BTreeMap;

/// Slots at first; a power of two, twice as many as there are names.
const SLOTS: usize = 256;

/// 2^64 divided by the golden ratio.
const GOLDEN: usize = 0x9e37_79b9_7f4a_7c15;

/// Plain counters of one reactor.
///
/// They are found by where a name lies in the program, not by what it says: comparing names took a thirtieth of a node's instructions for
/// a write. One name may lie in several places, and is then added up when all are asked for.
#[derive(Debug, Clone)]
pub(crate) struct Counters {
    slots: Vec<Option<(&'static str, u64)>>,
    used: usize,
}

impl Default for Counters {
    fn default() -> Self {
        Self { slots: vec![None; SLOTS], used: 0 }
    }
}

impl Counters {
    /// One more of `name`.
    pub(crate) fn count(&mut self, name: &'static str) {
        let at = self.slot(name);
        match &mut self.slots[at] {
            Some((_, count)) => *count += 1,
            empty => {
                *empty = Some((name, 1));
                self.used += 1;
                if self.used * 2 > self.slots.len() {
                    self.grow();
                }
            }
        }
    }

    /// All of them.
    pub(crate) fn all(&self) -> BTreeMap<&'static str, u64> {
        let mut all = BTreeMap::new();
        for (name, count) in self.slots.iter().flatten() {
            *all.entry(*name).or_default() += count;
        }
        all
    }

    /// Where a name is, or would be: at least half of the slots are empty. Names lie next to each other in the program, so that all of an
    /// address is mixed (Knuth's multiplicative hash): of places that are its last bits most are taken, and each name is looked for in a row of them.
    fn slot(&self, name: &'static str) -> usize {
        let most = self.slots.len() - 1;
        let mixed = name.as_ptr().addr().wrapping_mul(GOLDEN);
        let mut at = mixed.rotate_left(self.slots.len().ilog2()) & most;
        while self.slots[at].is_some_and(|(other, _)| !std::ptr::eq(other, name)) {
            at = (at + 1) & most;
        }
        at
    }

    fn grow(&mut self) {
        let doubled = vec![None; self.slots.len() * 2];
        for (name, count) in std::mem::replace(&mut self.slots, doubled).into_iter().flatten() {
            let at = self.slot(name);
            self.slots[at] = Some((name, count));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_kept_by_name_wherever_it_lies_and_however_many_there_are() {
        let mut counters = Counters::default();
        let names: Vec<&'static str> = (0..1000).map(|n| &*format!("name {n}").leak()).collect();
        for round in 0..3 {
            names.iter().skip(round).for_each(|name| counters.count(name));
        }
        // The same words, in another place.
        counters.count(String::from("name 7").leak());
        let all = counters.all();
        assert_eq!(all.len(), 1000);
        assert_eq!((all["name 0"], all["name 1"], all["name 7"], all["name 999"]), (1, 2, 4, 3));
    }
}
