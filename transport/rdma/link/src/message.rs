//! What is said on a queue pair: 32 bits with each message, and 16 bytes with those that are about memory.
//!
//! ```text
//!   immediate    31..24 kind | 23..16 zero | 15..0 credits
//!   saying       0 address u64 | 8 length u32 | 12 key u32            little-endian
//!   introduction 0 "TRNR" | 4 version u8 | 5 zero u8 | 6 receives u16  in the connection manager's private data
//! ```

use crate::limits::RX;

/// Bytes of a saying.
pub const SAYING: usize = 16;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// Bytes of the stream.
    Data = 1,
    /// Connecting side: the stream goes on with these bytes of mine; read them.
    Lend = 2,
    /// Accepting side: the stream goes on with so many bytes; say where they go.
    Offer = 3,
    /// Connecting side: there.
    Grant = 4,
    /// Accepting side: what you lent first is read.
    Taken = 5,
    /// Accepting side: so many bytes are written where you said.
    Given = 6,
    /// Nothing but credits.
    Credits = 7,
}

impl Kind {
    pub(crate) fn with(self, credits: u16) -> u32 {
        (self as u32) << 24 | u32::from(credits)
    }

    /// `None` for what no peer of ours says.
    pub(crate) fn parse(immediate: u32) -> Option<(Self, u16)> {
        let [kind, zero, high, low] = immediate.to_be_bytes();
        let kinds = [Self::Data, Self::Lend, Self::Offer, Self::Grant, Self::Taken, Self::Given, Self::Credits];
        let kind = kinds.into_iter().find(|known| *known as u8 == kind)?;
        (zero == 0).then_some((kind, u16::from_be_bytes([high, low])))
    }
}

/// Memory, or only a length.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Saying {
    pub(crate) at: u64,
    pub(crate) len: u32,
    pub(crate) key: u32,
}

impl Saying {
    pub(crate) fn bytes(self) -> [u8; SAYING] {
        let mut bytes = [0; SAYING];
        bytes[..8].copy_from_slice(&self.at.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.len.to_le_bytes());
        bytes[12..].copy_from_slice(&self.key.to_le_bytes());
        bytes
    }

    /// Exactly its bytes, and about something.
    pub(crate) fn parse(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; SAYING] = bytes.try_into().ok()?;
        let [at @ .., a, b, c, d, e, f, g, h] = *bytes;
        let (len, key) = (u32::from_le_bytes([a, b, c, d]), u32::from_le_bytes([e, f, g, h]));
        (len > 0).then_some(Self { at: u64::from_le_bytes(at), len, key })
    }
}

/// What each side tells the other while they connect.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Introduction {
    /// Receives it has posted.
    pub receives: u16,
}

const MAGIC: [u8; 5] = *b"TRNR\x01";

impl Introduction {
    /// Ours.
    pub const OURS: Self = Self { receives: RX };
    /// Bytes of it.
    pub const LEN: usize = 8;

    /// As private data.
    pub fn bytes(self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[..5].copy_from_slice(&MAGIC);
        bytes[6..].copy_from_slice(&self.receives.to_le_bytes());
        bytes
    }

    /// From private data, which some devices pad. `None`: not one of ours, or one that posts too little to talk with.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let (&[a, b, c, d, e, zero, low, high], _) = bytes.split_first_chunk::<{ Self::LEN }>()?;
        let receives = u16::from_le_bytes([low, high]);
        ([a, b, c, d, e] == MAGIC && zero == 0 && (8..=4 * RX).contains(&receives)).then_some(Self { receives })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_bytes() {
        let saying = Saying { at: 0x0102_0304_0506_0708, len: 0x1112_1314, key: 0x2122_2324 };
        let bytes = *b"\x08\x07\x06\x05\x04\x03\x02\x01\x14\x13\x12\x11\x24\x23\x22\x21";
        assert_eq!(saying.bytes(), bytes);
        assert_eq!(Saying::parse(&bytes), Some(saying));
        assert_eq!(Kind::Grant.with(0x1234), 0x0400_1234);
        assert_eq!(Kind::parse(0x0400_1234), Some((Kind::Grant, 0x1234)));
        assert_eq!(Introduction::OURS.bytes(), *b"TRNR\x01\0\x42\0");
        assert_eq!(Introduction::parse(b"TRNR\x01\0\x42\0\0\0\0"), Some(Introduction::OURS));
    }

    #[test]
    fn what_no_peer_says_is_refused() {
        assert!([0, 8, 255].into_iter().all(|kind: u32| Kind::parse(kind << 24).is_none()));
        assert_eq!(Kind::parse(0x0101_0000), None);
        let nothing = Saying { len: 0, ..Saying::default() };
        assert_eq!(Saying::parse(&nothing.bytes()), None);
        assert_eq!(Saying::parse(&[1; SAYING - 1]), None);
        assert_eq!(Saying::parse(&[1; SAYING + 1]), None);
        for bad in [&b"TRNR\x01\0\x42"[..], b"TRNR\x02\0\x42\0", b"TRNR\x01\0\x07\0", b"TRNR\x01\0\xff\xff", b""] {
            assert_eq!(Introduction::parse(bad), None, "{bad:?}");
        }
    }
}
