//! When blocks go home, and how many at a time: by the room that is left of the journal, and at the pace of requests.

use super::super::limits::{
    FETCHED_PER_PACE, FETCHED_PER_RECORD, HOME_OUT, HOME_OUT_LATE, HOME_PER_PACE, HOME_PER_RECORD, HOME_PER_TURN,
    LOOKS_PER_FOLD, PACE,
};
use driver::Time;

/// How far the moves of a fold are, beside what fills up meanwhile.
#[derive(Clone, Copy, Debug)]
pub(super) struct Course {
    /// What is to be done, of how much: blocks to be moved, and patches that have no place yet.
    left: u32,
    all: u32,
    /// Blocks that are being moved.
    pub(super) begun: u32,
    /// The part of what was not begun that probably has to go home, and how much was free of the journal when that was looked for.
    live: u64,
    looked: u32,
    /// There was little room before it was over; and in the last fold, after which nothing is left for later because it may be hidden then.
    pub(super) late: bool,
    was_late: bool,
    /// The most that was free of the journal since the fold began: readers may keep the last fold's gain back at first.
    free: u32,
    /// So much of it is to be left when the moves are over; a quarter, if that is more.
    spare: u32,
    /// Writes home that are out, by their weight.
    pub(super) out: u32,
}

/// What parts are parts of.
const WHOLE: u64 = 1 << 10;

pub(super) fn part(of: u64, all: u64) -> u64 {
    (of.saturating_mul(WHOLE) / all.max(1)).min(WHOLE)
}

impl Default for Course {
    fn default() -> Self {
        let (live, looked) = (WHOLE, u32::MAX);
        Self { left: 0, all: 0, begun: 0, live, looked, late: false, was_late: false, free: 0, spare: 0, out: 0 }
    }
}

impl Course {
    /// A fold of so many patches begins, which is to leave so much of the journal free.
    pub(super) fn begin(&mut self, patches: usize, spare: u32) {
        let left = u32::try_from(patches).unwrap_or(u32::MAX); // within the overlay's bound
        *self = Self { left, all: left, spare, out: self.out, was_late: self.late, ..Self::default() };
    }

    /// True if the fold, or the last one, had not enough room.
    pub(super) fn is_late(&self) -> bool {
        self.late
    }

    /// A patch has its place: what it moves was added.
    pub(super) fn placed(&mut self) {
        self.left = self.left.saturating_sub(1);
        self.all = self.all.saturating_sub(1);
    }

    pub(super) fn add(&mut self) {
        self.left += 1;
        self.all += 1;
    }

    /// So many blocks are home.
    pub(super) fn over(&mut self, blocks: u32) {
        self.left = self.left.saturating_sub(blocks);
        self.begun = self.begun.saturating_sub(blocks);
    }

    /// True if it is to be looked again for what stays in the journal: some of it was used since, or came back.
    pub(super) fn is_to_look(&self, free: u32) -> bool {
        !self.was_late && (free > self.looked || self.looked - free > self.free / LOOKS_PER_FOLD)
    }

    /// So many blocks of those that were looked at have to go home.
    pub(super) fn looked(&mut self, free: u32, live: usize, all: usize) {
        (self.live, self.looked) = (part(live as u64, all as u64), free);
    }

    /// The part of the moves that may still be to be done when so much of the journal and this part of the next generation are free, if they
    /// are to be over when a quarter of what was free is left, or what is to be.
    pub(super) fn timetable(&mut self, free: u32, generation: u64) -> u64 {
        self.free = self.free.max(free);
        let free = part(free.into(), self.free.into()).min(generation);
        let spare = part(self.spare.into(), self.free.into()).clamp(WHOLE / 4, WHOLE - 1);
        free.saturating_sub(spare) * WHOLE / (WHOLE - spare)
    }

    /// Of all moves the part that is to be done: what was begun, if that counts, and what probably has to be.
    fn ahead(&self, begun: u32) -> u64 {
        let live = u64::from(self.left.saturating_sub(self.begun)).saturating_mul(self.live) / WHOLE;
        part(live + u64::from(begun), self.all.into())
    }

    /// True if there is time for what was not begun; never, where the timetable says that nothing is left to be done.
    pub(super) fn is_early(&self, timetable: u64) -> bool {
        timetable > 0 && self.ahead(0) <= timetable
    }

    /// How many writes may be out: few as long as the moves are in time, and the more the later they are.
    pub(super) fn may_be_out(&self, timetable: u64) -> u32 {
        let late = self.ahead(self.begun).saturating_sub(timetable);
        let more = u64::from(HOME_OUT_LATE - HOME_OUT).saturating_mul(late) * 4 / WHOLE;
        HOME_OUT.saturating_add(u32::try_from(more).unwrap_or(HOME_OUT_LATE)).min(HOME_OUT_LATE)
    }
}

/// How much of the moves may be done now.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Pace {
    /// When there is more to do, if nothing comes before.
    pub(super) next: Time,
    /// Writes home.
    pub(super) writes: u32,
    /// Blocks to be read.
    pub(super) blocks: u32,
    /// Records of the journal that were counted.
    records: u64,
}

impl Pace {
    pub(super) const ALL: Self = Self { next: Time(0), writes: u32::MAX, blocks: u32::MAX, records: 0 };

    /// Time has passed, and there are so many records now.
    pub(super) fn step(&mut self, now: Time, records: u64) {
        let appended = u32::try_from(records.saturating_sub(self.records)).unwrap_or(u32::MAX);
        self.records = records;
        let earned = |left: u32, each: u32| left.saturating_add(appended.saturating_mul(each)).min(HOME_PER_TURN);
        self.writes = earned(self.writes, HOME_PER_RECORD);
        self.blocks = earned(self.blocks, FETCHED_PER_RECORD);
        if now >= self.next {
            self.next = now + PACE;
            self.writes = self.writes.max(HOME_PER_PACE);
            self.blocks = self.blocks.max(FETCHED_PER_PACE);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outs(course: &mut Course, free: &[u32]) -> Vec<u32> {
        let out = |free: &u32| {
            let timetable = course.timetable(*free, WHOLE);
            course.may_be_out(timetable)
        };
        free.iter().map(out).collect()
    }

    /// A fold of so many blocks, all of which wait to go home.
    fn course(blocks: u32) -> Course {
        let mut course = Course::default();
        course.begin(blocks as usize / 2, 0);
        for _ in 0..blocks / 2 {
            course.add();
            course.add();
            course.placed();
        }
        assert_eq!((course.left, course.all), (blocks, blocks));
        course
    }

    #[test]
    fn the_later_the_moves_are_the_more_writes_are_out() {
        let mut course = course(1000);
        // All is to be moved, and nothing of the journal was used meanwhile.
        assert_eq!(outs(&mut course, &[1000, 1000]), [HOME_OUT; 2]);
        // Half is moved: that is in time until five eighths are left, a quarter of which is not counted on.
        course.left = 500;
        assert_eq!(outs(&mut course, &[750, 625]), [HOME_OUT; 2]);
        let late = outs(&mut course, &[600, 550, 500, 250, 0]);
        assert!(late.is_sorted() && late[0] > HOME_OUT && late[1] < 128, "{late:?}");
        assert_eq!(late[3..], [HOME_OUT_LATE; 2]);
        // Nor may the next generation be full before.
        let timetable = course.timetable(1000, WHOLE / 4);
        assert_eq!(course.may_be_out(timetable), HOME_OUT_LATE);
    }

    #[test]
    fn what_is_hidden_is_in_the_timetable() {
        let early = |course: &mut Course, free: u32| {
            let timetable = course.timetable(free, WHOLE);
            course.is_early(timetable)
        };
        let mut course = course(300);
        assert!(early(&mut course, 1000) && !early(&mut course, 990), "{course:?}");
        // Of what waits half is hidden: there is time until five eighths are left, …
        course.looked(990, 20, 40);
        assert!(early(&mut course, 630) && !early(&mut course, 620), "{course:?}");
        // …or until seven sixteenths, if half of it is home.
        course.left = 150;
        assert!(early(&mut course, 440) && !early(&mut course, 430), "{course:?}");
        // What is left is hidden.
        course.looked(430, 0, 40);
        assert!(early(&mut course, 260) && !early(&mut course, 250), "{course:?}");
    }

    #[test]
    fn it_is_looked_for_what_is_hidden_as_the_journal_is_used() {
        let mut course = course(300);
        course.timetable(3200, WHOLE);
        assert!(course.is_to_look(3200), "nobody has looked");
        course.looked(3200, 1, 1);
        assert!(!course.is_to_look(3200) && !course.is_to_look(3100) && course.is_to_look(3099));
        assert!(course.is_to_look(3300), "more is free: what was looked at was the beginning");
        // Where there was not enough room nothing is left for later.
        course.late = true;
        course.begin(300, 0);
        assert!(!course.is_to_look(0) && course.live == WHOLE);
        course.begin(300, 0);
        assert!(course.is_to_look(0), "once");
    }

    #[test]
    fn patches_without_a_place_are_still_to_be_done() {
        let mut course = Course::default();
        course.begin(1000, 0);
        course.timetable(1000, WHOLE);
        // A tenth of them has a place, and what they move is home.
        for _ in 0..100 {
            course.add();
            course.placed();
            course.left -= 1;
        }
        assert!(outs(&mut course, &[750])[0] > 4 * HOME_OUT, "{course:?}");
    }

    #[test]
    fn what_a_reader_kept_back_of_the_journal_counts_when_it_is_there() {
        let mut course = Course::default();
        course.begin(1000, 0);
        assert_eq!(outs(&mut course, &[500, 4000]), [HOME_OUT; 2]);
        assert_eq!(outs(&mut course, &[1000]), [HOME_OUT_LATE], "a quarter, although it is more than at the beginning");
        course.begin(0, 0);
        assert_eq!(outs(&mut course, &[0, 4000]), [HOME_OUT; 2], "nothing to do");
    }
}
