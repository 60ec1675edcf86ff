//! From one `Send` to messages, windows and WRITEs. The operation owns its parts until the last of them is over.

use driver::{Done, Messages, Op, Part, Parts};
use smallvec::SmallVec;
use std::collections::VecDeque;

use crate::credits::Urgency;
use crate::limits::{LARGE, PIECES, SLOT};
use crate::link::{Link, Out, refusal};
use crate::message::{Kind, Saying};
use crate::windows::Window;
use crate::work::{Lent, Work};

/// A `Send` that is not over.
#[derive(Debug)]
pub(crate) struct Sending {
    on: Messages,
    parts: Parts,
    /// The first byte that is not on its way: of which part, and where in it.
    next: usize,
    at: usize,
    /// Messages, WRITEs and what the peer is to be told of them that are not back.
    posted: usize,
    /// Windows that are open, oldest first, and all that are not back.
    lent: VecDeque<Window>,
    open: usize,
    /// Something of it came back undone.
    spoiled: bool,
    /// Parts that the peer has been offered, and how much of each it has been given.
    offered: VecDeque<(usize, usize)>,
}

impl Sending {
    pub(crate) fn new(on: Messages, parts: Parts) -> Self {
        let (lent, offered) = (VecDeque::new(), VecDeque::new());
        Self { on, parts, next: 0, at: 0, posted: 0, lent, open: 0, spoiled: false, offered }
    }

    /// As much as one message takes of what is next; nothing if that is a large part.
    fn gather(&mut self) -> SmallVec<[Part; 4]> {
        let (mut pieces, mut room) = (SmallVec::new(), SLOT);
        while let Some(part) = self.parts.get(self.next).filter(|part| part.len <= LARGE) {
            let n = (part.len - self.at).min(room);
            if n > 0 {
                pieces.push(Part { mem: part.mem.share(), from: part.from + self.at, len: n });
            }
            (self.at, room) = (self.at + n, room - n);
            if self.at == part.len {
                (self.next, self.at) = (self.next + 1, 0);
            }
            if room == 0 || pieces.len() == PIECES {
                break;
            }
        }
        pieces
    }

    fn bytes(&self) -> u32 {
        u32::try_from(self.parts.iter().map(|part| part.len).sum::<usize>()).unwrap_or(u32::MAX)
    }
}

impl Link {
    /// Sends what there are credits and windows for.
    pub(crate) fn send_on(&mut self, out: &mut Out) {
        let Some(mut send) = self.send.take() else { return };
        while self.may(Urgency::Data) {
            let Some(part) = send.parts.get(send.next) else { break };
            if part.len <= LARGE {
                let parts = send.gather();
                if !parts.is_empty() {
                    let immediate = self.immediate(Kind::Data);
                    self.post(Work::Data { immediate, parts }, out);
                    send.posted += 1;
                }
                continue;
            }
            let len = u32::try_from(part.len).unwrap_or(u32::MAX);
            if self.connecting {
                let Some(window) = self.windows.take_for_send() else { break };
                let lent = Lent::Out(Part { mem: part.mem.share(), from: part.from, len: part.len });
                let (at, _) = lent.range();
                self.post(Work::Open { window: window.index, key: window.key, lent }, out);
                self.say_now(Kind::Lend, Saying { at, len, key: window.key }, out);
                send.lent.push_back(window);
                send.open += 1;
            } else {
                self.say_now(Kind::Offer, Saying { at: 0, len, key: 0 }, out);
                send.offered.push_back((send.next, 0));
            }
            send.next += 1;
        }
        let never_said = std::mem::take(&mut self.never_said);
        send.posted = send.posted.saturating_sub(never_said);
        send.spoiled |= never_said > 0;
        let shut = send.open == 0 || (self.ended.is_some() && driver::mutant::on("rdma_bd_returned_early"));
        let idle = send.posted == 0 && shut;
        let whole = send.next == send.parts.len() && send.offered.is_empty() && !send.spoiled;
        let result = match self.ended {
            _ if idle && whole => Ok(send.bytes()),
            Some(end) if idle => Err(refusal(end)),
            _ => {
                self.send = Some(send);
                return;
            }
        };
        let Sending { on, parts, .. } = send;
        out.dones.push(Done { op: Op::Send { stream: self.stream, on, parts }, result });
    }

    /// A message or a WRITE is over, or the peer has been told of one.
    pub(crate) fn sent(&mut self, done: bool) {
        if let Some(send) = &mut self.send {
            send.posted = send.posted.saturating_sub(1);
            send.spoiled |= !done;
        }
    }

    /// The peer says where the part goes that it was offered first. False if that is more than it was offered.
    pub(crate) fn granted(&mut self, Saying { at, len, key }: Saying, out: &mut Out) -> bool {
        if self.ended.is_some() {
            return true;
        }
        let Some(send) = &mut self.send else { return false };
        let Some((index, given)) = send.offered.front_mut() else { return false };
        let Some(part) = send.parts.get(*index) else { return false };
        let n = len as usize;
        if n > part.len - *given {
            return false;
        }
        let part = Part { mem: part.mem.share(), from: part.from + *given, len: n };
        *given += n;
        if *given == send.parts[*index].len {
            send.offered.pop_front();
        }
        send.posted += 2;
        self.post(Work::Give { part, at, key }, out);
        debug_assert!(self.ended.is_none(), "the receive that brought the grant is back: there was room for one work");
        // Behind the WRITE on the same queue pair, so it is read after the bytes are there.
        self.say(Kind::Given, Saying { at: 0, len, key: 0 });
        true
    }

    /// The peer has read what it was lent first. False if it was lent nothing.
    pub(crate) fn all_taken(&mut self, out: &mut Out) -> bool {
        let Some(window) = self.send.as_mut().and_then(|send| send.lent.pop_front()) else { return false };
        self.shut(window, out);
        true
    }

    /// A part that was lent is ours alone again.
    pub(crate) fn unlent(&mut self, shut: bool) {
        if let Some(send) = &mut self.send {
            send.open = send.open.saturating_sub(1);
            send.spoiled |= !shut;
        }
    }
}
