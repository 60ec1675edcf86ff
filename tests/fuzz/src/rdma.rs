//! A peer on a queue pair that says what it likes, to either side of a link, in any order with our own operations and their completions.
//!
//! The first byte says which side we are; then, over and over, one what happens: a message (immediate, length, bytes), the oldest work is over,
//! a receive of so many KiB, a send of one part of so many.

use crate::arena;
use crate::input::Input;
use driver::{Conn, ConnId, Op, Provider, StreamId, why};
use memory::{Arena, Class};
use rdma_link::{End, Failed, Finished, Link, Out, RX, Received, SAYING, SLOT, WINDOWS, Work};
use refcount::{Hold, Table};
use smallvec::smallvec;
use std::collections::VecDeque;

const STREAM: StreamId = StreamId(7);

struct Side {
    link: Link,
    arena: Arena,
    owner: Hold<Conn, why::Owner>,
    out: Out,
    receives: VecDeque<Work>,
    works: VecDeque<Work>,
    open: Vec<Work>,
}

pub(crate) fn target(data: &[u8]) {
    let mut input = Input::new(data);
    let (arena, conns) = (arena::shared(), Table::new());
    let before = arena.in_use();
    let conn = Conn::new(ConnId { slot: 1, generation: 1 }, Provider::Framed);
    let mut side = Side::new(input.u8().is_multiple_of(2), arena.clone(), conns.insert(conn));
    while !input.is_empty() && side.link.ended().is_none() {
        match input.u8() % 4 {
            0 => side.message(&mut input),
            1 => side.complete(),
            2 => side.receive(usize::from(input.u8())),
            _ => side.send(usize::from(input.u8())),
        }
    }
    side.end();
    drop(side);
    while conns.reap().is_some() {}
    assert!(conns.leaks().is_ok());
    assert_eq!(arena.in_use(), before, "memory is where it was");
}

impl Side {
    fn new(connecting: bool, arena: Arena, owner: Hold<Conn, why::Owner>) -> Self {
        let mut out = Out::default();
        let slots = (0..RX).filter_map(|_| arena.take(SLOT, Class::Settle)).collect();
        let keys = (0..u32::from(WINDOWS)).map(|window| window << 8).collect();
        let link = Link::new(connecting, STREAM, slots, keys, &mut out);
        let (receives, works) = (VecDeque::new(), VecDeque::new());
        let mut side = Self { link, arena, owner, out, receives, works, open: Vec::new() };
        side.link.up(RX, RX, &mut side.out);
        side.take();
        side
    }

    fn take(&mut self) {
        for work in self.out.works.drain(..) {
            if matches!(work, Work::Receive { .. }) { &mut self.receives } else { &mut self.works }.push_back(work);
        }
        self.out.dones.clear();
    }

    fn finished(&mut self, work: Work, result: Result<Received, Failed>) {
        self.link.finished(Finished { work, result }, &mut self.out);
        self.take();
    }

    /// One that finds no receive never arrives.
    fn message(&mut self, input: &mut Input<'_>) {
        let (immediate, len) = (u32::from_be_bytes(input.array()), usize::from(input.u8()));
        let Some(Work::Receive { mut into }) = self.receives.pop_front() else { return };
        let bytes = input.bytes(len);
        into[..bytes.len()].copy_from_slice(bytes);
        self.finished(Work::Receive { into }, Ok(Received { len: bytes.len(), immediate }));
    }

    fn complete(&mut self) {
        match self.works.pop_front() {
            Some(work @ Work::Open { .. }) => self.open.push(work),
            Some(Work::Shut { window: shut, key }) => {
                let its = |work: &Work| matches!(work, Work::Open { window, .. } if *window == shut);
                let at = self.open.iter().position(its).expect("what is shut was open");
                let open = self.open.swap_remove(at);
                self.finished(Work::Shut { window: shut, key }, Ok(Received::default()));
                self.finished(open, Ok(Received::default()));
            }
            Some(work) => self.finished(work, Ok(Received::default())),
            None => {}
        }
    }

    fn receive(&mut self, kib: usize) {
        let Some(into) = self.arena.take((1 + kib) << 10, Class::Client) else { return };
        self.link.submit(Op::Recv { stream: STREAM, on: self.owner.share(), into, from: 0 }, &mut self.out);
        self.take();
    }

    fn send(&mut self, kib: usize) {
        let Some(mem) = self.arena.take((1 + kib) << 10, Class::Client) else { return };
        let parts = smallvec![mem.filled().whole()];
        self.link.submit(Op::Send { stream: STREAM, on: smallvec![self.owner.share()], parts }, &mut self.out);
        self.take();
    }

    /// The queue pair is in error, drained and destroyed: everything has come back, whatever the peer said.
    fn end(&mut self) {
        self.link.lost(End::Failed, &mut self.out);
        self.take();
        let left: Vec<_> = self.receives.drain(..).chain(self.works.drain(..)).chain(self.open.drain(..)).collect();
        for work in left {
            self.finished(work, Err(Failed::Flushed));
        }
        self.link.forget();
        assert!(self.receives.is_empty() && self.works.is_empty(), "nothing is asked of a queue pair that is in error");
        assert!(!self.link.outstanding() && self.link.posted() == 0, "{:?}", self.link);
    }
}

/// What legal peers say: a stream's bytes; a part that is lent and read; a part that is offered, granted and given.
pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let message = |kind: u8, bytes: &[u8]| [&[0, kind, 0, 0, 0, length(bytes)][..], bytes].concat();
    let about = |kib: u32| [&[0; 8][..], &(kib << 10).to_le_bytes(), &[0; 4]].concat();
    assert_eq!(about(1).len(), SAYING);
    vec![
        [vec![0, 2, 3], message(1, b"bytes"), vec![3, 2, 1, 1]].concat(),
        [vec![1, 2, 63], message(2, &about(64)), vec![1, 1, 1]].concat(),
        [vec![0, 3, 63, 1, 1], message(5, &about(64)), vec![1, 1, 1]].concat(),
        [vec![0, 2, 63], message(3, &about(64)), vec![1, 1], message(6, &about(64)), vec![1, 1]].concat(),
        [vec![1, 3, 63, 1], message(4, &about(64)), vec![1, 1, 1]].concat(),
        [vec![0], message(7, &[])].concat(),
    ]
}

fn length(bytes: &[u8]) -> u8 {
    u8::try_from(bytes.len()).unwrap_or(u8::MAX)
}
