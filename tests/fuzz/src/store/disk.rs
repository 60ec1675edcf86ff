//! A small disk in memory: an image that all inputs share, and on top of it what one input changed.

use conductor_model::BLOCK;
use driver::{Done, Op};
use std::collections::{BTreeMap, VecDeque};

/// A block of the disk.
pub(crate) type Block = [u8; BLOCK];

pub(crate) struct Disk<'a> {
    base: &'a [u8],
    changed: BTreeMap<usize, Box<Block>>,
    waiting: VecDeque<Op>,
}

impl<'a> Disk<'a> {
    pub(crate) fn new(base: &'a [u8]) -> Self {
        Self { base, changed: BTreeMap::new(), waiting: VecDeque::new() }
    }

    pub(crate) fn len(&self) -> usize {
        self.base.len()
    }

    pub(crate) fn block(&self, n: usize) -> &Block {
        let base = || self.base[n * BLOCK..].first_chunk().expect("within the disk");
        self.changed.get(&n).map(|block| &**block).unwrap_or_else(base)
    }

    pub(crate) fn block_mut(&mut self, n: usize) -> &mut Block {
        let base = self.base;
        let copied = || Box::new(*base[n * BLOCK..].first_chunk().expect("within the disk"));
        self.changed.entry(n).or_insert_with(copied)
    }

    pub(crate) fn read(&self, at: usize, into: &mut [u8]) {
        let blocks = (at / BLOCK..).zip(into.chunks_mut(BLOCK));
        blocks.for_each(|(n, to)| to.copy_from_slice(&self.block(n)[..to.len()]));
    }

    pub(crate) fn write(&mut self, at: usize, bytes: &[u8]) {
        let blocks = (at / BLOCK..).zip(bytes.chunks(BLOCK));
        blocks.for_each(|(n, from)| self.block_mut(n)[..from.len()].copy_from_slice(from));
    }

    /// All of it.
    pub(crate) fn image(&self) -> Vec<u8> {
        let mut image = vec![0; self.len()];
        self.read(0, &mut image);
        image
    }

    /// Whatever is read, nobody works beside the disk.
    pub(crate) fn submit(&mut self, op: Op) {
        let (at, len) = match &op {
            Op::DiskRead { at, len, .. } => (*at, *len as u64),
            Op::DiskWrite { at, parts, .. } => (*at, parts.iter().map(|part| part.len as u64).sum()),
            Op::DiskPunch { at, len, .. } => (*at, *len),
            _ => (0, 0),
        };
        assert!(at.is_multiple_of(BLOCK as u64) && len.is_multiple_of(BLOCK as u64), "{op:?}");
        assert!(at.checked_add(len).is_some_and(|end| end <= self.len() as u64), "beyond the disk: {op:?}");
        self.waiting.push_back(op);
    }

    /// Carries out the operation that waits longest.
    pub(crate) fn step(&mut self) -> Option<Done> {
        let mut op = self.waiting.pop_front()?;
        let place = |at: u64| usize::try_from(at).expect("within the disk");
        let count = match &mut op {
            Op::DiskRead { at, into, from, len, .. } => {
                self.read(place(*at), &mut into[*from..*from + *len]);
                *len
            }
            Op::DiskWrite { at, parts, .. } => {
                let bytes: Vec<u8> = parts.iter().flat_map(|part| part.bytes()).copied().collect();
                self.write(place(*at), &bytes);
                bytes.len()
            }
            Op::DiskPunch { at, len, .. } => {
                (place(*at)..place(*at + *len)).step_by(BLOCK).for_each(|at| self.block_mut(at / BLOCK).fill(0xee));
                0
            }
            _ => 0,
        };
        Some(Done { op, result: Ok(u32::try_from(count).unwrap_or(u32::MAX)) })
    }
}
