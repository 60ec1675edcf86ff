//! Waiting for something long that the conductor does: a bar, a deadline, and the reason if it stands still.

use crate::output::{Exit, Failure, Outcome, Size};
use crate::resync;
use conductor_client::Client;
use conductor_model::Bytes;
use conductor_model::views::{Progress, Status, VolumeInfo};
use indicatif::{ProgressBar, ProgressStyle};
use std::cmp::Reverse;
use std::time::{Duration, Instant};

/// How often it is looked at.
const POLL: Duration = Duration::from_millis(200);

/// Reasons that are named at most.
const REASONS: usize = 4;

/// What the parts of a `Progress` are.
#[derive(Clone, Copy)]
pub(crate) enum Unit {
    Bytes,
    Parts(&'static str),
}

/// A look, repeated until then while the conductor does not answer: it may be starting anew, or another one be about to lead. `what` is what
/// is known by then. It ends before if `is_stopped`, which is asked after each look.
pub(crate) fn patiently<T>(
    what: &str,
    until: Instant,
    is_stopped: &dyn Fn() -> bool,
    mut look: impl FnMut() -> Outcome<T>,
) -> Outcome<T> {
    loop {
        match look() {
            Err(failure) if failure.exit == Exit::Unreachable && is_stopped() => {
                let why = format!("{what}, and it was interrupted; how it stands now is not known: {:#}", failure.why);
                return Err(Failure::new(Exit::Failed, why));
            }
            Err(failure) if failure.exit == Exit::Unreachable && Instant::now() < until => std::thread::sleep(POLL),
            Err(failure) if failure.exit == Exit::Unreachable => {
                let why = format!("{what}, and how it stands now is not known: {:#}", failure.why);
                return Err(Failure::new(Exit::Unreachable, why));
            }
            looked => return looked,
        }
    }
}

/// Waits until `look` says that it is over. It goes on in the cluster if this ends before.
pub(crate) fn follow<T>(
    what: &str,
    unit: Unit,
    timeout: Duration,
    mut look: impl FnMut() -> Outcome<Result<T, Progress>>,
) -> Outcome<T> {
    let start = Instant::now();
    let template = match unit {
        Unit::Bytes => "{msg} {bar:40} {bytes}/{total_bytes}".to_owned(),
        Unit::Parts(name) => format!("{{msg}} {{bar:40}} {{pos}}/{{len}} {name}"),
    };
    // Draws nothing unless stderr is a terminal.
    let style = ProgressStyle::with_template(&template).map_err(anyhow::Error::from)?;
    let bar = ProgressBar::new(0).with_style(style).with_message(what.to_owned());
    loop {
        let begun = format!("{what} has begun");
        let progress = match patiently(&begun, start + timeout, &|| false, &mut look)? {
            Ok(over) => {
                bar.finish_and_clear();
                return Ok(over);
            }
            Err(progress) => progress,
        };
        bar.set_length(progress.of);
        bar.set_position(progress.done);
        if start.elapsed() >= timeout {
            bar.abandon();
            let why = format!("{what} is not over, and goes on: {}", sentence(&progress, unit));
            return Err(Failure::new(Exit::TimedOut, why));
        }
        std::thread::sleep(POLL);
    }
}

/// How far it is, and what is in its way.
pub(crate) fn sentence(progress: &Progress, unit: Unit) -> String {
    let far = match unit {
        Unit::Bytes => format!("{} of {} done", Size(progress.done), Size(progress.of)),
        Unit::Parts(name) => format!("{} of {} {name} done", progress.done, progress.of),
    };
    match progress.reasons.as_slice() {
        [] => far,
        reasons => format!("{far}; {}", reasons.join("; ")),
    }
}

/// What was waited for until copies have left a node or a disk, and, if that took too long, why they do not. What the conductor says of that
/// node or disk begins with `whose`.
pub(crate) fn explained<T>(client: &Client, whose: &str, waited: Outcome<T>) -> Outcome<T> {
    waited.map_err(|failure| {
        if failure.exit != Exit::TimedOut {
            return failure;
        }
        match client.status().map(|status| in_the_way(&status, whose)).unwrap_or_default().as_slice() {
            [] => failure,
            reasons => Failure::new(failure.exit, format!("{:#}; {}", failure.why, reasons.join("; "))),
        }
    })
}

/// What the conductor warns of first, then what holds up all filling, then the volumes that are worst off.
fn in_the_way(status: &Status, whose: &str) -> Vec<String> {
    let warnings = status.warnings.iter().filter(|warning| warning.starts_with(&format!("{whose} "))).cloned();
    let paused = status.settings.fill_rate.filter(|rate| *rate == Bytes(0));
    let paused = paused.map(|rate| format!("filling of copies: {}", resync::limit(Some(rate))));
    let mut volumes: Vec<&VolumeInfo> = status.volumes.iter().collect();
    volumes.sort_by_key(|volume| Reverse(volume.health));
    let volumes = volumes.into_iter().filter_map(|v| Some(format!("{}: {}", v.name, v.reasons.first()?)));
    warnings.chain(paused).chain(volumes).take(REASONS).collect()
}

/// Whole percents, 100 only when all is done.
pub(crate) fn percent(done: u64, of: u64) -> u64 {
    u64::try_from(u128::from(done) * 100 / u128::from(of.max(1))).unwrap_or(100).min(100)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn progress(done: u64, of: u64) -> Progress {
        Progress { done, of, reasons: Vec::new() }
    }

    #[test]
    fn what_stands_still_is_reported_with_its_reason() {
        let stuck = || Ok(Err::<(), _>(Progress { reasons: vec!["v1/0: full".to_owned()], ..progress(1, 3) }));
        let failure = follow("rollback of db", Unit::Parts("shards"), Duration::ZERO, stuck).unwrap_err();
        assert_eq!(failure.exit, Exit::TimedOut);
        let why = failure.why.to_string();
        assert_eq!(why, "rollback of db is not over, and goes on: 1 of 3 shards done; v1/0: full");
    }

    #[test]
    fn what_ends_is_given_back_and_failures_end_it() {
        let mut looks = 0;
        let over = follow("copy", Unit::Bytes, Duration::from_secs(60), || {
            looks += 1;
            Ok(if looks == 2 { Ok(7) } else { Err(progress(0, 1)) })
        });
        assert_eq!(over.unwrap(), 7);
        let failed = follow::<()>("copy", Unit::Bytes, Duration::ZERO, || Err(Failure::usage("no")));
        assert_eq!(failed.unwrap_err().exit, Exit::Usage);
    }

    #[test]
    fn a_conductor_that_does_not_answer_is_waited_for_and_what_was_begun_is_not_denied() {
        let mut looks = 0;
        let mut look = || {
            looks += 1;
            match looks {
                1 => Err(Failure::new(Exit::Unreachable, "nobody there")),
                _ => Ok(Ok(looks)),
            }
        };
        assert_eq!(follow("copy", Unit::Bytes, Duration::from_secs(60), &mut look).unwrap(), 2);
        let away = || Err(Failure::new(Exit::Unreachable, "nobody there"));
        let failed = follow::<()>("copy q3", Unit::Bytes, Duration::ZERO, away).unwrap_err();
        assert_eq!(failed.exit, Exit::Unreachable);
        assert_eq!(failed.why.to_string(), "copy q3 has begun, and how it stands now is not known: nobody there");
    }

    #[test]
    fn who_is_told_to_end_does_not_wait_for_a_conductor_that_does_not_answer() {
        let away = || Err::<(), _>(Failure::new(Exit::Unreachable, "nobody there"));
        let until = Instant::now() + Duration::from_secs(60);
        let failed = patiently("volume db is created", until, &|| true, away).unwrap_err();
        let why = failed.why.to_string();
        assert!(failed.exit == Exit::Failed && Instant::now() < until, "{why}");
        assert!(
            why.starts_with("volume db is created, and it was interrupted") && why.ends_with("nobody there"),
            "{why}"
        );
    }

    #[test]
    fn percents_are_whole_and_never_too_many() {
        assert_eq!((percent(0, 0), percent(999, 1000), percent(3, 3), percent(5, 3)), (0, 99, 100, 100));
    }
}
