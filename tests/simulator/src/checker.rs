//! Is a history linearizable under rule 24, sector by sector?
//!
//! A write may take effect any number of times between its beginning and its end, at least once if it succeeded, and overlapping
//! operations in any order. One that failed, or whose client died, may take effect later too: until the first success of a client of a
//! higher attach generation on the same sector, which queued behind it under its range lock or came after it was fenced.
//!
//! So each value has *windows* in which it can be set. A read that began after all windows of its value were over (a *late* read)
//! proves that the value stood from the last window's end, at the latest, to the read's beginning, at the earliest: a *hold*.
//!
//! ```text
//!   write 5      ├────────┤
//!   read → 5                     ├─────┤          hold of 5:  end of write 5 … beginning of the read
//!   write 6           ├──────────────────┤        fine: it can take effect before or after
//!   write 7                 ├──┤                  wrong: it must take effect within the hold
//! ```
//!
//! Wrong are: a value that nobody could have written by then; two holds of different values that overlap; a successful write, or a
//! read of another value, that lies wholly within a hold. Without these a linearization exists: holds are disjoint, whatever must
//! happen outside them has a moment there, and every value read at such a moment may be set just before (its window is open).

use crate::history::{End, History, Operation, What};

/// A sector whose history has no order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Violation {
    /// The sector.
    pub sector: u64,
    /// What contradicts what.
    pub what: String,
    /// The operations that are to blame.
    pub operations: Vec<u32>,
}

/// A moment after everything.
const NEVER: u64 = u64::MAX;

#[derive(Clone, Copy)]
struct Write {
    op: u32,
    value: u32,
    from: u64,
    to: u64,
    must: bool,
}

#[derive(Clone, Copy)]
struct Read {
    op: u32,
    value: u32,
    from: u64,
    to: u64,
}

/// Checks every sector. Returns the number of sector reads that were checked.
pub fn check(history: &History) -> Result<u64, Violation> {
    let end = history.operations.iter().map(|o| o.first + o.sectors).max().unwrap_or(0);
    let mut by_sector: Vec<Vec<usize>> = vec![Vec::new(); usize::try_from(end).unwrap_or(0)];
    for (at, operation) in history.operations.iter().enumerate() {
        for sector in operation.first..operation.first + operation.sectors {
            if let Some(list) = usize::try_from(sector).ok().and_then(|s| by_sector.get_mut(s)) {
                list.push(at);
            }
        }
    }
    let mut checked = 0;
    for (sector, list) in (0..).zip(&by_sector) {
        let operations: Vec<&Operation> = list.iter().map(|at| &history.operations[*at]).collect();
        checked += check_sector(sector, &operations)?;
    }
    Ok(checked)
}

/// Until when an operation of this generation can take effect on a sector: the first success of a later one there.
fn fenced_at(operations: &[&Operation], generation: u64) -> u64 {
    let later = operations.iter().filter(|o| o.generation > generation);
    later.filter_map(|o| if let End::Ok(at) = o.end { Some(at) } else { None }).min().unwrap_or(NEVER)
}

fn check_sector(sector: u64, operations: &[&Operation]) -> Result<u64, Violation> {
    let wrong = |what: String, operations: &[u32]| Err(Violation { sector, what, operations: operations.to_vec() });
    let mut writes = vec![Write { op: 0, value: 0, from: 0, to: 0, must: true }];
    let mut reads = Vec::new();
    for o in operations {
        let (to, must) = if let End::Ok(at) = o.end { (at, true) } else { (NEVER, false) };
        match &o.what {
            What::Read(values) if must => {
                let at = usize::try_from(sector - o.first).unwrap_or(usize::MAX);
                let Some(value) = values.get(at) else {
                    return wrong(format!("read {} has no value for it", o.id), &[o.id]);
                };
                reads.push(Read { op: o.id, value: *value, from: o.began, to });
            }
            What::Read(_) => {}
            What::Set(values) => {
                let at = usize::try_from(sector - o.first).unwrap_or(usize::MAX);
                let Some(value) = values.get(at) else {
                    return wrong(format!("rollback {} has no value for it", o.id), &[o.id]);
                };
                writes.push(Write { op: o.id, value: *value, from: o.began, to, must });
            }
            What::Write | What::Zero => {
                let fence = fenced_at(operations, o.generation);
                if o.began > fence {
                    if must {
                        return wrong(format!("write {} succeeded after its client was fenced", o.id), &[o.id]);
                    }
                    continue;
                }
                let value = if o.what == What::Zero { 0 } else { o.id };
                writes.push(Write { op: o.id, value, from: o.began, to: to.min(fence), must });
            }
        }
    }

    let mut holds: Vec<Read> = Vec::new();
    let mut points: Vec<Read> = Vec::new();
    for read in &reads {
        let by = writes.iter().filter(|w| w.value == read.value && w.from < read.to);
        let Some(last) = by.clone().map(|w| w.to).max() else {
            return wrong(format!("read {} returned {}, which was not written then", read.op, read.value), &[read.op]);
        };
        if last < read.from {
            holds.push(Read { from: last, to: read.from, ..*read });
        } else {
            let first = by.map(|w| w.from).min().unwrap_or(0);
            points.push(Read { from: read.from.max(first), ..*read });
        }
    }
    for (at, hold) in holds.iter().enumerate() {
        let (op, value) = (hold.op, hold.value);
        let within = |from: u64, to: u64| from > hold.from && to < hold.to;
        if let Some(other) = holds[at + 1..].iter().find(|o| o.value != value && o.from < hold.to && hold.from < o.to) {
            let what =
                format!("read {op} returned {value} and read {} {}: one of them is stale", other.op, other.value);
            return wrong(what, &[op, other.op]);
        }
        if let Some(w) = writes.iter().find(|w| w.must && w.value != value && within(w.from, w.to)) {
            let what = format!("read {op} returned {value}, which write {} had overwritten with {}", w.op, w.value);
            return wrong(what, &[op, w.op]);
        }
        if let Some(r) = points.iter().find(|r| r.value != value && within(r.from, r.to)) {
            let what = format!("read {op} returned {value} again after read {} had returned {}", r.op, r.value);
            return wrong(what, &[op, r.op]);
        }
    }
    Ok(reads.len() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One sector's operations in words: (generation, what, began, ended or 0).
    fn history(operations: &[(u64, What, u64, u64)]) -> History {
        let mut history = History::default();
        for (id, (generation, what, began, ended)) in (1..).zip(operations) {
            let end = if *ended == 0 { End::Open } else { End::Ok(*ended) };
            let what = what.clone();
            history.operations.push(Operation {
                id,
                generation: *generation,
                what,
                first: 3,
                sectors: 1,
                began: *began,
                end,
            });
        }
        history
    }
    fn good(operations: &[(u64, What, u64, u64)]) {
        assert!(check(&history(operations)).is_ok(), "{:?}", check(&history(operations)));
    }
    fn bad(operations: &[(u64, What, u64, u64)], blamed: &[u32]) {
        let violation = check(&history(operations)).expect_err("accepted");
        assert_eq!(violation.operations, blamed, "{violation:?}");
    }
    use What::{Write, Zero};
    fn read(value: u32) -> What {
        What::Read(vec![value])
    }

    #[test]
    fn a_read_returns_the_last_write_or_zeros() {
        good(&[(1, read(0), 1, 2), (1, Write, 3, 4), (1, read(2), 5, 6), (1, Zero, 7, 8), (1, read(0), 9, 10)]);
        bad(&[(1, Write, 1, 2), (1, read(0), 3, 4)], &[2, 1]);
        bad(&[(1, Write, 1, 2), (1, Write, 3, 4), (1, read(1), 5, 6)], &[3, 2]);
    }

    #[test]
    fn a_value_is_not_read_before_it_is_written_nor_invented() {
        bad(&[(1, read(2), 1, 2), (1, Write, 3, 4)], &[1]);
        bad(&[(1, read(77), 1, 2)], &[1]);
    }

    #[test]
    fn what_overlaps_may_end_in_any_order() {
        good(&[(1, Write, 1, 10), (1, Write, 2, 9), (1, read(1), 11, 12)]);
        good(&[(1, Write, 1, 10), (1, Write, 2, 9), (1, read(2), 11, 12)]);
        good(&[(1, Write, 1, 10), (1, read(0), 2, 3), (1, read(1), 4, 5)]);
    }

    #[test]
    fn a_write_may_take_effect_twice_before_its_end_and_never_after() {
        // 1, then 2, then 1 again while 1 is still in flight: a resend.
        good(&[(1, Write, 1, 20), (1, read(1), 2, 3), (1, Write, 4, 5), (1, read(3), 6, 7), (1, read(1), 8, 9)]);
        bad(&[(1, Write, 1, 4), (1, Write, 5, 6), (1, read(2), 7, 8), (1, read(1), 9, 10)], &[3, 4]);
    }

    #[test]
    fn reads_do_not_go_back_once_nothing_is_in_flight() {
        // Both writes are over; whichever was last, both reads must agree.
        bad(&[(1, Write, 1, 10), (1, Write, 2, 9), (1, read(1), 11, 12), (1, read(2), 13, 14)], &[3, 4]);
        // Also if the reads overlap.
        bad(&[(1, Write, 1, 10), (1, Write, 2, 9), (1, read(1), 11, 14), (1, read(2), 12, 13)], &[3, 4]);
        // A new value was seen, so the old one is gone for good.
        bad(&[(1, Write, 1, 2), (1, Write, 3, 20), (1, read(2), 4, 5), (1, read(1), 6, 7)], &[4, 3]);
    }

    #[test]
    fn a_failed_write_may_come_true_late() {
        good(&[(1, Write, 1, 0), (1, read(0), 2, 3), (1, read(1), 90, 91)]);
        bad(&[(1, Write, 1, 0), (1, read(1), 2, 3), (1, Write, 4, 5), (1, read(0), 6, 7)], &[4, 3]);
    }

    #[test]
    fn a_dead_clients_write_may_come_true_until_its_successor_has_succeeded_there() {
        good(&[(1, Write, 1, 0), (2, read(1), 4, 5)]);
        good(&[(1, Write, 1, 0), (2, read(0), 4, 5), (2, read(0), 6, 7)]);
        bad(&[(1, Write, 1, 0), (2, read(0), 4, 5), (2, read(0), 6, 7), (2, read(1), 8, 9)], &[3, 4]);
        bad(&[(2, read(0), 4, 5), (1, Write, 6, 7)], &[2]);
        bad(&[(2, read(0), 4, 5), (1, Write, 6, 0), (2, read(2), 8, 9)], &[3]);
    }

    #[test]
    fn zeros_have_many_writers() {
        good(&[(1, Write, 1, 2), (1, Zero, 3, 4), (1, read(0), 5, 6), (1, Zero, 7, 8), (1, read(0), 9, 10)]);
        good(&[(1, Write, 1, 2), (1, Zero, 3, 20), (1, read(1), 5, 6), (1, read(0), 7, 8), (1, read(0), 21, 22)]);
        bad(&[(1, Zero, 1, 2), (1, Write, 3, 4), (1, read(0), 5, 6)], &[3, 2]);
    }
}
