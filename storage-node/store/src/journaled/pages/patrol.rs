//! The patrol reads both mirrors of what nobody asks for, so that a bad one is put right while the other is still good.
//!
//! ```text
//!   patrol() ──► a run of taken places, held ──► both mirrors read ──► alike: sound
//!                                                      └─ not alike: what the whole one says it is ──► if a pointer says so too: heal
//! ```
//! A page names itself, but only a pointer knows that it is still the one: what was given back or replaced meanwhile is left alone, and so is
//! a page neither of whose mirrors is whole, which whoever needs it is told. The places of a run are held only while it is read: a heal
//! writes what the pointer's checksum says, whatever happened since.
//!
//! A sector that cannot be read fails the whole read: the pages of such a run are then read one by one, so that none hides its neighbours,
//! and each a few times, as a read that failed says nothing about what is on the disk.
//!
//! Its pace is its caller's: for so much content looked through there is one run. After a round it rests for some runs' worth, so that
//! what is large is not read all the time. What no pointer within the tree leads to (the map of places, the superblocks) it does not read:
//! where no checkpoint has written that for long, one is due.

use super::cache::{Slot, State};
use super::flight::{Job, Pages};
use super::limits::{LOAD_ROUNDS, PATROL_MAP, PATROL_PAGES, PATROL_PER, PATROL_REST};
use super::names::{ArrayName, Place};
use super::page::{Kind, PAGE, Page, Pointer, named, pointer, unseal};
use super::tree::Found;
use crate::DiskOut;
use memory::{Class, Filling};

#[derive(Debug, Default)]
pub(super) struct Patrol {
    /// Blocks of content that were looked through, and not yet answered with a run.
    blocks: u32,
    /// A run is due.
    due: bool,
    /// Where it begins.
    next: Place,
    /// Before this place runs are of one page: a longer one could not be read.
    singly: Place,
    /// How often the page at `next` was read in vain.
    tries: u8,
    /// Runs of this round.
    runs: u32,
    /// Runs that are left out.
    rest: u32,
    /// Runs, made or left out, since the map of places was written.
    since_map: u32,
    /// On its way from the disk.
    run: Option<Run>,
    /// Not alike, and their pages not found yet.
    suspects: Vec<Suspect>,
}

#[derive(Debug)]
struct Run {
    first: Place,
    pages: u32,
    /// Mirrors not yet read.
    left: u8,
    /// What was read of them.
    mirrors: [Option<Filling>; 2],
}

impl Run {
    fn end(&self) -> Place {
        Place(self.first.0 + self.pages)
    }

    fn places(&self) -> impl Iterator<Item = Place> + use<> {
        (self.first.0..self.end().0).map(Place)
    }
}

/// A place one of whose mirrors is whole.
#[derive(Debug)]
struct Suspect {
    /// The whole one.
    page: Box<Page>,
    /// What would lead to it.
    pointer: Pointer,
    /// The other one.
    bad: u8,
}

impl Pages {
    /// So many blocks of content were looked through: look through as much more of what leads to content.
    pub(crate) fn patrol(&mut self, blocks: u32) {
        let patrol = &mut self.patrol;
        patrol.blocks += blocks;
        while patrol.blocks >= PATROL_PER {
            patrol.blocks -= PATROL_PER;
            patrol.since_map += 1;
            match patrol.rest {
                0 => patrol.due = true,
                _ => patrol.rest -= 1,
            }
        }
    }

    /// True if the map of places and what points to it should be written anew, as nothing else did for long.
    pub(crate) fn is_map_old(&self) -> bool {
        self.patrol.since_map >= PATROL_MAP
    }

    pub(super) fn map_is_new(&mut self) {
        self.patrol.since_map = 0;
    }

    /// True after a round.
    #[cfg(test)]
    pub(super) fn patrol_rests(&self) -> bool {
        self.patrol.rest > 0
    }

    pub(super) fn pump_patrol(&mut self, out: &mut DiskOut<'_>) {
        self.judge_suspects();
        let busy = self.patrol.run.is_some() || !self.patrol.suspects.is_empty();
        // While pages are written some places are taken whose content is on its way.
        if !self.patrol.due || busy || self.writes() > 0 || self.failed.is_some() || self.ready() != Some(Ok(())) {
            return;
        }
        self.patrol.due = false;
        let Patrol { next, singly, .. } = self.patrol;
        let Some((first, pages)) = self.places.taken_run(next, if next < singly { 1 } else { PATROL_PAGES }) else {
            let Patrol { blocks, runs, since_map, .. } = self.patrol;
            let rest = runs.max(1).saturating_mul(PATROL_REST);
            self.patrol = Patrol { blocks, rest, since_map, ..Patrol::default() };
            return;
        };
        // Nobody waits for it: its memory is that of resync, and without any the run is left to the next call.
        let take = || self.arena.take(pages as usize * PAGE, Class::Resync);
        let (Some(one), Some(other)) = (take(), take()) else { return };
        let run = Run { first, pages, left: 2, mirrors: [None, None] };
        run.places().for_each(|place| self.places.hold(place));
        self.patrol.next = run.end();
        self.patrol.runs += 1;
        self.patrol.run = Some(run);
        for (mirror, into) in [(0, one), (1, other)] {
            self.read(Job::Patrol { mirror }, self.region.at(first, mirror), into, out);
        }
    }

    /// A mirror of the run was read, or could not be. True if places were let go.
    pub(super) fn patrolled(&mut self, mirror: u8, into: Filling, whole: bool) -> bool {
        let Some(run) = &mut self.patrol.run else { return self.stray() };
        run.mirrors[usize::from(mirror & 1)] = Some(into).filter(|_| whole);
        run.left -= 1;
        if run.left > 0 {
            return false;
        }
        let Some(run) = self.patrol.run.take() else { return false };
        run.places().for_each(|place| self.places.let_go(place));
        let both = run.mirrors.iter().all(Option::is_some);
        let tries = if run.pages > 1 { 0 } else { self.patrol.tries + 1 };
        if !both && tries < LOAD_ROUNDS {
            self.patrol.singly = self.patrol.singly.max(run.end());
            (self.patrol.next, self.patrol.tries) = (run.first, tries);
            return true;
        }
        self.patrol.tries = 0;
        self.counters.patrolled += if both { u64::from(run.pages) } else { 0 };
        for (n, place) in run.places().enumerate() {
            self.compare(place, run.mirrors.each_ref().map(|mirror| page_of(mirror.as_ref(), n)));
        }
        self.judge_suspects();
        true
    }

    fn compare(&mut self, place: Place, mirrors: [Option<&Page>; 2]) {
        if mirrors[0] == mirrors[1] {
            return;
        }
        for (page, bad) in [(mirrors[0], 1), (mirrors[1], 0)] {
            let Some(page) = page else { continue };
            let Some(crc) = unseal(page, self.region.disk_id, Kind::Array, named(page)) else { continue };
            self.patrol.suspects.push(Suspect { page: Box::new(*page), pointer: Pointer { place, crc }, bad });
        }
    }

    /// Those whose pages are in memory now, or are nowhere. The others stay, as do those for which there is no room now.
    fn judge_suspects(&mut self) {
        for suspect in std::mem::take(&mut self.patrol.suspects) {
            let later = match self.find(named(&suspect.page)) {
                Found::Here(slot) if self.is_at(slot, suspect.pointer) => !self.put_right(&suspect),
                Found::Load => true,
                Found::Here(_) | Found::Hole | Found::Damaged => false,
            };
            if later && self.failed.is_none() {
                self.patrol.suspects.push(suspect);
            }
        }
    }

    /// False if there is no room for it now.
    fn put_right(&mut self, suspect: &Suspect) -> bool {
        let place = suspect.pointer.place;
        if self.places.is_held(place) {
            return true; // who loaded the page found it out, too
        }
        let Some(mut good) = self.may_heal(place).then(|| self.take(1)).flatten() else { return false };
        good.copy_from_slice(&*suspect.page);
        self.heal(place, suspect.bad, good);
        true
    }

    /// True if a page has not changed since it was written, and this leads to it.
    fn is_at(&mut self, slot: Slot, at: Pointer) -> bool {
        if driver::mutant::on("patrol_believes_pages") {
            return true;
        }
        let frame = self.cache.frame(slot);
        let (key, state) = (frame.key, frame.state());
        let led_by = match frame.parent {
            Some(parent) => pointer(&self.cache.frame(parent).page, key.slot_in_parent()),
            None => match self.arrays.get(&ArrayName(key.array)) {
                Some(array) => Pointer { place: array.root.place, crc: array.root.crc },
                None => Pointer::HOLE,
            },
        };
        state == State::Clean(at.place) && led_by == at
    }
}

/// The `n`th page of a run that was read.
fn page_of(run: Option<&Filling>, n: usize) -> Option<&Page> {
    run.and_then(|bytes| bytes.get(n * PAGE..)).and_then(|rest| rest.first_chunk())
}
