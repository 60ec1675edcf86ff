//! Who owns what: every chunk in use is shared by as many entries as its record says, all under the same name; every place for
//! pages that is taken has a page, and none has two.

use super::super::entry::{ChunkRecord, Entry};
use super::super::layers::LayerId;
use super::super::limits::{CHUNK_BLOCKS, CHUNK_RECORD_BYTES, ENTRY_BYTES};
use super::super::pages::{ArrayName, PageRead, Place, PlaceSet, Region, TakenPlaces, Walk};
use super::super::superblock::{CHUNKS, Superblock};
use super::super::tables::Tree;
use super::catalog::{Found, root};
use super::{Part, Report, Severity};
use crate::MAX_SHARD_BLOCKS;
use conductor_model::ShardId;

/// Chunks that are counted in one go, at 8 bytes: 128 MiB for 1 TiB. A larger disk has its maps read again for each.
const WINDOW: u32 = 1 << 24;

const LOST_RECORD: &str = "its record is lost, with a metadata page, and what is in it";

/// What is known of one chunk of the window.
#[derive(Clone, Copy, Default)]
struct Owners {
    entries: u16,
    /// Two of them do not name it the same.
    unlike: bool,
    /// Of the first: a short sum of owner and chunk of the copy.
    name: u32,
}

fn name(entry: &Entry, chunk: u32) -> u32 {
    let ShardId { volume, index } = entry.owner;
    let bytes = [volume.0.to_le_bytes(), index.0.to_le_bytes(), chunk.to_le_bytes()];
    crc32c::crc32c(bytes.as_flattened())
}

/// What nothing has although it is in use, when pages were lost, is what these knew of: counted and said in one.
fn say_lost(superblock: &Superblock, count: u32, part: Part, report: &mut Report) {
    if count > 0 {
        let what = format!("in use by nobody, since so many metadata pages were lost: {}", superblock.lost);
        report.find(Severity::Notice, part, format!("× {count}"), what);
    }
}

/// Walks all maps and chunk records.
pub(super) fn check(
    superblock: &Superblock,
    found: &mut Found,
    walk: &mut Walk<'_>,
    read: &mut PageRead<'_>,
    report: &mut Report,
) {
    let total = superblock.geometry.chunks();
    let mut from = 0;
    while from < total {
        let count = WINDOW.min(total - from);
        let mut owners = vec![Owners::default(); count as usize];
        if from == 0 {
            count_entries(superblock, found, walk, read, report, from, &mut owners);
            compare(superblock, found, walk, read, report, from, &owners);
        } else {
            // What is wrong with pages and entries is known by now.
            let mut again = Walk {
                region: walk.region,
                visited: PlaceSet::new(walk.region.places),
                pages: 0,
                blind: walk.blind,
                flaws: &mut |_| (),
            };
            count_entries(superblock, found, &mut again, read, &mut Report::default(), from, &mut owners);
            compare(superblock, found, &mut again, read, report, from, &owners);
        }
        from += count;
    }
}

fn count_entries(
    superblock: &Superblock,
    found: &mut Found,
    walk: &mut Walk<'_>,
    read: &mut PageRead<'_>,
    report: &mut Report,
    from: u32,
    owners: &mut [Owners],
) {
    let total = superblock.geometry.chunks();
    let layers: Vec<(LayerId, Tree)> = found.trees.iter().map(|(id, tree)| (*id, *tree)).collect();
    for (id, tree) in layers {
        let copy = found.catalog.layers.get(id).and_then(|layer| found.catalog.copies.get(&layer.copy));
        let shard = copy.map(|copy| copy.config.shard);
        let (mut own, mut nonsense) = (0u32, false);
        let before = walk.blind;
        walk.array(ArrayName::map_of(id.0), ENTRY_BYTES, tree.root, read, &mut |_, index, bytes| {
            let at = || format!("{index} of layer {}", id.0);
            let chunk = u32::try_from(index).ok().filter(|chunk| *chunk < MAX_SHARD_BLOCKS / CHUNK_BLOCKS);
            let Some((chunk, entry)) = chunk.and_then(|chunk| Some((chunk, Entry::decode(bytes, total)?))) else {
                nonsense = true;
                report.find(Severity::Error, Part::Entry, at(), "it is none that this engine could have written");
                return;
            };
            if chunk < tree.cursor || entry.is_absent() {
                return;
            }
            report.totals.entries += 1;
            if entry.lost != 0 {
                let what = format!(
                    "{} of its blocks are lost: with a metadata page, or before it was filled",
                    entry.lost.count_ones()
                );
                report.find_repairable(Part::Entry, at(), &what);
            }
            own += u32::from(entry.chunk.is_some() && Some(entry.owner) == shard);
            let Some(physical) = entry.chunk else { return };
            let slot = physical.index().checked_sub(from).and_then(|n| owners.get_mut(n as usize));
            let Some(slot) = slot else { return };
            let name = name(&entry, chunk);
            slot.unlike |= slot.entries > 0 && slot.name != name;
            if slot.entries == 0 {
                slot.name = name;
            }
            slot.entries = slot.entries.saturating_add(1);
        });
        found.counted &= found.whole && !nonsense && !walk.blind;
        // Behind a cursor the count is of what there was, less what was given back since nobody knows when.
        let counts = shard.is_some() && tree.cursor == 0 && superblock.lost == 0;
        if counts && own != tree.chunks && !nonsense && walk.blind == before && !before {
            let what = format!("it has {own} chunks of its own and its record says {}", tree.chunks);
            report.find(Severity::Error, Part::Layer, id.0.to_string(), what);
        }
    }
}

fn compare(
    superblock: &Superblock,
    found: &Found,
    walk: &mut Walk<'_>,
    read: &mut PageRead<'_>,
    report: &mut Report,
    from: u32,
    owners: &[Owners],
) {
    let (blind, has_lost) = (walk.blind || !found.counted, superblock.lost > 0);
    let mut recorded = vec![false; owners.len()];
    let (len, first) = (CHUNK_RECORD_BYTES, u64::from(from));
    walk.array(CHUNKS, len, root(superblock, CHUNKS), read, &mut |_, index, bytes| {
        let slot = index.checked_sub(first).and_then(|n| usize::try_from(n).ok());
        let Some((slot, owners)) = slot.and_then(|slot| Some((slot, owners.get(slot)?))) else {
            if index >= u64::from(superblock.geometry.chunks()) {
                report.find(Severity::Error, Part::Chunk, (index + 1).to_string(), "it is beyond the end of the disk");
            }
            return;
        };
        recorded[slot] = true;
        let record = ChunkRecord::decode(bytes).unwrap_or_default();
        let at = || (index + 1).to_string();
        if record.lost {
            if owners.entries > 0 {
                report.find_repairable(Part::Chunk, at(), LOST_RECORD);
            }
            return;
        }
        match (owners.entries, record.refs) {
            (0, refs) if refs > 0 && !blind && !has_lost => {
                let what = format!("leaked: its record says that {refs} entries share it, and none does");
                report.find(Severity::Error, Part::Chunk, at(), what);
            }
            (entries, refs) if entries > refs => {
                let what = format!("doubly owned: {entries} entries share it, and its record says {refs}");
                report.find(Severity::Error, Part::Chunk, at(), what);
            }
            (entries, refs) if entries < refs && !blind && !has_lost => {
                let what = format!("leaked: {entries} entries share it, and its record says {refs}");
                report.find(Severity::Error, Part::Chunk, at(), what);
            }
            _ => {}
        }
    });
    let (blind, mut lost) = (walk.blind || !found.counted, 0);
    for (n, (owners, recorded)) in (from..).zip(owners.iter().zip(recorded)) {
        let Some(chunk) = super::super::entry::ChunkNo::at(n) else { continue };
        let at = || chunk.number().to_string();
        report.totals.chunks += u64::from(owners.entries > 0);
        if owners.unlike {
            let what = "doubly owned: entries that share it do not name the same owner and place";
            report.find(Severity::Error, Part::Chunk, at(), what);
        }
        if owners.entries > 0 && !recorded && superblock.lost > 0 {
            report.find_repairable(Part::Chunk, at(), LOST_RECORD);
        } else if owners.entries > 0 && !recorded && !blind {
            report.find(Severity::Error, Part::Chunk, at(), "an entry has it, and it has no record");
        }
        match (owners.entries > 0, found.space.is_free(chunk)) {
            (true, true) if !blind => {
                report.find(
                    Severity::Error,
                    Part::Chunk,
                    at(),
                    "doubly owned: an entry has it, and it is marked as free",
                );
            }
            (false, false) if !blind && has_lost => lost += 1,
            (false, false) if !blind => {
                report.find(Severity::Error, Part::Chunk, at(), "leaked: it is marked as used, and no entry has it");
            }
            _ => {}
        }
    }
    say_lost(superblock, lost, Part::Chunk, report);
}

/// Each place that is taken has a page, and each page's place is taken.
pub(super) fn compare_places(
    superblock: &Superblock,
    region: Region,
    visited: &PlaceSet,
    taken: &TakenPlaces,
    blind: bool,
    report: &mut Report,
) {
    let mut lost = 0;
    for place in (1..region.places).map(Place) {
        let at = || format!("in place {}", place.0);
        match (visited.contains(place), taken.contains(place)) {
            (true, false) => {
                report.find(Severity::Error, Part::Page, at(), "doubly owned: it is marked as free and has a page");
            }
            (false, true) if !blind && superblock.lost > 0 => lost += 1,
            (false, true) if !blind => {
                report.find(Severity::Error, Part::Page, at(), "leaked: it is marked as taken and has no page");
            }
            _ => {}
        }
    }
    say_lost(superblock, lost, Part::Page, report);
}
