//! How the world goes on: each event in its place, and the turns of the machines.
//!
//! What is over waits in its process's ready list until the turn that was planned for it; a turn delivers some or all of it,
//! ends, and only then are its operations executed, in order, as a driver that submits once per turn does.

use crate::kernel::{Event, ProcessId};
use crate::process::{Body, Item, State};
use crate::world::{News, World};
use driver::{DiskIndex, Op, Time};

/// Turns in a row that bring nothing and leave a deadline due: a machine that does that would burn its core.
const MOST_SPINS: u32 = 1_000;

impl<A, L> World<A, L> {
    pub(crate) fn happen(&mut self, event: Event) {
        let k = &mut self.k;
        match event {
            Event::Turn { process, life } => {
                let wanted = self.processes[process.index()].turn_at == Some(k.now);
                if k.lives(process, life) && wanted {
                    self.turn(process);
                }
            }
            Event::Complete { process, life, done } => {
                if k.lives(process, life) {
                    self.ready(process, Item::Done(done));
                }
            }
            Event::Mail { process, life, mail } => {
                if k.lives(process, life) {
                    self.ready(process, Item::Mail(mail));
                } else {
                    k.trace.count("mail.lost");
                    self.mails.remove(&mail);
                }
            }
            Event::Syn { process, life, op, give_up } => {
                if k.lives(process, life) {
                    self.network.syn(k, process, op, give_up);
                }
            }
            Event::Closed { process, life, op } => {
                if k.lives(process, life) {
                    self.network.closed(k, process, *op);
                }
            }
            Event::Established { at } => self.network.established(k, at),
            Event::Transmit { at } => self.network.transmit(k, at),
            Event::Arrive { from } => self.network.arrive(k, from),
            Event::Reset { at } => self.network.reset(k, at),
            Event::GiveUp { at, since } => self.network.give_up(k, at, since),
            Event::Apply { disk, flight } => self.disks.apply(k, disk, flight),
            Event::Landed { disk, flight } => self.disks.landed(k, disk, flight),
            Event::Alarm { id } => self.news.push_back(News::Alarm(id)),
        }
    }

    fn ready(&mut self, process: ProcessId, item: Item) {
        self.processes[process.index()].ready.push_back(item);
        let wait = self.options.wake.sample(&mut self.k.rng);
        self.plan_turn(process, self.k.now + wait);
    }

    /// Plans a turn for `at`, unless an earlier one is planned.
    pub(crate) fn plan_turn(&mut self, process: ProcessId, at: Time) {
        let it = &mut self.processes[process.index()];
        if it.turn_at.is_none_or(|planned| at < planned) {
            it.turn_at = Some(at);
            let life = self.k.host(process).life;
            self.k.schedule(at, Event::Turn { process, life });
        }
    }

    fn turn(&mut self, process: ProcessId) {
        let it = &mut self.processes[process.index()];
        it.turn_at = None;
        if self.k.host(process).state == State::Paused {
            return;
        }
        let Some(mut body) = it.body.take() else { return };
        let now = self.k.local(process);
        let some = it.ready.len();
        let batch =
            if some > 1 && self.k.rng.chance(self.options.partial_batch_ppm) { self.k.rng.up_to(some) } else { some };
        let was_due = body.next_deadline().is_some_and(|at| at <= now);
        for item in it.ready.drain(..batch) {
            match item {
                Item::Done(done) => {
                    self.k.trace.done(self.k.now, process, &done);
                    self.k.returned(process, &done.op);
                    self.network.returned(process, &done.op);
                    body.done(now, *done, &mut self.out);
                }
                Item::Mail(mail) => {
                    self.k.trace.event(self.k.now, process, "mail");
                    let fits = self.mails.remove(&mail).is_some_and(|mail| body.mail(now, mail, &mut self.out));
                    if !fits {
                        self.k.broken(process, format_args!("the test sent it mail for another kind of machine"));
                    }
                }
            }
        }
        body.end_turn(now, &mut self.out);
        let still_due = body.next_deadline().is_some_and(|at| at <= now);
        it.spins = if batch == 0 && was_due && still_due { it.spins + 1 } else { 0 };
        if it.spins > MOST_SPINS {
            self.k.broken(process, format_args!("its deadline {:?} stays due at {now:?}", body.next_deadline()));
        }
        self.k.trace.count("turn");
        self.after_turn(process, body);
    }

    /// Executes what a turn asked for, and plans the next one.
    pub(crate) fn after_turn(&mut self, process: ProcessId, body: Box<dyn Body<A, L>>) {
        let life = self.k.host(process).life;
        for letter in self.out.letters.drain(..) {
            self.k.trace.event(self.k.now, process, "letter");
            self.news.push_back(News::Letter { from: process, life, letter });
        }
        let finished = body.finished();
        let deadline = body.next_deadline();
        self.processes[process.index()].body = Some(body);
        let mut ops = std::mem::take(&mut self.out.ops);
        for op in ops.drain(..) {
            self.k.submitted(process, &op);
            self.execute(process, op);
        }
        self.out.ops = ops;
        if finished {
            return self.finish(process);
        }
        let it = &self.processes[process.index()];
        if !it.ready.is_empty() {
            let wait = self.options.wake.sample(&mut self.k.rng);
            self.plan_turn(process, self.k.now + wait);
        }
        if let Some(deadline) = deadline {
            let host = self.k.host(process);
            let due = host.clock.world(host.boot, deadline).max(self.k.now);
            let late = self.options.oversleep.sample(&mut self.k.rng);
            self.plan_turn(process, due + late);
        }
    }

    fn execute(&mut self, process: ProcessId, op: Op) {
        let (Op::DiskRead { disk, .. }
        | Op::DiskWrite { disk, .. }
        | Op::DiskPunch { disk, .. }
        | Op::DiskSync { disk, .. }) = &op
        else {
            return self.network.submit(&mut self.k, process, op);
        };
        let DiskIndex(index) = *disk;
        match self.processes[process.index()].disks.get(index as usize) {
            Some(&disk) => self.disks.submit(&mut self.k, process, disk, op),
            None => self.k.broken(process, format_args!("it has no disk {index}")),
        }
    }

    /// A machine has stopped by itself: nothing is lost, and its disks are free.
    fn finish(&mut self, process: ProcessId) {
        // Accepts have no end of their own: the driver takes them back.
        let busy = self.k.host(process).outstanding.iter().skip(1).any(|n| *n > 0);
        if busy {
            self.k.broken(process, format_args!("it says that it has finished, but:\n{}", self.report()));
        }
        self.k.trace.event(self.k.now, process, "process.finished");
        self.bury(process, false);
        for disk in &self.processes[process.index()].disks {
            self.disks.get_mut(*disk).holder = None;
        }
        self.news.push_back(News::Finished(process));
    }
}
