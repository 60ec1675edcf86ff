//! The floor: the path of a replicated request with nothing in it.
//!
//! ```text
//!   load ── message ──► primary ── the same message ──► 2 replicas      each: one durable write of all that is ready (group commit)
//!        ◄── answer ──         ◄── answer ──                            reads: the primary alone
//! ```
//! No checksums, no journal, no memory of what was written where, no failures: a node whose replica or last client goes away ends. One thread, one ring, one
//! receive and one send per connection at a time, each of as much as there is. It shares no code with Trine.

pub(crate) mod load;
pub(crate) mod node;
mod ring;

use anyhow::{Result, ensure};

/// Bytes of a message before its payload.
const HEAD: usize = 32;
/// Longest payload.
const LONGEST: usize = 1 << 20;

/// What a message says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Write,
    Read,
    /// Of a write without, of a read with the bytes.
    Answer,
}

/// A message's head.
#[derive(Clone, Copy, Debug)]
struct Head {
    kind: Kind,
    id: u64,
    at: u64,
    len: usize,
}

impl Head {
    /// Bytes behind the head.
    fn payload(&self, answers_read: bool) -> usize {
        match self.kind {
            Kind::Write => self.len,
            Kind::Answer if answers_read => self.len,
            Kind::Answer | Kind::Read => 0,
        }
    }

    fn bytes(&self) -> [u8; HEAD] {
        let mut bytes = [0; HEAD];
        bytes[0] = self.kind as u8;
        bytes[8..16].copy_from_slice(&self.id.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.at.to_le_bytes());
        bytes[24..32].copy_from_slice(&(self.len as u64).to_le_bytes());
        bytes
    }

    fn parse(bytes: &[u8]) -> Result<Option<Self>> {
        let Some(head) = bytes.first_chunk::<HEAD>() else { return Ok(None) };
        let word = |at: usize| head[at..].first_chunk().map_or(0, |word| u64::from_le_bytes(*word));
        let kind = match head[0] {
            0 => Kind::Write,
            1 => Kind::Read,
            _ => Kind::Answer,
        };
        let len = usize::try_from(word(24))?;
        ensure!(len <= LONGEST && len.is_multiple_of(4096), "{len} bytes of payload");
        Ok(Some(Self { kind, id: word(8), at: word(16), len }))
    }
}
