//! Who comes in: a peer that has proved who it is, and whom it displaces (rules 8, 19 and 24).

use super::{Node, Visitor};
use crate::iocb::IocbPhase;
use crate::iocbs::IocbKey;
use crate::limits::{MAX_CLIENT_CONNS, MAX_KEY_CONNS};
use crate::mail::Letter;
use crate::replica::Caller;
use crate::session::{Refusal, Wanted};
use conductor_model::api::KeyList;
use conductor_model::{AttachGeneration, Incarnation, SnapshotId, VolumeId};
use driver::{ConnId, Outbox, Time};
use node_store::{Store, View};
use tcp::Admission;
use wire::{HelloInfo, READ_ONLY, Reason, Role, SHARED, SessionId};

impl<S: Store> Node<S> {
    /// A peer has proved who it is and wants in. A client's older connections are fenced before it is let in (rule 8).
    pub(super) fn hello(&mut self, now: Time, conn: ConnId, peer: &HelloInfo, out: &mut dyn Outbox<Letter>) {
        if self.stopping {
            self.net.reject_peer(now, conn, Reason::Stopping, out);
            return;
        }
        if peer.role == Role::Node {
            // What an older connection of that reactor still carries must not be taken after what the new one brings.
            let same = |v: &Visitor| matches!(v, Visitor::Node { name, caller } if *name == peer.name && caller.lane == peer.lane);
            let older: Vec<ConnId> = self.visitors.iter().filter(|(_, v)| same(v)).map(|(conn, _)| *conn).collect();
            for old in older {
                self.counters.count("node.fenced");
                self.visitors.remove(&old);
                self.net.close(now, old, Reason::Fenced, out);
            }
            let visitor =
                Visitor::Node { name: peer.name.clone(), caller: Caller { process: peer.process, lane: peer.lane } };
            self.promises.withheld.meets(&peer.name, Caller { process: peer.process, lane: peer.lane });
            self.visitors.insert(conn, visitor);
            self.accept(now, conn, out);
            return;
        }
        let key = peer.card.as_ref().map(|card| card.serial);
        let clients = |its: bool| {
            let counts = |v: &&Visitor| matches!(v, Visitor::Client { key: of } if !its || *of == key);
            self.visitors.values().filter(counts).count()
        };
        let crowds = || key.is_some() && clients(true) >= MAX_KEY_CONNS;
        if clients(false) >= MAX_CLIENT_CONNS || crowds() {
            self.counters.count("hello.refused");
            self.net.reject_peer(now, conn, Reason::Busy, out);
            return;
        }
        if let Err(reason) = self.check_card(peer) {
            self.counters.count("hello.refused");
            self.net.reject_peer(now, conn, reason, out);
            return;
        }
        let wanted = Wanted {
            client: &peer.name,
            volume: VolumeId(peer.volume),
            generation: AttachGeneration(peer.generation),
            incarnation: Incarnation(peer.incarnation),
            lane: peer.lane,
            view: if peer.view == 0 { View::Live } else { View::Snapshot(SnapshotId(peer.view)) },
            read_only: peer.view != 0 || peer.features & READ_ONLY != 0,
            shared: peer.features & SHARED != 0,
        };
        match self.sessions.admit(conn, &wanted) {
            Ok((_, fence)) => {
                self.fence(now, &fence, out);
                self.visitors.insert(conn, Visitor::Client { key: peer.card.as_ref().map(|card| card.serial) });
                self.accept(now, conn, out);
            }
            Err(why) => {
                self.counters.count("hello.refused");
                let reason = match why {
                    Refusal::Fenced => Reason::Fenced,
                    Refusal::Busy => Reason::Busy,
                };
                self.net.reject_peer(now, conn, reason, out);
            }
        }
    }

    /// Whether what a client's key is for covers what it wants. Who has none has the cluster's, which is for everything.
    fn check_card(&self, peer: &HelloInfo) -> Result<(), Reason> {
        let Some(card) = &peer.card else { return Ok(()) };
        match &self.keys {
            Some(keys) if keys.valid.contains(&card.serial) => {}
            Some(keys) if card.serial <= keys.upto => return Err(Reason::Fenced),
            // It may have been added just now: it is asked for again.
            _ => return Err(Reason::Busy),
        }
        let writes = peer.view == 0 && peer.features & READ_ONLY == 0;
        let its_own = card.is_for(peer.volume) || driver::mutant::on("card_not_checked");
        // A generation fences others: it is the conductor's to give. A snapshot's readers have none.
        let given = peer.view != 0 || self.net.is_attached(peer) || driver::mutant::on("ticket_not_checked");
        if its_own && given && !(writes && card.read_only) { Ok(()) } else { Err(Reason::Denied) }
    }

    /// The conductor has said which keys there are: clients of others are cut off.
    pub(super) fn keys_named(&mut self, now: Time, mut keys: KeyList, out: &mut dyn Outbox<Letter>) {
        // No serial is given out twice: what was removed once stays so, whatever is said late.
        if let Some(known) = &self.keys {
            if keys.upto < known.upto {
                return;
            }
            keys.valid.retain(|serial| *serial > known.upto || known.valid.contains(serial));
        }
        let removed = |v: &Visitor| matches!(v, Visitor::Client { key: Some(key) } if !keys.valid.contains(key));
        let theirs: Vec<ConnId> = self.visitors.iter().filter(|(_, v)| removed(v)).map(|(conn, _)| *conn).collect();
        for conn in &theirs {
            self.sessions.gone(*conn);
        }
        self.fence(now, &theirs, out);
        self.keys = Some(keys);
    }

    fn accept(&mut self, now: Time, conn: ConnId, out: &mut dyn Outbox<Letter>) {
        self.last_session += 1;
        let admission =
            Admission { hello: Self::hello_info(&self.options, &self.disks), session: SessionId(self.last_session) };
        self.net.accept_peer(now, conn, admission, out);
    }

    /// Closes connections and drops their unstamped requests. Stamped ones run on under their locks.
    pub(super) fn fence(&mut self, now: Time, conns: &[ConnId], out: &mut dyn Outbox<Letter>) {
        if driver::mutant::on("no_fencing") {
            return;
        }
        for conn in conns {
            self.counters.count("session.fenced");
            self.drop_unstamped(now, *conn);
            self.net.close(now, *conn, Reason::Fenced, out);
        }
        if !conns.is_empty() {
            self.ranges_left(now);
        }
    }

    /// Nobody waits for these requests any more, and they have not been stamped: they never will be.
    pub(super) fn drop_unstamped(&mut self, now: Time, conn: ConnId) {
        let theirs: Vec<IocbKey> =
            self.iocbs.iter().filter(|(_, i)| i.conn == Some(conn) && !i.is_over()).map(|(key, _)| key).collect();
        for key in theirs {
            match self.iocbs[key].phase {
                // It is finished all the same, but nobody is left to answer.
                IocbPhase::Stamped | IocbPhase::BehindBarrier => self.iocbs[key].answer = None,
                // The store still reads for it: it goes when that is done.
                IocbPhase::Merging | IocbPhase::Reading | IocbPhase::Mending | IocbPhase::Filling => {
                    self.iocbs[key].withdrawn = true
                }
                // A copy that was added may have it under its former stamp, and nothing settles that.
                IocbPhase::Ready if self.iocbs[key].stamp.is_some() => {
                    self.iocbs[key].answer = None;
                }
                IocbPhase::Queued | IocbPhase::Locked | IocbPhase::Ready => {
                    self.counters.count("request.dropped");
                    self.end_request(now, key);
                }
            }
        }
    }
}
