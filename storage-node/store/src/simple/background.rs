//! Writes a checkpoint beside the running store: one disk operation at a time, chunk by chunk.
//!
//! ```text
//! Idle → Draining (records of the older log complete) → Chunks → Sync → Seal (header) → Idle
//! ```
//! Until the header is durable the older checkpoint and both logs stay as they are.

use super::checkpoint::{Header, Snapshot};
use super::copies::Copies;
use super::layout::Geometry;
use super::limits::CHUNK;
use super::{Kind, tag};
use crate::DiskOut;
use crate::opening::Identity;
use conductor_model::BLOCK;
use driver::{DiskIndex, Errno, Op, Part};
use memory::{Arena, Class, Filling};
use smallvec::smallvec;

/// What every part of the store needs to reach its disk.
#[derive(Debug)]
pub(super) struct Place {
    pub(super) disk: DiskIndex,
    pub(super) identity: Identity,
    pub(super) geometry: Geometry,
}

#[derive(Debug)]
enum Stage {
    Idle,
    Draining,
    Chunks(Snapshot),
    Sync,
    Seal,
}

/// The checkpoint being written, if any.
#[derive(Debug)]
pub(super) struct Checkpointer {
    stage: Stage,
    /// The area of the newest complete checkpoint; the next goes to the other one.
    area: usize,
    header: Header,
    in_flight: bool,
    buffer: Option<Filling>,
}

impl Checkpointer {
    /// Begin the checkpoint that `header` describes, away from `area`, which holds the newest complete one.
    pub(super) fn begun(area: usize, header: Header) -> Self {
        Self { stage: Stage::Draining, area, header, in_flight: false, buffer: None }
    }

    /// True if the newest log's checkpoint is complete: the other log is free.
    pub(super) fn is_idle(&self) -> bool {
        matches!(self.stage, Stage::Idle)
    }

    /// Begin the next checkpoint; only when idle.
    pub(super) fn begin(&mut self, header: Header) {
        debug_assert!(self.is_idle());
        self.header = header;
        self.stage = Stage::Draining;
    }

    /// Start the next disk operation, if it is time. False if memory is short and nothing will wake it.
    pub(super) fn pump(
        &mut self,
        place: &Place,
        arena: &Arena,
        copies: &Copies,
        watermark: u64,
        out: &mut DiskOut<'_>,
    ) -> Result<bool, Errno> {
        if self.in_flight || self.is_idle() {
            return Ok(true);
        }
        if matches!(self.stage, Stage::Draining) {
            if watermark < self.header.first_record {
                return Ok(true);
            }
            self.stage = Stage::Chunks(Snapshot::of(copies));
        }
        if let Stage::Sync = self.stage {
            self.in_flight = true;
            out(Op::DiskSync { disk: place.disk, tag: tag(Kind::Checkpoint, 0) });
            return Ok(true);
        }
        let Some(mut buffer) = self.buffer.take().or_else(|| arena.take(CHUNK, Class::Settle)) else {
            return Ok(false);
        };
        let area = 1 - self.area;
        let (at, len) = match &mut self.stage {
            Stage::Chunks(snapshot) => {
                let index = self.header.chunks;
                if !snapshot.next_chunk(place.identity.disk, self.header.generation, index, &mut buffer) {
                    self.buffer = Some(buffer);
                    self.stage = Stage::Sync;
                    return self.pump(place, arena, copies, watermark, out);
                }
                if index >= place.geometry.chunks() {
                    debug_assert!(false, "the checkpoint area was measured too small");
                    return Err(Errno::NO_SPACE);
                }
                self.header.chunks += 1;
                (place.geometry.chunk(area, index), CHUNK)
            }
            Stage::Seal | Stage::Idle | Stage::Draining | Stage::Sync => {
                self.header.encode(place.identity.disk, &mut buffer[..BLOCK]);
                (place.geometry.checkpoint_header(area), BLOCK)
            }
        };
        self.in_flight = true;
        let durable = matches!(self.stage, Stage::Seal);
        let parts = smallvec![Part { mem: buffer.filled(), from: 0, len }];
        out(Op::DiskWrite { disk: place.disk, tag: tag(Kind::Checkpoint, 0), at, parts, durable });
        Ok(true)
    }

    /// Its operation is over, and went well. True if that completed the checkpoint.
    pub(super) fn done(&mut self, buffer: Option<Filling>) -> bool {
        self.in_flight = false;
        if buffer.is_some() {
            self.buffer = buffer;
        }
        match self.stage {
            Stage::Sync => self.stage = Stage::Seal,
            Stage::Seal => {
                self.stage = Stage::Idle;
                self.area = 1 - self.area;
                return true;
            }
            Stage::Idle | Stage::Draining | Stage::Chunks(_) => {}
        }
        false
    }
}
