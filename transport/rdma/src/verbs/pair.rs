//! A queue pair, its completion queue and its windows. It owns every work that is posted until its completion, and what is open to
//! the peer until the window is shut or the queue pair destroyed.

use super::{Device, Id, check, last};
use driver::Errno;
use rdma_link::{Failed, Finished, LARGE, Lent, PIECES, RX, Received, SAYING, WINDOWS, Work};
use rdma_sys as sys;
use std::collections::VecDeque;
use std::mem::zeroed;
use std::ptr::{self, NonNull};
use std::rc::Rc;

/// Sends of all kinds in the queue; more wait here. A link's credits allow RX messages, each at most with a window or a WRITE.
const SENDS: u32 = 4 * RX as u32;
/// Completions taken from the queue at a time.
const BATCH: usize = 32;

const _: () = assert!(LARGE >= rdma_link::SLOT, "a large part is never gathered");

/// See above.
#[derive(Debug)]
pub(crate) struct Pair {
    /// None once it is destroyed.
    queues: Option<Queues>,
    flights: Vec<Flight>,
    free: Vec<u32>,
    sends: u32,
    waiting: VecDeque<Work>,
    open: Vec<Option<Work>>,
    /// The key of each window since it was last opened.
    keys: Vec<Option<u32>>,
    /// The first status that was not a flush: what put the queue pair in error.
    status: Option<i32>,
    finished: Vec<Finished>,
    scratch: Scratch,
}

/// What the library gave, destroyed in this order: windows, queue pair, completion queue; then the device's share, and the id.
#[derive(Debug)]
struct Queues {
    pair: NonNull<sys::ibv_qp>,
    completions: NonNull<sys::ibv_cq>,
    windows: Vec<NonNull<sys::ibv_mw>>,
    id: Id,
    device: Rc<Device>,
}

/// A place for a work that is posted. The generation tells a completion of an earlier use.
#[derive(Debug)]
struct Flight {
    generation: u32,
    work: Option<Work>,
}

/// Lists that a post is built in.
#[derive(Default)]
struct Scratch {
    sends: Vec<sys::ibv_send_wr>,
    receives: Vec<sys::ibv_recv_wr>,
    pieces: Vec<sys::ibv_sge>,
    sayings: Vec<[u8; SAYING]>,
    slots: Vec<u32>,
}

impl std::fmt::Debug for Scratch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("scratch")
    }
}

impl Pair {
    /// A queue pair on `id`, which is bound to `device`; gives the keys of its windows.
    pub(crate) fn new(id: Id, device: &Rc<Device>) -> Result<(Self, Vec<u32>), (Errno, Id)> {
        let entries = (SENDS + u32::from(RX)).cast_signed();
        let (nobody, channel) = (ptr::null_mut(), device.channel.as_ptr());
        // SAFETY: context and channel are alive, and the device is held for as long as the queue.
        let completions = unsafe { sys::ibv_create_cq(device.context(), entries, nobody, channel, 0) };
        let Some(completions) = NonNull::new(completions) else { return Err((last(), id)) };
        let mut wanted = sys::ibv_qp_init_attr {
            qp_context: ptr::null_mut(),
            send_cq: completions.as_ptr(),
            recv_cq: completions.as_ptr(),
            srq: ptr::null_mut(),
            cap: sys::ibv_qp_cap {
                max_send_wr: SENDS,
                max_recv_wr: u32::from(RX),
                max_send_sge: u32::try_from(PIECES).unwrap_or(u32::MAX),
                max_recv_sge: 1,
                max_inline_data: u32::try_from(SAYING).unwrap_or(u32::MAX),
            },
            qp_type: sys::ibv_qp_type::IBV_QPT_RC,
            sq_sig_all: 1,
        };
        // SAFETY: id and domain are alive; the library reads and writes the attributes during the call.
        let made = check(unsafe { sys::rdma_create_qp(id.as_ptr(), device.domain.as_ptr(), &raw mut wanted) });
        // SAFETY: the id is alive; its queue pair is what was just made.
        let pair = NonNull::new(unsafe { (*id.as_ptr()).qp });
        let pair = match made.and(pair.ok_or(Errno::IO)) {
            Ok(pair) => pair,
            Err(error) => {
                // SAFETY: ours, and no queue pair uses it.
                unsafe { sys::ibv_destroy_cq(completions.as_ptr()) };
                return Err((error, id));
            }
        };
        let mut queues = Queues { pair, completions, windows: Vec::new(), id, device: Rc::clone(device) };
        for _ in 0..WINDOWS {
            // SAFETY: the domain is alive, and held as long as the window.
            let window = unsafe { sys::ibv_alloc_mw(device.domain.as_ptr(), sys::ibv_mw_type::IBV_MW_TYPE_2) };
            match NonNull::new(window) {
                Some(window) => queues.windows.push(window),
                None => return Err((last(), queues.take_apart())),
            }
        }
        // SAFETY: the queue is ours. Armed before anything is posted: no completion can be missed.
        if let Err(error) = check(unsafe { sys::ibv_req_notify_cq(completions.as_ptr(), 0) }) {
            return Err((error, queues.take_apart()));
        }
        // SAFETY: the windows are alive.
        let keys = queues.windows.iter().map(|window| unsafe { window.as_ref().rkey }).collect();
        let open = queues.windows.iter().map(|_| None).collect();
        let pair = Self {
            queues: Some(queues),
            flights: Vec::new(),
            free: Vec::new(),
            sends: 0,
            waiting: VecDeque::new(),
            open,
            keys: vec![None; usize::from(WINDOWS)],
            status: None,
            finished: Vec::new(),
            scratch: Scratch::default(),
        };
        Ok((pair, keys))
    }

    pub(crate) fn id(&self) -> Option<&Id> {
        self.queues.as_ref().map(|queues| &queues.id)
    }

    /// Posts works in order: receives as one chain, then the rest as one chain. What cannot be posted comes back with the error.
    pub(crate) fn post(&mut self, works: &mut Vec<Work>) {
        if works.is_empty() && self.waiting.is_empty() {
            return;
        }
        let Some(queues) = &self.queues else {
            let gone = works.drain(..).map(|work| Finished { work, result: Err(Failed::Flushed) });
            return self.finished.extend(gone);
        };
        let (pair, local_key) = (queues.pair.as_ptr(), queues.device.local_key());
        self.scratch.clear();
        for work in works.drain(..) {
            match work {
                Work::Receive { into } => {
                    let piece = piece(&into, local_key);
                    let slot = self.keep(Work::Receive { into });
                    self.scratch.receive(self.wr_id(slot), slot, piece);
                }
                work => self.waiting.push_back(work),
            }
        }
        let refused = self.scratch.post_receives(pair);
        self.give_back(refused);
        self.scratch.clear();
        while self.sends < SENDS
            && let Some(work) = self.waiting.pop_front()
        {
            self.sends += 1;
            let slot = self.keep(work);
            self.describe(slot, local_key);
        }
        let refused = self.scratch.post_sends(pair);
        self.give_back(refused);
    }

    /// What could not be posted is over.
    fn give_back(&mut self, refused: Option<(Vec<u32>, Errno)>) {
        let Some((slots, error)) = refused else { return };
        for slot in slots {
            if let Some(work) = self.take_out(slot) {
                self.finished.push(Finished { work, result: Err(Failed::Error(error.0)) });
            }
        }
    }

    /// The key that the window in `slot` had at its last use.
    fn key_before(&mut self, slot: u32) -> Option<u32> {
        let Some(Work::Open { window, key, .. }) = &self.flights[slot as usize].work else { return None };
        self.keys.get_mut(usize::from(*window))?.replace(*key)
    }

    fn keep(&mut self, work: Work) -> u32 {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.flights.push(Flight { generation: 0, work: None });
            // As many as the queues hold.
            u32::try_from(self.flights.len() - 1).unwrap_or(u32::MAX)
        });
        let flight = &mut self.flights[slot as usize];
        flight.generation = flight.generation.wrapping_add(1);
        flight.work = Some(work);
        slot
    }

    fn wr_id(&self, slot: u32) -> u64 {
        u64::from(self.flights[slot as usize].generation) << 32 | u64::from(slot)
    }

    fn take_out(&mut self, slot: u32) -> Option<Work> {
        let work = self.flights.get_mut(slot as usize)?.work.take()?;
        self.free.push(slot);
        if !matches!(work, Work::Receive { .. }) {
            self.sends -= 1;
        }
        Some(work)
    }

    /// Adds the send in `slot` to the chain.
    fn describe(&mut self, slot: u32, local_key: u32) {
        use sys::ibv_wr_opcode as code;
        let last_key = self.key_before(slot);
        let wr_id = self.wr_id(slot);
        let (Some(queues), Some(work)) = (&self.queues, &self.flights[slot as usize].work) else { return };
        let scratch = &mut self.scratch;
        match work {
            Work::Data { immediate, parts } => {
                scratch.pieces.extend(parts.iter().map(|part| piece(part.bytes(), local_key)));
                let send = scratch.send(wr_id, slot, code::IBV_WR_SEND_WITH_IMM, parts.len());
                send.imm_data_invalidated_rkey_union.imm_data = immediate.to_be();
            }
            Work::Say { immediate, bytes, len } => {
                // Which address it has is known when the list has stopped growing.
                scratch.sayings.push(*bytes);
                let length = u32::try_from(*len).unwrap_or(u32::MAX);
                scratch.pieces.push(sys::ibv_sge { addr: INLINE, length, lkey: 0 });
                let send = scratch.send(wr_id, slot, code::IBV_WR_SEND_WITH_IMM, 1);
                send.send_flags |= sys::ibv_send_flags::IBV_SEND_INLINE.0;
                send.imm_data_invalidated_rkey_union.imm_data = immediate.to_be();
            }
            Work::Take { into, from, len, at, key } => {
                scratch.pieces.push(piece(&into[*from..*from + *len], local_key));
                let send = scratch.send(wr_id, slot, code::IBV_WR_RDMA_READ, 1);
                send.wr.rdma = sys::rdma_t { remote_addr: *at, rkey: *key };
            }
            Work::Give { part, at, key } => {
                scratch.pieces.push(piece(part.bytes(), local_key));
                let send = scratch.send(wr_id, slot, code::IBV_WR_RDMA_WRITE, 1);
                send.wr.rdma = sys::rdma_t { remote_addr: *at, rkey: *key };
            }
            Work::Open { window, key, lent } => {
                let (addr, len) = lent.range();
                let access = match lent {
                    Lent::Out(_) => sys::ibv_access_flags::IBV_ACCESS_REMOTE_READ,
                    Lent::In { .. } => sys::ibv_access_flags::IBV_ACCESS_REMOTE_WRITE,
                };
                let bind_info = sys::ibv_mw_bind_info {
                    mr: queues.device.region.as_ptr(),
                    addr,
                    length: len as u64,
                    mw_access_flags: access.0,
                };
                let mw = queues.windows[usize::from(*window)].as_ptr();
                // SAFETY: the library reads the key from its structure when a bind is posted, and leaves it to us to keep it.
                unsafe { (*mw).rkey = last_key.unwrap_or((*mw).rkey) };
                let send = scratch.send(wr_id, slot, code::IBV_WR_BIND_MW, 0);
                send.bind_mw_tso_union.bind_mw = sys::bind_mw_t { mw, rkey: *key, bind_info };
            }
            Work::Shut { key, .. } => {
                let send = scratch.send(wr_id, slot, code::IBV_WR_LOCAL_INV, 0);
                send.imm_data_invalidated_rkey_union.invalidated_rkey = *key;
            }
            Work::Receive { .. } => {}
        }
    }

    /// Takes what completed out of the queue.
    pub(crate) fn poll(&mut self) {
        // SAFETY: a plain structure of integers, for which all zeros is a value.
        let mut seen: [sys::ibv_wc; BATCH] = unsafe { zeroed() };
        while let Some(queues) = &self.queues {
            let most = i32::try_from(BATCH).unwrap_or(1);
            // SAFETY: the queue is ours, and there is room for BATCH completions.
            let n = unsafe { sys::ibv_poll_cq(queues.completions.as_ptr(), most, seen.as_mut_ptr()) };
            let Ok(n) = usize::try_from(n) else { return };
            for completion in &seen[..n] {
                self.complete(completion);
            }
            if n < BATCH {
                return;
            }
        }
    }

    fn complete(&mut self, completion: &sys::ibv_wc) {
        let [a, b, c, d, slot @ ..] = completion.wr_id.to_be_bytes();
        let (generation, slot) = (u32::from_be_bytes([a, b, c, d]), u32::from_be_bytes(slot));
        let current = self.flights.get(slot as usize).is_some_and(|flight| flight.generation == generation);
        let Some(work) = (if current { self.take_out(slot) } else { None }) else { return };
        let result = match completion.status {
            sys::ibv_wc_status::IBV_WC_SUCCESS => {
                // SAFETY: both members are the same 32 bits.
                let immediate = u32::from_be(unsafe { completion.imm_data_invalidated_rkey_union.imm_data });
                Ok(Received { len: completion.byte_len as usize, immediate })
            }
            sys::ibv_wc_status::IBV_WC_WR_FLUSH_ERR => Err(Failed::Flushed),
            status => {
                self.status.get_or_insert(status.cast_signed());
                Err(Failed::Error(status.cast_signed()))
            }
        };
        match work {
            // Open from now on, or nobody knows: either way the memory stays here.
            Work::Open { window, .. } => self.open[usize::from(window)] = Some(work),
            Work::Shut { window, .. } if result.is_ok() => {
                self.finished.push(Finished { work, result });
                if let Some(open) = self.open[usize::from(window)].take() {
                    self.finished.push(Finished { work: open, result });
                }
            }
            work => self.finished.push(Finished { work, result }),
        }
    }

    /// What is over, in order.
    pub(crate) fn take_finished(&mut self, into: &mut Vec<Finished>) {
        into.append(&mut self.finished);
    }

    /// The device's word for what put it in error, if it was the device.
    pub(crate) fn status(&self) -> Option<i32> {
        self.status
    }

    /// True if it has nothing posted; windows may be open.
    pub(crate) fn drained(&self) -> bool {
        self.free.len() == self.flights.len() && self.waiting.is_empty()
    }

    /// Ends the connection: what is posted comes back flushed, and no peer gets at anything through it any more.
    pub(crate) fn break_off(&mut self) {
        self.break_silently();
        if let Some(id) = self.id() {
            id.disconnect();
        }
        let unposted = self.waiting.drain(..).map(|work| Finished { work, result: Err(Failed::Flushed) });
        self.finished.extend(unposted);
    }

    /// Puts the queue pair in error.
    pub(crate) fn break_silently(&mut self) {
        let Some(queues) = &self.queues else { return };
        // SAFETY: integers and structures of them, for which all zeros is a value.
        let mut attributes: sys::ibv_qp_attr = unsafe { zeroed() };
        attributes.qp_state = sys::ibv_qp_state::IBV_QPS_ERR;
        let mask = sys::ibv_qp_attr_mask::IBV_QP_STATE.0.cast_signed();
        // SAFETY: the queue pair is ours. One that cannot be put in error is in RESET, or its device is dead: it moves nothing.
        let _ = unsafe { sys::ibv_modify_qp(queues.pair.as_ptr(), &raw mut attributes, mask) };
    }

    /// Destroys the queue pair; only now everything that is still here comes back, and the peer's keys are worth nothing.
    pub(crate) fn destroy(&mut self) {
        self.poll();
        let Some(queues) = self.queues.take() else { return };
        drop(queues.take_apart());
        let posted = self.flights.iter_mut().filter_map(|flight| flight.work.take());
        let left = posted.chain(self.waiting.drain(..)).chain(self.open.iter_mut().filter_map(Option::take));
        self.finished.extend(left.map(|work| Finished { work, result: Err(Failed::Flushed) }));
        (self.flights, self.free, self.sends) = (Vec::new(), Vec::new(), 0);
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        self.destroy();
    }
}

impl Queues {
    fn take_apart(self) -> Id {
        let Self { pair: _, completions, windows, id, device } = self;
        // SAFETY: all of them are ours and nothing else uses them. The windows go first: soft-RoCE waits with the end of a queue pair
        // for the windows that are open on it, and their going shuts them. The completion queue's events are acknowledged as they are
        // read, so destroying it does not wait.
        unsafe {
            for window in windows {
                sys::ibv_dealloc_mw(window.as_ptr());
            }
            sys::rdma_destroy_qp(id.as_ptr());
            // The id may be told of a while longer, and the library changes the state of the queue pair that it knows.
            (*id.as_ptr()).qp = ptr::null_mut();
            sys::ibv_destroy_cq(completions.as_ptr());
        }
        drop(device);
        id
    }
}

/// Stands for the address of a saying.
const INLINE: u64 = u64::MAX;

fn piece(bytes: &[u8], lkey: u32) -> sys::ibv_sge {
    sys::ibv_sge { addr: bytes.as_ptr().addr() as u64, length: u32::try_from(bytes.len()).unwrap_or(u32::MAX), lkey }
}

impl Scratch {
    fn clear(&mut self) {
        self.sends.clear();
        self.receives.clear();
        self.pieces.clear();
        self.sayings.clear();
        self.slots.clear();
    }

    fn receive(&mut self, wr_id: u64, slot: u32, piece: sys::ibv_sge) {
        self.pieces.push(piece);
        self.slots.push(slot);
        let (next, sg_list) = (ptr::null_mut(), ptr::null_mut());
        self.receives.push(sys::ibv_recv_wr { wr_id, next, sg_list, num_sge: 1 });
    }

    /// A send over the last `pieces` pieces.
    fn send(
        &mut self,
        wr_id: u64,
        slot: u32,
        opcode: sys::ibv_wr_opcode::Type,
        pieces: usize,
    ) -> &mut sys::ibv_send_wr {
        self.slots.push(slot);
        // SAFETY: integers, null pointers and unions of them, for which all zeros is a value.
        let mut send: sys::ibv_send_wr = unsafe { zeroed() };
        (send.wr_id, send.opcode) = (wr_id, opcode);
        send.num_sge = i32::try_from(pieces).unwrap_or(i32::MAX);
        send.send_flags = sys::ibv_send_flags::IBV_SEND_SIGNALED.0;
        self.sends.push(send);
        let last = self.sends.len() - 1;
        &mut self.sends[last]
    }

    /// Posts the chain; gives the slots of those that the queue did not take.
    fn post_receives(&mut self, pair: *mut sys::ibv_qp) -> Option<(Vec<u32>, Errno)> {
        let (mut pieces, mut next) = (self.pieces.as_mut_ptr(), ptr::null_mut());
        for receive in self.receives.iter_mut() {
            receive.sg_list = pieces;
            pieces = pieces.wrapping_add(1);
        }
        for receive in self.receives.iter_mut().rev() {
            receive.next = next;
            next = receive;
        }
        let first = self.receives.first_mut()?;
        let mut refused = ptr::null_mut();
        // SAFETY: chain and pieces are in lists that do not change during the call; each piece is memory of a work that is kept in
        // its slot until its completion, or until the queue pair is destroyed.
        let posted = check(unsafe { sys::ibv_post_recv(pair, first, &raw mut refused) });
        let at = self.receives.iter().position(|receive| ptr::eq(receive, refused)).unwrap_or(0);
        posted.err().map(|error| (self.slots[at..].to_vec(), error))
    }

    /// The same for sends.
    fn post_sends(&mut self, pair: *mut sys::ibv_qp) -> Option<(Vec<u32>, Errno)> {
        let mut saying = self.sayings.iter();
        for piece in self.pieces.iter_mut().filter(|piece| piece.addr == INLINE) {
            piece.addr = saying.next().map_or(0, |bytes| bytes.as_ptr().addr() as u64);
        }
        let (mut pieces, mut next) = (self.pieces.as_mut_ptr(), ptr::null_mut());
        for send in self.sends.iter_mut() {
            send.sg_list = pieces;
            pieces = pieces.wrapping_add(usize::try_from(send.num_sge).unwrap_or(0));
        }
        for send in self.sends.iter_mut().rev() {
            send.next = next;
            next = send;
        }
        let first = self.sends.first_mut()?;
        let mut refused = ptr::null_mut();
        // SAFETY: as above; sayings are copied by the device during the call; windows are alive as long as the queue pair.
        let posted = check(unsafe { sys::ibv_post_send(pair, first, &raw mut refused) });
        let at = self.sends.iter().position(|send| ptr::eq(send, refused)).unwrap_or(0);
        posted.err().map(|error| (self.slots[at..].to_vec(), error))
    }
}
