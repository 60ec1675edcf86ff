//! The bytes of a group's header.
//!
//! ```text
//!  0 magic "TJG2"   4 CRC32C of all header bytes behind it   8 disk id        16 sequence     24 boot
//! 32 boot of the group before   40 durable through           48 header CRC of the group before
//! 52 position u32  56 header blocks u32                      60 payload blocks u32
//! 64 bytes of records u32       68 bytes of echo u32         72 0…            80 records | echo | 0… to the last header block's end
//! record: body length u16 | payload blocks u16 | CRC32C of each payload block u32 … | body
//! echo:   the first 80 bytes and the records of the group before, as they stand in its header
//! ```
//! Reading never panics: what is not there is `None`.

use super::limits::{HEAD, MAX_HEADER_BLOCKS, MAX_PAYLOAD_BLOCKS, MAX_RECORDS_BYTES, RECORD_HEAD};
use super::{JournalBlock, Mark, RingPlace};
use conductor_model::{BLOCK, DiskId};

const MAGIC: [u8; 4] = *b"TJG2";

/// The fixed part of a header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Head {
    pub(super) disk: DiskId,
    pub(super) boot: u64,
    /// Its sequence, what it continues, and where it is.
    pub(super) at: Mark,
    pub(super) durable_through: u64,
    pub(super) payload_blocks: u32,
}

/// A header as it was read, or as the next group remembers it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Header {
    pub(super) head: Head,
    pub(super) crc: u32,
    pub(super) blocks: u32,
    /// The fixed part and the records: what the next group's echo is.
    pub(super) bytes: Vec<u8>,
    /// That of the group before.
    pub(super) echo: Vec<u8>,
}

/// One record of a group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Record<'a> {
    crcs: &'a [u8],
    pub(super) body: &'a [u8],
}

impl Record<'_> {
    pub(super) fn payload_blocks(&self) -> u32 {
        blocks_u32(self.crcs.len() / 4)
    }

    pub(super) fn crcs(&self) -> impl Iterator<Item = u32> {
        self.crcs.as_chunks().0.iter().map(|crc| u32::from_le_bytes(*crc))
    }
}

/// How many bytes a record takes.
pub(super) fn record_bytes(body: usize, payload_blocks: usize) -> usize {
    RECORD_HEAD + 4 * payload_blocks + body
}

/// Blocks of the header that carries so many bytes of records and of echo.
pub(super) fn header_blocks(records: usize, echo: usize) -> u32 {
    blocks_u32((HEAD + records + echo).div_ceil(BLOCK))
}

/// A count of blocks that the limits keep far below 2³².
fn blocks_u32(blocks: usize) -> u32 {
    u32::try_from(blocks).unwrap_or(u32::MAX)
}

/// Puts a record behind others. The caller keeps the limits of body and blocks.
pub(super) fn put_record(body: &[u8], crcs: &[u32], records: &mut Vec<u8>) {
    let short = |n: usize| u16::try_from(n).unwrap_or(u16::MAX).to_le_bytes();
    records.extend_from_slice(&short(body.len()));
    records.extend_from_slice(&short(crcs.len()));
    records.extend(crcs.iter().flat_map(|crc| crc.to_le_bytes()));
    records.extend_from_slice(body);
}

/// Takes the record in front of others; `None` if there is no whole one.
pub(super) fn take_record<'a>(records: &mut &'a [u8]) -> Option<Record<'a>> {
    let (head, rest) = records.split_first_chunk::<RECORD_HEAD>()?;
    let [a, b, c, d] = *head;
    let (crcs, rest) = rest.split_at_checked(usize::from(u16::from_le_bytes([c, d])) * 4)?;
    let (body, rest) = rest.split_at_checked(usize::from(u16::from_le_bytes([a, b])))?;
    *records = rest;
    Some(Record { crcs, body })
}

/// Writes a header into `memory`, as many blocks as it takes, and replaces the echo of the group before by that of this one.
/// Gives its checksum. Records and echo fit: their sum was counted.
pub(super) fn encode(head: &Head, records: &[u8], echo: &mut Vec<u8>, memory: &mut [u8]) -> u32 {
    let blocks = header_blocks(records.len(), echo.len());
    let memory = &mut memory[..blocks as usize * BLOCK];
    let (fixed, rest) = memory.split_at_mut(HEAD);
    fixed.fill(0);
    let long = |n: usize| blocks_u32(n).to_le_bytes(); // less than a header's bytes
    fixed[..4].copy_from_slice(&MAGIC);
    fixed[8..16].copy_from_slice(&head.disk.0.to_le_bytes());
    fixed[16..24].copy_from_slice(&head.at.sequence.to_le_bytes());
    fixed[24..32].copy_from_slice(&head.boot.to_le_bytes());
    fixed[32..40].copy_from_slice(&head.at.previous_boot.to_le_bytes());
    fixed[40..48].copy_from_slice(&head.durable_through.to_le_bytes());
    fixed[48..52].copy_from_slice(&head.at.previous_crc.to_le_bytes());
    fixed[52..56].copy_from_slice(&head.at.position.0.to_le_bytes());
    fixed[56..60].copy_from_slice(&blocks.to_le_bytes()); // at most 16
    fixed[60..64].copy_from_slice(&head.payload_blocks.to_le_bytes());
    fixed[64..68].copy_from_slice(&long(records.len()));
    fixed[68..72].copy_from_slice(&long(echo.len()));
    let (own, behind) = rest.split_at_mut(records.len());
    own.copy_from_slice(records);
    let (of_the_one_before, padding) = behind.split_at_mut(echo.len());
    of_the_one_before.copy_from_slice(echo);
    padding.fill(0);
    let crc = crc32c::crc32c(&memory[8..]);
    memory[4..8].copy_from_slice(&crc.to_le_bytes());
    echo.clear();
    echo.extend_from_slice(&memory[..HEAD + records.len()]);
    crc
}

/// The fixed part of what may be a header, not verified.
#[derive(Clone, Copy)]
struct Fixed {
    head: Head,
    crc: u32,
    blocks: u32,
    records: usize,
    echo: usize,
}

fn fixed(bytes: &[u8], place: &RingPlace) -> Option<Fixed> {
    let bytes = bytes.first_chunk::<HEAD>()?;
    let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
    let long = |at: usize| u64::from(word(at)) | u64::from(word(at + 4)) << 32;
    if bytes[..4] != MAGIC || long(8) != place.disk_id.0 {
        return None;
    }
    let at =
        Mark { position: JournalBlock(word(52)), sequence: long(16), previous_crc: word(48), previous_boot: long(32) };
    let head = Head { disk: place.disk_id, boot: long(24), at, durable_through: long(40), payload_blocks: word(60) };
    let this = Fixed { head, crc: word(4), blocks: word(56), records: word(64) as usize, echo: word(68) as usize };
    let sane = this.records <= MAX_RECORDS_BYTES
        && this.echo <= HEAD + MAX_RECORDS_BYTES
        && this.blocks == header_blocks(this.records, this.echo)
        && this.blocks <= MAX_HEADER_BLOCKS
        && head.payload_blocks <= MAX_PAYLOAD_BLOCKS
        && (1..u64::MAX).contains(&head.at.sequence)
        && u64::from(head.at.position.0) + u64::from(this.blocks) + u64::from(head.payload_blocks)
            <= u64::from(place.blocks);
    sane.then_some(this)
}

/// How many blocks the header takes that seems to begin here; `None` if none does.
pub(super) fn seems_header(block: &[u8], place: &RingPlace, at: u32) -> Option<u32> {
    fixed(block, place).filter(|fixed| fixed.head.at.position.0 == at).map(|fixed| fixed.blocks)
}

/// What a header says that begins here, be it torn.
pub(super) fn begins_as(block: &[u8], place: &RingPlace) -> Option<Head> {
    fixed(block, place).map(|fixed| fixed.head)
}

impl Header {
    /// The header in these blocks; `None` if it is torn, damaged or foreign, or not what this journal writes.
    pub(super) fn decode(mut memory: Vec<u8>, place: &RingPlace) -> Option<Self> {
        let fixed = fixed(&memory, place)?;
        if memory.len() != fixed.blocks as usize * BLOCK || crc32c::crc32c(&memory[8..]) != fixed.crc {
            return None;
        }
        let echo = memory.get(HEAD + fixed.records..)?.get(..fixed.echo)?.to_vec();
        memory.truncate(HEAD + fixed.records);
        Self { head: fixed.head, crc: fixed.crc, blocks: fixed.blocks, bytes: memory, echo }.sound()
    }

    /// The header of the group before, from the echo in this one.
    pub(super) fn echoed(&self, place: &RingPlace) -> Option<Self> {
        let fixed = fixed(&self.echo, place)?;
        let follows = fixed.crc == self.head.at.previous_crc
            && fixed.head.boot == self.head.at.previous_boot
            && fixed.head.at.sequence.checked_add(1) == Some(self.head.at.sequence)
            && self.echo.len() == HEAD + fixed.records;
        let bytes = self.echo.clone();
        follows.then_some(())?;
        Self { head: fixed.head, crc: fixed.crc, blocks: fixed.blocks, bytes, echo: Vec::new() }.sound()
    }

    /// All its records are whole, and their payload is the group's.
    fn sound(self) -> Option<Self> {
        let mut rest = self.records();
        let mut payload = 0;
        while !rest.is_empty() {
            payload += take_record(&mut rest)?.payload_blocks();
        }
        (payload == self.head.payload_blocks).then_some(self)
    }

    /// Its records, one after the other.
    pub(super) fn records(&self) -> &[u8] {
        self.bytes.get(HEAD..).unwrap_or_default()
    }

    /// Its first payload block.
    pub(super) fn payload(&self) -> u32 {
        self.head.at.position.0 + self.blocks
    }

    /// What the next group continues.
    pub(super) fn end(&self, place: &RingPlace) -> Mark {
        self.head.end(self.blocks, self.crc, place.blocks)
    }
}

impl Head {
    /// What the next group continues, if this one's header has so many blocks and this checksum.
    pub(super) fn end(&self, header_blocks: u32, crc: u32, ring_blocks: u32) -> Mark {
        Mark {
            position: JournalBlock((self.at.position.0 + header_blocks + self.payload_blocks) % ring_blocks),
            sequence: self.at.sequence + 1,
            previous_crc: crc,
            previous_boot: self.boot,
        }
    }
}
