//! What rots on the nodes' disks, and where it is found there.

use super::{Cluster, block};
use conductor_model::BLOCK;

/// A metadata page of a store's, as it is on the disk (docs/disk-format.md).
fn is_page(block: &[u8]) -> bool {
    block.starts_with(b"TPG2") && block[8] == 1
}

/// The array that a metadata page belongs to.
fn array(page: &[u8]) -> u32 {
    u32::from_le_bytes(page[12..16].try_into().unwrap())
}

impl Cluster {
    /// Where a node's disk holds such blocks, in bytes.
    fn find_blocks(&mut self, node: usize, such: impl Fn(&[u8]) -> bool) -> Vec<u64> {
        let disk = self.disks[node];
        let size = usize::try_from(self.w.disk(disk).bytes).unwrap();
        let bytes = self.w.disk_bytes(disk, 0, size);
        let blocks = bytes.chunks_exact(BLOCK).zip(0u64..).filter(|(block, _)| such(block));
        blocks.map(|(_, n)| n * BLOCK as u64).collect()
    }

    /// Where a node's disk holds exactly this block.
    pub fn find(&mut self, node: usize, block: &[u8]) -> Vec<u64> {
        self.find_blocks(node, |found| found == block)
    }

    /// Where a node's disk holds its store's metadata pages, and where their second mirrors.
    pub fn find_pages(&mut self, node: usize) -> (Vec<u64>, Vec<u64>) {
        let mut first = self.find_blocks(node, is_page);
        let second = first.split_off(first.len() / 2);
        (first, second)
    }

    /// Flips a bit of this byte of a node's disk.
    pub fn flip(&mut self, node: usize, at: u64, bit: u8) {
        self.w.rot(self.disks[node], at, bit);
    }

    /// Flips a bit wherever a node's disk has a block full of this byte.
    pub fn rot(&mut self, node: usize, of: u8) {
        let places = self.find(node, &block(of));
        assert!(!places.is_empty(), "node {node} has it");
        places.into_iter().for_each(|at| self.flip(node, at + 17, 3));
    }

    /// A node dies, all metadata pages of these arrays rot on its disk, in both mirrors, and it is back.
    pub fn rot_pages(&mut self, node: usize, of: impl Fn(u32) -> bool) {
        self.w.kill(self.nodes[node]);
        let pages = self.find_blocks(node, |block| is_page(block) && of(array(block)));
        assert!(pages.len() >= 2, "node {node} has such pages");
        pages.into_iter().for_each(|at| self.flip(node, at + 600, 3));
        self.w.restart(self.nodes[node]);
    }
}
