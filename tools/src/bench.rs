//! `trine bench`: a load on a volume from this host, without a device, and what came of it.

use crate::config::ClusterArgs;
use crate::output::{Exit, Failure, Outcome, OutputArgs, Size, note, table, time};
use crate::visit::{in_use, visit};
use clap::{Args, ValueEnum};
use serde::Serialize;
use std::io::IsTerminal;
use std::time::Duration;
use target_daemon::bench::{Class, Figures, Latency, MAX_BENCH_DEPTH, MAX_BENCH_REQUEST, Pattern, Shape, bench};
use target_daemon::{Span, Subject};

/// The longest load.
const LONGEST: Duration = Duration::from_secs(24 * 3600);
/// Of 100 requests of randrw, so many read, unless somebody says otherwise.
const READ_PERCENT: u8 = 70;
/// A bar of the histogram, in characters.
const BAR: usize = 40;

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Kind {
    Read,
    Write,
    Randread,
    Randwrite,
    Randrw,
}

#[derive(Args)]
pub(crate) struct BenchArgs {
    /// The volume, which nobody may have attached, but for others that read it while this reads, too; or VOLUME@SNAPSHOT, to read
    volume: Subject,
    /// What to do: one behind the other, or anywhere
    #[arg(long, value_enum, default_value = "randread", value_name = "PATTERN")]
    pattern: Kind,
    /// Bytes of a request: a multiple of 4K, 1M at most
    #[arg(long, default_value = "4K", value_name = "SIZE")]
    size: Size,
    /// Requests in flight
    #[arg(long, default_value_t = 32, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=i64::from(MAX_BENCH_DEPTH)))]
    depth: u16,
    /// How long, from the first answer on
    #[arg(long, default_value = "10s", value_name = "TIME", value_parser = time)]
    time: Duration,
    /// Of 100 requests of randrw, so many read [default: 70]
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u8).range(0..=100))]
    read_percent: Option<u8>,
    /// A flush after every so many writes, of a pattern that writes
    #[arg(long, value_name = "WRITES", value_parser = clap::value_parser!(u32).range(1..))]
    flush: Option<u32>,
    /// Yes, write over what is in the volume
    #[arg(long)]
    overwrite: bool,
    #[command(flatten)]
    cluster: ClusterArgs,
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Serialize)]
struct Report {
    volume: String,
    pattern: Pattern,
    size: u32,
    depth: u16,
    #[serde(flatten)]
    figures: Figures,
}

pub(crate) fn run(args: BenchArgs) -> Outcome {
    let shape = shape(&args)?;
    let volume = args.volume.to_string();
    if shape.pattern.writes() && args.volume.is_snapshot() {
        return Err(Failure::usage("a snapshot is only read: leave --pattern out, or choose one that reads"));
    }
    if shape.pattern.writes() && !args.overwrite {
        let why = format!("this writes over the content of {volume}: say --overwrite, or choose a pattern that reads");
        return Err(Failure::usage(why));
    }
    let by = visit(&args.cluster, args.volume, "bench")?;
    let talks = std::io::stderr().is_terminal();
    let figures = bench(by, shape, |so_far| {
        if talks {
            note(line(so_far));
        }
    });
    let figures = figures.map_err(|error| in_use(error, &volume, "bench"))?;
    if let Some(error) = &figures.error {
        return Err(Failure::new(Exit::Failed, format!("after {} requests: {error}", figures.requests)));
    }
    if figures.requests == 0 {
        let waits =
            if figures.waits_for.is_empty() { String::new() } else { format!(": {}", figures.waits_for.join("; ")) };
        return Err(Failure::new(Exit::TimedOut, format!("no request was answered{waits}")));
    }
    let report = Report { volume, pattern: shape.pattern, size: shape.bytes, depth: shape.depth, figures };
    args.output.print(&report, people)
}

fn shape(args: &BenchArgs) -> Outcome<Shape> {
    let bytes = u32::try_from(args.size.0).ok().filter(|b| *b > 0 && b.is_multiple_of(4096) && *b <= MAX_BENCH_REQUEST);
    let Some(bytes) = bytes else {
        return Err(Failure::usage(format!("--size {}: a multiple of 4 KiB, 1 MiB at most", args.size)));
    };
    if args.time.is_zero() || args.time > LONGEST {
        return Err(Failure::usage("--time: more than nothing, a day at most"));
    }
    let pattern = match args.pattern {
        Kind::Read => Pattern::Read,
        Kind::Write => Pattern::Write,
        Kind::Randread => Pattern::Randread,
        Kind::Randwrite => Pattern::Randwrite,
        Kind::Randrw => Pattern::Randrw,
    };
    if args.read_percent.is_some() && pattern != Pattern::Randrw {
        return Err(Failure::usage("--read-percent is for --pattern randrw"));
    }
    for (given, what) in [(args.flush.is_some(), "--flush"), (args.overwrite, "--overwrite")] {
        if given && !pattern.writes() {
            let name = format!("{pattern:?}").to_lowercase();
            return Err(Failure::usage(format!(
                "{what}: {name} writes nothing; choose --pattern write, randwrite or randrw"
            )));
        }
    }
    let time = Span(u64::try_from(args.time.as_nanos()).unwrap_or(u64::MAX));
    let (depth, read_percent, flush_every) = (args.depth, args.read_percent.unwrap_or(READ_PERCENT), args.flush);
    Ok(Shape { pattern, bytes, depth, time, read_percent, flush_every })
}

fn line(figures: &Figures) -> String {
    if let ([first, ..], 0) = (figures.waits_for.as_slice(), figures.requests) {
        return format!("nothing yet: {first}");
    }
    let Figures { seconds, rate, bytes_per_second, .. } = figures;
    format!("{seconds:>5.0} s  {rate:>8.0} requests/s  {:>8.1} MiB/s", bytes_per_second / f64::from(1 << 20))
}

fn people(report: &Report) -> String {
    let Report { volume, pattern, size, depth, figures } = report;
    let pattern = format!("{pattern:?}").to_lowercase();
    let mut text = format!(
        "{volume}: {pattern}, {}, {depth} in flight, {:.1} s\n{} requests, {:.0} a second, {:.1} MiB a second\n\n",
        Size(u64::from(*size)),
        figures.seconds,
        figures.requests,
        figures.rate,
        figures.bytes_per_second / f64::from(1 << 20),
    );
    let kinds = [("read", &figures.reads), ("write", &figures.writes), ("flush", &figures.flushes)];
    let kinds = kinds.into_iter().filter_map(|(name, latency)| Some(row(name.to_owned(), latency.as_ref()?)));
    text += &table(&["µs", "MEAN", "P50", "P90", "P99", "P99.9", "MAX"], kinds);
    if !figures.stages.is_empty() {
        let stages = figures.stages.iter().map(|s| row(format!("{} to {}", s.from, s.to), &s.latency));
        text += "\nof the requests that finished last:\n";
        text += &table(&["µs", "MEAN", "P50", "P90", "P99", "P99.9", "MAX"], stages);
    }
    for (name, classes) in [("reads", &figures.read_classes), ("writes", &figures.write_classes)] {
        if !classes.is_empty() {
            text += &format!(
                "\n{name} that took less than so many µs, and no less than the line before:\n{}",
                bars(classes)
            );
        }
    }
    text
}

fn row(name: String, of: &Latency) -> Vec<String> {
    let figures = [of.mean, of.p50, of.p90, of.p99, of.p999, of.max].map(|micros| format!("{micros:.0}"));
    std::iter::once(name).chain(figures).collect()
}

fn bars(classes: &[Class]) -> String {
    let most = classes.iter().map(|class| class.count).max().unwrap_or(1).max(1);
    let bar =
        |count: u64| "#".repeat(usize::try_from(u128::from(count) * BAR as u128 / u128::from(most)).unwrap_or(BAR));
    let lines = classes.iter().map(|class| format!("{:>12.0} {:>10} {}", class.below, class.count, bar(class.count)));
    lines.map(|line| line.trim_end().to_owned() + "\n").collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_are_in_proportion() {
        let classes =
            [Class { below: 64.0, count: 10 }, Class { below: 128.0, count: 40 }, Class { below: 256.0, count: 0 }];
        let text = bars(&classes);
        let hashes: Vec<usize> = text.lines().map(|line| line.matches('#').count()).collect();
        assert_eq!(hashes, [10, 40, 0]);
        assert_eq!(bars(&[]), "");
    }

    #[test]
    fn a_load_that_waits_says_for_what() {
        let waits = Figures { waits_for: vec!["v1/0: no connection yet".to_owned()], ..Figures::default() };
        assert_eq!(line(&waits), "nothing yet: v1/0: no connection yet");
        let runs = Figures { seconds: 3.0, requests: 30, rate: 10.0, bytes_per_second: 40960.0, ..waits };
        assert!(line(&runs).contains("10 requests/s"), "{}", line(&runs));
    }
}
