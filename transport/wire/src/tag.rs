//! The session tag: proof in each data request that its sender holds the key of the session it names.
//!
//! SipHash-2-4 under the 128-bit protection key over op, slot, generation and the body with the tag's bytes zero. 64 bits:
//! forging one takes 2^63 guesses on average, each of which closes a session; it guards against a client that uses another
//! one's session, not against a wire that an attacker can write to (TLS does).

use siphasher::sip::SipHasher24;
use std::fmt;
use std::hint::black_box;

use crate::{MAX_BODY, Op};

/// The key of one session, made from both sides' nonces in the handshake. Never sent.
#[derive(Clone, Copy)]
pub struct ProtectionKey(pub(crate) [u8; 16]);

impl ProtectionKey {
    /// A key from known bytes: for tests of what is built on it.
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }
}

impl fmt::Debug for ProtectionKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ProtectionKey")
    }
}

/// Bytes of a message that are hashed before its body: op, slot and generation.
const HEAD_LEN: usize = 9;

/// The tag of a message; none if its body is longer than any. `body_without_tag` is the body as sent, the tag's own bytes zero, in
/// pieces: where they are cut does not matter.
pub(crate) fn tag(key: &ProtectionKey, op: Op, slot: u32, generation: u32, body_without_tag: &[&[u8]]) -> Option<u64> {
    // Hashed in one piece: behind a head of 9 bytes each piece on its own would begin within a word.
    let mut message = [0; HEAD_LEN + MAX_BODY];
    message[0] = op.0;
    message[1..5].copy_from_slice(&slot.to_le_bytes());
    message[5..HEAD_LEN].copy_from_slice(&generation.to_le_bytes());
    let mut end = HEAD_LEN;
    for piece in body_without_tag {
        message.get_mut(end..end + piece.len())?.copy_from_slice(piece);
        end += piece.len();
    }
    Some(SipHasher24::new_with_key(&key.0).hash(&message[..end]))
}

/// Compares two tags in a time that does not depend on where they differ.
pub(crate) fn tags_match(a: u64, b: u64) -> bool {
    black_box(a ^ b) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_input_changes_the_tag() {
        let of = |key: u8, op, slot, generation, body: &[u8]| {
            tag(&ProtectionKey([key; 16]), Op(op), slot, generation, &[body]).unwrap()
        };
        let base = of(1, 16, 1, 2, b"body");
        let others = [
            of(2, 16, 1, 2, b"body"),
            of(1, 17, 1, 2, b"body"),
            of(1, 16, 2, 2, b"body"),
            of(1, 16, 1, 3, b"body"),
            of(1, 16, 1, 2, b"bodz"),
            of(1, 16, 1, 2, b"body\0"),
        ];
        assert!(others.iter().all(|other| !tags_match(base, *other)));
        assert!(tags_match(base, of(1, 16, 1, 2, b"body")));
    }

    #[test]
    fn a_body_longer_than_any_has_no_tag() {
        let (key, body) = (ProtectionKey([1; 16]), [7; MAX_BODY + 1]);
        assert_eq!(tag(&key, Op(16), 1, 2, &[&body]), None);
        assert_eq!(tag(&key, Op(16), 1, 2, &[&body[..MAX_BODY], &[7]]), None);
        assert!(tag(&key, Op(16), 1, 2, &[&body[..MAX_BODY]]).is_some());
    }

    #[test]
    fn the_tag_is_siphash_2_4_as_published() {
        // The reference vector of the SipHash paper: key 00..0f, message 00..0e.
        let key = ProtectionKey([0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]);
        let tagged = tag(
            &key,
            Op(0),
            u32::from_le_bytes([1, 2, 3, 4]),
            u32::from_le_bytes([5, 6, 7, 8]),
            &[&[9, 10], &[], &[11, 12, 13, 14]],
        );
        assert_eq!(tagged, Some(0xa129_ca61_49be_45e5));
    }
}
