//! The log that dm-log-writes keeps (drivers/md/dm-log-writes.c and Documentation/admin-guide/device-mapper/log-writes.rst in Linux).
//!
//! ```text
//! sector 0          magic u64 | version u64 | entries u64 | bytes in a sector u32
//! then, per entry   one sector: sector u64 | sectors u64 | flags u64 | length of a mark's name u64 | the name
//!                   and, unless it is a discard, its sectors of data
//! ```
//!
//! All little-endian; sectors are the device's logical blocks. **The order is that of durability, not of writing**: a write with FUA is
//! entered when it has completed, any other when a flush that was submitted after its completion has completed, just before that flush.
//! So all that stands before a mark was durable when the mark was set, and nothing else was.

use anyhow::{Context, Result, bail, ensure};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

const MAGIC: u64 = 0x006a_7366_7773_6872;
const VERSION: u64 = 1;
const FLUSH: u64 = 1 << 0;
const FUA: u64 = 1 << 1;
const DISCARD: u64 = 1 << 2;
const MARK: u64 = 1 << 3;
/// Says what a write was for; all the same to a disk.
const METADATA: u64 = 1 << 4;
/// Bytes of an entry before a mark's name.
const ENTRY: usize = 32;
/// A longer entry is taken for damage: the kernel splits writes far below this.
const MAX_ENTRY_BYTES: u64 = 64 << 20;

/// A log, with its end as the kernel last wrote it down.
pub struct Log {
    file: File,
    sector_bytes: u64,
    entries: u64,
}

/// What an entry records.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Data; `durable` by itself (FUA), or by the flush after it.
    Write {
        /// It had FUA.
        durable: bool,
    },
    /// A range that need not keep its content.
    Discard,
    /// All writes before it in the log that were not durable by themselves became so here.
    Flush,
    /// A name given by `dmsetup message … mark NAME`.
    Mark(String),
}

/// One entry.
#[derive(Clone, Debug)]
pub struct Entry {
    /// What it records.
    pub kind: Kind,
    /// Where on the disk, in bytes.
    pub at: u64,
    /// How much of the disk, in bytes.
    pub bytes: u64,
    data_at: u64,
}

impl Log {
    /// Opens a log device, or the file behind it.
    ///
    /// # Errors
    /// It cannot be read, or is not such a log.
    pub fn open(path: &Path) -> Result<Self> {
        let file = File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
        let mut head = [0; 28];
        file.read_exact_at(&mut head, 0).with_context(|| format!("cannot read {}", path.display()))?;
        let sector_bytes = u64::from(u32::from_le_bytes([head[24], head[25], head[26], head[27]]));
        ensure!(word(&head, 0) == MAGIC, "{} is not a log of dm-log-writes", path.display());
        ensure!(word(&head, 1) == VERSION, "{}: version {} of the log is unknown", path.display(), word(&head, 1));
        ensure!(
            sector_bytes.is_power_of_two() && (512..=4096).contains(&sector_bytes),
            "{}: sectors of {sector_bytes} bytes",
            path.display()
        );
        Ok(Self { file, sector_bytes, entries: word(&head, 2) })
    }

    /// Entries it says that it has.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.entries
    }

    /// True if it has none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries == 0
    }

    /// All entries in their order.
    pub fn entries(&self) -> impl Iterator<Item = Result<Entry>> + '_ {
        let mut at = self.sector_bytes;
        (0..self.entries).map(move |n| {
            let (entry, next) = self.entry(at).with_context(|| format!("entry {n} of the log, at byte {at}"))?;
            at = next;
            Ok(entry)
        })
    }

    fn entry(&self, at: u64) -> Result<(Entry, u64)> {
        let mut raw = vec![0; usize::try_from(self.sector_bytes)?];
        self.file.read_exact_at(&mut raw, at)?;
        let (flags, name_len) = (word(&raw, 2), usize::try_from(word(&raw, 3))?);
        let bytes = word(&raw, 1).checked_mul(self.sector_bytes).filter(|bytes| {
            // A discard may cover the whole disk.
            flags & DISCARD != 0 || *bytes <= MAX_ENTRY_BYTES
        });
        let (Some(bytes), Some(place)) = (bytes, word(&raw, 0).checked_mul(self.sector_bytes)) else {
            bail!("{} sectors at sector {} cannot be", word(&raw, 1), word(&raw, 0));
        };
        ensure!(flags & !(FLUSH | FUA | DISCARD | MARK | METADATA) == 0, "flags {flags:#x} are unknown");
        let kind = if flags & MARK != 0 {
            let name = raw.get(ENTRY..ENTRY + name_len).context("a mark's name ends outside its sector")?;
            Kind::Mark(String::from_utf8(name.to_vec()).context("a mark's name is no text")?)
        } else if flags & DISCARD != 0 {
            Kind::Discard
        } else if bytes == 0 {
            ensure!(flags & FLUSH != 0, "an entry without data is neither flush nor mark: flags {flags:#x}");
            Kind::Flush
        } else {
            // The kernel's block layer sends a flush with data as two; this one would be both.
            ensure!(flags & FLUSH == 0, "a flush with data");
            Kind::Write { durable: flags & FUA != 0 }
        };
        let data = if kind == Kind::Discard { 0 } else { bytes };
        let data_at = at + self.sector_bytes;
        Ok((Entry { kind, at: place, bytes, data_at }, data_at + data))
    }

    /// What an entry wrote.
    ///
    /// # Errors
    /// The log cannot be read there.
    pub fn data(&self, entry: &Entry) -> Result<Vec<u8>> {
        let mut data = vec![0; usize::try_from(entry.bytes)?];
        self.file.read_exact_at(&mut data, entry.data_at).context("the log ends within an entry's data")?;
        Ok(data)
    }
}

fn word(raw: &[u8], n: usize) -> u64 {
    raw.get(n * 8..n * 8 + 8).and_then(|raw| raw.try_into().ok()).map_or(0, u64::from_le_bytes)
}
