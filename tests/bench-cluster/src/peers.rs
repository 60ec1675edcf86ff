//! Those who are measured: their processes, and where their NBD exports are.

use crate::cases::{self, Case};
use crate::fio::{self, Place, Ran};
use crate::native;
use crate::options::Medium;
use anyhow::{Context, Result, bail, ensure};
use cluster::{Cluster, Shape};
use serde::Serialize;
use std::fs::{self, File};
use std::io::Write;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// Bytes of each volume.
pub(crate) const SIZE: u64 = 256 << 20;
/// Bytes of the journal of each of Trine's disks: what one has that is 16 GiB or larger.
pub(crate) const JOURNAL: u64 = 1 << 30;
/// Volumes of Trine; the first one is what the others have as their only one.
const VOLUMES: usize = 4;
/// What directories are called, before the process id.
const DIR: &str = "trine-bench-";
/// Long enough for one pass over all of a volume, on any machine that can be measured on.
const FILL: Duration = Duration::from_secs(2);
/// How long a server may take to be there.
const SOON: Duration = Duration::from_secs(20);

/// Who.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
pub(crate) enum Who {
    /// Three copies over TCP, NBD in front.
    Trine,
    /// The same without NBD: `trine bench`, which is the volume client and nothing else.
    Native,
    /// QEMU quorum over three nbdkit.
    Quorum,
    /// One nbdkit on a file.
    Nbdkit,
    /// One qemu-nbd on a file.
    QemuNbd,
    /// nbdkit on memory: what one NBD hop costs.
    Hop,
    /// Three copies over TCP with nothing in it, and no NBD.
    Floor,
}

impl Who {
    pub(crate) const ALL: [Self; 7] =
        [Self::Trine, Self::Native, Self::Quorum, Self::Nbdkit, Self::QemuNbd, Self::Hop, Self::Floor];

    /// Whose processes it is measured with.
    pub(crate) fn server(self) -> Self {
        if self == Self::Native { Self::Trine } else { self }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Trine => "Trine",
            Self::Native => "Trine, no NBD",
            Self::Quorum => "QEMU quorum",
            Self::Nbdkit => "nbdkit, one copy",
            Self::QemuNbd => "qemu-nbd, one copy",
            Self::Hop => "one NBD hop",
            Self::Floor => "floor",
        }
    }
}

/// A child that does not outlive this process.
struct Server(Child);

impl Server {
    fn start(program: &str, args: &[String], log: &Path) -> Result<Self> {
        let log = File::options().append(true).create(true).open(log)?;
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", program]).args(args);
        let child = command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log).spawn();
        child.map(Self).with_context(|| program.to_owned())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What runs that were killed have left behind.
pub(crate) fn sweep(medium: Medium) -> Result<()> {
    for entry in fs::read_dir(medium.dir())?.flatten() {
        let name = entry.file_name();
        let pid = name.to_str().and_then(|name| name.strip_prefix(DIR)?.split('-').next()?.parse::<u32>().ok());
        if pid.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists()) {
            fs::remove_dir_all(entry.path())?;
        }
    }
    Ok(())
}

/// One of them, running.
pub(crate) struct Peer {
    pub(crate) who: Who,
    cluster: Option<Cluster>,
    servers: Vec<Server>,
    /// NBD exports.
    places: Vec<Place>,
    /// Where the primary of the floor listens.
    floor: Option<SocketAddr>,
    /// What holds the copies; for the CPU.
    pub(crate) pids: Vec<u32>,
    dir: PathBuf,
}

impl Peer {
    fn new(who: Who, medium: Medium) -> Result<Self> {
        let dir = medium.dir().join(format!("{DIR}{}-{who:?}", std::process::id()));
        fs::create_dir_all(&dir).with_context(|| dir.display().to_string())?;
        let dir = fs::canonicalize(dir)?;
        Ok(Self { who, cluster: None, servers: Vec::new(), places: Vec::new(), floor: None, pids: Vec::new(), dir })
    }

    /// One with this cluster.
    pub(crate) fn with(who: Who, medium: Medium, start: impl FnOnce(&Path) -> Result<Cluster>) -> Result<Self> {
        let mut peer = Self::new(who, medium)?;
        let cluster = start(&peer.dir)?;
        peer.pids = cluster.nodes.iter().map(cluster::Process::pid).collect();
        peer.cluster = Some(cluster);
        Ok(peer)
    }

    /// Starts it, on disks of this medium, all written once.
    pub(crate) fn start(who: Who, medium: Medium) -> Result<Self> {
        let mut peer = Self::new(who, medium)?;
        match who {
            Who::Trine | Who::Native => peer.start_trine()?,
            Who::Quorum => peer.start_quorum()?,
            Who::Nbdkit => {
                peer.nbdkit(&["--filter=fua", "file"], Some("disk"))?;
            }
            Who::Hop => {
                peer.nbdkit(&["memory"], None)?;
            }
            Who::QemuNbd => {
                let (disk, socket) = (peer.disk("disk")?, peer.dir.join("nbd"));
                let args = ["--persistent", "--shared=0", "--format=raw", "--cache=writethrough"].map(str::to_owned);
                let args =
                    args.into_iter().chain([format!("--socket={}", socket.display()), disk.display().to_string()]);
                peer.serve("qemu-nbd", &args.collect::<Vec<_>>())?;
                peer.export(&socket, "")?;
            }
            // Its processes are started for each run: one client is all they serve.
            Who::Floor => (0..3).try_for_each(|n| written(&peer.disk(&format!("disk{n}"))?))?,
        }
        for place in &peer.places {
            fio::run(&cases::FILL, std::slice::from_ref(place), FILL, false)?;
        }
        Ok(peer)
    }

    fn start_trine(&mut self) -> Result<()> {
        // All volumes, and as much again for what is written in whole chunks and not yet given back.
        let shape =
            Shape { disk: 2 * (VOLUMES as u64 + 1) * SIZE + JOURNAL, journal: Some(JOURNAL), ..Shape::default() };
        let mut cluster = Cluster::start_in(&self.dir, shape)?;
        for n in 0..VOLUMES {
            let name = format!("v{n}");
            cluster.create(&name, SIZE >> 20, SIZE >> 20)?;
            let place = cluster.attach(&name)?;
            let cluster::nbd::Place::Unix(socket) = place else { bail!("a Unix socket") };
            self.places.push(Place::unix(&socket, "", SIZE));
        }
        cluster.create(native::VOLUME, SIZE >> 20, SIZE >> 20)?;
        native::run(&cluster, &cases::FILL, FILL)?;
        self.pids = cluster.nodes.iter().map(cluster::Process::pid).collect();
        self.cluster = Some(cluster);
        Ok(())
    }

    /// Three servers on TCP, as far apart as three nodes, and one in front of them.
    fn start_quorum(&mut self) -> Result<()> {
        let mut args = Vec::new();
        for n in 0..3 {
            let (disk, at) = (self.disk(&format!("disk{n}"))?, free_port()?);
            let file = ["--foreground", "--ipaddr=127.0.0.1", "--filter=fua", "file"].map(str::to_owned);
            let more = [format!("--port={}", at.port()), disk.display().to_string(), "fuamode=force".to_owned()];
            self.serve("nbdkit", &file.into_iter().chain(more).collect::<Vec<_>>())?;
            reachable(at)?;
            let server = format!("server.type=inet,server.host=127.0.0.1,server.port={}", at.port());
            args.extend(["--blockdev".to_owned(), format!("driver=nbd,node-name=n{n},{server}")]);
        }
        self.pids = self.servers.iter().map(|server| server.0.id()).collect();
        let socket = self.dir.join("nbd");
        let quorum = r#"{"driver":"quorum","node-name":"q","vote-threshold":2,"children":["n0","n1","n2"]}"#;
        args.extend(["--blockdev".to_owned(), quorum.to_owned()]);
        args.extend(["--nbd-server".to_owned(), format!("addr.type=unix,addr.path={}", socket.display())]);
        args.extend(["--export", "type=nbd,id=e,node-name=q,name=q,writable=on"].map(str::to_owned));
        self.serve("qemu-storage-daemon", &args)?;
        // It does the work of the primary too.
        self.pids.extend(self.servers.last().map(|server| server.0.id()));
        self.export(&socket, "q")
    }

    fn nbdkit(&mut self, what: &[&str], disk: Option<&str>) -> Result<()> {
        let socket = self.dir.join("nbd");
        let mut args = vec!["--foreground".to_owned(), format!("--unix={}", socket.display())];
        args.extend(what.iter().map(|arg| (*arg).to_owned()));
        match disk {
            Some(disk) => args.extend([self.disk(disk)?.display().to_string(), "fuamode=force".to_owned()]),
            None => args.push(format!("{SIZE}")),
        }
        self.serve("nbdkit", &args)?;
        self.pids = self.servers.iter().map(|server| server.0.id()).collect();
        self.export(&socket, "")
    }

    fn serve(&mut self, program: &str, args: &[String]) -> Result<()> {
        self.servers.push(Server::start(program, args, &self.dir.join("log"))?);
        Ok(())
    }

    fn disk(&self, name: &str) -> Result<PathBuf> {
        let path = self.dir.join(name);
        File::create(&path)?.set_len(SIZE)?;
        Ok(path)
    }

    fn export(&mut self, socket: &Path, name: &str) -> Result<()> {
        wait(&format!("{} has no socket", self.who.name()), || socket.exists())?;
        if self.pids.is_empty() {
            self.pids = self.servers.iter().map(|server| server.0.id()).collect();
        }
        self.places.push(Place::unix(socket, name, SIZE));
        Ok(())
    }

    pub(crate) fn cluster(&self) -> Option<&Cluster> {
        self.cluster.as_ref()
    }

    pub(crate) fn places(&self) -> &[Place] {
        &self.places
    }

    pub(crate) fn set_places(&mut self, places: Vec<Place>) {
        self.places = places;
    }

    /// Can it do that?
    pub(crate) fn does(&self, who: Who, case: &Case) -> bool {
        match who {
            Who::Floor => case.for_floor(),
            Who::Native => case.targets() == 1,
            _ => case.targets() <= self.places.len(),
        }
    }

    /// Drives it with a case, by way of NBD or not.
    pub(crate) fn run(&mut self, who: Who, case: &Case, time: Duration, pin: bool) -> Result<Ran> {
        match who {
            Who::Floor => self.run_floor(case, time),
            Who::Native => native::run(self.cluster().context("a cluster that was started")?, case, time),
            _ => fio::run(case, &self.places[..case.targets()], time, pin),
        }
    }

    /// Before a run that is counted.
    pub(crate) fn prepare(&mut self, case: &Case) -> Result<()> {
        if self.who != Who::Floor {
            return Ok(());
        }
        self.servers.clear();
        let program = std::env::current_exe()?.display().to_string();
        let mut at = Vec::new();
        for n in (0..3).rev() {
            let (disk, listen) = (self.dir.join(format!("disk{n}")), free_port()?);
            let clients = if n == 0 { case.clients } else { 1 }.to_string();
            let mut args = vec!["floor-node".to_owned(), listen.to_string(), disk.display().to_string(), clients];
            if n == 0 {
                args.extend(at.iter().map(ToString::to_string));
            }
            self.serve(&program, &args)?;
            listens(listen)?;
            at.push(listen);
        }
        self.floor = at.last().copied();
        self.pids = self.servers.iter().map(|server| server.0.id()).collect();
        Ok(())
    }

    fn run_floor(&self, case: &Case, time: Duration) -> Result<Ran> {
        let to = self.floor.context("the floor was not prepared")?.to_string();
        let what = if case.writes() { "write" } else { "read" };
        let depth = (case.depth / case.clients).max(1).to_string();
        let start = |_| {
            let mut load = Command::new(std::env::current_exe()?);
            load.args(["floor-load", &to, what, &case.bytes.to_string(), &depth, &time.as_millis().to_string()]);
            Ok(load.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?)
        };
        // All of them, before the first one is waited for.
        let loads = (0..case.clients).map(start).collect::<Result<Vec<Child>>>()?;
        let ended = loads.into_iter().map(Child::wait_with_output).collect::<std::io::Result<Vec<_>>>()?;
        let log = || fs::read_to_string(self.dir.join("log")).unwrap_or_default();
        let ran = |load: &Output| {
            ensure!(load.status.success(), "the floor's load: {}{}", String::from_utf8_lossy(&load.stderr), log());
            Ok(serde_json::from_slice(&load.stdout)?)
        };
        Ran::together(&ended.iter().map(ran).collect::<Result<Vec<_>>>()?)
    }

    /// System calls of all rings so far; who has no counter of them has none.
    pub(crate) fn enters(&self) -> Result<Option<u64>> {
        let Some(cluster) = &self.cluster else { return Ok(None) };
        let of = |node| cluster.counter(node, "reactor_enters");
        (0..cluster.nodes.len()).map(of).sum::<Result<u64>>().map(Some)
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // Before their files.
        self.servers.clear();
        self.cluster = None;
        let _ = fs::remove_dir_all(&self.dir);
    }
}

/// Writes all of a disk once: a hole is read without a disk, and written with an allocation.
fn written(disk: &Path) -> Result<()> {
    let bytes: Vec<u8> = (0..1_u32 << 20).map(|n| n.wrapping_mul(0x9e37_79b9).to_le_bytes()[2]).collect();
    let mut disk = File::options().write(true).open(disk)?;
    (0..SIZE / bytes.len() as u64).try_for_each(|_| disk.write_all(&bytes))?;
    Ok(disk.sync_all()?)
}

fn free_port() -> Result<SocketAddr> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?)
}

fn reachable(at: SocketAddr) -> Result<()> {
    wait(&format!("nobody listens at {at}"), || TcpStream::connect(at).is_ok())
}

/// Without connecting: the floor serves the first who comes.
fn listens(at: SocketAddr) -> Result<()> {
    let line = format!(":{:04X} 00000000:0000 0A", at.port());
    wait(&format!("nobody listens at {at}"), || {
        fs::read_to_string("/proc/net/tcp").is_ok_and(|sockets| sockets.contains(&line))
    })
}

fn wait(what: &str, mut is_so: impl FnMut() -> bool) -> Result<()> {
    let began = Instant::now();
    while !is_so() {
        ensure!(began.elapsed() < SOON, "{what} after {SOON:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}
