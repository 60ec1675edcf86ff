//! One run of filling C, step by step as `storage-node/core/src/filling.rs` does it.

use super::state::{CHUNKS, Mark, State, bit, chunk_of};
use super::{Action, Filling, Switch};

/// Where a run stands.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Run {
    pub(crate) base: u8,
    pub(crate) cursor: usize,
    pub(crate) upto: u8,
    /// Every write goes to the copy too.
    pub(crate) fed: bool,
    /// To be listed when writes up to here are finished.
    after: u8,
    listing: bool,
    /// What each side lists of chunks: version by chunk, 0: nothing due.
    own: Option<[u8; CHUNKS]>,
    theirs: Option<[u8; CHUNKS]>,
    /// Chunks before this one are listed.
    listed: usize,
    /// To be filled, with the version that was listed; 0: not due.
    due: [Option<u8>; CHUNKS],
    /// Read without a lock, and on its way: chunk, content, version.
    pub(crate) flying: Option<(usize, [u8; 2], u8)>,
    complete: bool,
}

impl Run {
    pub(crate) fn each_stamp(&mut self, mut visit: impl FnMut(&mut u8)) {
        [&mut self.base, &mut self.upto, &mut self.after].into_iter().for_each(&mut visit);
        self.own.iter_mut().flatten().for_each(&mut visit);
        self.theirs.iter_mut().flatten().for_each(&mut visit);
        self.due.iter_mut().flatten().for_each(&mut visit);
        if let Some((_, _, version)) = &mut self.flying {
            visit(version);
        }
    }

    /// Is everything there?
    pub(crate) fn is_complete(&self) -> bool {
        self.complete
    }

    /// Begins with what is written to: all from here on goes along, and all before is waited for.
    pub(crate) fn aim(&mut self, last: u8) {
        (self.fed, self.after, self.listing, self.complete) = (true, last, true, false);
        (self.own, self.theirs, self.listed, self.due) = (None, None, 0, [None; CHUNKS]);
    }

    /// Something is stamped that is not sent.
    pub(crate) fn fall_back(&mut self, known_good: u8) {
        self.advance();
        self.raise(known_good);
        self.fed = false;
    }

    fn first_due(&self) -> Option<usize> {
        (0..CHUNKS).find(|chunk| self.due[*chunk].is_some())
    }

    fn advance(&mut self) {
        let done = self.first_due().or(self.flying.map(|f| f.0)).unwrap_or(self.listed).min(self.listed);
        self.cursor = self.cursor.max(done);
    }

    /// What lies before the cursor has everything up to here, if it was listed and filled.
    fn raise(&mut self, known: u8) {
        if self.listed >= self.cursor && self.first_due().is_none_or(|chunk| chunk >= self.cursor) {
            self.upto = self.upto.max(known);
        }
    }

    /// Above what, from where, up to where.
    fn next_listing(&self) -> (u8, usize, usize) {
        if self.listed < self.cursor { (self.upto, self.listed, self.cursor) } else { (self.base, self.listed, CHUNKS) }
    }

    fn list(&self, versions: &[u8; CHUNKS]) -> [u8; CHUNKS] {
        let (above, from, to) = self.next_listing();
        std::array::from_fn(|chunk| {
            let due = (from..to).contains(&chunk) && versions[chunk] > above;
            if due { versions[chunk] } else { 0 }
        })
    }

    /// Both sides have listed.
    fn take_lists(&mut self) {
        let (Some(own), Some(theirs)) = (self.own, self.theirs) else { return };
        let (_, _, to) = self.next_listing();
        for chunk in 0..CHUNKS {
            if own[chunk] != 0 {
                self.due[chunk] = Some(own[chunk]);
            } else if theirs[chunk] != 0 {
                self.due[chunk] = Some(self.base);
            }
        }
        (self.own, self.theirs, self.listed) = (None, None, to);
        self.goes_on();
    }

    /// What is filled is followed by the next listing, until there is none.
    fn goes_on(&mut self) {
        self.advance();
        self.listing = self.listed < CHUNKS && self.first_due().is_none() && self.flying.is_none();
        self.after = 0;
    }
}

impl Filling {
    /// C has joined as a syncing copy, and says where it stands.
    pub(super) fn sync(&self, state: &mut State) {
        let known_good = state.nodes[2].known_good;
        let said = state.mark;
        let mark = if said.base < known_good { Mark { base: known_good, ..Mark::default() } } else { said };
        let mut run = Run {
            base: mark.base,
            cursor: mark.cursor,
            upto: mark.upto.max(mark.base),
            fed: false,
            after: 0,
            listing: false,
            own: None,
            theirs: None,
            listed: 0,
            due: [None; CHUNKS],
            flying: None,
            complete: false,
        };
        run.aim(if self.on(Switch::ListsBeforeEarlierWritesFinished) { 0 } else { state.last });
        state.run = Some(run);
    }

    /// What a mark may be raised to (rule 4): K, which has not entered a sealed epoch.
    fn mark_of(&self, state: &State, run: &Run) -> Mark {
        let known = match self.switch {
            // The epoch's own empty prefix, which is above every stamp of older epochs.
            Some(Switch::ResumesBeyondKnownGood) => state.finished(),
            Some(Switch::ResumesBeyondFinished) => state.last,
            _ => state.known_good,
        };
        let mut run = run.clone();
        run.advance();
        run.raise(known);
        Mark { base: run.base, cursor: run.cursor, upto: run.upto }
    }

    pub(super) fn run_moves(&self, state: &State, actions: &mut Vec<Action>) {
        let Some(run) = &state.run else { return };
        if run.complete {
            actions.push(Action::Add);
            return;
        }
        if run.listing && state.finished() >= run.after {
            if run.own.is_none() {
                actions.push(Action::ListOwn);
            }
            if run.theirs.is_none() {
                actions.push(Action::ListTheirs);
            }
        }
        if run.flying.is_some() {
            actions.push(Action::Land);
        }
        if let Some(chunk) = run.first_due() {
            let locked = state.ops.iter().any(|op| chunk_of(op.block) == chunk) && !self.on(Switch::FillsWithoutLock);
            if !locked && run.flying.is_none() {
                actions.push(Action::Fill);
            }
        } else if run.listed == CHUNKS && run.flying.is_none() {
            actions.push(Action::Complete);
        }
        if run.listed > 0 && self.mark_of(state, run) != state.mark {
            actions.push(Action::Mark);
        }
    }

    pub(super) fn run_step(&self, state: &mut State, action: Action) {
        let Some(mut run) = state.run.take() else { return };
        match action {
            Action::ListOwn => {
                run.own = Some(run.list(&state.nodes[state.primary].version));
                run.take_lists();
            }
            Action::ListTheirs => {
                let listed = if self.on(Switch::OwnListOnly) { [0; CHUNKS] } else { run.list(&state.nodes[2].version) };
                run.theirs = Some(listed);
                run.take_lists();
            }
            Action::Fill => self.fill(state, &mut run),
            Action::Land => {
                if let Some((chunk, content, version)) = run.flying.take() {
                    land(state, chunk, content, version);
                }
                run.goes_on();
            }
            Action::Mark => {
                let mark = self.mark_of(state, &run);
                (run.cursor, run.upto) = (mark.cursor, mark.upto);
                state.mark = mark;
            }
            Action::Complete => {
                let known_good = state.known_good.max(state.nodes[state.primary].known_good);
                state.nodes[2].know(known_good);
                state.mark = Mark::default();
                (run.base, run.upto, run.cursor) = (run.base.max(known_good), run.base.max(known_good), 0);
                run.complete = true;
            }
            Action::Add => {
                let (primary, in_sync) = (state.primary, state.in_sync | bit(2));
                self.new_epoch(state, primary, in_sync);
                return;
            }
            _ => unreachable!("not a step of a run"),
        }
        state.run = Some(run);
    }

    /// Under the chunk's lock: read here, durable there.
    fn fill(&self, state: &mut State, run: &mut Run) {
        let Some(chunk) = run.first_due() else { return };
        let Some(version) = run.due[chunk].take() else { return };
        let (own, theirs) = (&state.nodes[state.primary], &state.nodes[2]);
        let equal = self.on(Switch::TrustsEqualVersions) && own.version[chunk] == theirs.version[chunk];
        let live = self.on(Switch::SkipsWhatTookLiveWrite) && theirs.version[chunk] > version;
        let content = [own.content[2 * chunk], own.content[2 * chunk + 1]];
        if self.on(Switch::FillsWithoutLock) {
            run.flying = Some((chunk, content, version));
        } else if !equal && !live {
            land(state, chunk, content, version);
        }
        run.goes_on();
    }
}

fn land(state: &mut State, chunk: usize, content: [u8; 2], version: u8) {
    let copy = &mut state.nodes[2];
    copy.content[2 * chunk..2 * chunk + 2].copy_from_slice(&content);
    // As the store does: the newest of all changes, in whatever order they came.
    copy.version[chunk] = version.max(copy.version[chunk]);
    if version > copy.known_good {
        let held = &mut copy.held[2 * chunk..2 * chunk + 2];
        held.iter_mut().for_each(|stamp| *stamp = version.max(*stamp));
    }
}
