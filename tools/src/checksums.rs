//! Who computes checksums on this processor.

use crc32c::By;
use std::hint::black_box;
use std::time::{Duration, Instant};

/// Tries, of which the fastest counts: the first one finds nothing in the caches.
const TRIES: u32 = 4;

/// Has all of this process computed by who is faster, which takes some microseconds to find out: an emulated processor is faster with
/// a table, every other one by far without.
pub(crate) fn choose() {
    let [multiplying, table] = [By::Multiplying, By::Table].map(time);
    let by = if table < multiplying { By::Table } else { By::Multiplying };
    crc32c::choose(by);
    tracing::debug!(?by, ?multiplying, ?table, "checksums of 4 KiB");
}

fn time(by: By) -> Duration {
    let block = [0x5a; 4096];
    let tries = (0..TRIES).map(|_| {
        let began = Instant::now();
        black_box(by.append(0, black_box(&block)));
        began.elapsed()
    });
    tries.min().unwrap_or_default()
}
