//! One copy on this reactor, as any primary sees it: which epoch it has joined, and which stamps it has begun.
//!
//! ```text
//!   not joined ──Join──► draining ──► persisting ──► listing ──answer──► joined
//!        ▲                  ▲                                              │
//!        └── (opened anew)  └───────────── Join of a newer epoch ◄─────────┘
//! ```
//!
//! From the moment a Join begins, writes of older epochs are refused; those already handed to the disk finish before the answer
//! (rule 6). Membership lives in this memory only (rule 2). Each stamp begins once: a repeat waits for the first or is answered from
//! its result, and what lies at or below the floor is done (rule 5).

use crate::change::Change;
use crate::limits::{DROPPED_KEPT, WINDOW};
use conductor_model::api::CopyWork;
use conductor_model::{BlockRange, Bytes, Configuration, CopyId, CopyState, Epoch, Sequence, SnapshotId, Stamp};
use driver::Time;
use node_protocol::Status;
use node_store::View;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use tcp::Answer;

/// A reactor of another process: it makes and renews promises with this one by itself.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Caller {
    pub(crate) process: u64,
    pub(crate) lane: u16,
}

/// Who asked for a Join, and therefore gets its answer.
#[derive(Debug)]
pub(crate) enum Asker {
    /// The primary on this very reactor.
    Local,
    /// A primary elsewhere: its connection's reactor is the only one whose writes are taken afterwards.
    Remote(Answer, Caller),
}

/// A Join under way.
#[derive(Debug)]
pub(crate) struct Joining {
    pub(crate) config: Configuration,
    pub(crate) asker: Asker,
    pub(crate) step: JoinStep,
    /// Another primary holds a promise for this copy: whose, and until when it binds (rule 13).
    pub(crate) bound: Option<Bound>,
}

/// A promise that a Join waits for. It is not renewed for this shard: its holder is told so with each answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Bound {
    pub(crate) to: Caller,
    pub(crate) until: Time,
}

/// How far a Join has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum JoinStep {
    /// A promise to another primary, or the time after a start, does not permit it yet (rules 13, 14, 20).
    Parked,
    /// Writes handed to the disk are finishing.
    Draining,
    /// The configuration is being stored.
    Persisting,
    /// K and what lies above it are being listed.
    Listing,
}

/// What is known of a stamp.
#[derive(Debug)]
pub(crate) enum Begun {
    /// Handed to the disk; this waits for it.
    Running(Option<Answer>),
    /// Finished so.
    Finished(Status),
}

/// What to do with a replica write.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Admission {
    /// Hand it to the disk.
    Begin,
    /// A repeat: waits for the first.
    Wait,
    /// A repeat, or below the floor: this is its answer.
    Answer(Status),
}

/// One copy.
#[derive(Debug)]
pub(crate) struct Replica {
    pub(crate) disk: usize,
    pub(crate) copy: CopyId,
    /// The newest configuration that is stored on disk.
    pub(crate) config: Configuration,
    /// The epoch of the one that was stored there before.
    pub(crate) stored_before: Epoch,
    /// The epoch whose writes are taken, and the reactor that may send them (`None`: the primary on this one).
    pub(crate) joined: Option<(Epoch, Option<Caller>)>,
    /// The newest epoch whose primary is known to be elsewhere: none up to it is taken up here, however late the word of it comes.
    pub(crate) superseded: Epoch,
    /// Who has been promised, under the epoch joined last, that no other primary is followed.
    pub(crate) promised_to: Option<Caller>,
    pub(crate) joining: Option<Joining>,
    /// Its store has it: found there, or created.
    pub(crate) exists: bool,
    /// Writes handed to the disk and not finished, of any epoch.
    pub(crate) in_disk: u32,
    /// Reads handed to the disk and not finished.
    pub(crate) reading: u32,
    /// Blocks that the store looks at or repairs for somebody's question, or reads for a primary that is none any more, each look with
    /// its number: no write begins there.
    pub(crate) busy: Vec<(u64, BlockRange, View)>,
    /// Configurations handed to the disk and not finished: one at a time.
    pub(crate) persisting: u32,
    /// Of the operations in the disk, those that change nothing.
    pub(crate) flushes: BTreeSet<Stamp>,
    /// A snapshot or rollback is in the disk, under this stamp: no change may be beside it.
    pub(crate) alone: Option<Stamp>,
    /// Work of this copy that is in the disk.
    pub(crate) working: BTreeSet<CopyWork>,
    /// Reads of each snapshot that are in the disk: it is not dropped beside them.
    pub(crate) snapshot_reads: BTreeMap<SnapshotId, u32>,
    /// Snapshots that were dropped, the latest of them: a barrier that comes late does not bring one back.
    dropped: VecDeque<SnapshotId>,
    /// K as last told.
    pub(crate) known_good: Stamp,
    begun: BTreeMap<u64, Begun>,
    floor: u64,
}

impl Replica {
    /// A copy found on disk, or just created: it has joined nothing.
    pub(crate) fn new(disk: usize, copy: CopyId, config: Configuration) -> Self {
        Self {
            disk,
            copy,
            stored_before: config.epoch,
            config,
            joined: None,
            superseded: Epoch(0),
            promised_to: None,
            joining: None,
            exists: false,
            in_disk: 0,
            reading: 0,
            busy: Vec::new(),
            persisting: 0,
            flushes: BTreeSet::new(),
            alone: None,
            working: BTreeSet::new(),
            snapshot_reads: BTreeMap::new(),
            dropped: VecDeque::new(),
            known_good: Stamp::default(),
            begun: BTreeMap::new(),
            floor: 0,
        }
    }

    /// The newest epoch that it knows of: only older ones are refused for good.
    pub(crate) fn epoch(&self) -> Epoch {
        let joined = self.joined.map_or(Epoch(0), |(epoch, _)| epoch);
        let joining = self.joining.as_ref().map_or(Epoch(0), |j| j.config.epoch);
        self.config.epoch.max(joined).max(joining)
    }

    /// Does the store look at some of these blocks, or repair them?
    pub(crate) fn is_busy(&self, at: BlockRange) -> bool {
        self.busy.iter().any(|(_, busy, _)| busy.overlaps(at))
    }

    /// Is it being filled in the epoch that it has joined? Its K stands still then (rule 4).
    pub(crate) fn is_syncing(&self) -> bool {
        self.config.is_syncing(self.copy)
    }

    /// Does it have all that it should, as far as it knows? It has joined an epoch that counts it as in sync.
    pub(crate) fn is_whole(&self) -> bool {
        let counted = self.config.member(self.copy).is_some_and(|m| m.state == CopyState::InSync);
        self.joined.is_some() && counted
    }

    /// Its size.
    pub(crate) fn size(&self) -> Bytes {
        self.config.size
    }

    /// May `caller` write under `epoch`? Else the status to refuse with.
    pub(crate) fn permits(&self, epoch: Epoch, caller: Caller) -> Result<(), Status> {
        match self.joined {
            _ if self.joining.is_some() => {
                Err(if epoch < self.epoch() { Status::StaleEpoch } else { Status::NotJoined })
            }
            Some((joined, Some(by))) if joined == epoch && by == caller => Ok(()),
            _ if epoch < self.epoch() => Err(Status::StaleEpoch),
            _ => Err(Status::NotJoined),
        }
    }

    /// The duplicate filter: what to do with `sequence` of the joined epoch.
    pub(crate) fn admit(&mut self, sequence: Sequence, floor: Option<Sequence>) -> Admission {
        if let Some(floor) = floor
            && floor.0 > self.floor
            && floor < sequence
        {
            self.floor = floor.0;
            while let Some(oldest) = self.begun.first_entry().filter(|oldest| *oldest.key() <= floor.0) {
                oldest.remove();
            }
        }
        if driver::mutant::on("no_duplicate_filter") {
            return Admission::Begin;
        }
        if sequence.0 <= self.floor {
            return Admission::Answer(Status::Ok);
        }
        if sequence.0 - self.floor > WINDOW {
            return Admission::Answer(Status::BadRequest);
        }
        match self.begun.get(&sequence.0) {
            Some(Begun::Finished(status)) => Admission::Answer(*status),
            Some(Begun::Running(_)) => Admission::Wait,
            None => Admission::Begin,
        }
    }

    /// May a change of these blocks be handed to the disk now, beside what is there?
    pub(crate) fn bears(&self, change: &Change, at: BlockRange) -> bool {
        let others = self.in_disk as usize > self.flushes.len();
        self.alone.is_none() && !(change.is_alone() && others) && !self.is_busy(at)
    }

    /// May content be put there now that is no change of its own: what is filled, or put right? Not beside a snapshot or a rollback.
    pub(crate) fn bears_content(&self, at: BlockRange) -> bool {
        self.alone.is_none() && !self.is_busy(at)
    }

    /// A change is handed to the disk.
    pub(crate) fn enters_disk(&mut self, stamp: Stamp, change: &Change) {
        self.in_disk += 1;
        match change {
            Change::Flush => drop(self.flushes.insert(stamp)),
            change if change.is_alone() => self.alone = Some(stamp),
            _ => {}
        }
    }

    /// A snapshot is, or is about to be, forgotten: it is never made again.
    pub(crate) fn forget_snapshot(&mut self, snapshot: SnapshotId) {
        self.dropped.retain(|other| *other != snapshot);
        self.dropped.push_back(snapshot);
        if self.dropped.len() > DROPPED_KEPT {
            self.dropped.pop_front();
        }
    }

    /// Was it dropped?
    pub(crate) fn has_dropped(&self, snapshot: SnapshotId) -> bool {
        self.dropped.contains(&snapshot)
    }

    /// Does the store read this snapshot for anybody?
    pub(crate) fn is_read(&self, snapshot: SnapshotId) -> bool {
        let looks = self.busy.iter().any(|(_, _, view)| *view == View::Snapshot(snapshot));
        looks || self.snapshot_reads.contains_key(&snapshot)
    }

    /// A read of this content is handed to the disk.
    pub(crate) fn read_begins(&mut self, view: View) {
        self.reading += 1;
        if let View::Snapshot(snapshot) = view {
            *self.snapshot_reads.entry(snapshot).or_default() += 1;
        }
    }

    /// A read of this content is out of the disk again.
    pub(crate) fn read_is_over(&mut self, view: View) {
        self.reading -= 1;
        if let View::Snapshot(snapshot) = view
            && let Some(left) = self.snapshot_reads.get_mut(&snapshot)
        {
            *left -= 1;
            if *left == 0 {
                self.snapshot_reads.remove(&snapshot);
            }
        }
    }

    /// Nothing of it is in the disk.
    pub(crate) fn is_quiet(&self) -> bool {
        self.in_disk == 0
            && self.reading == 0
            && self.persisting == 0
            && self.working.is_empty()
            && self.busy.is_empty()
    }

    /// Someone waits for a stamp that is, or is about to be, handed to the disk.
    pub(crate) fn wait_for(&mut self, sequence: Sequence, answer: Answer) {
        match self.begun.entry(sequence.0).or_insert(Begun::Running(None)) {
            // Only the newest is waited for: the connections of the others were closed when its own was admitted.
            Begun::Running(waiting) => *waiting = Some(answer),
            Begun::Finished(_) => debug_assert!(false, "answered at once, not made to wait"),
        }
    }

    /// The disk is done with a stamp of `stamp.epoch`: who waits for it. Only success is remembered: a repeat of what was refused
    /// tries again.
    pub(crate) fn finished(&mut self, stamp: Stamp, status: Status) -> Option<Answer> {
        self.left_disk(stamp);
        if self.joined.is_none_or(|(epoch, _)| epoch != stamp.epoch) {
            return None;
        }
        let sequence = stamp.sequence.0;
        let found = if status == Status::Ok && sequence > self.floor {
            self.begun.insert(sequence, Begun::Finished(status))
        } else {
            self.begun.remove(&sequence)
        };
        match found {
            Some(Begun::Running(waiting)) => waiting,
            _ => None,
        }
    }

    /// A stamped operation is out of the disk again.
    pub(crate) fn left_disk(&mut self, stamp: Stamp) {
        self.in_disk -= 1;
        self.flushes.remove(&stamp);
        if self.alone == Some(stamp) {
            self.alone = None;
        }
    }

    /// Starts to join: older epochs are refused from now on. What waited for stamps of the old epoch is returned, to be refused.
    pub(crate) fn start_joining(
        &mut self,
        config: Configuration,
        asker: Asker,
        step: JoinStep,
        bound: Option<Bound>,
    ) -> Vec<Answer> {
        self.joining = Some(Joining { config, asker, step, bound });
        self.joined = None;
        self.floor = 0;
        let begun = std::mem::take(&mut self.begun);
        begun
            .into_values()
            .flat_map(|b| match b {
                Begun::Running(waiting) => waiting,
                Begun::Finished(_) => None,
            })
            .collect()
    }

    /// Has `config` another primary than the epoch that it joined last? Then a promise given under that one may bind it against `config`.
    pub(crate) fn other_primary(&self, config: &Configuration) -> bool {
        self.config.primary != config.primary
    }

    /// Is a Join kept until a promise to another primary is over?
    pub(crate) fn parked(&self) -> bool {
        self.joining.as_ref().is_some_and(|j| j.step == JoinStep::Parked)
    }
}

/// Until when this reactor may not join any epoch: it does not know what the process before it promised (rule 14).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Quarantine {
    pub(crate) until: Time,
}

impl Quarantine {
    pub(crate) fn is_over(self, now: Time) -> bool {
        now >= self.until
    }
}
