//! NBD over TLS, as other people's clients speak it: nbdinfo, nbdcopy and qemu-io with certificates that openssl made, and what nobody
//! is let in with.
#![allow(clippy::unwrap_used)] // a test: a panic is its way to fail

use cluster::{Cluster, LONG, Shape, wait_until};
use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

/// More than a client takes on any machine that can build it.
const PATIENCE: Duration = Duration::from_secs(30);

fn tool(name: &str, args: &[&str]) -> Output {
    Command::new("timeout").args(["90", name]).args(args).output().unwrap()
}

fn runs(name: &str, args: &[&str]) -> String {
    let output = tool(name, args);
    let said = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{name} {args:?}: {said}");
    said
}

/// What it says as it fails; it does not just stand still.
fn fails(name: &str, args: &[&str]) -> String {
    let output = tool(name, args);
    let said = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(!output.status.success() && output.status.code() != Some(124), "{name} {args:?}: {said}");
    said
}

/// Certificates as nbdkit's and QEMU's manuals have them: an authority's, a server's for 127.0.0.1 and a client's.
struct Certificates(PathBuf);

impl Certificates {
    fn make(dir: PathBuf) -> Self {
        fs::create_dir_all(&dir).unwrap();
        let at = |name: &str| dir.join(name).to_str().unwrap().to_owned();
        let (ca, ca_key) = (at("ca-cert.pem"), at("ca-key.pem"));
        let new_key = ["req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"];
        let authority = ["-x509", "-days", "2", "-subj", "/CN=an authority", "-keyout", &ca_key, "-out", &ca];
        runs("openssl", &[&new_key[..], &authority].concat());
        for (whose, usage) in [("server", "serverAuth"), ("client", "clientAuth")] {
            let [key, asked, cert, more] =
                ["key.pem", "asked.pem", "cert.pem", "more"].map(|what| at(&format!("{whose}-{what}")));
            let subject = format!("/CN={whose}");
            runs("openssl", &[&new_key[..], &["-subj", &subject, "-keyout", &key, "-out", &asked]].concat());
            fs::write(&more, format!("subjectAltName=IP:127.0.0.1,DNS:localhost\nextendedKeyUsage={usage}\n")).unwrap();
            let sign = ["x509", "-req", "-days", "2", "-in", &asked, "-CA", &ca, "-CAkey", &ca_key, "-CAcreateserial"];
            runs("openssl", &[&sign[..], &["-extfile", &more, "-out", &cert]].concat());
        }
        Self(dir)
    }

    /// The same authority, and nothing to show.
    fn without_client(&self) -> Self {
        let dir = self.0.with_extension("bare");
        fs::create_dir_all(&dir).unwrap();
        fs::copy(self.0.join("ca-cert.pem"), dir.join("ca-cert.pem")).unwrap();
        Self(dir)
    }

    fn dir(&self) -> &str {
        self.0.to_str().unwrap()
    }

    /// An export's name for who has these.
    fn uri(&self, at: SocketAddr) -> String {
        format!("nbds://{at}/db?tls-certificates={}", self.dir())
    }
}

fn cluster() -> Cluster {
    let cluster = Cluster::start(Shape::default()).unwrap();
    cluster.trine(&["volume", "create", "db", "--size", "16M"]).unwrap();
    cluster
}

/// What serves the volume over TCP, and how it is named.
fn attach(cluster: &Cluster, more: &[&str]) -> (String, SocketAddr) {
    let uri = cluster.trine(&[&["attach", "db", "--nbd", "tcp:127.0.0.1:0"], more].concat()).unwrap();
    let at = uri.trim().split('/').nth(2).unwrap().parse().unwrap();
    (uri, at)
}

fn read(stream: &mut TcpStream, bytes: usize) -> Vec<u8> {
    let mut all = vec![0; bytes];
    stream.read_exact(&mut all).unwrap();
    all
}

/// A client that has said its flags.
fn greeted(at: SocketAddr) -> TcpStream {
    let mut stream = TcpStream::connect(at).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    assert_eq!(read(&mut stream, 18), b"NBDMAGICIHAVEOPT\0\x03");
    stream.write_all(&3u32.to_be_bytes()).unwrap();
    stream
}

/// The kind of answer to an option.
fn ask(stream: &mut TcpStream, option: u32, data: &[u8]) -> u32 {
    let len = u32::try_from(data.len()).unwrap().to_be_bytes();
    stream.write_all(&[b"IHAVEOPT", &option.to_be_bytes()[..], &len, data].concat()).unwrap();
    let head = read(stream, 20);
    let number = |at: usize| u32::from_be_bytes(head[at..at + 4].try_into().unwrap());
    assert_eq!(number(8), option);
    read(stream, number(16) as usize);
    number(12)
}

/// True if the other side ends it.
fn is_ended(mut stream: TcpStream) -> bool {
    let mut rest = Vec::new();
    match stream.read_to_end(&mut rest) {
        Ok(_) => true,
        Err(error) => error.kind() == std::io::ErrorKind::ConnectionReset,
    }
}

fn image(path: &Path, seed: u8) {
    let bytes: Vec<u8> = (0..16u32 << 20).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8 ^ seed).collect();
    fs::write(path, bytes).unwrap();
}

#[test]
fn foreign_clients_with_certificates_are_served_and_nobody_else() {
    let cluster = cluster();
    let ours = Certificates::make(cluster.dir().join("certs"));
    let (uri, at) = attach(&cluster, &["--nbd-tls", "required", "--tls-certs", ours.dir()]);
    assert!(uri.starts_with("nbds://127.0.0.1:"), "{uri}");
    let secure = ours.uri(at);
    assert_eq!(runs("nbdinfo", &["--size", &secure]).trim(), (16 << 20).to_string());
    assert!(runs("nbdinfo", &[&secure]).contains("with TLS"));
    let [from, to] = ["from", "to"].map(|name| cluster.dir().join(name));
    image(&from, 7);
    let (from, to) = (from.to_str().unwrap(), to.to_str().unwrap());
    runs("nbdcopy", &["--connections=4", from, &secure]);
    runs("nbdcopy", &["--connections=4", &secure, to]);
    assert!(fs::read(from).unwrap() == fs::read(to).unwrap(), "what was written is read");
    let qemu = |certs: &str| {
        let object = format!("tls-creds-x509,id=tls,endpoint=client,dir={certs}");
        let (host, port) = (at.ip(), at.port());
        let image = format!("driver=nbd,host={host},port={port},export=db,tls-creds=tls");
        [&["--object", &object, "--image-opts", &image][..], &["-c", "write -P 5 1M 3M", "-c", "read -P 5 1M 3M"]]
            .concat()
            .into_iter()
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    let args = qemu(ours.dir());
    let said = runs("qemu-io", &args.iter().map(String::as_str).collect::<Vec<_>>());
    assert!(said.contains("read 3145728/3145728") && !said.contains("verification failed"), "{said}");

    // In clear, without a certificate, with another authority's, or trusting another.
    let said = fails("nbdinfo", &[&format!("nbd://{at}/db")]);
    assert!(said.contains("TLS"), "{said}");
    fails("nbdinfo", &[&ours.without_client().uri(at)]);
    let theirs = Certificates::make(cluster.dir().join("others"));
    fails("nbdinfo", &[&theirs.uri(at)]);
    fs::copy(ours.0.join("ca-cert.pem"), theirs.0.join("ca-cert.pem")).unwrap();
    fails("nbdinfo", &[&theirs.uri(at)]);
    let args = qemu(ours.without_client().dir());
    fails("qemu-io", &args.iter().map(String::as_str).collect::<Vec<_>>());

    // Those who have nothing to show are let in where that was said.
    cluster.trine(&["detach", "db"]).unwrap();
    let any = ["--nbd-tls", "required", "--tls-certs", ours.dir(), "--tls-any-client"];
    let (_, at) = attach(&cluster, &any);
    runs("nbdinfo", &[&ours.without_client().uri(at)]);
    fails("nbdinfo", &[&format!("nbd://{at}/db")]);
    cluster.trine(&["detach", "db"]).unwrap();
}

#[test]
fn in_clear_a_server_that_requires_tls_says_so_and_whoever_garbles_it_harms_nobody() {
    let cluster = cluster();
    let certs = Certificates::make(cluster.dir().join("certs"));
    let (_, at) = attach(&cluster, &["--nbd-tls", "required", "--tls-certs", certs.dir()]);
    let (go_on, list, starttls, ack, tls_required) = (7, 3, 5, 1, 0x8000_0005);
    let go = [&2u32.to_be_bytes()[..], b"db", &[0, 0]].concat();
    let mut stream = greeted(at);
    assert_eq!((ask(&mut stream, go_on, &go), ask(&mut stream, list, &[])), (tls_required, tls_required));
    assert_eq!(ask(&mut stream, starttls, &[]), ack, "what was refused before does not matter");
    // One that goes on in clear after all, others that send what looks like TLS, or nothing at all.
    stream.write_all(&[b"IHAVEOPT", &7u32.to_be_bytes()[..], &8u32.to_be_bytes(), &go].concat()).unwrap();
    assert!(is_ended(stream));
    let garbage = [
        vec![0x16; 20_000],
        vec![0x16, 3, 1, 2, 0, 1, 0, 1, 252, 3, 3],
        vec![0; 5000],
        b"GET / HTTP/1.1\r\n\r\n".to_vec(),
    ];
    let mut open = Vec::new();
    for n in 0..60 {
        let mut stream = greeted(at);
        if n % 2 == 0 {
            assert_eq!(ask(&mut stream, starttls, &[]), ack);
        }
        // It may be closed before the last of it.
        let _ = stream.write_all(&garbage[n / 2 % garbage.len()]);
        // More than there are places for; the oldest make room.
        open.push(stream);
    }
    runs("nbdinfo", &[&certs.uri(at)]);
    drop(open);
    let sessions = || cluster.look_at_target("db").unwrap()["target"]["sessions"].as_array().unwrap().len();
    wait_until("all of them are gone", LONG, || Ok(sessions() == 0)).unwrap();
    runs("nbdinfo", &[&certs.uri(at)]);
    cluster.trine(&["detach", "db"]).unwrap();
}

#[test]
fn a_client_that_stops_in_the_middle_of_a_handshake_is_let_go() {
    let cluster = cluster();
    let certs = Certificates::make(cluster.dir().join("certs"));
    let (_, at) = attach(&cluster, &["--nbd-tls", "required", "--tls-certs", certs.dir()]);
    let (starttls, ack) = (5, 1);
    // The head of a ClientHello's record, and less than it says.
    let half = [&[0x16, 3, 1, 2, 0, 1, 0, 1, 252, 3, 3][..], &[7; 32]].concat();
    let stopped = [&[][..], &half].map(|said| {
        let mut stream = greeted(at);
        assert_eq!(ask(&mut stream, starttls, &[]), ack);
        stream.write_all(said).unwrap();
        stream
    });
    runs("nbdinfo", &[&certs.uri(at)]);
    let look = || cluster.look_at_target("db").unwrap()["target"].clone();
    for stream in stopped {
        assert!(is_ended(stream));
    }
    assert_eq!(look()["counters"]["nbd_dropped_for_silence"], 2);
    wait_until("both are gone", LONG, || Ok(look()["sessions"].as_array().unwrap().is_empty())).unwrap();
    cluster.trine(&["detach", "db"]).unwrap();
}

#[test]
fn where_tls_is_optional_the_client_decides_and_what_makes_no_sense_is_a_usage_error() {
    let cluster = cluster();
    let certs = Certificates::make(cluster.dir().join("certs"));
    let (uri, at) = attach(&cluster, &["--nbd-tls", "optional", "--tls-certs", certs.dir()]);
    assert!(uri.starts_with("nbd://"), "{uri}");
    assert!(runs("nbdinfo", &[&certs.uri(at)]).contains("with TLS"));
    assert!(runs("nbdinfo", &[uri.trim()]).contains("without TLS"));
    cluster.trine(&["detach", "db"]).unwrap();
    let code = |more: &[&str]| cluster.try_trine(&[&["attach", "db", "--nbd"], more].concat()).unwrap().code;
    assert_eq!(code(&["tcp:0.0.0.0:0"]), 2, "beyond loopback in clear");
    assert_eq!(
        code(&["tcp:0.0.0.0:0", "--nbd-tls", "optional", "--tls-certs", certs.dir()]),
        2,
        "in clear for who wants to"
    );
    let any = ["tcp:0.0.0.0:0", "--nbd-tls", "required", "--tls-certs", certs.dir(), "--tls-any-client"];
    assert_eq!(code(&any), 2, "encrypted, with whoever comes");
    assert_eq!(code(&[&any[..], &["--plaintext"]].concat()), 0, "as was said");
    cluster.trine(&["detach", "db"]).unwrap();
    assert_eq!(code(&["tcp:127.0.0.1:0", "--nbd-tls", "required"]), 2, "no certificates");
    assert_eq!(code(&["tcp:127.0.0.1:0", "--tls-certs", certs.dir()]), 2, "certificates for nothing");
    assert_eq!(code(&["tcp:127.0.0.1:0", "--nbd-tls", "required", "--tls-certs", "/nonexistent"]), 1);
    assert_eq!(code(&["tcp:0.0.0.0:0", "--nbd-tls", "required", "--tls-certs", certs.dir()]), 0);
    cluster.trine(&["detach", "db"]).unwrap();
}
