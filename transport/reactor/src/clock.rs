//! The one clock of a reactor.

use driver::Time;
use nix::time::{ClockId, clock_gettime};

/// CLOCK_BOOTTIME now. It goes on while the machine sleeps, so that a promise made before is old afterwards.
pub fn now() -> Time {
    let Ok(read) = clock_gettime(ClockId::CLOCK_BOOTTIME) else {
        unreachable!("CLOCK_BOOTTIME can be read since Linux 2.6.39, and the reactor needs 6.1");
    };
    let part = |value: i64| u64::try_from(value).unwrap_or(0);
    Time(part(read.tv_sec()) * 1_000_000_000 + part(read.tv_nsec()))
}
