//! How the simulated world behaves. All chances are in parts per million; all may be changed while the world runs.

use crate::random::Rng;
use driver::Span;

/// How long something takes: `min` plus up to `spread`, and now and then up to `tail` more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Latency {
    /// At least this.
    pub min: Span,
    /// Evenly spread up to so much more.
    pub spread: Span,
    /// How often it takes longer (per million).
    pub tail_ppm: u32,
    /// Up to so much longer.
    pub tail: Span,
}

impl Latency {
    /// Between `min` and `min + spread` microseconds.
    pub const fn micros(min: u64, spread: u64) -> Self {
        Self { min: Span::micros(min), spread: Span::micros(spread), tail_ppm: 0, tail: Span(0) }
    }

    /// The same with a tail.
    #[must_use]
    pub const fn tailed(mut self, tail_ppm: u32, tail: Span) -> Self {
        self.tail_ppm = tail_ppm;
        self.tail = tail;
        self
    }

    /// `times` as long.
    #[must_use]
    pub const fn slower(self, times: u64) -> Self {
        Self {
            min: Span(self.min.0.saturating_mul(times)),
            spread: Span(self.spread.0.saturating_mul(times)),
            tail_ppm: self.tail_ppm,
            tail: Span(self.tail.0.saturating_mul(times)),
        }
    }

    pub(crate) fn sample(&self, rng: &mut Rng) -> Span {
        let mut span = self.min.0.saturating_add(rng.below(self.spread.0));
        if rng.chance(self.tail_ppm) {
            span = span.saturating_add(rng.below(self.tail.0));
        }
        Span(span)
    }
}

/// The world but for its disks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Options {
    /// The network.
    pub network: NetworkOptions,
    /// From a completion to the turn that delivers it.
    pub wake: Latency,
    /// How much later than asked for a deadline's turn comes.
    pub oversleep: Latency,
    /// How often a turn leaves some of what is ready for the next one.
    pub partial_batch_ppm: u32,
}

/// The network.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NetworkOptions {
    /// From one process to another, each piece (pieces of one stream stay in order).
    pub latency: Latency,
    /// Between two pieces of one send.
    pub transmit: Latency,
    /// From the last byte leaving (arriving, for receives) to the completion.
    pub completion: Latency,
    /// How often a send's or receive's bytes are cut at a random place.
    pub cut_ppm: u32,
    /// Most bytes in one piece.
    pub piece: usize,
    /// Bytes under way and unread in one direction of a stream before a sender has to wait.
    pub window: usize,
    /// After which a connect gives up.
    pub connect_timeout: Span,
    /// After which a stream whose bytes are not acknowledged gives up (Linux: TCP_USER_TIMEOUT).
    pub stream_timeout: Span,
    /// How often the arrival of a piece resets its stream instead.
    pub reset_ppm: u32,
    /// How often the arrival of a piece turns its stream into a black hole instead.
    pub silent_ppm: u32,
}

impl Default for NetworkOptions {
    /// A healthy rack: no faults, some scatter.
    fn default() -> Self {
        Self {
            latency: Latency::micros(15, 100).tailed(5_000, Span::millis(5)),
            transmit: Latency::micros(0, 20),
            completion: Latency::micros(1, 60).tailed(5_000, Span::millis(5)),
            cut_ppm: 250_000,
            piece: 64 << 10,
            window: 1 << 20,
            connect_timeout: Span::seconds(3),
            stream_timeout: Span::seconds(20),
            reset_ppm: 0,
            silent_ppm: 0,
        }
    }
}

impl Default for Options {
    fn default() -> Self {
        Self {
            network: NetworkOptions::default(),
            wake: Latency::micros(0, 30),
            oversleep: Latency::micros(1, 100).tailed(1_000, Span::millis(5)),
            partial_batch_ppm: 250_000,
        }
    }
}

/// When a disk says "no space".
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Full {
    /// Never.
    #[default]
    No,
    /// To writes of blocks that hold nothing yet (a sparse file on a full file system).
    Growth,
    /// To all writes.
    Everything,
}

/// One disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DiskOptions {
    /// Its size; operations that go beyond fail with EINVAL.
    pub bytes: u64,
    /// From submission to completion; the effect comes somewhere between.
    pub latency: Latency,
    /// What a sync takes on top of that.
    pub sync_takes: Span,
    /// How often a read fails with EIO.
    pub read_error_ppm: u32,
    /// How often a write or sync fails with EIO. Such a write may have happened in part.
    pub write_error_ppm: u32,
    /// So many reads fail with EIO from now on.
    pub fail_reads: u32,
    /// So many writes and syncs fail with EIO from now on.
    pub fail_writes: u32,
    /// Whether there is space.
    pub full: Full,
}

impl DiskOptions {
    /// A healthy disk of so many bytes.
    pub const fn sized(bytes: u64) -> Self {
        Self {
            bytes,
            latency: Latency::micros(10, 150).tailed(5_000, Span::millis(10)),
            sync_takes: Span(0),
            read_error_ppm: 0,
            write_error_ppm: 0,
            fail_reads: 0,
            fail_writes: 0,
            full: Full::No,
        }
    }
}
