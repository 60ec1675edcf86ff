//! `trine conductor`.

use crate::output::{Failure, Outcome, print};
use anyhow::Context;
use clap::{Args, Subcommand};
use conductor_service::{Error, Options};
use std::net::SocketAddr;
use std::path::PathBuf;

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
}

fn store(text: &str) -> Result<PathBuf, String> {
    match text.strip_prefix("redb:") {
        Some(path) if !path.is_empty() => Ok(PathBuf::from(path)),
        _ => Err("write redb:FILE".to_owned()),
    }
}

pub(crate) fn run(command: ConductorCommand) -> Outcome {
    let ConductorCommand::Run(RunArgs { listen, store, plaintext }) = command;
    let directory = store.parent().filter(|p| !p.as_os_str().is_empty());
    if let Some(directory) = directory {
        std::fs::create_dir_all(directory).with_context(|| format!("cannot make {}", directory.display()))?;
    }
    let ready = |address: SocketAddr| {
        // Whoever started it may not be listening.
        let _ = print(&format!("ready {address}"));
    };
    conductor_service::serve(Options { listen, store, plaintext }, ready).map_err(|error| match error {
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
}
