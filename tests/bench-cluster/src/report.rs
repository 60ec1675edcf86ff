//! What was measured, for people and for machines, and whether the budget holds.

use crate::account::Used;
use crate::cases::Case;
use crate::fio::Ran;
use crate::options::{Medium, Options};
use crate::peers::Who;
use crate::plot;
use anyhow::{Context, Result};
use comfy_table::{Cell, Table};
use serde::Serialize;
use std::path::Path;

/// One run.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Sample {
    pub(crate) ran: Ran,
    pub(crate) used: Used,
    pub(crate) enters: Option<f64>,
}

pub(crate) fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => values[middle],
        _ => f64::midpoint(values[middle - 1], values[middle]),
    }
}

/// All runs of one case by one of them.
#[derive(Debug, Serialize)]
pub(crate) struct Row {
    pub(crate) medium: Medium,
    pub(crate) case: &'static str,
    pub(crate) bytes: usize,
    pub(crate) who: Who,
    pub(crate) samples: Vec<Sample>,
}

impl Row {
    /// The median of something over the rounds.
    pub(crate) fn median(&self, of: impl Fn(&Sample) -> f64) -> f64 {
        median(self.samples.iter().map(of))
    }

    pub(crate) fn rate(&self) -> f64 {
        self.median(|sample| sample.ran.rate)
    }

    /// Least and most.
    pub(crate) fn range(&self) -> (f64, f64) {
        let rates = || self.samples.iter().map(|sample| sample.ran.rate);
        (rates().fold(f64::INFINITY, f64::min), rates().fold(0.0, f64::max))
    }

    fn cpu(&self) -> f64 {
        self.median(|sample| sample.used.cpu / sample.ran.requests * 1e6)
    }

    fn wire(&self) -> f64 {
        self.median(|sample| sample.used.wire as f64 / sample.ran.requests)
    }

    fn enters(&self) -> f64 {
        self.median(|sample| sample.enters.map_or(f64::NAN, |enters| enters / sample.ran.requests))
    }
}

/// A number with its bound.
#[derive(Debug, Serialize)]
pub(crate) struct Limit {
    what: String,
    value: f64,
    most: Option<f64>,
    least: Option<f64>,
}

impl Limit {
    pub(crate) fn least(what: String, value: f64, least: f64) -> Self {
        Self { what, value, most: None, least: Some(least) }
    }

    /// Not a number is not within any bound.
    pub(crate) fn holds(&self) -> bool {
        self.most.is_none_or(|most| self.value <= most) && self.least.is_none_or(|least| self.value >= least)
    }
}

pub(crate) fn limits_table(limits: &[Limit]) -> Table {
    let mut table = Table::new();
    table.set_header(vec!["limit", "value", "bound", ""]);
    for limit in limits {
        let bound = match (limit.most, limit.least) {
            (Some(most), _) => format!("≤ {most}"),
            (_, Some(least)) => format!("≥ {least}"),
            _ => String::new(),
        };
        let value = Cell::new(format!("{:.2}", limit.value));
        let holds = if limit.holds() { "holds" } else { "BROKEN" };
        table.add_row(vec![Cell::new(&limit.what), value, Cell::new(bound), Cell::new(holds)]);
    }
    table
}

/// All of it.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    machine: Vec<(&'static str, String)>,
    pub(crate) rows: Vec<Row>,
    /// Of the largest node, after all of it.
    pub(crate) memory: Vec<(Medium, u64)>,
    /// What the largest node took beside its caches, with a large volume; see `capacity`.
    pub(crate) capacity: Option<u64>,
    pub(crate) limits: Vec<Limit>,
}

impl Report {
    pub(crate) fn new(mut machine: Vec<(&'static str, String)>, options: &Options) -> Self {
        let (rounds, seconds) = (options.rounds, options.time.as_secs());
        machine.push(("policy", if options.pin { "all on one core" } else { "unpinned" }.to_owned()));
        machine.push(("rounds", format!("{rounds} of {seconds} s, in turns; medians")));
        Self { machine, rows: Vec::new(), memory: Vec::new(), capacity: None, limits: Vec::new() }
    }

    pub(crate) fn add(&mut self, medium: Medium, case: &Case, who: Who, sample: Sample) {
        match self.rows.iter_mut().find(|row| (row.medium, row.case, row.who) == (medium, case.name, who)) {
            Some(row) => row.samples.push(sample),
            None => {
                let samples = vec![sample];
                self.rows.push(Row { medium, case: case.name, bytes: case.bytes, who, samples });
            }
        }
    }

    fn row(&self, medium: Medium, case: &str, who: Who) -> Option<&Row> {
        self.rows.iter().find(|row| (row.medium, row.case, row.who) == (medium, case, who))
    }

    /// Compares with the budget. What was not measured is not judged.
    pub(crate) fn judge(&mut self) {
        let mut limits = Vec::new();
        let mut limit = |what: String, value: Option<f64>, most: Option<f64>, least: Option<f64>| {
            limits.extend(value.map(|value| Limit { what, value, most, least }));
        };
        let beside = |ours, medium, case, to| {
            let (ours, theirs) = (self.row(medium, case, ours)?, self.row(medium, case, to)?);
            Some(ours.rate() / theirs.rate())
        };
        let ratio = |medium, case, to| beside(Who::Trine, medium, case, to);
        let ours = |case| self.row(Medium::Ram, case, Who::Trine);
        for case in ["write-32", "write-128", "read-32"] {
            limit(format!("{case}: rate / QEMU quorum"), ratio(Medium::Ram, case, Who::Quorum), None, Some(2.0));
        }
        let mean = |who| self.row(Medium::Ram, "write-1", who).map(|row| row.median(|sample| sample.ran.mean));
        let against = mean(Who::Floor).zip(mean(Who::Hop)).map(|(floor, hop)| floor + hop);
        let latency = mean(Who::Trine).zip(against).map(|(ours, theirs)| ours / theirs);
        limit("write-1: latency / (floor + one NBD hop)".to_owned(), latency, Some(1.2), None);
        for (case, most) in [("write-32", 20.0), ("write-128", 12.0)] {
            limit(format!("{case}: µs of CPU of the nodes per write"), ours(case).map(Row::cpu), Some(most), None);
        }
        limit("write-32: io_uring_enter per write".to_owned(), ours("write-32").map(Row::enters), Some(0.5), None);
        for (case, most) in [("write-1", 13_100.0), ("write-32", 12_900.0), ("write-128", 12_900.0)] {
            limit(format!("{case}: bytes on the wire per write"), ours(case).map(Row::wire), Some(most), None);
        }
        // The floor has no NBD in front.
        for (ours, how) in [(Who::Trine, ""), (Who::Native, ", no NBD")] {
            let what = format!("write-32 on files{how}: rate / floor");
            limit(what, beside(ours, Medium::File, "write-32", Who::Floor), None, Some(0.6));
        }
        for (case, least) in [("sequential-write-1m", 0.8), ("sequential-read-1m", 0.9)] {
            for medium in [Medium::Ram, Medium::File] {
                let what = format!("{case} on {}: rate / floor", medium.name());
                limit(what, ratio(medium, case, Who::Floor), None, Some(least));
            }
        }
        // How much dearer a request is than with one of them.
        let growth = |who, of: &str, count: usize| {
            let cpu = |count: usize| self.row(Medium::Ram, &format!("growth-{of}-{count}"), who).map(Row::cpu);
            Some(cpu(count)? / cpu(1)?)
        };
        for count in [8, 64] {
            let what = format!("µs of CPU of the nodes per write: {count} volumes / one");
            limit(what, growth(Who::Trine, "volumes", count), Some(1.3), None);
        }
        for count in [16, 64] {
            let ours = growth(Who::Trine, "clients", count).zip(growth(Who::Floor, "clients", count));
            let what = format!("growth of µs of CPU per write from one client to {count} / the floor's");
            limit(what, ours.map(|(ours, floor)| ours / floor), Some(1.3), None);
        }
        let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        let what = "MiB of the largest node beside its caches, 8 of 100 GiB written".to_owned();
        limit(what, self.capacity.map(mib), Some(64.0), None);
        self.limits = limits;
    }

    pub(crate) fn tables(&self) -> String {
        let number = |value: f64| Cell::new(if value.is_nan() { String::new() } else { format!("{value:.1}") });
        let whole = |value: f64| Cell::new(format!("{value:.0}"));
        let mut rows = Table::new();
        rows.set_header(vec![
            "disks",
            "case",
            "who",
            "requests/s",
            "least",
            "most",
            "MiB/s",
            "mean µs",
            "p99 µs",
            "CPU µs",
            "enters",
            "switches",
            "wire B",
            "disk B",
        ]);
        for row in &self.rows {
            let per = |of: fn(&Used) -> f64| row.median(|sample| of(&sample.used) / sample.ran.requests);
            let (least, most) = row.range();
            rows.add_row(vec![
                Cell::new(row.medium.name()),
                Cell::new(row.case),
                Cell::new(row.who.name()),
                whole(row.rate()),
                whole(least),
                whole(most),
                whole(row.rate() * row.bytes as f64 / f64::from(1 << 20)),
                number(row.median(|sample| sample.ran.mean)),
                number(row.median(|sample| sample.ran.p99)),
                number(row.cpu()),
                number(row.enters()),
                number(per(|used| used.switches as f64)),
                whole(row.wire()),
                whole(per(|used| used.disk as f64)),
            ]);
        }
        let limits = limits_table(&self.limits);
        let machine: Vec<String> = self.machine.iter().map(|(what, value)| format!("{what}: {value}")).collect();
        let memory = self
            .memory
            .iter()
            .map(|(medium, bytes)| format!("largest node after all of it, on {}: {} MiB", medium.name(), bytes >> 20));
        let memory: Vec<String> = memory.collect();
        format!("{}\n{rows}\n{}\n{limits}", machine.join("\n"), memory.join("\n"))
    }

    /// Plots, and all figures.
    pub(crate) fn save(&self, dir: &Path) -> Result<()> {
        std::fs::create_dir_all(dir).with_context(|| dir.display().to_string())?;
        std::fs::write(dir.join("bench.json"), serde_json::to_vec_pretty(self)?)?;
        let commit = self.machine.first().map_or("", |(_, commit)| commit);
        for medium in [Medium::Ram, Medium::File] {
            let rows: Vec<&Row> = self.rows.iter().filter(|row| row.medium == medium && row.bytes == 4096).collect();
            if !rows.is_empty() {
                let title = format!("4 KiB, disks of {}: thousand requests a second ({commit})", medium.name());
                std::fs::write(dir.join(format!("{}.svg", medium.name())), plot::bars(&title, &rows))?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(case: &'static str, who: Who, rates: &[f64]) -> Row {
        let sample = |rate: &f64| {
            let ran = Ran { rate: *rate, requests: 100.0, mean: 1e6 / rate, ..Ran::default() };
            let used = Used { cpu: 0.001, wire: 1_300_000, ..Used::default() };
            Sample { ran, used, enters: Some(40.0) }
        };
        Row { medium: Medium::Ram, case, bytes: 4096, who, samples: rates.iter().map(sample).collect() }
    }

    fn judged(rows: Vec<Row>) -> Vec<(String, bool)> {
        let mut report = Report { machine: Vec::new(), rows, memory: Vec::new(), capacity: None, limits: Vec::new() };
        report.judge();
        report.limits.iter().map(|limit| (limit.what.clone(), limit.holds())).collect()
    }

    #[test]
    fn medians_are_compared_with_the_budget_and_what_was_not_measured_is_not_judged() {
        let rows =
            vec![row("write-32", Who::Trine, &[21.0, 5.0, 20.0]), row("write-32", Who::Quorum, &[10.0, 10.0, 99.0])];
        let said = judged(rows);
        let of = |part: &str| said.iter().find(|(what, _)| what.contains(part)).map(|(_, holds)| *holds);
        assert_eq!(
            (of("QEMU quorum"), of("CPU"), of("enter"), of("wire")),
            (Some(true), Some(true), Some(true), Some(false))
        );
        assert_eq!((of("latency"), of("read")), (None, None));
        let slow = vec![row("write-32", Who::Trine, &[19.0]), row("write-32", Who::Quorum, &[10.0])];
        assert!(judged(slow).iter().any(|(what, holds)| what.contains("quorum") && !holds));
    }

    #[test]
    fn latency_is_held_against_the_floor_and_one_hop_together() {
        let rows = |ours: f64| {
            let (floor, hop) = (row("write-1", Who::Floor, &[1000.0]), row("write-1", Who::Hop, &[1000.0]));
            judged(vec![row("write-1", Who::Trine, &[ours]), floor, hop])
        };
        let latency = |said: Vec<(String, bool)>| said.iter().any(|(what, holds)| what.contains("latency") && *holds);
        assert!(latency(rows(420.0)) && !latency(rows(410.0)));
    }
}
