//! One command: its header, what is wrong with it, and the requests it becomes.

use crate::export::Export;
use crate::fault::Fault;
use crate::limits::{MAX_PAYLOAD, PIECE};
use crate::wire::{Fields, REQUEST, REQUEST_HEADER, cmd, cmd_flag};
use conductor_model::Bytes;
use memory::Reads;

/// The client's name for a command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Cookie(pub(crate) u64);

/// A request header as it was sent.
pub(crate) struct Header {
    flags: u16,
    kind: u16,
    pub(crate) cookie: Cookie,
    pub(crate) offset: u64,
    pub(crate) len: u32,
}

/// A command that makes sense.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Command {
    Read { whole: bool },
    Write { fua: bool },
    Disconnect,
    Flush,
    Trim { fua: bool },
    WriteZeroes { fua: bool, no_hole: bool, fast: bool },
    BlockStatus { one: bool },
}

/// What the volume is asked for. To be finished exactly once, with its ticket.
#[derive(Debug)]
pub struct Request {
    /// Names it when it is finished.
    pub ticket: Ticket,
    /// What to do.
    pub what: What,
    /// First byte. No alignment is promised; the range lies within the export.
    pub offset: Bytes,
    /// How many. A `Read` or `Write` crosses no multiple of [`PIECE`]; the others can be as long as 4 GiB. Never 0 but for `Flush`.
    pub len: Bytes,
}

/// Kinds of requests. `fua`: done only when it is durable.
#[derive(Debug)]
pub enum What {
    /// Finish with `Outcome::Data` of exactly `len` bytes.
    Read,
    /// Write `payload`, of exactly `len` bytes.
    Write {
        /// What to write.
        payload: Reads,
        /// Durable when done.
        fua: bool,
    },
    /// All that was finished before, on any connection, is durable when done.
    Flush,
    /// The range is not needed any more; it may read as anything.
    Trim {
        /// Durable when done.
        fua: bool,
    },
    /// The range reads as zeros.
    WriteZeroes {
        /// Durable when done.
        fua: bool,
        /// It stays (or becomes) allocated.
        no_hole: bool,
        /// Only if that is faster than writing zeros; else `Fault::NotSupported`, at once.
        fast: bool,
    },
    /// Finish with `Outcome::Extents`, beginning at `offset`.
    BlockStatus {
        /// Only the first extent is wanted.
        one: bool,
    },
}

/// The right to finish one request, once.
#[derive(Debug)]
#[must_use = "a request is finished by its ticket"]
pub struct Ticket {
    pub(crate) slot: usize,
    pub(crate) offset: u64,
    pub(crate) len: u64,
    /// Bytes that count against the session's limit for it: its pages.
    pub(crate) charged: u64,
}

impl Ticket {
    /// Which slot of its session the command has: below [`Limits::commands`](crate::Limits::commands). The pieces of a command
    /// share it.
    pub fn slot(&self) -> usize {
        self.slot
    }
}

impl Header {
    /// True of a disconnect, which has no answer.
    pub(crate) fn says_goodbye(&self) -> bool {
        self.kind == cmd::DISC
    }

    /// Reads a header. `Err` is what stood where the magic number must be.
    pub(crate) fn parse(bytes: &[u8; REQUEST_HEADER]) -> Result<Self, u32> {
        let mut fields = Fields(bytes);
        let magic = fields.u32().unwrap_or_default();
        if magic != REQUEST {
            return Err(magic);
        }
        Ok(Self {
            flags: fields.u16().unwrap_or_default(),
            kind: fields.u16().unwrap_or_default(),
            cookie: Cookie(fields.u64().unwrap_or_default()),
            offset: fields.u64().unwrap_or_default(),
            len: fields.u32().unwrap_or_default(),
        })
    }

    /// Payload that follows, whether the command makes sense or not.
    pub(crate) fn payload(&self) -> u32 {
        if self.kind == cmd::WRITE { self.len } else { 0 }
    }

    /// True if its errors must be chunks.
    pub(crate) fn answered_in_chunks(&self) -> bool {
        matches!(self.kind, cmd::READ | cmd::BLOCK_STATUS)
    }

    /// The command, if it is one that can be carried out.
    pub(crate) fn check(&self, export: &Export, structured: bool, allocation: bool) -> Result<Command, Fault> {
        // FUA is valid on every command, and means nothing on those that write nothing.
        let fua = self.flags & cmd_flag::FUA != 0;
        let has = |flag| self.flags & flag != 0;
        let (command, legal) = match self.kind {
            cmd::READ => (Command::Read { whole: has(cmd_flag::DF) }, if structured { cmd_flag::DF } else { 0 }),
            cmd::WRITE => (Command::Write { fua }, 0),
            cmd::DISC => return Ok(Command::Disconnect),
            cmd::FLUSH => (Command::Flush, 0),
            cmd::TRIM => (Command::Trim { fua }, 0),
            cmd::WRITE_ZEROES => (
                Command::WriteZeroes { fua, no_hole: has(cmd_flag::NO_HOLE), fast: has(cmd_flag::FAST_ZERO) },
                cmd_flag::NO_HOLE | if export.fast_zero { cmd_flag::FAST_ZERO } else { 0 },
            ),
            cmd::BLOCK_STATUS if allocation => {
                (Command::BlockStatus { one: has(cmd_flag::REQ_ONE) }, cmd_flag::REQ_ONE)
            }
            _ => return Err(Fault::Invalid),
        };
        if self.flags & !(legal | cmd_flag::FUA) != 0 {
            return Err(Fault::Invalid);
        }
        let writes = matches!(command, Command::Write { .. } | Command::Trim { .. } | Command::WriteZeroes { .. });
        if writes && export.read_only {
            return Err(Fault::NotPermitted);
        }
        let has_data = matches!(command, Command::Read { .. } | Command::Write { .. });
        if has_data && self.len > MAX_PAYLOAD {
            return Err(Fault::Invalid);
        }
        if self.offset.checked_add(u64::from(self.len)).is_none_or(|end| end > export.size.0) {
            let no_space = matches!(command, Command::Write { .. } | Command::WriteZeroes { .. });
            return Err(if no_space { Fault::NoSpace } else { Fault::Invalid });
        }
        match command {
            Command::Flush if self.offset != 0 || self.len != 0 => Err(Fault::Invalid),
            Command::BlockStatus { .. } if self.len == 0 => Err(Fault::Invalid),
            // Chunk by chunk is how large reads are answered; one chunk holds what must fit memory at once.
            Command::Read { whole: true } if u64::from(self.len) > PIECE => Err(Fault::Overflow),
            command => Ok(command),
        }
    }
}

/// The bytes of the pages that a range touches: what its data has in memory at most, however short it is.
pub(crate) fn in_pages(offset: u64, len: u64) -> u64 {
    const PAGE: u64 = memory::PAGE as u64;
    (offset % PAGE + len).next_multiple_of(PAGE)
}

/// Where the piece ends that begins at `from`, in a range that ends at `end`.
pub(crate) fn piece_end(from: u64, end: u64) -> u64 {
    end.min((from / PIECE + 1).saturating_mul(PIECE))
}
