//! Puts the state together from a checkpoint and the two logs.

use super::checkpoint::Header;
use super::copies::{Copies, apply};
use super::limits::{GROUP_PAGES, MAX_UNSETTLED};
use super::log_page::PageHead;
use super::record::Record;
use crate::codec::Take;
use crate::opening::OpenError;
use conductor_model::BLOCK;
use std::collections::VecDeque;

/// Records that may follow the watermark: what the store lets run, and one group of the smallest records on top.
const MAX_PENDING: usize = MAX_UNSETTLED + GROUP_PAGES * BLOCK / 9;

/// The state so far, and where the chain of pages goes on.
#[derive(Debug)]
pub(super) struct Replay {
    pub(super) copies: Copies,
    /// Records whose data is not known to be there, in order.
    pub(super) pending: VecDeque<Record>,
    slots: u32,
    /// The page that comes next: its generation, its index in that log, its sequence.
    generation: u64,
    page: u32,
    sequence: u64,
    /// False when the chain ended in the log being read.
    alive: bool,
    watermark: u64,
    next_record: u64,
    /// The highest of what was seen, in the chain or not.
    newest_generation: u64,
    newest_sequence: u64,
    newest_group: u64,
}

impl Replay {
    /// On top of a loaded checkpoint. `newest` is the highest generation of any checkpoint header.
    pub(super) fn on(base: Header, newest: u64, copies: Copies, slots: u32) -> Self {
        Self {
            copies,
            pending: VecDeque::new(),
            slots,
            generation: base.generation,
            page: 0,
            sequence: base.first_sequence,
            alive: true,
            watermark: 0,
            next_record: base.first_record,
            newest_generation: newest,
            newest_sequence: base.first_sequence,
            newest_group: 0,
        }
    }

    /// A page of the log whose turn it is: all pages of the base's log first, in order, then those of the other one.
    pub(super) fn page(&mut self, page: Option<(PageHead, Take<'_>)>) -> Result<(), OpenError> {
        let Some((head, body)) = page else {
            self.alive = false;
            return Ok(());
        };
        self.newest_generation = self.newest_generation.max(head.generation);
        self.newest_sequence = self.newest_sequence.max(head.sequence);
        self.newest_group = self.newest_group.max(head.group);
        self.alive &= head.generation == self.generation && head.sequence == self.sequence;
        if !self.alive {
            return Ok(());
        }
        self.page += 1;
        self.sequence = self.sequence.checked_add(1).ok_or(OpenError::Damaged("page numbers"))?;
        let in_order = head.first_record == self.next_record
            && (self.watermark..=head.first_record).contains(&head.watermark)
            && head.group <= head.sequence;
        if !in_order {
            return Err(OpenError::Damaged("the order of log pages"));
        }
        self.watermark = head.watermark;
        let records = head.records(body, self.slots).ok_or(OpenError::Damaged("a log record"))?;
        self.next_record =
            self.next_record.checked_add(records.len() as u64).ok_or(OpenError::Damaged("record numbers"))?;
        self.pending.extend(records);
        // The number of the first one pending is `next_record - pending.len()`.
        while self.next_record - (self.pending.len() as u64) < self.watermark {
            let Some(record) = self.pending.pop_front() else { break };
            self.apply(&record, &|_| true)?;
        }
        if self.pending.len() > MAX_PENDING {
            return Err(OpenError::Damaged("the log's watermark"));
        }
        Ok(())
    }

    /// The base's log is read; the other one may continue it.
    pub(super) fn next_log(&mut self) {
        self.alive = true;
        self.generation = self.generation.saturating_add(1);
        self.page = 0;
    }

    /// Both logs are read: is anything missing? A page was written only when all before its group were durable.
    pub(super) fn check_end(&self) -> Result<(), OpenError> {
        if self.newest_group > self.sequence {
            return Err(OpenError::Damaged("the metadata log"));
        }
        Ok(())
    }

    /// Apply a record; `there(n)` says whether the n-th block's data is on the disk. A record of a copy that is not here belongs to
    /// one that is deleted further on.
    pub(super) fn apply(&mut self, record: &Record, there: &dyn Fn(usize) -> bool) -> Result<(), OpenError> {
        if let (Some(copy), Record::Write { at, .. } | Record::Zero { at, .. }) =
            (self.copies.get(&record.copy()), record)
            && !copy.contains(*at)
        {
            return Err(OpenError::Damaged("the range of a log record"));
        }
        apply(&mut self.copies, record, there, &mut |_| {});
        Ok(())
    }

    /// Where the store goes on: a generation never seen, and a page sequence that continues no chain, so that nothing of the
    /// logs read here can be taken for part of the new one, not even if the new checkpoint's header is lost.
    pub(super) fn continuation(&self) -> Option<Header> {
        Some(Header {
            generation: self.newest_generation.checked_add(1)?,
            chunks: 0,
            first_sequence: self.newest_sequence.max(self.sequence).checked_add(2)?,
            first_record: self.next_record,
        })
    }
}
