//! A machine whose turns can be told from everything around them.

use driver::{Done, Machine, Outbox, Time};
use std::cell::Cell;
use std::rc::Rc;

/// What callgrind counts in: see `count`. The name is the one that is given to it.
pub(crate) const COUNTED: &str = "*hot_path::counted::turn*";

/// A machine; while `measured`, its turns run below a function of a name of its own.
pub(crate) struct Counted<M> {
    pub(crate) machine: M,
    pub(crate) measured: Rc<Cell<bool>>,
}

/// Everything that happens below here is counted, and nothing else.
#[inline(never)]
fn turn(act: impl FnOnce()) {
    act();
}

impl<M> Counted<M> {
    fn run(&mut self, act: impl FnOnce(&mut M)) {
        if self.measured.get() { turn(|| act(&mut self.machine)) } else { act(&mut self.machine) }
    }
}

impl<M: Machine> Machine for Counted<M> {
    type Mail = M::Mail;
    type Letter = M::Letter;

    fn start(&mut self, now: Time, out: &mut dyn Outbox<M::Letter>) {
        self.machine.start(now, out);
    }
    fn done(&mut self, now: Time, done: Done, out: &mut dyn Outbox<M::Letter>) {
        self.run(|machine| machine.done(now, done, out));
    }
    fn mail(&mut self, now: Time, mail: M::Mail, out: &mut dyn Outbox<M::Letter>) {
        self.machine.mail(now, mail, out);
    }
    fn end_turn(&mut self, now: Time, out: &mut dyn Outbox<M::Letter>) {
        self.run(|machine| machine.end_turn(now, out));
    }
    fn next_deadline(&self) -> Option<Time> {
        self.machine.next_deadline()
    }
    fn finished(&self) -> bool {
        self.machine.finished()
    }
}
