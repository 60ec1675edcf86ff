//! From messages to `Recv`: what arrived, in the order of the stream, and the one receive that waits for it.

use driver::{Conn, Done, Errno, Op, why};
use memory::Filling;
use refcount::Hold;

use crate::link::{End, Link, Out, refusal};
use crate::message::{Kind, Saying};
use crate::windows::Window;
use crate::work::{Lent, Work};

/// The next piece of the stream.
#[derive(Debug)]
pub(crate) enum Arrived {
    /// In a slot.
    Bytes { mem: Filling, at: usize, end: usize },
    /// In the peer's memory, to be read.
    Lent { at: u64, rest: u32, key: u32 },
    /// In the peer's memory, to be written by it.
    Offered { rest: u32 },
}

/// A `Recv` that is not over.
#[derive(Debug)]
pub(crate) struct Receive {
    on: Hold<Conn, why::Rx>,
    /// Away while the device or the peer may write to it.
    into: Option<Filling>,
    from: usize,
    /// Open to the peer, for so many bytes; then what it said it wrote.
    open: Option<(Window, u32, Option<u32>)>,
}

impl Receive {
    pub(crate) fn new(on: Hold<Conn, why::Rx>, into: Filling, from: usize) -> Self {
        Self { on, into: Some(into), from, open: None }
    }
}

impl Link {
    /// Moves what has arrived to where it is wanted.
    pub(crate) fn receive_on(&mut self, out: &mut Out) {
        let Some(mut into) = self.receive.as_mut().and_then(|receive| receive.into.take()) else { return };
        let from = self.receive.as_ref().map_or(0, |receive| receive.from).min(into.len());
        let mut to = from;
        while let Some(Arrived::Bytes { mem, at, end }) = self.arrived.front_mut().filter(|_| to < into.len()) {
            let n = (into.len() - to).min(*end - *at);
            into[to..to + n].copy_from_slice(&mem[*at..*at + n]);
            (*at, to) = (*at + n, to + n);
            if at == end
                && let Some(Arrived::Bytes { mem, .. }) = self.arrived.pop_front()
            {
                self.post_again(mem, out);
            }
        }
        let room = u32::try_from(into.len() - from).unwrap_or(u32::MAX);
        if to > from || room == 0 {
            return self.received(into, Ok(room.min(u32::try_from(to - from).unwrap_or(u32::MAX))), out);
        }
        if let Some(end) = self.ended {
            let result = if end == End::Peer && self.arrived.is_empty() { Ok(0) } else { Err(refusal(end)) };
            return self.received(into, result, out);
        }
        match self.arrived.front() {
            Some(Arrived::Lent { at, rest, key }) => {
                let (at, key, len) = (*at, *key, room.min(*rest) as usize);
                self.post(Work::Take { into, from, len, at, key }, out);
            }
            Some(Arrived::Offered { rest }) => {
                let len = room.min(*rest);
                let Some(window) = self.windows.take() else { return self.put_back(into) };
                let lent = Lent::In { into, from, len: len as usize };
                let (at, _) = lent.range();
                self.post(Work::Open { window: window.index, key: window.key, lent }, out);
                self.say(Kind::Grant, Saying { at, len, key: window.key });
                if let Some(receive) = &mut self.receive {
                    receive.open = Some((window, len, None));
                }
            }
            _ => self.put_back(into),
        }
    }

    fn put_back(&mut self, into: Filling) {
        if let Some(receive) = &mut self.receive {
            receive.into = Some(into);
        }
    }

    fn received(&mut self, into: Filling, result: Result<u32, Errno>, out: &mut Out) {
        if let Some(Receive { on, from, .. }) = self.receive.take() {
            out.dones.push(Done { op: Op::Recv { stream: self.stream, on, into, from }, result });
        }
    }

    /// A READ is over.
    pub(crate) fn taken(&mut self, into: Filling, len: usize, whole: bool, out: &mut Out) {
        if !whole {
            return self.put_back(into);
        }
        let len = u32::try_from(len).unwrap_or(u32::MAX);
        if let Some(Arrived::Lent { at, rest, .. }) = self.arrived.front_mut() {
            *at = at.wrapping_add(u64::from(len));
            *rest = rest.saturating_sub(len);
            if *rest == 0 {
                self.arrived.pop_front();
                self.say(Kind::Taken, Saying { at: 0, len, key: 0 });
            }
        }
        self.received(into, Ok(len), out);
    }

    /// The peer says that it wrote. Only when it can write no more is that believed. False if it could not have.
    pub(crate) fn was_given(&mut self, len: u32, out: &mut Out) -> bool {
        let Some(Receive { open: Some((window, most, given @ None)), .. }) = &mut self.receive else { return false };
        if len > *most {
            return false;
        }
        *given = Some(len);
        let window = *window;
        self.shut(window, out);
        true
    }

    /// The memory that was open for writing is ours alone again: the window is shut, or went with the queue pair. What the peer said that it
    /// wrote is there in either case: one that says it and closes has not taken it back.
    pub(crate) fn given(&mut self, into: Filling, out: &mut Out) {
        let open = self.receive.as_mut().and_then(|receive| receive.open.take());
        let Some(len) = open.and_then(|(_, _, given)| given) else { return self.put_back(into) };
        if let Some(Arrived::Offered { rest }) = self.arrived.front_mut() {
            *rest = rest.saturating_sub(len);
            if *rest == 0 {
                self.arrived.pop_front();
            }
        }
        self.received(into, Ok(len), out);
    }
}
