//! The session prefix: what every data request's body starts with.
//!
//! ```text
//!  0 session u32 (its low half) | 4 word u32 (the body's own) | 8 tag u64
//! ```
//!
//! Promises: what [`stamp`] wrote, [`check`] accepts, under the same session, key, op, slot and generation and for the same
//! bytes, and nothing else; the time of a check does not depend on where a prefix is wrong. Never allocates, never reads
//! what follows the prefix but to hash it.

use crate::tag::{tag, tags_match};
use crate::{Op, ProtectionKey, SessionId};

/// Bytes of a session prefix.
pub const PREFIX_LEN: usize = 16;
/// Where the tag starts: it is the prefix's last field.
const TAG_AT: usize = 8;
/// What stands for the tag's bytes while the tag is made.
const NO_TAG: [u8; PREFIX_LEN - TAG_AT] = [0; PREFIX_LEN - TAG_AT];

/// Fills in session and tag; the word stays. False, and nothing is changed, if the body has no room for a prefix or is
/// longer than any.
#[must_use]
pub fn stamp(body: &mut [u8], session: SessionId, key: &ProtectionKey, op: Op, slot: u32, generation: u32) -> bool {
    let Some((prefix, rest)) = body.split_first_chunk_mut::<PREFIX_LEN>() else { return false };
    let mut said = [0; TAG_AT];
    said[..4].copy_from_slice(&low_half(session));
    said[4..].copy_from_slice(&prefix[4..TAG_AT]);
    let Some(ours) = tag(key, op, slot, generation, &[&said, &NO_TAG, rest]) else { return false };
    prefix[..TAG_AT].copy_from_slice(&said);
    prefix[TAG_AT..].copy_from_slice(&ours.to_le_bytes());
    true
}

/// Whether a received body names this session and its tag proves that the sender holds the session's key.
#[must_use]
pub fn check(body: &[u8], session: SessionId, key: &ProtectionKey, op: Op, slot: u32, generation: u32) -> bool {
    let Some((prefix, rest)) = body.split_first_chunk::<PREFIX_LEN>() else { return false };
    let Some((said, theirs)) = prefix.split_last_chunk() else { return false };
    let Some(ours) = tag(key, op, slot, generation, &[said, &NO_TAG, rest]) else { return false };
    // Both are always looked at.
    tags_match(u64::from_le_bytes(*theirs), ours) & (said[..4] == low_half(session))
}

/// What the prefix carries of a session's name.
fn low_half(session: SessionId) -> [u8; 4] {
    let [a, b, c, d, ..] = session.0.to_le_bytes();
    [a, b, c, d]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MAX_BODY;
    use proptest::prelude::*;

    const SESSION: SessionId = SessionId(0x0a0b_0c0d_0102_0304);
    const KEY: ProtectionKey = ProtectionKey([0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]);
    const OP: Op = Op(17);

    fn stamped(body: &[u8]) -> Vec<u8> {
        let mut body = body.to_vec();
        assert!(stamp(&mut body, SESSION, &KEY, OP, 5, 6));
        body
    }

    fn accepted(body: &[u8]) -> bool {
        check(body, SESSION, &KEY, OP, 5, 6)
    }

    #[test]
    fn golden_bytes() {
        // A write's body: session and tag left zero, word 4096, then bytes 16..48. The tag was computed elsewhere, by a
        // program written from the SipHash paper.
        let mut body: Vec<u8> = (0..48).collect();
        body[..PREFIX_LEN].fill(0);
        body[4..8].copy_from_slice(&4096u32.to_le_bytes());
        let sent = stamped(&body);
        assert_eq!(sent[..TAG_AT], *b"\x04\x03\x02\x01\x00\x10\x00\x00");
        assert_eq!(sent[TAG_AT..PREFIX_LEN], *b"\xbe\x59\x0a\xfa\x07\x8d\xc4\xef");
        assert_eq!(sent[PREFIX_LEN..], body[PREFIX_LEN..], "the rest is the sender's");
        // A promise's: the prefix is all there is.
        let sent = stamped(&[0, 0, 0, 0, 0xe8, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(sent, *b"\x04\x03\x02\x01\xe8\x03\x00\x00\xd0\xba\x78\x24\xef\x65\x56\xa6");
    }

    #[test]
    fn the_tag_is_that_of_the_body_with_the_tags_bytes_zero() {
        let mut body = stamped(&[9; 48]);
        let sent: [u8; 8] = body[TAG_AT..PREFIX_LEN].try_into().unwrap();
        body[TAG_AT..PREFIX_LEN].fill(0);
        assert_eq!(Some(u64::from_le_bytes(sent)), tag(&KEY, OP, 5, 6, &[&body]));
    }

    #[test]
    fn what_the_sender_left_in_session_and_tag_does_not_matter() {
        let (mut clean, mut stained) = ([7; 48], [7; 48]);
        clean[..4].fill(0);
        stained[TAG_AT..PREFIX_LEN].fill(0xee);
        assert_eq!(stamped(&clean), stamped(&stained));
        assert_eq!(stamped(&stamped(&clean)), stamped(&clean), "stamping twice is stamping once");
    }

    #[test]
    fn another_session_key_op_slot_or_generation_is_not_accepted() {
        let body = stamped(&[3; 48]);
        assert!(check(&body, SESSION, &KEY, OP, 5, 6));
        assert!(!check(&body, SessionId(SESSION.0 + 1), &KEY, OP, 5, 6));
        assert!(!check(&body, SESSION, &ProtectionKey([9; 16]), OP, 5, 6));
        assert!(!check(&body, SESSION, &KEY, Op(18), 5, 6));
        assert!(!check(&body, SESSION, &KEY, OP, 4, 6));
        assert!(!check(&body, SESSION, &KEY, OP, 5, 7));
    }

    #[test]
    fn a_good_tag_over_another_sessions_name_is_not_accepted() {
        let mut body = [3; 48];
        assert!(stamp(&mut body, SessionId(8), &KEY, OP, 5, 6));
        assert!(check(&body, SessionId(8), &KEY, OP, 5, 6));
        assert!(!check(&body, SESSION, &KEY, OP, 5, 6));
    }

    #[test]
    fn a_body_too_short_for_a_prefix_or_too_long_is_neither_stamped_nor_accepted() {
        for len in 0..PREFIX_LEN {
            let mut body = vec![1; len];
            assert!(!stamp(&mut body, SESSION, &KEY, OP, 5, 6));
            assert_eq!(body, vec![1; len]);
            assert!(!accepted(&body));
        }
        let mut body = vec![1; MAX_BODY + 1];
        assert!(!stamp(&mut body, SESSION, &KEY, OP, 5, 6));
        assert_eq!(body, vec![1; MAX_BODY + 1]);
        assert!(!accepted(&body));
    }

    proptest! {
        #[test]
        fn what_is_stamped_is_accepted_and_no_flipped_bit_is(
            body in proptest::collection::vec(any::<u8>(), PREFIX_LEN..=MAX_BODY), at: prop::sample::Index, bit in 0u8..8,
        ) {
            let mut sent = stamped(&body);
            prop_assert!(accepted(&sent));
            prop_assert!(!accepted(&sent[..sent.len() - 1]));
            let at = at.index(sent.len());
            sent[at] ^= 1 << bit;
            prop_assert!(!accepted(&sent));
        }

        #[test]
        fn random_bytes_are_not_accepted(body in proptest::collection::vec(any::<u8>(), 0..=MAX_BODY + 1)) {
            prop_assert!(!accepted(&body));
        }
    }
}
