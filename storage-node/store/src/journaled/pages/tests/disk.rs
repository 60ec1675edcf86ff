//! A disk that completes in any order, and crashes that keep, drop or tear (by sectors of 512 B) what was not synced.

use driver::{Done, Errno, Op};

/// A small generator: the tests need no better one.
#[derive(Clone)]
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub(super) fn below(&mut self, n: u64) -> u64 {
        (self.next() >> 11) % n
    }
}

pub(super) struct Disk {
    /// What a read sees.
    pub(super) visible: Vec<u8>,
    /// What a crash leaves for sure.
    stable: Vec<u8>,
    /// Completed but not synced.
    cached: Vec<(usize, Vec<u8>)>,
    inflight: Vec<Op>,
    random: Random,
    /// Reads that touch these bytes fail.
    pub(super) unreadable: Vec<std::ops::Range<usize>>,
    /// Writes that touch these bytes fail, too: the drive has no other sectors left.
    pub(super) worn_out: bool,
    /// The next write fails.
    pub(super) fail_write: bool,
    /// So many reads fail now.
    pub(super) fail_reads: u32,
    pub(super) reads: u64,
    pub(super) bytes_written: u64,
}

impl Disk {
    pub(super) fn new(bytes: usize, seed: u64) -> Self {
        Self {
            visible: vec![0xa5; bytes], // a disk that was used before
            stable: vec![0xa5; bytes],
            cached: vec![],
            inflight: vec![],
            random: Random(seed | 1),
            unreadable: vec![],
            worn_out: false,
            fail_write: false,
            fail_reads: 0,
            reads: 0,
            bytes_written: 0,
        }
    }

    pub(super) fn submit(&mut self, op: Op) {
        let (at, len) = match &op {
            Op::DiskRead { at, from: 0, len, into, .. } if *len == into.len() => (*at, *len),
            Op::DiskWrite { at, parts, durable: false, .. } => (*at, parts.iter().map(|part| part.len).sum()),
            other => panic!("not an operation of pages: {other:?}"),
        };
        assert!(len > 0 && at.is_multiple_of(4096) && len.is_multiple_of(4096));
        assert!(at as usize + len <= self.visible.len(), "beyond the disk");
        let overlaps = |op: &Op| match op {
            Op::DiskWrite { at: other, parts, .. } => {
                let end = other + parts.iter().map(|part| part.len as u64).sum::<u64>();
                at < end && *other < at + len as u64
            }
            _ => false,
        };
        assert!(!self.inflight.iter().any(overlaps), "a write and something else of the same bytes are in flight");
        self.inflight.push(op);
    }

    /// Complete any one of the operations.
    pub(super) fn step(&mut self) -> Option<Done> {
        if self.inflight.is_empty() {
            return None;
        }
        let pick = self.random.below(self.inflight.len() as u64) as usize;
        let mut op = self.inflight.swap_remove(pick);
        let unreadable = |range: &std::ops::Range<usize>| {
            self.unreadable.iter().any(|bad| bad.start < range.end && range.start < bad.end)
        };
        let result = match &mut op {
            Op::DiskRead { at, into, len, .. } => {
                let range = *at as usize..*at as usize + *len;
                self.reads += 1;
                if unreadable(&range) || self.fail_reads > 0 {
                    self.fail_reads = self.fail_reads.saturating_sub(1);
                    Err(Errno::IO)
                } else {
                    into.copy_from_slice(&self.visible[range]);
                    Ok(*len as u32)
                }
            }
            Op::DiskWrite { at, parts, .. } => {
                let bytes = bytes_of(parts);
                let range = *at as usize..*at as usize + bytes.len();
                if (self.worn_out && unreadable(&range)) || std::mem::take(&mut self.fail_write) {
                    return Some(Done { op, result: Err(Errno::IO) });
                }
                self.unreadable.retain(|bad| bad.start < range.start || range.end < bad.end);
                self.visible[*at as usize..][..bytes.len()].copy_from_slice(&bytes);
                self.bytes_written += bytes.len() as u64;
                let len = bytes.len() as u32;
                self.cached.push((*at as usize, bytes));
                Ok(len)
            }
            _ => unreachable!("checked at submit"),
        };
        Some(Done { op, result })
    }

    /// All completed writes become stable.
    pub(super) fn sync(&mut self) {
        for (at, bytes) in self.cached.drain(..) {
            self.stable[at..][..bytes.len()].copy_from_slice(&bytes);
        }
    }

    /// The power fails: of each write that is not stable any sectors may be there.
    pub(super) fn crash(&mut self) {
        let flying = std::mem::take(&mut self.inflight).into_iter().filter_map(|op| match op {
            Op::DiskWrite { at, parts, .. } => Some((at as usize, bytes_of(&parts))),
            _ => None,
        });
        let mut open = std::mem::take(&mut self.cached);
        open.extend(flying);
        for (at, bytes) in open {
            let kept = self.random.below(4); // none, all, or a mixture
            for (n, sector) in bytes.chunks(512).enumerate() {
                if kept == 3 || (kept > 0 && self.random.below(2) == 0) {
                    self.stable[at + n * 512..][..sector.len()].copy_from_slice(sector);
                }
            }
        }
        self.visible.clone_from(&self.stable);
    }

    /// Damage bytes that are at rest.
    pub(super) fn rot(&mut self, at: usize) {
        self.visible[at] ^= 0x40;
        self.stable[at] ^= 0x40;
    }

    /// Put bytes where they do not belong.
    pub(super) fn overwrite(&mut self, at: usize, bytes: &[u8]) {
        self.visible[at..][..bytes.len()].copy_from_slice(bytes);
        self.stable[at..][..bytes.len()].copy_from_slice(bytes);
    }
}

fn bytes_of(parts: &[driver::Part]) -> Vec<u8> {
    parts.iter().flat_map(|part| part.bytes()).copied().collect()
}
