//! The machine's memory nodes (NUMA), and on which of them memory lies.
//!
//! What is said here is a wish: a node that is full gives way to another, and a kernel that refuses changes nothing but speed. On a
//! machine with one node nothing is asked of it.

use crate::mapping::Mapping;
use nix::errno::Errno;
use std::fs;
use std::ops::RangeInclusive;

const NODES: &str = "/sys/devices/system/node";
/// Node numbers that a mask has room for: what Linux can be built for at most.
const MAX_NODES: usize = 1024;
const WORD: usize = libc::c_ulong::BITS as usize;

/// Where an arena's memory should be.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Placement {
    /// Wherever the kernel puts it: where each page is first touched.
    #[default]
    Anywhere,
    /// As much of it on each memory node: for a thread that may run anywhere.
    Spread,
    /// On the node of this processor: for a thread that runs there.
    Near(usize),
}

/// The nodes that have memory, in order; more than one, or none.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct MemoryNodes(Vec<usize>);

/// Bytes on one memory node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OnNode {
    /// Its number.
    pub node: usize,
    /// How many.
    pub bytes: u64,
}

/// `0-2,5`: what the kernel writes of sets.
fn numbers(text: &str) -> impl Iterator<Item = usize> + '_ {
    let range = |item: &str| -> Option<RangeInclusive<usize>> {
        let (first, last) = item.split_once('-').unwrap_or((item, item));
        Some(first.parse().ok()?..=last.parse().ok()?)
    };
    text.trim().split(',').filter_map(range).flatten().take(MAX_NODES)
}

impl MemoryNodes {
    /// As the kernel lists them. None if there is one, or the kernel knows of none: then there is no choice.
    pub fn read() -> Self {
        let nodes: Vec<usize> = fs::read_to_string(format!("{NODES}/has_memory"))
            .map(|text| numbers(&text).filter(|node| *node < MAX_NODES).collect())
            .unwrap_or_default();
        Self(if nodes.len() > 1 { nodes } else { Vec::new() })
    }

    /// Their numbers.
    pub fn numbers(&self) -> &[usize] {
        &self.0
    }

    /// Free bytes of each.
    pub fn free(&self) -> Vec<OnNode> {
        let free = |node: usize| {
            let text = fs::read_to_string(format!("{NODES}/node{node}/meminfo")).ok()?;
            let line = text.lines().find_map(|line| line.split_once("MemFree:"))?;
            line.1.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()
        };
        self.0.iter().map(|&node| OnNode { node, bytes: free(node).unwrap_or(0) << 10 }).collect()
    }

    /// The node of a processor.
    fn of_cpu(&self, cpu: usize) -> Option<usize> {
        let has = |node: &usize| {
            let cpus = fs::read_to_string(format!("{NODES}/node{node}/cpulist")).unwrap_or_default();
            numbers(&cpus).any(|own| own == cpu)
        };
        self.0.iter().copied().find(has)
    }

    /// Has memory that nobody has touched yet put there.
    pub(crate) fn place(&self, mapping: &Mapping, placement: Placement) {
        let (mode, mask) = match placement {
            _ if self.0.is_empty() => return,
            Placement::Anywhere => return,
            Placement::Spread => (libc::MPOL_INTERLEAVE, mask(&self.0)),
            // A processor of a node without memory: the kernel knows which is nearest.
            Placement::Near(cpu) => match self.of_cpu(cpu) {
                Some(node) => (libc::MPOL_PREFERRED, mask(&[node])),
                None => return,
            },
        };
        mapping.bind(mode, &mask, MAX_NODES + 1);
    }

    /// Does something whose memory the kernel should take from one node.
    pub(crate) fn on<T>(&self, node: Option<usize>, act: impl FnOnce() -> T) -> T {
        let asked = node.is_some_and(|node| policy(libc::MPOL_PREFERRED, Some(&mask(&[node]))).is_ok());
        let done = act();
        if asked {
            // A thread that was given a policy can be given the usual one again.
            let _ = policy(libc::MPOL_DEFAULT, None);
        }
        done
    }
}

type Mask = [libc::c_ulong; MAX_NODES / WORD];

fn mask(nodes: &[usize]) -> Mask {
    let mut mask = [0; MAX_NODES / WORD];
    for node in nodes {
        mask[node / WORD] |= 1 << (node % WORD);
    }
    mask
}

/// The calling thread's memory policy.
fn policy(mode: libc::c_int, mask: Option<&Mask>) -> Result<(), Errno> {
    let (words, bits) = mask.map_or((std::ptr::null(), 0), |mask| (mask.as_ptr(), MAX_NODES + 1));
    // SAFETY: the kernel reads as many bits less one from the mask, which lives until it returns, or none from a null one.
    Errno::result(unsafe { libc::syscall(libc::SYS_set_mempolicy, mode, words, bits) }).map(drop)
}

/// Bytes of this process that are in memory now, by node: its whole address space. Empty where there is one node.
pub fn resident() -> Vec<OnNode> {
    let nodes = MemoryNodes::read();
    let maps =
        if nodes.0.is_empty() { String::new() } else { fs::read_to_string("/proc/self/numa_maps").unwrap_or_default() };
    nodes.0.iter().map(|&node| OnNode { node, bytes: on_node(&maps, node) }).collect()
}

/// A line for each mapping; `N1=64` are pages on node 1, and `kernelpagesize_kB=4` is how large they are.
fn on_node(maps: &str, node: usize) -> u64 {
    let of = |line: &str| {
        let value = |name: &str| line.split(' ').find_map(|word| word.strip_prefix(name)?.parse::<u64>().ok());
        Some(value(&format!("N{node}="))? * (value("kernelpagesize_kB=")? << 10))
    };
    maps.lines().filter_map(of).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_are_read_as_the_kernel_writes_them() {
        assert_eq!(numbers("0-2,5\n").collect::<Vec<_>>(), [0, 1, 2, 5]);
        assert_eq!(numbers("0\n").collect::<Vec<_>>(), [0]);
        assert_eq!(numbers("\n").count(), 0);
        assert_eq!((mask(&[0, 65])[0], mask(&[0, 65])[1]), (1, 2));
    }

    #[test]
    fn bytes_are_counted_on_their_node_whatever_the_size_of_pages() {
        let maps = "7f00 prefer:1 anon=3 dirty=3 N0=1 N1=2 kernelpagesize_kB=4\n\
                    7f10 interleave:0-1 file=/x huge anon=2 N1=2 kernelpagesize_kB=2048\n7f20 default\n";
        assert_eq!((on_node(maps, 0), on_node(maps, 1), on_node(maps, 2)), (4096, 2 * 4096 + (4 << 20), 0));
    }

    /// Whatever the machine, with or without nodes: memory that was placed is memory.
    #[test]
    fn what_was_placed_can_be_used() {
        let nodes = MemoryNodes::read();
        for placement in [Placement::Anywhere, Placement::Spread, Placement::Near(0)] {
            let mapping = Mapping::heap(std::num::NonZeroUsize::new(1 << 20).unwrap(), false).unwrap();
            nodes.place(&mapping, placement);
        }
        assert_eq!(nodes.on(nodes.numbers().first().copied(), || vec![7_u8; 1 << 20][9]), 7);
        assert_eq!(resident().len(), nodes.numbers().len());
    }
}
