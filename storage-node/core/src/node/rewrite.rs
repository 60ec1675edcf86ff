//! A range that no repair fits is written again on every copy, with one copy's content: its metadata is lost. Of a snapshot, which is not
//! written to, it is read from another copy, each time; so it is where there is no room to write it, which the copy that has lost it
//! needs anew.

use super::Node;
use super::waits::ReplyWait;
use crate::iocb::{Iocb, IocbPhase, Kind, Refetch};
use crate::iocbs::IocbKey;
use crate::mail::Letter;
use crate::mend::Failure;
use crate::range_lock::Mode;
use conductor_model::BlockRange;
use driver::{Outbox, Time};
use memory::Class;
use node_protocol::{Status, op};
use node_store::{Store, View};
use tcp::{Lost, Payload};
use wire::{Body, Op};

impl<S: Store> Node<S> {
    /// Has a range written again on every copy, under the lock that `key` has and gives away here.
    pub(super) fn rewrite(&mut self, key: IocbKey, range: BlockRange) {
        let shard = self.iocbs[key].shard;
        let new = self.new_iocb(Iocb::internal(shard, Kind::Rewrite, range, IocbPhase::Locked));
        let arrival = self.iocbs[new].arrival;
        if let Some(primary) = self.primaries.get_mut(&shard) {
            primary.requests.insert(arrival, new);
            primary.locks.hand_over(key, new);
        }
        self.runnable.push_back(new);
    }

    /// Has a range of a snapshot, or one that there is no room to write again, read from another copy: the one here has lost what it was.
    pub(super) fn read_elsewhere(&mut self, key: IocbKey) {
        self.counters.count("read.elsewhere");
        let iocb = &mut self.iocbs[key];
        (iocb.heal.due, iocb.heal.refetch, iocb.heal.elsewhere) = (None, Refetch::default(), true);
        let mode = if iocb.kind.only_looks() { Mode::Shared } else { Mode::Exclusive };
        self.lock_again(key, mode);
    }

    /// Asks the next of the other copies for the range of a rewrite, or of what is read elsewhere.
    pub(super) fn start_refetch(&mut self, now: Time, key: IocbKey, out: &mut dyn Outbox<Letter>) -> bool {
        let Iocb { shard, range, view, .. } = self.iocbs[key];
        let elsewhere = self.iocbs[key].heal.elsewhere;
        let others = self.primaries.get(&shard).map_or(0, |p| p.others().count());
        if elsewhere && self.is_dropped(shard, view) {
            self.answer(now, key, Status::NoSnapshot);
            return true;
        }
        // What is not a snapshot another primary may have changed (rule 9).
        if elsewhere && view == View::Live && !self.lease_holds(now, shard) {
            self.counters.count("read.waits-for-lease");
            return false;
        }
        let first = self.iocbs[key].heal.refetch.next;
        if first >= others {
            if elsewhere && std::mem::take(&mut self.iocbs[key].heal.refetch.missed) {
                // Who was away may have it.
                self.iocbs[key].heal.refetch.next = 0;
                return false;
            }
            // No other copy has it.
            if elsewhere && self.iocbs[key].kind == Kind::Fill {
                self.piece_found_lost(now, key, out);
                return true;
            }
            if elsewhere {
                self.counters.count("read.unhealed");
                self.answer(now, key, Status::Io);
                return true;
            }
            return self.read_into(now, key, shard, range, IocbPhase::Reading, out);
        }
        // A rewrite is of what is newest of all: it waits for whoever is away.
        let last = if elsewhere { others } else { first + 1 };
        let begun = (first..last).find(|copy| self.ask_range(now, key, *copy));
        if let Some(copy) = begun {
            let iocb = &mut self.iocbs[key];
            iocb.heal.refetch.missed |= copy > first;
            (iocb.phase, iocb.heal.refetch.next) = (IocbPhase::Mending, copy);
        } else if elsewhere {
            // Who comes back first is asked, whoever has been asked before.
            (self.iocbs[key].heal.refetch.missed, self.iocbs[key].heal.refetch.next) = (false, 0);
        }
        begun.is_some()
    }

    /// Asks one of the other copies, by its number among them, for the content of an IOCB's range; false if its link has no room for that, or
    /// is down.
    pub(super) fn ask_range(&mut self, now: Time, key: IocbKey, other: usize) -> bool {
        let Iocb { shard, range, .. } = self.iocbs[key];
        let to = self.primaries.get(&shard).and_then(|p| p.others().nth(other)).map(|m| m.endpoint);
        self.ask_content(now, key, to, (op::REPLICA_READ, range, None), |hold| ReplyWait::Refetch { iocb: key, hold })
    }

    /// A copy's content for a rewrite, or for what is read elsewhere or settled with it; or none.
    pub(super) fn refetched(
        &mut self,
        now: Time,
        key: IocbKey,
        result: Result<(Op, Body, Option<Payload>), Lost>,
        out: &mut dyn Outbox<Letter>,
    ) {
        let Some(answer) = self.content_answered(now, key, result, out) else { return };
        let Iocb { shard, range, .. } = self.iocbs[key];
        let others = self.primaries.get(&shard).map_or(0, |p| p.others().count());
        let content =
            answer.and_then(|(_, p)| p.filter(|p| p.len as u64 == range.count.bytes().0).ok_or(Failure::Away));
        if self.iocbs[key].kind == Kind::Settle {
            self.settle_fetched(now, key, content, out);
            return;
        }
        let iocb = &mut self.iocbs[key];
        if iocb.withdrawn {
            self.counters.count("request.dropped");
            self.end_request(now, key);
            return;
        }
        iocb.phase = IocbPhase::Locked;
        match content {
            Ok(payload) if iocb.heal.elsewhere => self.read_there(now, key, &payload, out),
            Ok(payload) => self.copied(key, payload),
            Err(Failure::Away) if iocb.heal.elsewhere && iocb.heal.refetch.next + 1 < others => {
                (iocb.heal.refetch.missed, iocb.heal.refetch.next) = (true, iocb.heal.refetch.next + 1);
                self.runnable.push_back(key);
            }
            Err(Failure::Away) => {
                (iocb.heal.refetch.missed, iocb.heal.refetch.next) = (false, 0);
                self.stall(key);
            }
            Err(_) if iocb.heal.refetch.next < others || iocb.heal.elsewhere => {
                iocb.heal.refetch.next += 1;
                self.runnable.push_back(key);
            }
            Err(_) => self.not_rewritten(now, key),
        }
    }

    /// Another copy's content of a snapshot goes to whom it was read for.
    fn read_there(&mut self, now: Time, key: IocbKey, content: &Payload, out: &mut dyn Outbox<Letter>) {
        let class = if self.iocbs[key].kind == Kind::Fill { Class::Resync } else { Class::Work };
        let Some(mut data) = self.arena.take(content.len, class) else {
            self.counters.count("memory.waits");
            if !self.give_way(now, key) {
                self.stall(key);
            }
            return;
        };
        data.copy_from_slice(&content.mem[..content.len]);
        self.iocbs[key].phase = IocbPhase::Reading;
        self.read_well(now, key, data, content.crcs.clone(), out);
    }

    /// It stays damaged: whoever reads it will be told so.
    pub(super) fn not_rewritten(&mut self, now: Time, key: IocbKey) {
        self.counters.count("damage.not-rewritten");
        self.end_request(now, key);
    }
}
