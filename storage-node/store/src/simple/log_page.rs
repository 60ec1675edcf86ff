//! A page of a metadata log.
//!
//! ```text
//!  0 magic  4 crc  8 disk id  16 generation  24 page sequence  32 first sequence of its group
//! 40 number of its first record  48 watermark  56 records (u16)  58 0…  64 records, one after the other
//! ```
//! The *page sequence* runs through both logs and all generations; the *group* is the one write that carried the page, so all
//! pages before it were durable when it was written: a valid page whose group begins after a page that does not read is proof of
//! damage, not of a crash. All records below the *watermark* had complete data when the page was written.

use super::limits::SEALED_HEAD;
use super::record::Record;
use crate::codec::{Put, Take, seal, unseal};
use conductor_model::DiskId;

const MAGIC: u32 = u32::from_le_bytes(*b"TRL1");

/// The fixed part of a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct PageHead {
    pub(super) disk: DiskId,
    pub(super) generation: u64,
    pub(super) sequence: u64,
    pub(super) group: u64,
    pub(super) first_record: u64,
    pub(super) watermark: u64,
    pub(super) records: u16,
}

impl PageHead {
    /// Seal a page; `records` are encoded and fit it.
    pub(super) fn encode(&self, records: &[u8], page: &mut [u8]) {
        let mut body = Vec::with_capacity(page.len());
        body.u64(self.disk.0);
        body.u64(self.generation);
        body.u64(self.sequence);
        body.u64(self.group);
        body.u64(self.first_record);
        body.u64(self.watermark);
        body.u16(self.records);
        body.resize(SEALED_HEAD - 8, 0);
        body.extend_from_slice(records);
        seal(page, MAGIC, &body);
    }

    /// The head and the records behind it; `None` if the page is torn, damaged or foreign.
    pub(super) fn decode(page: &[u8], disk: DiskId) -> Option<(Self, Take<'_>)> {
        let mut body = unseal(page, MAGIC)?;
        let this = Self {
            disk: DiskId(body.u64()?),
            generation: body.u64()?,
            sequence: body.u64()?,
            group: body.u64()?,
            first_record: body.u64()?,
            watermark: body.u64()?,
            records: body.u16()?,
        };
        (this.disk == disk).then_some((this, Take(page.get(SEALED_HEAD..)?)))
    }

    /// The records of a page; `None` if they are not ones that this engine wrote.
    pub(super) fn records(&self, mut body: Take<'_>, slots: u32) -> Option<Vec<Record>> {
        (0..self.records).map(|_| Record::decode(&mut body, slots)).collect()
    }
}
