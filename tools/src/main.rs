//! The trine command: the tree of what can be typed, and where it goes. One file per noun; `output` and `config` for all of them.
#![deny(clippy::undocumented_unsafe_blocks)]
// They panic where nobody reads or the disk is full: `output::print` and `output::note` do not.
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod attach;
mod attached;
mod background;
mod bench;
mod checksums;
mod client;
mod completions;
mod conductor;
mod config;
mod dev;
mod disk;
mod doctor;
mod etcd;
mod events;
mod image;
mod inherited;
mod listen;
mod man;
mod metrics;
mod node;
mod output;
mod pidfile;
mod ports;
mod progress;
mod ranges;
mod recovery;
mod resync;
mod scrub;
mod sharing;
mod snapshot;
mod space;
mod status;
mod store;
mod trace;
mod visit;
mod volume;

use clap::error::ErrorKind;
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use output::{Failure, Outcome};
use std::path::PathBuf;
use std::process::ExitCode;
use tracing_subscriber::EnvFilter;

const AFTER: &str = "\
Exit codes: 0 done, 1 failed, 2 wrong usage, 3 conductor unreachable, 4 no such object, 5 refused, 6 timed out.
Sizes are whole numbers with K, M, G or T, all powers of 1024: 100G and 100GiB are the same.
With -o json, or TRINE_OUTPUT=json, a command prints what it lists or changed as JSON: as the listings do, with the same fields.
Options come from flags, then from the environment where it says [env: …], then from a TOML file: a key at its top, such as
conductor = \"HOST:PORT\", is for all commands, and one under [\"node.run\"] for that one.

A first session:  trine dev start && trine volume create db --size 10G && trine status";

/// Trine: a replicated block store. Every write lands on three machines, or two while one is away.
#[derive(Parser)]
#[command(name = "trine", version, after_help = AFTER, max_term_width = 110, propagate_version = false)]
struct Cli {
    /// TOML file with options [default: /etc/trine/trine.toml if it exists]
    #[arg(long, env = "TRINE_CONFIG", value_name = "FILE", global = true)]
    config: Option<PathBuf>,
    /// What to log to stderr: error, warn, info, debug, or tracing's filter syntax [default: info for daemons, else warn]
    #[arg(long, env = "TRINE_LOG", value_name = "FILTER", global = true)]
    log: Option<String>,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
#[command(disable_help_subcommand = true)]
enum Command {
    /// Is everything well? Nodes, volumes, what is missing or waited for, and what to do about it
    Status(status::StatusArgs),
    /// Create, list, grow, clone, scrub and delete volumes
    #[command(subcommand)]
    Volume(volume::VolumeCommand),
    /// Make, list and delete snapshots of volumes, and go back to them
    #[command(subcommand)]
    Snapshot(snapshot::SnapshotCommand),
    /// Space: what disks have, what volumes use, what is nearly full
    Df(output::ListArgs),
    /// Attach a volume to this host, as /dev/ublkbN or over NBD
    Attach(attach::AttachArgs),
    /// End an attachment
    Detach(attach::DetachArgs),
    /// The volumes that are attached to this host, and what they wait for
    Attached(attached::AttachedArgs),
    /// Load a volume from this host, and say how fast it was
    Bench(bench::BenchArgs),
    /// Who uses the cluster's volumes, and ending that
    #[command(subcommand)]
    Client(client::ClientCommand),
    /// What this machine offers, and what to do about what it does not
    Doctor(doctor::DoctorArgs),
    /// Run a storage node, look at the nodes there are, empty and remove one
    #[command(subcommand)]
    Node(node::NodeCommand),
    /// The disks of all nodes, and taking one out
    #[command(subcommand)]
    Disk(disk::DiskCommand),
    /// Copies that are being filled: how far they are, how fast it goes, and an end of it
    #[command(subcommand)]
    Resync(resync::ResyncCommand),
    /// What happened in the cluster: deaths, failovers, copies filled and moved, volumes made and attached
    Events(events::EventsArgs),
    /// Run the conductor, which knows nodes and volumes
    #[command(subcommand)]
    Conductor(conductor::ConductorCommand),
    /// What the cluster, and this host's nodes and attachments, count, for Prometheus
    Metrics(metrics::MetricsArgs),
    /// A whole cluster on this machine, for development and for trying Trine out
    #[command(subcommand)]
    Dev(dev::DevCommand),
    /// Look at disks whose nodes are stopped: compare copies, check every block, show what is there
    #[command(subcommand)]
    Store(store::StoreCommand),
    /// Print a completion script: trine completions bash > /etc/bash_completion.d/trine
    Completions(completions::CompletionsArgs),
    /// Write the man pages into a directory: trine man /usr/share/man/man1
    Man(man::ManArgs),
}

impl Command {
    fn is_daemon(&self) -> bool {
        match self {
            Self::Conductor(conductor::ConductorCommand::Run(_)) | Self::Node(node::NodeCommand::Run(_)) => true,
            Self::Attach(args) => args.is_daemon(),
            Self::Metrics(args) => args.is_daemon(),
            _ => false,
        }
    }

    fn run(self) -> Outcome {
        match self {
            Self::Status(args) => status::run(&args),
            Self::Volume(command) => volume::run(command),
            Self::Snapshot(command) => snapshot::run(command),
            Self::Df(args) => space::run(&args),
            Self::Attach(args) => attach::attach(args),
            Self::Detach(args) => attach::run_detach(&args),
            Self::Attached(args) => attached::attached(&args),
            Self::Bench(args) => bench::run(args),
            Self::Client(command) => client::run(command),
            Self::Doctor(args) => doctor::run(&args),
            Self::Node(command) => node::run(command),
            Self::Disk(command) => disk::run(command),
            Self::Resync(command) => resync::run(command),
            Self::Events(args) => events::run(&args),
            Self::Conductor(command) => conductor::run(command),
            Self::Metrics(args) => metrics::run(args),
            Self::Dev(command) => dev::run(command),
            Self::Store(command) => store::run(command),
            Self::Completions(args) => completions::run(&args),
            Self::Man(args) => man::run(&args),
        }
    }
}

fn main() -> ExitCode {
    inherited::hear_of_limits();
    let args: Vec<_> = std::env::args_os().collect();
    let command = match config::with_file(Cli::command(), &args) {
        Ok(command) => command,
        Err(failure) => return failure.report(),
    };
    let parsed = command.try_get_matches_from(args).and_then(|matches| Cli::from_arg_matches(&matches));
    let cli = match parsed {
        Ok(cli) => cli,
        Err(error) => return wrong_usage(&error),
    };
    if let Err(failure) = log_to_stderr(&cli) {
        return failure.report();
    }
    checksums::choose();
    match cli.command.run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}

/// One sentence and code 2; what is no error (--help, --version) as clap prints it.
fn wrong_usage(error: &clap::Error) -> ExitCode {
    if matches!(
        error.kind(),
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
    ) {
        error.exit();
    }
    Failure::usage(one_sentence(&error.render().to_string())).report()
}

/// What clap says in paragraphs, and whose help says more; its usage line names the command.
fn one_sentence(rendered: &str) -> String {
    let usage = rendered.lines().find_map(|line| line.strip_prefix("Usage: "));
    let command =
        usage.map(|usage| usage.split(' ').take_while(|word| !word.starts_with(['[', '<', '-'])).collect::<Vec<_>>());
    let more = command.map(|command| format!(" (see `{} --help`)", command.join(" "))).unwrap_or_default();
    let said = rendered.lines().take_while(|line| !line.starts_with("Usage:") && !line.starts_with("For more"));
    let said: Vec<&str> = said.map(str::trim).filter(|line| !line.is_empty()).collect();
    let said = said.join(" ");
    format!("{}{more}", said.strip_prefix("error: ").unwrap_or(&said))
}

fn log_to_stderr(cli: &Cli) -> Outcome {
    let default = if cli.command.is_daemon() { "info" } else { "warn" };
    let filter = cli.log.as_deref().unwrap_or(default);
    let filter =
        EnvFilter::try_new(filter).map_err(|why| Failure::usage(format!("{filter:?} is no log filter: {why}")))?;
    // A log that cannot be written is no reason to end: what complains of that by itself does so with `eprintln!`, which panics.
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    log.log_internal_errors(false).init();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_usage_is_one_sentence() {
        for args in [["trine", "volume", "create"].as_slice(), &["trine", "volum"], &["trine", "node", "show", "x"]] {
            let Err(error) = Cli::try_parse_from(args) else { panic!("{args:?} is wrong") };
            let text = one_sentence(&error.render().to_string());
            assert!(!text.contains('\n') && !text.contains("Usage") && !text.starts_with("error"), "{text}");
        }
        let said = |args: &[&str]| match Cli::try_parse_from(args) {
            Err(error) => one_sentence(&error.render().to_string()),
            Ok(_) => panic!("{args:?} is wrong"),
        };
        assert!(said(&["trine", "-o", "json", "status"]).ends_with("found (see `trine --help`)"));
        assert!(said(&["trine", "volume", "create"]).ends_with("(see `trine volume create --help`)"));
    }

    /// A command of README.md in the words that it would have: without what is said of it, or what stands for more.
    fn words_of(line: &str) -> Option<Vec<String>> {
        let (command, _) = line.split_once(" #").unwrap_or((line, ""));
        let (command, _) = command.split_once(" > ").unwrap_or((command, ""));
        let words = command.strip_prefix("trine ").map(|_| command.split_whitespace())?;
        // A disk id has 16 digits.
        Some(words.filter(|word| *word != "…").map(|word| word.replace('…', &"0".repeat(12))).collect())
    }

    #[test]
    fn what_the_readme_says_can_be_typed() {
        let readme = include_str!("../../README.md");
        let mut typed = 0;
        for words in readme.lines().filter_map(words_of) {
            let Err(error) = Cli::try_parse_from(&words) else {
                typed += 1;
                continue;
            };
            // The environment has the key, and `…` stands for what was said before.
            let is_short = error.kind() == clap::error::ErrorKind::MissingRequiredArgument;
            assert!(is_short, "{words:?}: {error}");
        }
        assert!(typed >= 35, "{typed} commands");
        for text in ["trine conductor run --key-file k --store redb:f --rebalance off", "trine volume scrub list"] {
            assert!(Cli::try_parse_from(text.split(' ')).is_ok(), "{text}");
        }
    }

    #[test]
    fn what_the_unit_files_start_can_be_typed() {
        let units = [
            include_str!("../../docs/systemd/trine-conductor.service"),
            include_str!("../../docs/systemd/trine-node.service"),
            include_str!("../../docs/systemd/trine-attach@.service"),
        ];
        for (unit, commands) in units.iter().zip([1, 1, 2]) {
            let typed =
                unit.lines().filter(|line| line.starts_with("Exec")).filter_map(|l| l.split_once("/usr/local/bin/"));
            let typed = typed.map(|(_, command)| command.replace("%i", "db").replace(" $ARGS", "").replace('\'', ""));
            let typed: Vec<String> = typed.collect();
            assert_eq!(typed.len(), commands);
            for command in typed {
                let parsed = Cli::try_parse_from(command.split(' ')).map(|_| ()).map_err(|error| error.kind());
                // What a file has beside.
                assert!(matches!(parsed, Ok(()) | Err(clap::error::ErrorKind::MissingRequiredArgument)), "{command}");
            }
        }
    }

    #[test]
    fn the_tree_is_consistent_and_everything_has_a_help_text() {
        fn check(command: &clap::Command, path: &str) {
            assert!(command.get_about().is_some(), "{path} says what it is for");
            assert!(command.get_name() != "help", "{path}: --help says as much");
            for arg in command.get_arguments() {
                assert!(arg.get_help().is_some(), "{path} {} has a help text", arg.get_id());
            }
            for sub in command.get_subcommands() {
                check(sub, &format!("{path} {}", sub.get_name()));
            }
        }
        let mut command = Cli::command();
        command.clone().debug_assert();
        // What clap adds by itself is there then.
        command.build();
        check(&command, "trine");
    }

    #[test]
    fn programs_can_have_json_from_every_command() {
        fn without(command: &clap::Command, path: &str, found: &mut Vec<String>) {
            for sub in command.get_subcommands() {
                without(sub, &format!("{path} {}", sub.get_name()), found);
            }
            if !command.has_subcommands() && !command.get_arguments().any(|arg| arg.get_id() == "output") {
                found.push(path.to_owned());
            }
        }
        let mut found = Vec::new();
        without(&Cli::command(), "trine", &mut found);
        let exceptions = [
            // Their one line is for whoever starts them.
            "trine node run",
            "trine conductor run",
            // What they print or write has a form of its own: Prometheus', a shell's, man's.
            "trine metrics",
            "trine completions",
            "trine man",
        ];
        assert_eq!(found, exceptions);
    }
}
