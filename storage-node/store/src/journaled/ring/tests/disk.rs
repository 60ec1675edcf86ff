//! A disk in memory that completes in any order, and loses power at any time.

use conductor_model::BLOCK;
use driver::{Done, Errno, Op};

/// A small generator: the tests need no better one.
#[derive(Clone)]
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }
    pub(super) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }
    pub(super) fn below(&mut self, n: u64) -> u64 {
        (self.next() >> 11) % n
    }
    pub(super) fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

/// What a loss of power leaves of each write that is not stable.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Loss {
    /// Nothing.
    Drop,
    /// All.
    Keep,
    /// All of the newest, nothing of those before.
    Newest,
    /// All of the oldest, nothing of those behind.
    Oldest,
    /// Only the first block of each.
    Headers,
    /// All but the first block of each.
    Payload,
    /// Any sectors, in any order.
    Tear,
}

impl Loss {
    pub(super) const ALL: [Self; 7] =
        [Self::Drop, Self::Keep, Self::Newest, Self::Oldest, Self::Headers, Self::Payload, Self::Tear];
}

#[derive(Default)]
pub(super) struct Disk {
    /// What a read sees.
    pub(super) visible: Vec<u8>,
    /// What a loss of power leaves for sure.
    stable: Vec<u8>,
    /// Completed but not stable.
    cached: Vec<(usize, Vec<u8>)>,
    /// Submitted, each with the number of cached writes at that time (what a sync covers).
    pub(super) inflight: Vec<(Op, usize)>,
    /// Fail the next write or sync.
    pub(super) fail_write: bool,
    /// Bytes from which on, and to which, reads fail.
    pub(super) unreadable: std::ops::Range<usize>,
    /// All reads and writes so far.
    pub(super) reads: usize,
    pub(super) writes: usize,
    pub(super) syncs: usize,
}

fn bytes_of(op: &Op) -> Option<(usize, Vec<u8>)> {
    let Op::DiskWrite { at, parts, .. } = op else { return None };
    Some((*at as usize, parts.iter().flat_map(|part| part.bytes()).copied().collect()))
}

impl Disk {
    pub(super) fn new(bytes: usize) -> Self {
        Self::of(vec![0; bytes])
    }

    /// One that holds this for sure.
    pub(super) fn of(image: Vec<u8>) -> Self {
        Self { visible: image.clone(), stable: image, ..Self::default() }
    }

    pub(super) fn submit(&mut self, op: Op) {
        let (at, len) = match &op {
            Op::DiskRead { disk, .. } | Op::DiskWrite { disk, .. } | Op::DiskSync { disk, .. } if disk.0 != 7 => {
                panic!("an operation on another disk: {op:?}")
            }
            Op::DiskRead { at, from, len, into, .. } => {
                assert!(from + len <= into.len() && from.is_multiple_of(BLOCK));
                self.reads += 1;
                (*at as usize, *len)
            }
            Op::DiskWrite { at, parts, .. } => {
                assert!(parts.len() < 1024, "more parts than the kernel takes");
                assert!(parts.iter().all(|part| part.from.is_multiple_of(BLOCK) && part.len.is_multiple_of(BLOCK)));
                self.writes += 1;
                (*at as usize, parts.iter().map(|part| part.len).sum())
            }
            Op::DiskSync { .. } => {
                self.syncs += 1;
                (0, BLOCK)
            }
            other => panic!("not an operation of a journal: {other:?}"),
        };
        assert!(len > 0 && at.is_multiple_of(BLOCK) && len.is_multiple_of(BLOCK) && at + len <= self.visible.len());
        self.inflight.push((op, self.cached.len()));
    }

    /// Complete one operation.
    pub(super) fn complete(&mut self, pick: usize) -> Done {
        let (mut op, covers) = self.inflight.remove(pick);
        let result = match &mut op {
            Op::DiskRead { at, into, from, len, .. } => {
                let range = *at as usize..*at as usize + *len;
                if range.start < self.unreadable.end && self.unreadable.start < range.end {
                    into[*from..*from + *len].copy_from_slice(&self.visible[range]); // unspecified: even the right content
                    return Done { op, result: Err(Errno::IO) };
                }
                into[*from..*from + *len].copy_from_slice(&self.visible[range]);
                *len
            }
            Op::DiskWrite { .. } | Op::DiskSync { .. } if std::mem::take(&mut self.fail_write) => {
                return Done { op, result: Err(Errno::IO) };
            }
            Op::DiskWrite { durable, .. } => {
                let durable = *durable;
                let (at, bytes) = bytes_of(&op).unwrap();
                let len = bytes.len();
                self.visible[at..at + len].copy_from_slice(&bytes);
                if durable {
                    self.stable[at..at + len].copy_from_slice(&bytes);
                } else {
                    self.cached.push((at, bytes));
                }
                len
            }
            Op::DiskSync { .. } => {
                for (at, bytes) in self.cached.drain(..covers) {
                    self.stable[at..at + bytes.len()].copy_from_slice(&bytes);
                }
                self.inflight.iter_mut().for_each(|(_, before)| *before = before.saturating_sub(covers));
                0
            }
            _ => unreachable!("checked at submit"),
        };
        Done { op, result: Ok(u32::try_from(result).unwrap()) }
    }

    /// What the disk holds after a loss of power now.
    pub(super) fn after_power_loss(&self, loss: Loss, random: &mut Random) -> Vec<u8> {
        let mut image = self.stable.clone();
        let mut open = self.cached.clone();
        open.extend(self.inflight.iter().filter_map(|(op, _)| bytes_of(op)));
        if loss == Loss::Tear {
            for n in (1..open.len()).rev() {
                open.swap(n, random.below(n as u64 + 1) as usize);
            }
        }
        let last = open.len().saturating_sub(1);
        for (n, (at, bytes)) in open.iter().enumerate() {
            let keeps_all = loss == Loss::Tear && random.one_in(4);
            for (sector, content) in bytes.chunks(512).enumerate() {
                let keep = match loss {
                    Loss::Drop => false,
                    Loss::Keep => true,
                    Loss::Newest => n == last,
                    Loss::Oldest => n == 0,
                    Loss::Headers => sector < BLOCK / 512,
                    Loss::Payload => sector >= BLOCK / 512,
                    Loss::Tear => keeps_all || random.one_in(2),
                };
                if keep {
                    image[at + sector * 512..][..512].copy_from_slice(content);
                }
            }
        }
        image
    }

    /// The process is gone: what it had sent may or may not arrive, and what had arrived is still not stable.
    pub(super) fn process_ends(&mut self, random: &mut Random) {
        while !self.inflight.is_empty() {
            let pick = random.below(self.inflight.len() as u64) as usize;
            if random.one_in(2) {
                let _gone = self.complete(pick);
            } else {
                self.inflight.remove(pick);
            }
        }
    }
}
