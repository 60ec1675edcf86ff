//! The log's bookkeeping: which page comes next, which records are complete.
//!
//! Records are numbered as they are put into pages. The *watermark* is the number of the oldest record whose operation is not over
//! (data and record durable, state changed); it never passes one that failed.

use std::collections::VecDeque;

/// Where the log stands.
#[derive(Debug)]
pub(super) struct Log {
    /// Generation of the log being written; its parity says which of the two.
    pub(super) generation: u64,
    /// Next page of it.
    pub(super) page: u32,
    /// Next page's sequence.
    pub(super) sequence: u64,
    /// Operations whose records are not in a page yet, oldest first.
    pub(super) queue: VecDeque<usize>,
    /// Operations whose records are being written.
    pub(super) flying: Vec<usize>,
    /// True while a log write is out.
    pub(super) in_flight: bool,
    watermark: u64,
    /// For each record from the watermark on: is it complete?
    complete: VecDeque<bool>,
}

impl Log {
    /// A log that begins at the first page of a generation.
    pub(super) fn starting(generation: u64, sequence: u64, record: u64) -> Self {
        Self {
            generation,
            page: 0,
            sequence,
            queue: VecDeque::new(),
            flying: Vec::new(),
            in_flight: false,
            watermark: record,
            complete: VecDeque::new(),
        }
    }

    /// The number that the next record gets.
    pub(super) fn next_record(&self) -> u64 {
        self.watermark + self.complete.len() as u64
    }

    /// All records below are complete.
    pub(super) fn watermark(&self) -> u64 {
        self.watermark
    }

    /// Records from the oldest incomplete one on.
    pub(super) fn unsettled(&self) -> usize {
        self.complete.len()
    }

    /// Number a record.
    pub(super) fn number(&mut self) -> u64 {
        let number = self.next_record();
        self.complete.push_back(false);
        number
    }

    /// A record is complete.
    pub(super) fn completed(&mut self, number: u64) {
        let index = number.checked_sub(self.watermark).and_then(|n| usize::try_from(n).ok());
        if let Some(flag) = index.and_then(|n| self.complete.get_mut(n)) {
            *flag = true;
        }
        while self.complete.front() == Some(&true) {
            self.complete.pop_front();
            self.watermark += 1;
        }
    }

    /// Go on with the other log.
    pub(super) fn switch(&mut self) {
        self.generation += 1;
        self.page = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_watermark_waits_for_the_oldest() {
        let mut log = Log::starting(1, 1, 10);
        let numbers: Vec<u64> = (0..4).map(|_| log.number()).collect();
        assert_eq!(numbers, [10, 11, 12, 13]);
        log.completed(11);
        log.completed(12);
        assert_eq!(log.watermark(), 10);
        log.completed(10);
        assert_eq!((log.watermark(), log.unsettled(), log.next_record()), (13, 1, 14));
    }
}
