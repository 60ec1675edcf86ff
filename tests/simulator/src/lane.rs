//! One lane of a client: the volume client on its own reactor, and a front end that keeps it busy and writes down what it sees.

use crate::content::{SECTOR, WORD, attribute, fill};
use crate::history::What;
use crate::mail::{LaneMail, Letter};
use crate::node::KEY;
use crate::verdict::{self, Failure};
use crate::workload::{Kind, Wish, Workload};
use conductor_model::api::VolumeMap;
use conductor_model::{AttachGeneration, Bytes};
use driver::{Done, Machine, Outbox, Part, Span, Time};
use memory::{Arena, Class};
use sim::{Birth, Rng};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use volume_client::{BlockDone, BlockError, BlockOp, BlockRequest, ClientOptions, Completion, VolumeClient};

/// A lane's memory.
const ARENA_BYTES: usize = 24 << 20;
/// Before a request is made again that found no room.
const AGAIN: Span = Span::millis(2);

/// What a life of a lane is made with.
#[derive(Clone)]
pub(crate) struct Attachment {
    pub(crate) name: String,
    pub(crate) process: u64,
    pub(crate) lane: u16,
    pub(crate) conn_depth: u16,
    pub(crate) map: VolumeMap,
}

struct Running {
    wish: Wish,
    /// Its number in the history; flushes and questions for extents have none.
    id: Option<u32>,
    /// When it was made, in the history.
    began: u64,
    since: Time,
}

/// One life of a lane.
pub(crate) struct Lane {
    client: Option<VolumeClient>,
    arena: Arena,
    generation: AttachGeneration,
    rng: Rng,
    shared: Rc<RefCell<Workload>>,
    running: BTreeMap<u64, Running>,
    /// Drawn, but there was no room for it.
    waiting: Option<Wish>,
    next_at: Time,
    last_tag: u64,
    stopping: bool,
}

impl Lane {
    pub(crate) fn new(attachment: Attachment, shared: Rc<RefCell<Workload>>, birth: Birth) -> Self {
        let mut rng = Rng::new(birth.seed);
        let mut nonces = rng.fork();
        let arena = Arena::small(ARENA_BYTES);
        let options = ClientOptions {
            name: attachment.name,
            process: attachment.process,
            attach: attachment.map.attach,
            lane: attachment.lane,
            read_only: false,
            io_timeout: None,
            depth: 16,
            conn_depth: attachment.conn_depth,
            card: None,
            transport: volume_client::Transport::Tcp,
            secrets: Rc::new(KEY),
            random: Box::new(move || nonces.next_u64()),
        };
        let client = VolumeClient::new(options, &attachment.map, arena.clone());
        Self {
            client: Some(client.unwrap_or_else(|error| panic!("{error}"))),
            arena,
            generation: attachment.map.attach,
            rng,
            shared,
            running: BTreeMap::new(),
            waiting: None,
            next_at: birth.now,
            last_tag: 0,
            stopping: false,
        }
    }

    /// The client, until it has stopped.
    pub(crate) fn client(&self) -> Option<&VolumeClient> {
        self.client.as_ref()
    }

    /// Requests that are not answered, for people.
    pub(crate) fn waiting(&self) -> Vec<String> {
        let of = |r: &Running| format!("{:?} (operation {:?}) since {:?}", r.wish, r.id, r.since);
        self.running.values().map(of).collect()
    }

    fn issue(&mut self, now: Time) {
        let depth = self.shared.borrow().mood.depth;
        while self.running.len() < depth && self.next_at <= now {
            let Some(client) = &mut self.client else { return };
            if self.stopping || client.is_fenced() {
                return;
            }
            let wish = match self.waiting.take() {
                Some(wish) => wish,
                None => match self.shared.borrow_mut().next(&mut self.rng, client.size().0) {
                    Some(wish) => wish,
                    None => return,
                },
            };
            // What is in the script is wanted now.
            let scripted = !self.shared.borrow().script.is_empty();
            let think = if scripted { Span(0) } else { self.shared.borrow().mood.think };
            self.next_at = now + self.rng.span(think);
            if !self.submit(now, wish) {
                self.waiting = Some(wish);
                self.next_at = now + AGAIN;
                return;
            }
        }
    }

    fn submit(&mut self, now: Time, wish: Wish) -> bool {
        let Some(client) = &mut self.client else { return false };
        let mut shared = self.shared.borrow_mut();
        let (first, sectors) = wish.sectors();
        let op = match wish.kind {
            Kind::Read => BlockOp::Read,
            Kind::Extents => BlockOp::Extents,
            Kind::Zero => BlockOp::WriteZeroes,
            Kind::Discard => BlockOp::Discard,
            Kind::Flush => BlockOp::Flush,
            Kind::Write => {
                let Ok(len) = usize::try_from(wish.len) else { return false };
                let Some(mut data) = self.arena.take(len, Class::Client) else { return false };
                fill(shared.history.next_id(), first, &mut data);
                BlockOp::Write { data: data.filled(), crcs: None }
            }
        };
        self.last_tag += 1;
        let request =
            BlockRequest { tag: self.last_tag, op, offset: Bytes(wish.offset), len: Bytes(wish.len), fua: false };
        if client.submit(now, request).is_err() {
            shared.count("client.full");
            return false;
        }
        let what = match wish.kind {
            Kind::Flush | Kind::Extents => None,
            Kind::Read => Some(What::Read(Vec::new())),
            Kind::Write => Some(What::Write),
            Kind::Zero | Kind::Discard => Some(What::Zero),
        };
        let began = shared.history.tick();
        let id = what.map(|what| shared.history.begin(self.generation.0, what, first, sectors));
        self.running.insert(self.last_tag, Running { wish, id, began, since: now });
        true
    }

    fn complete(&mut self, now: Time, completion: Completion) {
        let mut shared = self.shared.borrow_mut();
        let Some(Running { wish, id, began, since }) = self.running.remove(&completion.tag) else {
            let what = format!("request {} was completed twice, or never made", completion.tag);
            shared.failures.push(what.into());
            return;
        };
        shared.count(match (wish.kind, &completion.result) {
            (Kind::Read, Ok(_)) => "done.client-read",
            (Kind::Extents, Ok(_)) => "done.client-extents",
            (Kind::Write, Ok(_)) => "done.client-write",
            (Kind::Zero, Ok(_)) => "done.client-zero",
            (Kind::Discard, Ok(_)) => "done.client-discard",
            (Kind::Flush, Ok(_)) => "done.client-flush",
            (_, Err(BlockError::Fenced)) => "done.client-fenced",
            (_, Err(_)) => "done.client-error",
        });
        if let (Kind::Extents, Err(error)) = (wish.kind, &completion.result)
            && *error != BlockError::Fenced
        {
            shared.failures.push(Failure::new(verdict::Kind::Refused, format!("{wish:?} failed: {error}")));
        }
        if let Ok(BlockDone::Extents(extents)) = &completion.result {
            let mut at = wish.offset;
            for extent in extents {
                let (first, end) = (at / SECTOR as u64, (at + extent.len.0) / SECTOR as u64);
                if !extent.is_data {
                    shared.count("extents.hole");
                    shared.history.told_zeros(self.generation.0, first, end - first, began);
                }
                at += extent.len.0;
            }
            if at == wish.offset || at > wish.offset + wish.len {
                let what = format!("of {wish:?} was told {extents:?}");
                shared.failures.push(Failure::new(verdict::Kind::WrongRead, what));
            }
        }
        let Some(id) = id else { return };
        match completion.result {
            Ok(BlockDone::Read(parts)) => match values(&wish, &parts) {
                Ok(values) => shared.history.end(id, true, values),
                Err(what) => {
                    let what = format!("read {id} returned garbage: {what}");
                    shared.failures.push(Failure::new(verdict::Kind::WrongRead, what));
                }
            },
            Ok(_) => shared.history.end(id, true, Vec::new()),
            Err(BlockError::Fenced) => shared.history.end(id, false, Vec::new()),
            // An error, and no wrong data, is the right answer then; also to a write that has to read what is left of its first and last block.
            Err(BlockError::Io) if wish.reads() && shared.was_unreadable(since) => {
                shared.count("read.nowhere-readable");
                shared.history.end(id, false, Vec::new());
            }
            Err(error) => {
                let what = format!("operation {id} ({wish:?}), made at {since:?}, failed at {now:?}: {error}");
                let failure = Failure::new(verdict::Kind::Refused, what);
                match error {
                    BlockError::Io if wish.reads() => shared.unexplained.push(failure),
                    _ => shared.failures.push(failure),
                }
            }
        }
    }
}

/// What a read returned, sector by sector.
fn values(wish: &Wish, parts: &[Part]) -> Result<Vec<u32>, String> {
    let bytes = parts.iter().map(Part::bytes).collect::<Vec<_>>().concat();
    if bytes.len() as u64 != wish.len {
        return Err(format!("{} bytes instead of {}", bytes.len(), wish.len));
    }
    let mut values = Vec::new();
    let (mut at, mut rest) = (wish.offset, bytes.as_slice());
    while !rest.is_empty() {
        let within = at % SECTOR as u64;
        let len = rest.len().min(SECTOR - usize::try_from(within).unwrap_or(0));
        let (head, tail) = rest.split_at(len);
        values.push(attribute(at / SECTOR as u64, within / WORD as u64, head)?);
        (at, rest) = (at + len as u64, tail);
    }
    Ok(values)
}

impl Machine for Lane {
    type Mail = LaneMail;
    type Letter = Letter;

    fn start(&mut self, _now: Time, _out: &mut dyn Outbox<Letter>) {}

    fn done(&mut self, now: Time, done: Done, out: &mut dyn Outbox<Letter>) {
        if let Some(client) = &mut self.client {
            client.done(now, done, out);
        }
    }

    fn mail(&mut self, now: Time, mail: LaneMail, _out: &mut dyn Outbox<Letter>) {
        let Some(client) = &mut self.client else { return };
        match mail {
            LaneMail::Map(map) => client.map(now, &map),
            LaneMail::Wake => self.next_at = self.next_at.min(now),
            LaneMail::Stop => {
                self.stopping = true;
                client.stop();
            }
        }
    }

    fn end_turn(&mut self, now: Time, out: &mut dyn Outbox<Letter>) {
        self.issue(now);
        let Some(client) = &mut self.client else { return };
        client.end_turn(now, out);
        if client.wants_map(now) {
            out.post(Letter::WantsMap);
        }
        while let Some(completion) = self.client.as_mut().and_then(VolumeClient::next_completion) {
            self.complete(now, completion);
        }
        if self.client.as_ref().is_some_and(VolumeClient::finished)
            && let Some(client) = self.client.take()
        {
            let held = client.leaks().map_err(|report| report.to_string());
            drop(client);
            out.post(Letter::Stopped(held.and_then(|()| self.arena.leaks().map_err(|report| report.to_string()))));
        }
    }

    fn next_deadline(&self) -> Option<Time> {
        let client = self.client.as_ref()?;
        let shared = self.shared.borrow();
        let work = self.waiting.is_some() || shared.left > 0 || !shared.script.is_empty();
        let issues = work && !self.stopping && !client.is_fenced() && self.running.len() < shared.mood.depth;
        [client.next_deadline(), issues.then_some(self.next_at)].into_iter().flatten().min()
    }

    fn finished(&self) -> bool {
        self.client.is_none()
    }
}
