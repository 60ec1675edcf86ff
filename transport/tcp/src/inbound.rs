//! From a stream of bytes to checked messages.
//!
//! ```text
//!   stream buffer  [ … done │ unread …  │ room ]    heads are read here, payloads up to COPY_LIMIT copied out with their CRCs
//!                         start        end
//!   payload memory [ filled │ rest …           ]    a longer rest is received right here
//! ```
//!
//! The stream buffer is small at rest and large while the connection is busy. It is empty whenever a rest is received in place.

use driver::Time;
use memory::Filling;
use wire::{Body, Copying, Header, Reason};

use crate::Payload;
use crate::budget::Charge;
use crate::limits::{BUSY, COPY_LIMIT, LARGE_STREAM, SMALL_STREAM};

/// A whole message that passed its checks.
pub(crate) struct Frame {
    pub(crate) header: Header,
    pub(crate) body: Body,
    pub(crate) payload: Option<Payload>,
    /// What it counts for.
    pub(crate) charge: Option<Charge>,
}

/// What the received bytes come to.
pub(crate) enum Next {
    Frame(Frame),
    /// All is read; receive more.
    More,
    /// No memory for the next message.
    NoMemory,
    /// It may not be taken now.
    Later,
    Bad(Reason),
}

/// When a message may be taken.
pub(crate) enum Admitted {
    /// And what it counts for, if for anything, until it is handled.
    Now(Option<Charge>),
    /// Its sender has all that it may have.
    Later,
}

/// Whether a message with this head is wanted, and when: asked before there is memory for its payload, and again if there is none, or later.
pub(crate) type Admit<'a> = &'a mut dyn FnMut(&Header, &[u8]) -> Result<Admitted, Reason>;

/// Where the memory comes from.
pub(crate) type Take<'a> = &'a dyn Fn(usize) -> Option<Filling>;

/// The receiving half of a stream.
#[derive(Default)]
pub(crate) struct Inbound {
    /// Away while a receive fills it.
    stream: Option<Filling>,
    start: usize,
    end: usize,
    partial: Option<Partial>,
    in_place: bool,
    busy_until: Time,
    /// Since when a message is there in part.
    amid: Option<Time>,
}

/// A message whose payload is not all there.
struct Partial {
    header: Header,
    body: Body,
    /// Away while a receive fills it.
    mem: Option<Filling>,
    filled: usize,
    crcs: Copying,
    charge: Option<Charge>,
}

impl Inbound {
    /// The next message. Panics never; what it says is `Bad` cannot be followed by anything useful.
    pub(crate) fn next(&mut self, now: Time, max_payload: u32, admit: Admit<'_>, take: Take<'_>) -> Next {
        let next = self.parse(max_payload, admit, take);
        let in_part = matches!(next, Next::More) && (self.partial.is_some() || self.end > self.start);
        self.amid = if in_part { self.amid.or(Some(now)) } else { None };
        next
    }

    /// Since when a message is there in part that is waited for.
    pub(crate) fn amid(&self) -> Option<Time> {
        self.amid
    }

    fn parse(&mut self, max_payload: u32, admit: Admit<'_>, take: Take<'_>) -> Next {
        let unread = self.stream.as_deref().map_or(&[][..], |stream| &stream[self.start..self.end]);
        if let Some(partial) = &mut self.partial {
            self.start += partial.copy(unread);
            if !partial.whole() {
                return Next::More;
            }
            return self.partial.take().map_or(Next::More, Partial::finish);
        }
        let (header, body) = match Header::parse(unread) {
            Ok(Some(parsed)) => parsed,
            Ok(None) => return Next::More,
            Err(_) => return Next::Bad(Reason::BadFrame),
        };
        if header.payload_len > max_payload {
            return Next::Bad(Reason::BadFrame);
        }
        let charge = match admit(&header, body) {
            Ok(Admitted::Now(charge)) => charge,
            Ok(Admitted::Later) => return Next::Later,
            Err(reason) => return Next::Bad(reason),
        };
        let (head_len, body) = (wire::HEADER_LEN + body.len(), Body::from_slice(body));
        if header.payload_len == 0 {
            self.start += head_len;
            return Next::Frame(Frame { header, body, payload: None, charge });
        }
        let Some(mem) = take(header.payload_len as usize) else { return Next::NoMemory };
        let mut partial = Partial { header, body, mem: Some(mem), filled: 0, crcs: Copying::default(), charge };
        self.start += head_len + partial.copy(&unread[head_len..]);
        if partial.whole() {
            return partial.finish();
        }
        self.partial = Some(partial);
        Next::More
    }

    /// The memory that the next receive fills, and from where on; none if there is no memory at all. Who has not proven itself gets
    /// little, however much it sends at once.
    pub(crate) fn receive(&mut self, now: Time, proven: bool, take: Take<'_>) -> Option<(Filling, usize)> {
        if let Some(partial) = self.partial.as_mut().filter(|partial| partial.rest() > COPY_LIMIT) {
            self.in_place = true;
            return Some((partial.mem.take()?, partial.filled));
        }
        let wanted = if proven && now < self.busy_until { LARGE_STREAM } else { SMALL_STREAM };
        let unread = self.end - self.start;
        let fits = self.stream.as_ref().is_some_and(|stream| stream.len() == wanted);
        let old = self.stream.take();
        let stream = match if fits || unread > SMALL_STREAM / 2 { None } else { take(wanted) } {
            Some(mut new) => {
                if let Some(old) = &old {
                    new[..unread].copy_from_slice(&old[self.start..self.end]);
                }
                new
            }
            None => {
                let mut old = old?;
                old.copy_within(self.start..self.end, 0);
                old
            }
        };
        (self.start, self.end) = (0, unread);
        Some((stream, unread))
    }

    /// A receive brought `n` bytes. True if they went straight to their place.
    pub(crate) fn received(&mut self, now: Time, into: Filling, from: usize, n: usize) -> bool {
        let n = n.min(into.len().saturating_sub(from));
        if n >= SMALL_STREAM / 2 {
            self.busy_until = now + BUSY;
        }
        if !std::mem::take(&mut self.in_place) {
            self.end += n;
            self.stream = Some(into);
            return false;
        }
        if let Some(partial) = &mut self.partial {
            partial.crcs.update(&into[from..from + n]);
            partial.filled += n;
            partial.mem = Some(into);
        }
        true
    }

    /// Lets go of all memory.
    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }
}

impl Partial {
    fn rest(&self) -> usize {
        self.header.payload_len as usize - self.filled
    }

    fn whole(&self) -> bool {
        self.rest() == 0
    }

    /// Takes what belongs to it; says how much that was.
    fn copy(&mut self, unread: &[u8]) -> usize {
        let n = self.rest().min(unread.len());
        let Some(mem) = &mut self.mem else { return 0 };
        wire::copy_pieces(&mut mem[self.filled..], &unread[..n], &mut self.crcs);
        self.filled += n;
        n
    }

    /// The message, if its payload is what its header says.
    fn finish(self) -> Next {
        let crcs = self.crcs.finish();
        let Some(mem) = self.mem.filter(|_| wire::tree(&crcs) == self.header.payload_crc) else {
            return Next::Bad(Reason::BadPayload);
        };
        let payload = Some(Payload { mem: mem.filled(), len: self.filled, crcs });
        Next::Frame(Frame { header: self.header, body: self.body, payload, charge: self.charge })
    }
}
