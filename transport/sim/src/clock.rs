//! A process's CLOCK_BOOTTIME: it starts with its host and runs a little fast or slow.

use driver::Time;

/// How a host's clock differs from the world's.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Clock {
    /// What it shows when the host boots, in nanoseconds.
    pub offset: u64,
    /// How much faster than the world it runs, in parts per million; slower if negative.
    pub ppm: i32,
}

impl Clock {
    /// What it shows at the world's time `at`, for a host booted at `boot`.
    pub(crate) fn local(self, boot: Time, at: Time) -> Time {
        let run = i128::from(at.since(boot).0);
        let shown = i128::from(self.offset) + run + run * i128::from(self.ppm) / PPM;
        Time(u64::try_from(shown.max(0)).unwrap_or(u64::MAX))
    }

    /// The world's time from which on it shows at least `local`.
    pub(crate) fn world(self, boot: Time, local: Time) -> Time {
        let wanted = i128::from(local.0) - i128::from(self.offset);
        // The division rounds down; two nanoseconds make up for it and for the rounding in `local`.
        let run = (wanted * PPM / (PPM + i128::from(self.ppm)) + 2).max(0);
        Time(boot.0.saturating_add(u64::try_from(run).unwrap_or(u64::MAX)))
    }
}

const PPM: i128 = 1_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deadline_is_over_when_its_world_time_has_come() {
        for ppm in [-100_000, -37, 0, 1, 333, 100_000] {
            let clock = Clock { offset: 5_000, ppm };
            for local in [0, 5_000, 5_001, 1_234_567, 98_765_432_101] {
                let at = clock.world(Time(77), Time(local));
                assert!(clock.local(Time(77), at) >= Time(local), "{ppm} {local}");
                assert!(clock.local(Time(77), at).0 <= local.max(5_000) + 4, "{ppm} {local}");
            }
        }
    }
}
