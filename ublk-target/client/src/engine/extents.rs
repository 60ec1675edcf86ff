//! Where a volume has data: what a node answered, in bytes of what was asked.

use crate::iocb::Part;
use crate::request::Extent;
use conductor_model::{BLOCK, BlockRange, Blocks, Bytes};

/// Blocks that a question for extents is about.
pub(super) fn asked(part: &Part) -> Blocks {
    BlockRange::covering(Bytes(0), Bytes(part.len.into())).map_or(Blocks(0), |all| all.count)
}

/// Was it answered that there is nothing, up to its end?
pub(super) fn is_hole(part: &Part) -> bool {
    let all = asked(part);
    let told = part.extents.as_ref().and_then(|answer| answer.runs(all));
    told.is_some_and(|(covered, runs)| covered == all && runs.is_empty())
}

/// What was answered of the blocks around `offset..offset + len`, in bytes of that.
pub(super) fn extents(offset: Bytes, len: Bytes, part: &Part) -> Vec<Extent> {
    let told = part.extents.as_ref().and_then(|answer| answer.runs(asked(part)));
    let (covered, runs) = told.unwrap_or_else(|| {
        let all = asked(part);
        (all, vec![BlockRange { from: Blocks(0), count: all }])
    });
    let before = offset.0 % BLOCK as u64;
    let end = covered.bytes().0.min(before + len.0);
    let (mut at, mut found) = (before, Vec::new());
    let mut upto = |to: u64, is_data| {
        let to = to.min(end);
        if to > at {
            found.push(Extent { len: Bytes(to - at), is_data });
            at = to;
        }
    };
    for run in runs {
        upto(run.from.bytes().0, false);
        upto(run.end() * BLOCK as u64, true);
    }
    upto(end, false);
    found
}
