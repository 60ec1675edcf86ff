//! Huge pages that the administrator reserved: how many there are, and how many it would take.

use std::fs;

/// Huge pages are this big on every machine that we run on; an arena on them is rounded up to it.
pub(crate) const HUGE_PAGE: usize = 2 << 20;

/// Where the kernel counts them, whatever its default size is.
const COUNTS: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB";

/// Reserved huge pages of this machine, of 2 MiB each.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct HugePages {
    /// Reserved by the administrator.
    pub total: u64,
    /// Neither in use nor promised to anybody.
    pub free: u64,
}

/// Not enough of them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "{needed} huge pages of 2 MiB are needed, and {} of the {} reserved ones are free: reserve more with `sysctl vm.nr_hugepages={}`, or use ordinary memory",
    .there_are.free, .there_are.total, self.reserve()
)]
pub struct TooFewHugePages {
    /// How many it takes.
    pub needed: u64,
    /// What there is.
    pub there_are: HugePages,
}

impl HugePages {
    /// The size of one.
    pub const BYTES: u64 = HUGE_PAGE as u64;

    /// As the kernel counts them now; none if it knows no huge pages.
    pub fn read() -> Self {
        let count = |name: &str| {
            let text = fs::read_to_string(format!("{COUNTS}/{name}")).unwrap_or_default();
            text.trim().parse::<u64>().unwrap_or(0)
        };
        Self { total: count("nr_hugepages"), free: count("free_hugepages").saturating_sub(count("resv_hugepages")) }
    }

    /// How many an arena of `bytes` takes.
    pub fn for_bytes(bytes: usize) -> u64 {
        bytes.div_ceil(HUGE_PAGE) as u64
    }

    /// `Err` if fewer than `needed` are free. Others may take them in between: the arena asks the kernel.
    pub fn check(self, needed: u64) -> Result<(), TooFewHugePages> {
        if self.free < needed { Err(TooFewHugePages { needed, there_are: self }) } else { Ok(()) }
    }
}

impl TooFewHugePages {
    /// How many must be reserved: those that others use, and ours.
    pub fn reserve(&self) -> u64 {
        let HugePages { total, free } = self.there_are;
        total.saturating_sub(free) + self.needed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_to_reserve_counts_what_others_use() {
        let there_are = HugePages { total: 100, free: 30 };
        assert_eq!(there_are.check(30), Ok(()));
        let few = there_are.check(128).unwrap_err();
        assert_eq!(few.reserve(), 198);
        let said = few.to_string();
        assert!(said.contains("vm.nr_hugepages=198") && said.contains("30 of the 100"), "{said}");
        assert_eq!((HugePages::for_bytes(1), HugePages::for_bytes(256 << 20)), (1, 128));
    }
}
