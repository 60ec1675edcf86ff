//! Putting a piece of a shard right: which copies are damaged where, whose content is laid over it, what came of it.
//!
//! ```text
//!   Looking ──own copy looked through──► Asking ──the others have said theirs──► for each damaged block:
//!             (a client's read: straight on, the others count as sound)              Fetching ──content──► Putting ──► next
//!                                                                                    ▲   damaged there too │ refused: the
//!                                                                                    └── next copy ◄───────┘ next copy's
//! ```
//!
//! Pure. Whoever drives it holds the piece's range lock: shared to look, exclusive to put right. A copy takes only content that has
//! the checksum which its block must have, so content of the wrong copy does no harm; if no copy's content fits, the block's
//! metadata is lost or wrong, and only a write puts it right (`Outcome::rewrite`).

use crate::inspection::{Inspection, cost_of};
use conductor_model::{BlockRange, Blocks, CopyId};
use std::net::SocketAddr;

/// A copy, as far as this piece goes.
#[derive(Debug)]
pub(crate) struct CopyOf {
    pub(crate) copy: CopyId,
    /// Where it is asked; `None` is the primary's own.
    pub(crate) at: Option<SocketAddr>,
    /// Bit n: block n of the piece is damaged.
    damaged: u64,
    /// What it said, if it was asked.
    crcs: Option<Vec<u32>>,
    reach: Reach,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Reach {
    Here,
    /// It does not answer now.
    Away,
    /// It has no such view.
    Without,
}

/// What to do next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Act {
    /// Read this of the own copy, and say `looked`.
    Look(BlockRange),
    /// Ask every copy but the own to verify the piece, and say `verified` of each.
    Ask,
    /// Get this block's content from the copy of this number, and say `fetched`.
    Fetch(usize, Blocks),
    /// Repair this block of the copy of this number with what was fetched, and say `put`.
    Put(usize, Blocks),
    /// Something is damaged, and the lock is shared: begin again under an exclusive one.
    LockAlone,
    /// It is over.
    Over,
}

/// How asking for something ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Failure {
    /// It is damaged, or what was given does not fit.
    Damaged,
    /// No answer, or not now.
    Away,
    /// There is no such view in that copy.
    Without,
}

/// What came of it. A damaged block of one copy counts once.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Outcome {
    /// Put right: copy and block.
    pub(crate) repaired: Vec<(CopyId, Blocks)>,
    /// No copy has them, or copies that are sound differ.
    pub(crate) lost: Vec<(CopyId, Blocks)>,
    /// Sound copies hold the same content, and yet it does not fit: to be written again. From the first such block to the last.
    pub(crate) rewrite: Option<BlockRange>,
    /// The same of a snapshot, which is not written to, or where there is no room to write it: it stays so on that copy, and is read from
    /// another one.
    pub(crate) left: Option<BlockRange>,
    /// Sound blocks that are not equal on all copies.
    pub(crate) diverged: Vec<Blocks>,
    /// Somebody was away: it is worth to begin again.
    pub(crate) again: bool,
    /// Nothing of the own copy is damaged any more.
    pub(crate) own_is_sound: bool,
}

#[derive(Debug)]
enum Step {
    Looking(Inspection),
    Asking,
    Fetching,
    Putting,
}

/// One block that is being put right.
#[derive(Debug, Default)]
struct Block {
    n: u32,
    /// By number of copy: its content was laid over what is damaged, in vain.
    tried: u64,
    /// By number of copy: it refused what was fetched last, or could not be asked.
    refused: u64,
    source: usize,
    /// The checksums of what was fetched.
    crcs: Vec<u32>,
}

/// A piece being put right.
#[derive(Debug)]
pub(crate) struct Mend {
    pub(crate) piece: BlockRange,
    copies: Vec<CopyOf>,
    /// Every copy is looked through, not only the own.
    verify: bool,
    /// The range is locked alone.
    alone: bool,
    step: Step,
    block: Option<Block>,
    /// Bit n: nothing more is done about block n.
    over: u64,
    outcome: Outcome,
}

impl Mend {
    /// A mend of `piece`, at most 64 blocks. The first of `copies` is the own.
    pub(crate) fn new(
        piece: BlockRange,
        copies: impl IntoIterator<Item = (CopyId, Option<SocketAddr>)>,
        verify: bool,
        alone: bool,
    ) -> Self {
        let made = |(copy, at)| CopyOf { copy, at, damaged: 0, crcs: None, reach: Reach::Here };
        Self {
            piece,
            copies: copies.into_iter().map(made).collect(),
            verify,
            alone,
            step: Step::Looking(Inspection::new(piece)),
            block: None,
            over: 0,
            outcome: Outcome::default(),
        }
    }

    pub(crate) fn copy(&self, number: usize) -> &CopyOf {
        &self.copies[number]
    }

    pub(crate) fn copies(&self) -> usize {
        self.copies.len()
    }

    /// What came of it, once it is over.
    pub(crate) fn into_outcome(self) -> Outcome {
        Outcome { own_is_sound: self.copies[0].damaged == 0, ..self.outcome }
    }

    /// What looking through the own copy cost, as far as it went.
    pub(crate) fn cost(&self) -> Blocks {
        cost_of(self.copies[0].crcs.as_deref().unwrap_or_default())
    }

    /// What to do now. To be asked again when that, and for `Act::Ask` all of it, was answered.
    pub(crate) fn next(&mut self) -> Act {
        if let Step::Looking(look) = &mut self.step {
            if let Some(read) = look.next() {
                return Act::Look(read);
            }
            let done = Step::Asking;
            if let Step::Looking(look) = std::mem::replace(&mut self.step, done) {
                let (damaged, crcs) = look.found();
                (self.copies[0].damaged, self.copies[0].crcs) = (damaged, Some(crcs));
            }
            if self.verify && self.copies.len() > 1 {
                return Act::Ask;
            }
        }
        if let Step::Asking = self.step {
            if !self.alone && self.damaged() != 0 {
                return Act::LockAlone;
            }
            self.compare();
            self.step = Step::Fetching;
        }
        match self.step {
            Step::Putting => self.put_on(),
            _ => self.fetch_on(),
        }
    }

    /// The own copy was read: the checksums, or the first damaged block.
    pub(crate) fn looked(&mut self, result: Result<&[u32], Blocks>) {
        if let Step::Looking(look) = &mut self.step {
            match result {
                Ok(crcs) => look.sound(crcs),
                Err(block) => look.damaged_at(block),
            }
        }
    }

    /// What a copy says of the piece.
    pub(crate) fn verified(&mut self, number: usize, result: Result<(u64, Vec<u32>), Failure>) {
        let of = &mut self.copies[number];
        match result {
            Ok((damaged, crcs)) => (of.damaged, of.crcs) = (damaged, Some(crcs)),
            Err(Failure::Without) => of.reach = Reach::Without,
            Err(Failure::Damaged | Failure::Away) => of.reach = Reach::Away,
        }
    }

    /// The content that was to be fetched is here, with this checksum; or it is not.
    pub(crate) fn fetched(&mut self, result: Result<u32, Failure>) {
        let Some(block) = &mut self.block else { return };
        let of = &mut self.copies[block.source];
        match result {
            Ok(crc) => {
                block.crcs.push(crc);
                block.refused = 0;
                self.step = Step::Putting;
            }
            Err(Failure::Damaged) => of.damaged |= 1 << block.n,
            Err(Failure::Away) => {
                of.reach = Reach::Away;
                self.outcome.again = true;
            }
            Err(Failure::Without) => of.reach = Reach::Without,
        }
    }

    /// A copy was given the content; it is put right, or not.
    pub(crate) fn put(&mut self, number: usize, result: Result<(), Failure>) {
        let Some(block) = &mut self.block else { return };
        let of = &mut self.copies[number];
        match result {
            Ok(()) => {
                of.damaged &= !(1 << block.n);
                self.outcome.repaired.push((of.copy, Blocks(self.piece.from.0 + block.n)));
            }
            Err(Failure::Damaged) => block.refused |= 1 << number,
            Err(Failure::Away) => {
                of.reach = Reach::Away;
                self.outcome.again = true;
            }
            Err(Failure::Without) => of.reach = Reach::Without,
        }
    }

    /// Blocks that are damaged on some copy that can be asked, and not given up.
    fn damaged(&self) -> u64 {
        let here = self.copies.iter().filter(|c| c.reach == Reach::Here);
        here.fold(0, |all, c| all | c.damaged) & !self.over
    }

    /// Sound blocks that differ between copies.
    fn compare(&mut self) {
        for n in 0..self.piece.count.0 {
            let sound = self.copies.iter().filter(|c| c.damaged >> n & 1 == 0);
            let mut crcs = sound.filter_map(|c| c.crcs.as_ref()?.get(n as usize));
            let first = crcs.next();
            if crcs.any(|crc| Some(crc) != first) {
                self.outcome.diverged.push(Blocks(self.piece.from.0 + n));
            }
        }
        self.outcome.again |= self.copies.iter().any(|c| c.reach == Reach::Away);
    }

    /// The next content to fetch for the present block, or the next block, or the end.
    fn fetch_on(&mut self) -> Act {
        loop {
            if self.block.is_none() {
                let damaged = self.damaged();
                if damaged == 0 {
                    return Act::Over;
                }
                self.block = Some(Block { n: damaged.trailing_zeros(), ..Block::default() });
            }
            let Some(block) = &mut self.block else { return Act::Over };
            let n = block.n;
            let wants = self.copies.iter().any(|c| c.reach == Reach::Here && c.damaged >> n & 1 == 1);
            let source = self.copies.iter().enumerate().position(|(number, c)| {
                c.reach == Reach::Here && c.damaged >> n & 1 == 0 && block.tried >> number & 1 == 0
            });
            if let (true, Some(source)) = (wants, source) {
                block.source = source;
                return Act::Fetch(source, Blocks(self.piece.from.0 + n));
            }
            self.give_up();
        }
    }

    /// The next copy to give what was fetched, or the next content.
    fn put_on(&mut self) -> Act {
        if let Some(block) = &mut self.block {
            let n = block.n;
            let to = self.copies.iter().enumerate().position(|(number, c)| {
                c.reach == Reach::Here && c.damaged >> n & 1 == 1 && block.refused >> number & 1 == 0
            });
            if let Some(to) = to {
                return Act::Put(to, Blocks(self.piece.from.0 + n));
            }
            block.tried |= 1 << block.source;
        }
        self.step = Step::Fetching;
        self.fetch_on()
    }

    /// Nothing more can be done about the present block.
    fn give_up(&mut self) {
        let Some(block) = self.block.take() else { return };
        let at = Blocks(self.piece.from.0 + block.n);
        self.over |= 1 << block.n;
        // Whoever is away may have it: nothing is given up for good before that is known.
        let away = self.copies.iter().any(|c| c.reach == Reach::Away);
        let away = away && !driver::mutant::on("damage_given_up_early");
        let left: Vec<CopyId> = self
            .copies
            .iter()
            .filter(|c| c.reach == Reach::Here && c.damaged >> block.n & 1 == 1)
            .map(|c| c.copy)
            .collect();
        if left.is_empty() || away {
            return;
        }
        let agree = block.crcs.first().is_some_and(|first| block.crcs.iter().all(|crc| crc == first));
        if agree {
            let from = self.outcome.rewrite.map_or(at, |r| r.from);
            self.outcome.rewrite = Some(BlockRange { from, count: Blocks(at.0 + 1 - from.0) });
        } else {
            self.outcome.lost.extend(left.into_iter().map(|copy| (copy, at)));
        }
    }
}

#[cfg(test)]
mod tests;
