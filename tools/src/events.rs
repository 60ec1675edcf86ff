//! `trine events`.

use crate::config::ClusterArgs;
use crate::output::{Format, Outcome, OutputArgs, print, when};
use clap::Args;
use conductor_client::Client;
use conductor_model::events::Event;
use std::time::Duration;

/// Before a conductor that does not answer is asked again.
const AGAIN: Duration = Duration::from_secs(1);

#[derive(Args)]
pub(crate) struct EventsArgs {
    /// Go on with what happens from now on, until interrupted, over restarts of the conductor too; JSON is one object a line then
    #[arg(short, long)]
    follow: bool,
    /// Only what happened after the event of this number
    #[arg(long, default_value_t = 0, value_name = "NUMBER")]
    after: u64,
    #[command(flatten)]
    cluster: ClusterArgs,
    #[command(flatten)]
    output: OutputArgs,
}

pub(crate) fn run(args: &EventsArgs) -> Outcome {
    let client = args.cluster.client()?;
    let mut after = args.after;
    let mut all = Vec::new();
    loop {
        let events = client.events(after, false)?;
        let Some(last) = events.last() else { break };
        after = last.number;
        all.extend(events);
    }
    if args.follow {
        say(&all, args.output.output)?;
        return follow(&client, after, args.output.output);
    }
    match args.output.output {
        Format::Json => args.output.print(&all, |_| String::new()),
        Format::Table => say(&all, Format::Table),
    }
}

fn follow(client: &Client, mut after: u64, format: Format) -> Outcome {
    loop {
        match client.events(after, true) {
            Ok(events) => {
                after = events.last().map_or(after, |last| last.number);
                say(&events, format)?;
            }
            Err(error) if error.is_temporary() => std::thread::sleep(AGAIN),
            Err(error) => return Err(error.into()),
        }
    }
}

fn say(events: &[Event], format: Format) -> Outcome {
    for event in events {
        let text = match format {
            Format::Table => line(event),
            Format::Json => serde_json::to_string(event).map_err(anyhow::Error::from)?,
        };
        print(&text)?;
    }
    Ok(())
}

/// `2026-11-21T10:00:00Z 12 n1 silent`.
fn line(event: &Event) -> String {
    format!("{} {} {}", when(event.at), event.number, event.what)
}

#[cfg(test)]
mod tests {
    use super::*;
    use conductor_model::events::Happened;
    use conductor_model::{Commit, Millis, NodeId};

    #[test]
    fn an_event_is_a_line() {
        let what = Happened::NodeSilent { node: NodeId(1) };
        let event = Event { number: 12, commit: Commit(40), at: Millis(0), what };
        assert_eq!(line(&event), "1970-01-01T00:00:00Z 12 n1 silent");
    }
}
