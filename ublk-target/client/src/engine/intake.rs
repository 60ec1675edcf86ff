//! Takes requests in: checks, cuts, and gives each part its payload and number.

use super::Engine;
use super::posting::op_of;
use crate::iocb::{ClientIocb, Part, PartKey, PartState, Request, RequestKey, Stage, Stages};
use crate::limits::{LANE_PARTS, MAX_READ};
use crate::request::{BlockError, BlockOp, BlockRequest};
use crate::split::{Action, Kind, Piece, Pieces, split};
use conductor_model::{BLOCK, BlockRange, Bytes, Commit, Epoch};
use driver::Time;
use memory::Class;
use smallvec::SmallVec;
use tcp::Payload;

impl Engine {
    /// Takes a request, or hands it back when there are `depth` already, or many parts, or memory is short: try again after a completion.
    pub(crate) fn submit(&mut self, now: Time, request: BlockRequest) -> Result<(), BlockRequest> {
        if self.requests.len() >= self.settings.depth {
            self.counters.refused_full += 1;
            return Err(request);
        }
        let kind = kind_of(&request.op);
        let len = if kind == Kind::Extents { request.len.min(self.look_ahead) } else { request.len };
        let checked = self.check(&request).and_then(|()| match kind {
            Kind::Flush => Ok(self.flushes()),
            _ => split(kind, request.offset, len, self.routes.shard_size).ok_or(BlockError::BadLength),
        });
        let more = checked.as_ref().map_or(0, |pieces| pieces.len());
        if !self.requests.is_empty() && self.parts.len() + more > LANE_PARTS {
            self.counters.refused_full += 1;
            return Err(request);
        }
        let made = match &checked {
            Ok(pieces) => pieces.iter().map(|piece| self.payload(piece, &request.op)).collect(),
            Err(_) => Some(SmallVec::<[_; 2]>::new()),
        };
        let Some(payloads) = made else {
            self.counters.refused_full += 1;
            return Err(request);
        };
        self.counters.submitted += 1;
        let pieces = checked.as_deref().unwrap_or_default();
        let mut stages = Stages { offset: request.offset, len: request.len, ..Stages::default() };
        stages.mark(Stage::Submitted, now);
        if let Some(first) = pieces.first() {
            (stages.sequence, stages.op) = (self.last_sequence + 1, op_of(first.action).0);
        }
        let key = RequestKey(self.requests.vacant_key());
        let not_before = match (&self.pace, &checked, kind) {
            (Some(pace), Ok(_), Kind::Read | Kind::Write) => pace.admit(now, request.len),
            (Some(pace), Ok(_), Kind::WriteZeroes | Kind::Discard | Kind::Extents) => pace.admit(now, Bytes(0)),
            (None, ..) | (_, Err(_), _) | (.., Kind::Flush) => now,
        };
        let deadline = self.settings.io_timeout.map(|span| not_before + span);
        let mut parts = SmallVec::new();
        for (piece, payload) in pieces.iter().zip(payloads) {
            parts.push(self.add_part(key, piece, request.fua, payload));
        }
        self.requests.insert(Request {
            tag: request.tag,
            kind,
            front_end: Some(self.table.insert(ClientIocb { request: key })),
            open: parts.len(),
            parts,
            failed: None,
            lost: false,
            deadline,
            stages,
        });
        if let Some(deadline) = deadline {
            self.deadlines.insert((deadline, key));
        }
        match checked {
            Err(error) => self.fail(now, key, error),
            Ok(pieces) => {
                let lost = pieces.iter().any(|piece| self.is_lost(piece));
                self.enqueue_all(now, not_before, key);
                if lost {
                    self.fail(now, key, BlockError::RangeLost);
                }
            }
        }
        self.release_if_done(key);
        Ok(())
    }

    /// Somebody else has what this touches, and is to know of.
    fn is_lost(&self, piece: &Piece) -> bool {
        if piece.action == Action::Extents {
            return false; // where data is, is no secret, and as true as it was
        }
        let blocks = BlockRange::covering(piece.offset, Bytes(piece.len.into()));
        blocks.is_some_and(|blocks| self.claims.is_lost(piece.shard, blocks))
    }

    /// A FLUSH for each shard that has something unflushed.
    fn flushes(&self) -> Pieces {
        let Some(unflushed) = &self.unflushed else { return Pieces::new() };
        let flush = |shard| Piece { action: Action::Flush, shard, offset: Bytes(0), len: 0, from: 0 };
        self.routes.shards().filter(|&shard| unflushed.covers(shard).is_some()).map(flush).collect()
    }

    fn check(&self, request: &BlockRequest) -> Result<(), BlockError> {
        if let Some(error) = self.over {
            return Err(error);
        }
        if self.settings.read_only && request.op.is_change() {
            return Err(BlockError::ReadOnly);
        }
        if matches!(request.op, BlockOp::Flush) {
            return Ok(());
        }
        let end = request.offset.0.checked_add(request.len.0).ok_or(BlockError::OutOfRange)?;
        if end > self.routes.size.0 {
            return Err(BlockError::OutOfRange);
        }
        if request.op.is_change() && !self.claims.may_change(request.offset, request.len) {
            return Err(BlockError::NotHeld);
        }
        match &request.op {
            BlockOp::Read if request.len.0 > MAX_READ => Err(BlockError::BadLength),
            BlockOp::Write { data, .. } if request.len.0 > data.len() as u64 => Err(BlockError::BadLength),
            _ => Ok(()),
        }
    }

    /// The payload of one piece; the outer `None` is a lack of memory.
    fn payload(&self, piece: &Piece, op: &BlockOp) -> Option<Option<Payload>> {
        let len = piece.len as usize;
        match (piece.action, op) {
            (Action::ZeroEdge, _) => {
                let crcs = wire::pieces(&self.zeros[..len]);
                Some(Some(Payload { mem: self.zeros.share(), len, crcs }))
            }
            (Action::Write, BlockOp::Write { data, crcs }) if piece.from == 0 => {
                // Known CRCs serve whole blocks, and a short last one only where the data ends with it.
                let known = crcs.as_ref().filter(|_| len.is_multiple_of(BLOCK) || len == data.len());
                let crcs = known.and_then(|crcs| crcs.get(..len.div_ceil(BLOCK)));
                let crcs = crcs.map_or_else(|| wire::pieces(&data[..len]), Into::into);
                Some(Some(Payload { mem: data.share(), len, crcs }))
            }
            (Action::Write, BlockOp::Write { data, .. }) => {
                // A message's payload starts where its memory does. Only what crosses a shard boundary comes here.
                let mut copy = self.arena.take(len, Class::Client)?;
                copy.copy_from_slice(&data[piece.from..][..len]);
                let crcs = wire::pieces(&copy);
                Some(Some(Payload { mem: copy.filled(), len, crcs }))
            }
            _ => Some(None),
        }
    }

    fn add_part(&mut self, request: RequestKey, piece: &Piece, fua: bool, payload: Option<Payload>) -> PartKey {
        self.last_sequence += 1;
        let unflushed = self.unflushed.as_ref();
        let covers = unflushed.filter(|_| piece.action == Action::Flush).and_then(|all| all.covers(piece.shard));
        let fua = unflushed.is_some() && piece.action.is_change() && (fua || self.write_through);
        PartKey(self.parts.insert(Part {
            request,
            sequence: self.last_sequence,
            action: piece.action,
            shard: piece.shard,
            offset: piece.offset,
            len: piece.len,
            fua,
            // None: another lane's flush has just covered it, and this one covers nothing new.
            covers: covers.unwrap_or(0),
            clean: unflushed.map_or(0, |all| all.clean(piece.shard)),
            cache: Commit(0),
            payload,
            answer: None,
            extents: None,
            state: PartState::Done,
            epoch: Epoch::default(),
            lost: SmallVec::new(),
            sent: 0,
            put_off: 0,
        }))
    }
}

fn kind_of(op: &BlockOp) -> Kind {
    match op {
        BlockOp::Read => Kind::Read,
        BlockOp::Extents => Kind::Extents,
        BlockOp::Write { .. } => Kind::Write,
        BlockOp::WriteZeroes => Kind::WriteZeroes,
        BlockOp::Discard => Kind::Discard,
        BlockOp::Flush => Kind::Flush,
    }
}
