//! What a store reads from its disk. Every input is a small good image with something in it forged; whatever that is, the check ends, and
//! the store opens, or says why not. Where the check has found nothing, the store is also read and changed. (It does not read all of its
//! metadata before it serves: where two parts contradict each other under right checksums, it stops with an assertion.)
//!
//! | target | what is forged | checksums |
//! |---|---|---|
//! | `superblock` | the superblock | right |
//! | `journal` | one more group at the journal's end: parts of its head, all of its records | right |
//! | `pages` | bytes of metadata pages | right, up to the superblock |
//! | `image` | bytes anywhere | as they are |

mod disk;
mod image;

use crate::arena;
use crate::input::Input;
use conductor_model::{BLOCK, Blocks, Bytes, CopyId, SnapshotId, Stamp};
use disk::Block;
pub(crate) use disk::Disk;
use driver::{DiskIndex, Span};
use image::{BLOCKS, META_BLOCKS, RING, write};
pub(crate) use image::{DISK, DISK_ID, IMAGE, Rig, config, range, stamp};
use memory::{Arena, Class};
use node_store::journaled::check::{CheckOptions, Depth, Severity, check};
use node_store::journaled::{forget_foreign, identify};
use node_store::{Parent, Store, StoreDone, StoreOp, View};
use std::sync::LazyLock;

/// The blocks of the superblocks.
const SUPERBLOCKS: [usize; 2] = [0, 8];
/// The ring's first block.
const RING_AT: usize = 16;
/// Bytes of a sealed structure before its content: magic and checksum.
const SEAL: usize = 8;
/// Bytes of a group's head, and where in it the header's blocks, the payload's and the bytes of records and echo are counted.
const GROUP_HEAD: usize = 80;
const COUNTS: std::ops::Range<usize> = 56..72;

/// Makes what all inputs share.
pub(crate) fn prepare() {
    LazyLock::force(&GROUPS);
    LazyLock::force(&PAGES);
}

fn word(bytes: &[u8], at: usize) -> u32 {
    bytes[at..].first_chunk().map_or(0, |word| u32::from_le_bytes(*word))
}

fn long(bytes: &[u8], at: usize) -> u64 {
    bytes[at..].first_chunk().map_or(0, |long| u64::from_le_bytes(*long))
}

fn put(bytes: &mut [u8], at: usize, word: u32) {
    bytes[at..at + 4].copy_from_slice(&word.to_le_bytes());
}

/// Looks at the image, opens it, and uses the store.
fn examine(disk: Disk<'_>) {
    let arena = arena::shared();
    let before = arena.in_use();
    let mut head = vec![0; RING_AT * BLOCK];
    disk.read(0, &mut head);
    let options = CheckOptions { disk: DISK, size: Bytes(disk.len() as u64), journal: None, depth: Depth::Data };
    let mut look = |_: DiskIndex, at: u64, into: &mut [u8]| {
        let at = usize::try_from(at).unwrap_or(usize::MAX);
        let within = at.checked_add(into.len()).is_some_and(|end| end <= disk.len());
        if within {
            disk.read(at, into);
        }
        within
    };
    forget_foreign(&mut head, &mut |at, page| look(DISK, at, page));
    let known = identify(&head);
    let report = check(&options, &arena, &mut look, &mut |_| ());
    assert_eq!(report.content.identity, known.map(|(identity, _)| identity));
    let sound = report.findings.iter().all(|finding| finding.severity == Severity::Notice);
    if let Ok(mut rig) = Rig::open(disk, &arena) {
        if !sound {
            let _ = (rig.store.copies(), rig.store.usage());
            return;
        }
        look_through(&mut rig, &arena);
        change(&mut rig, &arena);
        let Rig { disk, store, .. } = rig;
        drop(store);
        // What it left is a store.
        if let Ok(mut again) = Rig::open(disk, &arena) {
            look_through(&mut again, &arena);
        }
    }
    assert_eq!(arena.in_use(), before, "all memory is back");
}

/// Asks for everything that can be read.
fn look_through(rig: &mut Rig<'_>, arena: &Arena) {
    for (copy, _) in rig.store.copies() {
        let snapshots = rig.store.snapshots(copy);
        let views = snapshots.into_iter().map(View::Snapshot).take(4);
        for view in views.chain([View::Live]) {
            for from in [0, BLOCKS / 2, BLOCKS - 16] {
                let Some(into) = arena.take(16 * BLOCK, Class::Client) else { continue };
                if let Ok(StoreDone::Read(bytes, crcs)) =
                    rig.run(StoreOp::Read { copy, view, at: range(from, 16), into })
                {
                    assert_eq!(node_store::block_crcs(&bytes), crcs, "what is returned is what the checksums say");
                }
            }
            let _ = rig.run(StoreOp::Extents { copy, view, at: range(0, u32::MAX) });
            let _ = rig.run(StoreOp::Changed { copy, view, above: Stamp::default(), from: Blocks(0) });
        }
        let _ = rig.run(StoreOp::Above { copy });
        let _ = (rig.store.fill_mark(copy), rig.store.used_by(copy));
    }
    let _ = (rig.store.usage(), rig.store.counters());
}

/// Changes what is there, and lets it be folded.
fn change(rig: &mut Rig<'_>, arena: &Arena) {
    let copies: Vec<CopyId> = rig.store.copies().into_iter().map(|(copy, _)| copy).take(4).collect();
    for (n, &copy) in (0u64..).zip(&copies) {
        let known_good = Stamp::default();
        let snapshot = SnapshotId(100 + n);
        let from = Parent { copy, snapshot: SnapshotId(6) };
        let changes = [
            write(arena, copy, range(3, 5), 20 + n),
            write(arena, copy, range(16, 16), 30 + n),
            Some(StoreOp::Zero { copy, stamp: stamp(40 + n), at: range(12, 30), known_good, durable: true }),
            Some(StoreOp::Snapshot { copy, stamp: stamp(50 + n), snapshot, known_good }),
            Some(StoreOp::Share { copy: copies[0], stamp: stamp(60 + n), at: range(0, 20), from, known_good }),
            Some(StoreOp::DropSnapshot { copy, snapshot: SnapshotId(6) }),
            Some(StoreOp::Flatten { copy }),
        ];
        changes.into_iter().flatten().for_each(|op| drop(rig.run(op)));
    }
    rig.rest(Span::seconds(5));
    if let Some(&copy) = copies.last() {
        let _ = rig.run(StoreOp::Delete { copy });
    }
    rig.rest(Span::seconds(5));
}

/// Makes a superblock's checksum right.
fn seal(block: &mut Block) {
    let crc = crc32c::crc32c(&block[SEAL..]);
    put(block, 4, crc);
}

pub(crate) fn superblock(data: &[u8]) {
    let mut input = Input::new(data);
    let which = input.u8() % 3;
    let content = input.bytes(BLOCK - SEAL);
    let mut disk = Disk::new(&IMAGE);
    for (n, at) in SUPERBLOCKS.into_iter().enumerate() {
        if usize::from(which) != n {
            let block = disk.block_mut(at);
            block[SEAL..].fill(0);
            block[SEAL..SEAL + content.len()].copy_from_slice(content);
            seal(block);
        }
    }
    examine(disk);
}

pub(crate) fn superblock_seeds() -> Vec<Vec<u8>> {
    let content = |at: usize| &IMAGE[at * BLOCK + SEAL..][..160];
    (0..3).map(|which| [&[which], content(SUPERBLOCKS[0])].concat()).collect()
}

/// Overwrites bytes: position u24, count u8, the bytes.
pub(crate) fn anywhere(data: &[u8]) {
    let mut input = Input::new(data);
    let mut disk = Disk::new(&IMAGE);
    while !input.is_empty() {
        let [a, b, c] = input.array();
        let at = u32::from_le_bytes([a, b, c, 0]) as usize % disk.len();
        let count = usize::from(input.u8());
        for (at, byte) in (at..disk.len()).zip(input.bytes(count)) {
            disk.block_mut(at / BLOCK)[at % BLOCK] = *byte;
        }
    }
    examine(disk);
}

pub(crate) fn anywhere_seeds() -> Vec<Vec<u8>> {
    let mut seeds = vec![Vec::new()];
    // One bit in each structure's head, by its magic.
    for magic in [b"TRS2", b"TJG2", b"TPG2"] {
        let blocks = (0..IMAGE.len()).step_by(BLOCK).filter(|at| IMAGE[*at..].starts_with(magic));
        for at in blocks.take(3) {
            let [a, b, c, _] = u32::try_from(at + 40).unwrap_or(0).to_le_bytes();
            seeds.push(vec![a, b, c, 1, IMAGE[at + 40] ^ 1]);
        }
    }
    seeds
}

/// A group in the image: its first block, and its head and records.
struct Group {
    at: usize,
    head: &'static [u8],
}

impl Group {
    fn header_blocks(&self) -> usize {
        word(self.head, 56) as usize
    }
    fn records(&self) -> &'static [u8] {
        &self.head[GROUP_HEAD..][..word(self.head, 64) as usize]
    }
    fn sequence(&self) -> u64 {
        long(self.head, 16)
    }
    /// The block behind it.
    fn end(&self) -> usize {
        self.at + self.header_blocks() + word(self.head, 60) as usize
    }
}

/// The image's groups, in the order of the chain.
static GROUPS: LazyLock<Vec<Group>> = LazyLock::new(groups);
/// The blocks of the pages that the image's newest superblock leads to, without their mirrors.
static PAGES: LazyLock<Vec<usize>> = LazyLock::new(pages);

fn groups() -> Vec<Group> {
    let blocks = RING_AT..RING_AT + RING as usize;
    let heads = blocks.map(|at| Group { at, head: &IMAGE[at * BLOCK..] }).filter(|g| g.head.starts_with(b"TJG2"));
    let mut groups: Vec<Group> = heads.collect();
    groups.sort_by_key(Group::sequence);
    groups
}

/// Puts a group behind the last one: the mode, what is XORed into its head (if the mode says so), its records.
pub(crate) fn journal(data: &[u8]) {
    let mut input = Input::new(data);
    let mode = input.u8();
    let mask: [u8; GROUP_HEAD - SEAL] = if mode & 1 == 0 { [0; GROUP_HEAD - SEAL] } else { input.array() };
    let mut records = input.bytes(8192).to_vec();
    let last = GROUPS.last().expect("a journal with groups");
    let echo = if mode & 2 == 0 { [&last.head[..GROUP_HEAD], last.records()].concat() } else { Vec::new() };
    let payload = if mode & 4 == 0 { payload(&mut records) } else { 0 };
    let mut header = vec![0; (GROUP_HEAD + records.len() + echo.len()).next_multiple_of(BLOCK)];
    header[..4].copy_from_slice(b"TJG2");
    header[8..16].copy_from_slice(&DISK_ID.0.to_le_bytes());
    header[16..24].copy_from_slice(&(last.sequence() + 1).to_le_bytes());
    // The same opening wrote both.
    header[24..32].copy_from_slice(&last.head[24..32]);
    header[32..40].copy_from_slice(&last.head[24..32]);
    header[40..48].copy_from_slice(&last.sequence().to_le_bytes());
    header[48..52].copy_from_slice(&last.head[4..8]);
    let small = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
    put(&mut header, 52, small(last.end() - RING_AT));
    let blocks = header.len() / BLOCK;
    let counts = [small(blocks), payload, small(records.len()), small(echo.len())];
    COUNTS.step_by(4).zip(counts).for_each(|(at, count)| put(&mut header, at, count));
    header[GROUP_HEAD..][..records.len()].copy_from_slice(&records);
    header[GROUP_HEAD + records.len()..][..echo.len()].copy_from_slice(&echo);
    header[SEAL..GROUP_HEAD].iter_mut().zip(mask).for_each(|(byte, mask)| *byte ^= mask);
    let crc = crc32c::crc32c(&header[SEAL..]);
    put(&mut header, 4, crc);
    let mut disk = Disk::new(&IMAGE);
    disk.write(last.end() * BLOCK, &header);
    let payload = last.end() + blocks..last.end() + blocks + payload as usize;
    payload.for_each(|n| disk.block_mut(n).fill(PAYLOAD));
    examine(disk);
}

/// What each payload block of a forged group is full of.
const PAYLOAD: u8 = 0x77;

/// The payload blocks that records name, 64 at most, with the checksums that they have.
fn payload(records: &mut [u8]) -> u32 {
    let crc = crc32c::crc32c(&[PAYLOAD; BLOCK]);
    let (mut at, mut count) = (0, 0);
    while let Some(head) = records.get(at..at + 4) {
        let (body, blocks) = (word(head, 0) & 0xffff, word(head, 0) >> 16);
        let Some(crcs) = records.get_mut(at + 4..at + 4 + 4 * blocks as usize) else { break };
        if count + blocks > 64 {
            break;
        }
        crcs.chunks_mut(4).for_each(|to| to.copy_from_slice(&crc.to_le_bytes()));
        count += blocks;
        at += 4 + 4 * blocks as usize + body as usize;
    }
    count
}

pub(crate) fn journal_seeds() -> Vec<Vec<u8>> {
    let mut seeds: Vec<Vec<u8>> = GROUPS.iter().map(|group| [&[0], group.records()].concat()).collect();
    let none = [&[1][..], &[0; GROUP_HEAD - SEAL]].concat();
    let echoless = vec![2];
    seeds.extend([none, echoless]);
    seeds.dedup();
    seeds
}

/// Whether a block is a metadata page.
fn is_page(block: &Block) -> bool {
    block.starts_with(b"TPG2")
}

/// Makes a page's checksum right.
fn page_crc(block: &Block) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&DISK_ID.0.to_le_bytes()), &block[SEAL..])
}

fn pages() -> Vec<usize> {
    let disk = Disk::new(&IMAGE);
    let all: Vec<usize> = (0..META_BLOCKS).filter(|n| is_page(disk.block(*n))).collect();
    let superblock = disk.block(SUPERBLOCKS[0]);
    let named = |by: &Block, crc: u32| (SEAL..BLOCK - 4).any(|at| word(by, at) == crc);
    let mut found: Vec<usize> = Vec::new();
    loop {
        let known = |crc: u32| found.iter().any(|n| word(disk.block(*n), 4) == crc);
        let leads = |crc: u32| {
            named(superblock, crc)
                || named(superblock, crc_of(crc))
                || found.iter().map(|n| disk.block(*n)).any(|page| is_inner(page) && named(page, crc))
        };
        let next = all.iter().map(|n| (*n, word(disk.block(*n), 4))).find(|(_, crc)| !known(*crc) && leads(*crc));
        let Some((next, _)) = next else { return found };
        found.push(next);
    }
}

/// True if it has pointers to other pages: of an array, above level 0.
fn is_inner(block: &Block) -> bool {
    is_page(block) && block[9] > 0
}

/// What the superblock says of a map of pages of one page.
fn crc_of(crc: u32) -> u32 {
    crc32c::crc32c(&crc.to_le_bytes())
}

/// Overwrites bytes of pages: which page u8, position u16, count u8, the bytes. What points to a page, and its mirror, is made to fit.
pub(crate) fn pages_forged(data: &[u8]) {
    let mut input = Input::new(data);
    let mut disk = Disk::new(&IMAGE);
    while !input.is_empty() {
        let page = PAGES[usize::from(input.u8()) % PAGES.len()];
        let at = SEAL + usize::from(input.u16()) % (BLOCK - SEAL);
        let count = usize::from(input.u8());
        let bytes = input.bytes(count.min(BLOCK - at));
        forge(&mut disk, page, at, bytes);
    }
    examine(disk);
}

/// Changes a page in all places where it is.
fn forge(disk: &mut Disk<'_>, page: usize, at: usize, bytes: &[u8]) {
    let old = *disk.block(page);
    let mut new = old;
    new[at..at + bytes.len()].copy_from_slice(bytes);
    let crc = page_crc(&new);
    put(&mut new, 4, crc);
    if new == old {
        return;
    }
    let same: Vec<usize> = (0..META_BLOCKS).filter(|n| disk.block(*n) == &old).collect();
    same.iter().for_each(|n| *disk.block_mut(*n) = new);
    repoint(disk, word(&old, 4), crc, new[9]);
}

/// What names a page of this level by its checksum names the new one, and so on up to the superblocks (always upwards: a page may be
/// forged to name itself); the map's pages are named there by the checksum
/// of their checksums.
fn repoint(disk: &mut Disk<'_>, old: u32, new: u32, level: u8) {
    for n in SUPERBLOCKS {
        let block = disk.block_mut(n);
        for (from, to) in [(old, new), (crc_of(old), crc_of(new))] {
            if let Some(at) = (SEAL..BLOCK - 4).find(|at| word(&block[..], *at) == from) {
                put(block, at, to);
            }
        }
        seal(block);
    }
    let above = |block: &Block| is_page(block) && block[9] > level;
    let parents: Vec<usize> = (0..META_BLOCKS).filter(|n| above(disk.block(*n))).collect();
    for n in parents {
        let block = *disk.block(n);
        if let Some(at) = (28..BLOCK - 4).step_by(8).find(|at| word(&block, *at) == old) {
            forge(disk, n, at, &new.to_le_bytes());
        }
    }
}

pub(crate) fn pages_seeds() -> Vec<Vec<u8>> {
    let pages = (0u8..).zip(PAGES.iter());
    pages.map(|(which, at)| [&[which, 16, 0, 200], &IMAGE[at * BLOCK + SEAL + 16..][..200]].concat()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A forged store that opens: its copies.
    fn copies(disk: Disk<'_>) -> Option<usize> {
        Rig::open(disk, &arena::shared()).ok().map(|rig| rig.store.copies().len())
    }

    #[test]
    fn the_image_has_all_that_can_be_forged_and_is_good() {
        assert_eq!(copies(Disk::new(&IMAGE)), Some(2));
        assert!(GROUPS.len() > 10 && PAGES.len() > 5, "{} groups, {} pages", GROUPS.len(), PAGES.len());
    }

    #[test]
    fn a_page_is_forged_so_that_it_is_believed() {
        let copies_page =
            PAGES.iter().copied().find(|n| word(&IMAGE[n * BLOCK..], 12) == 1 && IMAGE[n * BLOCK + 9] == 0);
        let page = copies_page.expect("the array of copies");
        let mut disk = Disk::new(&IMAGE);
        // The first copy's place says that it has none.
        forge(&mut disk, page, 24, &[0]);
        let known = copies(disk);
        assert_ne!(known, Some(2), "it was looked at");
        let mut disk = Disk::new(&IMAGE);
        disk.block_mut(page)[24] = 0;
        assert_eq!(copies(disk), Some(2), "unsealed, it is not believed: the mirror is");
    }
}
