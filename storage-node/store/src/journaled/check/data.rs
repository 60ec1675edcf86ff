//! Every block of data that anything can read, against its checksum and the identity in it.
//!
//! A block that the journal has something newer of is not looked at where it was: the fold may have been overwriting it there.

use super::super::engine::Place;
use super::super::entry::{ChunkNo, ChunkRecord, Entry, Mask, blocks, stored_crc};
use super::super::layers::{Catalog, LayerId};
use super::super::limits::{CHUNK, CHUNK_BLOCKS, ENTRY_BYTES};
use super::super::overlay::{Key, Overlay};
use super::super::pages::{ArrayName, Finder, PageRead, PlaceSet, Region, Walk};
use super::super::patch::Spot;
use super::super::superblock::Superblock;
use super::catalog::Found;
use super::{Part, ReadDisk, Report};
use conductor_model::BLOCK;
use std::collections::BTreeSet;

/// Layers that something reads: live ones, snapshots, and what is below them.
fn needed(catalog: &Catalog) -> BTreeSet<LayerId> {
    let mut needed = BTreeSet::new();
    for top in catalog.layers.ids().filter(|id| !catalog.is_dropping(*id)) {
        let mut next = Some(top);
        while let Some(id) = next.filter(|id| needed.insert(*id)) {
            next = catalog.layers.get(id).and_then(|layer| layer.parent);
        }
    }
    needed
}

/// Blocks of a layer's chunk that the journal says something newer of.
fn hidden(overlay: &Overlay, layer: LayerId, chunk: u32) -> Mask {
    let patched = overlay.patches.get((layer, chunk)).map_or(0, |patch| patch.decided());
    let mut hidden = if overlay.in_range((layer, chunk)) { Mask::MAX } else { patched };
    let first = u64::from(chunk) * u64::from(CHUNK_BLOCKS);
    for share in overlay.shares.iter().filter(|share| share.layer == layer) {
        for n in 0..CHUNK_BLOCKS {
            let block = first + u64::from(n);
            if (u64::from(share.at.from.0)..share.at.end()).contains(&block) {
                hidden |= 1 << n;
            }
        }
    }
    hidden
}

/// What to read it with, and where it is.
pub(super) struct Data<'a> {
    pub(super) superblock: &'a Superblock,
    pub(super) place: Place,
    pub(super) region: Region,
    pub(super) found: &'a Found,
}

impl Data<'_> {
    /// Reads all of it.
    pub(super) fn check(&self, read: &mut ReadDisk<'_>, report: &mut Report, progress: &mut dyn FnMut(u64)) {
        let Self { found, place, .. } = self;
        let (needed, total) = (needed(&found.catalog), place.geometry.chunks());
        let mut finder = Finder::default();
        let mut pages = |at: u64, into: &mut [u8]| read(place.disk, at, into);
        let mut walk = Walk {
            region: self.region,
            visited: PlaceSet::new(self.region.places),
            pages: 0,
            blind: false,
            flaws: &mut |_| (), // known by now
        };
        for (id, tree) in found.trees.iter().filter(|(id, _)| needed.contains(id)) {
            let name = ArrayName::map_of(id.0);
            walk.array(name, ENTRY_BYTES, tree.root, &mut pages, &mut |read, index, bytes| {
                let chunk = u32::try_from(index).ok().filter(|chunk| *chunk >= tree.cursor);
                let Some((chunk, entry)) = chunk.and_then(|chunk| Some((chunk, Entry::decode(bytes, total)?))) else {
                    return;
                };
                let Some(physical) = entry.chunk else { return };
                let which = entry.present & !hidden(&found.overlay, *id, chunk);
                let record = Found::record(&mut finder, self.superblock, &self.region, physical, read);
                // A chunk without a record, or whose record is lost, was found before.
                let Some(record) = record.and_then(ChunkRecord::decode).filter(|record| !record.lost) else { return };
                let crc = |n: u32| {
                    let block = chunk * CHUNK_BLOCKS + n;
                    move |plain| stored_crc(plain, entry.owner, block) == record.crcs[n as usize]
                };
                self.chunk((*id, chunk), physical, which, read, report, &|n, plain| crc(n)(plain));
                progress(which.count_ones().into());
            });
        }
        for ((layer, chunk), patch) in found.overlay.patches.iter().filter(|((id, _), _)| needed.contains(id)) {
            let Some(direct) = patch.direct else { continue };
            let own = || patch.blocks().filter(|block| block.spot == Spot::Direct);
            let which = own().fold(0, |mask, block| mask | 1 << block.n);
            let good = |n: u32, plain: u32| own().any(|block| u32::from(block.n) == n && block.crc == plain);
            self.chunk((layer, chunk), direct, which, &mut pages, report, &good);
            progress(which.count_ones().into());
        }
    }

    /// Reads blocks of a chunk; `good` knows their checksums.
    fn chunk(
        &self,
        (layer, chunk): Key,
        physical: ChunkNo,
        which: Mask,
        read: &mut PageRead<'_>,
        report: &mut Report,
        good: &dyn Fn(u32, u32) -> bool,
    ) {
        if which == 0 {
            return;
        }
        let mut bytes = [0; CHUNK];
        let (first, end) = (which.trailing_zeros() as usize * BLOCK, (16 - which.leading_zeros() as usize) * BLOCK);
        let at = self.place.geometry.chunk(physical);
        let mut whole = read(at + first as u64, &mut bytes[first..end]);
        for n in blocks(which) {
            let (from, to) = (n as usize * BLOCK, (n as usize + 1) * BLOCK);
            // What cannot be read as a whole is read block by block.
            let there = whole || read(at + from as u64, &mut bytes[from..to]);
            report.totals.blocks += 1;
            if there && good(n, crc32c::crc32c(&bytes[from..to])) {
                continue;
            }
            whole &= there;
            let info = self.found.catalog.layers.get(layer);
            let copy = info.map(|info| info.copy.to_string()).unwrap_or_default();
            let of = info.and_then(|info| info.snapshot).map(|name| format!(", snapshot {name}")).unwrap_or_default();
            let block = u64::from(chunk) * u64::from(CHUNK_BLOCKS) + u64::from(n);
            let place = format!("{block} of copy {copy}{of}, chunk {}", physical.number());
            let what = if there { "it does not read as it was written" } else { "it cannot be read" };
            report.find_repairable(Part::Block, place, what);
        }
    }
}
