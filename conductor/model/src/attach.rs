//! Attachment: who may use a volume, and the map that tells where.
//!
//! Every attach issues a generation, one higher than any before, that is persisted before the answer; nodes refuse lower
//! ones (rule 19). One client holds a volume at a time; the same client may attach again, to recover. Epochs are not
//! touched: nodes hear of the generation with their next heartbeat answer.

use crate::api::{ShardPlace, VolumeMap};
use crate::events::Happened;
use crate::limits::MAX_CLIENT_NAME;
use crate::nodes::is_plain;
use crate::record::VolumeRecord;
use crate::views::{Attach, Attachment, Detach};
use crate::{AttachGeneration, Commit, Conductor, Dirty, Error, Key, Millis, NodeId, VolumeId};

impl Conductor {
    /// Gives a volume to a client. Returns its map with the new generation.
    pub fn attach(&mut self, now: Millis, name: &str, attach: &Attach) -> Result<(VolumeMap, Dirty), Error> {
        let Attach { client, read_only, force } = attach;
        if !is_plain(client, MAX_CLIENT_NAME) {
            return Err(Error::Invalid(format!(
                "a client name is 1 to {MAX_CLIENT_NAME} printable characters without spaces"
            )));
        }
        let volume = self.volume(name)?;
        if volume.rollback.is_some() {
            return Err(Error::Busy { name: name.to_owned(), what: "is being rolled back" });
        }
        if self.is_copied_into(volume.id) {
            return Err(Error::Busy { name: name.to_owned(), what: "is being copied into" });
        }
        let holder = volume.attachment.as_ref().filter(|held| held.client != *client);
        if let Some(holder) = holder.filter(|_| !force) {
            return Err(Error::Attached { name: name.to_owned(), holder: holder.client.clone() });
        }
        let (id, from) = (volume.id, holder.map(|held| held.client.clone()));
        let at = self.next_commit();
        let mut dirty = Dirty::default();
        let generation = AttachGeneration(volume.attach.0 + 1);
        if let Some(volume) = self.volumes.get_mut(&id) {
            volume.attach = generation;
            volume.attach_at = at;
            volume.attachment = Some(Attachment { client: client.clone(), read_only: *read_only, since: now });
            dirty.add(Key::Volume(id));
        }
        for node in self.nodes_of(id) {
            self.tell(node, at);
        }
        let what = Happened::Attached { volume: name.to_owned(), client: client.clone(), generation, from };
        self.note(what, &mut dirty);
        let dirty = self.seal(dirty);
        Ok((self.map(name)?, dirty))
    }

    /// Takes a volume back from a client. A repeat of the last detach is as good as the first.
    pub fn detach(&mut self, name: &str, detach: &Detach) -> Result<((), Dirty), Error> {
        let volume = self.volume(name)?;
        let id = volume.id;
        let refused = Error::NotAttached { name: name.to_owned(), client: detach.client.clone() };
        let mut dirty = Dirty::default();
        match &volume.attachment {
            _ if volume.attach != detach.generation || volume.attach.0 == 0 => return Err(refused),
            Some(held) if held.client != detach.client => return Err(refused),
            None => return Ok(((), dirty)),
            Some(_) => {}
        }
        if let Some(volume) = self.volumes.get_mut(&id) {
            volume.attachment = None;
            dirty.add(Key::Volume(id));
        }
        let what = Happened::Detached { volume: name.to_owned(), client: detach.client.clone() };
        self.note(what, &mut dirty);
        Ok(((), self.seal(dirty)))
    }

    /// Where a volume's shards are served.
    pub fn map(&self, name: &str) -> Result<VolumeMap, Error> {
        let volume = self.volume(name)?;
        let places = self.shards_of(volume.id).filter_map(|shard| {
            let primary = shard.config.primary_member()?;
            let today = self.disk(primary.node, primary.disk).map_or(primary.endpoint, |d| d.endpoint);
            Some(ShardPlace {
                index: shard.config.shard.index,
                epoch: shard.config.epoch,
                node: primary.node,
                endpoint: today,
            })
        });
        let VolumeRecord { id, name, size, shard_size, attach, durability, .. } = volume;
        Ok(VolumeMap {
            volume: *id,
            name: name.clone(),
            size: *size,
            shard_size: *shard_size,
            attach: *attach,
            snapshot: None,
            durability: *durability,
            shards: places.collect(),
        })
    }

    /// Primaries' nodes that have not confirmed the volume's newest generation yet: a forced attach takes effect when there
    /// are none (rule 19).
    pub fn unconfirmed(&self, name: &str) -> Result<Vec<NodeId>, Error> {
        let volume = self.volume(name)?;
        Ok(self.primaries_before(volume.id, volume.attach_at))
    }

    /// Primaries' nodes of a volume that have not acted upon this transaction yet.
    pub(crate) fn primaries_before(&self, volume: VolumeId, at: Commit) -> Vec<NodeId> {
        let mut nodes: Vec<NodeId> =
            self.shards_of(volume).filter_map(|s| Some(s.config.primary_member()?.node)).collect();
        nodes.sort_unstable();
        nodes.dedup();
        nodes.retain(|node| self.presence.get(node).is_none_or(|p| p.acted < at));
        nodes
    }
}
