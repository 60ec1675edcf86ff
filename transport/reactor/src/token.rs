//! What a completion is recognised by: our 64 bits of user data.
//!
//! ```text
//!   63  62..56   55 ............ 20   19 ... 0
//!   1    kind       generation          slot
//! ```
//!
//! Bit 63 is clear in everything of libublk's, so both can share a ring. The generation is how often the slot was used
//! before: a completion that comes late finds another one there, and is dropped.

const OURS: u64 = 1 << 63;
const KIND_AT: u32 = 56;
const SLOT_BITS: u32 = 20;
const SLOT_MASK: u64 = (1 << SLOT_BITS) - 1;

/// Generations before the count starts again: 36 bits, at a million uses of one slot per second 19 hours.
const GENERATION_MASK: u64 = (1 << (KIND_AT - SLOT_BITS)) - 1;

/// Slots that a token can name.
pub(crate) const MAX_SLOTS: u32 = 1 << SLOT_BITS;

/// What posted it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// An operation of the machine's, in the slab.
    Op = 1,
    /// The deadline of a connect.
    Deadline = 2,
    /// A cancellation; its own outcome tells nothing.
    Cancel = 3,
    /// The read of the mailbox's eventfd.
    Wake = 4,
    /// A poll of one of RDMA's descriptors, numbered as a slot.
    Rdma = 5,
}

/// User data that is ours.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Token {
    pub(crate) kind: Kind,
    pub(crate) generation: u64,
    pub(crate) slot: u32,
}

impl Token {
    pub(crate) fn new(kind: Kind, generation: u64, slot: u32) -> Self {
        Self { kind, generation: generation & GENERATION_MASK, slot }
    }

    pub(crate) fn bits(self) -> u64 {
        OURS | (self.kind as u64) << KIND_AT | self.generation << SLOT_BITS | u64::from(self.slot)
    }

    /// `None` for what nobody here posted.
    pub(crate) fn parse(bits: u64) -> Option<Self> {
        let kind = match bits >> KIND_AT {
            0x81 => Kind::Op,
            0x82 => Kind::Deadline,
            0x83 => Kind::Cancel,
            0x84 => Kind::Wake,
            0x85 => Kind::Rdma,
            _ => return None,
        };
        let slot = (bits & SLOT_MASK) as u32;
        Some(Self { kind, generation: bits >> SLOT_BITS & GENERATION_MASK, slot })
    }
}

/// True for user data of this package's, on a ring shared with libublk.
pub fn is_ours(user_data: u64) -> bool {
    user_data & OURS != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_survives_its_bits() {
        for (kind, generation, slot) in
            [(Kind::Op, 0, 0), (Kind::Wake, GENERATION_MASK, MAX_SLOTS - 1), (Kind::Rdma, 0, 7)]
        {
            let token = Token::new(kind, generation, slot);
            assert_eq!(Token::parse(token.bits()), Some(token));
            assert!(is_ours(token.bits()));
        }
        assert_eq!((Token::parse(7), Token::parse(1 << 63), is_ours(7)), (None, None, false));
    }
}
