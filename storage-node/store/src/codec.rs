//! Little-endian bytes, and the seal of every metadata page: `magic | CRC32C of all that follows | …`.
//!
//! Reading never panics: what is not there is `None`.

use conductor_model::{Epoch, Sequence, Stamp};

/// Append little-endian fields.
pub(crate) trait Put {
    fn u8(&mut self, n: u8);
    fn u16(&mut self, n: u16);
    fn u32(&mut self, n: u32);
    fn u64(&mut self, n: u64);
    fn stamp(&mut self, stamp: Stamp) {
        self.u64(stamp.epoch.0);
        self.u64(stamp.sequence.0);
    }
}

impl Put for Vec<u8> {
    fn u8(&mut self, n: u8) {
        self.push(n);
    }
    fn u16(&mut self, n: u16) {
        self.extend_from_slice(&n.to_le_bytes());
    }
    fn u32(&mut self, n: u32) {
        self.extend_from_slice(&n.to_le_bytes());
    }
    fn u64(&mut self, n: u64) {
        self.extend_from_slice(&n.to_le_bytes());
    }
}

/// Take little-endian fields off the front.
#[derive(Debug)]
pub(crate) struct Take<'a>(pub(crate) &'a [u8]);

impl Take<'_> {
    pub(crate) fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*head)
    }
    pub(crate) fn u8(&mut self) -> Option<u8> {
        self.array::<1>().map(|[n]| n)
    }
    pub(crate) fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }
    pub(crate) fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }
    pub(crate) fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }
    pub(crate) fn stamp(&mut self) -> Option<Stamp> {
        Some(Stamp { epoch: Epoch(self.u64()?), sequence: Sequence(self.u64()?) })
    }
}

/// Write magic, checksum and body into `page`; the rest becomes zeros. The body fits: callers count their bytes.
pub(crate) fn seal(page: &mut [u8], magic: u32, body: &[u8]) {
    let (head, rest) = page.split_at_mut(8);
    let (used, unused) = rest.split_at_mut(body.len());
    used.copy_from_slice(body);
    unused.fill(0);
    head[..4].copy_from_slice(&magic.to_le_bytes());
    head[4..].copy_from_slice(&crc32c::crc32c(rest).to_le_bytes());
}

/// The body of a sealed page, padding included; `None` if it is torn, damaged, or something else.
pub(crate) fn unseal(page: &[u8], magic: u32) -> Option<Take<'_>> {
    let mut head = Take(page);
    if head.u32()? != magic {
        return None;
    }
    let crc = head.u32()?;
    (crc32c::crc32c(head.0) == crc).then_some(head)
}
