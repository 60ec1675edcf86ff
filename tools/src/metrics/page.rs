//! The page: names, units and labels of what is counted.

use super::Seen;
use crate::output::Outcome;
use anyhow::Context;
use conductor_model::views::{DiskInfo, Health, NodeInfo, NodeState, Status, VolumeInfo, VolumeState};
use node_daemon::NodeLook;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};
use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;
use target_daemon::Look;

type Labels = Vec<(&'static str, String)>;

/// A page in the making.
struct Page(Registry);

impl Page {
    fn gauges(&mut self, name: &str, help: &str, unit: Option<Unit>, rows: impl IntoIterator<Item = (Labels, f64)>) {
        let family = Family::<Labels, Gauge<f64, AtomicU64>>::default();
        for (labels, value) in rows {
            family.get_or_create(&labels).set(value);
        }
        match unit {
            Some(unit) => self.0.register_with_unit(name, help, unit, family),
            None => self.0.register(name, help, family),
        }
    }

    fn counters(&mut self, name: &str, help: &str, rows: impl IntoIterator<Item = (Labels, u64)>) {
        let family = Family::<Labels, Counter<u64>>::default();
        for (labels, value) in rows {
            family.get_or_create(&labels).inc_by(value);
        }
        self.0.register(name, help, family);
    }
}

/// All of it as text.
pub(super) fn of(seen: &Seen) -> Outcome<String> {
    let mut page = Page(Registry::with_prefix("trine"));
    let up = seen.status.is_some();
    page.gauges("conductor_up", "Whether a conductor answers", None, [(vec![], yes(up))]);
    if let Some(status) = &seen.status {
        cluster(&mut page, status);
        disks(&mut page, status);
        volumes(&mut page, status);
    }
    nodes(&mut page, &seen.nodes);
    targets(&mut page, &seen.targets);
    let mut text = String::new();
    encode(&mut text, &page.0).context("cannot write the page")?;
    Ok(text)
}

fn yes(is_so: bool) -> f64 {
    f64::from(u8::from(is_so))
}

/// Whole numbers up to 2^53, 8 PiB, are exact, and those beyond near enough for a graph.
#[expect(clippy::cast_precision_loss, reason = "see above")]
fn number(value: u64) -> f64 {
    value as f64
}

fn cluster(page: &mut Page, status: &Status) {
    let labels = vec![("cluster", status.cluster.to_string()), ("leader", status.leader.clone())];
    page.gauges("cluster", "Which cluster this is, and the conductor that leads it", None, [(labels, 1.0)]);
    let in_doubt = yes(status.doubt.is_some());
    page.gauges(
        "conductor_in_doubt",
        "Whether the conductor changes nothing until adopted",
        None,
        [(vec![], in_doubt)],
    );
    let warnings = number(status.warnings.len() as u64);
    page.gauges("warnings", "Lines that `trine status` warns with", None, [(vec![], warnings)]);
    let refused = number(status.refused.len() as u64);
    page.gauges("nodes_refused", "Nodes of another cluster that ask to be taken", None, [(vec![], refused)]);
    let node = |n: &NodeInfo| vec![("node", n.node.to_string()), ("host", n.host.clone())];
    let rows = status.nodes.iter().map(|n| (node(n), yes(n.state == NodeState::Alive)));
    page.gauges("node_up", "Whether the conductor hears the node", None, rows);
    // A conductor that has just begun counts from then, of whomever it has not heard.
    let counted = status.nodes.iter().filter(|n| n.heard || n.state == NodeState::Dead);
    let rows = counted.map(|n| (node(n), number(n.silent_ms) / 1000.0));
    page.gauges("node_silent", "Since the conductor heard the node last", Some(Unit::Seconds), rows);
    let rows = status.nodes.iter().map(|n| (node(n), f64::from(n.primaries)));
    page.gauges("node_primaries", "Shards that the node is primary of", None, rows);
}

fn disks(page: &mut Page, status: &Status) {
    let disks = || status.nodes.iter().flat_map(|n| n.disks.iter().map(move |d| (n, d)));
    let labels = |n: &NodeInfo, d: &DiskInfo| {
        let path = d.path.clone().unwrap_or_default();
        vec![("node", n.node.to_string()), ("disk", d.disk.to_string()), ("path", path)]
    };
    // What only its node can say is left out until that has said it: nothing in use is not the same as nothing known.
    let told = || disks().filter(|(n, _)| n.heard);
    let rows = disks().map(|(n, d)| (labels(n, d), yes(d.present && n.state != NodeState::Dead)));
    page.gauges("disk_present", "Whether its node runs, and with the disk", None, rows);
    let rows = told().map(|(n, d)| (labels(n, d), yes(d.failed.is_some())));
    page.gauges("disk_failed", "Whether it failed: its node has it open, and nothing on it is served", None, rows);
    let rows = disks().map(|(n, d)| (labels(n, d), number(d.capacity.0)));
    page.gauges("disk_capacity", "The disk's size for data", Some(Unit::Bytes), rows);
    let rows = told().map(|(n, d)| (labels(n, d), number(d.used.0)));
    page.gauges("disk_used", "What of it is in use", Some(Unit::Bytes), rows);
    let rows = disks().map(|(n, d)| (labels(n, d), number(d.provisioned.0)));
    page.gauges("disk_provisioned", "Sizes of the shards on it", Some(Unit::Bytes), rows);
    let rows = disks().map(|(n, d)| (labels(n, d), f64::from(d.copies)));
    page.gauges("disk_copies", "Copies on the disk", None, rows);
    let rows = told().map(|(n, d)| (labels(n, d), d.damaged));
    page.counters("disk_damaged_blocks", "Blocks that did not read as written since the node opened the disk", rows);
    let rows = told().map(|(n, d)| (labels(n, d), d.repaired));
    page.counters("disk_repaired_blocks", "Of these, put right with another copy's content", rows);
}

fn volumes(page: &mut Page, status: &Status) {
    let active = || status.volumes.iter().filter(|v| v.state == VolumeState::Active);
    let labels = |v: &VolumeInfo| vec![("volume", v.name.clone())];
    let rows = active().map(|v| (labels(v), health(v.health)));
    let help = "0 healthy, 1 resyncing, 2 degraded, 3 waiting (writes wait), 4 lost";
    page.gauges("volume_health", help, None, rows);
    page.gauges("volume_size", "Its size", Some(Unit::Bytes), active().map(|v| (labels(v), number(v.size.0))));
    let rows = active().map(|v| (labels(v), f64::from(v.snapshots)));
    page.gauges("volume_snapshots", "Snapshots of it", None, rows);
    let sharers = |v: &VolumeInfo| v.readers.iter().filter(|r| r.shared).count() as u64;
    let rows = active().map(|v| (labels(v), yes(v.attachment.is_some() || sharers(v) > 0)));
    page.gauges("volume_attached", "Whether somebody may write to it", None, rows);
    let rows = active().map(|v| (labels(v), number(v.readers.len() as u64 - sharers(v))));
    page.gauges("volume_readers", "Clients that only read it, while nobody may write to it", None, rows);
    let rows = active().map(|v| (labels(v), number(sharers(v))));
    page.gauges("volume_sharers", "Clients that write to it together, in ranges that they hold", None, rows);
    let filling = || active().filter_map(|v| Some((v, v.filling.as_ref()?)));
    let rows = filling().map(|(v, f)| (labels(v), f64::from(f.copies + f.waiting)));
    page.gauges("volume_filling_copies", "Copies that are being filled, or wait for it", None, rows);
    let rows = filling().map(|(v, f)| (labels(v), number(f.of.0.saturating_sub(f.done.0))));
    page.gauges("volume_filling_left", "What is left of that", Some(Unit::Bytes), rows);
}

fn health(health: Health) -> f64 {
    match health {
        Health::Healthy => 0.0,
        Health::Resyncing => 1.0,
        Health::Degraded => 2.0,
        Health::Waiting => 3.0,
        Health::Lost => 4.0,
    }
}

fn nodes(page: &mut Page, nodes: &[NodeLook]) {
    let labels = |n: &NodeLook| vec![("node", n.node.to_string())];
    let rows = nodes.iter().map(|n| (labels(n), yes(n.conductor_trouble.is_none())));
    page.gauges("node_hears_conductor", "Whether a node of this host has a conductor that takes it", None, rows);
    let rows = nodes.iter().map(|n| (labels(n), number(n.failed_disks.len() as u64)));
    page.gauges("node_failed_disks", "Disks of it that failed", None, rows);
    page.gauges(
        "node_memory",
        "Its buffers",
        Some(Unit::Bytes),
        nodes.iter().map(|n| (labels(n), number(n.memory.bytes.0))),
    );
    let reactors = || nodes.iter().flat_map(|n| n.reactors.iter().map(move |r| (n, r)));
    let of = |n: &NodeLook, lane: u16| vec![("node", n.node.to_string()), ("reactor", lane.to_string())];
    let rows = reactors().map(|(n, r)| (of(n, r.lane), number(r.sessions.len() as u64)));
    page.gauges("node_sessions", "Clients' sessions", None, rows);
    let rows = reactors().map(|(n, r)| (of(n, r.lane), number(r.links.iter().filter(|l| l.up).count() as u64)));
    page.gauges("node_links_up", "Connections to reactors that hold other copies", None, rows);
    let rows = reactors().flat_map(|(n, r)| r.counters.iter().map(move |(event, count)| (n, r, event, *count)));
    let rows = rows.map(|(n, r, event, count)| ([of(n, r.lane), vec![("event", event.clone())]].concat(), count));
    page.counters("node_events", "What happened on a reactor of it", rows);
    let rows = reactors().flat_map(|(n, r)| holds(&r.refs).into_iter().map(move |(hold, count)| (n, r, hold, count)));
    let rows = rows.map(|(n, r, hold, count)| ([of(n, r.lane), hold_labels(hold)].concat(), number(count)));
    page.gauges("node_holds", "What keeps live objects, by the kind of the object and the reason", None, rows);
}

fn targets(page: &mut Page, targets: &[(String, Option<Look>)]) {
    let labels = |volume: &str| vec![("volume", volume.to_owned())];
    let rows = targets.iter().map(|(volume, look)| (labels(volume), yes(look.is_some())));
    page.gauges("target_up", "Whether the target of an attachment to this host answers", None, rows);
    let all = || targets.iter().filter_map(|(volume, look)| Some((volume.as_str(), &look.as_ref()?.target)));
    let rows = all().map(|(volume, target)| (labels(volume), yes(target.fenced)));
    page.gauges("target_fenced", "Whether a newer attachment has the volume", None, rows);
    let rows = all().map(|(volume, target)| (labels(volume), number(target.requests as u64)));
    page.gauges("target_requests", "Requests in flight", None, rows);
    let longest = |waits: &[target_daemon::WaitView]| waits.iter().map(|wait| wait.longest_ms).max().unwrap_or(0);
    let rows = all().map(|(volume, target)| (labels(volume), number(longest(&target.waiting)) / 1000.0));
    page.gauges("target_longest_wait", "Of a request that no node answers", Some(Unit::Seconds), rows);
    let rows = all().map(|(volume, target)| (labels(volume), number(target.arena_in_use as u64)));
    page.gauges("target_memory_used", "Of its buffers", Some(Unit::Bytes), rows);
    let rows = all().map(|(volume, target)| (labels(volume), number(target.arena_bytes as u64)));
    page.gauges("target_memory", "Its buffers", Some(Unit::Bytes), rows);
    let rows =
        all().flat_map(|(volume, target)| target.counters.iter().map(move |(event, count)| (volume, event, *count)));
    let rows = rows.map(|(volume, event, count)| ([labels(volume), vec![("event", event.clone())]].concat(), count));
    page.counters("target_events", "What happened in it", rows);
    let rows = all().flat_map(|(volume, target)| holds(&target.refs).into_iter().map(move |hold| (volume, hold)));
    let rows = rows.map(|(volume, (hold, count))| ([labels(volume), hold_labels(hold)].concat(), number(count)));
    page.gauges("target_holds", "What keeps live objects, by the kind of the object and the reason", None, rows);
}

/// An object's kind, and a reason to keep it.
type HoldKind = (String, String);

fn hold_labels((object, reason): HoldKind) -> Labels {
    vec![("object", object), ("reason", reason)]
}

/// Sums over lines such as `conn 0/1: 1 owner + 258 rx`: names of objects come and go, their kinds do not.
fn holds(lines: &[String]) -> BTreeMap<HoldKind, u64> {
    let mut sums = BTreeMap::new();
    for line in lines {
        let Some((object, holds)) = line.split_once(": ") else { continue };
        let kind = object.split(' ').next().unwrap_or_default();
        for (count, reason) in holds.split(" + ").filter_map(|hold| hold.split_once(' ')) {
            let count: u64 = count.parse().unwrap_or(0);
            *sums.entry((kind.to_owned(), reason.to_owned())).or_insert(0) += count;
        }
    }
    sums
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holds_are_summed_by_the_kind_of_object_and_the_reason() {
        let lines = ["conn 0/1: 1 owner + 258 rx", "conn 7/1: 1 owner + 66 rx + 3 tx", "iocb 3: 1 reply", "odd"];
        let sums = holds(&lines.map(str::to_owned));
        let sum = |object: &str, reason: &str| sums.get(&(object.to_owned(), reason.to_owned())).copied();
        assert_eq!((sum("conn", "owner"), sum("conn", "rx"), sum("conn", "tx")), (Some(2), Some(324), Some(3)));
        assert_eq!((sum("iocb", "reply"), sums.len()), (Some(1), 4));
    }

    use conductor_model::api::{DiskReport, Register};
    use conductor_model::views::{Attach, NewVolume};
    use conductor_model::{Bytes, ClusterId, Commit, Conductor, DiskId, Millis, NodeId, OpenId};

    const T0: Millis = Millis(1_000_000);

    /// A conductor with two nodes, of which each has said that of its disk 4096 bytes are in use.
    fn conductor() -> Conductor {
        let mut conductor = Conductor::new(ClusterId(7), T0).0;
        for node in [1, 2] {
            let disk = DiskReport {
                disk: DiskId(node.into()),
                open: OpenId(1),
                endpoint: format!("127.0.0.1:{}", 9000 + node).parse().unwrap(),
                addresses: Vec::new(),
                capacity: Bytes(1 << 30),
                used: Bytes(4096),
                max_copies: 8,
                copies: Vec::new(),
                path: None,
            };
            let register = Register {
                node: NodeId(node),
                host: "host".to_owned(),
                rack: String::new(),
                version: String::new(),
                disks: vec![disk],
                cluster: ClusterId(7),
                seen: Commit(0),
                attached: Vec::new(),
            };
            conductor.register(T0, &register).unwrap();
        }
        conductor
    }

    /// The page of what a conductor knows then.
    fn page(conductor: &Conductor, now: Millis) -> String {
        of(&Seen { status: Some(conductor.status(now)), nodes: Vec::new(), targets: Vec::new() }).unwrap()
    }

    fn value<'a>(page: &'a str, metric: &str, label: &str) -> Option<&'a str> {
        let line = page.lines().find(|l| l.starts_with(&format!("trine_{metric}{{")) && l.contains(label))?;
        line.rsplit_once(' ').map(|(_, value)| value)
    }

    #[test]
    fn whoever_shares_a_volume_may_write_to_it_and_a_reader_may_not() {
        let mut conductor = conductor();
        let mut draws = 0;
        let mut draw = || {
            draws += 1;
            draws
        };
        let clients = [("shared", "a", true), ("shared", "b", true), ("read", "c", false)];
        for name in ["shared", "read", "free"] {
            let new = NewVolume { copies: 1, min_copies: 1, ..NewVolume::new(name, Bytes(1 << 20)) };
            conductor.create(T0, &new, &mut draw).unwrap();
        }
        for (volume, client, shared) in clients {
            let (client, host, resumes) = (client.to_owned(), String::new(), None);
            let attach = Attach { client, read_only: !shared, shared, force: false, host, resumes };
            conductor.attach(T0, volume, &attach).unwrap();
        }
        let page = page(&conductor, T0);
        let said = |volume: &str| {
            let label = format!("volume=\"{volume}\"");
            ["volume_attached", "volume_readers", "volume_sharers"].map(|m| value(&page, m, &label).unwrap())
        };
        assert_eq!(said("shared"), ["1.0", "0.0", "2.0"]);
        assert_eq!(said("read"), ["0.0", "1.0", "0.0"]);
        assert_eq!(said("free"), ["0.0", "0.0", "0.0"]);
    }

    #[test]
    fn a_dead_nodes_disk_is_not_present_and_an_unheard_ones_use_is_not_known() {
        let conductor = conductor();
        let of_n1 = "node=\"n1\"";
        let alive = page(&conductor, T0);
        assert_eq!(value(&alive, "disk_present", of_n1), Some("1.0"));
        assert_eq!(value(&alive, "disk_used_bytes", of_n1), Some("4096.0"));
        let dead = page(&conductor, Millis(T0.0 + 60_000));
        assert_eq!(value(&dead, "disk_present", of_n1), Some("0.0"));
        assert_eq!(value(&dead, "node_silent_seconds", of_n1), Some("60.0"));

        let restarted = Conductor::restore(conductor.snapshot(), T0).unwrap();
        let young = page(&restarted, T0);
        for unknown in ["disk_used_bytes", "disk_failed", "node_silent_seconds"] {
            assert_eq!(value(&young, unknown, of_n1), None, "{unknown}");
        }
        assert_eq!(value(&young, "disk_present", of_n1), Some("1.0"), "nobody says otherwise");
        let later = page(&restarted, Millis(T0.0 + 60_000));
        assert_eq!(value(&later, "node_silent_seconds", of_n1), Some("60.0"), "at least");
        assert_eq!(value(&later, "disk_used_bytes", of_n1), None);
    }

    #[test]
    fn a_host_without_anything_has_a_page_that_says_so() {
        let seen = Seen { status: None, nodes: Vec::new(), targets: vec![("db".to_owned(), None)] };
        let text = of(&seen).unwrap();
        assert!(text.contains("\ntrine_conductor_up 0.0\n") && text.ends_with("# EOF\n"), "{text}");
        assert!(text.contains("trine_target_up{volume=\"db\"} 0.0\n"), "{text}");
        assert!(!text.contains("trine_volume_health"), "nothing is known of volumes: {text}");
    }
}
