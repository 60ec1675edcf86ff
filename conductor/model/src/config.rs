//! A shard's configuration: who holds its copies in one epoch, and which of them is primary.
//!
//! Decided by the conductor, persisted there before anybody is told, carried to the copies by Join alone (rule 20), and
//! persisted by each copy before it answers that Join (rule 12).

use crate::card::VolumeCard;
use crate::limits::{MAX_NUMBER, MAX_SHARD, MAX_VOLUME};
use crate::{
    AttachGeneration, BLOCK, BlockRange, Blocks, Bytes, Commit, CopyId, DiskId, Epoch, NodeId, OpenId, ShardId,
    SnapshotId,
};
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;

/// What a member's copy counts as.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CopyState {
    /// Holds every acknowledged write.
    InSync,
    /// Is being filled; never read from, never promoted.
    Syncing,
    /// Takes no part in the epoch: it failed, or was never filled. Listed, because the volume wants a copy there: the primary brings it
    /// back when it is reached (rule 12: placement is a wish to the primary), and tombstones are kept for it (rule 7).
    Absent,
}

/// One copy of the shard in one epoch.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Member {
    /// The copy's own name.
    pub copy: CopyId,
    /// The node that serves it.
    pub node: NodeId,
    /// The disk that holds it.
    pub disk: DiskId,
    /// The opening of that disk's store that this epoch is valid for (rule 2).
    pub open: OpenId,
    /// Whether it holds every acknowledged write.
    pub state: CopyState,
    /// The first epoch that counted it as in sync under this opening: what a flush volume acknowledged and did not sync in an earlier one
    /// it may have lost (rule 18). Zero: nothing is in doubt.
    #[serde(default)]
    pub since: Epoch,
    /// Its disk was found to be in a state from the past: until it is in sync again nothing that it holds counts, and it is filled with everything.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub past: bool,
    /// Where the reactor that owns the disk listens. Not part of the identity: an address may change under one epoch.
    pub endpoint: SocketAddr,
}

/// The configuration of one shard in one epoch.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Configuration {
    /// The shard.
    pub shard: ShardId,
    /// Its version; only higher ones replace it.
    pub epoch: Epoch,
    /// The member that orders writes.
    pub primary: CopyId,
    /// All listed copies, the primary among them; those that are absent take no part.
    pub members: Vec<Member>,
    /// The copies of the last epoch that had at least `min_copies` (rule 11).
    pub full_set: Vec<CopyId>,
    /// Fewest in-sync copies that may acknowledge a write.
    pub min_copies: u8,
    /// The volume's attach generation when this was decided (rule 19).
    pub attach: AttachGeneration,
    /// Size of the shard. A whole number of blocks; the last shard of a volume may be smaller than the others.
    pub size: Bytes,
    /// False until the primary has confirmed that every copy was created: only such a Join may create an empty copy. A
    /// copy that is missing later is lost, never silently empty.
    pub born: bool,
    /// What the shard began as, where it is a clone's: a snapshot of this other shard, whose copies lie on the same disks (rule 16).
    /// `None` once it is flattened.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<ShardSnapshot>,
    /// When a write may be acknowledged.
    #[serde(default, skip_serializing_if = "Durability::is_always")]
    pub durability: Durability,
    /// In a volume's first shard: what is to be known of the volume (rule 12).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub card: Option<Box<VolumeCard>>,
    /// The cache generation: when the shard was last begun without any copy that had kept what was acknowledged and not flushed (rule 18).
    #[serde(default)]
    pub cache: Commit,
}

/// When a write may be acknowledged (rule 18).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Durability {
    /// When it is durable on every in-sync copy: a flush has nothing to do.
    #[default]
    Always,
    /// When every in-sync copy has executed it: it is durable with the next flush, or with a write that asks for it (FUA).
    Flush,
}

impl Durability {
    /// True for the default.
    pub fn is_always(&self) -> bool {
        *self == Self::Always
    }
}

/// One shard as it was at a snapshot.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct ShardSnapshot {
    /// The shard.
    pub shard: ShardId,
    /// The snapshot.
    pub snapshot: SnapshotId,
}

impl Configuration {
    /// False if no conductor can have given it out: numbers near the end of 64 bits, behind which there is no next one, or the card of a volume
    /// that cannot be. What a node does not keep, it is not refused for later.
    pub fn is_credible(&self) -> bool {
        let card = self.card.as_ref();
        let snapshots = card.into_iter().flat_map(|card| &card.snapshots).map(|s| s.id.0);
        let others = self.parent.map(|p| p.snapshot.0).into_iter().chain(card.map(|card| card.version.0));
        let members = self.members.iter().map(|m| m.since.0);
        let own = [self.epoch.0, self.attach.0, self.cache.0];
        let odd = |card: &VolumeCard| card.shard_size.0 == 0 || card.shard_size > MAX_SHARD || card.size > MAX_VOLUME;
        snapshots.chain(others).chain(members).chain(own).all(|number| number <= MAX_NUMBER)
            && card.is_none_or(|card| !odd(card))
    }

    /// The member with this copy id.
    pub fn member(&self, copy: CopyId) -> Option<&Member> {
        self.members.iter().find(|m| m.copy == copy)
    }

    /// Is this copy listed as one that is filled?
    pub fn is_syncing(&self, copy: CopyId) -> bool {
        self.member(copy).is_some_and(|m| m.state == CopyState::Syncing)
    }

    /// Its size, as every node has checked before it kept it: at most 2^32 - 1 blocks.
    pub fn blocks(&self) -> Blocks {
        Blocks(u32::try_from(self.size.0 / BLOCK as u64).unwrap_or(u32::MAX))
    }

    /// Do these blocks lie within the shard?
    pub fn contains(&self, at: BlockRange) -> bool {
        at.end() * BLOCK as u64 <= self.size.0
    }

    /// The primary's entry; `None` only in a malformed configuration.
    pub fn primary_member(&self) -> Option<&Member> {
        self.member(self.primary)
    }

    /// Members that hold every acknowledged write.
    pub fn in_sync_members(&self) -> impl Iterator<Item = &Member> {
        self.members.iter().filter(|m| m.state == CopyState::InSync)
    }

    /// How many members hold every acknowledged write.
    pub fn in_sync(&self) -> usize {
        self.in_sync_members().count()
    }

    /// Too few copies to acknowledge anything: the epoch stamps nothing (rule 11).
    pub fn is_sealed(&self) -> bool {
        self.in_sync() < usize::from(self.min_copies)
    }
}
