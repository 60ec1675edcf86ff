//! `trine resync`: copies that are being filled, how fast, and an end of it; and how far that is, in words.

use crate::config::ClusterArgs;
use crate::output::{Outcome, OutputArgs, Size, size, table};
use crate::progress::percent;
use crate::volume::name;
use clap::{Args, Subcommand};
use conductor_model::views::{FillInfo, ResyncChange, ResyncInfo, ResyncVerb, Settings};
use conductor_model::{Bytes, CopyId};
use std::time::Duration;

#[derive(Subcommand)]
#[command(disable_help_subcommand = true)]
pub(crate) enum ResyncCommand {
    /// List the copies that are not in sync: how far each one's filling is, how fast, and how long it takes yet
    List(ListArgs),
    /// End the filling of copies. What they have they keep, and they stay out of sync until `trine resync resume`: then they are filled
    /// from where they were. By itself it goes on only where a shard comes to have fewer copies in sync than its writes need
    Abort(ChangeArgs),
    /// Have copies filled again whose filling was aborted
    Resume(ChangeArgs),
    /// Show how fast copies are filled, or change it, for the whole cluster and while it runs
    Rate(RateArgs),
}

#[derive(Args)]
pub(crate) struct ListArgs {
    /// Only copies of this volume
    #[arg(value_parser = name)]
    volume: Option<String>,
    #[command(flatten)]
    cluster: ClusterArgs,
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Args)]
pub(crate) struct ChangeArgs {
    /// The volume
    #[arg(value_parser = name)]
    volume: String,
    /// The copies, as `trine resync list` shows them: c and 16 hexadecimal digits; without any, all of the volume
    #[arg(value_name = "COPY")]
    copies: Vec<CopyId>,
    #[command(flatten)]
    cluster: ClusterArgs,
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Args)]
pub(crate) struct RateArgs {
    /// How much each node (each of its reactors) may read per second to fill copies: 64M; 0 pauses all filling; max is no limit.
    /// No single copy is filled with more than 256 MiB/s, and I/O goes before it in any case
    #[arg(value_name = "BYTES|max", value_parser = rate)]
    rate: Option<Rate>,
    #[command(flatten)]
    cluster: ClusterArgs,
    #[command(flatten)]
    output: OutputArgs,
}

/// A limit, or none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Rate(Option<Bytes>);

fn rate(text: &str) -> Result<Rate, String> {
    match text {
        "max" => Ok(Rate(None)),
        "0" => Ok(Rate(Some(Bytes(0)))),
        _ => text.parse::<Size>().map(|size| Rate(Some(Bytes(size.0)))).map_err(|why| format!("{why}, 0 or max")),
    }
}

pub(crate) fn run(command: ResyncCommand) -> Outcome {
    match command {
        ResyncCommand::List(args) => {
            let client = args.cluster.client()?;
            let mut all = client.resyncs()?;
            if let Some(volume) = &args.volume {
                client.volume(volume)?;
                all.retain(|copy| copy.volume == *volume);
            }
            args.output.print(&all, |all| match all.as_slice() {
                [] => "every copy is in sync".to_owned(),
                all => copies_table(all),
            })
        }
        ResyncCommand::Abort(args) => change(ResyncVerb::Abort, args),
        ResyncCommand::Resume(args) => change(ResyncVerb::Resume, args),
        ResyncCommand::Rate(args) => {
            let client = args.cluster.client()?;
            let settings = match args.rate {
                Some(Rate(fill_rate)) => client.change_settings(&Settings { fill_rate })?,
                None => client.settings()?,
            };
            args.output.print(&settings, |settings| rate_sentence(settings.fill_rate))
        }
    }
}

fn change(verb: ResyncVerb, args: ChangeArgs) -> Outcome {
    let ChangeArgs { volume, copies, cluster, output } = args;
    let changed = cluster.client()?.change_resync(&volume, &ResyncChange { verb, copies })?;
    output.print_done(&changed, |changed| match (verb, changed.len()) {
        (_, 0) => format!("volume {volume} has no copies to {verb} the filling of"),
        (ResyncVerb::Abort, n) => format!("{n} of its copies are not filled until `trine resync resume {volume}`"),
        (ResyncVerb::Resume, n) => format!("{n} of its copies are to be filled: `trine resync list {volume}`"),
    })
}

/// All copies, one line each.
fn copies_table(copies: &[ResyncInfo]) -> String {
    let rows = copies.iter().map(|c| {
        let from = c.from.map_or_else(|| "-".to_owned(), |node| node.to_string());
        let left = c.eta_seconds.map_or_else(|| "-".to_owned(), |s| duration(s).to_string());
        vec![
            c.copy.to_string(),
            c.volume.clone(),
            c.shard.to_string(),
            c.node.to_string(),
            from,
            c.state.to_string(),
            format!("{} % of {}", percent(c.done.0, c.of.0), size(c.of)),
            format!("{}/s", size(c.rate)),
            left,
        ]
    });
    table(&["COPY", "VOLUME", "SHARD", "NODE", "FROM", "STATE", "DONE", "RATE", "LEFT"], rows)
}

fn duration(seconds: u64) -> humantime::FormattedDuration {
    humantime::format_duration(Duration::from_secs(seconds))
}

/// `copies filled: 1.2 GiB of 4 GiB (30 %), 100 MiB/s, 28s left`.
pub(crate) fn describe(filling: &FillInfo) -> String {
    let percent = u128::from(filling.done.0.min(filling.of.0)) * 100 / u128::from(filling.of.0.max(1));
    let pace = match (filling.rate, filling.eta_seconds()) {
        (Bytes(0), _) | (_, None) => "nothing moves".to_owned(),
        (rate, Some(left)) => {
            format!("{}/s, {} left", size(rate), duration(left))
        }
    };
    format!("copies filled: {} of {} ({percent} %), {pace}", size(filling.done), size(filling.of))
}

/// The limit of its rate.
pub(crate) fn limit(rate: Option<Bytes>) -> String {
    match rate {
        None => "no limit but 256 MiB/s for each copy".to_owned(),
        Some(Bytes(0)) => "paused: `trine resync rate max` goes on".to_owned(),
        Some(rate) => format!("at most {}/s on each reactor of a node", size(rate)),
    }
}

/// The same by itself.
fn rate_sentence(rate: Option<Bytes>) -> String {
    match rate {
        Some(Bytes(0)) => "no copy is filled until `trine resync rate` says how fast, or max".to_owned(),
        rate => format!("copies are filled with {}", limit(rate)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use conductor_model::views::ResyncState;
    use conductor_model::{DiskId, NodeId, ShardId};

    #[test]
    fn a_rate_is_a_size_nothing_or_as_much_as_can_be() {
        assert_eq!(rate("64M"), Ok(Rate(Some(Bytes(64 << 20)))));
        assert_eq!((rate("0"), rate("max")), (Ok(Rate(Some(Bytes(0)))), Ok(Rate(None))));
        assert!(rate("").is_err() && rate("fast").is_err() && rate("-1").is_err());
    }

    #[test]
    fn a_rate_is_said_in_a_sentence() {
        assert_eq!(rate_sentence(None), "copies are filled with no limit but 256 MiB/s for each copy");
        let some = rate_sentence(Some(Bytes(64 << 20)));
        assert_eq!(some, "copies are filled with at most 64 MiB/s on each reactor of a node");
        assert!(rate_sentence(Some(Bytes(0))).starts_with("no copy is filled until `trine resync rate`"));
    }

    #[test]
    fn a_copy_is_named_as_it_is_listed() {
        let copy = ResyncInfo {
            volume: "db".to_owned(),
            shard: ShardId::default(),
            copy: CopyId(0xab),
            node: NodeId(3),
            disk: DiskId(1),
            from: Some(NodeId(1)),
            state: ResyncState::Filling,
            done: Bytes(1 << 29),
            of: Bytes(1 << 30),
            rate: Bytes(1 << 23),
            eta_seconds: Some(64),
        };
        let text = copies_table(std::slice::from_ref(&copy));
        let row = text.lines().nth(1).unwrap_or_default();
        assert!(row.contains("50 % of 1 GiB") && row.contains("8 MiB/s") && row.ends_with("1m 4s"), "{row}");
        let named = row.split_whitespace().next().unwrap_or_default();
        assert_eq!(named.parse(), Ok(copy.copy));
    }

    #[test]
    fn progress_has_a_percentage_and_an_end_if_there_is_one() {
        let filling = FillInfo {
            copies: 1,
            waiting: 0,
            nodes: Vec::new(),
            done: Bytes(1 << 29),
            of: Bytes(1 << 30),
            rate: Bytes(1 << 23),
        };
        assert_eq!(describe(&filling), "copies filled: 512 MiB of 1 GiB (50 %), 8 MiB/s, 1m 4s left");
        assert_eq!(
            describe(&FillInfo { rate: Bytes(0), ..filling }),
            "copies filled: 512 MiB of 1 GiB (50 %), nothing moves"
        );
    }
}
