//! `trine conductor`.

use crate::config::{HTTPS, read_cluster_key};
use crate::etcd::{EtcdArgs, host_port, name, store};
use crate::output::{Exit, Failure, ListArgs, Outcome, note, print, table, time};
use crate::recovery;
use anyhow::Context;
use clap::builder::BoolishValueParser;
use clap::{Args, Subcommand};
use conductor_model::views::{ConductorInfo, ConductorRole};
use conductor_service::{Error, Options, Store};
use serde::Serialize;
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
    /// List the conductors that --conductor names: which one leads, which follow, which do not answer
    List(ListArgs),
    /// Write all that the running conductor keeps into a new file
    Backup(recovery::BackupArgs),
    /// Make a state from a backup or, if there is none, one that takes what the nodes hold, in a file or in etcd; then run a conductor on
    /// it, and adopt
    Recover(recovery::RecoverArgs),
    /// After `recover`: have the conductor go on with what the nodes hold. Until that is complete it refuses, and says what is missing
    Adopt(recovery::AdoptArgs),
}

#[derive(Args)]
pub(crate) struct RunArgs {
    /// Where to listen; port 0 takes any free one
    #[arg(long, env = "TRINE_CONDUCTOR_LISTEN", default_value = "127.0.0.1:7000", value_name = "IP:PORT")]
    listen: SocketAddr,
    /// Where its state is kept: redb:FILE, made if there is none; or etcd:URL,URL,… where several conductors share it, one of which leads
    #[arg(long, env = "TRINE_CONDUCTOR_STORE", default_value = "redb:/var/lib/trine/conductor.redb", value_parser = store)]
    store: Store,
    #[command(flatten)]
    etcd: EtcdArgs,
    /// Where nodes, targets and people reach this conductor; if not given, where it listens
    #[arg(long, env = "TRINE_CONDUCTOR_ADVERTISE", value_name = "HOST:PORT", value_parser = host_port)]
    advertise: Option<String>,
    /// File with the cluster's key (64 hexadecimal digits): only those are answered who have it, or a client's (see `trine client add`)
    #[arg(long, env = "TRINE_KEY_FILE", value_name = "FILE")]
    key_file: PathBuf,
    /// Speak TLS 1.3, and nothing else, with a certificate that follows from the key file: the same for all daemons of the cluster
    #[arg(long, env = "TRINE_TLS", value_parser = BoolishValueParser::new())]
    tls: bool,
    /// Listen beyond loopback although nothing is encrypted
    #[arg(long, env = "TRINE_PLAINTEXT", value_parser = BoolishValueParser::new())]
    plaintext: bool,
    /// Refuse to start where no cluster's state is kept, instead of making a new cluster: for every start but the first
    #[arg(long, env = "TRINE_EXISTING", value_parser = BoolishValueParser::new())]
    existing: bool,
    /// How often every volume is scrubbed, in the background: 24h, 7d; or off
    #[arg(long, env = "TRINE_SCRUB_EVERY", default_value = "24h", value_name = "TIME", value_parser = every)]
    scrub_every: Every,
    /// How long a copy that is out of reach is waited for before another one is made elsewhere: 10m, 1h; 0s is not at all
    #[arg(long, env = "TRINE_REPLACE_AFTER", default_value = "10m", value_name = "TIME", value_parser = time)]
    replace_after: Duration,
    /// Whether copies are moved, few at a time and while all is well, so that disks are evenly used (within 10 percentage points) and
    /// copies in different racks and hosts
    #[arg(long, env = "TRINE_REBALANCE", default_value = "on", value_name = "on|off", value_parser = switch, action = clap::ArgAction::Set)]
    rebalance: bool,
}

fn switch(text: &str) -> Result<bool, String> {
    match text {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err("write on or off".to_owned()),
    }
}

/// A period, or none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Every(Option<Duration>);

fn every(text: &str) -> Result<Every, String> {
    if text == "off" {
        return Ok(Every(None));
    }
    let period = time(text).map_err(|why| format!("{why}; write a time such as 24h, or off"))?;
    if period < LEAST_SCRUB_EVERY {
        return Err(format!("at least {}", humantime::format_duration(LEAST_SCRUB_EVERY)));
    }
    Ok(Every(Some(period)))
}

/// One conductor's row.
#[derive(Serialize)]
struct Row {
    address: String,
    version: Option<String>,
    /// None where nothing is known of it.
    role: Option<ConductorRole>,
    leader: Option<String>,
    /// Why that cannot be found out.
    #[serde(skip_serializing_if = "Option::is_none")]
    trouble: Option<String>,
    /// Why nothing is known of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

impl Row {
    fn new(address: String, asked: Result<ConductorInfo, String>) -> Self {
        let (info, error) = asked.map_or_else(|error| (None, Some(error)), |info| (Some(info), None));
        let (version, role) = (info.as_ref().map(|info| info.version.clone()), info.as_ref().map(|info| info.role));
        let (leader, trouble) = info.map_or((None, None), |info| (info.leader, info.trouble));
        Self { address, version, role, leader, trouble, error }
    }
}

pub(crate) fn run(command: ConductorCommand) -> Outcome {
    match command {
        ConductorCommand::Run(args) => run_one(args),
        ConductorCommand::List(args) => list(&args),
        ConductorCommand::Backup(args) => recovery::backup(&args),
        ConductorCommand::Recover(args) => recovery::recover(args),
        ConductorCommand::Adopt(args) => recovery::adopt(args),
    }
}

fn list(args: &ListArgs) -> Outcome {
    let rows = args.cluster.client()?.conductors().into_iter().map(|(base, asked)| {
        let address = base.trim_start_matches("http://").trim_start_matches(HTTPS).to_owned();
        Row::new(address, asked.map_err(|error| error.to_string()))
    });
    args.output.print(&rows.collect::<Vec<_>>(), |rows| conductors_table(rows))
}

fn conductors_table(rows: &[Row]) -> String {
    let cells = |row: &Row| {
        let or_none = |text: Option<&String>| text.cloned().unwrap_or_else(|| "-".to_owned());
        let role = row.role.map_or_else(|| "unreachable".to_owned(), |role| role.to_string());
        let trouble = or_none(row.error.as_ref().or(row.trouble.as_ref()));
        vec![row.address.clone(), role, or_none(row.leader.as_ref()), or_none(row.version.as_ref()), trouble]
    };
    table(&["ADDRESS", "ROLE", "LEADER", "VERSION", "TROUBLE"], rows.iter().map(cells))
}

fn run_one(args: RunArgs) -> Outcome {
    let RunArgs {
        listen,
        store,
        etcd,
        advertise,
        key_file,
        tls,
        plaintext,
        existing,
        scrub_every,
        replace_after,
        rebalance,
    } = args;
    let key = read_cluster_key(&key_file)?;
    let Every(scrub_every) = scrub_every;
    let store = etcd.complete(store)?;
    if let Store::Redb(file) = &store
        && let Some(directory) = file.parent().filter(|p| !p.as_os_str().is_empty())
    {
        std::fs::create_dir_all(directory).with_context(|| format!("cannot make {}", directory.display()))?;
    }
    let name = name(&store);
    explain_panics(&name);
    let ready = |address: SocketAddr| {
        // Whoever started it may not be listening.
        let _ = print(&format!("ready {address}"));
    };
    let options =
        Options { listen, store, advertise, plaintext, tls, key, existing, scrub_every, replace_after, rebalance };
    conductor_service::serve(options, ready).map_err(|error| match error {
        Error::Plaintext(address) => Failure::usage(format!(
            "{address} is reachable from other machines and nothing is encrypted: pass --tls, or --plaintext to allow it"
        )),
        Error::Advertise(address) => Failure::usage(format!(
            "{address} is no address that others can reach: pass --advertise HOST:PORT, where this conductor is"
        )),
        error @ Error::InUse(_) => Failure::new(Exit::Refused, error),
        error @ Error::NoCluster { .. } => Failure::new(
            Exit::Refused,
            format!("{error}, and --existing wants one. If it was lost, {}", make_it_again(&name)),
        ),
        error @ (Error::Damaged { .. } | Error::Open { .. }) => {
            Failure::new(Exit::Failed, format!("{:#}: move it away; {}", anyhow::Error::from(error), make_it_again(&name)))
        }
        error @ Error::Withheld { .. } => {
            let why = anyhow::Error::from(error);
            Failure::new(
                Exit::Failed,
                format!(
                    "{why:#}\nnothing says that it is damaged: leave it where it is, check its permissions, its disk and this process's \
                     limits, and start it again"
                ),
            )
        }
        error @ Error::Make { .. } => {
            let why = anyhow::Error::from(error);
            Failure::new(
                Exit::Failed,
                format!(
                    "{why:#}\nno cluster is made: check the directory's permissions, its disk and this process's limits, and start it again"
                ),
            )
        }
        error @ Error::Persist { .. } => {
            let why = anyhow::Error::from(error);
            Failure::new(Exit::Failed, format!("{why:#}\nnothing that was answered is lost: start it again when it can be written"))
        }
        other => anyhow::Error::from(other).into(),
    })
}

/// What to do about a state that is lost or damaged.
fn make_it_again(name: &str) -> String {
    format!(
        "`trine conductor recover --store {name}` with --backup FILE or --from-nodes makes it again; then run this again, and \
         `trine conductor adopt`. I/O goes on meanwhile"
    )
}

/// A damaged file may end the process while it is read, in a place that nobody foresaw.
fn explain_panics(name: &str) {
    let (before, way) = (std::panic::take_hook(), make_it_again(name));
    std::panic::set_hook(Box::new(move |info| {
        before(info);
        note(format_args!(
            "trine: this is a bug, or damage to the conductor's state. If it comes again at a start, move that away; {way}"
        ));
    }));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conductors_are_listed_with_what_they_do() {
        let info = |role, leader: Option<&str>| ConductorInfo {
            version: "1".to_owned(),
            role,
            leader: leader.map(str::to_owned),
            trouble: None,
        };
        use ConductorRole::{Follower, Leader};
        let rows = [
            Row::new("a:1".to_owned(), Ok(info(Leader, Some("a:1")))),
            Row::new("b:1".to_owned(), Ok(info(Follower, Some("a:1")))),
            Row::new("c:1".to_owned(), Err("gone".to_owned())),
        ];
        let text = conductors_table(&rows);
        let lines: Vec<Vec<&str>> = text.lines().skip(1).map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines[0], ["a:1", "leader", "a:1", "1", "-"]);
        assert_eq!(lines[1], ["b:1", "follower", "a:1", "1", "-"]);
        assert_eq!(lines[2], ["c:1", "unreachable", "-", "-", "gone"]);
        // Programs find the same keys in each.
        let rows: Vec<String> = rows.iter().map(|row| serde_json::to_string(row).unwrap()).collect();
        assert_eq!(rows[0], r#"{"address":"a:1","version":"1","role":"leader","leader":"a:1"}"#);
        assert_eq!(rows[2], r#"{"address":"c:1","version":null,"role":null,"leader":null,"error":"gone"}"#);
    }

    #[test]
    fn scrubs_come_regularly_or_not_at_all() {
        assert_eq!(every("off"), Ok(Every(None)));
        assert_eq!(every("24h"), Ok(Every(Some(Duration::from_secs(86_400)))));
        assert!(every("1s").is_err() && every("").is_err() && every("0").is_err() && every("never").is_err());
    }
}
