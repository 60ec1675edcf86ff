//! What a reactor counts.

/// What a reactor did so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// System calls.
    pub enters: u64,
    /// Those of them that were only needed because the submission queue was full.
    pub extra_submits: u64,
    /// Entries pushed.
    pub sqes: u64,
    /// Completions seen.
    pub cqes: u64,
    /// Completions whose operation was over already: dropped.
    pub stale: u64,
    /// Wakes by the mailbox.
    pub wakes: u64,
    /// Transfers that had to go on because the kernel did only part of them.
    pub resumed: u64,
    /// Operations that had to wait for a slot.
    pub waited: u64,
    /// Turns.
    pub turns: u64,
    /// What happened to RDMA's streams.
    pub rdma: ::rdma::Counters,
    /// What happened to TLS's.
    pub tls: tls::Counters,
}

impl Counters {
    /// Those that tell a person something, by name.
    pub fn named(&self) -> [(&'static str, u64); 19] {
        [
            ("rdma_established", self.rdma.established),
            ("rdma_refused", self.rdma.refused),
            ("rdma_broken", self.rdma.broken),
            ("rdma_displaced", self.rdma.displaced),
            ("rdma_undrained", self.rdma.undrained),
            ("rdma_discarded", self.rdma.discarded),
            ("rdma_destroyed", self.rdma.destroyed),
            ("rdma_stale", self.rdma.stale),
            ("tls_established", self.tls.established),
            ("tls_accepted", self.tls.accepted),
            ("tls_failed", self.tls.failed),
            ("tls_stalls", self.tls.stalls),
            ("reactor_turns", self.turns),
            ("reactor_enters", self.enters),
            ("reactor_sqes", self.sqes),
            ("reactor_cqes", self.cqes),
            ("reactor_wakes", self.wakes),
            ("reactor_waited", self.waited),
            ("reactor_stale", self.stale),
        ]
    }
}
