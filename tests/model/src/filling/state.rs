//! The shard's three copies, what is under way, and how far the filling is.

use super::Scope;
use super::run::Run;

/// A set of copies: bit 0 is A, 1 is B, 2 is C.
pub(crate) type Mask = u8;

pub(crate) const NODES: usize = 3;
pub(crate) const CHUNKS: usize = 2;
pub(crate) const BLOCKS: usize = 4;

pub(crate) fn bit(node: usize) -> Mask {
    1 << node
}
pub(crate) fn each(mask: Mask) -> impl Iterator<Item = usize> {
    (0..NODES).filter(move |n| mask & bit(*n) != 0)
}
pub(crate) fn chunk_of(block: usize) -> usize {
    block / 2
}

/// What a copy has on its disk.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) struct Node {
    pub(crate) content: [u8; BLOCKS],
    /// The newest change of each chunk.
    pub(crate) version: [u8; CHUNKS],
    /// The newest change of each block that is above K, or 0.
    pub(crate) held: [u8; BLOCKS],
    pub(crate) known_good: u8,
}

impl Node {
    pub(crate) fn write(&mut self, block: usize, content: u8, stamp: u8) {
        self.content[block] = content;
        self.held[block] = self.held[block].max(stamp);
        let version = &mut self.version[chunk_of(block)];
        *version = stamp.max(*version);
    }
    pub(crate) fn know(&mut self, known_good: u8) {
        self.known_good = self.known_good.max(known_good);
        for held in self.held.iter_mut().filter(|held| **held <= self.known_good) {
            *held = 0;
        }
    }
}

/// A stamped change that some copy has not finished: it holds its block's lock.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Op {
    pub(crate) stamp: u8,
    pub(crate) block: usize,
    pub(crate) content: u8,
    pub(crate) sent: Mask,
    pub(crate) applied: Mask,
}

/// What the copy that is filled keeps.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) struct Mark {
    pub(crate) base: u8,
    pub(crate) cursor: usize,
    pub(crate) upto: u8,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct State {
    pub(crate) primary: usize,
    pub(crate) in_sync: Mask,
    pub(crate) full_set: Mask,
    pub(crate) nodes: [Node; NODES],
    pub(crate) ops: Vec<Op>,
    /// Unfinished when the epoch was sealed: block, content.
    pub(crate) carried: Vec<(usize, u8)>,
    /// The primary's K in this epoch; 0: it has not entered it.
    pub(crate) known_good: u8,
    pub(crate) mark: Mark,
    pub(crate) run: Option<Run>,
    /// The newest stamp, and the newest content.
    pub(crate) last: u8,
    pub(crate) contents: u8,
    /// What is still to come.
    pub(crate) left: Left,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Left {
    pub(crate) writes: u8,
    pub(crate) discards: u8,
    pub(crate) rollbacks: u8,
    pub(crate) drops: u8,
    pub(crate) lost: u8,
    pub(crate) second_drops: u8,
}

impl State {
    pub(crate) fn new(scope: Scope) -> Self {
        let Scope { writes, discards, rollbacks, drops, lost, second_drops, in_sync, .. } = scope;
        // Content 1 is there from the beginning, so that a discard changes something; K covers it.
        let written = Node { content: [1; BLOCKS], version: [1; CHUNKS], held: [0; BLOCKS], known_good: 1 };
        let nodes = std::array::from_fn(|n| if in_sync & bit(n) != 0 { written.clone() } else { Node::default() });
        Self {
            primary: 0,
            in_sync,
            full_set: in_sync,
            nodes,
            ops: Vec::new(),
            carried: Vec::new(),
            known_good: 1,
            mark: Mark::default(),
            run: None,
            last: 1,
            contents: 1,
            left: Left { writes, discards, rollbacks, drops, lost, second_drops },
        }
    }

    pub(crate) fn stamp(&mut self) -> u8 {
        self.last += 1;
        self.last
    }
    pub(crate) fn fresh(&mut self) -> u8 {
        self.contents += 1;
        self.contents
    }
    /// The gapless prefix of finished stamps.
    pub(crate) fn finished(&self) -> u8 {
        self.ops.iter().map(|op| op.stamp).min().map_or(self.last, |first| first - 1)
    }

    /// Renumbers stamps and contents: order and equality are all that counts.
    pub(crate) fn tidy(&mut self) {
        let mut stamps = [false; 256];
        self.each_stamp(|stamp| stamps[usize::from(*stamp)] = true);
        // What is just below an unfinished stamp is the known-good point some time.
        for op in &self.ops {
            stamps[usize::from(op.stamp) - 1] = true;
        }
        let mut rank = [0u8; 256];
        let mut next = 0;
        for stamp in 1..256 {
            next += u8::from(stamps[stamp]);
            rank[stamp] = next;
        }
        self.each_stamp(|stamp| *stamp = rank[usize::from(*stamp)]);
        let mut names = [0u8; 256];
        names[1] = 1;
        let mut named = 1;
        self.each_content(|content| {
            if *content == 0 {
                return;
            }
            let name = &mut names[usize::from(*content)];
            if *name == 0 {
                named += 1;
                *name = named;
            }
            *content = *name;
        });
        self.contents = named;
    }

    fn each_stamp(&mut self, mut visit: impl FnMut(&mut u8)) {
        for node in &mut self.nodes {
            node.version.iter_mut().chain(&mut node.held).for_each(&mut visit);
            visit(&mut node.known_good);
        }
        self.ops.iter_mut().for_each(|op| visit(&mut op.stamp));
        [&mut self.known_good, &mut self.mark.base, &mut self.mark.upto, &mut self.last]
            .into_iter()
            .for_each(&mut visit);
        if let Some(run) = &mut self.run {
            run.each_stamp(visit);
        }
    }

    fn each_content(&mut self, mut visit: impl FnMut(&mut u8)) {
        self.nodes.iter_mut().flat_map(|n| &mut n.content).for_each(&mut visit);
        self.ops.iter_mut().for_each(|op| visit(&mut op.content));
        self.carried.iter_mut().for_each(|(_, content)| visit(content));
        if let Some(run) = &mut self.run
            && let Some((_, contents, _)) = &mut run.flying
        {
            contents.iter_mut().for_each(&mut visit);
        }
    }
}
