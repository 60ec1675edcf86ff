//! The proof of one HTTP request to a conductor: who asks, and that nobody has changed or repeated what is asked.
//!
//! ```text
//! asks without                       ────►
//!                                    ◄────  401, www-authenticate: trine CHALLENGE
//! asks with authorization: trine P   ────►  P = challenge 16 B | nonce u64 | SHA-256 of the body | MAC 32 B | card, if any; in hexadecimal digits
//! ```
//!
//! The MAC is HMAC-SHA-256 under the cluster's key, or under the secret of the card, over a label, the method, the path with its query and
//! all of P but itself. Over TLS it is under what [`over_tls`] makes of that. A challenge serves for many requests, each with a nonce that was not used with it before: neither side needs the
//! other's clock.

use hmac::Mac as _;
use sha2::{Digest, Sha256};

use crate::bytes::Reader;
use crate::card::{from_hex, to_hex};
use crate::handshake::{MAC_LEN, Mac, NONCE_LEN};
use crate::secrets::{mac, over_tls};
use crate::{Card, ClusterKey, Key, MAX_CARD, Secret};

const LABEL: &[u8] = b"trine/1 request";
const SCHEME: &str = "trine ";
const FIXED: usize = NONCE_LEN + 8 + 32 + MAC_LEN;
/// The longest value of the header.
pub const MAX_AUTHORIZATION: usize = SCHEME.len() + 2 * (FIXED + MAX_CARD);

/// What requests are made for: drawn by a conductor, and over after a while.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RequestChallenge(pub [u8; NONCE_LEN]);

impl RequestChallenge {
    /// The value of `www-authenticate`.
    pub fn to_header(self) -> String {
        format!("{SCHEME}{}", to_hex(&self.0))
    }

    /// Reads that value.
    pub fn from_header(text: &str) -> Option<Self> {
        from_hex(text.strip_prefix(SCHEME)?)?.try_into().ok().map(Self)
    }
}

/// What a request goes over. Its proof says so: one that somebody was given in clear is none over TLS.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Over {
    /// TCP, for all to read.
    Clear,
    /// TLS. Which session of it is not said: connections come and go beneath requests.
    Tls,
}

/// Who asks, and for what.
#[derive(Clone, Debug)]
pub struct RequestProof {
    /// For which conductor and time it is.
    pub challenge: RequestChallenge,
    /// Used once with that.
    pub nonce: u64,
    /// What the asker may do; everything, if there is none.
    pub card: Option<Card>,
    body: [u8; 32],
    proof: Mac,
}

impl RequestProof {
    /// For a request that is about to be sent.
    pub fn new(
        key: &Key,
        over: Over,
        (challenge, nonce): (RequestChallenge, u64),
        method: &str,
        path: &str,
        body: &[u8],
    ) -> Self {
        let mut this = Self {
            challenge,
            nonce,
            card: key.card().cloned(),
            body: Sha256::digest(body).into(),
            proof: Mac([0; MAC_LEN]),
        };
        this.proof = Mac(this.hmac(key.secret_itself(), over, method, path).finalize().into_bytes().into());
        this
    }

    /// The value of `authorization`.
    pub fn to_header(&self) -> String {
        let nonce = self.nonce.to_le_bytes();
        format!(
            "{SCHEME}{}",
            to_hex(&[&self.challenge.0[..], &nonce, &self.body, &self.proof.0, &self.card_bytes()].concat())
        )
    }

    /// Reads that value. Nothing is proven by that.
    pub fn from_header(text: &str) -> Option<Self> {
        if text.len() > MAX_AUTHORIZATION {
            return None;
        }
        let bytes = from_hex(text.strip_prefix(SCHEME)?)?;
        let mut from = Reader(&bytes);
        let challenge = RequestChallenge(from.array().ok()?);
        let (nonce, body, proof) = (from.u64().ok()?, from.array().ok()?, Mac(from.array().ok()?));
        let card = if from.0.is_empty() { None } else { Some(Card::parse(from.0).ok()?) };
        Some(Self { challenge, nonce, card, body, proof })
    }

    /// Whether who has asked for this has the secret of who it says it is. Compares in constant time.
    pub fn is_proven(&self, key: &ClusterKey, over: Over, method: &str, path: &str) -> bool {
        let secret = match &self.card {
            None => Some(key.0),
            Some(card) => card.secret(key),
        };
        secret.is_some_and(|secret| self.hmac(&secret, over, method, path).verify_slice(&self.proof.0).is_ok())
    }

    /// Whether the body is the one that this was made for.
    pub fn covers(&self, body: &[u8]) -> bool {
        self.body == <[u8; 32]>::from(Sha256::digest(body))
    }

    /// One that cannot be encoded belongs to no secret.
    fn card_bytes(&self) -> Vec<u8> {
        self.card.as_ref().and_then(|card| card.encode().ok()).unwrap_or_default()
    }

    fn hmac(&self, secret: &Secret, over: Over, method: &str, path: &str) -> hmac::Hmac<Sha256> {
        let secret = match over {
            Over::Clear => *secret,
            Over::Tls => over_tls(secret, &[]),
        };
        let (nonce, card) = (self.nonce.to_le_bytes(), self.card_bytes());
        mac(&secret, LABEL, &[method.as_bytes(), path.as_bytes(), &self.challenge.0, &nonce, &self.body, &card])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ClientKey;
    use smallvec::smallvec;

    const KEY: ClusterKey = ClusterKey([7; 32]);
    const CHALLENGE: RequestChallenge = RequestChallenge([0x11; NONCE_LEN]);

    fn card() -> Card {
        Card { name: "web1".to_owned(), serial: 10, read_only: false, volumes: smallvec![3] }
    }

    fn keys() -> [Key; 2] {
        [Key::Cluster(KEY), Key::Client(ClientKey::new(card(), &KEY, [9; 32]).unwrap())]
    }

    #[test]
    fn golden_headers() {
        let [cluster, client] =
            keys().map(|key| RequestProof::new(&key, Over::Clear, (CHALLENGE, 5), "GET", "/v1/x?y", b"z").to_header());
        assert_eq!(
            cluster,
            "trine 111111111111111111111111111111110500000000000000594e519ae499312b29433b7dd8a97ff068defcba9755b6\
             d5d00e84c524d67b06cc1fa18961e7336a813066435a580daeaf352bdbb8e04e4219049c8a04f923fe"
        );
        assert_eq!(
            client,
            "trine 111111111111111111111111111111110500000000000000594e519ae499312b29433b7dd8a97ff068defcba9755b6\
             d5d00e84c524d67b06c0ecbde85eeb04d792583804d3e6e9af84c5838720f3b997360991a8a1a6428b0a0000000000000000\
             000000040100007765623103000000"
        );
        // Over TLS the MAC alone is another.
        let [cluster, client] =
            keys().map(|key| RequestProof::new(&key, Over::Tls, (CHALLENGE, 5), "GET", "/v1/x?y", b"z").to_header());
        assert_eq!(
            cluster,
            "trine 111111111111111111111111111111110500000000000000594e519ae499312b29433b7dd8a97ff068defcba9755b6\
             d5d00e84c524d67b062a3d7651e20e541b76822c3b2fafc29d208709a7db74e5f9d9dd5754511991b7"
        );
        assert_eq!(
            client,
            "trine 111111111111111111111111111111110500000000000000594e519ae499312b29433b7dd8a97ff068defcba9755b6\
             d5d00e84c524d67b06ac611a9bf1ead0ad213b76947624537a1195c6e2544e9b694cbf2488be4798de0a0000000000000000\
             000000040100007765623103000000"
        );
        assert_eq!(RequestChallenge::from_header(&CHALLENGE.to_header()), Some(CHALLENGE));
    }

    #[test]
    fn a_proof_is_for_one_request_alone() {
        for key in keys() {
            let proof = RequestProof::new(&key, Over::Clear, (CHALLENGE, 5), "POST", "/v1/volumes", b"body");
            let header = proof.to_header();
            let read = RequestProof::from_header(&header).unwrap();
            assert_eq!((read.challenge, read.nonce, read.card.as_ref()), (CHALLENGE, 5, key.card()));
            assert!(read.is_proven(&KEY, Over::Clear, "POST", "/v1/volumes") && read.covers(b"body"));
            assert!(!read.is_proven(&KEY, Over::Clear, "GET", "/v1/volumes"));
            assert!(!read.is_proven(&KEY, Over::Clear, "POST", "/v1/nodes"));
            assert!(!read.is_proven(&KEY, Over::Tls, "POST", "/v1/volumes"), "it was given to somebody in clear");
            assert!(
                !read.is_proven(&ClusterKey([8; 32]), Over::Clear, "POST", "/v1/volumes") && !read.covers(b"other")
            );
            for at in SCHEME.len()..header.len() {
                let mut bytes = header.clone().into_bytes();
                bytes[at] = if bytes[at] == b'0' { b'1' } else { b'0' };
                let other = RequestProof::from_header(std::str::from_utf8(&bytes).unwrap());
                let proven = other.is_some_and(|other| other.is_proven(&KEY, Over::Clear, "POST", "/v1/volumes"));
                assert!(!proven, "digit {at}");
            }
        }
    }

    #[test]
    fn a_proof_over_tls_is_one_over_tls_alone() {
        for key in keys() {
            let proof = RequestProof::new(&key, Over::Tls, (CHALLENGE, 5), "GET", "/v1/nodes", b"");
            assert!(proof.is_proven(&KEY, Over::Tls, "GET", "/v1/nodes"));
            assert!(!proof.is_proven(&KEY, Over::Clear, "GET", "/v1/nodes"));
        }
    }

    #[test]
    fn a_card_cannot_be_taken_off() {
        let [_, client] = keys();
        let mut proof = RequestProof::new(&client, Over::Clear, (CHALLENGE, 5), "GET", "/v1/nodes", b"");
        proof.card = None;
        assert!(!proof.is_proven(&KEY, Over::Clear, "GET", "/v1/nodes"));
    }

    #[test]
    fn nonsense_is_refused() {
        let longest = format!("{SCHEME}{}", "0".repeat(2 * (FIXED + MAX_CARD) + 2));
        let short = format!("{SCHEME}{}", "0".repeat(2 * FIXED - 2));
        for text in ["", "trine ", "trine xy", "Basic 00", &longest, &short, "trine é"] {
            assert!(
                RequestProof::from_header(text).is_none() && RequestChallenge::from_header(text).is_none(),
                "{text}"
            );
        }
    }
}
