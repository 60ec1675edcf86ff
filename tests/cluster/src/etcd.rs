//! A real etcd of one member, on loopback, in a directory of its own: killed, frozen and started again like the rest. It lets everybody
//! in, or speaks TLS alone, with those who show a certificate and have a password.

use crate::certificates::{Certificates, make};
use crate::cluster::{LONG, wait_until};
use crate::ports::free_ports;
use crate::process::Process;
use crate::watcher::Watcher;
use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use std::ffi::OsString;
use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// The user that a guarded one lets in.
const USER: &str = "trine";
/// All keys, as etcd names them in JSON.
const ALL: &str = "AA==";

/// A running etcd.
#[derive(Debug)]
pub struct Etcd {
    /// Its process.
    pub process: Process,
    at: SocketAddr,
    /// Where it says how it is, to everybody.
    metrics: SocketAddr,
    /// What it keeps.
    data: PathBuf,
    guard: Option<Guard>,
    /// Last: it takes care of what the process leaves behind.
    _watcher: Watcher,
}

/// What a guarded one wants to see.
#[derive(Debug)]
struct Guard {
    password: PathBuf,
    certificates: Certificates,
}

/// Where one is to be.
struct Place {
    dir: PathBuf,
    data: PathBuf,
    at: SocketAddr,
    peer: SocketAddr,
    metrics: SocketAddr,
}

impl Place {
    fn spawn(&self, guard: Option<&Guard>) -> Result<Process> {
        let url = url(self.at, guard.is_some());
        let peer = format!("http://{}", self.peer);
        let args = [
            ("--name", "t".to_owned()),
            ("--data-dir", self.data.display().to_string()),
            ("--listen-client-urls", url.clone()),
            ("--advertise-client-urls", url),
            ("--listen-peer-urls", peer.clone()),
            ("--initial-advertise-peer-urls", peer.clone()),
            ("--initial-cluster", format!("t={peer}")),
            ("--listen-metrics-urls", format!("http://{}", self.metrics)),
            // It waits for others before it elects itself.
            ("--heartbeat-interval", "50".to_owned()),
            ("--election-timeout", "500".to_owned()),
        ];
        let mut args: Vec<OsString> =
            args.into_iter().flat_map(|(name, value)| [OsString::from(name), value.into()]).collect();
        if let Some(Guard { certificates, .. }) = guard {
            let files = [
                ("--cert-file", &certificates.server),
                ("--key-file", &certificates.server_key),
                ("--trusted-ca-file", &certificates.authority),
            ];
            args.extend(files.into_iter().flat_map(|(name, file)| [OsString::from(name), file.into()]));
            args.push("--client-cert-auth".into());
        }
        let argv = std::iter::once(program()?.into()).chain(args).collect();
        Process::spawn("etcd", argv, &self.dir, &self.dir.join("etcd.log"))
    }
}

fn url(at: SocketAddr, tls: bool) -> String {
    format!("{}://{at}", if tls { "https" } else { "http" })
}

impl Etcd {
    /// Starts one, and waits until it answers.
    pub fn start() -> Result<Self> {
        Ok(Self::begin()?.0)
    }

    /// Starts one that lets in only who has a password, and shows a certificate over TLS.
    pub fn start_guarded() -> Result<Self> {
        let (mut this, place) = Self::begin()?;
        let mut letters = [0; 16];
        fs::File::open("/dev/urandom")?.read_exact(&mut letters)?;
        let secret: String = letters.iter().map(|byte| format!("{byte:02x}")).collect();
        for (path, body) in [
            ("role/add", json!({ "name": "root" })),
            ("user/add", json!({ "name": "root", "password": format!("root-{secret}") })),
            ("user/grant", json!({ "user": "root", "role": "root" })),
            ("role/add", json!({ "name": USER })),
            ("role/grant", json!({ "name": USER, "perm": { "permType": "READWRITE", "key": ALL, "range_end": ALL } })),
            ("user/add", json!({ "name": USER, "password": secret })),
            ("user/grant", json!({ "user": USER, "role": USER })),
            ("enable", json!({})),
        ] {
            post(this.at, &format!("/v3/auth/{path}"), &body)?;
        }
        this.process.kill()?;
        let password = place.dir.join("password");
        fs::write(&password, format!("{secret}\n"))?;
        let guard = Guard { password, certificates: make(&place.dir)? };
        this.process = place.spawn(Some(&guard))?;
        this.guard = Some(guard);
        this.wait_ready()?;
        Ok(this)
    }

    fn begin() -> Result<(Self, Place)> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("trine-etcd-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let dir = std::env::temp_dir().join(name);
        fs::create_dir_all(&dir)?;
        let watcher = Watcher::of(&dir, &program()?, "")?;
        let ports = free_ports(3)?;
        let place = Place { data: dir.join("data"), dir, at: ports[0], peer: ports[1], metrics: ports[2] };
        let process = place.spawn(None)?;
        let (at, metrics, data) = (place.at, place.metrics, place.data.clone());
        let this = Self { process, at, metrics, data, guard: None, _watcher: watcher };
        this.wait_ready()?;
        Ok((this, place))
    }

    /// Where it is: `http://HOST:PORT`, or https.
    pub fn url(&self) -> String {
        url(self.at, self.guard.is_some())
    }

    /// A conductor's options with which it lets that in.
    pub fn options(&self) -> Vec<String> {
        let Some(Guard { password, certificates }) = &self.guard else { return Vec::new() };
        let file = |path: &Path| path.display().to_string();
        let pairs = [
            ("--etcd-user", USER.to_owned()),
            ("--etcd-password-file", file(password)),
            ("--etcd-ca", file(&certificates.authority)),
            ("--etcd-cert", file(&certificates.client)),
            ("--etcd-key", file(&certificates.client_key)),
        ];
        pairs.into_iter().flat_map(|(name, value)| [name.to_owned(), value]).collect()
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
        ask(self.metrics, "GET /health HTTP/1.0\r\n\r\n")
    }
}

/// Says something to its gateway for JSON.
fn post(at: SocketAddr, path: &str, body: &Value) -> Result<()> {
    let body = body.to_string();
    let answer = ask(at, &format!("POST {path} HTTP/1.0\r\nContent-Length: {}\r\n\r\n{body}", body.len()))?;
    ensure!(answer.split(' ').nth(1) == Some("200"), "etcd answers {path} {body} with {answer}");
    Ok(())
}

fn ask(at: SocketAddr, request: &str) -> Result<String> {
    let mut stream = TcpStream::connect(at)?;
    stream.set_read_timeout(Some(Duration::from_secs(2)))?;
    stream.write_all(request.as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

fn program() -> Result<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).map(|dir| dir.join("etcd")).find(|file| file.is_file());
    let found = found.context("etcd is not installed: `tools/setup.sh test` installs it (Debian's etcd-server)")?;
    Ok(fs::canonicalize(found)?)
}
