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
//! Its pace is its caller's: a call is good for one run. After a round it rests for some calls, so that what is large is not read all the
//! time.

use super::cache::{Slot, State};
use super::flight::{Job, Pages};
use super::limits::{PATROL_PAGES, PATROL_REST};
use super::names::{ArrayName, Place};
use super::page::{Kind, PAGE, Page, Pointer, named, pointer, unseal};
use super::tree::Found;
use crate::DiskOut;
use memory::{Class, Filling};

#[derive(Debug, Default)]
pub(super) struct Patrol {
    /// A run is due.
    due: bool,
    /// Where it begins.
    next: Place,
    /// Runs of this round.
    runs: u32,
    /// Calls that are not heeded.
    rest: u32,
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
    /// Look through a little more of what is on the disk.
    pub(crate) fn patrol(&mut self) {
        match self.patrol.rest {
            0 => self.patrol.due = true,
            _ => self.patrol.rest -= 1,
        }
    }

    pub(super) fn pump_patrol(&mut self, out: &mut DiskOut<'_>) {
        self.judge_suspects();
        let busy = self.patrol.run.is_some() || !self.patrol.suspects.is_empty();
        // While pages are written some places are taken whose content is on its way.
        if !self.patrol.due || busy || self.writes() > 0 || self.failed.is_some() || self.ready() != Some(Ok(())) {
            return;
        }
        self.patrol.due = false;
        let Some((first, pages)) = self.places.taken_run(self.patrol.next, PATROL_PAGES) else {
            self.patrol = Patrol { rest: self.patrol.runs.saturating_mul(PATROL_REST), ..Patrol::default() };
            return;
        };
        // Nobody waits for it: without memory the run is left to the next call.
        let take = || self.arena.take(pages as usize * PAGE, Class::Settle);
        let (Some(one), Some(other)) = (take(), take()) else { return };
        let after = Place(first.0 + pages);
        (first.0..after.0).for_each(|place| self.places.hold(Place(place)));
        self.patrol.next = after;
        self.patrol.runs += 1;
        self.patrol.run = Some(Run { first, pages, left: 2, mirrors: [None, None] });
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
        self.counters.patrolled += u64::from(run.pages);
        for n in 0..run.pages {
            let place = Place(run.first.0 + n);
            self.places.let_go(place);
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

    /// Those whose pages are in memory now, or are nowhere.
    fn judge_suspects(&mut self) {
        for suspect in std::mem::take(&mut self.patrol.suspects) {
            match self.find(named(&suspect.page)) {
                Found::Here(slot) if self.is_at(slot, suspect.pointer) => {
                    let Some(mut good) = self.take(1) else { continue };
                    good.copy_from_slice(&*suspect.page);
                    self.heal(suspect.pointer.place, suspect.bad, good);
                }
                Found::Load => self.patrol.suspects.push(suspect),
                Found::Here(_) | Found::Hole | Found::Damaged => {}
            }
        }
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
fn page_of(run: Option<&Filling>, n: u32) -> Option<&Page> {
    run.and_then(|bytes| bytes.get(n as usize * PAGE..)).and_then(|rest| rest.first_chunk())
}
