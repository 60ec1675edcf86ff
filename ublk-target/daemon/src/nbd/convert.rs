//! What an NBD request means to the volume, and what the volume's answer means to NBD.

use nbd_session::{Extent, Fault, Outcome, Request, Ticket, What};
use smallvec::smallvec;
use volume_client::{BlockDone, BlockError, BlockOp, BlockRequest, Completion};

/// What becomes of an NBD request.
pub(super) enum Step {
    /// For the volume.
    Ask(Ticket, BlockRequest),
    /// Known at once.
    Answer(Ticket, Outcome),
}

/// FUA goes along; only a flush volume's client asks the node for it. Space is never reserved for zeroes: "no hole" is taken
/// as the wish it is, and refused only together with "fast", which wants a promise. Nobody here knows what is allocated; the
/// honest answer is that all of it may be.
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
        What::WriteZeroes { .. } => BlockOp::WriteZeroes,
        What::BlockStatus { .. } => {
            let all = Extent { len, hole: false, zero: false };
            return Step::Answer(ticket, Outcome::Extents(smallvec![all]));
        }
    };
    Step::Ask(ticket, BlockRequest { tag, op, offset, len, fua })
}

pub(super) fn outcome(completion: Completion) -> Outcome {
    match completion.result {
        Ok(BlockDone::Read(parts)) => Outcome::Data(parts.into_iter().collect()),
        Ok(BlockDone::Done) => Outcome::Done,
        Err(BlockError::Stopped) => Outcome::Failed(Fault::Shutdown),
        Err(error) => Outcome::Failed(Fault::from_errno(error.errno().0)),
    }
}
