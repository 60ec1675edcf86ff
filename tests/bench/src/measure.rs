//! What is measured, one part after the other, on one disk.

use crate::load::Pattern;
use crate::machine::Bench;
use crate::options::{Options, Part};
use crate::raw::{Job, Raw, Scratch, timed};
use crate::report::{Bytes, Limit, Report, Speed};
use crate::rig::Rig;
use conductor_model::BLOCK;

/// Requests in flight: small ones, and large ones.
const DEPTH: usize = 32;
const LARGE_DEPTH: usize = 8;
const SMALL_JOB: Job = Job { write: "randwrite", block: BLOCK as u64, depth: DEPTH, durable: true };

fn say(text: &str) {
    eprintln!("bench: {text}");
}

pub(crate) fn all(options: &Options) -> anyhow::Result<Report> {
    let mut report = Report::default();
    say("writing the file");
    let scratch = Scratch::new(&options.file, options.store() + options.raw())?;
    let blocks = u32::try_from(options.volume() / BLOCK as u64)?;
    let mut rig = Rig::new(scratch.path(), options.store(), Bench::new(blocks))?;
    rig.format(options.journal(), options.places(), options.volume())?;
    fill(options, &mut rig, &mut report)?;
    if options.wants(Part::Random) {
        random(options, &mut rig, &scratch, &mut report)?;
    }
    if options.wants(Part::Restart) {
        rig = restart(options, rig, &scratch, &mut report)?;
    }
    if options.wants(Part::Snapshot) {
        snapshot(options, &mut rig, &mut report)?;
    }
    let budget = node_store::journaled::DEFAULT_CACHE_BYTES as f64;
    report.limits.push(Limit::most("metadata in memory / its bound", rig.cached_most() as f64 / budget, 1.0, true));
    Ok(report)
}

/// The volume, written from one end to the other: what sequential requests cost, and what the other parts begin with.
fn fill(options: &Options, rig: &mut Rig, report: &mut Report) -> anyhow::Result<()> {
    let span = u32::try_from(options.volume() / BLOCK as u64)?;
    let sizes: [(u32, &'static str, &'static str); 2] = [
        (32, "128 KiB sequential", "bytes to the disk per byte, 128 KiB sequential"),
        (256, "1 MiB sequential", "bytes to the disk per byte, 1 MiB sequential"),
    ];
    for (count, name, limit) in sizes {
        say(name);
        let before = rig.tally();
        let ran = rig.write(Pattern::sequential(span, count), count, LARGE_DEPTH, None)?;
        rig.settle()?;
        if options.wants(Part::Sequential) {
            let bytes = Bytes::new(name, rig.tally() - before, ran.bytes, ran.requests);
            report.limits.push(Limit::most(limit, bytes.total, 1.05, true));
            report.bytes.push(bytes);
            report.speeds.push(Speed::new(name, &ran));
        }
    }
    rig.verify(200, 1)
}

/// Single blocks anywhere, in turn with fio doing the same on the rest of the file. The store stands still while fio runs: what it has
/// to move home it moves in its own rounds.
fn random(options: &Options, rig: &mut Rig, scratch: &Scratch, report: &mut Report) -> anyhow::Result<()> {
    let span = u32::try_from(options.volume() / BLOCK as u64)?;
    let raw = || timed(scratch.path(), &SMALL_JOB, options.store(), options.raw(), options.round());
    let before = rig.tally();
    let (mut bytes, mut requests) = (0, 0);
    let (mut ratios, mut rates, mut raws) = (vec![], vec![], vec![]);
    let mut pattern = Pattern::anywhere(span, 11);
    // The first round fills the journal, which is no steady state: it is written, and not timed.
    for round in 0..=options.rounds() {
        say(&format!("4 KiB random, round {round} of {}", options.rounds()));
        let ran = rig.write(pattern, 1, DEPTH, Some(options.round()))?;
        (bytes, requests) = (bytes + ran.bytes, requests + ran.requests);
        if round == 0 {
            report.speeds.push(Speed::new("4 KiB random, journal empty before", &ran));
        } else {
            let raw = raw()?;
            report.speeds.push(Speed::new(format!("4 KiB random, round {round}"), &ran));
            report.speeds.push(of_raw(round, &raw));
            ratios.push(ran.rate() / raw.rate);
            rates.push(ran.rate());
            raws.push(raw.rate);
        }
        pattern = ran.pattern;
    }
    rig.settle()?;
    let row = Bytes::new("4 KiB random", rig.tally() - before, bytes, requests);
    report.limits.push(Limit::most("bytes to the disk per byte, 4 KiB random", row.total, 2.3, true));
    report.bytes.push(row);
    report.limits.push(Limit::least("4 KiB random / fio, median of rounds", median(&mut ratios), 0.7));
    report.figures.push(("4 KiB random, requests/s, median", median(&mut rates)));
    report.figures.push(("fio, requests/s, median", median(&mut raws)));
    rig.verify(500, 2)
}

fn of_raw(round: usize, raw: &Raw) -> Speed {
    Speed {
        load: format!("fio, round {round}"),
        rate: raw.rate,
        mib_per_second: raw.rate * BLOCK as f64 / f64::from(1 << 20),
        cpu: raw.cpu,
        enters_per_request: f64::NAN,
        p50: raw.p50,
        p99: raw.p99,
    }
}

/// Each block at most once, before a snapshot and behind it.
fn snapshot(options: &Options, rig: &mut Rig, report: &mut Report) -> anyhow::Result<()> {
    let span = u32::try_from(options.volume() / BLOCK as u64)?;
    say("before a snapshot");
    let time = Some(options.around_snapshot());
    let before = rig.write(Pattern::once(span, 21), 1, DEPTH, time)?;
    report.speeds.push(Speed::new("before a snapshot", &before));
    rig.settle()?;
    say("behind a snapshot");
    rig.snapshot(1)?;
    let tally = rig.tally();
    let behind = rig.write(Pattern::once(span, 22), 1, DEPTH, time)?;
    report.speeds.push(Speed::new("behind a snapshot", &behind));
    rig.settle()?;
    let row = Bytes::new("behind a snapshot", rig.tally() - tally, behind.bytes, behind.requests);
    report.limits.push(Limit::least("rate behind a snapshot / before it", behind.rate() / before.rate(), 0.5));
    report.limits.push(Limit::most("bytes to the disk per byte, behind a snapshot", row.total, 3.0, true));
    report.bytes.push(row);
    rig.verify(500, 3)
}

/// A crash when the journal is as full as can be: until the store serves again, and until all is home.
fn restart(options: &Options, mut rig: Rig, scratch: &Scratch, report: &mut Report) -> anyhow::Result<Rig> {
    let span = u32::try_from(options.volume() / BLOCK as u64)?;
    say("filling the journal");
    let free = rig.fill_journal(Pattern::anywhere(span, 31), DEPTH)?;
    let total = options.journal() / BLOCK as u64;
    let full = 1.0 - free as f64 / total as f64;
    let bench = rig.crash();
    say("opening");
    let mut rig = Rig::new(scratch.path(), options.store(), bench)?;
    let took = rig.open()?.as_secs_f64();
    rig.verify(500, 4)?;
    rig.settle()?;
    rig.verify(500, 5)?;
    report.limits.push(Limit::least("part of the journal that is full at the crash", full, 0.9));
    report.limits.push(Limit::most("seconds to open with a full journal", took, 10.0, false));
    Ok(rig)
}

fn median(of: &mut [f64]) -> f64 {
    of.sort_by(f64::total_cmp);
    let middle = of.len() / 2;
    match of {
        [] => f64::NAN,
        of if of.len() % 2 == 1 => of[middle],
        of => (of[middle - 1] + of[middle]) / 2.0,
    }
}

#[cfg(test)]
mod tests {
    use super::median;

    #[test]
    fn the_median_is_in_the_middle() {
        assert_eq!(median(&mut [3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&mut [4.0, 1.0, 3.0, 2.0]), 2.5);
        assert!(median(&mut []).is_nan());
    }
}
