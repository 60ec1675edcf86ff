//! Time, which goes on while the machine sleeps: what was certain before is old afterwards.

use conductor_model::Millis;
use nix::time::{ClockId, clock_gettime};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// CLOCK_BOOTTIME now.
pub(crate) fn uptime() -> Duration {
    let Ok(read) = clock_gettime(ClockId::CLOCK_BOOTTIME) else {
        unreachable!("CLOCK_BOOTTIME can be read since Linux 2.6.39");
    };
    Duration::from(read)
}

/// The time that the model is given: the wall clock's at the start, counted on by `uptime`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    wall: Millis,
    since: Duration,
}

impl Clock {
    pub(crate) fn start() -> Self {
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { wall: Millis(u64::try_from(wall.as_millis()).unwrap_or(0)), since: uptime() }
    }

    pub(crate) fn now(&self) -> Millis {
        let passed = u64::try_from(uptime().saturating_sub(self.since).as_millis()).unwrap_or(u64::MAX);
        Millis(self.wall.0.saturating_add(passed))
    }
}
