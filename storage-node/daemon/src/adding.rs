//! Disks that are added to a running node: they get a reactor of their own, as if the node had been started with one more.
//!
//! Nothing of the reactors that run is touched, so no request waits. A reactor of its own is also what lets a copy move from one disk of
//! the node to another: each can hold one copy of a shard. With the next start the disks that are named then are spread anew; where two
//! hold copies of one shard, each gets a reactor of its own again (`process`). Those that are not named the conductor remembers, with their
//! paths, and the node opens them again before it registers, each by what its superblock says it is.

use crate::control::{Control, Pauses};
use crate::desk::Lane;
use crate::limits::{ADD_LOOK, MAIL, MAX_DISKS_PER_REACTOR, MAX_REACTORS};
use crate::process::{Event, spawn};
use crate::thread::{self, Plan};
use crate::{DiskPlan, Error, NodeOptions, disks};
use conductor_model::api::DiskReport;
use conductor_model::{Bytes, ClusterId, DiskId};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Disks for a running node.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NewDisks {
    /// Files or block devices.
    pub paths: Vec<PathBuf>,
    /// Bytes of files that are made where there is nothing.
    pub create: Option<u64>,
    /// Bytes of the journals of stores that are made, if not the usual ones.
    #[serde(default)]
    pub journal_size: Option<u64>,
    /// Make a store on a disk although it carries something else's marks.
    pub force: bool,
}

/// A disk that was added.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct AddedDisk {
    /// Its path.
    pub path: PathBuf,
    /// Its name.
    pub disk: DiskId,
    /// Its size for data.
    pub capacity: Bytes,
}

/// What starts a reactor in a running process.
pub(crate) struct Adder {
    pub(crate) options: NodeOptions,
    pub(crate) cluster: ClusterId,
    pub(crate) process: u64,
    pub(crate) control: Arc<Control>,
    pub(crate) tell: Sender<Event>,
    /// The next reactor's number: none is used twice in a process's life. Held while disks are added.
    pub(crate) next: Mutex<Lane>,
}

/// What a new reactor's thread says once.
type Opened = Result<(SocketAddr, Vec<DiskReport>), Error>;

impl Adder {
    /// Opens the disks, each an empty one or one of this node's, and registers them with the next heartbeat.
    pub(crate) fn add(&self, new: &NewDisks) -> Result<Vec<AddedDisk>, Error> {
        // A disk with a store of this node keeps it; on others one is made, if nothing else is there.
        self.open(new, true)
    }

    /// Opens what this node had when the conductor heard of it last and its options do not name: disks that were added while it ran. Each is
    /// looked for where any of them was: a machine that starts again may have given their names to each other. One that is nowhere keeps
    /// nobody from starting.
    pub(crate) fn remember(&self) {
        let mut pauses = Pauses::new();
        let known = loop {
            match self.control.client.node(self.control.node) {
                Ok(info) => break info.disks,
                Err(conductor_client::Error::Refused { status: 404, .. }) => return,
                // It registers with the conductor before it serves: nothing starts later for waiting here.
                Err(why) if why.is_temporary() => {
                    if self.control.desk.pause(pauses.next()) {
                        return;
                    }
                }
                Err(why) => {
                    tracing::warn!(%why, "the conductor does not say which disks were added to this node: only those that its options name are opened");
                    return;
                }
            }
        };
        let here: BTreeSet<DiskId> = self.control.disks().iter().map(|(_, report)| report.disk).collect();
        let paths: Vec<(DiskId, PathBuf)> =
            known.iter().filter_map(|known| Some((known.disk, PathBuf::from(known.path.as_ref()?)))).collect();
        let found = disks::find(&paths, &|| self.stops());
        if self.stops() {
            return;
        }
        for known in known.into_iter().filter(|known| !here.contains(&known.disk)) {
            if known.leaving && known.copies == 0 {
                continue;
            }
            let (disk, copies) = (known.disk, known.copies);
            let Some(path) = known.path.map(PathBuf::from) else {
                tracing::error!(%disk, copies, "A DISK IS MISSING: name where it is with --disk, or `trine disk replace` it");
                continue;
            };
            let why = match found.get(&disk) {
                Some(at) => {
                    if *at != path {
                        tracing::warn!(%disk, was = %path.display(), is = %at.display(), "a disk has another disk's name now");
                    }
                    let again = NewDisks { paths: vec![at.clone()], create: None, journal_size: None, force: false };
                    match self.open(&again, false) {
                        Ok(_) => continue,
                        Err(Error::Stopping) => return,
                        Err(why) => why.to_string(),
                    }
                }
                None => match disks::disk_at(&path) {
                    Ok(Some(other)) => format!("disk {other} is there"),
                    Ok(None) => "no store is there".to_owned(),
                    Err(why) => why.to_string(),
                },
            };
            let path = path.display();
            tracing::error!(%disk, %path, copies, why, "A DISK IS MISSING that this node had: bring it back and start the node again, name where it is now with --disk, or `trine disk replace` it");
        }
    }

    /// A copy of a store that is open here, or two of one store: they cannot be registered beside each other, and then nothing of the node can.
    fn refuse_copies(&self, paths: &[PathBuf]) -> Result<(), Error> {
        let place = |report: &DiskReport| report.path.clone().unwrap_or_else(|| "another path".to_owned());
        let mut open: BTreeMap<DiskId, String> =
            self.control.disks().iter().map(|(_, report)| (report.disk, place(report))).collect();
        for path in paths {
            // Who cannot be read is opened next, and says why.
            let Ok(Some(disk)) = disks::disk_at(path) else { continue };
            if let Some(open) = open.insert(disk, path.display().to_string()) {
                let is_it =
                    std::fs::canonicalize(path).ok().is_some_and(|at| std::fs::canonicalize(&open).ok() == Some(at));
                return Err(match is_it {
                    true => Error::Had { path: path.clone(), disk },
                    false => Error::Copy { path: path.clone(), disk, open },
                });
            }
        }
        Ok(())
    }

    /// The node is told to stop: nothing that may take long is waited for.
    fn stops(&self) -> bool {
        self.control.desk.pause(Duration::ZERO)
    }

    fn open(&self, new: &NewDisks, format: bool) -> Result<Vec<AddedDisk>, Error> {
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        let lane = *next;
        if new.paths.is_empty() {
            return Err(Error::NoDisk);
        }
        if new.paths.len() > MAX_DISKS_PER_REACTOR {
            return Err(Error::TooManyDisks { disks: new.paths.len(), reactors: 1 });
        }
        if self.control.lanes.all().len() >= MAX_REACTORS {
            return Err(Error::TooManyReactors);
        }
        let plan = |path: &PathBuf| DiskPlan {
            path: path.clone(),
            create: new.create,
            journal: None,
            journal_size: new.journal_size,
        };
        let plans: Vec<DiskPlan> = new.paths.iter().map(plan).collect();
        // A stop does not wait until a large file is written in full.
        disks::prepare(&plans, self.options.sparse, &|| self.stops())?;
        self.refuse_copies(&new.paths)?;
        let options = NodeOptions { format, force: new.force, ..self.options.clone() };
        let (mailbox, mail) = reactor::mailbox(MAIL)?;
        // What it says is said to somebody who takes it, or not at all.
        let (say, said) = mpsc::sync_channel::<Opened>(0);
        let (desk, tell) = (Arc::clone(&self.control.desk), self.tell.clone());
        let (cluster, process) = (self.cluster, self.process);
        let run = move || {
            let plan = Plan { options: &options, disks: &plans, lane, cluster, process };
            let opened = match thread::open(&plan, mail) {
                Ok(opened) => opened,
                // Whoever asked is told; who went away does not care.
                Err(why) => return drop(say.send(Err(why))),
            };
            let news = (opened.endpoint, opened.disks.clone());
            let _ = tell.send(Event::Began);
            // Who does not hear that it is there does not tell it to end either.
            let outcome = match say.send(Ok(news)) {
                Ok(()) => opened.run(&desk),
                Err(_) => Ok(()),
            };
            let _ = tell.send(Event::Ended { lane, outcome });
        };
        spawn(format!("reactor {lane}"), run)?;
        let (_, reports) = loop {
            match said.recv_timeout(ADD_LOOK) {
                Ok(news) => break news?,
                Err(RecvTimeoutError::Timeout) if self.stops() => return Err(Error::Stopping),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Err(Error::Ended(lane)),
            }
        };
        *next += 1;
        let added = new.paths.iter().zip(&reports);
        let added = added.map(|(path, d)| AddedDisk { path: path.clone(), disk: d.disk, capacity: d.capacity });
        let added: Vec<AddedDisk> = added.collect();
        for AddedDisk { path, disk, .. } in &added {
            tracing::info!(%disk, path = %path.display(), lane, "a disk was added");
        }
        self.control.begin_lane(lane, mailbox, reports);
        Ok(added)
    }
}
