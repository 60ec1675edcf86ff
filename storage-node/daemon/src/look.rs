//! A look inside the node as JSON: what `trine node show` prints. Mirrors `node_core::View`; the field names are stable.

use crate::NodeOptions;
use crate::control::Control;
use crate::options::huge_pages_needed;
use conductor_model::{AttachGeneration, Blocks, Bytes, CopyId, DiskId, Epoch, NodeId, OpenId, ShardId, VolumeId};
use driver::Address;
use memory::HugePages;
use node_core::{Stage, Stages, View};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use tcp::WayView;

/// The whole process.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct NodeLook {
    /// Its number.
    pub node: NodeId,
    /// Its process id.
    pub pid: u32,
    /// The buffer memory of its reactors.
    pub memory: MemoryLook,
    /// What of the process is in memory on each of the machine's memory nodes (NUMA); empty if there is one.
    pub memory_nodes: Vec<MemoryNodeLook>,
    /// What is wrong with the conductor, if it cannot be reached.
    pub conductor_trouble: Option<String>,
    /// Disks that failed, and how.
    pub failed_disks: BTreeMap<DiskId, String>,
    /// Its reactors in order; one that did not answer is missing.
    pub reactors: Vec<ReactorLook>,
}

/// Buffer memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct MemoryLook {
    /// Of all reactors together, as it was mapped.
    pub bytes: Bytes,
    /// Reserved huge pages of 2 MiB that it lies on; 0 if it is ordinary memory.
    pub huge_pages: u64,
    /// Directories with the files that it lies on; 0 if it is ordinary memory.
    pub directories: usize,
}

/// What of the process is in memory on one memory node.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct MemoryNodeLook {
    /// Its number.
    pub node: usize,
    /// How much.
    pub bytes: Bytes,
}

/// One reactor.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct ReactorLook {
    /// Which.
    pub lane: u16,
    /// Its disks.
    pub disks: Vec<DiskLook>,
    /// Its copies.
    pub copies: Vec<CopyLook>,
    /// Its sessions.
    pub sessions: Vec<SessionLook>,
    /// Its connections to the reactors that hold the other copies.
    #[serde(default)]
    pub links: Vec<LinkLook>,
    /// Live objects and the holds that keep them, one line each.
    pub refs: Vec<String>,
    /// Counters by name.
    pub counters: BTreeMap<String, u64>,
    /// Requests that finished lately, oldest first.
    pub traces: Vec<TraceLook>,
}

/// One connection to another reactor.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LinkLook {
    /// Where.
    pub endpoint: SocketAddr,
    /// Established.
    pub up: bool,
    /// What it goes over: `tcp` or `rdma`.
    pub transport: String,
    /// The same with the address: `tcp:IP:PORT` or `rdma:IP:PORT`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub over: Option<String>,
    /// The ways there, best first, if there are several.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ways: Vec<WayView>,
}

/// One disk.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct DiskLook {
    /// Its name.
    pub disk: DiskId,
    /// This opening.
    pub open: OpenId,
    /// Its size for data.
    pub capacity: Bytes,
    /// In use.
    pub used: Bytes,
}

/// One copy.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct CopyLook {
    /// Of which shard.
    pub shard: ShardId,
    /// Its name.
    pub copy: CopyId,
    /// The epoch that it has joined.
    pub epoch: Epoch,
    /// `primary: serving`, `replica: joined`, …
    pub role: String,
    /// Its size in blocks of 4 KiB.
    pub blocks: Blocks,
    /// Requests that hold or wait for locks.
    pub requests: usize,
}

/// One client session.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SessionLook {
    /// Its number on its reactor.
    pub id: u32,
    /// The client's name.
    pub client: String,
    /// What it has attached.
    pub volume: VolumeId,
    /// Its attach generation.
    pub generation: AttachGeneration,
    /// Its connections.
    pub lanes: usize,
}

/// One request that finished.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct TraceLook {
    /// The client's number of it.
    pub sequence: u64,
    /// The op's number.
    pub op: u8,
    /// The stages that it passed, in the order in which it passed them.
    pub stages: Vec<StageLook>,
}

/// One stage of a request.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct StageLook {
    /// Which.
    pub stage: String,
    /// When, in nanoseconds of the node's clock.
    pub at_ns: u64,
}

impl NodeLook {
    pub(crate) fn of(control: &Control) -> Self {
        Self {
            node: control.node,
            pid: std::process::id(),
            memory: control.memory,
            memory_nodes: memory::resident()
                .into_iter()
                .map(|on| MemoryNodeLook { node: on.node, bytes: Bytes(on.bytes) })
                .collect(),
            conductor_trouble: control.desk.conductor_trouble(),
            failed_disks: control.desk.failed(),
            reactors: control.look().into_iter().map(|(lane, look)| ReactorLook::of(lane, look)).collect(),
        }
    }
}

impl MemoryLook {
    pub(crate) fn of(options: &NodeOptions) -> Self {
        let huge_pages = if options.huge_pages { huge_pages_needed(options.memory, options.reactors) } else { 0 };
        let asked = (options.memory_of_each() * options.reactors) as u64;
        let directories = options.memory_dirs.len();
        Self { bytes: Bytes(asked.max(huge_pages * HugePages::BYTES)), huge_pages, directories }
    }
}

impl ReactorLook {
    fn of(lane: u16, (view, ring): (View, Option<reactor::Counters>)) -> Self {
        let disks = view.disks.iter();
        let copies = view.copies.into_iter();
        let sessions = view.sessions.into_iter();
        let links = view.links.iter().map(|link| LinkLook {
            endpoint: link.endpoint,
            up: link.up,
            transport: if matches!(link.over, Some(Address::Rdma(_))) { "rdma" } else { "tcp" }.to_owned(),
            over: link.over.as_ref().map(ToString::to_string),
            ways: link.ways.clone(),
        });
        Self {
            lane,
            disks: disks.map(|d| DiskLook { disk: d.disk, open: d.open, capacity: d.capacity, used: d.used }).collect(),
            copies: copies
                .map(|c| CopyLook {
                    shard: c.shard,
                    copy: c.copy,
                    epoch: c.epoch,
                    role: c.role,
                    blocks: c.blocks,
                    requests: c.requests,
                })
                .collect(),
            sessions: sessions
                .map(|s| SessionLook {
                    id: s.id,
                    client: s.client,
                    volume: s.volume,
                    generation: s.generation,
                    lanes: s.lanes,
                })
                .collect(),
            links: links.collect(),
            refs: view.refs,
            counters: view
                .counters
                .into_iter()
                .chain(ring.iter().flat_map(reactor::Counters::named))
                .map(|(name, count)| (name.to_owned(), count))
                .collect(),
            traces: view.traces.iter().map(TraceLook::of).collect(),
        }
    }
}

impl TraceLook {
    fn of(stages: &Stages) -> Self {
        let mut passed: Vec<(u8, StageLook)> = Stage::ALL
            .iter()
            .map(|(stage, name)| (*stage as usize, name))
            .filter(|(at, _)| stages.order[*at] > 0)
            .map(|(at, name)| (stages.order[at], StageLook { stage: (*name).to_owned(), at_ns: stages.at[at] }))
            .collect();
        passed.sort_by_key(|(order, _)| *order);
        Self { sequence: stages.sequence, op: stages.op, stages: passed.into_iter().map(|(_, stage)| stage).collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trace_lists_the_stages_in_the_order_of_passing() {
        let mut stages = Stages::default();
        stages.sequence = 9;
        for (n, stage) in [Stage::Received, Stage::Forwarded, Stage::Locked].into_iter().enumerate() {
            stages.order[stage as usize] = u8::try_from(n).unwrap() + 1;
            stages.at[stage as usize] = 100 + n as u64;
        }
        let look = TraceLook::of(&stages);
        let names: Vec<&str> = look.stages.iter().map(|s| s.stage.as_str()).collect();
        assert_eq!((look.sequence, names), (9, vec!["received", "forwarded", "locked"]));
        assert_eq!(look.stages[2].at_ns, 102);
    }
}
