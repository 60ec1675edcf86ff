//! What a person may choose, and what this program says to itself when it starts the floor's processes.

use anyhow::{Context, Result, bail};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

const USAGE: &str = "usage: bench-cluster [--quick] [-o table|json] [--rounds N] [--seconds N] [--only NAME,…] [--on ram|file] [--pin] [--plots DIR]
  --quick    two rounds of two seconds: to see that it works; no limit is held
  --only     cases by their names, or parts of names: write-32, read, sequential, growth, capacity, …
  --on       disks in memory, or files under target/; both unless said
  --pin      every process on one core, fio too
  --plots    where SVG plots and the JSON of this run are put";

/// Most rounds and seconds.
const MOST: u64 = 1000;

/// What this process is.
pub(crate) enum Mode {
    Bench(Options),
    FloorNode(FloorNode),
    FloorLoad(FloorLoad),
    Vm(Vm),
}

/// What disks are made of.
#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Medium {
    Ram,
    File,
}

impl Medium {
    pub(crate) fn name(self) -> &'static str {
        if self == Self::Ram { "ram" } else { "file" }
    }

    /// Where disks of it lie.
    pub(crate) fn dir(self) -> PathBuf {
        PathBuf::from(if self == Self::Ram { "/dev/shm" } else { "target/bench" })
    }
}

/// A run of the bench.
pub(crate) struct Options {
    pub(crate) quick: bool,
    pub(crate) json: bool,
    pub(crate) rounds: usize,
    pub(crate) time: Duration,
    pub(crate) only: Vec<String>,
    pub(crate) media: Vec<Medium>,
    pub(crate) pin: bool,
    pub(crate) plots: Option<PathBuf>,
}

/// The judge of what was measured in a guest.
pub(crate) struct Vm {
    pub(crate) json: bool,
    /// Lines of `PEER DEPTH RATE`.
    pub(crate) rates: PathBuf,
}

/// A server of the floor.
pub(crate) struct FloorNode {
    pub(crate) listen: SocketAddr,
    pub(crate) disk: PathBuf,
    /// Who connects; when all of them have gone away it is over.
    pub(crate) clients: usize,
    /// The others, if it is the primary.
    pub(crate) replicas: Vec<SocketAddr>,
}

/// A client of the floor.
pub(crate) struct FloorLoad {
    pub(crate) to: SocketAddr,
    pub(crate) write: bool,
    pub(crate) bytes: usize,
    pub(crate) depth: usize,
    pub(crate) time: Duration,
}

impl Options {
    pub(crate) fn parse(args: impl Iterator<Item = String>) -> Result<Mode> {
        let args: Vec<String> = args.collect();
        match args.first().map(String::as_str) {
            Some("floor-node") => {
                let [listen, disk, clients, replicas @ ..] = &args[1..] else {
                    bail!("floor-node LISTEN DISK CLIENTS REPLICA…")
                };
                let replicas = replicas.iter().map(|at| Ok(at.parse()?)).collect::<Result<_>>()?;
                let (listen, clients) = (listen.parse()?, clients.parse()?);
                Ok(Mode::FloorNode(FloorNode { listen, disk: disk.into(), clients, replicas }))
            }
            Some("floor-load") => {
                let [to, what, bytes, depth, ms] = &args[1..] else { bail!("floor-load TO write|read BYTES DEPTH MS") };
                Ok(Mode::FloorLoad(FloorLoad {
                    to: to.parse()?,
                    write: what == "write",
                    bytes: bytes.parse()?,
                    depth: depth.parse()?,
                    time: Duration::from_millis(ms.parse()?),
                }))
            }
            Some("vm") => {
                let (rates, json) = match &args[1..] {
                    [rates] => (rates, false),
                    [rates, flag, how] if flag == "-o" && how == "json" => (rates, true),
                    _ => bail!("vm RATES [-o json]"),
                };
                Ok(Mode::Vm(Vm { json, rates: rates.into() }))
            }
            _ => Self::bench(args.into_iter()).map(Mode::Bench),
        }
    }

    fn bench(mut args: impl Iterator<Item = String>) -> Result<Self> {
        let mut options = Self {
            quick: false,
            json: false,
            rounds: 3,
            time: Duration::from_secs(4),
            only: Vec::new(),
            media: vec![Medium::Ram, Medium::File],
            pin: false,
            plots: None,
        };
        while let Some(arg) = args.next() {
            let mut value = || args.next().with_context(|| format!("{arg} wants a value\n{USAGE}"));
            match arg.as_str() {
                "--quick" => (options.quick, options.rounds, options.time) = (true, 2, Duration::from_secs(2)),
                "-o" => match value()?.as_str() {
                    "json" => options.json = true,
                    "table" => options.json = false,
                    other => bail!("no output is called {other:?}\n{USAGE}"),
                },
                "--rounds" => options.rounds = usize::try_from(number(&value()?)?)?,
                "--seconds" => options.time = Duration::from_secs(number(&value()?)?),
                "--only" => options.only = value()?.split(',').map(str::to_owned).collect(),
                "--on" => {
                    options.media = vec![match value()?.as_str() {
                        "ram" => Medium::Ram,
                        "file" => Medium::File,
                        other => bail!("no disks are made of {other:?}\n{USAGE}"),
                    }];
                }
                "--pin" => options.pin = true,
                "--plots" => options.plots = Some(value()?.into()),
                _ => bail!("{USAGE}"),
            }
        }
        Ok(options)
    }
}

fn number(text: &str) -> Result<u64> {
    let number = text.parse().with_context(|| format!("{text:?} is no number"))?;
    if !(1..=MOST).contains(&number) {
        bail!("{number} is not within 1 to {MOST}");
    }
    Ok(number)
}
