//! Three nodes, one volume of one shard with three copies, and its client, on simulated disks and a simulated network without faults.

use crate::client::{Load, Loader};
use crate::counted::Counted;
use crate::node::Server;
use conductor_model::api::{MembershipAnswer, MembershipChange, MembershipRequest, ShardPlace, VolumeMap};
use conductor_model::{
    AttachGeneration, Bytes, Commit, Configuration, CopyId, CopyState, DiskId, Durability, Epoch, Member, NodeId,
    OpenId, ShardId, ShardIndex, VolumeId,
};
use driver::{Address, Span};
use node_core::{Letter, Mail};
use sim::{DiskOptions, Latency, News, Options, ProcessId, Setup, World};
use std::cell::Cell;
use std::net::SocketAddr;
use std::rc::Rc;
use wire::ClusterKey;

pub(crate) const KEY: ClusterKey = ClusterKey([7; 32]);
pub(crate) const DISK_BYTES: u64 = 192 << 20;
pub(crate) const VOLUME_BYTES: u64 = 32 << 20;
const NODES: u32 = 3;
/// What becomes ready within so long is one turn's: a node under load finds several completions at once.
const WAKE: Latency = Latency::micros(60, 0);

/// To a machine.
pub(crate) enum Post {
    Node(Mail),
    Load(Load),
}

impl TryFrom<Post> for Mail {
    type Error = ();
    fn try_from(post: Post) -> Result<Self, ()> {
        if let Post::Node(mail) = post { Ok(mail) } else { Err(()) }
    }
}

impl TryFrom<Post> for Load {
    type Error = ();
    fn try_from(post: Post) -> Result<Self, ()> {
        if let Post::Load(load) = post { Ok(load) } else { Err(()) }
    }
}

/// From a machine.
#[derive(Debug)]
pub(crate) enum Said {
    Opened(DiskId, OpenId),
    Node(Letter),
    Loaded,
}

/// Does all of these loads, one after the other; only the last one's turns are measured.
pub(crate) fn run(loads: &[Load]) {
    let options = Options { wake: WAKE, partial_batch_ppm: 0, ..Options::default() };
    let mut w: World<Post, Said> = World::new(1, options);
    w.network().cut_ppm = 0;
    let measured = Rc::new(Cell::new(false));
    let mut nodes = Vec::new();
    for node in 1..=NODES {
        let disk = w.add_disk(DiskOptions::sized(DISK_BYTES));
        let setup = Setup::named(format!("node {node}")).disk(disk).listen(Address::Tcp(endpoint(node)));
        let measured = Rc::clone(&measured);
        nodes.push(w.spawn(setup, move |birth| Counted {
            machine: Server::new(NodeId(node), &birth),
            measured: Rc::clone(&measured),
        }));
    }
    let config = born(&mut w, &nodes);
    let map = map(&config);
    let of_client = Rc::clone(&measured);
    let client = w.spawn(Setup::named("client"), move |birth| Counted {
        machine: Loader::new(&map, &birth),
        measured: Rc::clone(&of_client),
    });
    for (n, load) in loads.iter().enumerate() {
        measured.set(n + 1 == loads.len());
        w.mail_after(client, Span(0), Post::Load(*load));
        until(&mut w, |_, said| matches!(said, Said::Loaded).then_some(()));
    }
    measured.set(false);
}

/// Goes on until a machine has said something.
fn until<T>(w: &mut World<Post, Said>, mut heard: impl FnMut(ProcessId, Said) -> Option<T>) -> T {
    let limit = w.now() + Span::seconds(300);
    loop {
        assert!(w.now() < limit, "not within five minutes of virtual time\n{}", w.report());
        if let sim::Step::News(News::Letter { from, letter, .. }) = w.step()
            && let Some(found) = heard(from, letter)
        {
            return found;
        }
    }
}

/// The shard, once its primary has said that all copies are there: the whole of what a conductor does here.
fn born(w: &mut World<Post, Said>, nodes: &[ProcessId]) -> Configuration {
    let mut opened = vec![None; nodes.len()];
    until(w, |from, said| {
        if let Said::Opened(disk, open) = said
            && let Some(at) = nodes.iter().position(|node| *node == from)
        {
            opened[at] = Some((disk, open));
        }
        opened.iter().all(Option::is_some).then_some(())
    });
    let members: Vec<Member> = (1..=NODES).zip(opened.iter().flatten()).map(|(node, of)| member(node, *of)).collect();
    let mut config = Configuration {
        shard: ShardId { volume: VolumeId(1), index: ShardIndex(0) },
        epoch: Epoch(1),
        primary: CopyId(1),
        full_set: members.iter().map(|member| member.copy).collect(),
        members,
        min_copies: 2,
        attach: AttachGeneration(1),
        size: Bytes(VOLUME_BYTES),
        born: false,
        parent: None,
        durability: Durability::Always,
        cache: Commit(0),
        card: None,
    };
    w.mail_after(nodes[0], Span(0), Post::Node(Mail::Assign(vec![config.clone()])));
    let asked: MembershipRequest =
        until(w, |_, said| if let Said::Node(Letter::Ask(ask)) = said { Some(ask) } else { None });
    assert_eq!(asked.change, MembershipChange::Born, "nothing else can happen to a new shard");
    (config.born, config.epoch) = (true, Epoch(2));
    let granted = Mail::Membership(config.shard, MembershipAnswer::Granted(config.clone()));
    w.mail_after(nodes[0], Span(0), Post::Node(granted));
    config
}

fn member(node: u32, (disk, open): (DiskId, OpenId)) -> Member {
    let (copy, node, endpoint) = (CopyId(u64::from(node)), NodeId(node), endpoint(node));
    Member { copy, node, disk, open, state: CopyState::InSync, since: Epoch(0), past: false, endpoint }
}

fn map(config: &Configuration) -> VolumeMap {
    let place = ShardPlace {
        index: ShardIndex(0),
        epoch: config.epoch,
        node: NodeId(1),
        endpoint: endpoint(1),
        cache: Commit(0),
    };
    VolumeMap {
        volume: config.shard.volume,
        name: "hot-path".to_owned(),
        size: Bytes(VOLUME_BYTES),
        shard_size: Bytes(VOLUME_BYTES),
        attach: config.attach,
        ticket: None,
        snapshot: None,
        durability: Durability::Always,
        held_since: Commit(0),
        reachable: Vec::new(),
        shards: vec![place],
    }
}

fn endpoint(node: u32) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, u8::try_from(node).unwrap_or(0)], 7000))
}
