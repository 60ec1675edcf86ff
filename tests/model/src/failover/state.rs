//! What there is: three nodes with a copy each, one conductor, messages under way, two writers.
//!
//! Everything that the protocol must not depend on is left out, so that equal situations are equal states: numbers are small, an
//! answer is taken when it is given, and what can have no effect any more is removed (`State::tidy`).

/// A set of copies: bit n is node n.
pub(crate) type Mask = u8;
/// An epoch; 0 is none.
pub(crate) type Epoch = u8;

/// Nodes, each with one copy of the shard.
pub(crate) const NODES: usize = 3;
/// Blocks that are modelled; a scope may use the first only.
pub(crate) const BLOCKS: usize = 2;
/// Writes of clients; write `w` (from 1) has the content `w`.
pub(crate) const WRITES: usize = 2;

/// The bit of one node.
pub(crate) fn bit(node: usize) -> Mask {
    1 << node
}
/// The nodes of a mask.
pub(crate) fn each(mask: Mask) -> impl Iterator<Item = usize> {
    (0..NODES).filter(move |n| mask & bit(*n) != 0)
}
/// A stamp as one number that orders as stamps do.
pub(crate) fn stamp(epoch: Epoch, sequence: u8) -> u8 {
    assert!(epoch < 16 && sequence < 16, "a scope that needs more than 15 epochs or sequences");
    epoch << 4 | sequence
}

/// One epoch's configuration. Absent copies are those in neither set.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) struct Config {
    pub(crate) primary: u8,
    pub(crate) in_sync: Mask,
    pub(crate) syncing: Mask,
    /// The in-sync copies of the last epoch that was not sealed.
    pub(crate) full_set: Mask,
    pub(crate) open: [u8; NODES],
}

/// What a primary may ask the conductor for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub(crate) enum Change {
    Drop(u8),
    /// A restarted copy's new opening.
    Reopened(u8, u8),
    Fill(u8, u8),
    Add(u8),
}

/// A membership request under way.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub(crate) struct Ask {
    pub(crate) epoch: Epoch,
    pub(crate) change: Change,
}

/// A message between nodes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub(crate) enum Message {
    Join { to: u8, epoch: Epoch },
    Write { to: u8, leg: Leg },
}

/// A stamped change of one block, as a copy executes it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub(crate) struct Leg {
    pub(crate) epoch: Epoch,
    pub(crate) sequence: u8,
    pub(crate) block: u8,
    pub(crate) content: u8,
}

/// A stamped change at its primary: it holds the block's lock.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Op {
    /// The client's write, or 0 for a settling.
    pub(crate) write: u8,
    pub(crate) block: u8,
    pub(crate) content: u8,
    pub(crate) sequence: u8,
    pub(crate) acked: Mask,
    /// Copies that must finish before the lock is released.
    pub(crate) sent: Mask,
    /// The client has its completion.
    pub(crate) told: bool,
    /// Nobody is there to take the completion.
    pub(crate) mute: bool,
    pub(crate) locks: bool,
}

/// A write that keeps its lock and waits for a stamp of the next epoch.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Carried {
    pub(crate) write: u8,
    pub(crate) block: u8,
    pub(crate) mute: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Phase {
    Joining,
    Settling,
    Serving,
    /// Fewer than min-copies have joined: nothing is stamped.
    Sealed,
}

/// What a node knows as the primary of an epoch.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Lead {
    pub(crate) epoch: Epoch,
    pub(crate) phase: Phase,
    pub(crate) answers: Mask,
    /// Blocks that somebody holds above K.
    pub(crate) union: u8,
    pub(crate) ops: Vec<Op>,
    pub(crate) carried: Vec<Carried>,
    pub(crate) next: u8,
    /// Everything up to here is finished on all in-sync copies; 0: not yet in this epoch.
    pub(crate) known_good: u8,
    /// Copies whose promise this primary counts.
    pub(crate) leases: Mask,
    /// The syncing copy has joined: new writes go to it too.
    pub(crate) feeding: bool,
    pub(crate) filled: bool,
    /// The syncing copy counts for acknowledgements and reads (rule 1).
    pub(crate) counting: bool,
}

/// Who a copy's promise binds it to.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Bound {
    No,
    To(u8),
    /// It started a short time ago, and may have promised anything before.
    Quarantine,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Node {
    /// Gone for good, with its disk.
    pub(crate) dead: bool,
    pub(crate) open: u8,
    // the disk
    pub(crate) content: [u8; BLOCKS],
    pub(crate) version: [u8; BLOCKS],
    pub(crate) known_good: u8,
    /// Newest configuration it stored.
    pub(crate) stored: Epoch,
    // the memory
    /// Epochs below this one are refused.
    pub(crate) floor: Epoch,
    /// A Join that waits for a promise to run out.
    pub(crate) parked: Epoch,
    /// A Join that waits for the disk.
    pub(crate) draining: Epoch,
    pub(crate) joined: Epoch,
    pub(crate) bound: Bound,
    /// Sequences of the joined epoch that were begun.
    pub(crate) begun: u16,
    /// Admitted and not yet applied.
    pub(crate) in_disk: Vec<Leg>,
    pub(crate) lead: Option<Lead>,
}

/// A client's request that nobody has stamped, on a connection that the client has given up.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Twin {
    pub(crate) write: u8,
    pub(crate) node: u8,
    pub(crate) epoch: Epoch,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Progress {
    Unborn,
    Pending,
    Done,
}

/// Faults that are still to come.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) struct Faults {
    /// Nodes that restart: memory is lost, what is in the disk is applied or not.
    pub(crate) restarts: u8,
    /// Nodes that are lost with their disk.
    pub(crate) losses: u8,
    /// Copies that are dropped although they live.
    pub(crate) drops: u8,
    /// Primaries that are replaced although they live.
    pub(crate) promotions: u8,
    /// Legs that are sent twice.
    pub(crate) repeats: u8,
    /// Completions that never reach their client, which sends again.
    pub(crate) lost_replies: u8,
    /// Requests that lie unread on a connection that the client gave up.
    pub(crate) stranded: u8,
}

/// What went wrong.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Bad {
    StaleRead,
    Lost,
    Unequal,
    TwoPrimaries,
    Stuck,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct State {
    /// Of epoch 1, 2, …; the last is current. Blank where nobody can use it any more.
    pub(crate) configs: Vec<Config>,
    pub(crate) asks: Vec<Ask>,
    pub(crate) net: Vec<Message>,
    pub(crate) nodes: [Node; NODES],
    pub(crate) writes: [Progress; WRITES],
    pub(crate) twin: Option<Twin>,
    pub(crate) spec: [super::spec::Possible; BLOCKS],
    pub(crate) reads: u8,
    pub(crate) left: Faults,
    pub(crate) bad: Option<Bad>,
}

impl State {
    pub(crate) fn current(&self) -> Epoch {
        u8::try_from(self.configs.len()).expect("few epochs")
    }
    pub(crate) fn config(&self, epoch: Epoch) -> &Config {
        &self.configs[usize::from(epoch) - 1]
    }
    pub(crate) fn latest(&self) -> &Config {
        self.config(self.current())
    }
    pub(crate) fn alive(&self) -> Mask {
        (0..NODES).filter(|n| !self.nodes[*n].dead).map(bit).sum()
    }
    /// Ends what has run out in this node's eyes.
    pub(crate) fn look_at_clock(&mut self, node: usize) {
        let me = u8::try_from(node).expect("few nodes");
        let bound: Mask = (0..NODES).filter(|n| self.nodes[*n].bound == Bound::To(me)).map(bit).sum();
        if let Some(lead) = &mut self.nodes[node].lead {
            lead.leases &= bound;
        }
    }
    pub(crate) fn send(&mut self, message: Message) {
        if let Err(at) = self.net.binary_search(&message) {
            self.net.insert(at, message);
        }
    }
    pub(crate) fn ask(&mut self, ask: Ask) -> bool {
        let Err(at) = self.asks.binary_search(&ask) else { return false };
        self.asks.insert(at, ask);
        true
    }
}

impl Node {
    /// A copy that was created a moment ago.
    pub(crate) fn blank() -> Self {
        Self {
            dead: false,
            open: 0,
            content: [0; BLOCKS],
            version: [0; BLOCKS],
            known_good: 0,
            stored: 0,
            floor: 0,
            parked: 0,
            draining: 0,
            joined: 0,
            bound: Bound::No,
            begun: 0,
            in_disk: Vec::new(),
            lead: None,
        }
    }
}
