//! What is measured.

use crate::options::Options;

/// One load.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Case {
    pub(crate) name: &'static str,
    /// fio's word.
    pub(crate) pattern: &'static str,
    pub(crate) bytes: usize,
    pub(crate) depth: usize,
    /// How many volumes share the depth; only Trine has more than one.
    pub(crate) volumes: usize,
    /// How many clients do; more than one of Trine's share a volume, each with a range of its own.
    pub(crate) clients: usize,
    /// A flush after every write.
    pub(crate) flush: bool,
}

impl Case {
    pub(crate) fn writes(&self) -> bool {
        self.pattern != "randread" && self.pattern != "read"
    }

    /// Exports that it needs of Trine's.
    pub(crate) fn targets(&self) -> usize {
        self.volumes.max(self.clients)
    }

    /// The floor knows nothing else.
    pub(crate) fn for_floor(&self) -> bool {
        !self.flush && self.volumes == 1 && self.pattern != "randrw"
    }
}

const fn case(name: &'static str, pattern: &'static str, bytes: usize, depth: usize) -> Case {
    Case { name, pattern, bytes, depth, volumes: 1, clients: 1, flush: false }
}

const KIB: usize = 1 << 10;

/// Before all else: what was never written has no place yet.
pub(crate) const FILL: Case = case("fill", "write", KIB * KIB, 4);

const ALL: [Case; 16] = [
    case("write-1", "randwrite", 4 * KIB, 1),
    case("write-32", "randwrite", 4 * KIB, 32),
    case("write-128", "randwrite", 4 * KIB, 128),
    case("read-1", "randread", 4 * KIB, 1),
    case("read-32", "randread", 4 * KIB, 32),
    case("read-128", "randread", 4 * KIB, 128),
    case("mixed-32", "randrw", 4 * KIB, 32),
    Case { flush: true, ..case("flush-1", "randwrite", 4 * KIB, 1) },
    Case { flush: true, ..case("flush-32", "randwrite", 4 * KIB, 32) },
    case("sequential-write-128k", "write", 128 * KIB, 16),
    case("sequential-read-128k", "read", 128 * KIB, 16),
    case("sequential-write-1m", "write", KIB * KIB, 8),
    case("sequential-read-1m", "read", KIB * KIB, 8),
    Case { volumes: 2, ..case("write-128-2-volumes", "randwrite", 4 * KIB, 128) },
    Case { volumes: 4, ..case("write-128-4-volumes", "randwrite", 4 * KIB, 128) },
    Case { volumes: 4, ..case("read-128-4-volumes", "randread", 4 * KIB, 128) },
];

/// The same load of more and more volumes, and of more and more clients of one; see `many`.
const GROWTH: [Case; 6] = [
    case("growth-volumes-1", "randwrite", 4 * KIB, 512),
    Case { volumes: 8, ..case("growth-volumes-8", "randwrite", 4 * KIB, 512) },
    Case { volumes: 64, ..case("growth-volumes-64", "randwrite", 4 * KIB, 512) },
    case("growth-clients-1", "randwrite", 4 * KIB, 512),
    Case { clients: 16, ..case("growth-clients-16", "randwrite", 4 * KIB, 512) },
    Case { clients: 64, ..case("growth-clients-64", "randwrite", 4 * KIB, 512) },
];
/// The name of what is no load: memory of nodes with a large volume.
const CAPACITY: &str = "capacity";

/// What was chosen: by names, or, if nothing is called so, by a part of them.
pub(crate) struct Chosen {
    pub(crate) cases: Vec<Case>,
    pub(crate) growth: Vec<Case>,
    pub(crate) capacity: bool,
}

impl Chosen {
    pub(crate) fn by(options: &Options) -> Self {
        let names = || ALL.iter().chain(&GROWTH).map(|case| case.name).chain([CAPACITY]);
        let wanted = |name: &str| {
            let is = |part: &String| {
                if names().any(|known| known == part) { name == part } else { name.contains(part.as_str()) }
            };
            options.only.is_empty() || options.only.iter().any(is)
        };
        let of = |cases: &[Case]| cases.iter().filter(|case| wanted(case.name)).copied().collect();
        Self { cases: of(&ALL), growth: of(&GROWTH), capacity: wanted(CAPACITY) }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.cases.is_empty() && self.growth.is_empty() && !self.capacity
    }
}
