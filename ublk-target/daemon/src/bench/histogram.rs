//! Latencies, counted in classes of which each is a sixteenth of its power of two wide: 6 % off at most, in constant memory.

use serde::Serialize;

const PARTS: usize = 16;
const CLASSES: usize = 64 * PARTS;

/// See the module's head. In nanoseconds.
#[derive(Clone, Debug)]
pub struct Histogram {
    counts: Vec<u64>,
    count: u64,
    sum: u128,
    most: u64,
}

/// What it comes to, in microseconds.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize)]
pub struct Latency {
    /// Arithmetic mean.
    pub mean: f64,
    /// Half of all requests took no longer.
    pub p50: f64,
    /// 90 %.
    pub p90: f64,
    /// 99 %.
    pub p99: f64,
    /// 99.9 %.
    pub p999: f64,
    /// The longest.
    pub max: f64,
}

/// Requests of one range of latencies.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Class {
    /// They took less than this many microseconds, and no less than the class before.
    pub below: f64,
    /// How many.
    pub count: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self::new()
    }
}

impl Histogram {
    /// Of nothing.
    pub fn new() -> Self {
        Self { counts: vec![0; CLASSES], count: 0, sum: 0, most: 0 }
    }

    /// Counts one, in nanoseconds.
    pub fn add(&mut self, nanos: u64) {
        self.counts[class(nanos)] += 1;
        self.count += 1;
        self.sum += u128::from(nanos);
        self.most = self.most.max(nanos);
    }

    /// How many were counted.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// What they come to.
    pub fn latency(&self) -> Latency {
        let micros = |nanos: u64| nanos as f64 / 1000.0;
        let mean = if self.count == 0 { 0.0 } else { self.sum as f64 / self.count as f64 / 1000.0 };
        let of = |per_mille| micros(self.percentile(per_mille));
        Latency { mean, p50: of(500), p90: of(900), p99: of(990), p999: of(999), max: micros(self.most) }
    }

    /// The upper end of the class in which so many in a thousand are reached.
    fn percentile(&self, per_mille: u128) -> u64 {
        let wanted = (u128::from(self.count) * per_mille).div_ceil(1000);
        let mut seen = 0;
        for (class, count) in self.counts.iter().enumerate() {
            seen += u128::from(*count);
            if seen >= wanted && seen > 0 {
                return end(class).min(self.most);
            }
        }
        self.most
    }

    /// By powers of two, from the first one that is not empty to the last one.
    pub(crate) fn classes(&self) -> Vec<Class> {
        let of = |power: usize| self.counts[power * PARTS..][..PARTS].iter().sum::<u64>();
        let powers: Vec<usize> = (0..64).filter(|power| of(*power) > 0).collect();
        let (Some(first), Some(last)) = (powers.first(), powers.last()) else { return Vec::new() };
        let below = |power: usize| end(power * PARTS + PARTS - 1) as f64 / 1000.0;
        (*first..=*last).map(|power| Class { below: below(power), count: of(power) }).collect()
    }
}

/// Below 16 ns every one of the first classes is one nanosecond wide, which nothing here is as quick as.
fn class(nanos: u64) -> usize {
    let nanos = nanos.max(PARTS as u64);
    let power = nanos.ilog2();
    let part = usize::try_from(nanos >> (power - PARTS.ilog2())).unwrap_or(PARTS) - PARTS;
    power as usize * PARTS + part
}

/// The first value behind a class.
fn end(class: usize) -> u64 {
    let (power, part) = (class / PARTS, class % PARTS);
    let wide = power.saturating_sub(PARTS.ilog2() as usize);
    let end = ((PARTS + part + 1) as u128) << wide;
    u64::try_from(end).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_latency_is_in_a_class_that_ends_just_behind_it() {
        for nanos in (4..64).flat_map(|power| [0, 1, 7].map(|more| (1_u64 << power) + (more << (power - 4)))) {
            let end = end(class(nanos));
            assert!(end > nanos || end == u64::MAX, "{nanos}: {end}");
            assert!(end as f64 <= nanos as f64 * 1.07 + 1.0, "{nanos}: {end}");
        }
        assert!(class(u64::MAX) < CLASSES && class(0) < CLASSES);
    }

    #[test]
    fn percentiles_are_those_of_what_was_counted() {
        let mut all = Histogram::new();
        assert_eq!(all.latency(), Latency::default());
        assert!(all.classes().is_empty());
        (1..=1000).for_each(|micros| all.add(micros * 1000));
        let Latency { mean, p50, p90, p99, p999, max } = all.latency();
        assert_eq!((all.count(), max), (1000, 1000.0));
        assert!((mean - 500.5).abs() < 0.01, "{mean}");
        for (said, is) in [(p50, 500.0), (p90, 900.0), (p99, 990.0), (p999, 999.0)] {
            assert!(said >= is && said <= is * 1.07, "{said} for {is}");
        }
        assert_eq!(all.classes().iter().map(|class| class.count).sum::<u64>(), 1000);
        assert!(all.classes().windows(2).all(|two| two[0].below * 2.0 == two[1].below));
    }
}
