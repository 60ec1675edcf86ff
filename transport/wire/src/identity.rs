//! Who the two ends of a connection are, and what each can take.
//!
//! ```text
//! HelloInfo   0 role u8 | 1 name_len u8 | 2 opens u8 | 3 card u8 (0 or 1) | 4 lane u16 | 6 ticket u8 (0 or 1) | 7 zero u8 | 8 volume u32 | 12 features u32
//!            16 process u64 | 24 incarnation u64 | 32 generation u64 | 40 view u64 | 48 name | opens × (disk u64, open u64)
//!            card (see `card`), if there is one | ticket 32 B (see `ticket`), if there is one
//! Limits      0 depth u16 | 2 zero u16 | 4 max_payload u32
//! ```

use smallvec::SmallVec;

use crate::HandshakeError;
use crate::bytes::Reader;
use crate::card::{Card, key_of};
use crate::ticket::Ticket;

/// Longest name in bytes: that of a client, `HOST/VOLUME` unless it was given another (`conductor_model::limits::MAX_CLIENT_NAME`).
pub const MAX_NAME: usize = 64;
/// Disks a node can name in a Hello: keeps every handshake message under 1 KiB.
pub const MAX_OPENS: usize = 32;
/// Requests in flight per connection and direction: 2·depth + 2 receive slots of about 128 B stay under 256 KiB.
pub const MAX_DEPTH: u16 = 1024;
/// Largest payload of one frame in bytes: the largest block request a front end passes on unsplit.
pub const MAX_PAYLOAD: u32 = 1 << 20;

/// Feature bit of a client: it writes nothing, and shares its volume with others that do not.
pub const READ_ONLY: u32 = 1;
/// Feature bit of a client: it shares its volume with others, and writes only in ranges that it holds.
pub const SHARED: u32 = 2;

/// What a process is to the cluster.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Role {
    /// A volume's client.
    Client,
    /// A storage node.
    Node,
}

impl Role {
    /// Its number on the wire.
    pub const fn code(self) -> u8 {
        match self {
            Self::Client => 1,
            Self::Node => 2,
        }
    }

    fn from_code(code: u8) -> Result<Self, HandshakeError> {
        match code {
            1 => Ok(Self::Client),
            2 => Ok(Self::Node),
            other => Err(HandshakeError::Role(other)),
        }
    }
}

/// A session's name, given by the accepting side; never given twice in one process life.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct SessionId(pub u64);

/// Who an end of a connection is. Bound to the connection by the handshake's proofs (rule 2).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HelloInfo {
    /// What it is.
    pub role: Role,
    /// Its name: at most [`MAX_NAME`] bytes, not empty.
    pub name: String,
    /// Random per process life.
    pub process: u64,
    /// The incarnation it was given.
    pub incarnation: u64,
    /// Which of its parallel connections this is, or which reactor it wants.
    pub lane: u16,
    /// The volume it is about; 0 is none.
    pub volume: u32,
    /// The attach generation of that volume.
    pub generation: u64,
    /// What of that volume is read: 0 is its live content, anything else the id of one of its snapshots, which nobody writes.
    pub view: u64,
    /// Feature bits.
    pub features: u32,
    /// A node's disks and open ids: at most [`MAX_OPENS`].
    pub opens: SmallVec<[(u64, u64); 4]>,
    /// What a client's key is for, of one that has a key of its own: its name begins with the key's and `@`.
    pub card: Option<Card>,
    /// What proves the generation of a client that has a key of its own.
    pub ticket: Option<Ticket>,
}

impl HelloInfo {
    /// A name in a role and a process life; the rest zero, to be filled in as needed.
    pub fn new(role: Role, name: impl Into<String>, process: u64) -> Self {
        Self {
            role,
            name: name.into(),
            process,
            incarnation: 0,
            lane: 0,
            volume: 0,
            generation: 0,
            view: 0,
            features: 0,
            opens: SmallVec::new(),
            card: None,
            ticket: None,
        }
    }

    /// Whether it can be sent.
    pub fn check(&self) -> Result<(), HandshakeError> {
        if self.name.is_empty() || self.name.len() > MAX_NAME {
            return Err(HandshakeError::Name);
        }
        if self.opens.len() > MAX_OPENS {
            return Err(HandshakeError::Opens);
        }
        if self.ticket.is_some() && self.card.is_none() {
            return Err(HandshakeError::Ticket);
        }
        match &self.card {
            Some(card) if self.role != Role::Client || key_of(&self.name) != Some(&card.name) => {
                Err(HandshakeError::Card)
            }
            Some(card) => card.check(),
            None => Ok(()),
        }
    }

    pub(crate) fn put(&self, into: &mut Vec<u8>) -> Result<(), HandshakeError> {
        self.check()?;
        let name_len = u8::try_from(self.name.len()).map_err(|_| HandshakeError::Name)?;
        let opens = u8::try_from(self.opens.len()).map_err(|_| HandshakeError::Opens)?;
        into.extend([self.role.code(), name_len, opens, u8::from(self.card.is_some())]);
        into.extend(self.lane.to_le_bytes());
        into.extend([u8::from(self.ticket.is_some()), 0]);
        into.extend(self.volume.to_le_bytes());
        into.extend(self.features.to_le_bytes());
        into.extend(self.process.to_le_bytes());
        into.extend(self.incarnation.to_le_bytes());
        into.extend(self.generation.to_le_bytes());
        into.extend(self.view.to_le_bytes());
        into.extend(self.name.as_bytes());
        for (disk, open) in &self.opens {
            into.extend(disk.to_le_bytes());
            into.extend(open.to_le_bytes());
        }
        if let Some(card) = &self.card {
            into.extend(card.encode()?);
        }
        if let Some(ticket) = &self.ticket {
            into.extend(ticket.0);
        }
        Ok(())
    }

    pub(crate) fn read(from: &mut Reader<'_>) -> Result<Self, HandshakeError> {
        let role = Role::from_code(from.u8()?)?;
        let name_len = usize::from(from.u8()?);
        let opens_len = usize::from(from.u8()?);
        let has_card = flag(from)?;
        let lane = from.u16()?;
        let has_ticket = flag(from)?;
        from.zeros(1)?;
        let volume = from.u32()?;
        let features = from.u32()?;
        let process = from.u64()?;
        let incarnation = from.u64()?;
        let generation = from.u64()?;
        let view = from.u64()?;
        if opens_len > MAX_OPENS {
            return Err(HandshakeError::Opens);
        }
        let name = std::str::from_utf8(from.take(name_len)?).map_err(|_| HandshakeError::Name)?.to_owned();
        let opens = (0..opens_len).map(|_| Ok((from.u64()?, from.u64()?))).collect::<Result<_, HandshakeError>>()?;
        let card = if has_card { Some(Card::read(from)?) } else { None };
        let ticket = if has_ticket { Some(Ticket(from.array()?)) } else { None };
        let info =
            Self { role, name, process, incarnation, lane, volume, generation, view, features, opens, card, ticket };
        info.check()?;
        Ok(info)
    }
}

/// Whether something optional follows.
fn flag(from: &mut Reader<'_>) -> Result<bool, HandshakeError> {
    match from.u8()? {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(HandshakeError::Reserved),
    }
}

/// What one end can take.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Requests in flight per direction, 1..=[`MAX_DEPTH`].
    pub depth: u16,
    /// Largest payload in bytes, at most [`MAX_PAYLOAD`].
    pub max_payload: u32,
}

impl Limits {
    /// What both ends can take.
    #[must_use]
    pub fn common(self, other: Self) -> Self {
        Self { depth: self.depth.min(other.depth), max_payload: self.max_payload.min(other.max_payload) }
    }

    pub(crate) fn put(self, into: &mut Vec<u8>) {
        into.extend(self.depth.to_le_bytes());
        into.extend([0; 2]);
        into.extend(self.max_payload.to_le_bytes());
    }

    pub(crate) fn read(from: &mut Reader<'_>) -> Result<Self, HandshakeError> {
        let depth = from.u16()?;
        from.zeros(2)?;
        let max_payload = from.u32()?;
        if depth == 0 || depth > MAX_DEPTH || max_payload > MAX_PAYLOAD {
            return Err(HandshakeError::Limits);
        }
        Ok(Self { depth, max_payload })
    }
}
