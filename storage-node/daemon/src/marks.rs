//! Recognizes disks on which somebody else's data may be, or what is left of ours: by what file systems, partition tables, volume managers and swap space
//! write at fixed places. Those of Linux, and what a disk that was used elsewhere has on it; wipefs(8) knows more.

use crate::disks;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// All marks are within this many bytes of either end.
pub(crate) const ENDS: usize = 1 << 20;

const BLOCK: u64 = 4096;

/// Where a mark is.
#[derive(Clone, Copy)]
enum At {
    /// Bytes from the beginning.
    Start(usize),
    /// At any multiple of the second below the third, from the first on.
    Every(usize, usize, usize),
    /// Bytes before the end, which is first rounded down to a multiple of the second.
    End(u64, u64),
}

/// What, where, and the bytes; the particular before the general. Offsets are those of each format's own documentation.
const MARKS: &[(&str, At, &[u8])] = &[
    ("an ext2, ext3 or ext4 file system", At::Start(1080), &[0x53, 0xef]),
    ("an XFS file system", At::Start(0), b"XFSB"),
    ("a Btrfs file system", At::Start((64 << 10) + 64), b"_BHRfS_M"),
    ("an F2FS file system", At::Start(1024), &[0x10, 0x20, 0xf5, 0xf2]),
    (
        "bcache or a bcachefs file system",
        At::Start(4096 + 24),
        &[0xc6, 0x85, 0x73, 0xf6, 0x4e, 0x1a, 0x45, 0xca, 0x82, 0x65, 0xf5, 0x7f, 0x48, 0xba, 0x6d, 0x81],
    ),
    (
        "a bcachefs file system",
        At::Start(4096 + 24),
        &[0xc6, 0x85, 0x73, 0xf6, 0x66, 0xce, 0x90, 0xa9, 0xd9, 0x6a, 0x60, 0xcf, 0x80, 0x3d, 0xf7, 0xef],
    ),
    ("a ZFS pool's device", At::Every(128 << 10, 1024, 256 << 10), &[0x0c, 0xb1, 0xba, 0, 0, 0, 0, 0]),
    ("swap space", At::Start(4086), b"SWAPSPACE2"),
    ("a LUKS encrypted volume", At::Start(0), b"LUKS\xba\xbe"),
    ("an LVM physical volume", At::Every(0, 512, 2048), b"LABELONE"),
    ("a RAID member (md 1.1)", At::Start(0), &[0xfc, 0x4e, 0x2b, 0xa9]),
    ("a RAID member (md 1.2)", At::Start(4096), &[0xfc, 0x4e, 0x2b, 0xa9]),
    ("a RAID member (md 1.0)", At::End(8 << 10, 4096), &[0xfc, 0x4e, 0x2b, 0xa9]),
    ("a RAID member (md 0.90)", At::End(64 << 10, 64 << 10), &[0xfc, 0x4e, 0x2b, 0xa9]),
    ("a squashfs file system", At::Start(0), b"hsqs"),
    ("an EROFS file system", At::Start(1024), &[0xe2, 0xe1, 0xf5, 0xe0]),
    ("an ISO 9660 file system", At::Start(32769), b"CD001"),
    ("an NTFS file system", At::Start(3), b"NTFS    "),
    ("an exFAT file system", At::Start(3), b"EXFAT   "),
    ("a FAT file system", At::Start(82), b"FAT32   "),
    ("a FAT file system", At::Start(54), b"FAT1"),
    ("a partition table (GPT)", At::Start(512), b"EFI PART"),
    ("a partition table (GPT)", At::Start(4096), b"EFI PART"),
    ("a partition table or a boot sector", At::Start(510), &[0x55, 0xaa]),
    // A group at the beginning of the journal (docs/disk-format.md).
    ("what is left of a store that has lost its superblocks", At::Start(64 << 10), b"TJG2"),
];

/// What the disk is recognized as. `bytes` is its size.
pub(crate) fn of_disk(path: &Path, bytes: u64) -> io::Result<Option<&'static str>> {
    let file = disks::open(path)?;
    let mut head = vec![0; usize::try_from(bytes).map_or(ENDS, |bytes| bytes.min(ENDS))];
    file.read_exact_at(&mut head, 0)?;
    let is = |at: usize, mark: &[u8]| head.get(at..at + mark.len()) == Some(mark);
    for (what, at, mark) in MARKS {
        let found = match *at {
            At::Start(at) => is(at, mark),
            At::Every(from, step, end) => (from..end).step_by(step).any(|at| is(at, mark)),
            At::End(before, unit) => {
                let Some(at) = (bytes / unit * unit).checked_sub(before) else { continue };
                let mut there = vec![0; mark.len()];
                file.read_exact_at(&mut there, at)?;
                there == *mark
            }
        };
        if found {
            return Ok(Some(what));
        }
    }
    Ok(None)
}

/// Where the first and the last [`ENDS`] bytes begin, in whole blocks. A disk is longer than both.
pub(crate) fn ends(bytes: u64) -> [u64; 2] {
    [0, (bytes / BLOCK * BLOCK).saturating_sub(ENDS as u64)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    const SIZE: u64 = (4 << 20) + 512;

    fn recognized(writes: &[(u64, &[u8])]) -> Option<&'static str> {
        let path =
            std::env::temp_dir().join(format!("trine-marks-{}-{:?}", std::process::id(), std::thread::current().id()));
        let file = File::create(&path).unwrap();
        file.set_len(SIZE).unwrap();
        for (at, bytes) in writes {
            file.write_all_at(bytes, *at).unwrap();
        }
        let what = of_disk(&path, SIZE).unwrap();
        std::fs::remove_file(&path).unwrap();
        what
    }

    #[test]
    fn each_mark_is_found_where_it_is_and_wiped_with_the_ends() {
        let [first, last] = ends(SIZE);
        for (what, at, mark) in MARKS {
            let at = match *at {
                At::Start(at) => at as u64,
                At::Every(_, step, end) => (end - step) as u64,
                At::End(before, unit) => SIZE / unit * unit - before,
            };
            let found = recognized(&[(at, mark)]).unwrap();
            assert!(found == *what, "{what} is taken for {found}");
            let zeros = vec![0; ENDS];
            assert_eq!(recognized(&[(at, mark), (first, &zeros), (last, &zeros)]), None, "{what}");
        }
    }

    #[test]
    fn a_blank_disk_and_one_with_random_bytes_elsewhere_are_nobodys() {
        assert_eq!(recognized(&[]), None);
        assert_eq!(recognized(&[(2 << 20, b"XFSB"), (513, b"EFI PART")]), None);
    }
}
