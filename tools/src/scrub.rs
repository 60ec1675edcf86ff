//! `trine volume scrub`.

use crate::config::ClusterArgs;
use crate::output::{Exit, Failure, Outcome, OutputArgs, Size, size, time, when};
use crate::progress::{Unit, follow, percent};
use crate::volume::name;
use clap::Args;
use conductor_model::views::{Progress, Scrub, ScrubInfo, ScrubState, ScrubVerb};
use conductor_model::{Bytes, Millis};
use std::fmt::Write;
use std::time::Duration;

#[derive(Args)]
pub(crate) struct ScrubArgs {
    /// The volume
    #[arg(value_parser = name)]
    volume: String,
    /// Most bytes per second to read on each copy: 32M; kept for later scrubs of this volume
    #[arg(long, value_name = "SIZE")]
    rate: Option<Size>,
    /// Stop for now
    #[arg(long, group = "verb", conflicts_with = "rate")]
    pause: bool,
    /// Go on where it was paused
    #[arg(long, group = "verb")]
    resume: bool,
    /// Stop, and forget how far it was
    #[arg(long, group = "verb", conflicts_with = "rate")]
    cancel: bool,
    /// Only say how it stands
    #[arg(long, group = "verb", conflicts_with = "rate")]
    status: bool,
    /// Wait until it is through; fails if somebody pauses or cancels it meanwhile
    #[arg(long, conflicts_with_all = ["pause", "cancel", "status"])]
    wait: bool,
    /// How long to wait: 30s, 5m, 12h
    #[arg(long, default_value = "24h", value_name = "TIME", value_parser = time)]
    timeout: Duration,
    #[command(flatten)]
    cluster: ClusterArgs,
    #[command(flatten)]
    output: OutputArgs,
}

pub(crate) fn run(args: &ScrubArgs) -> Outcome {
    let client = args.cluster.client()?;
    let verb = match () {
        () if args.status => return args.output.print(&client.scrub(&args.volume)?, describe),
        () if args.pause => ScrubVerb::Pause,
        () if args.resume => ScrubVerb::Resume,
        () if args.cancel => ScrubVerb::Cancel,
        () => ScrubVerb::Start,
    };
    let rate = args.rate.map(|rate| Bytes(rate.0));
    let mut info = client.change_scrub(&args.volume, &Scrub { verb, rate })?;
    if args.wait {
        let before = info.finished;
        info = follow(&format!("scrub of {}", args.volume), Unit::Bytes, args.timeout, || {
            through(client.scrub(&args.volume)?, before)
        })?;
    }
    args.output.print_done(&info, describe)
}

/// Is it through? `before` is when the last one was. One that somebody stopped meanwhile found out nothing of the rest.
fn through(scrub: ScrubInfo, before: Option<Millis>) -> Outcome<Result<ScrubInfo, Progress>> {
    let far = percent(scrub.progress.done, scrub.progress.of);
    let volume = &scrub.volume;
    let why = match scrub.state {
        ScrubState::Running => return Ok(Err(scrub.progress)),
        ScrubState::Idle if scrub.finished != before => return Ok(Ok(scrub)),
        ScrubState::Idle => format!("the scrub of {volume} was cancelled before it was through"),
        ScrubState::Paused => format!(
            "the scrub of {volume} was paused at {far} %: `trine volume scrub {volume} --resume --wait` goes on with it"
        ),
    };
    Err(Failure::new(Exit::Failed, why))
}

/// A line on how it stands, and one on what was found.
pub(crate) fn describe(scrub: &ScrubInfo) -> String {
    let far = percent(scrub.progress.done, scrub.progress.of);
    let of = size(Bytes(scrub.progress.of));
    let mut text = match (scrub.state, scrub.finished) {
        (ScrubState::Running, _) => {
            format!("scrub of {} at {far} % of {of}, up to {}/s on each copy", scrub.volume, size(scrub.rate))
        }
        (ScrubState::Paused, _) => format!("scrub of {} paused at {far} % of {of}", scrub.volume),
        (ScrubState::Idle, Some(at)) => format!("{} was scrubbed last until {}", scrub.volume, when(at)),
        (ScrubState::Idle, None) => format!("{} was never scrubbed to its end", scrub.volume),
    };
    if scrub.started.is_some() {
        // Formatting into a String cannot fail.
        let _ = write!(
            text,
            "\n  {} damaged blocks found, {} repaired; by all scrubs {} and {}",
            scrub.damaged, scrub.repaired, scrub.damaged_ever, scrub.repaired_ever
        );
    }
    for reason in &scrub.progress.reasons {
        let _ = write!(text, "\n  {reason}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn half() -> ScrubInfo {
        ScrubInfo {
            volume: "db".to_owned(),
            state: ScrubState::Running,
            rate: Bytes(32 << 20),
            started: Some(Millis(0)),
            finished: None,
            progress: Progress { done: 1 << 29, of: 1 << 30, reasons: Vec::new() },
            damaged: 2,
            repaired: 1,
            damaged_ever: 7,
            repaired_ever: 6,
        }
    }

    #[test]
    fn one_that_somebody_stopped_is_not_through() {
        let (before, after) = (Some(Millis(1000)), Some(Millis(2000)));
        let of = |state, finished| through(ScrubInfo { state, finished, ..half() }, before);
        assert!(of(ScrubState::Running, before).unwrap().is_err());
        assert_eq!(of(ScrubState::Idle, after).unwrap().unwrap().finished, after);
        let cancelled = of(ScrubState::Idle, before).unwrap_err();
        assert_eq!(cancelled.exit, Exit::Failed);
        assert!(cancelled.why.to_string().contains("was cancelled"));
        let paused = of(ScrubState::Paused, before).unwrap_err();
        assert!(paused.exit == Exit::Failed && paused.why.to_string().contains("was paused at 50 %"));
    }

    #[test]
    fn how_far_and_what_was_found() {
        let mut info = half();
        assert_eq!(
            describe(&info),
            "scrub of db at 50 % of 1 GiB, up to 32 MiB/s on each copy\n  2 damaged blocks found, 1 repaired; by all scrubs 7 and 6"
        );
        info.state = ScrubState::Idle;
        assert!(describe(&info).starts_with("db was never scrubbed to its end"));
        info.finished = Some(Millis(1000));
        assert!(describe(&info).contains("until 1970-01-01T00:00:01Z"));
    }
}
