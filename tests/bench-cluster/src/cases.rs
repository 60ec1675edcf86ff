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
    /// A flush after every write.
    pub(crate) flush: bool,
}

impl Case {
    pub(crate) fn writes(&self) -> bool {
        self.pattern != "randread" && self.pattern != "read"
    }

    /// The floor knows nothing else.
    pub(crate) fn for_floor(&self) -> bool {
        !self.flush && self.volumes == 1 && self.pattern != "randrw"
    }
}

const fn case(name: &'static str, pattern: &'static str, bytes: usize, depth: usize) -> Case {
    Case { name, pattern, bytes, depth, volumes: 1, flush: false }
}

const KIB: usize = 1 << 10;

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

/// Those that were chosen: by their names, or, if nothing is called so, by a part of them.
pub(crate) fn chosen(options: &Options) -> Vec<Case> {
    let wanted = |case: &Case, part: &str| match ALL.iter().any(|case| case.name == part) {
        true => case.name == part,
        false => case.name.contains(part),
    };
    let only = &options.only;
    ALL.into_iter().filter(|case| only.is_empty() || only.iter().any(|part| wanted(case, part))).collect()
}
