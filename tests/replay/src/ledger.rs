//! What was begun and what was acknowledged, in the order in which it happened, kept outside the disks under test.
//!
//! A line per event, written before the deed begins or after it was acknowledged:
//!
//! ```text
//! b ID SECTOR SECTORS   a write of that many sectors of 512 bytes           z ID SECTOR SECTORS   the same range is made zeros
//! c ID BYTES            a file of its own is written and synced             u ID FILE             the file of that id is removed
//! g ID BYTES            the growing file is extended to that length         r ID BYTES            the current file is replaced
//! e ID                  acknowledged                                        x ID                  answered with an error
//! m NAME, M NAME        a mark is being set; it is set
//! ```

use anyhow::{Context, Result, bail};
use std::collections::HashSet;
use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::sync::Mutex;

/// A deed, with the number that decides its content.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Begun {
    /// Numbers rise in the order of beginning.
    pub id: u64,
    /// What is done.
    pub deed: Deed,
}

/// What is done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Deed {
    /// Sectors are written.
    Write {
        /// The first one.
        sector: u64,
        /// How many.
        sectors: u64,
    },
    /// Sectors are made zeros.
    Zero {
        /// The first one.
        sector: u64,
        /// How many.
        sectors: u64,
    },
    /// A file is created.
    Create {
        /// Its length.
        bytes: u64,
    },
    /// A file is removed.
    Remove {
        /// The id of its creation.
        file: u64,
    },
    /// The growing file is extended.
    Grow {
        /// To this length.
        bytes: u64,
    },
    /// The current file is replaced by renaming another one over it.
    Replace {
        /// The new one's length.
        bytes: u64,
    },
}

/// The ledger while it is written; shared by all that write.
pub struct Ledger {
    inner: Mutex<Inner>,
}

struct Inner {
    file: File,
    next: u64,
    acknowledged: u64,
}

impl Ledger {
    /// A new one.
    ///
    /// # Errors
    /// The file cannot be made.
    pub fn create(path: &Path) -> Result<Self> {
        let file = File::create(path).with_context(|| format!("cannot make {}", path.display()))?;
        Ok(Self { inner: Mutex::new(Inner { file, next: 1, acknowledged: 0 }) })
    }

    fn with<T>(&self, act: impl FnOnce(&mut Inner) -> Result<T>) -> Result<T> {
        let Ok(mut inner) = self.inner.lock() else { bail!("another thread failed while it wrote to the ledger") };
        act(&mut inner)
    }

    /// Notes that a deed begins, and numbers it.
    ///
    /// # Errors
    /// The ledger cannot be written.
    pub fn begin(&self, deed: Deed) -> Result<u64> {
        self.with(|inner| {
            let id = inner.next;
            inner.next += 1;
            let line = match deed {
                Deed::Write { sector, sectors } => format!("b {id} {sector} {sectors}\n"),
                Deed::Zero { sector, sectors } => format!("z {id} {sector} {sectors}\n"),
                Deed::Create { bytes } => format!("c {id} {bytes}\n"),
                Deed::Remove { file } => format!("u {id} {file}\n"),
                Deed::Grow { bytes } => format!("g {id} {bytes}\n"),
                Deed::Replace { bytes } => format!("r {id} {bytes}\n"),
            };
            inner.file.write_all(line.as_bytes()).context("cannot write the ledger")?;
            Ok(id)
        })
    }

    /// Notes that a deed was acknowledged.
    ///
    /// # Errors
    /// The ledger cannot be written.
    pub fn acknowledge(&self, id: u64) -> Result<()> {
        self.with(|inner| {
            inner.acknowledged += 1;
            inner.file.write_all(format!("e {id}\n").as_bytes()).context("cannot write the ledger")
        })
    }

    /// Notes that a deed was answered with an error: it may have been done or not.
    ///
    /// # Errors
    /// The ledger cannot be written.
    pub fn fail(&self, id: u64) -> Result<()> {
        self.with(|inner| inner.file.write_all(format!("x {id}\n").as_bytes()).context("cannot write the ledger"))
    }

    /// Notes that a mark is being set, or is set.
    ///
    /// # Errors
    /// The ledger cannot be written.
    pub fn mark(&self, name: &str, set: bool) -> Result<()> {
        let word = if set { 'M' } else { 'm' };
        self.with(|inner| {
            inner.file.write_all(format!("{word} {name}\n").as_bytes()).context("cannot write the ledger")
        })
    }

    /// Deeds acknowledged so far.
    ///
    /// # Errors
    /// A thread failed while it wrote to the ledger.
    pub fn acknowledged(&self) -> Result<u64> {
        self.with(|inner| Ok(inner.acknowledged))
    }
}

/// A moment of which a disk may tell: what it must hold, and what it may.
pub struct Moment {
    /// All deeds begun before the mark was set, in their order. None that began later can be there.
    pub begun: Vec<Begun>,
    acknowledged: HashSet<u64>,
    failed: HashSet<u64>,
}

impl Moment {
    /// The moment of a mark; `None` is the end, when nothing was under way.
    ///
    /// # Errors
    /// The ledger cannot be read, or lacks the mark.
    pub fn read(path: &Path, mark: Option<&str>) -> Result<Self> {
        let text = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        let mut moment = Self { begun: Vec::new(), acknowledged: HashSet::new(), failed: HashSet::new() };
        let mut sure = true;
        for line in text.lines() {
            let words: Vec<&str> = line.split(' ').collect();
            match words[..] {
                ["m", name] if Some(name) == mark => sure = false,
                ["M", name] if Some(name) == mark => return Ok(moment),
                ["m" | "M", _] => {}
                ["e", id] if sure => drop(moment.acknowledged.insert(id.parse()?)),
                ["e", _] => {}
                ["x", id] => drop(moment.failed.insert(id.parse()?)),
                [word, id, ref numbers @ ..] => {
                    let deed = deed(word, numbers).with_context(|| format!("{}: a line is: {line}", path.display()))?;
                    moment.begun.push(Begun { id: id.parse()?, deed });
                }
                _ => bail!("{}: a line is: {line}", path.display()),
            }
        }
        match mark {
            None => Ok(moment),
            Some(mark) => bail!("{} has no mark {mark}", path.display()),
        }
    }

    /// Whether a deed was acknowledged before the mark.
    #[must_use]
    pub fn is_sure(&self, id: u64) -> bool {
        self.acknowledged.contains(&id)
    }

    /// Whether a deed was answered with an error.
    #[must_use]
    pub fn is_failed(&self, id: u64) -> bool {
        self.failed.contains(&id)
    }

    /// Deeds acknowledged before the mark.
    #[must_use]
    pub fn acknowledged(&self) -> usize {
        self.acknowledged.len()
    }
}

fn deed(word: &str, numbers: &[&str]) -> Result<Deed> {
    let numbers = numbers.iter().map(|number| number.parse()).collect::<Result<Vec<u64>, _>>()?;
    Ok(match (word, &numbers[..]) {
        ("b", &[sector, sectors]) => Deed::Write { sector, sectors },
        ("z", &[sector, sectors]) => Deed::Zero { sector, sectors },
        ("c", &[bytes]) => Deed::Create { bytes },
        ("u", &[file]) => Deed::Remove { file },
        ("g", &[bytes]) => Deed::Grow { bytes },
        ("r", &[bytes]) => Deed::Replace { bytes },
        _ => bail!("no deed is called {word}"),
    })
}
