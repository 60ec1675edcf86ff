//! `trine node`.

mod drain;

use crate::config::ClusterArgs;
use crate::disk;
use crate::listen::{Listen, listens};
use crate::output::{Exit, Failure, ListArgs, Outcome, OutputArgs, Size, note, print, size, table};
use crate::volume::WaitArgs;
use clap::builder::BoolishValueParser;
use clap::{Args, Subcommand};
use conductor_model::views::{DiskInfo, Duty, NodeInfo, NodeState};
use conductor_model::{NodeId, TransportAddress};
use nix::unistd::Uid;
use node_daemon::{DiskPlan, Error, NodeLook, NodeOptions, TraceLook};
use serde::Serialize;
use std::fmt::Write;
use std::fs;
use std::io::ErrorKind;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

#[derive(Subcommand)]
#[command(disable_help_subcommand = true)]
pub(crate) enum NodeCommand {
    /// Run a storage node in the foreground until SIGTERM; prints "ready NODE ADDRESS…" when it is registered
    Run(Box<RunArgs>),
    /// Say how a new machine joins: the next free number, and the command to run there
    Add(AddArgs),
    /// List all nodes
    List(ListArgs),
    /// Show one node; on its own machine also what it is doing
    Show(ShowArgs),
    /// Keep new copies away from a node; it goes on with what it has
    Cordon(NodeArgs),
    /// Let a node take new copies again; ends a draining
    Uncordon(NodeArgs),
    /// Move all copies of a node to other nodes, without one less at any time
    Drain(DrainArgs),
    /// Forget a node that is stopped and empty, or that will not come back. One that was heard just now, and is heard no more, is waited
    /// for until it counts as stopped: ten seconds
    Remove(RemoveArgs),
}

#[derive(Args)]
pub(crate) struct RunArgs {
    /// The node's number, from 1, the same for ever: 3 or n3
    #[arg(long, env = "TRINE_NODE", value_name = "NODE", value_parser = node_id)]
    node: NodeId,
    /// A file or block device to store on, and where its journal is to be if not on it: a block device, or a file, which is mapped
    /// (on a DAX file system on NVDIMM: written without the kernel). Repeat it, or list more behind commas. The node starts without one
    /// that cannot be used or hangs, and says so, if another holds a store
    #[arg(long = "disk", env = "TRINE_DISKS", value_name = "PATH[,journal=PATH]", required = true)]
    disks: Vec<String>,
    /// Make files of this size for --disk paths at which there is nothing, and files for their journals
    #[arg(long, value_name = "SIZE")]
    create: Option<Size>,
    /// Size of the journals of stores that are made: 16M to 1G, half the disk at most; what is written again while it is there does not
    /// go home in between [default: a sixteenth of the disk]
    #[arg(long, value_name = "SIZE")]
    journal_size: Option<Size>,
    /// Reserve no space for files that are made: slow at first, and the file system may fill up; for trying out
    #[arg(long)]
    sparse: bool,
    /// Make a store on disks that hold none. What else is on such a disk is lost; one with a store is never formatted
    #[arg(long)]
    format: bool,
    /// With --format: even on disks with a file system, a partition table or the like, which is lost. One in use stays refused
    #[arg(long, requires = "format")]
    force: bool,
    /// Use the page cache on file systems without O_DIRECT instead of refusing them
    #[arg(long, env = "TRINE_ALLOW_BUFFERED", value_parser = BoolishValueParser::new())]
    allow_buffered: bool,
    /// Where the first reactor listens, the others on the ports after it; port 0 takes any free ones. The first address is the node's
    /// name; further ones, by default on the same port, are other ways to it, which its peers try in turn and spread their connections
    /// over: --listen 10.0.0.1:7100,10.1.0.1,rdma:10.0.0.1 (RDMA is experimental: see docs/rdma.md)
    #[arg(
        long,
        env = "TRINE_NODE_LISTEN",
        default_value = "127.0.0.1:7100",
        value_name = "IP[:PORT]|rdma:IP[:PORT]",
        value_delimiter = ','
    )]
    listen: Vec<Listen>,
    /// The addresses that others use over TCP, if they are others than the first one listened on: --listen 0.0.0.0:7100 --advertise
    /// 10.0.0.1,10.1.0.1
    #[arg(long, env = "TRINE_ADVERTISE", value_name = "IP", value_delimiter = ',')]
    advertise: Vec<IpAddr>,
    /// The machine's name, for people and failure domains [default: this host's name]
    #[arg(long, env = "TRINE_HOST", value_name = "NAME")]
    host: Option<String>,
    /// The rack that the machine is in: copies are spread over racks first, then over hosts [default: the machine stands for itself]
    #[arg(long, env = "TRINE_RACK", value_name = "NAME", default_value = "", hide_default_value = true)]
    rack: String,
    /// Socket for `trine node show` and `trine disk add` [default: /run/trine/NODE.sock if /run/trine exists]
    #[arg(long, env = "TRINE_CONTROL_SOCKET", value_name = "PATH")]
    control_socket: Option<PathBuf>,
    /// Buffer memory of all reactors together
    #[arg(long, env = "TRINE_NODE_MEMORY", default_value = "256M", value_name = "SIZE")]
    memory: Size,
    /// Memory for each disk's metadata pages, beside that; at least 1280K, and about 1/640 of the data that is in use at a time
    #[arg(long, env = "TRINE_METADATA_CACHE", default_value = "16M", value_name = "SIZE")]
    metadata_cache: Size,
    /// Have the buffer memory on huge pages of 2 MiB, which must be reserved: sysctl vm.nr_hugepages
    #[arg(long, env = "TRINE_HUGE_PAGES", value_parser = BoolishValueParser::new())]
    huge_pages: bool,
    /// Have that memory on files in these directories instead, best one on each memory node of the machine: 32 GiB is 10 files
    #[arg(long, env = "TRINE_MEMORY_DIR", value_name = "DIR", value_delimiter = ',', conflicts_with = "huge_pages")]
    memory_dir: Vec<PathBuf>,
    /// Requests in flight per connection
    #[arg(long, default_value_t = node_daemon::DEFAULT_DEPTH, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    depth: u16,
    /// Reactor threads; the disks are spread over them
    #[arg(long, default_value_t = 1, value_name = "N")]
    reactors: u16,
    /// Processors for the reactor threads, in turn: 0,2
    #[arg(long, value_name = "CPU", value_delimiter = ',')]
    pin: Vec<usize>,
    /// Listen beyond loopback although nothing is encrypted: without --tls
    #[arg(long, env = "TRINE_PLAINTEXT", value_parser = BoolishValueParser::new())]
    plaintext: bool,
    #[command(flatten)]
    cluster: ClusterArgs,
}

#[derive(Args)]
pub(crate) struct AddArgs {
    /// The rack that the new machine is in
    #[arg(long, value_name = "NAME")]
    rack: Option<String>,
    #[command(flatten)]
    cluster: ClusterArgs,
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Args)]
pub(crate) struct ShowArgs {
    /// The node: 3 or n3
    #[arg(value_parser = node_id)]
    node: NodeId,
    /// Look inside: disks, copies, sessions, counters, and every live object with what holds it
    #[arg(long)]
    refs: bool,
    /// Look inside: the stages of the requests that finished last
    #[arg(long)]
    trace: bool,
    /// The node's control socket [default: the one in --dir, else /run/trine/NODE.sock]
    #[arg(long, env = "TRINE_CONTROL_SOCKET", value_name = "PATH")]
    control_socket: Option<PathBuf>,
    #[command(flatten)]
    cluster: ClusterArgs,
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Args)]
pub(crate) struct NodeArgs {
    /// The node: 3 or n3
    #[arg(value_parser = node_id)]
    node: NodeId,
    #[command(flatten)]
    cluster: ClusterArgs,
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Args)]
pub(crate) struct DrainArgs {
    /// The node: 3 or n3
    #[arg(value_parser = node_id)]
    node: NodeId,
    #[command(flatten)]
    wait: WaitArgs,
    #[command(flatten)]
    cluster: ClusterArgs,
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Args)]
pub(crate) struct RemoveArgs {
    /// The node: 3 or n3
    #[arg(value_parser = node_id)]
    node: NodeId,
    /// Although it has copies: they are made anew on other nodes. Where it has the last copy of something, only with the sentence that
    /// the refusal names: --force "lose data of volume db"
    #[arg(long, value_name = "SENTENCE", num_args = 0..=1, default_missing_value = "", value_parser = disk::sentence)]
    force: Option<String>,
    #[command(flatten)]
    cluster: ClusterArgs,
    #[command(flatten)]
    output: OutputArgs,
}

/// `n3` or `3`.
pub(crate) fn node_id(text: &str) -> Result<NodeId, String> {
    match text.strip_prefix('n').unwrap_or(text).parse() {
        Ok(number) if number > 0 => Ok(NodeId(number)),
        _ => Err("write its number, 1 or more: 3 or n3".to_owned()),
    }
}

pub(crate) fn run(command: NodeCommand) -> Outcome {
    match command {
        NodeCommand::Run(args) => run_node(*args),
        NodeCommand::Add(args) => add(&args),
        NodeCommand::List(args) => args.output.print(&args.cluster.client()?.nodes()?, |nodes| nodes_table(nodes)),
        NodeCommand::Show(args) => show(&args),
        NodeCommand::Cordon(args) => set_duty(&args, Duty::Cordoned, "gets no new copies"),
        NodeCommand::Uncordon(args) => set_duty(&args, Duty::Serving, "takes new copies"),
        NodeCommand::Drain(args) => drain::run(&args),
        NodeCommand::Remove(args) => drain::remove(&args),
    }
}

fn set_duty(args: &NodeArgs, duty: Duty, what: &str) -> Outcome {
    let info = args.cluster.client()?.set_duty(args.node, duty, false)?;
    args.output.print_done(&info, |info| format!("{} {what}", info.node))
}

/// A node joins by running.
#[derive(Serialize)]
struct Joining {
    node: NodeId,
    command: String,
}

fn add(args: &AddArgs) -> Outcome {
    let nodes = args.cluster.client()?.nodes()?;
    let node = NodeId(nodes.iter().map(|n| n.node.0).max().unwrap_or(0) + 1);
    let rack = args.rack.as_ref().map_or(String::new(), |rack| format!(" --rack {rack}"));
    let conductor = reachable(&args.cluster.address()?);
    let encryption = if args.cluster.is_tls()? { "--tls" } else { "--plaintext" };
    let command = format!(
        "trine node run --node {node} --conductor {conductor} --key-file /etc/trine/cluster.key --listen ITS-ADDRESS:7100 \
         --disk ITS-DISK --format{rack} {encryption}"
    );
    args.output.print(&Joining { node, command }, |joining| {
        let key = "copy the cluster's key to the new machine, as /etc/trine/cluster.key with mode 600; then run there, as a service, with its own address and disk:";
        let after = format!("`trine node list` shows {node} then, and it takes new copies and, by rebalancing, its share of the others");
        format!("{key}\n\n  {}\n\n{after}", joining.command)
    })
}

/// What another machine can be told: this one's loopback means itself there.
fn reachable(conductors: &str) -> String {
    let told = conductors.split(',').map(|conductor| {
        let (scheme, address) =
            conductor.trim().split_once("://").map_or(("", conductor.trim()), |(s, rest)| (s, rest));
        let scheme = if scheme.is_empty() { String::new() } else { format!("{scheme}://") };
        let (host, port) = address.rsplit_once(':').unwrap_or((address, ""));
        let ip = host.trim_matches(['[', ']']).parse::<IpAddr>();
        let is_loopback = host == "localhost" || ip.is_ok_and(|ip| ip.is_loopback());
        if is_loopback { format!("{scheme}ITS-CONDUCTORS-ADDRESS:{port}") } else { format!("{scheme}{address}") }
    });
    told.collect::<Vec<_>>().join(",")
}

fn copies(node: &NodeInfo) -> u32 {
    node.disks.iter().map(|d| d.copies).sum()
}

/// Where a node's control socket is, unless told: in a directory that root makes. Somebody else has one only if it is there.
fn usual_socket(node: NodeId) -> Option<PathBuf> {
    let usual = Path::new("/run/trine");
    if Uid::effective().is_root()
        && let Err(error) = fs::create_dir(usual)
        && error.kind() != ErrorKind::AlreadyExists
    {
        note(format_args!("trine: no control socket, as {} cannot be made: {error}", usual.display()));
    }
    usual.is_dir().then(|| usual.join(format!("{node}.sock")))
}

fn run_node(args: RunArgs) -> Outcome {
    let host = match args.host {
        Some(host) => host,
        None => host_name()?,
    };
    let control = args.control_socket.or_else(|| usual_socket(args.node));
    let [create, journal_size] = [args.create, args.journal_size].map(|size| size.map(|size| size.0));
    let disks = disk_plans(&args.disks, create, journal_size).map_err(Failure::usage)?;
    let (listen, more) = listens(&args.listen).map_err(Failure::usage)?;
    let node = args.node;
    let options = NodeOptions {
        node,
        host,
        rack: args.rack,
        disks,
        sparse: args.sparse,
        format: args.format,
        force: args.force,
        allow_buffered: args.allow_buffered,
        listen,
        more,
        advertise: args.advertise,
        conductor: args.cluster.address()?,
        key: args.cluster.cluster_key()?,
        control,
        memory: args.memory.0,
        metadata_cache: args.metadata_cache.0,
        huge_pages: args.huge_pages,
        memory_dirs: args.memory_dir,
        depth: args.depth,
        reactors: args.reactors.into(),
        pin: args.pin,
        plaintext: args.plaintext,
        tls: args.cluster.is_tls()?,
    };
    let ready = |ready: &node_daemon::Ready| {
        let endpoints: Vec<String> = ready.endpoints.iter().map(ToString::to_string).collect();
        // Whoever started it may not be listening.
        let _ = print(&format!("ready {node} {}", endpoints.join(" ")));
    };
    node_daemon::run(options, ready).map_err(failure)
}

/// `PATH`, `PATH,journal=PATH`, or several of these behind commas: a journal belongs to the disk before it.
fn disk_plans(given: &[String], create: Option<u64>, journal_size: Option<u64>) -> Result<Vec<DiskPlan>, String> {
    let mut plans: Vec<DiskPlan> = Vec::new();
    for value in given {
        let first = plans.len();
        for item in value.split(',') {
            match (item.strip_prefix("journal="), plans[first..].last_mut()) {
                (Some(""), _) => return Err(format!("--disk {value:?}: the journal has no path")),
                (None, _) if item.is_empty() => return Err(format!("--disk {value:?}: a disk has no path")),
                (None, _) => plans.push(DiskPlan { path: item.into(), create, journal: None, journal_size }),
                (Some(journal), Some(DiskPlan { journal: unnamed @ None, .. })) => *unnamed = Some(journal.into()),
                (Some(_), Some(_)) => return Err(format!("--disk {value:?}: a disk has one journal")),
                (Some(_), None) => return Err(format!("--disk {value:?}: a journal needs its disk before it")),
            }
        }
    }
    Ok(plans)
}

fn failure(error: Error) -> Failure {
    match error {
        Error::Conductor(error) => error.into(),
        Error::Plaintext(address) => Failure::usage(format!(
            "{address} is reachable from other machines and nothing is encrypted: pass --tls, or --plaintext to allow it"
        )),
        Error::Marked { path, mark } => Failure::new(
            Exit::Refused,
            format!(
                "disk {} carries {mark}: name another disk, or, if nobody needs what is on it, pass --force",
                path.display()
            ),
        ),
        Error::JournalTaken { journal, store } => Failure::new(
            Exit::Refused,
            format!(
                "journal {} belongs to store {store}: name another one, or, if that store is gone for good, pass --force",
                journal.display()
            ),
        ),
        error @ (Error::Used { .. }
        | Error::HugePages(_)
        | Error::JournalMissing { .. }
        | Error::JournalUnused { .. }
        | Error::JournalEmpty { .. }
        | Error::JournalOfOther { .. }
        | Error::JournalShort { .. }) => Failure::new(Exit::Refused, error),
        error => {
            let wrong_usage = matches!(
                error,
                Error::NoDisk
                    | Error::Reactors { .. }
                    | Error::TooManyDisks { .. }
                    | Error::Memory { .. }
                    | Error::Unspecified(_)
                    | Error::UnspecifiedMore(_)
                    | Error::Addresses
                    | Error::AddressTwice(..)
                    | Error::Ports(_)
                    | Error::RdmaInClear(_)
                    | Error::Twice(_)
                    | Error::Missing(_)
                    | Error::TooSmall { .. }
                    | Error::NoJournal(_)
                    | Error::JournalTooSmall { .. }
                    | Error::JournalSize { .. }
                    | Error::Cache(_)
            );
            Failure::new(if wrong_usage { Exit::Usage } else { Exit::Failed }, error)
        }
    }
}

/// This machine's name.
pub(crate) fn host_name() -> Outcome<String> {
    let name = nix::unistd::gethostname().map_err(anyhow::Error::from)?;
    Ok(name.to_string_lossy().into_owned())
}

/// What `node show` prints.
#[derive(Serialize)]
struct Shown {
    /// What the conductor knows; none if it cannot be reached, but the node itself can.
    info: Option<NodeInfo>,
    /// What the node itself says, if that was asked for.
    inside: Option<NodeLook>,
}

fn show(args: &ShowArgs) -> Outcome {
    let inside = if args.refs || args.trace { Some(look(args)?) } else { None };
    let known = args.cluster.client().and_then(|client| Ok(client.node(args.node)?));
    let info = match known {
        Ok(info) => Some(info),
        Err(failure) if inside.is_some() && failure.exit == Exit::Unreachable => None,
        Err(failure) => return Err(failure),
    };
    args.output.print(&Shown { info, inside }, |shown| {
        let mut text = String::new();
        if let Some(info) = &shown.info {
            text = format!("{}\n{}\n", nodes_table(std::slice::from_ref(info)), disks_table(info));
        }
        if let Some(inside) = &shown.inside {
            describe(inside, args.refs, args.trace, &mut text);
        }
        text
    })
}

fn look(args: &ShowArgs) -> Outcome<NodeLook> {
    let path = control_socket(args.node, args.control_socket.as_deref(), &args.cluster)?;
    look_at(args.node, &path)
}

/// Where a node on this machine listens.
pub(crate) fn control_socket(node: NodeId, named: Option<&Path>, cluster: &ClusterArgs) -> Outcome<PathBuf> {
    let path = match named {
        Some(path) => path.to_path_buf(),
        None => {
            let dev = cluster.dir.path()?.join(node.to_string()).join("control.sock");
            if dev.exists() { dev } else { PathBuf::from(format!("/run/trine/{node}.sock")) }
        }
    };
    if fs::metadata(&path).is_err() {
        let on = cluster
            .client()
            .and_then(|client| Ok(client.node(node)?))
            .map_or(String::new(), |n| format!(", {}", n.host));
        let why = format!(
            "node {node} has no control socket here ({}): run this on its machine{on}, or pass --control-socket; a node that was \
             started without one, not as root, gets one when it is started again with --control-socket",
            path.display()
        );
        return Err(Failure::new(Exit::NoSuch, why));
    }
    Ok(path)
}

/// The node behind a control socket, which is to be this one.
pub(crate) fn look_at(node: NodeId, path: &Path) -> Outcome<NodeLook> {
    let inside = node_daemon::ask_for_look(path).map_err(anyhow::Error::from)?;
    if inside.node != node {
        return Err(Failure::new(Exit::NoSuch, format!("{} is the control socket of {}", path.display(), inside.node)));
    }
    Ok(inside)
}

/// All nodes, one line each.
pub(crate) fn nodes_table(nodes: &[NodeInfo]) -> String {
    let row = |n: &NodeInfo| {
        let state = match n.state {
            NodeState::Alive => "alive".to_owned(),
            NodeState::Late => format!("late, silent for {} s", n.silent_ms / 1000),
            NodeState::Dead => format!("DEAD, silent for {} s", n.silent_ms / 1000),
        };
        let state = match n.duty {
            Duty::Serving => state,
            duty => format!("{state}, {duty}"),
        };
        let sum = |of: &dyn Fn(&conductor_model::views::DiskInfo) -> u64| {
            Size(n.disks.iter().filter(|d| d.present).map(of).sum()).to_string()
        };
        vec![
            n.node.to_string(),
            n.host.clone(),
            if n.rack.is_empty() { "-".to_owned() } else { n.rack.clone() },
            state,
            n.disks.len().to_string(),
            sum(&|d| d.used.0),
            sum(&|d| d.capacity.0),
            copies(n).to_string(),
            n.primaries.to_string(),
            if n.version.is_empty() { "-".to_owned() } else { n.version.clone() },
        ]
    };
    let head = ["NODE", "HOST", "RACK", "STATE", "DISKS", "USED", "CAPACITY", "COPIES", "PRIMARIES", "VERSION"];
    table(&head, nodes.iter().map(row))
}

fn disks_table(node: &NodeInfo) -> String {
    let rows = node.disks.iter().map(|d| {
        vec![
            d.disk.to_string(),
            served_at(d),
            disk::state(d),
            size(d.used),
            size(d.capacity),
            size(d.provisioned),
            d.copies.to_string(),
            d.damaged.to_string(),
            d.repaired.to_string(),
        ]
    });
    let head = ["DISK", "SERVED AT", "STATE", "USED", "CAPACITY", "PROVISIONED", "COPIES", "DAMAGED", "REPAIRED"];
    table(&head, rows)
}

/// All its addresses: those over TCP as they are.
fn served_at(disk: &DiskInfo) -> String {
    let others = disk.addresses.iter().map(|address| match address {
        TransportAddress::Tcp(at) => format!(", {at}"),
        TransportAddress::Rdma(at) => format!(", rdma {at}"),
    });
    disk.endpoint.to_string() + &others.collect::<String>()
}

/// Formatting into a String cannot fail.
fn describe(inside: &NodeLook, refs: bool, trace: bool, text: &mut String) {
    let _ = writeln!(text, "process {}", inside.pid);
    let behind = match (inside.memory.huge_pages, inside.memory.directories) {
        (0, 0) => "ordinary pages".to_owned(),
        (0, 1) => "files in one directory".to_owned(),
        (0, directories) => format!("files in {directories} directories"),
        (pages, _) => format!("{pages} reserved huge pages"),
    };
    let _ = writeln!(text, "buffer memory {} on {behind}", size(inside.memory.bytes));
    for on in &inside.memory_nodes {
        let _ = writeln!(text, "memory node {}: {} of the process", on.node, size(on.bytes));
    }
    if let Some(trouble) = &inside.conductor_trouble {
        let _ = writeln!(text, "no word from the conductor: {trouble}");
    }
    for (disk, why) in &inside.failed_disks {
        let _ = writeln!(text, "disk {disk} FAILED: {why}");
    }
    for reactor in &inside.reactors {
        let _ = writeln!(text, "\nreactor {}", reactor.lane);
        if refs {
            let copies = reactor.copies.iter().map(|c| {
                let blocks = size(c.blocks.bytes());
                vec![
                    c.shard.to_string(),
                    c.copy.to_string(),
                    c.epoch.to_string(),
                    blocks,
                    c.requests.to_string(),
                    c.role.clone(),
                ]
            });
            let _ = write!(text, "{}", table(&["SHARD", "COPY", "EPOCH", "SIZE", "REQUESTS", "ROLE"], copies));
            let sessions = reactor.sessions.iter().map(|s| {
                vec![
                    s.id.to_string(),
                    s.client.clone(),
                    s.volume.to_string(),
                    s.generation.to_string(),
                    s.lanes.to_string(),
                ]
            });
            let _ = write!(text, "\n{}", table(&["SESSION", "CLIENT", "VOLUME", "GENERATION", "LANES"], sessions));
            let links = reactor.links.iter().map(|l| {
                let state = if l.up { "up" } else { "down" };
                vec![l.endpoint.to_string(), l.transport.clone(), state.to_owned()]
            });
            let _ = write!(text, "\n{}", table(&["LINK TO", "OVER", "STATE"], links));
            let _ = writeln!(text, "\nlive objects:");
            for line in &reactor.refs {
                let _ = writeln!(text, "  {line}");
            }
            let _ = writeln!(text, "counters:");
            for (name, count) in &reactor.counters {
                let _ = writeln!(text, "  {name} {count}");
            }
        }
        if trace {
            let _ = writeln!(text, "requests, oldest first, in µs after they were received:");
            for trace in &reactor.traces {
                let _ = writeln!(text, "  {}", trace_line(trace));
            }
        }
    }
}

fn trace_line(trace: &TraceLook) -> String {
    let start = trace.stages.first().map_or(0, |s| s.at_ns);
    let stages: Vec<String> =
        trace.stages.iter().map(|s| format!("{} {}", s.stage, s.at_ns.saturating_sub(start) / 1000)).collect();
    format!("op {} #{}: {}", trace.op, trace.sequence, stages.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_machine_is_not_told_that_the_conductor_is_on_itself() {
        assert_eq!(reachable("10.0.0.1:7070"), "10.0.0.1:7070");
        assert_eq!(reachable("https://127.0.0.1:7000"), "https://ITS-CONDUCTORS-ADDRESS:7000");
        assert_eq!(reachable("[::1]:1, c2:2,localhost:3"), "ITS-CONDUCTORS-ADDRESS:1,c2:2,ITS-CONDUCTORS-ADDRESS:3");
    }
    use node_daemon::StageLook;

    #[test]
    fn a_node_is_named_by_its_number() {
        assert_eq!((node_id("3"), node_id("n3")), (Ok(NodeId(3)), Ok(NodeId(3))));
        for bad in ["", "n", "0", "n0", "x3", "-1", "nn1"] {
            assert!(node_id(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_disk_is_named_with_its_journal() {
        let plan = |path: &str, journal: Option<&str>| DiskPlan {
            path: path.into(),
            create: Some(9),
            journal: journal.map(Into::into),
            journal_size: Some(8),
        };
        let given = ["a,journal=/j/a,b".to_owned(), "c".to_owned(), "d,journal=e".to_owned()];
        let plans = [plan("a", Some("/j/a")), plan("b", None), plan("c", None), plan("d", Some("e"))];
        assert_eq!(disk_plans(&given, Some(9), Some(8)), Ok(plans.to_vec()));
        for bad in ["journal=x", "a,journal=", "a,journal=x,journal=y", "a,,b", ""] {
            let given = ["first".to_owned(), bad.to_owned()];
            assert!(disk_plans(&given, None, None).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_trace_is_one_line() {
        let stage = |name: &str, at_ns| StageLook { stage: name.into(), at_ns };
        let trace = TraceLook { sequence: 7, op: 2, stages: vec![stage("received", 5_000), stage("locked", 9_000)] };
        assert_eq!(trace_line(&trace), "op 2 #7: received 0, locked 4");
    }
}
