//! Where each shard is served, as far as this client knows: the newest epoch of each shard out of all maps seen.
//!
//! Maps can arrive in any order (several places ask for them), so each shard only ever moves to an epoch that is not older.

use crate::ClientError;
use crate::iocb::Lost;
use conductor_model::api::VolumeMap;
use conductor_model::{Bytes, Commit, Epoch, ShardId, ShardIndex, SnapshotId, VolumeId};
use std::collections::BTreeMap;
use std::net::SocketAddr;

/// Where one shard is served.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Place {
    pub(crate) epoch: Epoch,
    pub(crate) endpoint: SocketAddr,
    /// The shard's cache generation.
    pub(crate) cache: Commit,
}

/// All of them.
#[derive(Debug)]
pub(crate) struct Routes {
    pub(crate) volume: VolumeId,
    /// Which of its views it is: the live content, or a snapshot.
    snapshot: Option<SnapshotId>,
    pub(crate) size: Bytes,
    pub(crate) shard_size: Bytes,
    places: Vec<Place>,
    /// How many of them are at each endpoint.
    crowds: BTreeMap<SocketAddr, usize>,
    /// By shard: the newest epoch under which a request was done. Its primary had settled by then what was before it.
    served: Vec<Epoch>,
}

/// What a new map brought.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct News {
    /// Shards with a newer epoch or another endpoint.
    pub(crate) moved: usize,
    /// Shards whose entry was older than what is known.
    pub(crate) stale: usize,
    /// The volume grew.
    pub(crate) grew: bool,
    /// The map was smaller than the volume: its size was ignored. Volumes never shrink on line.
    pub(crate) shrunk: bool,
}

impl Routes {
    pub(crate) fn new(map: &VolumeMap) -> Result<Self, ClientError> {
        check(map)?;
        let mut routes = Self {
            volume: map.volume,
            snapshot: map.snapshot,
            size: Bytes(0),
            shard_size: map.shard_size,
            places: Vec::new(),
            crowds: BTreeMap::new(),
            served: Vec::new(),
        };
        routes.update(map)?;
        Ok(routes)
    }

    /// Takes over what is newer in `map`.
    pub(crate) fn update(&mut self, map: &VolumeMap) -> Result<News, ClientError> {
        check(map)?;
        if map.volume != self.volume || map.shard_size != self.shard_size {
            return Err(ClientError::Map(map.volume, "it is another volume's, or has another shard size"));
        }
        if map.snapshot != self.snapshot {
            return Err(ClientError::Map(map.volume, "it is of another snapshot"));
        }
        let mut news = News { grew: map.size > self.size, shrunk: map.size < self.size, ..News::default() };
        self.size = self.size.max(map.size);
        for (index, shard) in map.shards.iter().enumerate() {
            let place = Place { epoch: shard.epoch, endpoint: shard.endpoint, cache: shard.cache };
            match self.places.get_mut(index) {
                None => {
                    self.places.push(place);
                    self.served.push(Epoch::default());
                }
                Some(known) if place.epoch < known.epoch => news.stale += 1,
                // The same epoch at another endpoint: the primary's process was replaced (its store is opened under an exclusive
                // lock, so the old one is gone).
                Some(known) if *known != place => {
                    *known = place;
                    news.moved += 1;
                }
                Some(_) => {}
            }
        }
        if news.moved > 0 || news.grew {
            self.crowds.clear();
            self.places.iter().for_each(|place| *self.crowds.entry(place.endpoint).or_default() += 1);
        }
        Ok(news)
    }

    /// The primary of a shard says which epoch it serves in: one that follows the one which is known, where no map has told it (the conductor
    /// may be gone, or have lost it). What another node says counts for nothing.
    pub(crate) fn learn(&mut self, shard: ShardIndex, place: Place) -> bool {
        let known = self.places.get_mut(shard.0 as usize);
        let follows = |known: &&mut Place| place.endpoint == known.endpoint && place.epoch > known.epoch;
        known.filter(follows).map(|known| *known = place).is_some()
    }

    /// All shards, as far as this lane knows.
    pub(crate) fn shards(&self) -> impl Iterator<Item = ShardIndex> + use<> {
        (0..self.places.len()).filter_map(|at| u32::try_from(at).ok()).map(ShardIndex)
    }

    /// The place of a shard within the volume; `None` beyond its end.
    pub(crate) fn place(&self, shard: ShardIndex) -> Option<Place> {
        self.places.get(shard.0 as usize).copied()
    }

    /// A request was done under that epoch.
    pub(crate) fn served(&mut self, shard: ShardIndex, epoch: Epoch) {
        if let Some(served) = self.served.get_mut(shard.0 as usize) {
            *served = epoch.max(*served);
        }
    }

    /// True if what was lost can take effect no more: the shard was served under a newer epoch, or another process has taken up the
    /// same store (see `update`).
    pub(crate) fn is_past(&self, shard: ShardIndex, lost: Lost) -> bool {
        let served = self.served.get(shard.0 as usize).is_some_and(|served| *served > lost.epoch);
        served || self.place(shard).is_some_and(|place| place.epoch == lost.epoch && place.endpoint != lost.endpoint)
    }

    pub(crate) fn id(&self, index: ShardIndex) -> ShardId {
        ShardId { volume: self.volume, index }
    }

    pub(crate) fn uses(&self, endpoint: SocketAddr) -> bool {
        self.crowds.contains_key(&endpoint)
    }

    /// True if several shards are served there.
    pub(crate) fn is_shared(&self, endpoint: SocketAddr) -> bool {
        self.crowds.get(&endpoint).is_some_and(|shards| *shards > 1)
    }
}

fn check(map: &VolumeMap) -> Result<(), ClientError> {
    let bad = |what| Err(ClientError::Map(map.volume, what));
    if map.shard_size.0 == 0 || !map.shard_size.is_block_aligned() || !map.size.is_block_aligned() {
        return bad("its sizes are not whole blocks");
    }
    if map.shards.len() as u64 != map.size.0.div_ceil(map.shard_size.0) {
        return bad("its shards do not cover its size");
    }
    if map.shards.iter().enumerate().any(|(at, shard)| shard.index.0 as usize != at) {
        return bad("its shards are not in order");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::map;

    #[test]
    fn an_older_epoch_never_replaces_a_newer_one() {
        let mut routes = Routes::new(&map(&[(5, 1), (5, 2)])).unwrap();
        let news = routes.update(&map(&[(4, 9), (6, 3)])).unwrap();
        assert_eq!((news.moved, news.stale), (1, 1));
        assert_eq!(routes.place(ShardIndex(0)).unwrap().endpoint.port(), 1);
        assert_eq!(routes.place(ShardIndex(1)).unwrap().endpoint.port(), 3);
    }

    #[test]
    fn a_volume_grows_and_never_shrinks() {
        let mut routes = Routes::new(&map(&[(1, 1)])).unwrap();
        assert!(routes.update(&map(&[(1, 1), (1, 1)])).unwrap().grew);
        let size = routes.size;
        assert!(routes.update(&map(&[(2, 1)])).unwrap().shrunk);
        assert_eq!(routes.size, size);
        assert_eq!(routes.place(ShardIndex(0)).unwrap().epoch, Epoch(2));
    }

    #[test]
    fn a_damaged_map_changes_nothing() {
        let mut broken = map(&[(1, 1), (1, 2)]);
        broken.shards.swap(0, 1);
        assert!(Routes::new(&broken).is_err());
        broken.shards.clear();
        assert!(Routes::new(&broken).is_err());
        let mut routes = Routes::new(&map(&[(1, 1)])).unwrap();
        let other = VolumeMap { volume: VolumeId(9), ..map(&[(2, 2)]) };
        assert!(routes.update(&other).is_err());
        let snapshot = VolumeMap { snapshot: Some(SnapshotId(1)), ..map(&[(2, 2)]) };
        assert!(routes.update(&snapshot).is_err());
        assert_eq!(routes.place(ShardIndex(0)).unwrap().epoch, Epoch(1));
    }
}
