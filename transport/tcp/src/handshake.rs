//! The handshake as it is played on a stream: say, wait until it is sent, listen, one after the other.

use driver::{Binding, Time};
use wire::{
    Body, Challenge, Flags, Happening, Header, Hello, HelloAck, HelloInfo, Limits, Nonce, Op, Proof, Reason, Reject,
    Secret, State, Transcript,
};

use crate::connection::{Connection, Step};
use crate::event::{Admission, NetEvent};
use crate::inbound::Frame;
use crate::limits::{ADMISSION_DEADLINE, HANDSHAKE_DEADLINE};
use crate::net::Net;
use crate::outbound::rx_slots;
use crate::slots::Slots;

/// What is said in clear to a stranger before any connection is made of its stream: why not.
pub fn refusal(reason: Reason) -> Vec<u8> {
    let reject = Reject { reason, limits: Limits { depth: 1, max_payload: 0 } }.encode();
    let mut bytes = vec![0; wire::HEADER_LEN + reject.len()];
    let len = Header::new(Op::REJECT, Flags::NONE, 0, 0).put(&reject, &mut bytes);
    bytes.truncate(len);
    bytes
}

impl Net {
    /// The stream is there: introduce ourselves.
    pub(crate) fn say_hello(&mut self, now: Time, connection: &mut Connection) {
        let nonce = Nonce::draw(&mut *self.options.random);
        match (Hello { nonce, limits: connection.limits, info: connection.mine.clone() }).encode() {
            Ok(hello) => {
                self.say(connection, Step::SayHello, Op::HELLO, &hello);
                connection.hello = hello;
                self.set_deadline(connection, now + HANDSHAKE_DEADLINE);
            }
            Err(_) => self.end(now, connection, Reason::BadHandshake, Happening::ConnectError),
        }
    }

    /// What we said is sent: the next step.
    pub(crate) fn said(&mut self, now: Time, connection: &mut Connection) {
        match connection.step {
            Step::SayHello => connection.step = Step::AwaitChallenge,
            Step::SayProof => connection.step = Step::AwaitAck,
            Step::SayChallenge => connection.step = Step::AwaitProof,
            Step::SayAck => self.establish(now, connection),
            Step::SayReject(reason) => self.end(now, connection, reason, Happening::Rejected),
            Step::Connect | Step::AwaitChallenge | Step::AwaitAck | Step::AwaitHello | Step::AwaitProof => {}
            Step::Admission | Step::Open => {}
        }
        self.drain(now, connection);
    }

    /// A message of the peer before Established.
    pub(crate) fn handshake(&mut self, now: Time, connection: &mut Connection, frame: &Frame) {
        let result = match (connection.step, frame.header.op) {
            (Step::AwaitHello, Op::HELLO) => self.heard_hello(connection, &frame.body),
            (Step::AwaitProof, Op::PROOF) => self.heard_proof(now, connection, &frame.body),
            (Step::AwaitChallenge, Op::CHALLENGE) => self.heard_challenge(now, connection, &frame.body),
            (Step::AwaitAck, Op::HELLO_ACK) => self.heard_ack(now, connection, &frame.body),
            (Step::AwaitChallenge | Step::AwaitAck, Op::REJECT) => Err(Reject::parse(&frame.body)
                .map_or(Reason::BadHandshake, |reject| believed(connection.step, reject.reason))),
            _ => Err(Reason::Unexpected),
        };
        match result {
            Ok(()) => {}
            Err(reason @ (Reason::Unauthenticated | Reason::BadHandshake)) if connection.state == State::Accepted => {
                self.reject(connection, reason);
            }
            Err(reason) => self.end(now, connection, reason, Happening::Rejected),
        }
    }

    /// What a connecting side's proofs are made with on this stream: over TLS it serves on no other.
    fn secret(&self, connection: &Connection, who: &HelloInfo) -> Result<Secret, Reason> {
        let secret = self.options.secrets.secret(who).ok_or(Reason::Unauthenticated)?;
        let binding = connection.owner.binding().filter(|_| !driver::mutant::on("proof_not_bound"));
        Ok(binding.map_or(secret, |Binding(binding)| wire::over_tls(&secret, &binding)))
    }

    fn heard_hello(&mut self, connection: &mut Connection, body: &[u8]) -> Result<(), Reason> {
        let hello = Hello::parse(body).map_err(|_| Reason::BadHandshake)?;
        let secret = self.secret(connection, &hello.info)?;
        let nonce = Nonce::draw(&mut *self.options.random);
        let (challenge, transcript) = Challenge::to(body, &secret, nonce, self.options.name.process);
        connection.limits = connection.limits.common(hello.limits);
        connection.peer = Some(hello.info);
        connection.transcript = Some(transcript);
        self.say(connection, Step::SayChallenge, Op::CHALLENGE, &challenge.encode());
        Ok(())
    }

    fn heard_proof(&mut self, now: Time, connection: &mut Connection, body: &[u8]) -> Result<(), Reason> {
        let proof = Proof::parse(body).map_err(|_| Reason::BadHandshake)?;
        transcript(connection)?.verify(&proof).map_err(|_| Reason::Unauthenticated)?;
        let peer = connection.peer.clone().ok_or(Reason::BadHandshake)?;
        connection.owner.prove();
        connection.step = Step::Admission;
        self.set_deadline(connection, now + ADMISSION_DEADLINE);
        connection.announced = true;
        self.tell(NetEvent::Hello { conn: connection.id, peer });
        Ok(())
    }

    fn heard_challenge(&mut self, now: Time, connection: &mut Connection, body: &[u8]) -> Result<(), Reason> {
        let challenge = Challenge::parse(body).map_err(|_| Reason::BadHandshake)?;
        let secret = self.secret(connection, &connection.mine)?;
        let transcript = challenge.verify(&connection.hello, &secret).map_err(|_| Reason::Unauthenticated)?;
        self.say(connection, Step::SayProof, Op::PROOF, &transcript.prove().encode());
        connection.transcript = Some(transcript);
        self.set_deadline(connection, now + ADMISSION_DEADLINE);
        Ok(())
    }

    fn heard_ack(&mut self, now: Time, connection: &mut Connection, body: &[u8]) -> Result<(), Reason> {
        let transcript = transcript(connection)?;
        let ack = HelloAck::parse(body, transcript).map_err(|_| Reason::Unauthenticated)?;
        if ack.limits != ack.limits.common(connection.limits) {
            return Err(Reason::Incompatible);
        }
        if ack.info.process != transcript.process() {
            return Err(Reason::BadHandshake);
        }
        let key = transcript.protection_key();
        connection.session = Some((ack.session, key));
        connection.limits = ack.limits;
        connection.peer = Some(ack.info);
        self.establish(now, connection);
        Ok(())
    }

    /// The machine's decision: admitted.
    pub(crate) fn admit(&mut self, now: Time, connection: &mut Connection, admission: Admission) {
        if connection.step != Step::Admission || !connection.state.is_open() {
            return;
        }
        let ack = HelloAck { session: admission.session, limits: connection.limits, info: admission.hello };
        let said = connection
            .transcript
            .as_ref()
            .and_then(|transcript| Some((ack.encode(transcript).ok()?, (ack.session, transcript.protection_key()))));
        match said {
            Some((bytes, session)) => {
                connection.session = Some(session);
                self.say(connection, Step::SayAck, Op::HELLO_ACK, &bytes);
                self.set_deadline(connection, now + HANDSHAKE_DEADLINE);
            }
            None => self.end(now, connection, Reason::BadHandshake, Happening::Rejected),
        }
    }

    /// Says why not, then closes.
    pub(crate) fn reject(&mut self, connection: &mut Connection, reason: Reason) {
        let reject = Reject { reason, limits: connection.limits };
        self.say(connection, Step::SayReject(reason), Op::REJECT, &reject.encode());
    }

    fn say(&mut self, connection: &mut Connection, step: Step, op: Op, body: &[u8]) {
        connection.step = step;
        self.queue(connection, Header::new(op, Flags::NONE, 0, 0), Body::from_slice(body), None);
    }

    /// Both sides have proven who they are. Last of all the machine is told.
    fn establish(&mut self, now: Time, connection: &mut Connection) {
        let Some(peer) = connection.peer.clone() else { return };
        if connection.state == State::Accepted {
            self.handshakes -= 1;
        }
        connection.state = connection.state.after(Happening::Establish);
        connection.step = Step::Open;
        connection.deadline = None;
        connection.transcript = None;
        connection.hello = Vec::new();
        connection.credits = wire::Credits::new(connection.limits.depth);
        connection.slots = Slots::new(connection.limits.depth);
        connection.rx = (0..rx_slots(connection.limits.depth)).map(|_| connection.owner.share()).collect();
        (connection.heard, connection.said) = (now, now);
        connection.announced = true;
        self.counters.established += 1;
        let (ping, silent) = connection.patience();
        self.arm(now + ping.min(silent));
        self.tell(NetEvent::Up { conn: connection.id, peer, limits: connection.limits });
    }
}

/// Who has proven nothing has no verdict to give: a node fences and denies those whose proof it has seen, and proves itself before that.
fn believed(step: Step, reason: Reason) -> Reason {
    match (step, reason) {
        (Step::AwaitChallenge, Reason::Fenced | Reason::Denied) => Reason::Unauthenticated,
        _ => reason,
    }
}

/// What was said so far; there is one in every step that asks for it.
fn transcript(connection: &Connection) -> Result<&Transcript, Reason> {
    connection.transcript.as_ref().ok_or(Reason::BadHandshake)
}
