//! HTTP client of the conductor, for nodes, targets and tools: one typed, blocking method per route.
//!
//! Every call has a deadline. Given several addresses, it goes to the conductor that leads, and what may be done twice is asked of the
//! others in time (`conductors`). After `Unreachable` a command may have taken effect or not: what nodes say is made to be said again (a
//! repeated membership change is answered `Stale`).
#![forbid(unsafe_code)]

mod address;
mod conductors;
mod error;
mod resolver;
mod secure;

pub use error::Error;

use address::base_urls;
use conductor_model::api::{
    Heartbeat, HeartbeatAnswer, MembershipAnswer, MembershipRequest, NodeSessions, Register, Registered, Report,
    VolumeMap,
};
use conductor_model::events::Event;
use conductor_model::views::{
    Adopt, Attach, CheckReplacement, ClientInfo, ConductorInfo, CopyRange, CopyRangeInfo, Detach, Duty, Evict, Force,
    KeyInfo, NewCopies, NewDuty, NewKey, NewSnapshot, NewVolume, NodeInfo, RecoveryInfo, RemoveDisk, RemoveKey, Rename,
    ReplaceDisk, Resize, ResyncChange, ResyncInfo, RotateKey, RotatedKey, Scrub, ScrubInfo, Settings, SnapshotInfo,
    Space, Status, Version, VolumeDetail, VolumeInfo,
};
use conductor_model::{Bytes, DiskId, NodeId, OrderId, VolumeId, check_snapshot_name, check_volume_name};
use conductors::{Call, Conductors, Given};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::sync::Arc;
use std::time::Duration;
use tls::Trust;
use ureq::http::Method;
use wire::Key;

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
/// A question for changes of shards, of which a node has at most 4,096 in one: far below a second. Writes wait for it, and all others behind
/// it: a conductor that froze with one under way is not waited for much longer than another one needs to lead.
const MEMBERSHIP_ATTEMPT: Duration = Duration::from_secs(3);
/// Two of those, and the question before each who leads.
const MEMBERSHIP: Duration = Duration::from_secs(8);

/// A cluster's conductors, by their addresses. Cheap to clone; clones share connections, and who answered last.
#[derive(Clone, Debug)]
pub struct Client {
    conductors: Conductors,
    /// No call takes longer.
    most: Duration,
    /// For people.
    address: Arc<str>,
}

impl Client {
    /// `https://HOST:PORT`, `http://HOST:PORT` or just `HOST:PORT`, of one conductor or of several, with commas between. Nothing is sent
    /// yet.
    pub fn new(addresses: &str) -> Result<Self, Error> {
        let all = base_urls(addresses)?;
        Ok(Self { address: all.join(",").into(), conductors: Conductors::new(all), most: Duration::MAX })
    }

    /// The same, for somebody who does not wait for an answer as long as it may take.
    #[must_use]
    pub fn within(&self, most: Duration) -> Self {
        Self { most, ..self.clone() }
    }

    /// Where it calls.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// The same, with a key of the cluster or a client's: for conductors that want to know who asks, and for knowing those of this
    /// cluster where TLS is spoken.
    pub fn with_key(self, key: Key) -> Result<Self, Error> {
        Ok(Self { conductors: self.conductors.with_key(key)?, ..self })
    }

    /// Whom this cluster's members trust, if it speaks TLS: its nodes do then, too.
    pub fn trust(&self) -> Option<Trust> {
        self.conductors.trust()
    }

    /// Whether each of the conductors leads, as it sees it.
    pub fn conductors(&self) -> Vec<(String, Result<ConductorInfo, Error>)> {
        self.conductors.all().iter().map(|base| (base.clone(), self.conductors.role(base))).collect()
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

    /// A backup of all that the conductor keeps, for `conductor_service::backup::keep`.
    pub fn backup(&self) -> Result<String, Error> {
        let text = self.call(Method::GET, "/v1/backup", Vec::new(), LONG_CALL, Given::ToLeader(LONG_CALL))?;
        let odd = |_| Error::Protocol { address: self.address().to_owned(), what: "a backup is text".to_owned() };
        String::from_utf8(text).map_err(odd)
    }

    /// Has a conductor in doubt go on with what the nodes hold.
    pub fn adopt(&self, adopt: &Adopt) -> Result<RecoveryInfo, Error> {
        self.post("/v1/recovery/adopt", adopt, LONG_CALL)
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
    pub fn set_duty(&self, node: NodeId, duty: Duty, force: impl Into<Force>) -> Result<NodeInfo, Error> {
        let Force { force, sentence } = force.into();
        self.post(&format!("/v1/nodes/{}/duty", node.0), &NewDuty { duty, force, sentence }, LONG_CALL)
    }

    /// Has a disk emptied, and forgotten once its node runs without it.
    pub fn remove_disk(&self, disk: DiskId, force: impl Into<Force>) -> Result<NodeInfo, Error> {
        let Force { force, sentence } = force.into();
        self.post(&format!("/v1/disks/{disk}/remove"), &RemoveDisk { force, sentence }, LONG_CALL)
    }

    /// Has a disk stay that was to be emptied or replaced.
    pub fn keep_disk(&self, disk: DiskId) -> Result<NodeInfo, Error> {
        self.post(&format!("/v1/disks/{disk}/keep"), &(), LONG_CALL)
    }

    /// Has a disk's copies made on another disk of its node, and forgets it then.
    pub fn replace_disk(&self, disk: DiskId, with: DiskId) -> Result<NodeInfo, Error> {
        self.post(&format!("/v1/disks/{disk}/replace"), &ReplaceDisk { with }, LONG_CALL)
    }

    /// Says whether a disk's copies could be made on a new one of this capacity; changes nothing.
    pub fn check_replacement(&self, disk: DiskId, capacity: Bytes) -> Result<NodeInfo, Error> {
        self.post(&format!("/v1/disks/{disk}/check-replacement"), &CheckReplacement { capacity }, LONG_CALL)
    }

    /// Changes how many copies a volume has.
    pub fn set_copies(&self, volume: &str, new: &NewCopies) -> Result<VolumeInfo, Error> {
        self.post(&volume_path(volume, "/redundancy")?, new, LONG_CALL)
    }

    /// What is set for the whole cluster.
    pub fn settings(&self) -> Result<Settings, Error> {
        self.get("/v1/settings")
    }

    /// Sets all of it anew.
    pub fn change_settings(&self, settings: &Settings) -> Result<Settings, Error> {
        self.post("/v1/settings", settings, LONG_CALL)
    }

    /// Copies that are not in sync, and how far their filling is.
    pub fn resyncs(&self) -> Result<Vec<ResyncInfo>, Error> {
        self.get("/v1/resync")
    }

    /// Ends the filling of copies of a volume, or has it go on; says how those stand that this is about.
    pub fn change_resync(&self, volume: &str, change: &ResyncChange) -> Result<Vec<ResyncInfo>, Error> {
        self.post(&volume_path(volume, "/resync")?, change, LONG_CALL)
    }

    /// Events after this number, some hundred at a time; with `wait`, some seconds are waited for one.
    pub fn events(&self, after: u64, wait: bool) -> Result<Vec<Event>, Error> {
        self.get(&format!("/v1/events?after={after}&wait={wait}"))
    }

    /// Says that a node started.
    pub fn register(&self, register: &Register) -> Result<Registered, Error> {
        self.say("/v1/nodes/register", register, LONG_CALL, Given::ToLeader(LONG_CALL))
    }

    /// Says that a node lives; waits up to half a second for news. `Error::is_unknown_node` asks to register anew.
    pub fn heartbeat(&self, beat: &Heartbeat) -> Result<HeartbeatAnswer, Error> {
        self.say("/v1/nodes/heartbeat", beat, HEARTBEAT, Given::Anew)
    }

    /// Asks for changes of shards; one answer each, in order.
    pub fn membership(&self, requests: &[MembershipRequest]) -> Result<Vec<MembershipAnswer>, Error> {
        let given = Given::ToLeader(MEMBERSHIP_ATTEMPT);
        let answers: Vec<_> = self.say("/v1/membership", requests, MEMBERSHIP, given)?;
        if answers.len() != requests.len() {
            let what = format!("{} answers to {} membership requests", answers.len(), requests.len());
            return Err(Error::Protocol { address: self.address().to_owned(), what });
        }
        Ok(answers)
    }

    /// Says how orders stand and which work is done.
    pub fn report(&self, report: &Report) -> Result<(), Error> {
        self.call(Method::POST, "/v1/nodes/report", encoded(report)?, CALL, Given::Anew).map(|_| ())
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
        self.delete(&format!("{}?force={force}", volume_path(name, "")?), LONG_CALL)
    }

    /// Grows a volume.
    pub fn resize_volume(&self, name: &str, size: Bytes) -> Result<VolumeInfo, Error> {
        self.post(&volume_path(name, "/resize")?, &Resize { size }, LONG_CALL)
    }

    /// Gives a volume another name; by force, although somebody reads a snapshot of it.
    pub fn rename_volume(&self, name: &str, new: &str, force: bool) -> Result<VolumeInfo, Error> {
        self.post(&volume_path(name, "/rename")?, &Rename { name: new.to_owned(), force }, CALL)
    }

    /// Takes a volume for a client, under a new attach generation.
    pub fn attach(&self, name: &str, attach: &Attach) -> Result<VolumeMap, Error> {
        self.post(&volume_path(name, "/attach")?, attach, CALL)
    }

    /// Gives it back.
    pub fn detach(&self, name: &str, detach: &Detach) -> Result<(), Error> {
        self.call(Method::POST, &volume_path(name, "/detach")?, encoded(detach)?, CALL, Given::Once).map(|_| ())
    }

    /// Tells which sessions a node has.
    pub fn sessions(&self, sessions: &NodeSessions) -> Result<(), Error> {
        self.call(Method::POST, "/v1/nodes/sessions", encoded(sessions)?, HEARTBEAT, Given::Anew).map(|_| ())
    }

    /// Clients that have a volume attached, or read a snapshot.
    pub fn clients(&self) -> Result<Vec<ClientInfo>, Error> {
        self.get("/v1/clients")
    }

    /// Makes a key for a client. Its secret follows from what is answered, and from the cluster's key.
    pub fn add_key(&self, new: &NewKey) -> Result<KeyInfo, Error> {
        self.post("/v1/clients/keys", new, CALL)
    }

    /// Makes a new key in the place of one, which holds for so long yet.
    pub fn rotate_key(&self, rotate: &RotateKey) -> Result<RotatedKey, Error> {
        self.post("/v1/clients/keys/rotate", rotate, LONG_CALL)
    }

    /// Removes it, and ends all that was attached with it.
    pub fn remove_key(&self, name: &str) -> Result<(), Error> {
        let remove = encoded(&RemoveKey { name: name.to_owned() })?;
        self.call(Method::POST, "/v1/clients/keys/remove", remove, CALL, Given::Once).map(|_| ())
    }

    /// Ends all that a client has attached. Returns the volumes.
    pub fn evict(&self, client: &str) -> Result<Vec<String>, Error> {
        self.post("/v1/clients/evict", &Evict { client: client.to_owned() }, CALL)
    }

    /// Where a volume's shards are served.
    pub fn map(&self, name: &str) -> Result<VolumeMap, Error> {
        self.get_within(&volume_path(name, "/map")?, MAP)
    }

    /// The same of a volume that is known to be `volume`: with a client's key, too, it is said that this one is gone.
    pub fn map_of(&self, name: &str, volume: VolumeId) -> Result<VolumeMap, Error> {
        self.get_within(&format!("{}?volume={}", volume_path(name, "/map")?, volume.0), MAP)
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
        self.delete(&snapshot_path(volume, name, "")?, LONG_CALL)
    }

    /// Begins to make a volume read as its snapshot again; `VolumeInfo::rollback` says how far it is.
    pub fn rollback(&self, volume: &str, name: &str) -> Result<VolumeInfo, Error> {
        self.post(&snapshot_path(volume, name, "/rollback")?, &(), LONG_CALL)
    }

    /// Ends a rollback that is not over: `VolumeInfo::cancelled_rollback` says what reads as what.
    pub fn cancel_rollback(&self, volume: &str, name: &str) -> Result<VolumeInfo, Error> {
        let path = snapshot_path(volume, name, "/rollback")?;
        self.decoded(&self.call(Method::DELETE, &path, Vec::new(), LONG_CALL, Given::Once)?)
    }

    /// Where a snapshot is read: its own size, and `VolumeMap::snapshot` set. No attachment is needed, or taken.
    pub fn snapshot_map(&self, volume: &str, name: &str) -> Result<VolumeMap, Error> {
        self.get_within(&snapshot_path(volume, name, "/map")?, MAP)
    }

    /// See [`Client::map_of`].
    pub fn snapshot_map_of(&self, name: &str, snapshot: &str, volume: VolumeId) -> Result<VolumeMap, Error> {
        self.get_within(&format!("{}?volume={}", snapshot_path(name, snapshot, "/map")?, volume.0), MAP)
    }

    /// Begins to make a clone independent of its parent; `VolumeInfo::flatten` says how far it is.
    pub fn flatten(&self, volume: &str) -> Result<VolumeInfo, Error> {
        self.post(&volume_path(volume, "/flatten")?, &(), LONG_CALL)
    }

    /// Begins to copy a range into a volume; what is under way is in `copy_ranges`.
    pub fn copy_range(&self, volume: &str, range: &CopyRange) -> Result<CopyRangeInfo, Error> {
        self.post(&volume_path(volume, "/copies")?, range, LONG_CALL)
    }

    /// Copy-ranges into a volume that are under way, and those that failed or were cancelled.
    pub fn copy_ranges(&self, volume: &str) -> Result<Vec<CopyRangeInfo>, Error> {
        self.get(&volume_path(volume, "/copies")?)
    }

    /// Ends a copy-range, which stays listed as cancelled, or removes one that has ended from the list. What was copied by then stays.
    pub fn cancel_copy_range(&self, volume: &str, id: OrderId) -> Result<(), Error> {
        self.delete(&volume_path(volume, &format!("/copies/{}", id.0))?, CALL)
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
        self.decoded(&self.call(Method::GET, path, Vec::new(), deadline, Given::Anew)?)
    }

    /// A command, given once.
    fn post<B: Serialize + ?Sized, T: DeserializeOwned>(
        &self,
        path: &str,
        body: &B,
        deadline: Duration,
    ) -> Result<T, Error> {
        self.decoded(&self.call(Method::POST, path, encoded(body)?, deadline, Given::Once)?)
    }

    /// What a node says, which may be said twice.
    fn say<B: Serialize + ?Sized, T: DeserializeOwned>(
        &self,
        path: &str,
        body: &B,
        deadline: Duration,
        given: Given,
    ) -> Result<T, Error> {
        self.decoded(&self.call(Method::POST, path, encoded(body)?, deadline, given)?)
    }

    fn delete(&self, path: &str, deadline: Duration) -> Result<(), Error> {
        self.call(Method::DELETE, path, Vec::new(), deadline, Given::Once).map(|_| ())
    }

    fn call(
        &self,
        method: Method,
        path: &str,
        body: Vec<u8>,
        deadline: Duration,
        given: Given,
    ) -> Result<Vec<u8>, Error> {
        let deadline = deadline.min(self.most);
        self.conductors.call(&Call { method, path, body, deadline, given })
    }

    fn decoded<T: DeserializeOwned>(&self, bytes: &[u8]) -> Result<T, Error> {
        serde_json::from_slice(bytes)
            .map_err(|error| Error::Protocol { address: self.address().to_owned(), what: error.to_string() })
    }
}

fn encoded<B: Serialize + ?Sized>(body: &B) -> Result<Vec<u8>, Error> {
    let refused = |error: serde_json::Error| Error::Refused {
        kind: "invalid".to_owned(),
        message: format!("it cannot be said: {error}"),
        status: 400,
    };
    serde_json::to_vec(body).map_err(refused)
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
