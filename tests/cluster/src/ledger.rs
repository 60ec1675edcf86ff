//! What each sector of a volume may hold, by what was written and what was acknowledged.
//!
//! Every write gives its sectors a version never used before, and the sector's bytes say which sector and version they are. One
//! request at a time touches a sector, so after an acknowledgement exactly one version is right. A write whose
//! acknowledgement was lost with its connection leaves two possibilities, until a read decides (rule 24: it takes
//! effect before its end or never).

use anyhow::{Result, bail};
use std::ops::Range;

/// Bytes in a sector.
pub const SECTOR: usize = 512;
/// The version of zeros: never written, discarded, or zeroed.
pub const ZEROS: u64 = 0;

#[derive(Clone, Debug)]
struct Sector {
    /// What it may hold: exactly one version, unless an acknowledgement was lost.
    may_be: Vec<u64>,
    busy: bool,
}

/// A volume's sectors.
#[derive(Clone, Debug)]
pub struct Ledger {
    sectors: Vec<Sector>,
    next: u64,
}

/// The bytes of a sector in a version.
pub fn content(sector: u64, version: u64) -> [u8; SECTOR] {
    let mut bytes = [0; SECTOR];
    if version != ZEROS {
        for (n, word) in bytes.chunks_exact_mut(16).enumerate() {
            word[..8].copy_from_slice(&(sector ^ (n as u64) << 56).to_le_bytes());
            word[8..].copy_from_slice(&version.to_le_bytes());
        }
    }
    bytes
}

fn version_of(sector: u64, bytes: &[u8]) -> Option<u64> {
    let version = u64::from_le_bytes(bytes.get(8..16)?.try_into().ok()?);
    (content(sector, version)[..] == *bytes).then_some(version)
}

impl Ledger {
    /// All sectors zeros.
    pub fn new(sectors: u64) -> Self {
        let sectors = (0..sectors).map(|_| Sector { may_be: vec![ZEROS], busy: false }).collect();
        Self { sectors, next: 1 }
    }

    /// Sectors.
    pub fn len(&self) -> u64 {
        self.sectors.len() as u64
    }

    /// True without sectors.
    pub fn is_empty(&self) -> bool {
        self.sectors.is_empty()
    }

    fn of(&mut self, range: &Range<u64>) -> &mut [Sector] {
        let place = |n: u64| usize::try_from(n).unwrap_or(usize::MAX);
        &mut self.sectors[place(range.start)..place(range.end)]
    }

    /// Reserves a range for a request; false if another one has part of it.
    pub fn begin(&mut self, range: &Range<u64>) -> bool {
        let sectors = self.of(range);
        let free = sectors.iter().all(|sector| !sector.busy);
        if free {
            sectors.iter_mut().for_each(|sector| sector.busy = true);
        }
        free
    }

    /// A version for the next write, and its bytes.
    pub fn new_version(&mut self, range: &Range<u64>) -> (u64, Vec<u8>) {
        let version = self.next;
        self.next += 1;
        (version, range.clone().flat_map(|sector| content(sector, version)).collect())
    }

    /// The write was acknowledged.
    pub fn acknowledged(&mut self, range: &Range<u64>, version: u64) {
        for sector in self.of(range) {
            (sector.may_be, sector.busy) = (vec![version], false);
        }
    }

    /// The write's fate is unknown: its connection went.
    pub fn lost(&mut self, range: &Range<u64>, version: u64) {
        for sector in self.of(range) {
            sector.may_be.push(version);
            sector.busy = false;
        }
    }

    /// A read ended without bytes.
    pub fn release(&mut self, range: &Range<u64>) {
        self.of(range).iter_mut().for_each(|sector| sector.busy = false);
    }

    /// A read returned these bytes: each sector must be one that it may be, and from now on is that.
    pub fn read(&mut self, range: &Range<u64>, bytes: &[u8]) -> Result<()> {
        self.release(range);
        for (number, bytes) in range.clone().zip(bytes.chunks(SECTOR)) {
            let found = version_of(number, bytes);
            let sector = &mut self.of(&(number..number + 1))[0];
            match found {
                Some(version) if sector.may_be.contains(&version) => sector.may_be = vec![version],
                Some(version) => bail!("sector {number} reads version {version} but must be {:?}", sector.may_be),
                None => {
                    bail!("sector {number} reads as nothing that was written: {:02x?}…", &bytes[..bytes.len().min(32)])
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stale_a_torn_and_a_misplaced_sector_are_noticed() {
        let mut ledger = Ledger::new(8);
        let range = 2..4;
        let write = |ledger: &mut Ledger| {
            assert!(ledger.begin(&range) && !ledger.begin(&(3..5)));
            let (version, bytes) = ledger.new_version(&range);
            (version, bytes)
        };
        let (old, old_bytes) = write(&mut ledger);
        ledger.acknowledged(&(2..4), old);
        let (new, new_bytes) = write(&mut ledger);
        ledger.lost(&(2..4), new);
        assert!(ledger.clone().read(&(2..4), &old_bytes).is_ok(), "either is right while the fate is unknown");
        assert!(ledger.read(&(2..4), &new_bytes).is_ok());
        assert!(ledger.read(&(2..4), &old_bytes).is_err(), "a read has decided");
        assert!(ledger.read(&(3..4), &new_bytes[..SECTOR]).is_err(), "another sector's content");
        let torn = [&new_bytes[..100], &old_bytes[100..SECTOR]].concat();
        assert!(ledger.read(&(2..3), &torn).is_err());
        assert!(ledger.read(&(0..1), &[0; SECTOR]).is_ok());
    }
}
