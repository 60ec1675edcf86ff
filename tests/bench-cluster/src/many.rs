//! Trine with as many volumes, or clients of one volume, as a case asks for: each client a target of its own with an NBD export.
//!
//! ```text
//!   volumes: 64   64 volumes, a target for each                          clients: 64   one volume, 64 targets that share it, each
//!                                                                                     holding a range for itself
//! ```
//! All volumes of a case together have the same size, so that only their number differs.

use crate::cases::{self, Case};
use crate::fio::{self, Place};
use crate::options::Medium;
use crate::peers::{JOURNAL, Peer, Who};
use anyhow::{Context, Result, ensure};
use cluster::{Cluster, Shape};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Bytes of a case's volumes together.
const SIZE: u64 = 256 << 20;
/// Of a node's disk: three times that, for 1, 8 and 64 volumes, as much again and more for what is not yet given back, and the journal.
const DISK: u64 = 8 * SIZE + JOURNAL;
/// How long all of it is written, so that each place was written once.
const FILL: Duration = Duration::from_secs(4);

/// See the module's head.
pub(crate) struct Many {
    pub(crate) peer: Peer,
    /// Those numbers of volumes that there are.
    made: BTreeSet<usize>,
    /// Volumes and the directories of the targets that have them now.
    attached: Vec<(String, PathBuf)>,
}

impl Many {
    /// Starts a cluster that has none yet.
    pub(crate) fn start(medium: Medium) -> Result<Self> {
        let shape = Shape { disk: DISK, journal: Some(JOURNAL), ..Shape::default() };
        let peer = Peer::with(Who::Trine, medium, |dir| Cluster::start_in(dir, shape))?;
        Ok(Self { peer, made: BTreeSet::new(), attached: Vec::new() })
    }

    /// Has the peer's places be those of this case.
    pub(crate) fn arrange(&mut self, case: &Case) -> Result<()> {
        if self.made.insert(case.volumes) {
            let mib = (SIZE / case.volumes as u64) >> 20;
            (0..case.volumes).try_for_each(|n| self.cluster()?.create(&name(case, n), mib, mib))?;
            self.attach(&Case { clients: 1, ..*case })?;
            fio::run(&cases::FILL, self.peer.places(), FILL, false)?;
        }
        self.attach(case)
    }

    fn cluster(&self) -> Result<&Cluster> {
        self.peer.cluster().context("a cluster that was started")
    }

    fn attach(&mut self, case: &Case) -> Result<()> {
        self.detach()?;
        let mut places = Vec::new();
        for n in 0..case.targets() {
            let part = SIZE / case.targets() as u64;
            let (volume, dir) = (name(case, n % case.volumes), self.host(n)?);
            let socket = dir.join("nbd");
            let (nbd, dir_arg) = (format!("unix:{}", socket.display()), dir.display().to_string());
            let (client, at) = (format!("client{n}"), n as u64 * part);
            let range = format!("write:{at}+{part}");
            let mut args = vec!["attach", &volume, "--nbd", &nbd, "--dir", &dir_arg, "--client-name", &client];
            if case.clients > 1 {
                args.extend(["--shared", "--range", &range]);
            }
            self.cluster()?.trine(&args)?;
            let at = if case.clients > 1 { at } else { 0 };
            places.push(Place { at, ..Place::unix(&socket, "", part) });
            self.attached.push((volume, dir));
        }
        self.peer.set_places(places);
        Ok(())
    }

    fn detach(&mut self) -> Result<()> {
        for (volume, dir) in std::mem::take(&mut self.attached) {
            self.cluster()?.trine(&["detach", &volume, "--dir", &dir.display().to_string()])?;
        }
        Ok(())
    }

    /// The directory of what would be a machine of its own.
    fn host(&self, n: usize) -> Result<PathBuf> {
        let from: &Path = self.cluster()?.dir();
        let dir = from.join(format!("client{n}"));
        if !dir.exists() {
            fs::create_dir(&dir)?;
            for file in ["conductor.addr", "cluster.key"] {
                fs::copy(from.join(file), dir.join(file))?;
            }
        }
        ensure!(dir.as_os_str().len() < 90, "{} is too long for a socket's path", dir.display());
        Ok(dir)
    }
}

fn name(case: &Case, n: usize) -> String {
    format!("of{}-{n}", case.volumes)
}
