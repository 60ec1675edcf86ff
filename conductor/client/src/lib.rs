//! HTTP client of the conductor, for nodes, targets and tools: one typed, blocking method per route.
//!
//! Every call has a deadline and none is repeated here. After `Unreachable` a command may have taken effect or not: the
//! conductor's commands are made to be asked again (a repeated membership change is answered `Stale`).
#![forbid(unsafe_code)]

mod address;
mod error;

pub use error::Error;

use address::base_url;
use conductor_model::api::{
    Heartbeat, HeartbeatAnswer, MembershipAnswer, MembershipRequest, Register, Registered, Report, VolumeMap,
};
use conductor_model::events::Event;
use conductor_model::views::{
    Attach, CopyInfo, CopyRange, Detach, Duty, ErrorBody, NewCopies, NewDuty, NewSnapshot, NewVolume, NodeInfo,
    RemoveDisk, Resize, Scrub, ScrubInfo, SnapshotInfo, Space, Status, Version, VolumeDetail, VolumeInfo,
};
use conductor_model::{Bytes, DiskId, NodeId, OrderId, check_snapshot_name, check_volume_name};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::time::Duration;
use ureq::http::Response;
use ureq::{Agent, Body};

/// Connecting takes no longer on any network that a cluster would be built on.
const CONNECT: Duration = Duration::from_secs(2);
/// An ordinary call. Also covers the 5 s that a forced attach may wait for the primaries.
const CALL: Duration = Duration::from_secs(10);
/// A heartbeat is held for half a second; what takes a second more is lost or a conductor in trouble. A node that is not heard for 2 s
/// is taken for dead: the next one has to leave before.
const HEARTBEAT: Duration = Duration::from_millis(1500);
/// The map of the largest volume is 2 MB. A target that looks for a new primary asks again, over a connection of its own: the last
/// one's packets may be lost for longer than the trouble lasts.
const MAP: Duration = Duration::from_secs(2);
/// Creating the largest volume, or registering a node with all the copies it can have.
const LONG_CALL: Duration = Duration::from_secs(30);
/// Largest answer read: all assignments of the largest cluster's node.
const MAX_ANSWER: u64 = 256 << 20;
/// Longest piece of an answer that is no conductor's, quoted in an error.
const MAX_QUOTE: usize = 120;

/// A conductor, by its address. Cheap to clone; clones share connections.
#[derive(Clone, Debug)]
pub struct Client {
    agent: Agent,
    base: String,
}

impl Client {
    /// `http://HOST:PORT` or just `HOST:PORT`. Nothing is sent yet.
    pub fn new(address: &str) -> Result<Self, Error> {
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .timeout_connect(Some(CONNECT))
            .timeout_global(Some(CALL))
            .max_redirects(0)
            .proxy(None)
            .build();
        Ok(Self { agent: config.into(), base: base_url(address)? })
    }

    /// Where it calls.
    pub fn address(&self) -> &str {
        &self.base
    }

    /// Program version, cluster and commit number.
    pub fn version(&self) -> Result<Version, Error> {
        self.get("/v1/version")
    }

    /// The routes' description.
    pub fn openapi(&self) -> Result<serde_json::Value, Error> {
        self.get("/v1/openapi.json")
    }

    /// The cluster at a glance.
    pub fn status(&self) -> Result<Status, Error> {
        self.get("/v1/status")
    }

    /// All nodes.
    pub fn nodes(&self) -> Result<Vec<NodeInfo>, Error> {
        self.get("/v1/nodes")
    }

    /// One node.
    pub fn node(&self, node: NodeId) -> Result<NodeInfo, Error> {
        self.get(&format!("/v1/nodes/{}", node.0))
    }

    /// Changes what is wanted of a node.
    pub fn set_duty(&self, node: NodeId, duty: Duty, force: bool) -> Result<NodeInfo, Error> {
        self.post(&format!("/v1/nodes/{}/duty", node.0), &NewDuty { duty, force }, LONG_CALL)
    }

    /// Has a disk emptied, and forgotten once its node runs without it.
    pub fn remove_disk(&self, disk: DiskId, force: bool) -> Result<NodeInfo, Error> {
        self.post(&format!("/v1/disks/{}/remove", disk.0), &RemoveDisk { force }, LONG_CALL)
    }

    /// Changes how many copies a volume has.
    pub fn set_copies(&self, volume: &str, new: &NewCopies) -> Result<VolumeInfo, Error> {
        self.post(&volume_path(volume, "/redundancy")?, new, LONG_CALL)
    }

    /// Events after this number, some hundred at a time; with `wait`, some seconds are waited for one.
    pub fn events(&self, after: u64, wait: bool) -> Result<Vec<Event>, Error> {
        self.get(&format!("/v1/events?after={after}&wait={wait}"))
    }

    /// Says that a node started.
    pub fn register(&self, register: &Register) -> Result<Registered, Error> {
        self.post("/v1/nodes/register", register, LONG_CALL)
    }

    /// Says that a node lives; waits up to half a second for news. `Error::is_unknown_node` asks to register anew.
    pub fn heartbeat(&self, beat: &Heartbeat) -> Result<HeartbeatAnswer, Error> {
        self.post("/v1/nodes/heartbeat", beat, HEARTBEAT)
    }

    /// Asks for changes of shards; one answer each, in order.
    pub fn membership(&self, requests: &[MembershipRequest]) -> Result<Vec<MembershipAnswer>, Error> {
        let answers: Vec<_> = self.post("/v1/membership", requests, LONG_CALL)?;
        if answers.len() != requests.len() {
            let what = format!("{} answers to {} membership requests", answers.len(), requests.len());
            return Err(Error::Protocol { address: self.base.clone(), what });
        }
        Ok(answers)
    }

    /// Says how orders stand and which work is done.
    pub fn report(&self, report: &Report) -> Result<(), Error> {
        let request = self.agent.post(format!("{}/v1/nodes/report", self.base));
        self.expect_nothing(request.send_json(report))
    }

    /// Space of disks and volumes.
    pub fn space(&self) -> Result<Space, Error> {
        self.get("/v1/space")
    }

    /// All volumes.
    pub fn volumes(&self) -> Result<Vec<VolumeInfo>, Error> {
        self.get("/v1/volumes")
    }

    /// Creates a volume.
    pub fn create_volume(&self, new: &NewVolume) -> Result<VolumeInfo, Error> {
        self.post("/v1/volumes", new, LONG_CALL)
    }

    /// One volume with its shards.
    pub fn volume(&self, name: &str) -> Result<VolumeDetail, Error> {
        self.get(&volume_path(name, "")?)
    }

    /// Deletes a volume and its data; an attached one only with `force`.
    pub fn delete_volume(&self, name: &str, force: bool) -> Result<(), Error> {
        let url = format!("{}{}?force={force}", self.base, volume_path(name, "")?);
        let request = self.agent.delete(&url).config().timeout_global(Some(LONG_CALL)).build();
        self.expect_nothing(request.call())
    }

    /// Grows a volume.
    pub fn resize_volume(&self, name: &str, size: Bytes) -> Result<VolumeInfo, Error> {
        self.post(&volume_path(name, "/resize")?, &Resize { size }, LONG_CALL)
    }

    /// Takes a volume for a client, under a new attach generation.
    pub fn attach(&self, name: &str, attach: &Attach) -> Result<VolumeMap, Error> {
        self.post(&volume_path(name, "/attach")?, attach, CALL)
    }

    /// Gives it back.
    pub fn detach(&self, name: &str, detach: &Detach) -> Result<(), Error> {
        let url = format!("{}{}", self.base, volume_path(name, "/detach")?);
        self.expect_nothing(self.agent.post(&url).send_json(detach))
    }

    /// Where a volume's shards are served.
    pub fn map(&self, name: &str) -> Result<VolumeMap, Error> {
        self.get_within(&volume_path(name, "/map")?, MAP)
    }

    /// A volume's snapshots.
    pub fn snapshots(&self, volume: &str) -> Result<Vec<SnapshotInfo>, Error> {
        self.get(&volume_path(volume, "/snapshots")?)
    }

    /// Makes a snapshot of the whole volume at one point in time; returns when it is complete, or could not be made.
    pub fn create_snapshot(&self, volume: &str, name: &str) -> Result<SnapshotInfo, Error> {
        let new = NewSnapshot { name: name.to_owned() };
        self.post(&volume_path(volume, "/snapshots")?, &new, LONG_CALL)
    }

    /// Deletes a snapshot that no clone needs.
    pub fn delete_snapshot(&self, volume: &str, name: &str) -> Result<(), Error> {
        let url = format!("{}{}", self.base, snapshot_path(volume, name, "")?);
        let request = self.agent.delete(&url).config().timeout_global(Some(LONG_CALL)).build();
        self.expect_nothing(request.call())
    }

    /// Begins to make a volume read as its snapshot again; `VolumeInfo::rollback` says how far it is.
    pub fn rollback(&self, volume: &str, name: &str) -> Result<VolumeInfo, Error> {
        self.post(&snapshot_path(volume, name, "/rollback")?, &(), LONG_CALL)
    }

    /// Where a snapshot is read: its own size, and `VolumeMap::snapshot` set. No attachment is needed, or taken.
    pub fn snapshot_map(&self, volume: &str, name: &str) -> Result<VolumeMap, Error> {
        self.get_within(&snapshot_path(volume, name, "/map")?, MAP)
    }

    /// Begins to make a clone independent of its parent; `VolumeInfo::flatten` says how far it is.
    pub fn flatten(&self, volume: &str) -> Result<VolumeInfo, Error> {
        self.post(&volume_path(volume, "/flatten")?, &(), LONG_CALL)
    }

    /// Begins to copy a range into a volume; what is under way is in `copies`.
    pub fn copy_range(&self, volume: &str, range: &CopyRange) -> Result<CopyInfo, Error> {
        self.post(&volume_path(volume, "/copies")?, range, LONG_CALL)
    }

    /// Copy-ranges into a volume that are under way.
    pub fn copies(&self, volume: &str) -> Result<Vec<CopyInfo>, Error> {
        self.get(&volume_path(volume, "/copies")?)
    }

    /// Ends a copy-range, or removes a failed one from the list. What was copied by then stays.
    pub fn cancel_copy(&self, volume: &str, id: OrderId) -> Result<(), Error> {
        let url = format!("{}{}", self.base, volume_path(volume, &format!("/copies/{}", id.0))?);
        self.expect_nothing(self.agent.delete(&url).call())
    }

    /// Starts, pauses, resumes or cancels a volume's scrub.
    pub fn change_scrub(&self, volume: &str, scrub: &Scrub) -> Result<ScrubInfo, Error> {
        self.post(&volume_path(volume, "/scrub")?, scrub, CALL)
    }

    /// How a volume's scrubs stand.
    pub fn scrub(&self, volume: &str) -> Result<ScrubInfo, Error> {
        self.get(&volume_path(volume, "/scrub")?)
    }

    fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, Error> {
        self.get_within(path, CALL)
    }

    fn get_within<T: DeserializeOwned>(&self, path: &str, deadline: Duration) -> Result<T, Error> {
        let request = self.agent.get(format!("{}{path}", self.base));
        self.expect_json(request.config().timeout_global(Some(deadline)).build().call())
    }

    fn post<B: Serialize + ?Sized, T: DeserializeOwned>(
        &self,
        path: &str,
        body: &B,
        deadline: Duration,
    ) -> Result<T, Error> {
        let request = self.agent.post(format!("{}{path}", self.base));
        self.expect_json(request.config().timeout_global(Some(deadline)).build().send_json(body))
    }

    fn expect_nothing(&self, called: Result<Response<Body>, ureq::Error>) -> Result<(), Error> {
        self.success(called).map(|_| ())
    }

    fn expect_json<T: DeserializeOwned>(&self, called: Result<Response<Body>, ureq::Error>) -> Result<T, Error> {
        let bytes = self.success(called)?;
        serde_json::from_slice(&bytes)
            .map_err(|error| Error::Protocol { address: self.base.clone(), what: error.to_string() })
    }

    /// The body of a success; anything else is an error of one of the three sorts.
    fn success(&self, called: Result<Response<Body>, ureq::Error>) -> Result<Vec<u8>, Error> {
        let failed = |error| Error::of_call(&self.base, error);
        let response = called.map_err(failed)?;
        let status = response.status();
        let bytes = response.into_body().with_config().limit(MAX_ANSWER).read_to_vec().map_err(failed)?;
        if status.is_success() {
            return Ok(bytes);
        }
        match serde_json::from_slice::<ErrorBody>(&bytes) {
            Ok(ErrorBody { error, message }) => Err(Error::Refused { kind: error, message, status: status.as_u16() }),
            Err(_) => {
                let quote: String = String::from_utf8_lossy(&bytes).chars().take(MAX_QUOTE).collect();
                Err(Error::Protocol { address: self.base.clone(), what: format!("{status}: {quote:?}") })
            }
        }
    }
}

fn snapshot_path(volume: &str, name: &str, verb: &str) -> Result<String, Error> {
    checked(check_snapshot_name(name))?;
    volume_path(volume, &format!("/snapshots/{name}{verb}"))
}

/// Only proper names become part of a path: nothing needs to be escaped.
fn volume_path(name: &str, verb: &str) -> Result<String, Error> {
    checked(check_volume_name(name))?;
    Ok(format!("/v1/volumes/{name}{verb}"))
}

fn checked(name: Result<(), conductor_model::Error>) -> Result<(), Error> {
    name.map_err(|error| {
        let (kind, message) = (error.kind().to_owned(), error.to_string());
        Error::Refused { kind, message, status: 400 }
    })
}
