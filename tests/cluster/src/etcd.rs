//! A real etcd of one member, on loopback, in a directory of its own: killed, frozen and started again like the rest.

use crate::cluster::{LONG, wait_until};
use crate::ports::free_ports;
use crate::process::Process;
use crate::watcher::Watcher;
use anyhow::{Context, Result};
use std::ffi::OsString;
use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// A running etcd.
#[derive(Debug)]
pub struct Etcd {
    /// Its process.
    pub process: Process,
    at: SocketAddr,
    /// What it keeps.
    data: PathBuf,
    /// Last: it takes care of what the process leaves behind.
    _watcher: Watcher,
}

impl Etcd {
    /// Starts one, and waits until it answers.
    pub fn start() -> Result<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("trine-etcd-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let dir = std::env::temp_dir().join(name);
        fs::create_dir_all(&dir)?;
        let program = program()?;
        let watcher = Watcher::of(&dir, &program, "")?;
        let ports = free_ports(2)?;
        let (at, peer) = (ports[0], ports[1]);
        let (url, peer) = (format!("http://{at}"), format!("http://{peer}"));
        let data = dir.join("data");
        let args = [
            ("--name", "t".to_owned()),
            ("--data-dir", data.display().to_string()),
            ("--listen-client-urls", url.clone()),
            ("--advertise-client-urls", url),
            ("--listen-peer-urls", peer.clone()),
            ("--initial-advertise-peer-urls", peer.clone()),
            ("--initial-cluster", format!("t={peer}")),
            // It waits for others before it elects itself.
            ("--heartbeat-interval", "50".to_owned()),
            ("--election-timeout", "500".to_owned()),
        ];
        let args = args.into_iter().flat_map(|(name, value)| [OsString::from(name), value.into()]);
        let argv = std::iter::once(program.into()).chain(args).collect();
        let process = Process::spawn("etcd", argv, &dir, &dir.join("etcd.log"))?;
        let this = Self { process, at, data, _watcher: watcher };
        this.wait_ready()?;
        Ok(this)
    }

    /// Where it is: `http://HOST:PORT`.
    pub fn url(&self) -> String {
        format!("http://{}", self.at)
    }

    /// kill -9.
    pub fn kill(&mut self) -> Result<()> {
        self.process.kill()
    }

    /// Starts it again on what it has.
    pub fn start_again(&mut self) -> Result<()> {
        self.process.start()?;
        self.wait_ready()
    }

    /// kill -9, and all that it kept is gone: it starts again as a new one.
    pub fn lose(&mut self) -> Result<()> {
        self.process.kill()?;
        fs::remove_dir_all(&self.data)?;
        self.start_again()
    }

    fn wait_ready(&self) -> Result<()> {
        let ready = || Ok(self.health().is_ok_and(|answer| answer.contains("\"true\"")));
        wait_until("etcd answers", LONG, ready).with_context(|| self.process.last_words())?;
        Ok(())
    }

    fn health(&self) -> Result<String> {
        let mut stream = TcpStream::connect(self.at)?;
        stream.set_read_timeout(Some(Duration::from_secs(2)))?;
        stream.write_all(b"GET /health HTTP/1.0\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    }
}

fn program() -> Result<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).map(|dir| dir.join("etcd")).find(|file| file.is_file());
    let found = found.context("etcd is not installed: `tools/setup.sh test` installs it (Debian's etcd-server)")?;
    Ok(fs::canonicalize(found)?)
}
