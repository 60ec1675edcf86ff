//! What happened: a running hash over every delivered event, counters by name, and the last lines in words.

use crate::kernel::ProcessId;
use driver::{Done, Op, Time};
use std::collections::{BTreeMap, VecDeque};
use std::fmt::Write as _;

#[derive(Debug)]
pub(crate) struct Trace {
    hash: u64,
    counts: BTreeMap<&'static str, u64>,
    lines: VecDeque<String>,
    keep: usize,
}

impl Trace {
    pub(crate) fn new() -> Self {
        Self { hash: 0x5452_494e_4553_494d, counts: BTreeMap::new(), lines: VecDeque::new(), keep: 0 }
    }

    pub(crate) fn hash(&self) -> u64 {
        self.hash
    }

    pub(crate) fn counts(&self) -> &BTreeMap<&'static str, u64> {
        &self.counts
    }

    pub(crate) fn keep(&mut self, lines: usize) {
        self.keep = lines;
    }

    pub(crate) fn lines(&self) -> impl Iterator<Item = &str> {
        self.lines.iter().map(String::as_str)
    }

    /// Something of this name happened.
    pub(crate) fn count(&mut self, name: &'static str) {
        *self.counts.entry(name).or_insert(0) += 1;
    }

    /// Something worth a line happened to a process.
    pub(crate) fn event(&mut self, now: Time, process: ProcessId, name: &'static str) {
        self.count(name);
        self.mix(now.0);
        self.mix(u64::from(process.0));
        self.mix_bytes(name.as_bytes());
        self.line(|line| write!(line, "{now:?} {process:?} {name}"));
    }

    /// A completion is handed to its machine.
    pub(crate) fn done(&mut self, now: Time, process: ProcessId, done: &Done) {
        let (name, of) = name_of(&done.op);
        self.count(name);
        self.mix(now.0);
        self.mix(u64::from(process.0) << 8 | kind_of(&done.op) as u64);
        self.mix(of);
        self.mix(done.result.map_or_else(|errno| u64::from(errno.0.unsigned_abs()) << 32, u64::from));
        if let (Op::Recv { into, from, .. } | Op::DiskRead { into, from, .. }, Ok(n)) = (&done.op, done.result) {
            self.mix_bytes(&into[*from..*from + n as usize]);
        }
        self.line(|line| write!(line, "{now:?} {process:?} {name} {of}: {:?}", done.result));
    }

    fn mix(&mut self, word: u64) {
        self.hash = mixed(self.hash, word);
    }

    /// Four words a step, each in a lane of its own, because a step waits for the one before it: half of what a run hashes is payload.
    fn mix_bytes(&mut self, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks::<8>();
        let (quads, left) = words.as_chunks::<4>();
        if !quads.is_empty() {
            let mut lanes = [0, 1, 2, 3].map(|lane| self.hash ^ lane);
            for quad in quads {
                for (lane, word) in lanes.iter_mut().zip(quad) {
                    *lane = mixed(*lane, u64::from_le_bytes(*word));
                }
            }
            for lane in lanes {
                self.mix(lane);
            }
        }
        for word in left {
            self.mix(u64::from_le_bytes(*word));
        }
        for byte in rest {
            self.mix(u64::from(*byte));
        }
        self.mix(bytes.len() as u64);
    }

    pub(crate) fn line(&mut self, write: impl FnOnce(&mut String) -> std::fmt::Result) {
        if self.keep == 0 {
            return;
        }
        if self.lines.len() >= self.keep {
            self.lines.pop_front();
        }
        let mut line = String::new();
        if write(&mut line).is_ok() {
            self.lines.push_back(line);
        }
    }
}

/// Eight bytes a step, as rustc's FxHash does: quick, and that is all that is asked of it.
fn mixed(hash: u64, word: u64) -> u64 {
    (hash.rotate_left(5) ^ word).wrapping_mul(0x517c_c1b7_2722_0a95)
}

/// Kinds of operations, for counts of what is outstanding.
pub(crate) const KINDS: [&str; 12] =
    ["accept", "connect", "recv", "send", "shutdown", "close", "read", "write", "punch", "sync", "watch", "secure"];

pub(crate) fn kind_of(op: &Op) -> usize {
    match op {
        Op::Accept { .. } => 0,
        Op::Connect { .. } => 1,
        Op::Recv { .. } => 2,
        Op::Send { .. } => 3,
        Op::Shutdown { .. } => 4,
        Op::Close { .. } => 5,
        Op::DiskRead { .. } => 6,
        Op::DiskWrite { .. } => 7,
        Op::DiskPunch { .. } => 8,
        Op::DiskSync { .. } => 9,
        Op::Watch { .. } => 10,
        Op::Secure { .. } => 11,
    }
}

fn name_of(op: &Op) -> (&'static str, u64) {
    match op {
        Op::Accept { listener } => ("done.accept", u64::from(listener.0)),
        Op::Connect { on, .. } => ("done.connect", u64::from(on.id.slot)),
        Op::Recv { stream, .. } => ("done.recv", u64::from(stream.0)),
        Op::Send { stream, .. } => ("done.send", u64::from(stream.0)),
        Op::Shutdown { stream } => ("done.shutdown", u64::from(stream.0)),
        Op::Close { stream } => ("done.close", u64::from(stream.0)),
        Op::DiskRead { tag, .. } => ("done.read", *tag),
        Op::DiskWrite { tag, .. } => ("done.write", *tag),
        Op::DiskPunch { tag, .. } => ("done.punch", *tag),
        Op::DiskSync { tag, .. } => ("done.sync", *tag),
        Op::Watch { stream, .. } => ("done.watch", u64::from(stream.0)),
        Op::Secure { stream } => ("done.secure", u64::from(stream.0)),
    }
}
