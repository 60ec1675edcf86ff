//! `trine client`: who uses the cluster's volumes, and ending it.

use crate::config::ClusterArgs;
use crate::output::{Exit, Failure, ListArgs, Outcome, OutputArgs, confirm, print, table, when};
use clap::{Args, Subcommand};
use conductor_model::views::{ClientInfo, ClientSession, ClientVolume};
use std::collections::BTreeSet;

#[derive(Subcommand)]
pub(crate) enum ClientCommand {
    /// All clients that have a volume attached, and those that read snapshots
    List(ListArgs),
    /// One client: what it has attached, how, and since when; its sessions at nodes, as told in the last ten seconds or so
    Show(ShowArgs),
    /// End all that a client has attached: its requests fail from now on, until it attaches anew
    Evict(EvictArgs),
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
}

pub(crate) fn run(command: ClientCommand) -> Outcome {
    match command {
        ClientCommand::List(args) => args.output.print(args.cluster.client()?.clients()?.as_slice(), clients_table),
        ClientCommand::Show(args) => args.output.print(&one(args.cluster.client()?.clients()?, &args.name)?, client),
        ClientCommand::Evict(args) => evict(&args),
    }
}

fn one(clients: Vec<ClientInfo>, name: &str) -> Outcome<ClientInfo> {
    let found = clients.into_iter().find(|client| client.name == name);
    found.ok_or_else(|| Failure::new(Exit::NoSuch, format!("no client {name} has a volume attached")))
}

fn evict(args: &EvictArgs) -> Outcome {
    let client = args.cluster.client()?;
    if !args.yes {
        let mut clients = client.clients()?;
        // Whoever reads snapshots has nothing to be evicted from.
        clients.retain(|client| !client.volumes.is_empty());
        let info = one(clients, &args.name)?;
        let volumes = info.volumes.iter().map(|held| held.volume.as_str()).collect::<Vec<_>>().join(", ");
        confirm(&format!("Take {volumes} from {}? Its requests fail from then on.", args.name), false)?;
    }
    let volumes = client.evict(&args.name)?;
    print(&format!("{} evicted from {}", args.name, volumes.join(", ")))
}

fn mode(held: &ClientVolume) -> &'static str {
    if held.read_only { "read-only" } else { "exclusive" }
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
    table(&["CLIENT", "HOST", "VOLUME", "MODE", "GENERATION", "SINCE"], rows.chain(snapshots))
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
    if !client.sessions.is_empty() {
        let row = |s: &ClientSession| {
            vec![s.of.clone(), s.node.to_string(), s.connections.to_string(), s.requests.to_string(), when(s.heard)]
        };
        text += "\n";
        text += &table(&["SESSION OF", "NODE", "CONNECTIONS", "REQUESTS", "HEARD"], client.sessions.iter().map(row));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use conductor_model::{AttachGeneration, Millis};

    #[test]
    fn a_client_is_a_line_for_each_volume() {
        let held = |volume: &str, read_only| ClientVolume {
            volume: volume.to_owned(),
            read_only,
            generation: AttachGeneration(3),
            since: Millis(0),
        };
        let volumes = vec![held("db", false), held("logs", true)];
        let info = ClientInfo { name: "web1/db".to_owned(), host: String::new(), volumes, sessions: Vec::new() };
        let text = clients_table(&[info]);
        let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines[1], ["web1/db", "-", "db", "exclusive", "g3", "1970-01-01T00:00:00Z"]);
        assert_eq!(lines[2][2..4], ["logs", "read-only"]);
    }
}
