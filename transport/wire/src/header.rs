//! The 32-byte header in front of every message.
//!
//! ```text
//!  0 magic "TRN1" | 4 version u8 | 5 op u8 | 6 flags u16 | 8 slot u32 | 12 generation u32
//! 16 body_len u16 | 18 credits u16 | 20 payload_len u32 | 24 payload_crc u32 | 28 header_crc u32
//! ```
//!
//! All little-endian. `header_crc` is the CRC32C of bytes 0..28 and the body. A reply repeats its request's slot and
//! generation; nothing on the wire is ever a pointer.

use smallvec::SmallVec;
use std::fmt;
use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::MAX_PAYLOAD;

/// Bytes of a header.
pub const HEADER_LEN: usize = 32;
/// The first four bytes of every frame.
pub const MAGIC: [u8; 4] = *b"TRN1";
/// This version of the protocol.
pub const VERSION: u8 = 1;
/// Longest body of a data message in bytes: a frame slot stays about 128 B.
pub const MAX_BODY: usize = 128;
/// Longest body of a handshake message in bytes: 64 B of name, 32 open ids, proofs, a client's card and ticket.
pub const MAX_HANDSHAKE_BODY: usize = 1024;

/// The body of a data message. What reads and writes say lies within it; it moves from hand to hand with its message, so that it has no room for more.
pub type Body = SmallVec<[u8; 64]>;

/// What a message is. The transport's own are below 16; the rest are named by those who use them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Op(pub u8);

impl Op {
    /// The connecting side introduces itself.
    pub const HELLO: Self = Self(1);
    /// The accepting side proves that it knows the secret and asks for the same.
    pub const CHALLENGE: Self = Self(2);
    /// The connecting side's proof.
    pub const PROOF: Self = Self(3);
    /// Admitted.
    pub const HELLO_ACK: Self = Self(4);
    /// Not admitted.
    pub const REJECT: Self = Self(5);
    /// Are you there? Also carries credits.
    pub const PING: Self = Self(6);
    /// Yes.
    pub const PONG: Self = Self(7);
    /// This side closes in good order.
    pub const GOODBYE: Self = Self(8);
    /// The ordinary reply.
    pub const REPLY: Self = Self(9);
    /// The first op number that is not the transport's.
    pub const FIRST_DATA: Self = Self(16);

    /// True for the messages before Established.
    pub fn is_handshake(self) -> bool {
        (Self::HELLO..=Self::REJECT).contains(&self)
    }

    /// True for messages that are not the transport's own. Requests among them carry a session prefix.
    pub fn is_data(self) -> bool {
        self >= Self::FIRST_DATA
    }

    fn max_body(self) -> usize {
        if self.is_handshake() { MAX_HANDSHAKE_BODY } else { MAX_BODY }
    }
}

impl fmt::Debug for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = ["hello", "challenge", "proof", "hello-ack", "reject", "ping", "pong", "goodbye", "reply"];
        match usize::from(self.0).checked_sub(1).and_then(|index| names.get(index)) {
            Some(name) => f.write_str(name),
            None => write!(f, "op {}", self.0),
        }
    }
}

/// Flag bits. Unknown ones are an error: what they would mean cannot be ignored safely.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Flags(pub u16);

/// This message answers the request whose slot and generation it carries.
pub const FLAG_REPLY: u16 = 1;

impl Flags {
    /// A request or a message of the connection itself.
    pub const NONE: Self = Self(0);
    /// A reply.
    pub const REPLY: Self = Self(FLAG_REPLY);

    /// True for a reply.
    pub fn is_reply(self) -> bool {
        self.0 & FLAG_REPLY != 0
    }
}

/// A header that passed its checks, or is to be sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    /// What it is.
    pub op: Op,
    /// Flag bits.
    pub flags: Flags,
    /// The request's slot at its sender.
    pub slot: u32,
    /// Which use of that slot.
    pub generation: u32,
    /// Credits given back.
    pub credits: u16,
    /// Bytes of payload after the body.
    pub payload_len: u32,
    /// See [`crate::tree`].
    pub payload_crc: u32,
}

/// What is wrong with a received header.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum HeaderError {
    /// Not one of ours, or out of step.
    #[error("the frame does not start with TRN1")]
    Magic,
    /// Another version.
    #[error("frame version {0} is not spoken here")]
    Version(u8),
    /// Unknown flag bits.
    #[error("unknown flags {0:#06x}")]
    Flags(u16),
    /// A body longer than its op may have.
    #[error("a body of {0} bytes is too long")]
    BodyLength(u16),
    /// A payload longer than any may be, or on a message that has none.
    #[error("a payload of {0} bytes is too long")]
    PayloadLength(u32),
    /// A checksum without a payload.
    #[error("a payload checksum without a payload")]
    StrayPayloadCrc,
    /// Header and body do not fit their checksum.
    #[error("header checksum mismatch")]
    Checksum,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Raw {
    magic: [u8; 4],
    version: u8,
    op: u8,
    flags: U16,
    slot: U32,
    generation: U32,
    body_len: U16,
    credits: U16,
    payload_len: U32,
    payload_crc: U32,
    header_crc: U32,
}

const _: () = assert!(size_of::<Raw>() == HEADER_LEN);
/// Bytes of the header that its checksum covers.
const COVERED: usize = HEADER_LEN - 4;

impl Header {
    /// A header without payload.
    pub fn new(op: Op, flags: Flags, slot: u32, generation: u32) -> Self {
        Self { op, flags, slot, generation, credits: 0, payload_len: 0, payload_crc: 0 }
    }

    /// Reads the header and body at the start of what was received. `None`: so far so good, more bytes are needed (and what
    /// can be judged by a header alone has been).
    pub fn parse(received: &[u8]) -> Result<Option<(Self, &[u8])>, HeaderError> {
        let Ok((raw, rest)) = Raw::ref_from_prefix(received) else {
            let there = received.len().min(MAGIC.len());
            return if received[..there] == MAGIC[..there] { Ok(None) } else { Err(HeaderError::Magic) };
        };
        if raw.magic != MAGIC {
            return Err(HeaderError::Magic);
        }
        if raw.version != VERSION {
            return Err(HeaderError::Version(raw.version));
        }
        let (op, flags, payload_len) = (Op(raw.op), raw.flags.get(), raw.payload_len.get());
        if flags & !FLAG_REPLY != 0 {
            return Err(HeaderError::Flags(flags));
        }
        if usize::from(raw.body_len.get()) > op.max_body() {
            return Err(HeaderError::BodyLength(raw.body_len.get()));
        }
        if payload_len > if op < Op::REPLY { 0 } else { MAX_PAYLOAD } {
            return Err(HeaderError::PayloadLength(payload_len));
        }
        if payload_len == 0 && raw.payload_crc.get() != 0 {
            return Err(HeaderError::StrayPayloadCrc);
        }
        let Some(body) = rest.get(..usize::from(raw.body_len.get())) else { return Ok(None) };
        if checksum(&received[..COVERED], body) != raw.header_crc.get() {
            return Err(HeaderError::Checksum);
        }
        let header = Self {
            op,
            flags: Flags(flags),
            slot: raw.slot.get(),
            generation: raw.generation.get(),
            credits: raw.credits.get(),
            payload_len,
            payload_crc: raw.payload_crc.get(),
        };
        Ok(Some((header, body)))
    }

    /// Writes header and body to the start of `into`, which has room for both; says how many bytes that was. The body is
    /// within its op's limit: the sender checked.
    pub fn put(&self, body: &[u8], into: &mut [u8]) -> usize {
        debug_assert!(body.len() <= self.op.max_body(), "a body of {} bytes for {:?}", body.len(), self.op);
        let mut raw = Raw {
            magic: MAGIC,
            version: VERSION,
            op: self.op.0,
            flags: self.flags.0.into(),
            slot: self.slot.into(),
            generation: self.generation.into(),
            body_len: u16::try_from(body.len()).unwrap_or(u16::MAX).into(),
            credits: self.credits.into(),
            payload_len: self.payload_len.into(),
            payload_crc: self.payload_crc.into(),
            header_crc: 0.into(),
        };
        raw.header_crc = checksum(&raw.as_bytes()[..COVERED], body).into();
        into[..HEADER_LEN].copy_from_slice(raw.as_bytes());
        into[HEADER_LEN..HEADER_LEN + body.len()].copy_from_slice(body);
        HEADER_LEN + body.len()
    }
}

/// What the checksum of a header and its body is. Of data's they are put together first: that takes less than a second checksum.
fn checksum(covered: &[u8], body: &[u8]) -> u32 {
    let mut both = [0; COVERED + MAX_BODY];
    let Some(both) = both.get_mut(..COVERED + body.len()) else {
        return crc32c::crc32c_append(crc32c::crc32c(covered), body);
    };
    both[..COVERED].copy_from_slice(covered);
    both[COVERED..].copy_from_slice(body);
    crc32c::crc32c(both)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sample() -> Header {
        Header {
            op: Op(17),
            flags: Flags::NONE,
            slot: 0x0102_0304,
            generation: 0x0506_0708,
            credits: 0x090a,
            payload_len: 4096,
            payload_crc: 0x0b0c_0d0e,
        }
    }

    fn frame(header: &Header, body: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0; HEADER_LEN + body.len()];
        assert_eq!(header.put(body, &mut bytes), bytes.len());
        bytes
    }

    /// Changes one byte and makes the checksum right again.
    fn forged(at: usize, value: u8) -> Vec<u8> {
        let mut bytes = frame(&sample(), b"");
        bytes[at] = value;
        let crc = crc32c::crc32c(&bytes[..COVERED]);
        bytes[COVERED..].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    #[test]
    fn golden_header() {
        let bytes = frame(&sample(), &[0xaa, 0xbb]);
        let expected = b"TRN1\x01\x11\x00\x00\x04\x03\x02\x01\x08\x07\x06\x05\x02\x00\x0a\x09\x00\x10\x00\x00\x0e\x0d\x0c\x0b\xb4\x4a\x37\xbb\xaa\xbb";
        assert_eq!(bytes, expected);
    }

    #[test]
    fn each_malformed_field_has_its_own_error() {
        assert_eq!(Header::parse(&forged(0, b'X')), Err(HeaderError::Magic));
        assert_eq!(Header::parse(&forged(4, 2)), Err(HeaderError::Version(2)));
        assert_eq!(Header::parse(&forged(7, 0x80)), Err(HeaderError::Flags(0x8000)));
        assert_eq!(Header::parse(&forged(16, 129)), Err(HeaderError::BodyLength(129)));
        assert_eq!(Header::parse(&forged(23, 1)), Err(HeaderError::PayloadLength(0x0100_1000)));
        assert_eq!(Header::parse(&forged(5, Op::PING.0)), Err(HeaderError::PayloadLength(4096)));
        assert_eq!(Header::parse(&forged(21, 0)), Err(HeaderError::StrayPayloadCrc));
        let mut bytes = frame(&sample(), b"");
        bytes[9] ^= 1;
        assert_eq!(Header::parse(&bytes), Err(HeaderError::Checksum));
    }

    #[test]
    fn a_wrong_first_byte_is_noticed_at_once() {
        assert_eq!(Header::parse(b""), Ok(None));
        assert_eq!(Header::parse(b"TR"), Ok(None));
        assert_eq!(Header::parse(b"GE"), Err(HeaderError::Magic));
    }

    proptest! {
        #[test]
        fn what_is_put_is_parsed(
            op in 6u8.., slot: u32, generation: u32, credits: u16, reply: bool, payload in 1..=MAX_PAYLOAD, payload_crc: u32,
            body in proptest::collection::vec(any::<u8>(), 0..=MAX_BODY), more in proptest::collection::vec(any::<u8>(), 0..9),
        ) {
            let flags = if reply { Flags::REPLY } else { Flags::NONE };
            let (payload_len, payload_crc) = if Op(op) < Op::REPLY { (0, 0) } else { (payload, payload_crc) };
            let header = Header { op: Op(op), flags, slot, generation, credits, payload_len, payload_crc };
            let mut bytes = frame(&header, &body);
            for cut in 0..bytes.len() {
                prop_assert_eq!(Header::parse(&bytes[..cut]), Ok(None));
            }
            bytes.extend(more);
            prop_assert_eq!(Header::parse(&bytes), Ok(Some((header, &body[..]))));
        }

        #[test]
        fn a_flipped_bit_is_never_accepted(at in 0usize..HEADER_LEN + 20, bit in 0u8..8) {
            let mut bytes = frame(&sample(), &[9; 20]);
            bytes[at] ^= 1 << bit;
            prop_assert!(!matches!(Header::parse(&bytes), Ok(Some(_))));
        }

        #[test]
        fn random_bytes_never_panic(mut bytes in proptest::collection::vec(any::<u8>(), 0..300), ours: bool) {
            if ours && bytes.len() > 4 {
                bytes[..4].copy_from_slice(&MAGIC);
                bytes[4] = VERSION;
            }
            prop_assert!(!matches!(Header::parse(&bytes), Ok(Some(_))));
        }
    }
}
