//! Attachment: who may use a volume, and the map that tells where.
//!
//! ```text
//!   free ──attach──▶ one writer                    one writer ──attach --read-only --force──▶ readers
//!   free ──attach --read-only──▶ readers           readers ──attach --force──▶ one writer
//!   free ──attach --shared──▶ sharers              …and so on: each of the three takes the place of another by --force alone
//! ```
//!
//! Every attach issues a generation, one higher than any before, that is persisted before the answer (rule 19). One client writes to a
//! volume at a time, or any number up to a limit read it, or as many write to it, each in ranges that it holds (the primaries see to that). The same client may attach again, to recover. Nodes refuse what is below the
//! volume's floor: a writer's own generation, or the oldest reader's. Readers above it are told apart by the list of those that are still
//! attached. Epochs are not touched: nodes hear of floor and list with their next heartbeat answer.

use crate::api::{Reachable, ReaderList, ShardPlace, VolumeMap};
use crate::events::Happened;
use crate::limits::{
    GENERATION_LEAP, MAX_CLIENT_NAME, MAX_HOST_NAME, MAX_NUMBER, MAX_READERS_PER_VOLUME, MAX_READERS_SHOWN,
};
use crate::nodes::is_plain;
use crate::record::VolumeRecord;
use crate::views::{Attach, Attachment, ClientVolume, Detach, Reader};
use crate::{AttachGeneration, Commit, Conductor, Dirty, Error, Key, Member, Millis, NodeId, VolumeId};
use std::collections::BTreeSet;

impl VolumeRecord {
    /// Sessions of older generations than this are over.
    pub(crate) fn floor(&self) -> AttachGeneration {
        self.readers.iter().map(|reader| reader.generation).min().unwrap_or(self.attach)
    }

    /// The readers that are attached, as nodes hear of them; `None` without any.
    pub(crate) fn reader_list(&self) -> Option<ReaderList> {
        let readers: Vec<AttachGeneration> = self.readers.iter().map(|reader| reader.generation).collect();
        (!readers.is_empty()).then_some(ReaderList { volume: self.id, upto: self.attach, readers })
    }

    /// How this client has it, if it does.
    pub(crate) fn held_by(&self, client: &str) -> Option<ClientVolume> {
        let of = |(read_only, shared), generation, since| ClientVolume {
            volume: self.name.clone(),
            read_only,
            shared,
            generation,
            since,
        };
        match &self.attachment {
            Some(held) => (held.client == client).then(|| of((false, false), self.attach, held.since)),
            None => self
                .readers
                .iter()
                .find(|r| r.client == client)
                .map(|r| of((!r.shared, r.shared), r.generation, r.since)),
        }
    }

    /// Who has it, in words.
    pub(crate) fn holder(&self) -> Option<String> {
        self.holder_but("")
    }

    /// Who else than `client` writes to it, in words.
    pub(crate) fn written_by_others(&self, client: &str) -> Option<String> {
        let writes = self.attachment.is_some() || self.readers.iter().any(|r| r.shared);
        writes.then(|| self.holder_but(client)).flatten()
    }

    /// Who else than `client` has it, in words.
    fn holder_but(&self, client: &str) -> Option<String> {
        let writer = self.attachment.as_ref().map(|held| &held.client).filter(|name| *name != client);
        if let Some(writer) = writer {
            return Some(writer.clone());
        }
        let names: Vec<&str> = self.readers.iter().map(|r| r.client.as_str()).filter(|name| *name != client).collect();
        let shown = names.iter().take(MAX_READERS_SHOWN).copied().collect::<Vec<_>>().join(", ");
        let how = if self.readers.iter().any(|r| r.shared) { "shared" } else { "read-only" };
        match names.len().saturating_sub(MAX_READERS_SHOWN) {
            _ if names.is_empty() => None,
            0 => Some(format!("{shown} ({how})")),
            more => Some(format!("{shown} and {more} more ({how})")),
        }
    }
}

impl VolumeRecord {
    /// The generation with which this client began to have it, if it does.
    fn first_of(&self, client: &str) -> Option<AttachGeneration> {
        let writer = self.attachment.iter().map(|held| (&held.client, held.first, self.attach));
        let mut all = writer.chain(self.readers.iter().map(|reader| (&reader.client, reader.first, reader.generation)));
        let (_, first, last) = all.find(|(name, ..)| *name == client)?;
        // Of an attachment that is older than this is only the last one known.
        Some(if first.0 == 0 { last } else { first })
    }
}

impl Conductor {
    /// Gives a volume to a client. Returns its map with the new generation.
    pub fn attach(&mut self, now: Millis, name: &str, attach: &Attach) -> Result<(VolumeMap, Dirty), Error> {
        self.check_trusted()?;
        let Attach { client, read_only, shared, force, host, resumes } = attach;
        if *read_only && *shared {
            return Err(Error::Invalid("a volume is attached read-only or shared, not both".to_owned()));
        }
        if !is_plain(client, MAX_CLIENT_NAME) {
            return Err(Error::Invalid(format!(
                "a client name is 1 to {MAX_CLIENT_NAME} printable characters without spaces"
            )));
        }
        if !host.is_empty() && !is_plain(host, MAX_HOST_NAME) {
            return Err(Error::Invalid(format!(
                "a host name is at most {MAX_HOST_NAME} printable characters without spaces"
            )));
        }
        let volume = self.volume(name)?;
        if volume.rollback.is_some() {
            return Err(Error::Busy { name: name.to_owned(), what: "is being rolled back" });
        }
        self.check_unchanging(now, volume)?;
        if *shared && !volume.durability.is_always() {
            // What a flush covers, and whom a loss is told, is known of one client alone (rule 18).
            return Err(Error::Invalid(format!(
                "volume {name} has durability=flush: one client writes to it at a time"
            )));
        }
        // Those of one kind are in nobody's way but others'.
        let joins = (*read_only || *shared)
            && volume.attachment.is_none()
            && volume.readers.iter().all(|r| r.shared == *shared || r.client == *client);
        let from = if joins { None } else { volume.holder_but(client) };
        if let Some(holder) = from.clone().filter(|_| !force) {
            return Err(Error::Attached { name: name.to_owned(), holder, way_out: "--force takes it away" });
        }
        if joins && volume.readers.iter().filter(|r| r.client != *client).count() >= MAX_READERS_PER_VOLUME {
            return Err(Error::Limit { what: "readers of a volume", limit: MAX_READERS_PER_VOLUME });
        }
        let first = match resumes {
            // What was resumed would be written over what others have written since.
            Some(last) => Some(
                volume
                    .first_of(client)
                    .filter(|first| first <= last)
                    .ok_or_else(|| Error::NotUnbroken { name: name.to_owned(), client: client.clone() })?,
            ),
            None => None,
        };
        let id = volume.id;
        let goes_on = volume.attachment.as_ref().is_some_and(|held| held.client == *client);
        let at = self.next_commit();
        let mut dirty = Dirty::default();
        let generation = self.next_generation(volume);
        let first = first.unwrap_or(generation);
        if let Some(volume) = self.volumes.get_mut(&id) {
            volume.attach = generation;
            if volume.taken_at == Commit(0) {
                volume.evicted.clear();
            }
            volume.evicted.remove(client);
            if from.is_some() {
                volume.taken_at = at;
            }
            if !read_only {
                volume.cancelled = None;
            }
            let (client, host) = (client.clone(), host.clone());
            if *read_only || *shared {
                volume.attachment = None;
                volume.readers.retain(|reader| reader.client != client && reader.shared == *shared);
                volume.readers.push(Reader { client, host, generation, shared: *shared, since: now, first });
            } else {
                // From whom it is taken may have clients who go on here: they are still to be told of a loss.
                if !goes_on && volume.attachment.is_none() {
                    volume.held_since = at;
                }
                volume.readers.clear();
                volume.attachment = Some(Attachment { client, host, since: now, first });
            }
        }
        self.tell_of_attachment(id, at, &mut dirty);
        let (volume, client, read_only, shared) = (name.to_owned(), client.clone(), *read_only, *shared);
        self.note(Happened::Attached { volume, client, generation, read_only, shared, from }, &mut dirty);
        let dirty = self.seal(dirty);
        Ok((self.map(name)?, dirty))
    }

    /// One that was issued before the state was lost, and never seen, is not issued again; nor is one that a state from the past does not
    /// know of and nobody can tell, as when all nodes were started anew with it: each process begins at the time of its start, so that two clients
    /// never have the same.
    pub(crate) fn next_generation(&self, volume: &VolumeRecord) -> AttachGeneration {
        let adopted = u64::from(self.meta.adoptions).saturating_mul(GENERATION_LEAP).min(MAX_NUMBER / 2);
        AttachGeneration((volume.attach.0 + 1).max(adopted + self.first_generation))
    }

    /// Every node with a copy hears who may use the volume now.
    fn tell_of_attachment(&mut self, id: VolumeId, at: Commit, dirty: &mut Dirty) {
        if let Some(volume) = self.volumes.get_mut(&id) {
            volume.attach_at = at;
            dirty.add(Key::Volume(id));
        }
        for node in self.nodes_of(id) {
            self.tell(node, at);
        }
    }

    /// Takes a volume back from a client. A repeat of the last detach is as good as the first.
    pub fn detach(&mut self, name: &str, detach: &Detach) -> Result<((), Dirty), Error> {
        self.check_trusted()?;
        let Detach { client, generation } = detach;
        let volume = self.volume(name)?;
        let id = volume.id;
        let newest = volume.attach == *generation && generation.0 > 0;
        let is_reader = |r: &Reader| r.generation == *generation && r.client == *client;
        let is_writer = volume.attachment.as_ref().is_some_and(|held| newest && held.client == *client);
        let mut dirty = Dirty::default();
        if !is_writer && !volume.readers.iter().any(is_reader) {
            return match newest && volume.holder().is_none() {
                true => Ok(((), dirty)),
                false => Err(Error::NotAttached { name: name.to_owned(), client: client.clone() }),
            };
        }
        if let Some(volume) = self.volumes.get_mut(&id) {
            volume.attachment = None;
            volume.readers.retain(|reader| !is_reader(reader));
            dirty.add(Key::Volume(id));
        }
        let what = Happened::Detached { volume: name.to_owned(), client: client.clone() };
        self.note(what, &mut dirty);
        Ok(((), self.seal(dirty)))
    }

    /// Ends all that a client has attached. Returns the volumes, of which nodes are to hear before it is certain
    /// ([`Self::may_serve_others`]): also those from which it was evicted before, if that is not certain yet, or is all that there is.
    pub fn evict(&mut self, client: &str) -> Result<(Vec<String>, Dirty), Error> {
        self.check_trusted()?;
        let before = self.volumes.values().filter(|volume| volume.evicted.contains(client));
        let before: Vec<(Commit, String)> = before.map(|volume| (volume.taken_at, volume.name.clone())).collect();
        let (at, mut dirty) = (self.next_commit(), Dirty::default());
        let mut names = self.end_attachments(&|name| name == client, at, &mut dirty);
        names.extend(before.iter().filter(|(taken_at, _)| *taken_at > Commit(0)).map(|(_, name)| name.clone()));
        if names.is_empty() {
            names.extend(before.into_iter().map(|(_, name)| name));
        }
        if names.is_empty() {
            return Err(Error::NoClient(client.to_owned()));
        }
        names.sort_unstable();
        names.dedup();
        Ok((names, self.seal(dirty)))
    }

    /// Ends all that these clients have attached. Returns the volumes, in no order.
    pub(crate) fn end_attachments(
        &mut self,
        whose: &dyn Fn(&str) -> bool,
        at: Commit,
        dirty: &mut Dirty,
    ) -> Vec<String> {
        let mut held: Vec<(VolumeId, String, ClientVolume)> = Vec::new();
        for volume in self.volumes.values() {
            let writer = volume.attachment.as_ref().map(|held| &held.client);
            let clients = writer.into_iter().chain(volume.readers.iter().map(|reader| &reader.client));
            let theirs = clients.filter(|client| whose(client));
            held.extend(theirs.filter_map(|client| Some((volume.id, client.clone(), volume.held_by(client)?))));
        }
        let mut names = Vec::new();
        for (id, client, ClientVolume { volume: name, generation, .. }) in held {
            let next = self.volumes.get(&id).map(|volume| self.next_generation(volume));
            if let Some((volume, next)) = self.volumes.get_mut(&id).zip(next) {
                volume.taken_at = at;
                volume.attachment = None;
                volume.readers.retain(|reader| reader.client != client);
                if volume.evicted.len() >= MAX_READERS_PER_VOLUME {
                    volume.evicted.pop_first();
                }
                volume.evicted.insert(client.clone());
                // Issued to nobody: what is left of the client is below it. Other readers go on above it without this one.
                if volume.readers.is_empty() {
                    volume.attach = next;
                }
            }
            self.tell_of_attachment(id, at, dirty);
            self.note(Happened::Evicted { volume: name.clone(), client, generation }, dirty);
            names.push(name);
        }
        names
    }

    /// Where a volume's shards are served.
    pub fn map(&self, name: &str) -> Result<VolumeMap, Error> {
        // A conductor in doubt does not say that there is none: whoever serves it would give it up.
        let volume = self.volume(name).map_err(|why| self.check_trusted().err().unwrap_or(why))?;
        let places = self.shards_of(volume.id).filter_map(|shard| {
            let primary = shard.config.primary_member()?;
            let today = self.disk(primary.node, primary.disk).map_or(primary.endpoint, |d| d.endpoint);
            Some(ShardPlace {
                index: shard.config.shard.index,
                epoch: shard.config.epoch,
                node: primary.node,
                endpoint: today,
                cache: shard.config.cache,
            })
        });
        let primaries = self.shards_of(volume.id).filter_map(|shard| shard.config.primary_member());
        let reachable = primaries.filter_map(|primary| self.disk(primary.node, primary.disk)?.reachable());
        let reachable: BTreeSet<Reachable> = reachable.collect();
        let VolumeRecord { id, name, size, shard_size, attach, held_since, durability, .. } = volume;
        Ok(VolumeMap {
            volume: *id,
            name: name.clone(),
            size: *size,
            shard_size: *shard_size,
            attach: *attach,
            ticket: None,
            snapshot: None,
            durability: *durability,
            held_since: *held_since,
            reachable: reachable.into_iter().collect(),
            shards: places.collect(),
        })
    }

    /// Primaries' nodes that have not confirmed the volume's newest generation yet: a forced attach takes effect when there
    /// are none (rule 19).
    pub fn unconfirmed(&self, now: Millis, name: &str) -> Result<Vec<NodeId>, Error> {
        let volume = self.volume(name)?;
        Ok(self.primaries_before(now, volume.id, volume.attach_at))
    }

    /// Primaries' nodes that may still serve somebody from whom the volume was taken: whoever attaches it afterwards, and takes it from nobody,
    /// waits for them as well.
    pub fn may_serve_others(&self, now: Millis, name: &str) -> Result<Vec<NodeId>, Error> {
        let volume = self.volume(name)?;
        match volume.taken_at {
            Commit(0) => Ok(Vec::new()),
            taken => Ok(self.primaries_before(now, volume.id, taken)),
        }
    }

    /// Nobody waits any more for what every primary has acted upon. That is persisted, for what a node acted upon is known of this process only:
    /// with a shard that is lost afterwards the volume would be nobody's after the next start. One that is given up and comes back all the same
    /// has to act upon it, too.
    pub(crate) fn forget_acted_upon(&mut self, dirty: &mut Dirty) {
        let since = |volume: &VolumeRecord| volume.taken_at.max(volume.given_up_at);
        let waits = self.volumes.values().filter(|volume| since(volume) > Commit(0));
        let over = waits.filter(|volume| self.unaware(volume.id, since(volume)).next().is_none());
        for id in over.map(|volume| volume.id).collect::<Vec<_>>() {
            if let Some(volume) = self.volumes.get_mut(&id) {
                (volume.taken_at, volume.given_up_at) = (Commit(0), Commit(0));
                dirty.add(Key::Volume(id));
            }
        }
    }

    /// What is put into a volume that is attached by nobody must not be written over by whoever had it before.
    pub(crate) fn check_nobody_is_left(&self, now: Millis, name: &str) -> Result<(), Error> {
        let nodes = self.may_serve_others(now, name)?;
        if nodes.is_empty() {
            return Ok(());
        }
        let nodes = nodes.iter().map(NodeId::to_string).collect::<Vec<_>>().join(", ");
        let why = format!("was taken from somebody whom {nodes} may still serve: try again when that is over");
        Err(Error::InUse { what: format!("volume {name}"), why })
    }

    /// Primaries' nodes of a volume that have not acted upon this transaction yet. Of one that is gone for good, as somebody has said, nobody
    /// waits to hear: a shard that is lost with it would keep the volume from everybody for ever.
    pub(crate) fn primaries_before(&self, now: Millis, volume: VolumeId, at: Commit) -> Vec<NodeId> {
        let nodes: BTreeSet<NodeId> =
            self.unaware(volume, at).filter(|m| !self.is_given_up(now, m)).map(|m| m.node).collect();
        nodes.into_iter().collect()
    }

    /// A volume's primaries whose nodes have not acted upon this transaction yet.
    fn unaware(&self, volume: VolumeId, at: Commit) -> impl Iterator<Item = &Member> {
        let primaries = self.shards_of(volume).filter_map(|shard| shard.config.primary_member());
        primaries.filter(move |m| self.presence.get(&m.node).is_none_or(|p| p.acted < at))
    }
}
