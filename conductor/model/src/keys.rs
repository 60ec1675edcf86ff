//! Keys of clients: which volumes each is for. Their secrets are not here: they follow from the cluster's key and from what is.
//!
//! Nodes are told the serials of all keys there are, and the newest one that was given out: a serial above that is of a key that they have
//! not heard of yet, one below it that is not named belongs to a key that was removed. So what they have to know does not grow with what
//! was removed, and one that missed a word errs on the safe side.

use crate::api::KeyList;
use crate::events::Happened;
use crate::limits::{MAX_CLIENT_KEYS, MAX_KEY_NAME, MAX_KEY_VOLUMES};
use crate::record::ClientKeyRecord;
use crate::views::{KeyInfo, KeyVolume, NewKey};
use crate::{Commit, Conductor, Dirty, Error, Key, Millis, NodeId, VolumeId};
use std::collections::BTreeSet;

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
        let serial = self.meta.last_key + 1;
        let key = ClientKeyRecord { name: name.clone(), serial, volumes: ids, read_only: *read_only, added: now };
        let mut dirty = Dirty::default();
        self.meta.last_key = serial;
        dirty.add(Key::ClientKey(serial));
        self.keys.insert(serial, key.clone());
        self.note(Happened::KeyAdded { name: name.clone(), read_only: *read_only }, &mut dirty);
        self.tell_of_keys();
        let dirty = self.seal(dirty);
        Ok((self.key_info(&key), dirty))
    }

    /// Removes a key, and ends all that was attached with it. Returns the volumes that it was for, and the transaction that nodes are to
    /// hear of before it is certain ([`Self::unconfirmed_since`]).
    pub fn remove_key(&mut self, now: Millis, name: &str) -> Result<((Vec<VolumeId>, Commit), Dirty), Error> {
        self.check_trusted()?;
        self.date_events(now);
        let key = self.keys.values().find(|key| key.name == name).ok_or_else(|| Error::NoKey(name.to_owned()))?;
        let (serial, volumes) = (key.serial, key.volumes.iter().copied().collect());
        let mut dirty = Dirty::default();
        self.keys.remove(&serial);
        dirty.add(Key::ClientKey(serial));
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
        let key = key.ok_or_else(|| Error::KeyRemoved(name.to_owned()))?;
        // Of a volume that there is not, no more is said than of one that it is not for.
        match self.names.get(volume).is_some_and(|id| key.volumes.contains(id)) {
            true => Ok(()),
            false => Err(Error::KeyOfOthers { name: name.to_owned(), volume: volume.to_owned() }),
        }
    }

    /// Whether there is this key.
    pub fn has_key(&self, name: &str, serial: u64) -> bool {
        self.keys.get(&serial).is_some_and(|key| key.name == name)
    }

    /// All keys, by name.
    pub fn key_list(&self) -> Vec<KeyInfo> {
        let mut all: Vec<KeyInfo> = self.keys.values().map(|key| self.key_info(key)).collect();
        all.sort_by(|a, b| a.name.cmp(&b.name));
        all
    }

    pub(crate) fn key_info(&self, key: &ClientKeyRecord) -> KeyInfo {
        let named = |id: &VolumeId| self.names.iter().find(|(_, known)| *known == id).map(|(name, _)| name.clone());
        let volumes = key.volumes.iter().map(|id| KeyVolume { id: *id, name: named(id) }).collect();
        let ClientKeyRecord { name, serial, read_only, added, .. } = key;
        KeyInfo { name: name.clone(), serial: *serial, volumes, read_only: *read_only, added: *added }
    }

    /// What a node that acted upon `after` has to hear of keys.
    pub(crate) fn keys_since(&self, after: Commit) -> Option<KeyList> {
        let list = || KeyList { upto: self.meta.last_key, valid: self.keys.keys().copied().collect() };
        (self.meta.keys_at > after).then(list)
    }

    /// Primaries' nodes of these volumes that have not acted upon this transaction yet.
    pub fn unconfirmed_since(&self, volumes: &[VolumeId], at: Commit) -> BTreeSet<NodeId> {
        volumes.iter().flat_map(|volume| self.primaries_before(*volume, at)).collect()
    }
}
