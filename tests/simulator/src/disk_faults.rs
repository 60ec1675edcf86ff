//! Disks that fail: errors once or for good, no space, and what people do about it.
//!
//! A store whose disk failed a write is done with it for that life (its state is in doubt), and so is its node: its copies leave by
//! persisted epochs, and it steps down. It comes back when somebody has seen to the disk and started it again, with all that was durable
//! on it. None of this costs an acknowledged write, so that it may befall several nodes at once.

use crate::director::{Alarm, Director, Sim};
use crate::faults::Undo;
use driver::Span;
use sim::{DiskOptions, Full, State};

/// Every operation fails.
const ALWAYS: u32 = 1_000_000;

/// How a disk fails.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Failing {
    /// Some reads.
    Reads,
    /// Some writes.
    Writes,
    /// Everything from now on.
    Dead,
    /// It takes no write at all.
    Full,
    /// It takes no write where nothing was before.
    Thin,
}

impl Director {
    /// A disk fails some operations, or all of them from now on. Always possible.
    pub(crate) fn fail_disk(&mut self, w: &mut Sim, node: usize, how: Failing) -> bool {
        let some = u32::try_from(1 + self.rng.below(4)).unwrap_or(1);
        let options = w.disk(self.nodes[node].disk);
        match how {
            Failing::Reads => options.fail_reads = some,
            Failing::Writes => options.fail_writes = some,
            Failing::Dead => (options.read_error_ppm, options.write_error_ppm) = (ALWAYS, ALWAYS),
            Failing::Full => options.full = Full::Everything,
            Failing::Thin => options.full = Full::Growth,
        }
        if matches!(how, Failing::Reads | Failing::Dead) && node != self.rots {
            self.shared.borrow_mut().unreadable.insert(node);
        }
        let process = self.nodes[node].process;
        // A life that begins before it is mended meets it, too.
        self.nodes[node].bad_until = w.life(process) + u32::from(w.state(process) == State::Dead);
        let after = Span(self.some_span(8_000).0 + Span::millis(500).0);
        self.alarm(w, after, Alarm::Undo(Undo::Mend(node)));
        true
    }

    /// A node has begun a new life: on a disk that fails still, or one that does not.
    pub(crate) fn may_fail_again(&mut self, w: &mut Sim, node: usize) {
        let options = *w.disk(self.nodes[node].disk);
        if options != (DiskOptions { latency: options.latency, ..DiskOptions::sized(options.bytes) }) {
            self.nodes[node].bad_until = w.life(self.nodes[node].process);
        }
    }

    /// A node says that its disk failed.
    pub(crate) fn disk_failed(&mut self, w: &mut Sim, node: usize, life: u32) {
        if self.nodes[node].failed_in < life {
            self.nodes[node].failed_in = life;
            self.count("node.disk-failed", 1);
            let after = self.some_span(6_000);
            self.alarm(w, after, Alarm::Undo(Undo::Mend(node)));
        }
    }

    /// A node could not open its store, and has ended.
    pub(crate) fn gave_up(&mut self, w: &mut Sim, node: usize) {
        self.count("node.gave-up", 1);
        let process = self.nodes[node].process;
        w.kill(process);
        let after = self.some_span(6_000);
        self.alarm(w, after, Alarm::Undo(Undo::Restart(node)));
    }

    /// The disk works again.
    pub(crate) fn mend(&mut self, w: &mut Sim, node: usize) {
        *w.disk(self.nodes[node].disk) = DiskOptions::sized(crate::node::DISK_BYTES);
        if self.shared.borrow_mut().unreadable.remove(&node) {
            self.shared.borrow_mut().unreadable_until = w.now();
        }
        if self.nodes[node].failed_in == w.life(self.nodes[node].process) {
            let cut = self.rng.coin();
            self.kill_node(w, node, cut);
        }
    }
}
