//! What an administrator does to volumes while things break: snapshots, clones, rollbacks, deletions; and whether what came of it is
//! what was promised.
//!
//! A snapshot is checked as one read of the whole volume at one moment. That moment is not before the request for it, not before the
//! beginning of any write that is in it, and not after the moment when it was complete. So what was acknowledged before a write began that
//! is in it is in it too, over all shards (rule 17). A clone reads as its snapshot; a rollback writes what its snapshot holds,
//! and zeros where the volume has grown since.

use crate::content::SECTOR;
use crate::director::{Alarm, Director, Sim, VOLUME};
use crate::history::{End, History, Operation, What};
use crate::lane::{Attachment, Lane};
use crate::verdict::Failure;
use crate::workload::{Kind, Mood, Wish, Workload};
use conductor_model::SnapshotId;
use conductor_model::api::VolumeMap;
use conductor_model::views::{Attach, Detach, NewVolume, SnapshotState, VolumeState};
use driver::Span;
use sim::{ProcessId, Setup};
use std::cell::RefCell;
use std::rc::Rc;

/// Snapshots and clones at once: each keeps up to the volume's size on every disk.
const SNAPSHOTS: usize = 3;
const CLONES: usize = 2;
/// Per million: how many rollbacks are made of those drawn; each costs all clients their lives.
const ROLLBACK_PPM: u32 = 250_000;
/// Bytes of one read of a snapshot or a clone.
const PIECE: u64 = 128 << 10;

/// Everything, by name.
pub(crate) const WORKS: [&str; 6] =
    ["admin.snapshot", "admin.snapshot-delete", "admin.clone", "admin.clone-delete", "admin.flatten", "admin.rollback"];

/// A snapshot that was asked for.
struct Taken {
    name: String,
    asked: SnapshotId,
    /// When, by the history's clock.
    began: u64,
    /// When it was known to be complete.
    complete: Option<u64>,
    deleted: bool,
    /// Its content is needed to know what a rollback to it did.
    kept: bool,
}

/// A rollback to the snapshot of this index.
struct Rolled {
    to: usize,
    /// How large the volume was by then: what is beyond the snapshot's end is zeros.
    sectors: usize,
    began: u64,
    over: Option<u64>,
}

/// A clone of the snapshot of this index.
struct Branch {
    name: String,
    of: usize,
}

/// Somebody who reads the snapshot of this index, or a clone of it.
struct Reader {
    lane: ProcessId,
    of: usize,
    clone: Option<String>,
    map: VolumeMap,
    shared: Rc<RefCell<Workload>>,
}

/// All that was done.
#[derive(Default)]
pub(crate) struct Volumes {
    taken: Vec<Taken>,
    rolled: Vec<Rolled>,
    clones: Vec<Branch>,
    readers: Vec<Reader>,
    names: u32,
}

impl Volumes {
    fn complete(&self) -> Vec<usize> {
        (0..self.taken.len()).filter(|at| self.taken[*at].complete.is_some() && !self.taken[*at].deleted).collect()
    }

    fn name(&mut self, of: &str) -> String {
        self.names += 1;
        format!("{of}-{}", self.names)
    }

    /// Those who read snapshots and clones.
    pub(crate) fn readers(&self) -> impl Iterator<Item = ProcessId> {
        self.readers.iter().map(|reader| reader.lane)
    }

    /// Adds to the history what the readers have read, and what rollbacks did. `None` if not all of that is known.
    pub(crate) fn tell(&self, history: &mut History) -> Option<Result<(), Failure>> {
        let mut of: Vec<Option<Vec<u32>>> = vec![None; self.taken.len()];
        for reader in &self.readers {
            let values = reader.values()?;
            match &of[reader.of] {
                Some(other) if *other != values => {
                    let sector = other.iter().zip(&values).position(|(a, b)| a != b);
                    let name = &self.taken[reader.of].name;
                    let what = format!("{name} and its clones differ, first in sector {sector:?}");
                    return Some(Err(Failure::new(crate::verdict::Kind::WrongRead, what)));
                }
                _ => of[reader.of] = Some(values),
            }
        }
        for rolled in &self.rolled {
            let mut values = of[rolled.to].clone()?;
            values.resize(rolled.sectors, 0);
            let end = rolled.over.map_or(End::Open, End::Ok);
            history.add(What::Set(values), rolled.began, end);
        }
        for (taken, values) in self.taken.iter().zip(of) {
            let (Some(values), Some(complete)) = (values, taken.complete) else { continue };
            let began = |value: &u32| {
                let operation: Option<&Operation> = history.operations.get((*value as usize).checked_sub(1)?);
                operation.map(|operation| operation.began)
            };
            let newest = values.iter().filter_map(began).max().unwrap_or(0);
            history.add(What::Read(values), taken.began.max(newest), End::Ok(complete));
        }
        Some(Ok(()))
    }
}

impl Reader {
    /// All that it was to read, sector by sector.
    fn values(&self) -> Option<Vec<u32>> {
        let shared = self.shared.borrow();
        let mut pieces: Vec<&Operation> = shared.history.operations.iter().collect();
        pieces.sort_by_key(|operation| operation.first);
        let mut values = Vec::new();
        for piece in pieces {
            let What::Read(read) = &piece.what else { return None };
            if matches!(piece.end, End::Open) {
                return None;
            }
            values.extend(read);
        }
        (values.len() as u64 == self.map.size.0 / SECTOR as u64).then_some(values)
    }
}

impl Director {
    /// The next of them.
    pub(crate) fn administer(&mut self, w: &mut Sim) {
        if !self.faulty {
            return;
        }
        let which = self.rng.index(WORKS.len());
        if self.work_on_volumes(w, WORKS[which]) {
            self.count(WORKS[which], 1);
            w.tell(|| WORKS[which].to_owned());
        }
        let after = Span::millis(50 + self.rng.below(1_500));
        self.alarm(w, after, Alarm::Administer);
    }

    /// Does it, or says that it cannot be done now.
    fn work_on_volumes(&mut self, w: &mut Sim, what: &str) -> bool {
        if !self.service.is_up() {
            return false;
        }
        let complete = self.volumes.complete();
        let some = (!complete.is_empty()).then(|| complete[self.rng.index(complete.len())]);
        match (what, some) {
            ("admin.snapshot", _) => complete.len() < SNAPSHOTS && self.take_snapshot(w),
            ("admin.snapshot-delete", Some(at)) if !self.volumes.taken[at].kept => {
                let name = self.volumes.taken[at].name.clone();
                let now = self.now(w);
                let deleted = self.service.command(|m| m.delete_snapshot(now, VOLUME, &name)).is_ok();
                self.volumes.taken[at].deleted |= deleted;
                deleted
            }
            // Those that are being deleted are still in the stores, which hold so many copies and no more.
            ("admin.clone", Some(at)) if self.service.model().list(self.now(w)).len() <= CLONES => {
                let name = self.volumes.name("clone");
                let new = NewVolume::clone_of(&name, format!("{VOLUME}@{}", self.volumes.taken[at].name));
                let (now, rng) = (self.now(w), &mut self.rng);
                let made = self.service.command(|m| m.create(now, &new, &mut || rng.next_u64())).is_ok();
                if made {
                    self.volumes.clones.push(Branch { name, of: at });
                }
                made
            }
            ("admin.flatten" | "admin.clone-delete", _) if !self.volumes.clones.is_empty() => {
                let at = self.rng.index(self.volumes.clones.len());
                let (now, name) = (self.now(w), self.volumes.clones[at].name.clone());
                if what == "admin.flatten" {
                    return self.service.command(|m| m.flatten(now, &name)).is_ok();
                }
                let deleted = self.service.command(|m| m.delete(&name, true)).is_ok();
                if deleted {
                    self.volumes.clones.remove(at);
                }
                deleted
            }
            ("admin.rollback", Some(at)) if self.rng.chance(ROLLBACK_PPM) => self.roll_back(w, at),
            _ => false,
        }
    }

    fn take_snapshot(&mut self, w: &Sim) -> bool {
        let (now, name) = (self.now(w), self.volumes.name("snap"));
        let Ok(asked) = self.service.command(|m| m.create_snapshot(now, VOLUME, &name)) else { return false };
        let began = self.shared.borrow_mut().history.tick();
        self.volumes.taken.push(Taken { name, asked, began, complete: None, deleted: false, kept: false });
        true
    }

    /// Nobody may have the volume meanwhile: its clients die, and the next one waits until it is over.
    fn roll_back(&mut self, w: &mut Sim, to: usize) -> bool {
        let now = self.now(w);
        let Ok(detail) = self.service.model().show(now, VOLUME) else { return false };
        let name = self.volumes.taken[to].name.clone();
        let Ok(map) = self.service.model().snapshot_map(VOLUME, &name) else { return false };
        let in_the_way = self.attaching || self.volumes.taken.iter().any(|t| t.complete.is_none() && !t.deleted);
        if in_the_way || detail.info.rollback.is_some() {
            return false;
        }
        let size = detail.info.size;
        for client in 0..self.clients.len() {
            self.kill_client(w, client);
        }
        if let Some(held) = detail.info.attachment {
            let detach = Detach { client: held.client, generation: detail.info.attach };
            if let Err(error) = self.service.command(|m| m.detach(VOLUME, &detach)) {
                self.fail(format!("a detach was refused: {error}"));
            }
        }
        let began = self.shared.borrow_mut().history.tick();
        let begun = self.service.command(|m| m.rollback(now, VOLUME, &name)).is_ok();
        if begun {
            self.volumes.taken[to].kept = true;
            let sectors = usize::try_from(size.0).unwrap_or(usize::MAX) / SECTOR;
            self.volumes.rolled.push(Rolled { to, sectors, began, over: None });
            if size > map.size {
                self.count("rollback.grown", 1);
            }
        }
        let after = self.some_span(2_000);
        self.attach(w, after);
        begun
    }

    /// Notices what is over, as soon as the conductor knows.
    pub(crate) fn look_at_volumes(&mut self, w: &Sim) {
        let waits = |taken: &Taken| taken.complete.is_none() && !taken.deleted;
        let rolling = self.volumes.rolled.last().is_some_and(|rolled| rolled.over.is_none());
        if !self.service.is_up() || !(rolling || self.volumes.taken.iter().any(waits)) {
            return;
        }
        let (now, model) = (self.now(w), self.service.model());
        let mut shared = self.shared.borrow_mut();
        let mut counted = Vec::new();
        for taken in self.volumes.taken.iter_mut().filter(|taken| waits(taken)) {
            match model.snapshot_outcome(taken.asked) {
                None => {}
                Some(Ok(_)) => {
                    taken.complete = Some(shared.history.tick());
                    counted.push("snapshot.complete");
                }
                Some(Err(_)) => {
                    taken.deleted = true;
                    counted.push("snapshot.failed");
                }
            }
        }
        let over = model.show(now, VOLUME).is_ok_and(|detail| detail.info.rollback.is_none());
        if let Some(rolled) = self.volumes.rolled.last_mut().filter(|rolled| rolled.over.is_none() && over) {
            rolled.over = Some(shared.history.tick());
            counted.push("rollback.over");
        }
        drop(shared);
        for name in counted {
            self.count(name, 1);
        }
    }

    /// True if all that was begun is over: nothing is made, deleted, flattened or rolled back any more.
    pub(crate) fn volumes_rest(&self, w: &Sim) -> bool {
        let (now, model) = (self.now(w), self.service.model());
        let rests = model
            .list(now)
            .iter()
            .all(|volume| volume.state == VolumeState::Active && volume.rollback.is_none() && volume.flatten.is_none());
        let complete = |s: &conductor_model::views::SnapshotInfo| s.state == SnapshotState::Complete;
        rests && model.snapshot_list(VOLUME).is_ok_and(|all| all.iter().all(complete))
    }

    /// Has every snapshot and every clone read by somebody who does nothing else.
    pub(crate) fn read_snapshots(&mut self, w: &mut Sim, mood: &Mood) -> Result<(), String> {
        let now = self.now(w);
        let mut wanted = Vec::new();
        for at in self.volumes.complete() {
            let map = self.service.model().snapshot_map(VOLUME, &self.volumes.taken[at].name);
            wanted.push((at, None, map.map_err(|error| error.to_string())?));
        }
        for Branch { name, of } in &self.volumes.clones {
            let attach = Attach {
                client: "reader".to_owned(),
                read_only: true,
                shared: false,
                force: true,
                host: String::new(),
                resumes: None,
            };
            let map = self.service.command(|m| m.attach(now, name, &attach));
            wanted.push((*of, Some(name.clone()), map.map_err(|error| error.to_string())?));
        }
        for (of, clone, map) in wanted {
            self.count(if map.snapshot.is_some() { "snapshot.read" } else { "clone.read" }, 1);
            let mut workload = Workload::new(mood.clone(), 0);
            for offset in (0..map.size.0).step_by(usize::try_from(PIECE).unwrap_or(1)) {
                let len = PIECE.min(map.size.0 - offset);
                workload.script.push_back(Wish { kind: Kind::Read, offset, len });
            }
            let shared = Rc::new(RefCell::new(workload));
            let (name, process) = (format!("reader-{}", self.volumes.readers.len()), self.rng.next_u64());
            let attachment = Attachment { name: name.clone(), process, lane: 0, conn_depth: 16, map: map.clone() };
            let its = Rc::clone(&shared);
            let lane = w.spawn(Setup::named(name), move |birth| Lane::new(attachment.clone(), Rc::clone(&its), birth));
            w.mail_after(lane, Span(0), crate::mail::Mail::Lane(crate::mail::LaneMail::Wake));
            self.volumes.readers.push(Reader { lane, of, clone, map, shared });
        }
        Ok(())
    }

    /// The map, as it is now, of whoever reads something else than the volume.
    pub(crate) fn map_of(&self, lane: ProcessId) -> Option<VolumeMap> {
        let reader = self.volumes.readers.iter().find(|reader| reader.lane == lane)?;
        let model = self.service.model();
        let map = match &reader.clone {
            Some(name) => model.map(name),
            None => model.snapshot_map(VOLUME, &self.volumes.taken[reader.of].name),
        };
        map.inspect_err(|error| self.fail(format!("{lane:?} has no map any more: {error}"))).ok()
    }

    /// True if all that is to be read has been.
    pub(crate) fn snapshots_are_read(&self) -> bool {
        self.volumes.readers.iter().all(|reader| reader.values().is_some())
    }
}
