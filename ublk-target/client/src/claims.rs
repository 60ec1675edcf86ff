//! The ranges of a shared volume that this client is to hold, and how far it is with each piece of them.
//!
//! ```text
//!   Due ──connected──► Asked ──ok──► Held(connection, epoch) ──another connection, or epoch──► Due, held before
//!    ▲                   │ lost, stale, later
//!    └───────────────────┤
//!                        └──taken by another──► Lost
//! ```
//!
//! A primary knows what it was told on a connection that is still there, in the epoch that it is in; nothing else is relied upon. What touches
//! a piece is sent only while that is held (`Claims::gate`), so after a failover nothing of it goes on before the next primary has been
//! told. A piece that somebody else has by then is lost for the rest of the attachment: what it holds may have changed.

use crate::limits::{MAX_RANGES, RETRY_MAX, RETRY_MIN};
use crate::request::ClientError;
use conductor_model::{BLOCK, BlockRange, Blocks, Bytes, Epoch, ShardIndex};
use driver::{ConnId, Span, Time};

/// A range that a client holds of a volume that it shares.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Range {
    /// First byte: whole blocks.
    pub offset: Bytes,
    /// Its length: whole blocks.
    pub len: Bytes,
    /// For writing, alone; else for reading, beside others that do.
    pub write: bool,
}

impl Range {
    /// Whether it can be one of any volume.
    pub fn is_of_blocks(&self) -> bool {
        self.len.0 > 0 && self.offset.is_block_aligned() && self.len.is_block_aligned()
    }

    fn end(&self) -> u64 {
        self.offset.0 + self.len.0
    }

    fn overlaps(&self, from: u64, end: u64) -> bool {
        self.offset.0 < end && from < self.end()
    }
}

impl std::fmt::Display for Range {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let how = if self.write { "write" } else { "read" };
        write!(f, "{how}:{}+{}", self.offset.0, self.len.0)
    }
}

/// How far a client is with what it is to hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Holding {
    /// Not everything is held yet, or again.
    Waits,
    /// Everything is.
    All,
    /// Some of it is another's: requests that touch it fail.
    Lost,
}

/// Where a piece stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum State {
    /// To be asked for, not before then.
    Due(Time),
    Asked {
        conn: ConnId,
        epoch: Epoch,
        token: u64,
    },
    Held {
        conn: ConnId,
        epoch: Epoch,
    },
    Lost,
}

/// The part of a range that lies in one shard.
#[derive(Debug)]
pub(crate) struct Piece {
    pub(crate) shard: ShardIndex,
    pub(crate) at: BlockRange,
    pub(crate) write: bool,
    pub(crate) state: State,
    /// It was held.
    pub(crate) before: bool,
    /// Until when it is waited for, once it was asked for.
    pub(crate) until: Option<Time>,
    put_off: u32,
}

impl Piece {
    /// Asks again, a little later each time.
    pub(crate) fn put_off(&mut self, now: Time) {
        let wait = Span(RETRY_MIN.0 << self.put_off.min(16)).min(RETRY_MAX);
        self.put_off += 1;
        self.state = State::Due(now + wait);
    }

    /// It is held from now on.
    pub(crate) fn held(&mut self, conn: ConnId, epoch: Epoch) {
        self.state = State::Held { conn, epoch };
        self.before = true;
        self.put_off = 0;
    }
}

/// All of them.
#[derive(Debug, Default)]
pub(crate) struct Claims {
    /// The volume is shared.
    shared: bool,
    ranges: Vec<Range>,
    pub(crate) pieces: Vec<Piece>,
    /// How long each is waited for in the beginning.
    pub(crate) patience: Span,
}

impl Claims {
    /// Of a shared volume, cut into shards.
    pub(crate) fn new(ranges: &[Range], patience: Span, size: Bytes, shard_size: Bytes) -> Result<Self, ClientError> {
        if ranges.len() > MAX_RANGES {
            return Err(ClientError::TooManyRanges);
        }
        let mut pieces = Vec::new();
        for range in ranges {
            if !range.is_of_blocks() {
                return Err(ClientError::Range(*range));
            }
            let end = range.offset.0.checked_add(range.len.0).filter(|end| *end <= size.0);
            let end = end.ok_or(ClientError::Beyond(*range, size))?;
            let mut from = range.offset.0;
            while from < end {
                let shard = from / shard_size.0;
                let to = end.min((shard + 1) * shard_size.0);
                let blocks = |bytes: u64| u32::try_from(bytes / BLOCK as u64).map_err(|_| ClientError::Range(*range));
                let at = BlockRange {
                    from: Blocks(blocks(from - shard * shard_size.0)?),
                    count: Blocks(blocks(to - from)?),
                };
                let shard = ShardIndex(u32::try_from(shard).map_err(|_| ClientError::Range(*range))?);
                let state = State::Due(Time(0));
                pieces.push(Piece { shard, at, write: range.write, state, before: false, until: None, put_off: 0 });
                from = to;
            }
        }
        Ok(Self { shared: true, ranges: ranges.to_vec(), pieces, patience })
    }

    /// Whether a client that shares its volume may change this: it has claimed all of it for writing.
    pub(crate) fn may_change(&self, offset: Bytes, len: Bytes) -> bool {
        let (mut next, end) = (offset.0, offset.0 + len.0);
        while self.shared && next < end {
            let here = self.ranges.iter().filter(|range| range.write && range.overlaps(next, next + 1));
            match here.map(Range::end).max() {
                Some(to) => next = to,
                None => return false,
            }
        }
        true
    }

    /// Whether anything of a piece's blocks is another's.
    pub(crate) fn is_lost(&self, shard: ShardIndex, blocks: BlockRange) -> bool {
        self.touching(shard, blocks).any(|piece| piece.state == State::Lost)
    }

    /// Whether all that is claimed of these blocks is held on this connection, in this epoch.
    pub(crate) fn gate(&self, shard: ShardIndex, blocks: BlockRange, conn: ConnId, epoch: Epoch) -> bool {
        self.touching(shard, blocks).all(|piece| piece.state == State::Held { conn, epoch })
    }

    fn touching(&self, shard: ShardIndex, blocks: BlockRange) -> impl Iterator<Item = &Piece> {
        self.pieces.iter().filter(move |piece| piece.shard == shard && piece.at.overlaps(blocks))
    }

    /// A newer epoch of a shard is known: what is to be asked for there is asked for in it at once.
    pub(crate) fn ask_now(&mut self, now: Time, shard: ShardIndex) {
        for piece in self.pieces.iter_mut().filter(|piece| piece.shard == shard) {
            if let State::Due(at) = &mut piece.state {
                *at = now.min(*at);
            }
        }
    }

    /// Nothing is to be held any more.
    pub(crate) fn forget(&mut self) {
        self.pieces.clear();
    }

    /// Something is to be asked for.
    pub(crate) fn is_due(&self) -> bool {
        self.pieces.iter().any(|piece| matches!(piece.state, State::Due(_)))
    }

    /// How far it is with all; `None` if the volume is not shared.
    pub(crate) fn holding(&self) -> Option<Holding> {
        let any = |so: fn(&State) -> bool| self.pieces.iter().any(|piece| so(&piece.state));
        self.shared.then(|| match () {
            () if any(|state| *state == State::Lost) => Holding::Lost,
            () if any(|state| !matches!(state, State::Held { .. })) => Holding::Waits,
            () => Holding::All,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHARD: u64 = 16 * BLOCK as u64;

    fn range(from: u64, count: u64, write: bool) -> Range {
        Range { offset: Bytes(from * BLOCK as u64), len: Bytes(count * BLOCK as u64), write }
    }

    fn claims(ranges: &[Range]) -> Result<Claims, ClientError> {
        Claims::new(ranges, Span(0), Bytes(3 * SHARD), Bytes(SHARD))
    }

    #[test]
    fn a_range_is_cut_where_shards_end() {
        let claims = claims(&[range(15, 18, true), range(0, 1, false)]).unwrap();
        let cut: Vec<_> = claims.pieces.iter().map(|p| (p.shard.0, p.at.from.0, p.at.count.0, p.write)).collect();
        assert_eq!(cut, [(0, 15, 1, true), (1, 0, 16, true), (2, 0, 1, true), (0, 0, 1, false)]);
        for far in [range(47, 2, true), range(u64::MAX >> 13, 1, true), range(u64::MAX >> 12, 1, true)] {
            assert_eq!(super::tests::claims(&[far]).err(), Some(ClientError::Beyond(far, Bytes(3 * SHARD))));
        }
        for odd in [range(0, 0, true), Range { offset: Bytes(1), ..range(0, 1, true) }] {
            assert_eq!(super::tests::claims(&[odd]).err(), Some(ClientError::Range(odd)));
        }
        let many = vec![range(0, 1, true); MAX_RANGES + 1];
        assert_eq!(super::tests::claims(&many).err(), Some(ClientError::TooManyRanges));
    }

    #[test]
    fn what_was_not_claimed_for_writing_is_not_changed() {
        let claims = claims(&[range(0, 4, true), range(4, 4, true), range(8, 4, false)]).unwrap();
        let may = |from, count| {
            let Range { offset, len, .. } = range(from, count, true);
            claims.may_change(offset, len)
        };
        assert!(may(0, 8) && may(3, 2) && may(7, 1));
        assert!(!may(7, 2) && !may(8, 1) && !may(12, 1));
        let alone = Claims::default();
        assert!(alone.may_change(Bytes(0), Bytes(SHARD)) && alone.holding().is_none());
    }

    #[test]
    fn a_piece_is_held_on_one_connection_and_in_one_epoch() {
        let mut claims = claims(&[range(0, 4, true)]).unwrap();
        let conn = |slot| ConnId { slot, generation: 0 };
        let blocks = |from, count| BlockRange { from: Blocks(from), count: Blocks(count) };
        let open = |claims: &Claims, from, c, epoch| claims.gate(ShardIndex(0), blocks(from, 2), conn(c), Epoch(epoch));
        assert!(!open(&claims, 3, 1, 1) && open(&claims, 4, 1, 1), "beside it nothing is waited for");
        assert_eq!((claims.holding(), claims.is_due()), (Some(Holding::Waits), true));
        claims.pieces[0].held(conn(1), Epoch(1));
        assert!(open(&claims, 3, 1, 1) && !open(&claims, 3, 2, 1) && !open(&claims, 3, 1, 2));
        assert_eq!((claims.holding(), claims.is_due()), (Some(Holding::All), false));
        claims.pieces[0].state = State::Lost;
        assert!(claims.is_lost(ShardIndex(0), blocks(3, 9)) && !claims.is_lost(ShardIndex(0), blocks(4, 1)));
        assert_eq!(claims.holding(), Some(Holding::Lost));
    }
}
