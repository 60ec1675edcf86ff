//! What the copies of a volume's first shard know of the volume: enough to know it again if the conductor's state is lost (rule 12).
//!
//! A card is part of that shard's configuration, so that it is as durable and as new as that: when it changes there is a new epoch. That
//! is done by `tick`, a moment after the change, and not in the middle of a snapshot. Its size is bounded: of many snapshots only the
//! newest have their names in it.

use crate::record::VolumeRecord;
use crate::views::{SnapshotState, VolumeState};
use crate::{Bytes, Commit, Conductor, Configuration, Dirty, Key, Millis, ShardId, ShardIndex, SnapshotId, VolumeId};
use serde::{Deserialize, Serialize};

/// Most bytes of a card as a store writes it: two records of copies fit a page with it. Some 35 snapshots with names of 12 characters,
/// 14 with the longest ones.
pub const MAX_CARD_BYTES: usize = 1400;

/// What is to be known of a volume beside its shards' configurations.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct VolumeCard {
    /// The transaction that wrote it: a card of a higher one is newer.
    pub version: Commit,
    /// The volume's name.
    pub name: String,
    /// Its size.
    pub size: Bytes,
    /// Size of every shard but perhaps the last.
    pub shard_size: Bytes,
    /// Copies of each shard.
    pub copies: u8,
    /// When it was created.
    pub created: Millis,
    /// What it is a clone of, until it is flattened.
    pub parent: Option<(VolumeId, SnapshotId)>,
    /// Its complete snapshots, newest first, as far as they fit.
    pub snapshots: Vec<SnapshotCard>,
    /// True if older ones did not fit.
    pub more: bool,
}

/// What is to be known of a snapshot.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SnapshotCard {
    /// Its id.
    pub id: SnapshotId,
    /// Its name.
    pub name: String,
    /// The volume's size at that time.
    pub size: Bytes,
    /// When it was asked for.
    pub created: Millis,
}

impl VolumeCard {
    /// Bytes as a store writes it: `version 8 | size 8 | shard size 8 | copies 1 | created 8 | parent 1 + 12 | more 1 | count 1 | name`,
    /// then `id 8 | size 8 | created 8 | name` for each snapshot; names with a byte for their length.
    pub fn bytes(&self) -> usize {
        let fixed = 8 + 8 + 8 + 1 + 8 + 13 + 1 + 1;
        fixed + 1 + self.name.len() + self.snapshots.iter().map(SnapshotCard::bytes).sum::<usize>()
    }
}

impl SnapshotCard {
    fn bytes(&self) -> usize {
        25 + self.name.len()
    }
}

impl Conductor {
    /// The volume as a card of this version.
    pub(crate) fn card_of(&self, volume: &VolumeRecord, version: Commit) -> VolumeCard {
        let mut card = VolumeCard {
            version,
            name: volume.name.clone(),
            size: volume.size,
            shard_size: volume.shard_size,
            copies: volume.copies,
            created: volume.created,
            parent: volume.parent.map(|p| (p.volume, p.snapshot)),
            snapshots: Vec::new(),
            more: false,
        };
        let mut room = MAX_CARD_BYTES.saturating_sub(card.bytes());
        let complete: Vec<_> = self.snapshots_of(volume.id).filter(|s| s.state == SnapshotState::Complete).collect();
        for record in complete.into_iter().rev() {
            let snapshot =
                SnapshotCard { id: record.id, name: record.name.clone(), size: record.size, created: record.created };
            match room.checked_sub(snapshot.bytes()) {
                Some(rest) => room = rest,
                None => {
                    card.more = true;
                    break;
                }
            }
            card.snapshots.push(snapshot);
        }
        card
    }

    /// Volumes that changed may have cards that do not say so.
    pub(crate) fn suspect_cards(&mut self, dirty: &Dirty) {
        self.stale_cards.extend(dirty.keys().filter_map(|key| match key {
            Key::Volume(volume) | Key::Snapshot(volume, _) => Some(volume),
            _ => None,
        }));
    }

    /// Gives first shards whose card is outdated a new one, with a new epoch; those that are busy, later.
    pub(crate) fn renew_cards(&mut self, dirty: &mut Dirty) {
        let (mut later, mut renewed) = (std::collections::BTreeSet::new(), Vec::new());
        for volume in std::mem::take(&mut self.stale_cards) {
            let first = ShardId { volume, index: ShardIndex(0) };
            let active = self.volumes.get(&volume).filter(|v| v.state == VolumeState::Active);
            let Some((record, shard)) = active.zip(self.shards.get(&first)) else { continue };
            let next = self.card_of(record, self.next_commit());
            let here = shard.config.card.as_deref();
            if here.is_some_and(|card| VolumeCard { version: card.version, ..next.clone() } == *card) {
                continue;
            }
            // A barrier does not outlive its epoch; whatever else its primary is at goes on in the next one. And a card does not speak of
            // shards that may not exist.
            let settled = self.shards_of(volume).all(|s| s.config.born && s.distrusted.is_none());
            let changing = shard.changed_at == self.next_commit();
            if changing || !settled || self.creates_snapshot(volume) {
                later.insert(volume);
                continue;
            }
            renewed.push(Configuration { card: Some(Box::new(next)), ..shard.config.clone() });
        }
        self.stale_cards = later;
        for config in renewed {
            self.advance(config, dirty);
        }
    }
}
