//! Checkpoints: the whole state, written beside the log that will be reused.
//!
//! ```text
//! area:   header page | chunk 0 | chunk 1 | …                    (the header is written last, when the chunks are stable)
//! header: magic  crc  disk id  generation u64  chunks u32  first page sequence u64  first record u64
//! chunk:  magic  crc  disk id  generation u64  index u32  bytes used u32  0…  64 items
//! items:  copy 1 | copy u64 | K 16 | configuration      held 2 | copy u64 | n u16 | n × (stamp 16, from u32, count u32, kind u8)
//!         map  3 | copy u64 | n u16 | n × (block u32, slot u32, crc u32)
//! ```
//! A checkpoint of generation G holds the effect of every record before log G began, and of some after: replaying log G on top
//! ends in the right state whatever it holds of it (see `copies`).

use super::copies::{Copies, CopyRecord};
use super::limits::{CHUNK, ENTRY_BYTES, HELD_BYTES, MAX_ITEM, SEALED_HEAD};
use super::slots::Run;
use crate::codec::{Put, Take, seal, unseal};
use crate::configuration::{decode_configuration, decode_range, encode_configuration};
use crate::{Held, HeldKind};
use conductor_model::{CopyId, DiskId};
use std::collections::VecDeque;

const HEADER_MAGIC: u32 = u32::from_le_bytes(*b"TRH1");
const CHUNK_MAGIC: u32 = u32::from_le_bytes(*b"TRK1");
const LIST_HEAD: usize = 11;

/// What makes a checkpoint one: where the log begins that continues it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Header {
    pub(super) generation: u64,
    pub(super) chunks: u32,
    pub(super) first_sequence: u64,
    pub(super) first_record: u64,
}

impl Header {
    pub(super) fn encode(&self, disk: DiskId, page: &mut [u8]) {
        let mut body = Vec::with_capacity(SEALED_HEAD);
        body.u64(disk.0);
        body.u64(self.generation);
        body.u32(self.chunks);
        body.u64(self.first_sequence);
        body.u64(self.first_record);
        seal(page, HEADER_MAGIC, &body);
    }

    pub(super) fn decode(page: &[u8], disk: DiskId) -> Option<Self> {
        let mut body = unseal(page, HEADER_MAGIC)?;
        if body.u64()? != disk.0 {
            return None;
        }
        Some(Self {
            generation: body.u64()?,
            chunks: body.u32()?,
            first_sequence: body.u64()?,
            first_record: body.u64()?,
        })
    }
}

/// How far the copy in front has been written.
#[derive(Debug)]
enum Stage {
    Copy,
    Held(usize),
    Map(u32),
}

/// A state being written, chunk by chunk.
#[derive(Debug)]
pub(super) struct Snapshot {
    copies: VecDeque<(CopyId, CopyRecord)>,
    stage: Stage,
}

impl Snapshot {
    /// The state as of now; shares its maps with the living one.
    pub(super) fn of(copies: &Copies) -> Self {
        Self { copies: copies.iter().map(|(id, copy)| (*id, copy.clone())).collect(), stage: Stage::Copy }
    }

    /// Seal the next chunk; false if nothing is left to write.
    pub(super) fn next_chunk(&mut self, disk: DiskId, generation: u64, index: u32, chunk: &mut [u8]) -> bool {
        let mut items = Vec::with_capacity(CHUNK - SEALED_HEAD);
        self.fill(&mut items);
        if items.is_empty() {
            return false;
        }
        let mut body = Vec::with_capacity(CHUNK - 8);
        body.u64(disk.0);
        body.u64(generation);
        body.u32(index);
        body.u32(u32::try_from(items.len()).unwrap_or(u32::MAX)); // less than a chunk
        body.resize(SEALED_HEAD - 8, 0);
        body.extend_from_slice(&items);
        seal(chunk, CHUNK_MAGIC, &body);
        true
    }

    fn fill(&mut self, items: &mut Vec<u8>) {
        while let Some((id, copy)) = self.copies.front() {
            let room = CHUNK - SEALED_HEAD - items.len();
            match self.stage {
                Stage::Copy => {
                    if room < MAX_ITEM {
                        return;
                    }
                    items.u8(1);
                    items.u64(id.0);
                    items.stamp(copy.known_good);
                    encode_configuration(&copy.config, items);
                    self.stage = Stage::Held(0);
                }
                Stage::Held(from) => {
                    let fit = room.saturating_sub(LIST_HEAD) / HELD_BYTES;
                    let list = &copy.held[from..];
                    let count = list.len().min(fit);
                    if list.is_empty() {
                        self.stage = Stage::Map(0);
                        continue;
                    }
                    if count == 0 {
                        return;
                    }
                    list_head(2, *id, count, items);
                    for held in &list[..count] {
                        items.stamp(held.stamp);
                        items.u32(held.at.from.0);
                        items.u32(held.at.count.0);
                        items.u8(match held.kind {
                            HeldKind::Write => 1,
                            HeldKind::Zero => 2,
                            HeldKind::Barrier => 3,
                        });
                    }
                    self.stage = Stage::Held(from + count);
                }
                Stage::Map(from) => {
                    if copy.map.from(from).next().is_none() {
                        self.copies.pop_front();
                        self.stage = Stage::Copy;
                        continue;
                    }
                    let fit = room.saturating_sub(LIST_HEAD) / ENTRY_BYTES;
                    if fit == 0 {
                        return;
                    }
                    let count = copy.map.from(from).take(fit).count();
                    list_head(3, *id, count, items);
                    let mut next = from;
                    for (block, slot, crc) in copy.map.from(from).take(fit) {
                        items.u32(block);
                        items.u32(slot.number());
                        items.u32(crc);
                        next = block + 1;
                    }
                    self.stage = Stage::Map(next);
                }
            }
        }
    }
}

fn list_head(kind: u8, copy: CopyId, count: usize, items: &mut Vec<u8>) {
    items.u8(kind);
    items.u64(copy.0);
    items.u16(u16::try_from(count).unwrap_or(u16::MAX)); // a chunk has room for 5456
}

/// Load a chunk into the state; `None` if it is torn, damaged, of another generation, or not what this engine writes.
pub(super) fn load_chunk(
    chunk: &[u8],
    disk: DiskId,
    header: &Header,
    index: u32,
    slots: u32,
    max_copies: u32,
    copies: &mut Copies,
) -> Option<()> {
    let mut body = unseal(chunk, CHUNK_MAGIC)?;
    if body.u64()? != disk.0 || body.u64()? != header.generation || body.u32()? != index {
        return None;
    }
    let used = body.u32()? as usize;
    let mut items = Take(chunk.get(SEALED_HEAD..)?.get(..used)?);
    while !items.0.is_empty() {
        let kind = items.u8()?;
        let id = CopyId(items.u64()?);
        if kind == 1 {
            let known_good = items.stamp()?;
            let mut copy = CopyRecord::new(decode_configuration(&mut items)?);
            copy.known_good = known_good;
            if copies.len() >= max_copies as usize || copies.insert(id, copy).is_some() {
                return None;
            }
            continue;
        }
        let copy = copies.get_mut(&id)?;
        let count = items.u16()?;
        for _ in 0..count {
            match kind {
                2 => {
                    let stamp = items.stamp()?;
                    let at = decode_range(&mut items)?;
                    let kind = match items.u8()? {
                        1 => HeldKind::Write,
                        2 => HeldKind::Zero,
                        3 => HeldKind::Barrier,
                        _ => return None,
                    };
                    copy.hold(Held { stamp, at, kind });
                }
                3 => {
                    let (block, slot, crc) = (items.u32()?, items.u32()?, items.u32()?);
                    let at = conductor_model::BlockRange {
                        from: conductor_model::Blocks(block),
                        count: conductor_model::Blocks(1),
                    };
                    let run = Run::new(slot, 1, slots).filter(|_| copy.contains(at))?;
                    copy.map.set(block, run.from, crc);
                }
                _ => return None,
            }
        }
    }
    Some(())
}
