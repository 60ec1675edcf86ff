//! How many keys are asked of etcd at once, of all that there are below a name.
//!
//! etcd walks its index to the last of them for every answer, to say how many there are: with pages of a fixed few, reading would take the square
//! of their number. So a page is as large as its answer may well be, by what the last one's keys had in them; one that fails, because its keys
//! have more in them or because it takes too long, is asked for again with fewer.

use crate::limits::{CHANGE_BYTES, ETCD_PAGE, ETCD_PAGE_BYTES, ETCD_PAGE_GROWTH};

/// The next page.
#[derive(Clone, Copy, Debug)]
pub(super) struct Page {
    keys: usize,
    /// How large its answer is to be.
    bytes: usize,
}

impl Page {
    /// The first, of which nothing is known: its answer fits, whatever is in its keys.
    pub(super) const FIRST: Self = Self { keys: ETCD_PAGE, bytes: ETCD_PAGE_BYTES };

    /// Its keys at most, as etcd is told.
    pub(super) fn limit(self) -> i64 {
        i64::try_from(self.keys).unwrap_or(i64::MAX)
    }

    /// The one behind an answer with so many keys, and so many bytes in these and their values.
    pub(super) fn behind(self, keys: usize, bytes: usize) -> Self {
        let each = bytes / keys.max(1) + CHANGE_BYTES;
        Self { keys: (self.bytes / each).clamp(1, self.keys.saturating_mul(ETCD_PAGE_GROWTH)), ..self }
    }

    /// What is asked for instead of one that failed; nothing if that cannot be because of its size.
    pub(super) fn smaller(self) -> Option<Self> {
        let smaller = Self {
            keys: (self.keys / ETCD_PAGE_GROWTH).max(ETCD_PAGE),
            // What took too long is not asked for again and again.
            bytes: ETCD_PAGE_BYTES / 2,
        };
        (self.keys > ETCD_PAGE).then_some(smaller)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::{ETCD_ANSWER, TXN_BYTES};

    /// Reads all of these sizes. Returns the answers' numbers of keys, 0 for one that was too large.
    fn read(all: &[usize]) -> Vec<usize> {
        let (mut page, mut at, mut answers) = (Page::FIRST, 0, Vec::new());
        while at < all.len() {
            let answer = &all[at..all.len().min(at + page.keys)];
            let bytes: usize = answer.iter().sum();
            if bytes + answer.len() * CHANGE_BYTES > ETCD_ANSWER {
                page = page.smaller().unwrap();
                answers.push(0);
                continue;
            }
            at += answer.len();
            page = page.behind(answer.len(), bytes);
            answers.push(answer.len());
        }
        answers
    }

    #[test]
    fn a_page_is_as_large_as_its_answer_may_well_be() {
        let answers = read(&[900; 262_144]);
        assert_eq!(answers.iter().sum::<usize>(), 262_144);
        assert!(answers.len() < 48 && !answers.contains(&0), "{answers:?}");
        let answers = read(&[TXN_BYTES; 200]);
        assert_eq!(answers[..2], [ETCD_PAGE, ETCD_PAGE_BYTES / (TXN_BYTES + CHANGE_BYTES)]);
    }

    #[test]
    fn one_whose_answer_is_too_large_is_asked_for_again_with_fewer_keys() {
        let answers = read(&[&[20; 20_000][..], &[TXN_BYTES; 100], &[20; 20_000]].concat());
        assert_eq!(answers.iter().sum::<usize>(), 40_100);
        assert!(answers.contains(&0) && answers.len() < 80, "{answers:?}");
        assert!(Page::FIRST.smaller().is_none(), "that is not for its size");
    }
}
