//! Keys of clients: which volumes each is for. Their secrets are not here: they follow from the cluster's key and from what is.
//!
//! Nodes are told the serials of all keys there are, and the newest one that was given out: a serial above that is of a key that they have
//! not heard of yet, one below it that is not named belongs to a key that was removed. So what they have to know does not grow with what
//! was removed, and one that missed a word errs on the safe side.
//!
//! A key is renewed by a new one of the same name; the former holds for a while beside it, and nodes cannot tell them apart but by serial.

use crate::api::KeyList;
use crate::events::Happened;
use crate::limits::{
    MAX_CLIENT_KEYS, MAX_FORMER_KEYS, MAX_KEY_GRACE_MS, MAX_KEY_NAME, MAX_KEY_VOLUMES, MAX_READERS_PER_KEY,
};
use crate::record::ClientKeyRecord;
use crate::views::{Attach, FormerKey, KeyInfo, KeyVolume, NewKey, Reader, RotateKey};
use crate::{Commit, Conductor, Dirty, Error, Key, Millis, NodeId, VolumeId};
use std::collections::BTreeSet;

/// A key that was renewed.
#[derive(Clone, Debug)]
pub struct Rotated {
    /// The new one.
    pub key: KeyInfo,
    /// The volumes that it is for.
    pub volumes: Vec<VolumeId>,
    /// What nodes are to hear of before a former key that was removed is certain to be one no more ([`Conductor::unconfirmed_since`]).
    pub at: Commit,
}

impl Conductor {
    /// Makes a key for volumes that there are.
    pub fn add_key(&mut self, now: Millis, new: &NewKey) -> Result<(KeyInfo, Dirty), Error> {
        self.check_trusted()?;
        self.date_events(now);
        let NewKey { name, volumes, read_only } = new;
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
        if !(1..=MAX_KEY_NAME).contains(&name.len()) || !name.bytes().all(plain) {
            let why = format!("the name of a client's key is 1 to {MAX_KEY_NAME} letters, digits or -_.");
            return Err(Error::Invalid(why));
        }
        if self.keys.values().any(|key| key.name == *name) {
            return Err(Error::KeyExists(name.clone()));
        }
        if self.keys.len() >= MAX_CLIENT_KEYS {
            return Err(Error::Limit { what: "keys of clients", limit: MAX_CLIENT_KEYS });
        }
        if volumes.is_empty() || volumes.len() > MAX_KEY_VOLUMES {
            return Err(Error::Invalid(format!("a client's key is for 1 to {MAX_KEY_VOLUMES} volumes")));
        }
        let ids = volumes.iter().map(|volume| Ok(self.volume(volume)?.id)).collect::<Result<BTreeSet<_>, Error>>()?;
        let mut dirty = Dirty::default();
        let (name, read_only) = (name.clone(), *read_only);
        self.note(Happened::KeyAdded { name: name.clone(), read_only }, &mut dirty);
        let key = ClientKeyRecord { name, serial: 0, volumes: ids, read_only, added: now, until: None };
        let info = self.give_out(key, &mut dirty);
        Ok((info, self.seal(dirty)))
    }

    /// Makes a new key in the place of one, which holds for so long yet, and no former one of that name for longer: whoever renews a key
    /// because one leaked does not know which. If for no time at all they are removed, and what is attached with them cut off, though
    /// nobody loses his attachment, which is in the key's name.
    pub fn rotate_key(&mut self, now: Millis, rotate: &RotateKey) -> Result<(Rotated, Dirty), Error> {
        self.check_trusted()?;
        self.date_events(now);
        let RotateKey { name, grace_ms } = rotate;
        if *grace_ms > MAX_KEY_GRACE_MS {
            let most = MAX_KEY_GRACE_MS / 86_400_000;
            return Err(Error::Invalid(format!("a former key holds for {most} days at most")));
        }
        let current = self.keys.values().find(|key| key.name == *name && key.until.is_none());
        let former = current.cloned().ok_or_else(|| Error::NoKey(name.clone()))?;
        let until = Millis(now.0 + grace_ms);
        // Those that there are once this is the current one no more.
        let formers: Vec<u64> = self.keys.values().filter(|key| key.name == *name).map(|key| key.serial).collect();
        if *grace_ms > 0 && formers.len() > MAX_FORMER_KEYS {
            return Err(Error::Limit { what: "former keys of a name", limit: MAX_FORMER_KEYS });
        }
        if *grace_ms > 0 && self.keys.len() >= MAX_CLIENT_KEYS {
            return Err(Error::Limit { what: "keys of clients", limit: MAX_CLIENT_KEYS });
        }
        let mut dirty = Dirty::default();
        for serial in formers {
            dirty.add(Key::ClientKey(serial));
            if *grace_ms == 0 {
                self.keys.remove(&serial);
            } else if let Some(key) = self.keys.get_mut(&serial) {
                key.until = Some(key.until.map_or(until, |end| end.min(until)));
            }
        }
        self.note(Happened::KeyRotated { name: name.clone(), grace_ms: *grace_ms }, &mut dirty);
        let volumes = former.volumes.iter().copied().collect();
        let at = self.next_commit();
        let key = self.give_out(ClientKeyRecord { added: now, ..former }, &mut dirty);
        Ok((Rotated { key, volumes, at }, self.seal(dirty)))
    }

    /// Under the next serial.
    fn give_out(&mut self, key: ClientKeyRecord, dirty: &mut Dirty) -> KeyInfo {
        let serial = self.meta.last_key + 1;
        let key = ClientKeyRecord { serial, ..key };
        self.meta.last_key = serial;
        dirty.add(Key::ClientKey(serial));
        self.keys.insert(serial, key.clone());
        self.tell_of_keys();
        self.key_info(&key)
    }

    /// Former keys whose time is over are none any more. Nor is one that would hold for longer than any may: it was renewed by a clock that was
    /// ahead, or this one is behind, and who renewed it may have known that it leaked.
    pub(crate) fn expire_keys(&mut self, now: Millis, dirty: &mut Dirty) {
        let is_over = |until: Millis| until <= now || until.since(now) > MAX_KEY_GRACE_MS;
        let over = self.keys.values().filter(|key| key.until.is_some_and(is_over));
        let over: Vec<(u64, String)> = over.map(|key| (key.serial, key.name.clone())).collect();
        for (serial, name) in &over {
            self.keys.remove(serial);
            dirty.add(Key::ClientKey(*serial));
            self.note(Happened::FormerKeyEnded { name: name.clone() }, dirty);
        }
        if !over.is_empty() {
            self.tell_of_keys();
        }
    }

    /// When the next one ends.
    pub(crate) fn next_key_end(&self) -> Option<Millis> {
        self.keys.values().filter_map(|key| key.until).min()
    }

    /// Removes a key, with those that it came in the place of, and ends all that was attached with it. Returns the volumes that it was for, and the transaction that nodes are to
    /// hear of before it is certain ([`Self::unconfirmed_since`]).
    pub fn remove_key(&mut self, now: Millis, name: &str) -> Result<((Vec<VolumeId>, Commit), Dirty), Error> {
        self.check_trusted()?;
        self.date_events(now);
        let named = || self.keys.values().filter(|key| key.name == name);
        let volumes = named().next().ok_or_else(|| Error::NoKey(name.to_owned()))?.volumes.iter().copied().collect();
        let serials: Vec<u64> = named().map(|key| key.serial).collect();
        let mut dirty = Dirty::default();
        for serial in serials {
            self.keys.remove(&serial);
            dirty.add(Key::ClientKey(serial));
        }
        let at = self.next_commit();
        let prefix = format!("{name}@");
        self.end_attachments(&|client| client.starts_with(&prefix), at, &mut dirty);
        self.note(Happened::KeyRemoved { name: name.to_owned() }, &mut dirty);
        self.tell_of_keys();
        Ok(((volumes, at), self.seal(dirty)))
    }

    /// Every node hears which keys there are now.
    fn tell_of_keys(&mut self) {
        let at = self.next_commit();
        self.meta.keys_at = at;
        let all: Vec<NodeId> = self.nodes.keys().copied().collect();
        all.into_iter().for_each(|node| self.tell(node, at));
    }

    /// Whether whoever shows a key of this name and serial may use a volume.
    pub fn permit(&self, name: &str, serial: u64, volume: &str) -> Result<(), Error> {
        let key = self.keys.get(&serial).filter(|key| key.name == name);
        let Some(key) = key else {
            // Whose state is from the past knows nothing of keys that were added since.
            self.check_trusted()?;
            if serial > self.meta.last_key {
                return Err(Error::KeyUnknown(name.to_owned()));
            }
            return Err(Error::KeyRemoved(name.to_owned()));
        };
        // Of a volume that there is not, no more is said than of one that it is not for.
        match self.names.get(volume).is_some_and(|id| key.volumes.contains(id)) {
            true => Ok(()),
            false => Err(Error::KeyOfOthers { name: name.to_owned(), volume: volume.to_owned() }),
        }
    }

    /// The same of whoever knows which volume has had the name: that one of its own is gone is no secret.
    pub fn permit_known(&self, name: &str, serial: u64, volume: &str, known: Option<VolumeId>) -> Result<(), Error> {
        let refused = match self.permit(name, serial, volume) {
            Err(refused @ Error::KeyOfOthers { .. }) => refused,
            permitted => return permitted,
        };
        let was_its = |id: &VolumeId| self.keys.get(&serial).is_some_and(|key| key.volumes.contains(id));
        match known.filter(was_its) {
            Some(id) if !self.names.values().any(|named| *named == id) => {
                self.check_trusted()?;
                Err(Error::NoVolume(volume.to_owned()))
            }
            _ => Err(refused),
        }
    }

    /// Whether whoever shows such a key may attach a volume so, whatever force he uses. One that is for reading alone takes nothing from who writes; and
    /// none has so many of a volume's readers that there is no room for others'.
    pub fn permit_attach(&self, name: &str, serial: u64, volume: &str, attach: &Attach) -> Result<(), Error> {
        self.permit(name, serial, volume)?;
        let Attach { client, shared, .. } = attach;
        let record = self.volume(volume)?;
        let (key, volume) = (name.to_owned(), volume.to_owned());
        if self.keys.get(&serial).is_some_and(|key| key.read_only)
            && let Some(holder) = record.written_by_others(client)
        {
            return Err(Error::WriterStays { key, volume, holder });
        }
        if !attach.read_only && !shared {
            return Ok(()); // it ends the readers, and is none
        }
        let prefix = format!("{name}@");
        let own = |r: &&Reader| r.client.starts_with(&prefix) && r.client != *client && r.shared == *shared;
        match record.readers.iter().filter(own).count() >= MAX_READERS_PER_KEY {
            true => Err(Error::Limit { what: "readers of a volume with one key", limit: MAX_READERS_PER_KEY }),
            false => Ok(()),
        }
    }

    pub(crate) fn key_info(&self, key: &ClientKeyRecord) -> KeyInfo {
        let named = |id: &VolumeId| self.names.iter().find(|(_, known)| *known == id).map(|(name, _)| name.clone());
        let volumes = key.volumes.iter().map(|id| KeyVolume { id: *id, name: named(id) }).collect();
        let ClientKeyRecord { name, serial, read_only, added, .. } = key;
        let former = self.keys.values().filter(|key| key.name == *name);
        let former = former
            .filter_map(|key| Some(FormerKey { serial: key.serial, until: key.until?, used_by: BTreeSet::new() }))
            .collect();
        KeyInfo { name: name.clone(), serial: *serial, volumes, read_only: *read_only, added: *added, former }
    }

    /// What a node that acted upon `after` has to hear of keys.
    pub(crate) fn keys_since(&self, after: Commit) -> Option<KeyList> {
        let list = || KeyList { upto: self.meta.last_key, valid: self.keys.keys().copied().collect() };
        (self.meta.keys_at > after).then(list)
    }

    /// Primaries' nodes of these volumes that have not acted upon this transaction yet.
    pub fn unconfirmed_since(&self, now: Millis, volumes: &[VolumeId], at: Commit) -> BTreeSet<NodeId> {
        volumes.iter().flat_map(|volume| self.primaries_before(now, *volume, at)).collect()
    }
}
