//! Who uses volumes, as the conductor knows it: what it has given out, and the sessions that nodes have told of.
//!
//! Sessions are not persisted, and some seconds old: nodes tell of them as they count. Nothing is decided by them but that whoever renames a
//! volume hears of those who read its snapshots.

use crate::api::{NodeSession, NodeSessions};
use crate::limits::{MAX_CLIENT_NAME, MAX_SESSIONS_PER_NODE, SESSIONS_SHOWN_MS};
use crate::views::{ClientInfo, ClientSession, SnapshotState};
use crate::{Conductor, Error, Millis, NodeId, SnapshotId, VolumeId};
use std::collections::{BTreeMap, BTreeSet};

impl Conductor {
    /// A node tells of the sessions it has.
    pub fn hear_sessions(&mut self, now: Millis, said: &NodeSessions) -> Result<(), Error> {
        if !self.nodes.contains_key(&said.node) {
            return Err(Error::UnknownNode(said.node));
        }
        let named = said.sessions.iter().filter(|session| session.client.len() <= MAX_CLIENT_NAME);
        let sessions = named.take(MAX_SESSIONS_PER_NODE).cloned().collect();
        self.presence.entry(said.node).or_default().sessions = (now, sessions);
        Ok(())
    }

    /// All clients that have a volume attached, or are heard to read a snapshot, and all keys, by name. What a node told of that is silent
    /// since is left out: nobody knows what it serves, and it may well be nothing.
    pub fn clients(&self, now: Millis) -> Vec<ClientInfo> {
        let mut all: BTreeMap<&str, ClientInfo> = BTreeMap::new();
        let new = |name: &str, host: &str| ClientInfo {
            name: name.to_owned(),
            host: host.to_owned(),
            volumes: Vec::new(),
            sessions: Vec::new(),
            key: None,
        };
        for volume in self.volumes.values() {
            let writer = volume.attachment.as_ref().map(|held| (&held.client, &held.host));
            let readers = volume.readers.iter().map(|reader| (&reader.client, &reader.host));
            for (name, host) in writer.into_iter().chain(readers) {
                all.entry(name).or_insert_with(|| new(name, host)).volumes.extend(volume.held_by(name));
            }
        }
        let mut of_former: BTreeMap<u64, BTreeSet<String>> = BTreeMap::new();
        for (node, heard, session) in self.sessions(now) {
            let NodeSession { client, generation, read_only, key, ranges, connections, requests, .. } = session;
            let Some(of) = self.session_of(session) else { continue };
            let former_until = key.and_then(|key| self.keys.get(&key)?.until);
            if let Some(key) = key.filter(|_| former_until.is_some()) {
                of_former.entry(key).or_default().insert(client.clone());
            }
            all.entry(client).or_insert_with(|| new(client, "")).sessions.push(ClientSession {
                node,
                of,
                generation: *generation,
                read_only: *read_only,
                key: *key,
                former_until,
                ranges: ranges.clone(),
                connections: *connections,
                requests: *requests,
                heard,
            });
        }
        for key in self.keys.values().filter(|key| key.until.is_none()) {
            let mut info = self.key_info(key);
            for former in &mut info.former {
                former.used_by = of_former.remove(&former.serial).unwrap_or_default();
            }
            all.entry(&key.name).or_insert_with(|| new(&key.name, "")).key = Some(info);
        }
        let mut all: Vec<ClientInfo> = all.into_values().collect();
        all.iter_mut().for_each(|client| client.volumes.sort_by(|a, b| a.volume.cmp(&b.volume)));
        all
    }

    /// The sessions that nodes have told of which are heard, and when.
    fn sessions(&self, now: Millis) -> impl Iterator<Item = (NodeId, Millis, &NodeSession)> {
        let lately = self.presence.iter().filter(move |(_, presence)| {
            let told = presence.sessions.0;
            now.since(presence.heard.map_or(told, |beat| beat.max(told))) < SESSIONS_SHOWN_MS
        });
        lately.flat_map(|(node, p)| p.sessions.1.iter().map(|session| (*node, p.sessions.0, session)))
    }

    /// Somebody who is heard to read a snapshot of the volume: `web1 reads db@monday`.
    pub(crate) fn snapshot_reader(&self, now: Millis, volume: VolumeId) -> Option<String> {
        let mut sessions = self.sessions(now).filter(|(_, _, session)| session.volume == volume);
        let there = |id: &SnapshotId| {
            self.snapshots.get(&(volume, *id)).is_some_and(|snapshot| snapshot.state == SnapshotState::Complete)
        };
        let reads = |session: &NodeSession| Some((session.client.clone(), session.snapshot.filter(there)?));
        let (client, snapshot) = sessions.find_map(|(.., session)| reads(session))?;
        Some(format!("{client} reads {}", self.snapshot_name(volume, snapshot)))
    }

    /// What a session uses: a snapshot, or a volume as it is attached now. `None` if that is over since it was told of.
    fn session_of(&self, session: &NodeSession) -> Option<String> {
        let volume = self.volumes.get(&session.volume)?;
        match session.snapshot {
            Some(snapshot) => Some(self.snapshot_name(volume.id, snapshot)),
            None => {
                let held = volume.held_by(&session.client)?;
                (held.generation == session.generation).then(|| volume.name.clone())
            }
        }
    }
}
