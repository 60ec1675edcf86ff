//! What an NBD request means to the volume, and what the volume's answer means to NBD.

use conductor_model::{BLOCK, Bytes};
use nbd_session::{Extent, Fault, Outcome, Request, Ticket, What};
use volume_client::{BlockDone, BlockError, BlockOp, BlockRequest, Completion};

/// What becomes of an NBD request.
pub(super) enum Step {
    /// For the volume.
    Ask(Ticket, BlockRequest),
    /// Known at once.
    Answer(Ticket, Outcome),
}

/// FUA goes along; only a flush volume's client asks the node for it. Space is never reserved for zeroes: "no hole" is taken
/// as the wish it is, and refused only together with "fast", which wants a promise. What is all zeros is a hole, whether or not
/// something is allocated for it.
pub(super) fn step(request: Request, tag: u64) -> Step {
    let Request { ticket, what, offset, len } = request;
    let fua =
        matches!(what, What::Write { fua: true, .. } | What::Trim { fua: true } | What::WriteZeroes { fua: true, .. });
    let op = match what {
        What::Read => BlockOp::Read,
        What::Write { payload, .. } => BlockOp::Write { data: payload, crcs: None },
        What::Flush => BlockOp::Flush,
        What::Trim { .. } => BlockOp::Discard,
        What::WriteZeroes { no_hole: true, fast: true, .. } => {
            return Step::Answer(ticket, Outcome::Failed(Fault::NotSupported));
        }
        // A write of zeros, merged into what is around them: nothing that is faster.
        What::WriteZeroes { fast: true, .. } if !has_block(offset, len) => {
            return Step::Answer(ticket, Outcome::Failed(Fault::NotSupported));
        }
        What::WriteZeroes { .. } => BlockOp::WriteZeroes,
        What::BlockStatus { .. } => BlockOp::Extents,
    };
    Step::Ask(ticket, BlockRequest { tag, op, offset, len, fua })
}

/// Is a whole block in it?
fn has_block(offset: Bytes, len: Bytes) -> bool {
    let block = BLOCK as u64;
    offset.0.checked_next_multiple_of(block).is_some_and(|first| offset.0.saturating_add(len.0) / block * block > first)
}

pub(super) fn outcome(completion: Completion) -> Outcome {
    match completion.result {
        Ok(BlockDone::Read(parts)) => Outcome::Data(parts.into_iter().collect()),
        Ok(BlockDone::Extents(extents)) => {
            let all = extents.into_iter().map(|e| Extent { len: e.len, hole: !e.is_data, zero: !e.is_data });
            Outcome::Extents(all.collect())
        }
        Ok(BlockDone::Done) => Outcome::Done,
        Err(BlockError::Stopped) => Outcome::Failed(Fault::Shutdown),
        Err(error) => Outcome::Failed(Fault::from_errno(error.errno().0)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_has_a_block_if_one_lies_in_it() {
        let has = |offset, len| has_block(Bytes(offset), Bytes(len));
        assert!(has(0, 4096) && has(4096, 4096) && has(1, 8191) && has(0, 4097) && has(8191, 4097));
        assert!(!has(0, 4095) && !has(1, 8190) && !has(100, 5000) && !has(4097, 4096) && !has(0, 0));
        assert!(!has(u64::MAX - 100, 100));
    }
}
