//! `trine volume ranges`: who holds which ranges of a volume that is shared, as nodes told last.

use crate::output::{Outcome, size, table, when};
use crate::volume::NamedArgs;
use conductor_model::views::ClientInfo;
use conductor_model::{Bytes, Millis, NodeId};
use serde::Serialize;

/// A range that a client holds, or waits for.
#[derive(Serialize)]
struct Row {
    /// Its first byte in the volume.
    offset: Bytes,
    length: Bytes,
    write: bool,
    held: bool,
    client: String,
    host: String,
    /// Where it is held: the primary of the range's shard.
    node: NodeId,
    /// When that told of it.
    heard: Millis,
}

pub(crate) fn ranges(args: &NamedArgs) -> Outcome {
    let client = args.cluster.client()?;
    let shard_size = client.volume(&args.name)?.info.shard_size;
    args.output.print(&rows(&client.clients()?, &args.name, shard_size), |rows| ranges_table(rows))
}

/// By their place in the volume, who holds one before who waits for it.
fn rows(clients: &[ClientInfo], volume: &str, shard_size: Bytes) -> Vec<Row> {
    let sessions = clients.iter().flat_map(|client| client.sessions.iter().map(move |session| (client, session)));
    let of_it = sessions.filter(|(_, session)| session.of == volume);
    let mut rows: Vec<Row> = of_it
        .flat_map(|(client, session)| {
            session.ranges.iter().map(move |range| Row {
                offset: Bytes(u64::from(range.shard.0) * shard_size.0 + range.offset.0),
                length: range.length,
                write: range.write,
                held: range.held,
                client: client.name.clone(),
                host: client.host.clone(),
                node: session.node,
                heard: session.heard,
            })
        })
        .collect();
    rows.sort_by(|a, b| (a.offset, !a.held, &a.client).cmp(&(b.offset, !b.held, &b.client)));
    rows
}

fn ranges_table(rows: &[Row]) -> String {
    let cells = |row: &Row| {
        let (way, state) = (if row.write { "write" } else { "read" }, if row.held { "held" } else { "waits" });
        let host = if row.host.is_empty() { "-" } else { &row.host };
        let (client, node) = (row.client.clone(), row.node.to_string());
        let (from, length) = (size(row.offset), size(row.length));
        vec![from, length, way.to_owned(), state.to_owned(), client, host.to_owned(), node, when(row.heard)]
    };
    table(&["OFFSET", "LENGTH", "FOR", "STATE", "CLIENT", "HOST", "NODE", "HEARD"], rows.iter().map(cells))
}

#[cfg(test)]
mod tests {
    use super::*;
    use conductor_model::api::RangeInfo;
    use conductor_model::views::ClientSession;
    use conductor_model::{AttachGeneration, ShardIndex};

    #[test]
    fn ranges_are_listed_by_their_place_in_the_volume() {
        let range = |shard, offset, write, held| {
            let (shard, offset, length) = (ShardIndex(shard), Bytes(offset), Bytes(4096));
            RangeInfo { shard, offset, length, write, held }
        };
        let client = |name: &str, of: &str, ranges| ClientInfo {
            name: name.to_owned(),
            host: String::new(),
            volumes: Vec::new(),
            sessions: vec![ClientSession {
                node: NodeId(2),
                of: of.to_owned(),
                generation: AttachGeneration(1),
                read_only: false,
                key: None,
                former_until: None,
                ranges,
                connections: 1,
                requests: 0,
                heard: Millis(0),
            }],
            key: None,
        };
        let clients = [
            client("a", "db", vec![range(1, 4096, true, false), range(0, 0, false, true)]),
            client("b", "db", vec![range(1, 4096, true, true)]),
            client("c", "other", vec![range(0, 0, true, true)]),
        ];
        let rows = rows(&clients, "db", Bytes(1 << 20));
        let seen: Vec<_> = rows.iter().map(|row| (row.offset.0, row.client.as_str(), row.held)).collect();
        assert_eq!(seen, [(0, "a", true), ((1 << 20) + 4096, "b", true), ((1 << 20) + 4096, "a", false)]);
        let text = ranges_table(&rows);
        let last: Vec<&str> = text.lines().last().unwrap().split_whitespace().collect();
        assert_eq!(last[last.len() - 6..], ["write", "waits", "a", "-", "n2", "1970-01-01T00:00:00Z"]);
    }
}
