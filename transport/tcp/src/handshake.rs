//! The handshake as it is played on a stream: say, wait until it is sent, listen, one after the other.

use driver::{Binding, Time};
use wire::{
    Body, Challenge, Flags, Happening, Header, Hello, HelloAck, HelloInfo, Limits, Nonce, Op, Proof, Reason, Reject,
    Secret, State, Transcript,
};

use crate::event::{Admission, NetEvent};
use crate::inbound::Frame;
use crate::limits::{ADMISSION_DEADLINE, HANDSHAKE_DEADLINE};
use crate::link::{Link, Step};
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
    pub(crate) fn say_hello(&mut self, now: Time, link: &mut Link) {
        let nonce = Nonce::draw(&mut *self.options.random);
        match (Hello { nonce, limits: link.limits, info: link.mine.clone() }).encode() {
            Ok(hello) => {
                self.say(link, Step::SayHello, Op::HELLO, &hello);
                link.hello = hello;
                self.set_deadline(link, now + HANDSHAKE_DEADLINE);
            }
            Err(_) => self.end(now, link, Reason::BadHandshake, Happening::ConnectError),
        }
    }

    /// What we said is sent: the next step.
    pub(crate) fn said(&mut self, now: Time, link: &mut Link) {
        match link.step {
            Step::SayHello => link.step = Step::AwaitChallenge,
            Step::SayProof => link.step = Step::AwaitAck,
            Step::SayChallenge => link.step = Step::AwaitProof,
            Step::SayAck => self.establish(now, link),
            Step::SayReject(reason) => self.end(now, link, reason, Happening::Rejected),
            Step::Connect | Step::AwaitChallenge | Step::AwaitAck | Step::AwaitHello | Step::AwaitProof => {}
            Step::Admission | Step::Open => {}
        }
        self.drain(now, link);
    }

    /// A message of the peer before Established.
    pub(crate) fn handshake(&mut self, now: Time, link: &mut Link, frame: &Frame) {
        let result =
            match (link.step, frame.header.op) {
                (Step::AwaitHello, Op::HELLO) => self.heard_hello(link, &frame.body),
                (Step::AwaitProof, Op::PROOF) => self.heard_proof(now, link, &frame.body),
                (Step::AwaitChallenge, Op::CHALLENGE) => self.heard_challenge(now, link, &frame.body),
                (Step::AwaitAck, Op::HELLO_ACK) => self.heard_ack(now, link, &frame.body),
                (Step::AwaitChallenge | Step::AwaitAck, Op::REJECT) => Err(Reject::parse(&frame.body)
                    .map_or(Reason::BadHandshake, |reject| believed(link.step, reject.reason))),
                _ => Err(Reason::Unexpected),
            };
        match result {
            Ok(()) => {}
            Err(reason @ (Reason::Unauthenticated | Reason::BadHandshake)) if link.state == State::Accepted => {
                self.reject(link, reason);
            }
            Err(reason) => self.end(now, link, reason, Happening::Rejected),
        }
    }

    /// What a connecting side's proofs are made with on this stream: over TLS it serves on no other.
    fn secret(&self, link: &Link, who: &HelloInfo) -> Result<Secret, Reason> {
        let secret = self.options.secrets.secret(who).ok_or(Reason::Unauthenticated)?;
        let binding = link.owner.binding().filter(|_| !driver::mutant::on("proof_not_bound"));
        Ok(binding.map_or(secret, |Binding(binding)| wire::over_tls(&secret, &binding)))
    }

    fn heard_hello(&mut self, link: &mut Link, body: &[u8]) -> Result<(), Reason> {
        let hello = Hello::parse(body).map_err(|_| Reason::BadHandshake)?;
        let secret = self.secret(link, &hello.info)?;
        let nonce = Nonce::draw(&mut *self.options.random);
        let (challenge, transcript) = Challenge::to(body, &secret, nonce, self.options.name.process);
        link.limits = link.limits.common(hello.limits);
        link.peer = Some(hello.info);
        link.transcript = Some(transcript);
        self.say(link, Step::SayChallenge, Op::CHALLENGE, &challenge.encode());
        Ok(())
    }

    fn heard_proof(&mut self, now: Time, link: &mut Link, body: &[u8]) -> Result<(), Reason> {
        let proof = Proof::parse(body).map_err(|_| Reason::BadHandshake)?;
        transcript(link)?.verify(&proof).map_err(|_| Reason::Unauthenticated)?;
        let peer = link.peer.clone().ok_or(Reason::BadHandshake)?;
        link.owner.prove();
        link.step = Step::Admission;
        self.set_deadline(link, now + ADMISSION_DEADLINE);
        link.announced = true;
        self.tell(NetEvent::Hello { conn: link.id, peer });
        Ok(())
    }

    fn heard_challenge(&mut self, now: Time, link: &mut Link, body: &[u8]) -> Result<(), Reason> {
        let challenge = Challenge::parse(body).map_err(|_| Reason::BadHandshake)?;
        let secret = self.secret(link, &link.mine)?;
        let transcript = challenge.verify(&link.hello, &secret).map_err(|_| Reason::Unauthenticated)?;
        self.say(link, Step::SayProof, Op::PROOF, &transcript.prove().encode());
        link.transcript = Some(transcript);
        self.set_deadline(link, now + ADMISSION_DEADLINE);
        Ok(())
    }

    fn heard_ack(&mut self, now: Time, link: &mut Link, body: &[u8]) -> Result<(), Reason> {
        let transcript = transcript(link)?;
        let ack = HelloAck::parse(body, transcript).map_err(|_| Reason::Unauthenticated)?;
        if ack.limits != ack.limits.common(link.limits) {
            return Err(Reason::Incompatible);
        }
        if ack.info.process != transcript.process() {
            return Err(Reason::BadHandshake);
        }
        let key = transcript.protection_key();
        link.session = Some((ack.session, key));
        link.limits = ack.limits;
        link.peer = Some(ack.info);
        self.establish(now, link);
        Ok(())
    }

    /// The machine's decision: admitted.
    pub(crate) fn admit(&mut self, now: Time, link: &mut Link, admission: Admission) {
        if link.step != Step::Admission || !link.state.is_open() {
            return;
        }
        let ack = HelloAck { session: admission.session, limits: link.limits, info: admission.hello };
        let said = link
            .transcript
            .as_ref()
            .and_then(|transcript| Some((ack.encode(transcript).ok()?, (ack.session, transcript.protection_key()))));
        match said {
            Some((bytes, session)) => {
                link.session = Some(session);
                self.say(link, Step::SayAck, Op::HELLO_ACK, &bytes);
                self.set_deadline(link, now + HANDSHAKE_DEADLINE);
            }
            None => self.end(now, link, Reason::BadHandshake, Happening::Rejected),
        }
    }

    /// Says why not, then closes.
    pub(crate) fn reject(&mut self, link: &mut Link, reason: Reason) {
        let reject = Reject { reason, limits: link.limits };
        self.say(link, Step::SayReject(reason), Op::REJECT, &reject.encode());
    }

    fn say(&mut self, link: &mut Link, step: Step, op: Op, body: &[u8]) {
        link.step = step;
        self.queue(link, Header::new(op, Flags::NONE, 0, 0), Body::from_slice(body), None);
    }

    /// Both sides have proven who they are. Last of all the machine is told.
    fn establish(&mut self, now: Time, link: &mut Link) {
        let Some(peer) = link.peer.clone() else { return };
        if link.state == State::Accepted {
            self.handshakes -= 1;
        }
        link.state = link.state.after(Happening::Establish);
        link.step = Step::Open;
        link.deadline = None;
        link.transcript = None;
        link.hello = Vec::new();
        link.credits = wire::Credits::new(link.limits.depth);
        link.slots = Slots::new(link.limits.depth);
        link.rx = (0..rx_slots(link.limits.depth)).map(|_| link.owner.share()).collect();
        (link.heard, link.said) = (now, now);
        link.announced = true;
        self.counters.established += 1;
        let (ping, silent) = link.patience();
        self.arm(now + ping.min(silent));
        self.tell(NetEvent::Up { conn: link.id, peer, limits: link.limits });
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
fn transcript(link: &Link) -> Result<&Transcript, Reason> {
    link.transcript.as_ref().ok_or(Reason::BadHandshake)
}
