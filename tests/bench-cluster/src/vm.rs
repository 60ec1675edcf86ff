//! What `tests/bench-vm/measure` has found in a guest, for people and for machines. Only ratios are worth anything there.

use crate::options::Vm;
use crate::report::{Limit, limits_table, median};
use anyhow::{Context, Result, ensure};
use comfy_table::{Cell, Table};
use serde::Serialize;
use std::process::ExitCode;

/// The rates of one of them at one depth, 4 KiB writes a second in each round.
#[derive(Debug, Serialize)]
struct Row {
    peer: String,
    depth: u32,
    rates: Vec<f64>,
}

#[derive(Debug, Serialize)]
struct Report {
    rows: Vec<Row>,
    limits: Vec<Limit>,
}

pub(crate) fn judge(options: &Vm) -> Result<ExitCode> {
    let text = std::fs::read_to_string(&options.rates).with_context(|| options.rates.display().to_string())?;
    let mut report = Report::parse(&text)?;
    report.judge();
    match options.json {
        true => println!("{}", serde_json::to_string_pretty(&report)?),
        false => println!("{}\n{}", report.table()?, limits_table(&report.limits)),
    }
    Ok(ExitCode::from(u8::from(report.limits.iter().any(|limit| !limit.holds()))))
}

impl Report {
    fn parse(text: &str) -> Result<Self> {
        let mut rows: Vec<Row> = Vec::new();
        for line in text.lines() {
            let fields: Vec<&str> = line.split_ascii_whitespace().collect();
            let [peer, depth, rate] = fields[..] else { anyhow::bail!("{line:?} is no PEER DEPTH RATE") };
            let (depth, rate) = (depth.parse()?, rate.parse()?);
            match rows.iter_mut().find(|row| (row.peer.as_str(), row.depth) == (peer, depth)) {
                Some(row) => row.rates.push(rate),
                None => rows.push(Row { peer: peer.to_owned(), depth, rates: vec![rate] }),
            }
        }
        ensure!(!rows.is_empty(), "nothing was measured");
        Ok(Self { rows, limits: Vec::new() })
    }

    fn rate(&self, peer: &str, depth: u32) -> f64 {
        let row = self.rows.iter().find(|row| (row.peer.as_str(), row.depth) == (peer, depth));
        row.map_or(f64::NAN, |row| median(row.rates.iter().copied()))
    }

    /// What was not measured is not within its limit.
    fn judge(&mut self) {
        let mut limits = Vec::new();
        for (depth, least) in [(1, 0.35), (32, 1.6)] {
            let value = self.rate("trine-tcp", depth) / self.rate("md-nvme", depth);
            let what = format!("depth {depth}: rate over TCP / RAID 1 over NVMe over TCP");
            limits.push(Limit::least(what, value, least));
        }
        for depth in [1, 32] {
            let nbd = self.rate("md-nbd", depth);
            // Ahead of it, if the bare path is.
            if self.rate("floor", depth) > nbd || nbd.is_nan() {
                let what = format!("depth {depth}: rate over TCP / RAID 1 over NBD");
                limits.push(Limit::least(what, self.rate("trine-tcp", depth) / nbd, 1.0));
            }
        }
        self.limits = limits;
    }

    fn table(&self) -> Result<Table> {
        let mut table = Table::new();
        table.set_header(vec!["depth", "who", "writes/s", "least", "most", "beside trine-tcp"]);
        let mut rows: Vec<&Row> = self.rows.iter().collect();
        rows.sort_by_key(|row| row.depth);
        for row in rows {
            let rate = self.rate(&row.peer, row.depth);
            let whole = |rate: f64| Cell::new(format!("{rate:.0}"));
            let least = row.rates.iter().copied().fold(f64::INFINITY, f64::min);
            let most = row.rates.iter().copied().fold(0.0, f64::max);
            let beside = Cell::new(format!("{:.2}", rate / self.rate("trine-tcp", row.depth)));
            let names = [Cell::new(row.depth), Cell::new(&row.peer)];
            table.add_row(names.into_iter().chain([whole(rate), whole(least), whole(most), beside]));
        }
        Ok(table)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(text: &str) -> Vec<bool> {
        let mut report = Report::parse(text).expect("rates");
        report.judge();
        report.limits.iter().map(Limit::holds).collect()
    }

    #[test]
    fn the_median_of_the_rounds_is_held_against_each_peer() {
        let rates = "trine-tcp 1 40\ntrine-tcp 32 160\ntrine-tcp 32 1\ntrine-tcp 32 200\n\
                     md-nvme 1 100\nmd-nvme 32 100\nmd-nbd 1 30\nmd-nbd 32 170\nfloor 1 50\nfloor 32 171\n";
        assert_eq!(judged(rates), [true, true, true, false]);
    }

    #[test]
    fn who_was_not_measured_breaks_the_limit_and_a_floor_that_is_behind_lifts_it() {
        assert_eq!(judged("trine-tcp 1 40\n"), [false, false, false, false]);
        let rates = "trine-tcp 1 34\ntrine-tcp 32 160\nmd-nvme 1 100\nmd-nvme 32 100\nmd-nbd 1 50\nmd-nbd 32 50\nfloor 1 40\nfloor 32 99\n";
        assert_eq!(judged(rates), [false, true, true]);
    }

    #[test]
    fn a_line_that_is_none_is_refused() {
        assert!(Report::parse("trine-tcp 1\n").is_err() && Report::parse("").is_err());
        assert!(Report::parse("trine-tcp 1 fast\n").is_err());
    }
}
