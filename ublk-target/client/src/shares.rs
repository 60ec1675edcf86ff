//! What each shard has of a connection that it shares with others.
//!
//! A node answers nothing for a shard that is sealed, joining or settling, and its requests keep their credits for as long. Where others of
//! the volume are served by the same reactor, a shard with p > 0 parts out may send another only while more than 1 + p/8 credits are
//! free (`BESIDE`). So of 128 the first shard that hangs takes 113, which is more than one makes use of, the next 13, a third 1, and one
//! is left.

use crate::limits::BESIDE;
use conductor_model::ShardIndex;

/// Parts that are posted, by shard. One that moved may have some on two connections, for as long as the old one takes to drain.
#[derive(Debug, Default)]
pub(crate) struct Shares {
    posted: Vec<usize>,
}

impl Shares {
    fn posted(&self, shard: ShardIndex) -> usize {
        self.posted.get(shard.0 as usize).copied().unwrap_or(0)
    }

    /// The credits that are left are for others. (Where none is, there is nothing to be shared.)
    pub(crate) fn has_its_share(&self, shard: ShardIndex, left: usize) -> bool {
        let posted = self.posted(shard);
        let has_all = posted > 0 && (1..=1 + posted / BESIDE).contains(&left);
        has_all && !driver::mutant::on("a_shard_takes_all_credits")
    }

    /// A part of it was posted.
    pub(crate) fn post(&mut self, shard: ShardIndex) {
        let at = shard.0 as usize;
        if self.posted.len() <= at {
            self.posted.resize(at + 1, 0);
        }
        self.posted[at] += 1;
    }

    /// One is back.
    pub(crate) fn back(&mut self, shard: ShardIndex) {
        if let Some(posted) = self.posted.get_mut(shard.0 as usize) {
            *posted -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a shard gets of that many credits, if it asks for all.
    fn take(shares: &mut Shares, shard: u32, left: &mut usize) -> usize {
        let before = *left;
        while *left > 0 && !shares.has_its_share(ShardIndex(shard), *left) {
            shares.post(ShardIndex(shard));
            *left -= 1;
        }
        before - *left
    }

    #[test]
    fn shards_that_hang_leave_something_to_those_that_come_after_them() {
        let (mut shares, mut left) = (Shares::default(), 128);
        let got: Vec<usize> = [7, 0, 3].map(|shard| take(&mut shares, shard, &mut left)).into();
        assert_eq!((got, left), (vec![113, 13, 1], 1));
        // One that is answered goes on with that, for ever.
        for _ in 0..100 {
            assert_eq!(take(&mut shares, 4, &mut left), 1);
            shares.back(ShardIndex(4));
            left += 1;
        }
    }

    #[test]
    fn a_connection_of_a_single_request_is_of_use_to_all() {
        let (mut shares, mut left) = (Shares::default(), 1);
        assert_eq!(take(&mut shares, 0, &mut left), 1);
        assert!(!shares.has_its_share(ShardIndex(0), 0), "the connection says that it takes nothing");
    }
}
