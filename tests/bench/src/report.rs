//! What was measured, for people and for machines, and whether the limits hold.

use crate::rig::Ran;
use crate::tally::Tally;
use comfy_table::{Cell, Table};
use serde::Serialize;

/// A number with a limit.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Limit {
    pub(crate) what: &'static str,
    pub(crate) value: f64,
    /// At most this, …
    pub(crate) most: Option<f64>,
    /// … or at least this.
    pub(crate) least: Option<f64>,
    /// Depends on nothing but the store: held in a quick look too.
    #[serde(skip)]
    pub(crate) always: bool,
}

impl Limit {
    pub(crate) fn most(what: &'static str, value: f64, most: f64, always: bool) -> Self {
        Self { what, value, most: Some(most), least: None, always }
    }
    pub(crate) fn least(what: &'static str, value: f64, least: f64) -> Self {
        Self { what, value, most: None, least: Some(least), always: false }
    }
    pub(crate) fn holds(&self) -> bool {
        // Not a number is not within any limit.
        self.most.is_none_or(|most| self.value <= most) && self.least.is_none_or(|least| self.value >= least)
    }
}

/// Bytes to the disk per byte written, by what they are for.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Bytes {
    pub(crate) load: &'static str,
    pub(crate) mib_written: f64,
    pub(crate) total: f64,
    pub(crate) journal: f64,
    pub(crate) data: f64,
    pub(crate) moves: f64,
    pub(crate) pages: f64,
    pub(crate) superblocks: f64,
    pub(crate) reads: f64,
    /// Operations per request: writes, and reads.
    pub(crate) writes_per_request: f64,
    pub(crate) reads_per_request: f64,
}

impl Bytes {
    pub(crate) fn new(load: &'static str, tally: Tally, bytes: u64, requests: u64) -> Self {
        let part = |sum: u64| sum as f64 / bytes as f64;
        let writes = [tally.journal, tally.data, tally.moves, tally.pages, tally.superblocks, tally.other];
        Self {
            load,
            mib_written: bytes as f64 / f64::from(1 << 20),
            total: part(tally.written()),
            journal: part(tally.journal.bytes),
            data: part(tally.data.bytes),
            moves: part(tally.moves.bytes),
            pages: part(tally.pages.bytes),
            superblocks: part(tally.superblocks.bytes),
            reads: part(tally.reads.bytes),
            writes_per_request: writes.iter().map(|sum| sum.ops).sum::<u64>() as f64 / requests as f64,
            reads_per_request: tally.reads.ops as f64 / requests as f64,
        }
    }
}

/// How fast.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Speed {
    pub(crate) load: String,
    pub(crate) rate: f64,
    pub(crate) mib_per_second: f64,
    /// Microseconds of CPU, user and system, per request.
    pub(crate) cpu: f64,
    pub(crate) enters_per_request: f64,
    pub(crate) p50: f64,
    pub(crate) p99: f64,
}

impl Speed {
    pub(crate) fn new(load: impl Into<String>, ran: &Ran) -> Self {
        let requests = ran.requests as f64;
        Self {
            load: load.into(),
            rate: ran.rate(),
            mib_per_second: ran.bytes as f64 / ran.seconds / f64::from(1 << 20),
            cpu: ran.cpu / requests * 1e6,
            enters_per_request: ran.enters as f64 / requests,
            p50: ran.p50,
            p99: ran.p99,
        }
    }
}

/// All of it.
#[derive(Default, Debug, Serialize)]
pub(crate) struct Report {
    pub(crate) bytes: Vec<Bytes>,
    pub(crate) speeds: Vec<Speed>,
    /// Beside these.
    pub(crate) figures: Vec<(&'static str, f64)>,
    pub(crate) limits: Vec<Limit>,
}

impl Report {
    /// The limits that do not hold; in a quick look, of those that depend on the store alone.
    pub(crate) fn broken(&self, quick: bool) -> Vec<&Limit> {
        self.limits.iter().filter(|limit| !limit.holds() && (limit.always || !quick)).collect()
    }

    pub(crate) fn tables(&self) -> String {
        let number = |value: f64| Cell::new(format!("{value:.3}"));
        let mut bytes = Table::new();
        bytes.set_header(vec![
            "bytes per byte",
            "MiB written",
            "total",
            "journal",
            "data",
            "moves",
            "pages",
            "superblocks",
            "read",
            "writes/request",
            "reads/request",
        ]);
        for row in &self.bytes {
            let parts = [
                row.total,
                row.journal,
                row.data,
                row.moves,
                row.pages,
                row.superblocks,
                row.reads,
                row.writes_per_request,
                row.reads_per_request,
            ];
            let head = [Cell::new(row.load), Cell::new(format!("{:.0}", row.mib_written))];
            bytes.add_row(head.into_iter().chain(parts.map(number)));
        }
        let mut speeds = Table::new();
        speeds.set_header(vec!["load", "requests/s", "MiB/s", "CPU µs/request", "enters/request", "p50 µs", "p99 µs"]);
        for row in &self.speeds {
            let whole = |value: f64| Cell::new(format!("{value:.0}"));
            speeds.add_row(vec![
                Cell::new(&row.load),
                whole(row.rate),
                whole(row.mib_per_second),
                number(row.cpu),
                number(row.enters_per_request),
                whole(row.p50),
                whole(row.p99),
            ]);
        }
        let mut figures = Table::new();
        figures.set_header(vec!["beside", ""]);
        for (what, value) in &self.figures {
            figures.add_row(vec![Cell::new(what), number(*value)]);
        }
        let mut limits = Table::new();
        limits.set_header(vec!["limit", "value", "bound", ""]);
        for limit in &self.limits {
            let bound = match (limit.most, limit.least) {
                (Some(most), _) => format!("≤ {most}"),
                (_, Some(least)) => format!("≥ {least}"),
                _ => String::new(),
            };
            let holds = if limit.holds() { "holds" } else { "BROKEN" };
            limits.add_row(vec![Cell::new(limit.what), number(limit.value), Cell::new(bound), Cell::new(holds)]);
        }
        format!("{bytes}\n{speeds}\n{figures}\n{limits}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_holds_up_to_its_bound_and_never_for_what_is_no_number() {
        assert!(Limit::most("", 2.3, 2.3, true).holds() && !Limit::most("", 2.31, 2.3, true).holds());
        assert!(Limit::least("", 0.7, 0.7).holds() && !Limit::least("", 0.69, 0.7).holds());
        assert!(!Limit::least("", f64::NAN, 0.7).holds() && !Limit::most("", f64::NAN, 1.0, true).holds());
    }

    #[test]
    fn a_quick_look_is_broken_by_what_does_not_depend_on_the_machine_and_by_nothing_else() {
        let limits = vec![Limit::most("bytes", 3.0, 2.3, true), Limit::least("rate", 0.1, 0.7)];
        let report = Report { limits, ..Report::default() };
        assert_eq!(report.broken(true).iter().map(|limit| limit.what).collect::<Vec<_>>(), ["bytes"]);
        assert_eq!(report.broken(false).len(), 2);
    }
}
