//! `trine conductor`.

use crate::output::{Failure, Outcome, print};
use anyhow::Context;
use clap::{Args, Subcommand};
use conductor_service::{Error, Options};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// Below this a scrub would begin before the last is over.
const LEAST_SCRUB_EVERY: Duration = Duration::from_secs(60);

#[derive(Subcommand)]
#[command(disable_help_subcommand = true)]
pub(crate) enum ConductorCommand {
    /// Run a conductor in the foreground until SIGTERM; prints "ready ADDRESS" when it answers
    Run(RunArgs),
}

#[derive(Args)]
pub(crate) struct RunArgs {
    /// Where to listen; port 0 takes any free one
    #[arg(long, env = "TRINE_CONDUCTOR_LISTEN", default_value = "127.0.0.1:7000", value_name = "IP:PORT")]
    listen: SocketAddr,
    /// Where its state is kept: redb:FILE; the file is made if there is none
    #[arg(long, env = "TRINE_CONDUCTOR_STORE", default_value = "redb:/var/lib/trine/conductor.redb", value_parser = store)]
    store: PathBuf,
    /// Listen beyond loopback although nothing is encrypted and nobody is authenticated
    #[arg(long, env = "TRINE_PLAINTEXT")]
    plaintext: bool,
    /// How often every volume is scrubbed, in the background: 24h, 7d; or off
    #[arg(long, env = "TRINE_SCRUB_EVERY", default_value = "24h", value_name = "TIME", value_parser = every)]
    scrub_every: Every,
    /// How long a copy that is out of reach is waited for before another one is made elsewhere: 10m, 1h; 0s is not at all
    #[arg(long, env = "TRINE_REPLACE_AFTER", default_value = "10m", value_name = "TIME", value_parser = humantime::parse_duration)]
    replace_after: Duration,
}

/// A period, or none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Every(Option<Duration>);

fn every(text: &str) -> Result<Every, String> {
    if text == "off" {
        return Ok(Every(None));
    }
    let period = humantime::parse_duration(text).map_err(|why| format!("{why}; write a time such as 24h, or off"))?;
    if period < LEAST_SCRUB_EVERY {
        return Err(format!("at least {}", humantime::format_duration(LEAST_SCRUB_EVERY)));
    }
    Ok(Every(Some(period)))
}

fn store(text: &str) -> Result<PathBuf, String> {
    match text.strip_prefix("redb:") {
        Some(path) if !path.is_empty() => Ok(PathBuf::from(path)),
        _ => Err("write redb:FILE".to_owned()),
    }
}

pub(crate) fn run(command: ConductorCommand) -> Outcome {
    let ConductorCommand::Run(args) = command;
    let RunArgs { listen, store, plaintext, scrub_every: Every(scrub_every), replace_after } = args;
    let directory = store.parent().filter(|p| !p.as_os_str().is_empty());
    if let Some(directory) = directory {
        std::fs::create_dir_all(directory).with_context(|| format!("cannot make {}", directory.display()))?;
    }
    let ready = |address: SocketAddr| {
        // Whoever started it may not be listening.
        let _ = print(&format!("ready {address}"));
    };
    let options = Options { listen, store, plaintext, scrub_every, replace_after };
    conductor_service::serve(options, ready).map_err(|error| match error {
        Error::Plaintext(address) => Failure::usage(format!(
            "{address} is reachable from other machines and nothing is encrypted: pass --plaintext to allow it"
        )),
        other => anyhow::Error::from(other).into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_only_store_is_redb() {
        assert_eq!(store("redb:/x/y"), Ok("/x/y".into()));
        assert!(store("etcd://h:1").is_err() && store("redb:").is_err() && store("/x").is_err());
    }

    #[test]
    fn scrubs_come_regularly_or_not_at_all() {
        assert_eq!(every("off"), Ok(Every(None)));
        assert_eq!(every("24h"), Ok(Every(Some(Duration::from_secs(86_400)))));
        assert!(every("1s").is_err() && every("").is_err() && every("0").is_err() && every("never").is_err());
    }
}
