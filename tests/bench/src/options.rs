//! What a person may choose.

use anyhow::{Context, bail};
use std::path::PathBuf;
use std::time::Duration;

pub(crate) const USAGE: &str =
    "usage: bench [--quick] [-o table|json] [--file PATH] [--only random,sequential,snapshot,restart]
  --quick   a quarter of the data and shorter rounds: bytes are as good, rates are not held to their limits";

/// One thing that is measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Part {
    Random,
    Sequential,
    Snapshot,
    Restart,
}

/// How large, how long.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    pub(crate) quick: bool,
    pub(crate) json: bool,
    pub(crate) file: PathBuf,
    pub(crate) parts: Vec<Part>,
}

impl Options {
    pub(crate) fn parse(mut args: impl Iterator<Item = String>) -> anyhow::Result<Self> {
        let mut options = Self {
            quick: false,
            json: false,
            file: PathBuf::from("target/bench/disk"),
            parts: vec![Part::Random, Part::Sequential, Part::Snapshot, Part::Restart],
        };
        while let Some(arg) = args.next() {
            let mut value = || args.next().with_context(|| format!("{arg} wants a value\n{USAGE}"));
            match arg.as_str() {
                "--quick" => options.quick = true,
                "-o" => match value()?.as_str() {
                    "json" => options.json = true,
                    "table" => options.json = false,
                    other => bail!("no output is called {other:?}\n{USAGE}"),
                },
                "--file" => options.file = PathBuf::from(value()?),
                "--only" => {
                    options.parts = value()?.split(',').map(part).collect::<anyhow::Result<_>>()?;
                }
                _ => bail!("{USAGE}"),
            }
        }
        Ok(options)
    }

    pub(crate) fn wants(&self, part: Part) -> bool {
        self.parts.contains(&part)
    }

    /// Bytes of the volume that is written to.
    pub(crate) fn volume(&self) -> u64 {
        if self.quick { 1 << 30 } else { 4 << 30 }
    }

    /// Bytes of the journal: the largest there is, or one in proportion.
    pub(crate) fn journal(&self) -> u64 {
        if self.quick { 256 << 20 } else { 1 << 30 }
    }

    /// Places for metadata pages, far more than are needed: 1/16 of the volume, and their mirrors.
    pub(crate) fn places(&self) -> u64 {
        self.volume() >> 16
    }

    /// Bytes of the store: journal, metadata, the volume, as much again behind a snapshot, and what is set aside for twice as much of
    /// small writes, so that it is never nearly full.
    pub(crate) fn store(&self) -> u64 {
        self.journal() + self.volume() / 8 * 35
    }

    /// Bytes behind the store in the same file, for fio.
    pub(crate) fn raw(&self) -> u64 {
        self.volume()
    }

    /// Rounds of engine and fio, one after the other.
    pub(crate) fn rounds(&self) -> usize {
        if self.quick { 2 } else { 5 }
    }

    /// How long one of them is.
    pub(crate) fn round(&self) -> Duration {
        Duration::from_secs(if self.quick { 3 } else { 6 })
    }

    /// How long is written before a snapshot, and behind it.
    pub(crate) fn around_snapshot(&self) -> Duration {
        Duration::from_secs(if self.quick { 3 } else { 10 })
    }
}

fn part(name: &str) -> anyhow::Result<Part> {
    Ok(match name {
        "random" => Part::Random,
        "sequential" => Part::Sequential,
        "snapshot" => Part::Snapshot,
        "restart" => Part::Restart,
        other => bail!("nothing that is measured is called {other:?}\n{USAGE}"),
    })
}
