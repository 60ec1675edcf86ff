//! The handshake: who are you, prove it, so do I.
//!
//! ```text
//!   connecting side (knows its own secret)                 accepting side (asks Secrets for the name in Hello)
//!   Hello     { nonce, limits, info }            ────►
//!                                                ◄────     Challenge { nonce, process, MAC "server proof" }
//!   Proof     { MAC "client proof" }             ────►     (the peer is who it says: decide on admission)
//!                                                ◄────     HelloAck { session, limits, info, MAC "ack" }
//!                                                          or Reject { reason, limits } at any point
//! ```
//!
//! Each MAC is HMAC-SHA-256 under the shared secret over its own label, the whole Hello and the accepting side's nonce and
//! process: no proof serves in the other direction, for another name, process or connection. The 128-bit protection key of
//! the session is made the same way. Nothing secret is sent; comparison is in constant time.
//!
//! ```text
//! Hello      0 nonce 16 B | 16 Limits | 24 HelloInfo          Challenge  0 nonce 16 B | 16 process u64 | 24 MAC 32 B
//! Proof      0 MAC 32 B                                       HelloAck   0 session u64 | 8 Limits | 16 HelloInfo | MAC 32 B
//! Reject     0 reason u16 | 2 Limits
//! ```

use hmac::Mac as _;
use std::fmt;

use crate::bytes::Reader;
use crate::secrets::mac;
use crate::{HelloInfo, Limits, ProtectionKey, Reason, Secret, SessionId};

/// Bytes of a nonce: never the same twice, however many connections a cluster makes.
pub const NONCE_LEN: usize = 16;
/// Bytes of a proof.
pub const MAC_LEN: usize = 32;

/// A number used once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Nonce(pub [u8; NONCE_LEN]);

impl Nonce {
    /// A nonce from a source of random numbers.
    pub fn draw(random: &mut dyn FnMut() -> u64) -> Self {
        let mut bytes = [0; NONCE_LEN];
        bytes[..8].copy_from_slice(&random().to_le_bytes());
        bytes[8..].copy_from_slice(&random().to_le_bytes());
        Self(bytes)
    }
}

/// A proof. Not comparable with `==`: [`Transcript`] compares in constant time.
#[derive(Clone, Copy, Debug)]
pub struct Mac(pub [u8; MAC_LEN]);

/// What is wrong with a handshake message.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum HandshakeError {
    /// It ends too early.
    #[error("a handshake message ends too early")]
    Short,
    /// It goes on after its end.
    #[error("a handshake message has bytes left over")]
    Trailing,
    /// A reserved field is not zero.
    #[error("a reserved field of a handshake message is not zero")]
    Reserved,
    /// Unknown role.
    #[error("unknown role {0}")]
    Role(u8),
    /// Unknown reason.
    #[error("unknown reason {0}")]
    Reason(u16),
    /// Empty, too long, or not UTF-8.
    #[error("a name must be 1 to {max} bytes of UTF-8", max = crate::MAX_NAME)]
    Name,
    /// Too many disks.
    #[error("more than {max} disks in one Hello", max = crate::MAX_OPENS)]
    Opens,
    /// Depth or payload limit out of range.
    #[error("depth or payload limit out of range")]
    Limits,
    /// A card that there cannot be, or that is not the peer's.
    #[error("a card must name a key like its client, and 1 to {max} volumes in ascending order", max = crate::MAX_KEY_VOLUMES)]
    Card,
    /// A ticket of a client that shows no card.
    #[error("a ticket belongs to a client with a card")]
    Ticket,
    /// The proof does not fit.
    #[error("the peer's proof is wrong: another secret, or not who it says it is")]
    Unauthenticated,
}

/// The connecting side's introduction.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Hello {
    /// Its nonce.
    pub nonce: Nonce,
    /// What it can take.
    pub limits: Limits,
    /// Who it is.
    pub info: HelloInfo,
}

impl Hello {
    /// Its bytes; keep them, the proofs are about them.
    pub fn encode(&self) -> Result<Vec<u8>, HandshakeError> {
        let mut bytes = self.nonce.0.to_vec();
        self.limits.put(&mut bytes);
        self.info.put(&mut bytes)?;
        Ok(bytes)
    }

    /// Reads one.
    pub fn parse(bytes: &[u8]) -> Result<Self, HandshakeError> {
        let mut from = Reader(bytes);
        let hello =
            Self { nonce: Nonce(from.array()?), limits: Limits::read(&mut from)?, info: HelloInfo::read(&mut from)? };
        from.end()?;
        Ok(hello)
    }
}

/// The accepting side's proof, and its nonce for the other one.
#[derive(Clone, Copy, Debug)]
pub struct Challenge {
    nonce: Nonce,
    process: u64,
    proof: Mac,
}

impl Challenge {
    /// For the accepting side: the answer to a Hello, and what the rest of the handshake is checked against.
    pub fn to(hello: &[u8], secret: &Secret, nonce: Nonce, process: u64) -> (Self, Transcript) {
        let transcript = Transcript::new(hello, *secret, nonce, process);
        (Self { nonce, process, proof: transcript.mac(SERVER_PROOF, &[]) }, transcript)
    }

    /// Its bytes.
    pub fn encode(&self) -> Vec<u8> {
        [&self.nonce.0[..], &self.process.to_le_bytes(), &self.proof.0].concat()
    }

    /// Reads one.
    pub fn parse(bytes: &[u8]) -> Result<Self, HandshakeError> {
        let mut from = Reader(bytes);
        let challenge = Self { nonce: Nonce(from.array()?), process: from.u64()?, proof: Mac(from.array()?) };
        from.end()?;
        Ok(challenge)
    }

    /// For the connecting side: checks the proof against the Hello that was sent.
    pub fn verify(&self, hello: &[u8], secret: &Secret) -> Result<Transcript, HandshakeError> {
        let transcript = Transcript::new(hello, *secret, self.nonce, self.process);
        transcript.check(SERVER_PROOF, &[], &self.proof)?;
        Ok(transcript)
    }
}

/// The connecting side's proof.
#[derive(Clone, Copy, Debug)]
pub struct Proof(Mac);

impl Proof {
    /// Its bytes.
    pub fn encode(&self) -> Vec<u8> {
        self.0.0.to_vec()
    }

    /// Reads one.
    pub fn parse(bytes: &[u8]) -> Result<Self, HandshakeError> {
        let mut from = Reader(bytes);
        let proof = Self(Mac(from.array()?));
        from.end()?;
        Ok(proof)
    }
}

/// Admission.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HelloAck {
    /// The session's name.
    pub session: SessionId,
    /// What holds on this connection: not above what the Hello offered.
    pub limits: Limits,
    /// Who the accepting side is.
    pub info: HelloInfo,
}

impl HelloAck {
    /// Its bytes, proven.
    pub fn encode(&self, transcript: &Transcript) -> Result<Vec<u8>, HandshakeError> {
        let mut bytes = self.session.0.to_le_bytes().to_vec();
        self.limits.put(&mut bytes);
        self.info.put(&mut bytes)?;
        let proof = transcript.mac(ACK, &bytes);
        bytes.extend(proof.0);
        Ok(bytes)
    }

    /// Reads one and checks its proof.
    pub fn parse(bytes: &[u8], transcript: &Transcript) -> Result<Self, HandshakeError> {
        let (said, proof) = bytes.split_last_chunk::<MAC_LEN>().ok_or(HandshakeError::Short)?;
        transcript.check(ACK, said, &Mac(*proof))?;
        let mut from = Reader(said);
        let ack = Self {
            session: SessionId(from.u64()?),
            limits: Limits::read(&mut from)?,
            info: HelloInfo::read(&mut from)?,
        };
        from.end()?;
        Ok(ack)
    }
}

/// Not admitted, and what the acceptor can take, so that the other side can adapt.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reject {
    /// Why.
    pub reason: Reason,
    /// The acceptor's limits.
    pub limits: Limits,
}

impl Reject {
    /// Its bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = self.reason.code().to_le_bytes().to_vec();
        self.limits.put(&mut bytes);
        bytes
    }

    /// Reads one.
    pub fn parse(bytes: &[u8]) -> Result<Self, HandshakeError> {
        let mut from = Reader(bytes);
        let code = from.u16()?;
        let reason = Reason::from_code(code).ok_or(HandshakeError::Reason(code))?;
        let limits = Limits::read(&mut from)?;
        from.end()?;
        Ok(Self { reason, limits })
    }
}

const SERVER_PROOF: &[u8] = b"trine/1 server proof";
const CLIENT_PROOF: &[u8] = b"trine/1 client proof";
const ACK: &[u8] = b"trine/1 hello ack";
const PROTECTION_KEY: &[u8] = b"trine/1 protection key";

/// What both sides have said, under the secret they share.
#[derive(Clone)]
pub struct Transcript {
    secret: Secret,
    hello: Vec<u8>,
    nonce: Nonce,
    process: u64,
}

impl Transcript {
    fn new(hello: &[u8], secret: Secret, nonce: Nonce, process: u64) -> Self {
        Self { secret, hello: hello.to_vec(), nonce, process }
    }

    /// For the connecting side.
    pub fn prove(&self) -> Proof {
        Proof(self.mac(CLIENT_PROOF, &[]))
    }

    /// For the accepting side.
    pub fn verify(&self, proof: &Proof) -> Result<(), HandshakeError> {
        self.check(CLIENT_PROOF, &[], &proof.0)
    }

    /// The accepting process, which its HelloAck must name again.
    pub fn process(&self) -> u64 {
        self.process
    }

    /// The key of the session.
    pub fn protection_key(&self) -> ProtectionKey {
        let mac = self.mac(PROTECTION_KEY, &[]).0;
        ProtectionKey(std::array::from_fn(|i| mac[i]))
    }

    fn hmac(&self, label: &[u8], said: &[u8]) -> hmac::Hmac<sha2::Sha256> {
        mac(&self.secret, label, &[&self.hello, &self.nonce.0, &self.process.to_le_bytes(), said])
    }

    fn mac(&self, label: &[u8], said: &[u8]) -> Mac {
        Mac(self.hmac(label, said).finalize().into_bytes().into())
    }

    fn check(&self, label: &[u8], said: &[u8], proof: &Mac) -> Result<(), HandshakeError> {
        self.hmac(label, said).verify_slice(&proof.0).map_err(|_| HandshakeError::Unauthenticated)
    }
}

impl fmt::Debug for Transcript {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Transcript")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Card, MAX_HANDSHAKE_BODY, MAX_NAME, MAX_OPENS, Role, Ticket};
    use proptest::prelude::*;

    const SECRET: Secret = [0x5e; 32];
    const LIMITS: Limits = Limits { depth: 32, max_payload: 1 << 20 };

    fn hello() -> Hello {
        let info = HelloInfo {
            incarnation: 3,
            lane: 1,
            volume: 9,
            generation: 4,
            view: 0x0a0b,
            features: 5,
            opens: smallvec::smallvec![(6, 7)],
            ..HelloInfo::new(Role::Node, "n1", 2)
        };
        Hello { nonce: Nonce([0x11; NONCE_LEN]), limits: LIMITS, info }
    }

    fn challenged() -> (Vec<u8>, Challenge, Transcript) {
        let bytes = hello().encode().unwrap();
        let (challenge, transcript) = Challenge::to(&bytes, &SECRET, Nonce([0x22; NONCE_LEN]), 8);
        (bytes, challenge, transcript)
    }

    fn ack() -> HelloAck {
        HelloAck { session: SessionId(0x77), limits: LIMITS, info: HelloInfo::new(Role::Node, "n2", 8) }
    }

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    #[test]
    fn golden_bytes() {
        let (hello, challenge, transcript) = challenged();
        let reject = Reject { reason: Reason::Fenced, limits: LIMITS };
        assert_eq!(
            hex(&hello),
            "1111111111111111111111111111111120000000000010000202010001000000090000000500000002000000000000000300000000000000\
             04000000000000000b0a0000000000006e3106000000000000000700000000000000"
        );
        assert_eq!(
            hex(&challenge.encode()),
            "222222222222222222222222222222220800000000000000550bf4fe581707eb36913fea9ea15ebfc49eb73d6ec71dc18202\
             b017ca94b96c"
        );
        assert_eq!(
            hex(&transcript.prove().encode()),
            "9a4095647e8caf6eb96801918c229cae35af8eeb64ddebd4b013e4c908149c65"
        );
        assert_eq!(
            hex(&ack().encode(&transcript).unwrap()),
            "7700000000000000200000000000100002020000000000000000000000000000080000000000000000000000000000000000\
             00000000000000000000000000006e32390c64cffcaebb93fa9f3c592e206be654d8da8ac7d294e03e649ff8f6fcb611"
        );
        assert_eq!(hex(&reject.encode()), "12002000000000001000");
        assert_eq!(hex(&transcript.protection_key().0), "b1ef01e0c4650d64cb8577d562a8382d");
    }

    fn with_card(card: Card) -> HelloInfo {
        let (volume, features) = (3, crate::READ_ONLY);
        let client = HelloInfo::new(Role::Client, format!("{}@h/db", card.name), 2);
        HelloInfo { incarnation: 4, generation: 4, lane: 1, volume, features, card: Some(card), ..client }
    }

    fn card() -> Card {
        Card { name: "web1".to_owned(), serial: 10, read_only: true, volumes: smallvec::smallvec![3, 0x0102] }
    }

    #[test]
    fn golden_bytes_of_a_card() {
        let hello = Hello { info: with_card(card()), ..hello() };
        let bytes = hello.encode().unwrap();
        assert_eq!(
            hex(&bytes),
            "1111111111111111111111111111111120000000000010000109000101000000030000000100000002000000000000000400\
             000000000000040000000000000000000000000000007765623140682f64620a000000000000000100000004020000776562\
             310300000002010000"
        );
        assert_eq!(Hello::parse(&bytes), Ok(hello.clone()));

        let with_ticket = Hello { info: HelloInfo { ticket: Some(Ticket([0xaa; 32])), ..hello.info }, ..hello };
        let mut expected = bytes;
        expected[30] = 1;
        expected.extend([0xaa; 32]);
        assert_eq!(with_ticket.encode().unwrap(), expected);
        assert_eq!(Hello::parse(&expected), Ok(with_ticket));
        for cut in 0..expected.len() {
            assert!(Hello::parse(&expected[..cut]).is_err());
        }
        expected[30] = 2;
        assert_eq!(Hello::parse(&expected), Err(HandshakeError::Reserved));
    }

    #[test]
    fn a_card_is_its_clients_and_of_no_node() {
        let encode = |info: HelloInfo| Hello { info, ..hello() }.encode().map(drop);
        assert_eq!(encode(with_card(card())), Ok(()));
        for name in ["h/db", "web2@h/db", "web1/db", "web1"] {
            assert_eq!(
                encode(HelloInfo { name: name.to_owned(), ..with_card(card()) }),
                Err(HandshakeError::Card),
                "{name}"
            );
        }
        assert_eq!(encode(HelloInfo { role: Role::Node, ..with_card(card()) }), Err(HandshakeError::Card));
        let without = HelloInfo { card: None, ticket: Some(Ticket([1; 32])), ..with_card(card()) };
        assert_eq!(encode(without), Err(HandshakeError::Ticket));
        let bytes = Hello { info: with_card(card()), ..hello() }.encode().unwrap();
        let with = |at: usize, value: u8| {
            let mut bytes = bytes.clone();
            bytes[at] = value;
            Hello::parse(&bytes)
        };
        assert_eq!(with(24, 2), Err(HandshakeError::Card), "a node");
        assert_eq!(with(27, 0), Err(HandshakeError::Trailing), "a card that is not spoken of");
        assert_eq!(with(27, 2), Err(HandshakeError::Reserved));
        assert_eq!(with(72, b'x'), Err(HandshakeError::Card), "another key's client");
        for cut in 0..bytes.len() {
            assert!(Hello::parse(&bytes[..cut]).is_err());
        }
    }

    #[test]
    fn both_sides_prove_themselves_and_get_the_same_key() {
        let (hello, challenge, server) = challenged();
        let client = Challenge::parse(&challenge.encode()).unwrap().verify(&hello, &SECRET).unwrap();
        assert_eq!(server.verify(&Proof::parse(&client.prove().encode()).unwrap()), Ok(()));
        assert_eq!(HelloAck::parse(&ack().encode(&server).unwrap(), &client), Ok(ack()));
        assert_eq!(server.protection_key().0, client.protection_key().0);
    }

    #[test]
    fn another_secret_proves_nothing() {
        let (hello, challenge, server) = challenged();
        assert_eq!(challenge.verify(&hello, &[0; 32]).err(), Some(HandshakeError::Unauthenticated));
        let (_, liar) = Challenge::to(&hello, &[0; 32], Nonce([0x22; NONCE_LEN]), 8);
        assert_eq!(server.verify(&liar.prove()), Err(HandshakeError::Unauthenticated));
    }

    #[test]
    fn a_proof_serves_for_no_other_hello_nonce_process_or_direction() {
        let (hello, challenge, server) = challenged();
        for at in 0..hello.len() {
            let mut other = hello.clone();
            other[at] ^= 1;
            let (_, other) = Challenge::to(&other, &SECRET, Nonce([0x22; NONCE_LEN]), 8);
            assert!(server.verify(&other.prove()).is_err(), "byte {at} of Hello");
        }
        for (nonce, process) in [(0x23, 8), (0x22, 9)] {
            let (_, other) = Challenge::to(&hello, &SECRET, Nonce([nonce; NONCE_LEN]), process);
            assert!(server.verify(&other.prove()).is_err());
        }
        assert!(server.verify(&Proof(challenge.proof)).is_err(), "the server's own proof reflected");
    }

    #[test]
    fn an_ack_that_was_changed_is_refused() {
        let (_, _, transcript) = challenged();
        let bytes = ack().encode(&transcript).unwrap();
        for at in 0..bytes.len() {
            let mut bytes = bytes.clone();
            bytes[at] ^= 0x10;
            assert_eq!(HelloAck::parse(&bytes, &transcript), Err(HandshakeError::Unauthenticated));
        }
    }

    #[test]
    fn the_longest_messages_fit() {
        let info = HelloInfo {
            opens: (0..MAX_OPENS as u64).map(|n| (n, n)).collect(),
            ..HelloInfo::new(Role::Node, "n".repeat(MAX_NAME), 1)
        };
        let volumes = (1..).take(crate::MAX_KEY_VOLUMES).collect();
        let card = Card { name: "k".repeat(crate::MAX_KEY_NAME), volumes, ..card() };
        let name = format!("{}@", card.name) + &"n".repeat(MAX_NAME - card.name.len() - 1);
        let ticket = Some(Ticket([1; 32]));
        let client = HelloInfo { opens: info.opens.clone(), name, ticket, ..with_card(card) };
        let (_, _, transcript) = challenged();
        for info in [info, client] {
            let hello = Hello { info: info.clone(), ..hello() }.encode().unwrap();
            let ack = HelloAck { info, ..ack() }.encode(&transcript).unwrap();
            assert!(hello.len().max(ack.len()) <= MAX_HANDSHAKE_BODY);
            assert!(Hello::parse(&hello).is_ok());
        }
    }

    #[test]
    fn each_malformed_field_has_its_own_error() {
        let bytes = hello().encode().unwrap();
        let with = |at: usize, value: u8| {
            let mut bytes = bytes.clone();
            bytes[at] = value;
            Hello::parse(&bytes)
        };
        assert_eq!(with(16, 0), Err(HandshakeError::Limits), "depth 0");
        assert_eq!(with(17, 0xff), Err(HandshakeError::Limits), "depth above the limit");
        assert_eq!(with(18, 1), Err(HandshakeError::Reserved));
        assert_eq!(with(23, 1), Err(HandshakeError::Limits), "payload above the limit");
        assert_eq!(with(24, 3), Err(HandshakeError::Role(3)));
        assert_eq!(with(25, 65), Err(HandshakeError::Short));
        assert_eq!(with(26, 33), Err(HandshakeError::Opens));
        assert_eq!(with(72, 0xff), Err(HandshakeError::Name));
        assert_eq!(Hello::parse(&[&bytes[..], &[0]].concat()), Err(HandshakeError::Trailing));
        assert_eq!(Reject::parse(&[0xff; 10]), Err(HandshakeError::Reason(0xffff)));
        for cut in 0..bytes.len() {
            assert!(Hello::parse(&bytes[..cut]).is_err());
        }
    }

    proptest! {
        #[test]
        fn what_is_encoded_is_parsed(
            nonce: [u8; 16], depth in 1..=crate::MAX_DEPTH, max_payload in 0..=crate::MAX_PAYLOAD, client: bool, name in "[a-z]{1,64}",
            process: u64, incarnation: u64, lane: u16, volume: u32, generation: u64, view: u64, features: u32,
            opens in proptest::collection::vec(any::<(u64, u64)>(), 0..=MAX_OPENS),
        ) {
            let role = if client { Role::Client } else { Role::Node };
            let opens = opens.into_iter().collect();
            let info = HelloInfo { role, name, process, incarnation, lane, volume, generation, view, features, opens, card: None, ticket: None };
            let hello = Hello { nonce: Nonce(nonce), limits: Limits { depth, max_payload }, info };
            prop_assert_eq!(Hello::parse(&hello.encode().unwrap()), Ok(hello));
        }

        #[test]
        fn random_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let (_, _, transcript) = challenged();
            let _ = (Hello::parse(&bytes), Challenge::parse(&bytes), Proof::parse(&bytes), Reject::parse(&bytes));
            prop_assert!(HelloAck::parse(&bytes, &transcript).is_err());
        }
    }
}
