//! A machine that is connected to by a peer made of bytes: its streams and its disk, in memory, one operation after the other.

use crate::store::Disk;
use conductor_model::BLOCK;
use driver::{Done, Errno, Machine, Op, Span, StreamId, Time, Vecs};
use std::collections::VecDeque;
use wire::{
    Challenge, ClusterKey, FLAG_REPLY, Flags, HEADER_LEN, Header, Hello, HelloAck, HelloInfo, Limits, Nonce,
    ProtectionKey, Role, Secrets, SessionId,
};

pub(crate) const KEY: ClusterKey = ClusterKey([7; 32]);
/// The stream of the one connection.
const STREAM: StreamId = StreamId(0);
/// Turns until a machine has to come to rest.
const PATIENCE: usize = 100_000;

pub(crate) struct Line<'a, M: Machine> {
    pub(crate) machine: M,
    pub(crate) out: Vecs<M::Letter>,
    pub(crate) now: Time,
    disk: Disk<'a>,
    /// Waiting: accepts, receives, watches.
    waiting: Vec<Op>,
    /// To the machine, and how much of it in the next receive.
    to: VecDeque<u8>,
    cut: u8,
    /// From the machine.
    from: Vec<u8>,
    accepted: bool,
    /// The peer ended the stream, or the machine did.
    ended: bool,
    shut: bool,
}

impl<'a, M: Machine> Line<'a, M> {
    pub(crate) fn new(machine: M, disk: Disk<'a>, now: Time) -> Self {
        let mut this = Self {
            machine,
            out: Vecs::default(),
            now,
            disk,
            waiting: Vec::new(),
            to: VecDeque::new(),
            cut: u8::MAX,
            from: Vec::new(),
            accepted: false,
            ended: false,
            shut: false,
        };
        this.machine.start(this.now, &mut this.out);
        this
    }

    /// Until nothing moves at this moment.
    pub(crate) fn turn(&mut self) {
        for _ in 0..PATIENCE {
            self.machine.end_turn(self.now, &mut self.out);
            let ops = std::mem::take(&mut self.out.ops);
            let mut moved = !ops.is_empty();
            self.waiting.extend(ops);
            for mut op in std::mem::take(&mut self.waiting) {
                let done = match op {
                    Op::DiskRead { .. } | Op::DiskWrite { .. } | Op::DiskPunch { .. } | Op::DiskSync { .. } => {
                        self.disk.submit(op);
                        self.disk.step().expect("it was submitted")
                    }
                    _ => match self.act(&mut op) {
                        Some(result) => Done { op, result },
                        None => {
                            self.waiting.push(op);
                            continue;
                        }
                    },
                };
                moved = true;
                self.machine.done(self.now, done, &mut self.out);
            }
            moved |= !self.out.ops.is_empty();
            if !moved && self.machine.next_deadline().is_none_or(|at| at > self.now) {
                return;
            }
        }
        panic!("it never comes to rest");
    }

    /// What becomes of an operation on a stream; nothing while it waits.
    fn act(&mut self, op: &mut Op) -> Option<Result<u32, Errno>> {
        match op {
            Op::Accept { .. } if !self.accepted => {
                self.accepted = true;
                Some(Ok(STREAM.0))
            }
            Op::Connect { .. } => Some(Err(Errno::REFUSED)),
            Op::Recv { .. } if self.shut => Some(Err(Errno::CANCELED)),
            Op::Recv { into, from, .. } => {
                let room = &mut into[*from..];
                assert!(!room.is_empty(), "a receive without room");
                let most = if self.cut < 128 { 1 + usize::from(self.cut) } else { usize::MAX };
                let n = room.len().min(self.to.len()).min(most);
                if n == 0 && !self.ended {
                    return None;
                }
                self.cut = self.cut.wrapping_mul(29).wrapping_add(71);
                room.iter_mut().zip(self.to.drain(..n)).for_each(|(to, byte)| *to = byte);
                Some(Ok(u32::try_from(n).unwrap_or(u32::MAX)))
            }
            Op::Watch { .. } if self.shut || self.ended => Some(Ok(0)),
            Op::Send { parts, .. } => {
                let before = self.from.len();
                parts.iter().for_each(|part| self.from.extend_from_slice(part.bytes()));
                Some(Ok(u32::try_from(self.from.len() - before).unwrap_or(u32::MAX)))
            }
            Op::Shutdown { .. } | Op::Close { .. } => {
                self.shut = true;
                Some(Ok(0))
            }
            _ => None,
        }
    }

    /// Sends bytes to the machine, and lets it deal with them.
    pub(crate) fn send(&mut self, bytes: &[u8], cut: u8) {
        self.to.extend(bytes);
        self.cut = cut;
        self.turn();
        // What nobody wants any more.
        if self.shut {
            self.to.clear();
        }
    }

    /// Time passes, from one deadline to the next.
    pub(crate) fn pass(&mut self, span: Span) {
        let end = self.now + span;
        while self.now < end {
            let next = self.machine.next_deadline().unwrap_or(end);
            self.now = next.clamp(self.now + Span::millis(1), end);
            self.turn();
        }
    }

    /// The peer's end of the stream.
    pub(crate) fn end(&mut self) {
        self.ended = true;
        self.turn();
    }

    pub(crate) fn is_over(&self) -> bool {
        self.shut
    }

    /// The next message from the machine.
    pub(crate) fn hear(&mut self) -> Option<(Header, Vec<u8>)> {
        let (header, body) = Header::parse(&self.from).expect("it sends what it takes")?;
        let (body, end) = (body.to_vec(), HEADER_LEN + body.len() + header.payload_len as usize);
        if self.from.len() < end {
            return None;
        }
        self.from.drain(..end);
        Some((header, body))
    }

    /// Plays the connecting side's half of a handshake.
    pub(crate) fn enter(&mut self, info: &HelloInfo) -> (SessionId, ProtectionKey) {
        let secret = KEY.secret(info).expect("a cluster's key makes all secrets");
        let limits = Limits { depth: 16, max_payload: 1 << 20 };
        let hello = Hello { nonce: Nonce([9; 16]), limits, info: info.clone() }.encode().expect("within limits");
        self.send(&frame(wire::Op::HELLO, &hello), u8::MAX);
        let (_, challenge) = self.hear().expect("an answer to a Hello");
        let transcript = Challenge::parse(&challenge).and_then(|said| said.verify(&hello, &secret)).expect("a proof");
        self.send(&frame(wire::Op::PROOF, &transcript.prove().encode()), u8::MAX);
        let (header, ack) = self.hear().expect("an answer to a proof");
        assert_eq!(header.op, wire::Op::HELLO_ACK);
        let ack = HelloAck::parse(&ack, &transcript).expect("admitted");
        (ack.session, transcript.protection_key())
    }
}

/// A message without slot and payload.
pub(crate) fn frame(op: wire::Op, body: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; HEADER_LEN + body.len()];
    Header::new(op, Flags::NONE, 0, 0).put(body, &mut bytes);
    bytes
}

/// One message of an input: everything but its checksums may be anything.
#[derive(Clone, Default)]
pub(crate) struct Message {
    pub(crate) op: u8,
    pub(crate) reply: bool,
    /// Session and tag are filled in.
    pub(crate) stamped: bool,
    pub(crate) slot: u8,
    pub(crate) generation: u8,
    pub(crate) credits: u8,
    pub(crate) body: Vec<u8>,
    pub(crate) payload: Vec<u8>,
}

impl Message {
    /// In a frame whose checksums are right.
    pub(crate) fn frame(&self, session: SessionId, key: &ProtectionKey) -> Vec<u8> {
        let mut body = self.body.clone();
        body.truncate(if wire::Op(self.op).is_handshake() { wire::MAX_HANDSHAKE_BODY } else { wire::MAX_BODY });
        let (slot, generation) = (u32::from(self.slot), u32::from(self.generation));
        // False where the body has no room for it: then it goes without.
        let _stamped =
            self.stamped && wire::prefix::stamp(&mut body, session, key, wire::Op(self.op), slot, generation);
        let payload_len = u32::try_from(self.payload.len()).unwrap_or(u32::MAX);
        let payload_crc = if payload_len == 0 { 0 } else { wire::tree(&wire::pieces(&self.payload)) };
        let flags = Flags(if self.reply { FLAG_REPLY } else { 0 });
        let credits = u16::from(self.credits);
        let header =
            Header { credits, payload_len, payload_crc, ..Header::new(wire::Op(self.op), flags, slot, generation) };
        let mut bytes = vec![0; HEADER_LEN + body.len()];
        header.put(&body, &mut bytes);
        bytes.extend_from_slice(&self.payload);
        bytes
    }

    /// From an input: flags u8, op u8, slot u8, generation u8, credits u8, bytes of body u8, bytes of payload u16 and, if flag 4 says so,
    /// that many blocks of it; then body and payload.
    pub(crate) fn read(input: &mut crate::input::Input<'_>) -> Self {
        let [flags, op, slot, generation, credits, body] = input.array();
        let payload = usize::from(input.u16());
        let body = input.bytes(usize::from(body)).to_vec();
        let payload =
            if flags & 4 == 0 { input.bytes(payload).to_vec() } else { vec![input.u8(); (payload % 32) * BLOCK] };
        Self { op, reply: flags & 1 != 0, stamped: flags & 2 == 0, slot, generation, credits, body, payload }
    }

    /// As an input; a payload of blocks that are full of one byte in short.
    pub(crate) fn write(&self, into: &mut Vec<u8>) {
        let (blocks, rest) = self.payload.as_chunks::<BLOCK>();
        let filled = self.payload.first().filter(|first| rest.is_empty() && self.payload.iter().all(|b| b == *first));
        let flags = u8::from(self.reply) | u8::from(!self.stamped) << 1 | u8::from(filled.is_some()) << 2;
        let short = |n: usize| u8::try_from(n).unwrap_or(u8::MAX);
        let body = short(self.body.len());
        into.extend([flags, self.op, self.slot, self.generation, self.credits, body]);
        let payload = if filled.is_some() { blocks.len() } else { self.payload.len() };
        into.extend(u16::try_from(payload).unwrap_or(u16::MAX).to_le_bytes());
        into.extend(&self.body[..usize::from(body)]);
        match filled {
            Some(byte) => into.push(*byte),
            None => into.extend(&self.payload),
        }
    }
}

/// A client of volume 1.
pub(crate) fn client() -> HelloInfo {
    HelloInfo { volume: 1, generation: 1, incarnation: 1, ..HelloInfo::new(Role::Client, "host", 5) }
}
