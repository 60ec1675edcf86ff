//! `trine client`: who uses the cluster's volumes, and ending it.

use crate::config::ClusterArgs;
use crate::output::{Exit, Failure, ListArgs, Outcome, OutputArgs, confirm, size, table, time, was_closed, when};
use crate::volume::name;
use clap::{Args, Subcommand};
use conductor_model::NodeId;
use conductor_model::api::RangeInfo;
use conductor_model::views::{
    ClientInfo, ClientSession, ClientVolume, KeyInfo, KeyVolume, NewKey, RotateKey, RotatedKey,
};
use serde::Serialize;
use std::collections::BTreeSet;
use std::time::Duration;
use tls::Authority;
use wire::{Card, ClientKey, ClusterKey};

#[derive(Subcommand)]
#[command(disable_help_subcommand = true)]
pub(crate) enum ClientCommand {
    /// Make a key for a client, and print it, once: the content of its --key-file. With it volumes are attached, and nothing else is done
    Add(AddArgs),
    /// Renew a client's key: prints a new one, once, beside which the former holds for a while. Every target has to be attached anew with it
    /// before that is over
    Rotate(RotateArgs),
    /// Remove a client's key: what is attached with it is cut off
    Remove(RemoveArgs),
    /// All clients that have a volume attached, and those that read snapshots; and the keys of clients
    List(ListArgs),
    /// One client: what it has attached, how, and since when; its sessions at nodes, as told in the last ten seconds or so
    Show(ShowArgs),
    /// End all that a client has attached: its requests fail from now on, until it attaches anew
    Evict(EvictArgs),
}

#[derive(Args)]
pub(crate) struct AddArgs {
    /// The key's name: up to 32 letters, digits or -_.; its clients are named NAME@…
    name: String,
    /// The volumes that it is for, and their snapshots. A volume that is deleted and made again is another one
    #[arg(long, value_name = "VOLUME,…", value_delimiter = ',', required = true, value_parser = name)]
    volumes: Vec<String>,
    /// For reading alone: it takes a volume from nobody who writes to it, with --force either
    #[arg(long)]
    read_only: bool,
    #[command(flatten)]
    cluster: ClusterArgs,
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Args)]
pub(crate) struct RotateArgs {
    /// The key, as `trine client list` names it
    name: String,
    /// How long the former key holds beside the new one, like 2h or 7d, and any before it at most: what is still attached with them then
    /// fails with EIO. 0s cuts off at once what is attached with any of them
    #[arg(long, value_name = "TIME", default_value = "1d", value_parser = time)]
    grace: Duration,
    /// Do not ask
    #[arg(long)]
    yes: bool,
    #[command(flatten)]
    cluster: ClusterArgs,
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Args)]
pub(crate) struct RemoveArgs {
    /// The key, as `trine client list` names it
    name: String,
    /// Do not ask
    #[arg(long)]
    yes: bool,
    #[command(flatten)]
    cluster: ClusterArgs,
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Args)]
pub(crate) struct ShowArgs {
    /// The client, as `trine client list` names it
    name: String,
    #[command(flatten)]
    cluster: ClusterArgs,
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Args)]
pub(crate) struct EvictArgs {
    /// The client, as `trine client list` names it
    name: String,
    /// Do not ask
    #[arg(long)]
    yes: bool,
    #[command(flatten)]
    cluster: ClusterArgs,
    #[command(flatten)]
    output: OutputArgs,
}

pub(crate) fn run(command: ClientCommand) -> Outcome {
    match command {
        ClientCommand::Add(args) => add(args),
        ClientCommand::Rotate(args) => rotate(args),
        ClientCommand::Remove(args) => remove(&args),
        ClientCommand::List(args) => args.output.print(args.cluster.client()?.clients()?.as_slice(), clients_table),
        ClientCommand::Show(args) => args.output.print(&one(args.cluster.client()?.clients()?, &args.name)?, client),
        ClientCommand::Evict(args) => evict(&args),
    }
}

/// A key that was made.
#[derive(Serialize)]
struct Added {
    #[serde(flatten)]
    key: KeyInfo,
    /// What the client's key file has to hold.
    key_file: String,
}

fn add(args: AddArgs) -> Outcome {
    // The secret is made here, of what the conductor decides: it travels nowhere.
    let cluster = ClusterKey(args.cluster.cluster_key()?);
    will_be_read()?;
    let AddArgs { name, volumes, read_only, .. } = args;
    let key = args.cluster.client()?.add_key(&NewKey { name, volumes, read_only })?;
    print_key(key, &cluster, &args.output)
}

/// Before a key is made that nobody has.
fn will_be_read() -> Outcome {
    let why = "the standard output is closed, or /dev/null for reading and writing, and a key is printed only once: send it on with > or |";
    if was_closed(std::io::stdout())? { Err(Failure::new(Exit::Failed, why)) } else { Ok(()) }
}

/// What a key file has to hold: said once, and kept nowhere.
fn print_key(key: KeyInfo, cluster: &ClusterKey, output: &OutputArgs) -> Outcome {
    let ids = key.volumes.iter().map(|volume| volume.id.0).collect();
    let card = Card { name: key.name.clone(), serial: key.serial, read_only: key.read_only, volumes: ids };
    // By this it knows nodes and conductors, should the cluster speak TLS now or later.
    let authority = Authority::new(&cluster.authority_seed()).map_err(anyhow::Error::from)?.trust().0;
    let line = ClientKey::new(card, cluster, authority).and_then(|key| key.to_line().ok());
    let key_file = line.ok_or_else(|| Failure::new(Exit::Failed, "the conductor made a key that cannot be"))?;
    let name = key.name.clone();
    output.hand_over(&Added { key, key_file }, |added| added.key_file.clone()).map_err(|unsaid| {
        let again = format!("`trine client rotate {name} --grace 0s --yes` makes another one in its place");
        Failure::new(
            Exit::Failed,
            format!("the key {name} is made and could not be printed: {again}: {:#}", unsaid.why),
        )
    })
}

fn rotate(args: RotateArgs) -> Outcome {
    let cluster = ClusterKey(args.cluster.cluster_key()?);
    will_be_read()?;
    let RotateArgs { name, grace, yes, .. } = args;
    let grace_ms = u64::try_from(grace.as_millis()).unwrap_or(u64::MAX);
    if grace_ms == 0 && !yes {
        confirm(
            &format!("Renew the key {name}? What is attached with any that was given out fails from then on."),
            false,
        )?;
    }
    let rotated = args.cluster.client()?.rotate_key(&RotateKey { name, grace_ms })?;
    let RotatedKey { key, unconfirmed } = rotated;
    let name = key.name.clone();
    // First: nobody can have it printed again.
    print_key(key, &cluster, &args.output)?;
    if unconfirmed.is_empty() {
        return Ok(());
    }
    let nodes = unconfirmed.iter().map(NodeId::to_string).collect::<Vec<_>>().join(", ");
    let why = format!(
        "the key {name} is renewed, and printed, but {nodes} may still serve the former one until it is heard (trine node list); if it is \
         lost for good, remove it (trine node remove)"
    );
    Err(Failure::new(Exit::TimedOut, why))
}

/// A key that is none any more.
#[derive(Serialize)]
struct Removed<'a> {
    name: &'a str,
    removed: bool,
}

fn remove(args: &RemoveArgs) -> Outcome {
    if !args.yes {
        confirm(&format!("Remove the key {}? What is attached with it fails from then on.", args.name), false)?;
    }
    args.cluster.client()?.remove_key(&args.name)?;
    args.output.print_done(&Removed { name: &args.name, removed: true }, |key| format!("key {} removed", key.name))
}

fn one(clients: Vec<ClientInfo>, name: &str) -> Outcome<ClientInfo> {
    let found = clients.into_iter().find(|client| client.name == name);
    found.ok_or_else(|| Failure::new(Exit::NoSuch, format!("no client {name} has a volume attached")))
}

/// A client that has nothing attached any more.
#[derive(Serialize)]
struct Evicted<'a> {
    name: &'a str,
    /// Volumes that it had.
    evicted_from: Vec<String>,
}

fn evict(args: &EvictArgs) -> Outcome {
    let client = args.cluster.client()?;
    if !args.yes {
        let mut clients = client.clients()?;
        // Whoever reads snapshots has nothing to be evicted from.
        clients.retain(|client| !client.volumes.is_empty());
        // Whoever has nothing may have been evicted already, without all nodes' word: that is asked for without more ado.
        if let Some(info) = clients.into_iter().find(|client| client.name == args.name) {
            let volumes = info.volumes.iter().map(|held| held.volume.as_str()).collect::<Vec<_>>().join(", ");
            confirm(&format!("Take {volumes} from {}? Its requests fail from then on.", args.name), false)?;
        }
    }
    let evicted = Evicted { name: &args.name, evicted_from: client.evict(&args.name)? };
    args.output.print_done(&evicted, |it| format!("{} evicted from {}", it.name, it.evicted_from.join(", ")))
}

fn mode(held: &ClientVolume) -> &'static str {
    match (held.read_only, held.shared) {
        (true, _) => "read-only",
        (false, true) => "shared",
        (false, false) => "exclusive",
    }
}

fn host(client: &ClientInfo) -> &str {
    if client.host.is_empty() { "-" } else { &client.host }
}

/// One line for each volume that a client has.
fn clients_table(clients: &[ClientInfo]) -> String {
    let rows = clients.iter().flat_map(|client| {
        client.volumes.iter().map(|held| {
            let (generation, since) = (held.generation.to_string(), when(held.since));
            let (name, host) = (client.name.clone(), host(client).to_owned());
            vec![name, host, held.volume.clone(), mode(held).to_owned(), generation, since]
        })
    });
    let snapshots = clients.iter().filter(|client| client.volumes.is_empty()).flat_map(|client| {
        let read: BTreeSet<&String> = client.sessions.iter().map(|session| &session.of).collect();
        let dash = || "-".to_owned();
        read.into_iter().map(move |of| {
            vec![client.name.clone(), host(client).to_owned(), of.clone(), "read-only".to_owned(), dash(), dash()]
        })
    });
    let mut text = table(&["CLIENT", "HOST", "VOLUME", "MODE", "GENERATION", "SINCE"], rows.chain(snapshots));
    let keys: Vec<&KeyInfo> = clients.iter().filter_map(|client| client.key.as_ref()).collect();
    if !keys.is_empty() {
        text += "\n";
        text += &keys_table(&keys);
    }
    text
}

fn keys_table(keys: &[&KeyInfo]) -> String {
    let named = |volume: &KeyVolume| volume.name.clone().unwrap_or_else(|| format!("{} (deleted)", volume.id));
    let row = |key: &&KeyInfo| {
        let volumes = key.volumes.iter().map(named).collect::<Vec<_>>().join(",");
        let users: BTreeSet<&str> = key.former.iter().flat_map(|former| &former.used_by).map(String::as_str).collect();
        vec![
            key.name.clone(),
            volumes,
            if key.read_only { "read-only" } else { "read-write" }.to_owned(),
            when(key.added),
            // The last one: until then some of them holds.
            key.former.iter().map(|former| former.until).max().map_or("-".to_owned(), when),
            // They have to be attached anew before that.
            if users.is_empty() { "-".to_owned() } else { users.into_iter().collect::<Vec<_>>().join(",") },
        ]
    };
    table(&["KEY", "VOLUMES", "MODE", "ADDED", "FORMER UNTIL", "FORMER USED BY"], keys.iter().map(row))
}

/// The key that a session has, by its number; the cluster's has none.
fn session_key(session: &ClientSession) -> String {
    match (session.key, session.former_until) {
        (None, _) => "-".to_owned(),
        (Some(key), None) => key.to_string(),
        (Some(key), Some(until)) => format!("{key}, former, until {}", when(until)),
    }
}

fn client(client: &ClientInfo) -> String {
    let mut text = format!("client {}\nhost   {}\n", client.name, host(client));
    if !client.volumes.is_empty() {
        let row = |held: &ClientVolume| {
            vec![held.volume.clone(), mode(held).to_owned(), held.generation.to_string(), when(held.since)]
        };
        text += "\n";
        text += &table(&["VOLUME", "MODE", "GENERATION", "SINCE"], client.volumes.iter().map(row));
    }
    if let Some(key) = &client.key {
        text += "\n";
        text += &keys_table(&[key]);
    }
    if !client.sessions.is_empty() {
        let row = |s: &ClientSession| {
            let (connections, requests) = (s.connections.to_string(), s.requests.to_string());
            vec![s.of.clone(), s.node.to_string(), session_key(s), connections, requests, when(s.heard)]
        };
        text += "\n";
        text +=
            &table(&["SESSION OF", "NODE", "KEY", "CONNECTIONS", "REQUESTS", "HEARD"], client.sessions.iter().map(row));
    }
    let ranges = client.sessions.iter().flat_map(|session| session.ranges.iter().map(|range| (&session.of, range)));
    if ranges.clone().next().is_some() {
        let row = |(of, range): (&String, &RangeInfo)| {
            let (shard, way) = (range.shard.0.to_string(), if range.write { "write" } else { "read" });
            let state = if range.held { "held" } else { "waits" };
            vec![of.clone(), shard, size(range.offset), size(range.length), way.to_owned(), state.to_owned()]
        };
        text += "\n";
        text += &table(&["RANGE OF", "SHARD", "OFFSET", "LENGTH", "FOR", "STATE"], ranges.map(row));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use conductor_model::views::FormerKey;
    use conductor_model::{AttachGeneration, Millis, VolumeId};

    #[test]
    fn a_client_is_a_line_for_each_volume() {
        let held = |volume: &str, read_only| ClientVolume {
            volume: volume.to_owned(),
            read_only,
            shared: false,
            generation: AttachGeneration(3),
            since: Millis(0),
        };
        let volumes = vec![held("db", false), held("logs", true)];
        let info =
            ClientInfo { name: "web1/db".to_owned(), host: String::new(), volumes, sessions: Vec::new(), key: None };
        let text = clients_table(&[info]);
        let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines[1], ["web1/db", "-", "db", "exclusive", "g3", "1970-01-01T00:00:00Z"]);
        assert_eq!(lines[2][2..4], ["logs", "read-only"]);
    }

    #[test]
    fn a_key_is_listed_with_its_volumes_and_without_a_secret() {
        let volume = |id, name: Option<&str>| KeyVolume { id: VolumeId(id), name: name.map(str::to_owned) };
        let volumes = vec![volume(3, Some("db")), volume(4, None)];
        let used_by = BTreeSet::from(["web1@h/db".to_owned(), "web1@h/logs".to_owned()]);
        let former = vec![FormerKey { serial: 1, until: Millis(1000), used_by }];
        let key = KeyInfo { name: "web1".to_owned(), serial: 2, volumes, read_only: true, added: Millis(0), former };
        let info =
            ClientInfo { name: "web1".into(), host: String::new(), volumes: vec![], sessions: vec![], key: Some(key) };
        let text = clients_table(&[info]);
        let last: Vec<&str> = text.lines().last().unwrap().split_whitespace().collect();
        let (added, until) = ("1970-01-01T00:00:00Z", "1970-01-01T00:00:01Z");
        assert_eq!(last, ["web1", "db,v4", "(deleted)", "read-only", added, until, "web1@h/db,web1@h/logs"]);
    }

    #[test]
    fn a_session_is_shown_with_the_key_that_it_has() {
        let session = |key, former_until| ClientSession {
            node: NodeId(1),
            of: "db".to_owned(),
            generation: AttachGeneration(1),
            read_only: false,
            key,
            former_until,
            ranges: Vec::new(),
            connections: 2,
            requests: 0,
            heard: Millis(0),
        };
        let sessions = vec![session(None, None), session(Some(3), None), session(Some(2), Some(Millis(1000)))];
        let info = ClientInfo { name: "web1@h/db".into(), host: String::new(), volumes: vec![], sessions, key: None };
        let text = client(&info);
        let shown: Vec<String> =
            text.lines().skip(4).map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
        let heard = "2 0 1970-01-01T00:00:00Z";
        let former = format!("db n1 2, former, until 1970-01-01T00:00:01Z {heard}");
        assert_eq!(shown, [format!("db n1 - {heard}"), format!("db n1 3 {heard}"), former]);
    }
}
