//! Journals away from their stores: whose a journal is, and that it is no other's.
//!
//! ```text
//!   blocks 0 and 8     label, twice: which store it belongs to              ┐ the head, 64 KiB, which is ours
//!   the others to 15   zeros                                                ┘
//!   from block 16 on   the ring, of which the store knows nothing else     `Uring::open_journal` begins there
//! ```
//!
//! An empty ring says nothing: opened with one, a store would take what it acknowledged for never written. So both sides are asked
//! before either is written: the store whether its journal is elsewhere, the label whether it names this store.
//!
//! A label is written before its store is formatted, as *being made*, and again when it is, as *made*. Only a journal that is made is
//! somebody's: one whose store was never finished can be taken by the next format.

use crate::head::head;
use crate::{Error, marks};
use conductor_model::{BLOCK, Bytes, DiskId};
use node_store::journaled::{Geometry, MAX_JOURNAL_BYTES, MIN_JOURNAL_BYTES, identify};
use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Bytes before the ring: as many as before a store's, so that what looks for file systems sees zeros in the usual places.
pub(crate) const HEAD: u64 = 64 << 10;

/// Where the labels are. Older journals have the first alone.
const LABELS: [usize; 2] = [0, 8 * BLOCK];

const MAGIC: &[u8; 4] = b"TRJL";
const VERSION: u32 = 1;

/// What a journal says of itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Label {
    /// The store's cluster.
    pub(crate) cluster: u64,
    /// The store.
    pub(crate) disk: DiskId,
    /// Its store was formatted.
    pub(crate) made: bool,
}

impl Label {
    fn encode(self) -> [u8; BLOCK] {
        let mut block = [0; BLOCK];
        block[..4].copy_from_slice(MAGIC);
        block[8..12].copy_from_slice(&VERSION.to_le_bytes());
        block[12..16].copy_from_slice(&u32::from(self.made).to_le_bytes());
        block[16..24].copy_from_slice(&self.cluster.to_le_bytes());
        block[24..32].copy_from_slice(&self.disk.0.to_le_bytes());
        let crc = crc32c::crc32c(&block[8..]);
        block[4..8].copy_from_slice(&crc.to_le_bytes());
        block
    }

    fn decode(block: &[u8; BLOCK]) -> Option<Self> {
        let u32_at = |at: usize| block[at..].first_chunk().map(|bytes| u32::from_le_bytes(*bytes));
        let u64_at = |at: usize| block[at..].first_chunk().map(|bytes| u64::from_le_bytes(*bytes));
        let ours = block.starts_with(MAGIC)
            && u32_at(4) == Some(crc32c::crc32c(&block[8..]))
            && u32_at(8) == Some(VERSION)
            && u32_at(12)? < 2;
        ours.then_some(Self { cluster: u64_at(16)?, disk: DiskId(u64_at(24)?), made: u32_at(12) == Some(1) })
    }

    /// The label on a journal, as far as one of both is good. A damaged one is none.
    pub(crate) fn read(path: &Path) -> Result<Option<Self>, Error> {
        // Of two that differ the first one counts, which older programs write alone.
        Ok(Self::both(path)?.into_iter().flatten().rev().max_by_key(|label| label.made))
    }

    /// Each of them.
    fn both(path: &Path) -> Result<[Option<Self>; 2], Error> {
        let head = head(path).map_err(|source| unreadable(path, source))?;
        Ok(LABELS.map(|at| head.get(at..)?.first_chunk().and_then(Self::decode)))
    }

    /// Labels a journal of `bytes` in all, durably; with `wipe`, nothing is left of the marks that somebody else wrote on it.
    pub(crate) fn write(self, path: &Path, bytes: u64, wipe: bool) -> Result<(), Error> {
        let written = OpenOptions::new().write(true).open(path).and_then(|file| {
            if wipe {
                let zeros = vec![0; marks::ENDS];
                for at in marks::ends(bytes) {
                    file.write_all_at(
                        &zeros[..zeros.len().min(usize::try_from(bytes - at).unwrap_or(usize::MAX))],
                        at,
                    )?;
                }
            }
            LABELS.iter().try_for_each(|at| file.write_all_at(&self.encode(), *at as u64))?;
            file.sync_all()
        });
        written.map_err(|source| Error::Label { path: path.to_path_buf(), source })
    }
}

/// A journal that was opened for a disk.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place<'a> {
    pub(crate) path: &'a Path,
    /// Its ring's part of it.
    pub(crate) bytes: u64,
}

/// Refuses a store whose journal is not this one. What is no store yet is not asked.
pub(crate) fn check(disk: &Path, journal: Option<Place<'_>>) -> Result<(), Error> {
    let head = head(disk).map_err(|source| unreadable(disk, source))?;
    let Some((identity, geometry)) = identify(&head) else { return Ok(()) };
    let disk = disk.to_path_buf();
    let Some(Place { path, bytes }) = journal else {
        return if geometry.external_journal() { Err(Error::JournalMissing { disk }) } else { Ok(()) };
    };
    let journal = path.to_path_buf();
    if !geometry.external_journal() {
        return Err(Error::JournalUnused { disk, journal });
    }
    let Some(label) = Label::read(path)? else { return Err(Error::JournalEmpty { disk, journal }) };
    if (label.cluster, label.disk) != (identity.cluster, identity.disk) {
        return Err(Error::JournalOfOther { disk, journal, store: identity.disk, other: label.disk });
    }
    let need = geometry.journal_bytes().0;
    if bytes < need {
        return Err(Error::JournalShort { journal, bytes, need });
    }
    // One that was lost, or is not there yet, is written again.
    let made = Label { made: true, ..label };
    let written = if Label::both(path)? == [Some(made); 2] { Ok(()) } else { made.write(path, 0, false) };
    match written {
        // It says all that it has to, in one place.
        Err(error) if label.made => {
            tracing::warn!(%error, "one of a journal's two labels cannot be put right");
            Ok(())
        }
        written => written,
    }
}

/// Refuses to make a journal of what is somebody's. True if marks have to be wiped.
pub(crate) fn may_take(journal: Place<'_>, force: bool) -> Result<bool, Error> {
    let path = journal.path.to_path_buf();
    let mark = marks::of_disk(journal.path, journal.bytes + HEAD).map_err(|source| unreadable(journal.path, source))?;
    match (Label::read(journal.path)?, mark) {
        _ if force => Ok(mark.is_some()),
        (Some(Label { made: true, disk, .. }), _) => Err(Error::JournalTaken { journal: path, store: disk }),
        (_, Some(mark)) => Err(Error::Marked { path, mark }),
        (_, None) => Ok(false),
    }
}

/// How a disk of `bytes` is divided whose journal is on it: as usual, but that the journal is as large as was said.
pub(crate) fn geometry(disk: &Path, bytes: u64, said: Option<u64>) -> Result<Geometry, Error> {
    let too_small = || Error::TooSmall { path: disk.to_path_buf(), bytes };
    let usual = Geometry::of_disk(Bytes(bytes)).ok_or_else(too_small)?;
    let Some(said) = said else { return Ok(usual) };
    let most = MAX_JOURNAL_BYTES.min(bytes / 2);
    let blocks = u32::try_from(said / BLOCK as u64).ok().filter(|_| (MIN_JOURNAL_BYTES..=most).contains(&said));
    let divided = blocks.and_then(|blocks| usual.with_journal(blocks));
    divided.ok_or_else(|| Error::JournalSize { path: disk.to_path_buf(), said, most })
}

/// The same where the journal is elsewhere: unless its size was said, as large as there is room.
pub(crate) fn geometry_beside(
    disk: &Path,
    bytes: u64,
    said: Option<u64>,
    journal: Place<'_>,
) -> Result<Geometry, Error> {
    let mut wanted = geometry(disk, bytes, said)?;
    let path = || journal.path.to_path_buf();
    let need = wanted.journal_bytes().0;
    if need > journal.bytes {
        if said.is_some() {
            return Err(Error::JournalShort { journal: path(), bytes: journal.bytes, need });
        }
        let room = u32::try_from(journal.bytes / BLOCK as u64).ok();
        let smaller = room.and_then(|room| wanted.with_journal(room));
        wanted = smaller.ok_or_else(|| Error::JournalTooSmall { journal: path(), bytes: journal.bytes })?;
    }
    wanted.with_journal_elsewhere().ok_or_else(|| Error::TooSmall { path: disk.to_path_buf(), bytes })
}

fn unreadable(path: &Path, source: io::Error) -> Error {
    Error::Unreadable { path: path.to_path_buf(), source }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::NodeOptions;
    use crate::options::tests::options;
    use crate::thread::{self, Plan};
    use conductor_model::ClusterId;
    use node_core::Mail;
    use std::fs;
    use std::fs::File;
    use std::path::PathBuf;
    use std::sync::atomic::{AtomicU32, Ordering};

    const DISK: u64 = 64 << 20;
    const JOURNAL: u64 = (8 << 20) + HEAD;

    struct Dir(PathBuf);

    impl Dir {
        fn new() -> Self {
            static NEXT: AtomicU32 = AtomicU32::new(0);
            let name = format!("trine-journal-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
            let path = std::env::temp_dir().join(name);
            fs::create_dir(&path).unwrap();
            Self(path)
        }
        fn file(&self, name: &str, bytes: u64) -> PathBuf {
            let path = self.0.join(name);
            if !path.exists() {
                File::create(&path).unwrap().set_len(bytes).unwrap();
            }
            path
        }
        /// Opens a reactor on one disk and perhaps a journal.
        fn open(&self, disk: &str, journal: Option<&str>, format: bool, force: bool) -> Result<(), Error> {
            self.open_as(ClusterId(7), disk, journal, format, force)
        }
        fn open_as(
            &self,
            cluster: ClusterId,
            disk: &str,
            journal: Option<&str>,
            format: bool,
            force: bool,
        ) -> Result<(), Error> {
            let mut options = NodeOptions { format, force, allow_buffered: true, ..options(1) };
            options.listen = "127.0.0.1:0".parse().unwrap();
            options.disks[0].path = self.file(disk, DISK);
            options.disks[0].journal = journal.map(|journal| self.file(journal, JOURNAL));
            let (_mailbox, mail) = reactor::mailbox::<Mail>(16).unwrap();
            let plan = Plan { options: &options, disks: &options.disks, lane: 0, cluster, process: 1 };
            thread::open(&plan, mail).map(|opened| assert_eq!(opened.disks.len(), 1))
        }
        fn bytes(&self) -> Vec<(String, Vec<u8>)> {
            let mut all: Vec<_> = fs::read_dir(&self.0)
                .unwrap()
                .map(|entry| entry.unwrap())
                .map(|entry| (entry.file_name().into_string().unwrap(), fs::read(entry.path()).unwrap()))
                .collect();
            all.sort();
            all
        }
        fn label(&self, journal: &str) -> Option<Label> {
            Label::read(&self.0.join(journal)).unwrap()
        }
    }

    impl Drop for Dir {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_label_reads_as_it_was_written_and_a_damaged_one_is_none() {
        let label = Label { cluster: 0x1122, disk: DiskId(0x3344), made: true };
        let mut block = label.encode();
        assert_eq!(Label::decode(&block), Some(label));
        assert_eq!(block[8..32], [1, 0, 0, 0, 1, 0, 0, 0, 0x22, 0x11, 0, 0, 0, 0, 0, 0, 0x44, 0x33, 0, 0, 0, 0, 0, 0]);
        for at in [0, 5, 9, 30, 4000] {
            block[at] ^= 1;
            assert_eq!(Label::decode(&block), None, "{at}");
            block[at] ^= 1;
        }
    }

    #[test]
    fn stores_say_which_cluster_they_belong_to_and_blank_disks_do_not() {
        let dir = Dir::new();
        let plan = |path| crate::DiskPlan { path, create: None, journal: None, journal_size: None };
        let [blank, none, store] = [dir.file("blank", DISK), dir.0.join("none"), dir.0.join("disk")].map(plan);
        let of = |disks: &[crate::DiskPlan]| crate::disks::cluster_of(disks);
        assert_eq!(of(&[blank.clone(), none.clone()]).unwrap(), None);
        dir.open("disk", None, true, false).unwrap();
        assert_eq!(of(&[blank, store.clone(), none]).unwrap(), Some(ClusterId(7)));
        dir.open_as(ClusterId(8), "foreign", None, true, false).unwrap();
        let both = of(&[store, plan(dir.0.join("foreign"))]);
        assert!(matches!(both, Err(Error::TwoClusters { .. })), "{both:?}");
        dir.open_as(ClusterId(0), "nobody's", None, true, false).unwrap();
        assert_eq!(of(&[plan(dir.0.join("nobody's"))]).unwrap(), None);
    }

    #[test]
    fn a_store_and_its_journal_are_made_together_and_opened_only_together() {
        let dir = Dir::new();
        assert!(dir.open("disk", Some("journal"), false, false).is_err(), "nothing to open, not told to make it");
        assert_eq!(dir.label("journal"), None);
        dir.open("disk", Some("journal"), true, false).unwrap();
        let label = dir.label("journal").unwrap();
        assert!(label.made && label.cluster == 7);
        dir.open("disk", Some("journal"), true, false).unwrap();
        assert_eq!(dir.label("journal"), Some(label), "one that is a store already is not made again");

        dir.open("other", Some("its-journal"), true, false).unwrap();
        dir.open("plain", None, true, false).unwrap();
        dir.file("blank", JOURNAL);
        let before = dir.bytes();
        let refused = |disk, journal| dir.open(disk, journal, true, true).unwrap_err();
        assert!(matches!(refused("disk", None), Error::JournalMissing { .. }));
        assert!(matches!(refused("disk", Some("blank")), Error::JournalEmpty { .. }));
        assert!(matches!(refused("disk", Some("its-journal")), Error::JournalOfOther { .. }));
        assert!(matches!(refused("plain", Some("journal")), Error::JournalUnused { .. }));
        let said = refused("disk", Some("its-journal")).to_string();
        assert!(said.contains("its-journal") && said.contains(&label.disk.to_string()), "{said}");
        assert!(before == dir.bytes(), "what is refused is not written");
        File::options().write(true).open(dir.0.join("journal")).unwrap().set_len(JOURNAL - 4096).unwrap();
        assert!(matches!(refused("disk", Some("journal")), Error::JournalShort { .. }));
    }

    #[test]
    fn a_journal_has_the_size_that_was_said_if_its_disk_and_its_own_have_room() {
        let disk = Path::new("disk");
        let on_disk = |said| geometry(disk, 4 << 30, said).map(|geometry| geometry.journal_bytes().0 >> 20);
        assert_eq!([None, Some(16 << 20), Some(1 << 30)].map(|said| on_disk(said).unwrap()), [256, 16, 1024]);
        for said in [0, (16 << 20) - 1, (1 << 30) + 1, u64::MAX] {
            assert!(matches!(on_disk(Some(said)), Err(Error::JournalSize { most: MAX_JOURNAL_BYTES, .. })), "{said}");
        }
        let of_half = geometry(disk, DISK, Some(DISK / 2)).unwrap();
        assert!(of_half.capacity() > 0 && of_half.journal_bytes().0 == DISK / 2);
        let said = geometry(disk, DISK, Some(DISK / 2 + 4096)).unwrap_err();
        assert!(matches!(said, Error::JournalSize { most, .. } if most == DISK / 2), "{said}");
        assert!(matches!(geometry(disk, DISK / 2, None), Err(Error::TooSmall { .. })));

        let beside = |bytes, said| {
            let place = Place { path: Path::new("journal"), bytes };
            geometry_beside(disk, 4 << 30, said, place)
        };
        let sizes = |said| beside(512 << 20, said).map(|g| (g.external_journal(), g.journal_bytes().0 >> 20));
        assert_eq!((sizes(None).unwrap(), sizes(Some(512 << 20)).unwrap()), ((true, 256), (true, 512)));
        assert!(matches!(sizes(Some(513 << 20)), Err(Error::JournalShort { .. })));
        assert_eq!(beside(20 << 20, None).unwrap().journal_bytes().0, 20 << 20, "as large as there is room");
        assert!(matches!(beside(1 << 20, None), Err(Error::JournalTooSmall { .. })));
    }

    #[test]
    fn a_journal_is_taken_from_another_store_only_by_force_but_from_one_that_was_never_finished_at_once() {
        let dir = Dir::new();
        dir.open("disk", Some("journal"), true, false).unwrap();
        let first = dir.label("journal").unwrap();
        let refused = dir.open("second", Some("journal"), true, false).unwrap_err();
        assert!(matches!(refused, Error::JournalTaken { store, .. } if store == first.disk), "{refused}");
        assert_eq!(dir.label("journal"), Some(first));
        dir.open("second", Some("journal"), true, true).unwrap();
        let second = dir.label("journal").unwrap();
        assert!(second.made && second.disk != first.disk);
        assert!(matches!(dir.open("disk", Some("journal"), false, false), Err(Error::JournalOfOther { .. })));

        let path = dir.0.join("journal");
        Label { made: false, ..first }.write(&path, JOURNAL, false).unwrap();
        dir.open("third", Some("journal"), true, false).unwrap();
        // A crash between the store's last write and the label's: they name each other.
        let third = dir.label("journal").unwrap();
        Label { made: false, ..third }.write(&path, JOURNAL, false).unwrap();
        dir.open("third", Some("journal"), false, false).unwrap();
        assert_eq!(dir.label("journal"), Some(third));
    }

    #[test]
    fn a_label_that_is_damaged_is_there_once_more_and_is_put_right() {
        let dir = Dir::new();
        dir.file("journal", JOURNAL);
        dir.open("disk", Some("journal"), true, false).unwrap();
        let label = dir.label("journal").unwrap();
        let journal = File::options().write(true).open(dir.0.join("journal")).unwrap();
        for at in LABELS {
            journal.write_all_at(&[0x77], at as u64 + 30).unwrap();
            assert_eq!(dir.label("journal"), Some(label));
            let refused = dir.open("third", Some("journal"), true, false).unwrap_err();
            assert!(matches!(refused, Error::JournalTaken { store, .. } if store == label.disk), "{refused}");
            dir.open("disk", Some("journal"), false, false).unwrap();
            assert_eq!(Label::both(&dir.0.join("journal")).unwrap(), [Some(label); 2]);
        }
        // As of an older journal.
        journal.write_all_at(&[0; BLOCK], LABELS[1] as u64).unwrap();
        dir.open("disk", Some("journal"), false, false).unwrap();
        assert_eq!(Label::both(&dir.0.join("journal")).unwrap(), [Some(label); 2]);
    }

    #[test]
    fn what_is_somebodys_is_no_journal_unless_forced_and_then_nobody_takes_it_for_what_it_was() {
        let dir = Dir::new();
        let journal = File::options().write(true).open(dir.file("journal", JOURNAL)).unwrap();
        journal.write_all_at(b"XFSB", 0).unwrap();
        journal.write_all_at(&[0xfc, 0x4e, 0x2b, 0xa9], JOURNAL - (8 << 10)).unwrap();
        let refused = dir.open("disk", Some("journal"), true, false).unwrap_err();
        assert!(matches!(&refused, Error::Marked { path, .. } if path.ends_with("journal")), "{refused}");
        dir.open("disk", Some("journal"), true, true).unwrap();
        assert_eq!(marks::of_disk(&dir.0.join("journal"), JOURNAL).unwrap(), None);
        dir.open("disk", Some("journal"), false, false).unwrap();
        // The smallest that works is small; less is refused before anything is written.
        dir.file("tiny", HEAD + (1 << 20));
        assert!(matches!(dir.open("new", Some("tiny"), true, false), Err(Error::JournalTooSmall { .. })));
        assert_eq!(dir.label("tiny"), None);
    }
}
