//! Appends: queues records, and writes what is queued as groups.
//!
//! The first group never waits: with nothing in flight, whatever is queued at the end of a turn goes at once, so that a single
//! request pays one write. Behind a group in flight a second one goes only if it is at least half as large, in records: requests
//! that trickle in behind a large group wait for it and go together with those that its end brings back, instead of
//! splitting the load into a large group and crumbs for ever. What is more goes in two even parts, written side by side, if
//! each is worth its header: that is what a deep queue settles to.

use super::group::{self, Head};
use super::limits::{
    HEAD, MAX_BODY, MAX_FLYING, MAX_HEADER_BLOCKS, MAX_PAYLOAD_BLOCKS, MAX_RECORD_BLOCKS, MAX_RECORDS_BYTES,
    RESERVE_BLOCKS, SEAL_AFTER, WORTH_BLOCKS,
};
use super::order::{Group, Order};
use super::space::{Space, worst_cost, worst_echo};
use super::{Appended, JournalBlock, Mark, RingPlace, RingState};
use crate::DiskOut;
use conductor_model::BLOCK;
use driver::{Done, Errno, Op, Parts, Time};
use memory::{Arena, Class, Filling, Part};
use std::collections::VecDeque;

/// What waits for a group.
#[derive(Debug)]
struct Queued {
    key: u64,
    /// Bytes of its record in the queue; none for a barrier.
    bytes: usize,
    payload: Option<Part>,
    durable: bool,
    /// What the forecast sets aside for it.
    cost: u64,
}

/// What the journal did since it was opened.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct RingCounters {
    /// Groups with records written.
    pub(crate) groups: u64,
    /// Records in them.
    pub(crate) records: u64,
    /// Payload blocks in them.
    pub(crate) payload_blocks: u64,
    /// Blocks of their headers.
    pub(crate) header_blocks: u64,
    /// Seals written.
    pub(crate) seals: u64,
    /// Syncs sent for records behind others that were not stable.
    pub(crate) syncs: u64,
    /// Completions that belong to nothing.
    pub(crate) strays: u64,
}

/// The journal, open for appending. See the module's head for how it is used.
pub(crate) struct Ring {
    place: RingPlace,
    boot: u64,
    arena: Arena,
    space: Space,
    /// What the next group continues.
    head: Mark,
    /// The echo that the next group carries.
    echo: Vec<u8>,
    queue: VecDeque<Queued>,
    /// The records of the queue, one after the other.
    records: Vec<u8>,
    /// The sum of the queue's costs.
    queued_cost: u64,
    /// Payload blocks in the queue, and in flight.
    queued_blocks: u32,
    flying_blocks: u32,
    order: Order,
    /// Writes in flight, and the records in the newest one.
    flying: usize,
    newest_flying: usize,
    /// What the newest header says is durable.
    told_durable: u64,
    /// The newest group with records.
    newest_records: u64,
    seal_at: Option<Time>,
    stalled: bool,
    failed: Option<Errno>,
    /// Memory for headers, and lists of parts, between their uses.
    headers: Vec<Filling>,
    parts: Vec<Parts>,
    counters: RingCounters,
}

impl Ring {
    /// Goes on where a [`Scan`](super::Scan) ended. `None` if the arena has no memory for the headers.
    pub(crate) fn new(place: RingPlace, state: RingState, arena: &Arena) -> Option<Self> {
        let headers = (0..MAX_FLYING).map(|_| take_header(arena)).collect::<Option<Vec<_>>>()?;
        let RingState { boot, tail, head, echo, told_durable, newest_records } = state;
        Some(Self {
            place,
            boot,
            arena: arena.clone(),
            space: Space { blocks: place.blocks, head: head.position.0, tail: tail.position.0 },
            head,
            echo,
            queue: VecDeque::new(),
            records: Vec::new(),
            queued_cost: 0,
            queued_blocks: 0,
            flying_blocks: 0,
            order: Order::new(head),
            flying: 0,
            newest_flying: 0,
            told_durable,
            newest_records,
            seal_at: None,
            stalled: false,
            failed: None,
            headers,
            parts: Vec::new(),
            counters: RingCounters::default(),
        })
    }

    /// True if a record with such a body and payload has room, beside all that is queued. A forecast that errs to the safe side: what
    /// is appended without room is not lost, and overwrites nothing, but waits for a `trim` (see `stalled`).
    pub(crate) fn fits(&self, body: usize, payload_blocks: u32) -> bool {
        self.space.fits(worst_echo() + self.queued_cost + worst_cost(body, payload_blocks as usize))
    }

    /// Blocks that are not in use; some of them for headers, padding and seals. For deciding when to fold: see `fits` for the rest.
    pub(crate) fn free_blocks(&self) -> u32 {
        self.space.free()
    }

    /// True if what is queued has no room until the next `trim`.
    pub(crate) fn stalled(&self) -> bool {
        self.stalled
    }

    /// Queues a record: `body` is what a scan gives back, `payload` as many blocks of memory as there are checksums. It comes out
    /// of `next_finished` when it is stable, or when it is written if it need not be `durable`. After a failure, never.
    ///
    /// Panics if the record is over the limits ([`MAX_BODY`], [`MAX_RECORD_BLOCKS`]) or the payload is not as long as its checksums.
    pub(crate) fn append(&mut self, key: u64, body: &[u8], payload: Option<Part>, crcs: &[u32], durable: bool) {
        assert!(body.len() <= MAX_BODY && crcs.len() <= MAX_RECORD_BLOCKS as usize, "a record over the limits");
        assert_eq!(payload.as_ref().map_or(0, |part| part.len), crcs.len() * BLOCK, "payload and checksums differ");
        if self.failed.is_some() {
            return;
        }
        let before = self.records.len();
        group::put_record(body, crcs, &mut self.records);
        let (bytes, cost) = (self.records.len() - before, worst_cost(body.len(), crcs.len()));
        self.queued_cost += cost;
        let payload = payload.filter(|part| part.len > 0);
        self.queued_blocks += payload.as_ref().map_or(0, part_blocks);
        self.queue.push_back(Queued { key, bytes, payload, durable, cost });
    }

    /// Comes out of `next_finished` when all that was appended before is stable.
    pub(crate) fn barrier(&mut self, key: u64) {
        if self.failed.is_none() {
            self.queue.push_back(Queued { key, bytes: 0, payload: None, durable: true, cost: 0 });
        }
    }

    /// The end of a turn: writes what is queued, syncs where it takes one, seals what has rested.
    pub(crate) fn end_turn(&mut self, now: Time, out: &mut DiskOut<'_>) {
        if self.failed.is_some() {
            return;
        }
        self.stalled = false;
        self.take_barriers();
        while !self.queue.is_empty() && self.may_write() {
            if !self.write_group(out) {
                self.stalled = true;
                break;
            }
            self.take_barriers();
        }
        self.order.settle();
        if self.order.begin_sync().is_some() {
            self.counters.syncs += 1;
            out(Op::DiskSync { disk: self.place.disk, tag: self.place.tag(0) });
        }
        self.seal_when_rested(now, out);
    }

    /// An operation of the ring is over. The first failure is the last word: nothing is reported, or written, after it.
    pub(crate) fn done(&mut self, done: Done) -> Result<(), Errno> {
        let known = match done.op {
            Op::DiskWrite { tag, mut parts, .. } => {
                let payload = parts.iter().skip(1).map(part_blocks).sum::<u32>();
                self.flying_blocks = self.flying_blocks.saturating_sub(payload);
                self.keep_header(&mut parts);
                self.flying = self.flying.saturating_sub(1);
                // Ours until it is known to have failed: then it is not marked as written.
                self.note(done.result);
                self.failed.is_some() || self.order.written(tag & ((1 << 56) - 1))
            }
            Op::DiskSync { .. } => {
                self.note(done.result);
                self.failed.is_some() || self.order.synced()
            }
            _ => false,
        };
        self.counters.strays += u64::from(!known);
        self.failed.map_or(Ok(()), Err)
    }

    /// The next record that is over, in the order of `append`.
    pub(crate) fn next_finished(&mut self) -> Option<Appended> {
        self.order.next_finished()
    }

    /// All that is written now is covered by a sync of the ring's disk that is sent now. For `synced`.
    pub(crate) fn sync_point(&self) -> u64 {
        self.order.written_through()
    }

    /// True if all before `mark` is stable.
    pub(crate) fn is_stable_before(&self, mark: Mark) -> bool {
        self.order.durable_through() >= mark.sequence - 1
    }

    /// A sync of the ring's disk that the caller sent at `sync_point` is over.
    pub(crate) fn synced(&mut self, point: u64) {
        if self.failed.is_none() {
            self.order.stable(point);
        }
    }

    /// The oldest block that is needed.
    pub(crate) fn tail(&self) -> JournalBlock {
        JournalBlock(self.space.tail)
    }

    /// Behind the last group of which `next_finished` gave all, and before all that it has not given.
    pub(crate) fn mark(&self) -> Mark {
        self.order.mark()
    }

    /// All before `to`, a former `mark`, is not needed any more: the superblocks say so, durably.
    pub(crate) fn trim(&mut self, to: Mark) {
        self.space.tail = to.position.0;
        self.told_durable = self.told_durable.max(to.sequence - 1); // nobody will look for proof of those
        self.synced(to.sequence - 1);
    }

    /// When `end_turn` has something to do although nothing happened.
    pub(crate) fn next_deadline(&self) -> Option<Time> {
        self.seal_at
    }

    /// True if nothing is queued or in flight. A rested journal may still want to be sealed.
    pub(crate) fn idle(&self) -> bool {
        let settled = self.failed.is_some() || (self.queue.is_empty() && self.order.idle());
        self.flying == 0 && settled
    }

    /// What happened since it was opened.
    pub(crate) fn counters(&self) -> RingCounters {
        self.counters
    }

    fn note(&mut self, result: Result<u32, Errno>) {
        if let (Err(errno), None) = (result, self.failed) {
            self.failed = Some(errno);
            self.seal_at = None;
            self.stalled = false;
            self.queue.clear();
            self.records.clear();
            (self.queued_cost, self.queued_blocks) = (0, 0);
        }
    }

    fn may_write(&self) -> bool {
        match self.flying {
            0 => true,
            1..MAX_FLYING => self.queue.len() * 2 >= self.newest_flying || self.queued_blocks >= self.even_part(),
            _ => false,
        }
    }

    /// Payload blocks of a group if all that is queued and in flight went in even parts.
    fn even_part(&self) -> u32 {
        #[expect(clippy::cast_possible_truncation, reason = "a few")]
        let parts = MAX_FLYING as u32;
        ((self.queued_blocks + self.flying_blocks) / parts).max(WORTH_BLOCKS)
    }

    /// Barriers in front wait for the groups that were built.
    fn take_barriers(&mut self) {
        while self.queue.front().is_some_and(|first| first.bytes == 0) {
            let Some(Queued { key, .. }) = self.queue.pop_front() else { break };
            let mut records = self.order.list();
            records.push(Appended { key, payload: None });
            self.order.push(Group {
                sequence: self.head.sequence - 1,
                end: self.head,
                stable_write: false,
                needs_stable: true,
                written: true,
                records,
            });
        }
    }

    /// How many of the queue go into the next group, the bytes of their records and their payload blocks: an even part, or all if
    /// what is left were not worth a group; as many as the limits and the room allow, up to a barrier.
    fn gather(&self) -> (usize, usize, u32) {
        let largest = self.space.largest(RESERVE_BLOCKS);
        let part = self.even_part();
        let part = if self.queued_blocks >= part + WORTH_BLOCKS { part } else { u32::MAX };
        let (mut count, mut bytes, mut blocks) = (0, 0, 0);
        for next in self.queue.iter().take_while(|next| next.bytes > 0) {
            let with_bytes = bytes + next.bytes;
            let with_blocks = blocks + next.payload.as_ref().map_or(0, part_blocks);
            if blocks >= part && with_blocks > blocks {
                break;
            }
            let size = group::header_blocks(with_bytes, self.echo.len()) + with_blocks;
            if with_bytes > MAX_RECORDS_BYTES || with_blocks > MAX_PAYLOAD_BLOCKS || size > largest {
                break;
            }
            (count, bytes, blocks) = (count + 1, with_bytes, with_blocks);
        }
        (count, bytes, blocks)
    }

    /// Writes one group of what is queued; false if there is no room, or no memory.
    fn write_group(&mut self, out: &mut DiskOut<'_>) -> bool {
        let (count, bytes, payload_blocks) = self.gather();
        let size = group::header_blocks(bytes, self.echo.len()) + payload_blocks;
        let Some(at) = self.space.place(size, RESERVE_BLOCKS).filter(|_| count > 0) else { return false };
        let Some(memory) = self.headers.pop().or_else(|| take_header(&self.arena)) else { return false };
        // A barrier right behind wants what is before it stable: so it is at once.
        let barrier = self.queue.get(count).is_some_and(|next| next.bytes == 0);
        let needs_stable = self.queue.iter().take(count).any(|next| next.durable);
        let stable_write = (needs_stable || barrier) && !self.order.unstable();
        let mut records = self.order.list();
        let mut parts = self.parts.pop().unwrap_or_default();
        let mut payload = at + (size - payload_blocks);
        let (header, sequence, end) = self.build(at, bytes, payload_blocks, memory);
        parts.push(header);
        for next in self.queue.drain(..count) {
            self.queued_cost -= next.cost;
            let first = next.payload.as_ref().map(|_| JournalBlock(payload));
            records.push(Appended { key: next.key, payload: first });
            if let Some(part) = next.payload {
                payload += part_blocks(&part);
                parts.push(part);
            }
        }
        self.records.drain(..bytes);
        self.queued_blocks -= payload_blocks;
        self.flying_blocks += payload_blocks;
        self.newest_records = sequence;
        self.counters.groups += 1;
        self.counters.records += count as u64;
        self.counters.payload_blocks += u64::from(payload_blocks);
        self.counters.header_blocks += u64::from(size - payload_blocks);
        self.order.push(Group { sequence, end, stable_write, needs_stable, written: false, records });
        self.send(at, sequence, count, parts, stable_write, out);
        true
    }

    /// Writes the header of the next group, which is at `at`, and moves the head behind it.
    fn build(&mut self, at: u32, bytes: usize, payload_blocks: u32, mut memory: Filling) -> (Part, u64, Mark) {
        let head = Head {
            disk: self.place.disk_id,
            boot: self.boot,
            at: Mark { position: JournalBlock(at), ..self.head },
            durable_through: self.order.durable_through(),
            payload_blocks,
        };
        let blocks = group::header_blocks(bytes, self.echo.len());
        let crc = group::encode(&head, &self.records[..bytes], &mut self.echo, &mut memory);
        let end = head.end(blocks, crc, self.place.blocks);
        self.head = end;
        self.space.head = end.position.0;
        self.told_durable = head.durable_through;
        let header = Part { mem: memory.filled(), from: 0, len: blocks as usize * BLOCK };
        (header, head.at.sequence, end)
    }

    fn send(&mut self, at: u32, sequence: u64, records: usize, parts: Parts, durable: bool, out: &mut DiskOut<'_>) {
        self.flying += 1;
        self.newest_flying = records;
        self.seal_at = None;
        let (disk, tag) = (self.place.disk, self.place.tag(sequence));
        out(Op::DiskWrite { disk, tag, at: self.place.position_bytes(JournalBlock(at)), parts, durable });
    }

    /// True if a group with records is stable, and no header says so yet.
    fn wants_seal(&self) -> bool {
        self.told_durable < self.newest_records.min(self.order.durable_through())
    }

    fn seal_when_rested(&mut self, now: Time, out: &mut DiskOut<'_>) {
        if !self.idle() || !self.wants_seal() {
            self.seal_at = None;
            return;
        }
        if now < *self.seal_at.get_or_insert(now + SEAL_AFTER) {
            return;
        }
        let size = group::header_blocks(0, self.echo.len());
        let place = self.space.place(size, 1);
        let memory = place.and_then(|_| self.headers.pop().or_else(|| take_header(&self.arena)));
        let (Some(at), Some(memory)) = (place, memory) else {
            self.seal_at = Some(now + SEAL_AFTER); // when a trim or memory has come
            return;
        };
        let stable_write = !self.order.unstable();
        let (header, sequence, end) = self.build(at, 0, 0, memory);
        let mut parts = self.parts.pop().unwrap_or_default();
        parts.push(header);
        let records = self.order.list();
        self.counters.seals += 1;
        self.order.push(Group { sequence, end, stable_write, needs_stable: false, written: false, records });
        self.send(at, sequence, 0, parts, stable_write, out);
    }

    /// The header's memory and the list of parts are used again.
    fn keep_header(&mut self, parts: &mut Parts) {
        let mut parts = std::mem::take(parts);
        let header = parts.drain(..).next();
        if let Some(Ok(memory)) = header.map(|part| part.mem.try_filling())
            && self.headers.len() < MAX_FLYING
        {
            self.headers.push(memory);
        }
        if self.parts.len() < MAX_FLYING {
            self.parts.push(parts);
        }
    }
}

fn take_header(arena: &Arena) -> Option<Filling> {
    arena.take(MAX_HEADER_BLOCKS as usize * BLOCK, Class::Work)
}

/// Blocks of a record's payload.
fn part_blocks(part: &Part) -> u32 {
    u32::try_from(part.len / BLOCK).unwrap_or(u32::MAX) // at most MAX_RECORD_BLOCKS
}

/// The memory of a header holds what `gather` lets into one: records, and the echo of as many.
const _: () = assert!(2 * (HEAD + MAX_RECORDS_BYTES) <= MAX_HEADER_BLOCKS as usize * BLOCK);
