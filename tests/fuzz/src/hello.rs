//! The handshake's messages: the first byte says which one, the rest is its body.
//!
//! HelloAck is proven by its last bytes, so that one is read with the proof made right as well.

use crate::input::Input;
use wire::{
    Card, Challenge, Hello, HelloAck, HelloInfo, Limits, MAX_DEPTH, MAX_HANDSHAKE_BODY, MAX_KEY_VOLUMES, MAX_NAME,
    MAX_OPENS, MAX_PAYLOAD, Nonce, Proof, Reason, Reject, Role, Secret, SessionId, Ticket, Transcript,
};

const SECRET: Secret = [0x5e; 32];
const LIMITS: Limits = Limits { depth: 32, max_payload: 1 << 20 };
/// Bytes that a proof adds behind what an HelloAck says.
const MAC: usize = wire::MAC_LEN;

pub(crate) fn target(data: &[u8]) {
    let mut input = Input::new(data);
    let kind = input.u8();
    let body = input.rest();
    match kind % 5 {
        0 => {
            let Ok(hello) = Hello::parse(body) else { return };
            within(&hello.limits, &hello.info);
            assert_eq!(hello.encode().as_deref(), Ok(body));
            let (challenge, server) = Challenge::to(body, &SECRET, Nonce([1; 16]), 7);
            let client = challenge.verify(body, &SECRET).expect("both know the secret");
            assert_eq!(server.verify(&client.prove()), Ok(()));
            assert!(server.verify(&Proof::parse(&[0; MAC]).expect("of the right length")).is_err());
        }
        1 => {
            let Ok(challenge) = Challenge::parse(body) else { return };
            assert_eq!(challenge.encode(), body);
            assert!(challenge.verify(b"a Hello that nobody sent", &SECRET).is_err());
        }
        2 => {
            let Ok(proof) = Proof::parse(body) else { return };
            assert_eq!(proof.encode(), body);
        }
        3 => {
            let transcript = transcript();
            assert!(HelloAck::parse(body, &transcript).is_err(), "nobody knows the secret");
            let Some(ack) = proven(body, &transcript) else { return };
            within(&ack.limits, &ack.info);
        }
        _ => {
            let Ok(reject) = Reject::parse(body) else { return };
            assert!(reject.limits.depth <= MAX_DEPTH && reject.limits.max_payload <= MAX_PAYLOAD);
            assert_eq!(reject.encode(), body);
        }
    }
}

fn within(limits: &Limits, info: &HelloInfo) {
    assert!((1..=MAX_DEPTH).contains(&limits.depth) && limits.max_payload <= MAX_PAYLOAD);
    assert!((1..=MAX_NAME).contains(&info.name.len()) && info.opens.len() <= MAX_OPENS);
    if let Some(card) = &info.card {
        assert!(info.role == Role::Client && (1..=MAX_KEY_VOLUMES).contains(&card.volumes.len()));
        let bytes = card.encode().expect("it was read");
        assert_eq!(Card::parse(&bytes).as_ref(), Ok(card));
        assert!(card.volumes.iter().all(|volume| card.is_for(*volume)) && !card.is_for(0));
    }
}

fn transcript() -> Transcript {
    Challenge::to(b"a Hello", &SECRET, Nonce([2; 16]), 8).1
}

/// An HelloAck that says this, if it can be said: a Hello says the same of limits and of who it is.
fn proven(said: &[u8], transcript: &Transcript) -> Option<HelloAck> {
    let (session, rest) = said.split_first_chunk::<8>()?;
    let Hello { limits, info, .. } = Hello::parse(&[&[0; 16], rest].concat()).ok()?;
    let ack = HelloAck { session: SessionId(u64::from_le_bytes(*session)), limits, info };
    let bytes = ack.encode(transcript).expect("it was within its limits");
    assert_eq!(bytes[..bytes.len() - MAC], *said);
    assert!(bytes.len() <= MAX_HANDSHAKE_BODY);
    let again = HelloAck::parse(&bytes, transcript);
    assert_eq!(again.as_ref(), Ok(&ack));
    Some(ack)
}

pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let small = HelloInfo::new(Role::Client, "c", 1);
    let opens = (0..MAX_OPENS as u64).map(|n| (n, !n)).collect();
    let large = HelloInfo { lane: 3, volume: 9, view: 4, opens, ..HelloInfo::new(Role::Node, "n".repeat(MAX_NAME), 2) };
    let volumes = (1..).take(MAX_KEY_VOLUMES).collect();
    let card = Card { name: "web1".to_owned(), serial: 7, read_only: true, volumes };
    let ticket = Some(Ticket([5; 32]));
    let keyed = HelloInfo { volume: 9, card: Some(card), ticket, ..HelloInfo::new(Role::Client, "web1@host/db", 3) };
    let mut seeds = Vec::new();
    let mut seed = |kind: u8, body: &[u8]| seeds.push([&[kind], body].concat());
    for info in [small, large, keyed] {
        let hello =
            Hello { nonce: Nonce([3; 16]), limits: LIMITS, info: info.clone() }.encode().expect("within limits");
        let (challenge, server) = Challenge::to(&hello, &SECRET, Nonce([4; 16]), 5);
        let ack = HelloAck { session: SessionId(6), limits: LIMITS, info }.encode(&server).expect("within limits");
        seed(0, &hello);
        seed(1, &challenge.encode());
        seed(2, &server.prove().encode());
        seed(3, &ack[..ack.len() - MAC]);
    }
    seed(4, &Reject { reason: Reason::Fenced, limits: LIMITS }.encode());
    seeds
}
