//! What every lane's volume client is made of, whatever front end it serves.

use crate::error::TargetError;
use crate::limits::{CONN_DEPTH, SAY_EVERY};
use conductor_model::api::VolumeMap;
use driver::Span;
use memory::Arena;
use std::hash::{BuildHasher, RandomState};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tls::{Failure, Identity, Layer, LayerOptions, Trust};
use volume_client::{ClientOptions, Pace, Range, Transport, Unfenced, Unflushed, VolumeClient, Word};
use wire::Key;

/// What a target holds of a volume that it shares.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Shared {
    /// These ranges.
    pub ranges: Vec<Range>,
    /// How long each is waited for.
    pub wait: Duration,
}

/// Whether NBD clients speak TLS, and what they are shown.
#[derive(Clone, Debug)]
pub enum NbdTls {
    /// None does.
    Off,
    /// Whoever asks for it does.
    Optional(Identity),
    /// All do; nobody is served in clear.
    Required {
        /// What they are shown, and by what they are known.
        identity: Identity,
        /// They are not known: whoever speaks TLS is served.
        any_client: bool,
    },
}

impl NbdTls {
    pub(crate) fn identity(&self) -> Option<&Identity> {
        match self {
            Self::Off => None,
            Self::Optional(identity) | Self::Required { identity, .. } => Some(identity),
        }
    }
}

impl From<&NbdTls> for nbd_session::Tls {
    fn from(tls: &NbdTls) -> Self {
        match tls {
            NbdTls::Off => Self::Off,
            NbdTls::Optional(_) => Self::Optional,
            NbdTls::Required { .. } => Self::Required,
        }
    }
}

/// One attachment, as its lanes need to know it. Crosses to their threads.
#[derive(Clone)]
pub(crate) struct Setup {
    pub(crate) map: VolumeMap,
    /// Of the volume, or of its snapshot.
    pub(crate) name: String,
    pub(crate) client_name: String,
    /// Random per process life.
    pub(crate) process: u64,
    pub(crate) key: Key,
    pub(crate) read_only: bool,
    /// The volume is shared: what is to be held of it.
    pub(crate) shared: Option<Shared>,
    pub(crate) io_timeout: Option<Span>,
    pub(crate) depth: Option<u16>,
    pub(crate) transport: Transport,
    /// Whose nodes are trusted, where the cluster speaks TLS.
    pub(crate) trust: Option<Trust>,
    /// One for all lanes, new with each life of the target: a flush from any queue covers what all of them have written.
    pub(crate) unflushed: Arc<Unflushed>,
    /// Likewise: what has failed on one queue must not overwrite what another one writes behind it.
    pub(crate) unfenced: Arc<Unfenced>,
    /// One for all lanes, if what they ask for is limited.
    pub(crate) pace: Option<Arc<Pace>>,
}

impl Setup {
    /// The front end's user has to flush: acknowledged writes may be lost by a crash until then. Never so of a snapshot.
    pub(crate) fn write_back(&self) -> bool {
        !self.map.durability.is_always() && self.map.snapshot.is_none()
    }

    /// A volume client for one lane, on the thread that calls.
    pub(crate) fn client(&self, lane: u16, depth: u16, arena: &Arena) -> Result<VolumeClient, TargetError> {
        let options = ClientOptions {
            name: self.client_name.clone(),
            process: self.process,
            attach: self.map.attach,
            lane,
            read_only: self.read_only,
            io_timeout: self.io_timeout,
            depth,
            conn_depth: CONN_DEPTH,
            card: self.key.card().cloned(),
            transport: self.transport,
            secrets: Rc::new(self.key.clone()),
            random: Box::new(random),
        };
        let client = VolumeClient::new(options, &self.map, arena.clone())?;
        let client = client.sharing(&self.unflushed).beside(&self.unfenced).paced(self.pace.as_ref());
        Ok(match &self.shared {
            Some(Shared { ranges, wait }) => client.holding(ranges, span(*wait))?,
            None => client,
        })
    }
}

/// A duration as machines count.
pub(crate) fn span(time: Duration) -> Span {
    Span(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
}

impl Setup {
    /// What a lane's connections to nodes are encrypted with, where they are, and its clients', where they ask for it.
    pub(crate) fn tls(&self, clients: Option<&Identity>, arena: &Arena) -> Result<Option<Layer>, TargetError> {
        if self.trust.is_none() && clients.is_none() {
            return Ok(None);
        }
        let mut said: [Option<Instant>; 2] = [None; 2];
        let options = LayerOptions {
            identity: None,
            on_request: clients.cloned(),
            trust: self.trust,
            in_clear: Vec::new(),
            report: Box::new(move |to, why| {
                let said = &mut said[usize::from(to.is_some())];
                if said.is_some_and(|said| said.elapsed() <= SAY_EVERY) {
                    return;
                }
                *said = Some(Instant::now());
                match (to, why) {
                    (Some(to), why) => tracing::warn!(?to, %why, "no connection to a node"),
                    (None, Failure::Untrusted(why)) => {
                        tracing::warn!(%why, "an NBD client's certificate is not of those that are trusted: see --tls-certs");
                    }
                    (None, Failure::Broken(why)) => tracing::warn!(%why, "an NBD client came no further than TLS"),
                    (None, _) => tracing::warn!("an NBD client asked for TLS, and did not go on with it"),
                }
            }),
        };
        Ok(Some(Layer::new(options, arena.clone())?))
    }
}

/// What a lane has to say to people.
pub(crate) fn say(word: &Word) {
    match word {
        Word::Detour(detour) => tracing::warn!("{detour}"),
        Word::Waits(wait) => {
            let seconds = wait.longest.0 / 1_000_000_000;
            tracing::warn!(shard = %wait.shard, seconds, requests = wait.parts, "requests wait: {}", wait.reason);
        }
        Word::GoesOn => tracing::info!("no request waits any more"),
        Word::Fenced => {
            tracing::warn!("fenced: the volume was attached elsewhere, or deleted; every request fails from now on");
        }
    }
}

/// A random number. Where the system has none left, the hasher's keys, which came from it, still make unlike ones.
pub(crate) fn random() -> u64 {
    getrandom::u64().unwrap_or_else(|_| RandomState::new().hash_one(0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use conductor_model::{AttachGeneration, Bytes, Durability, SnapshotId, VolumeId};

    #[test]
    fn only_a_flush_volume_itself_is_served_with_a_write_cache() {
        let setup = |durability, snapshot| Setup {
            map: VolumeMap {
                volume: VolumeId(1),
                name: "db".into(),
                size: Bytes(0),
                shard_size: Bytes(1 << 20),
                attach: AttachGeneration(1),
                ticket: None,
                snapshot,
                durability,
                held_since: conductor_model::Commit(0),
                reachable: Vec::new(),
                shards: Vec::new(),
            },
            name: "db".into(),
            client_name: "host/db".into(),
            process: 1,
            key: Key::Cluster(wire::ClusterKey([1; 32])),
            read_only: false,
            shared: None,
            io_timeout: None,
            depth: None,
            transport: Transport::Tcp,
            trust: None,
            unflushed: Arc::default(),
            unfenced: Arc::default(),
            pace: None,
        };
        assert!(setup(Durability::Flush, None).write_back());
        assert!(!setup(Durability::Always, None).write_back());
        assert!(!setup(Durability::Flush, Some(SnapshotId(1))).write_back());
    }
}
