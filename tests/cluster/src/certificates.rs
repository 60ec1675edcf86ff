//! An authority of its own for one test, and what it has signed: files in PEM, for a server on loopback and for who comes to it.

use anyhow::Result;
use rcgen::{BasicConstraints, CertificateParams, DistinguishedName, DnType, IsCa, Issuer, KeyPair};
use std::fs;
use std::path::{Path, PathBuf};

/// Where they are.
#[derive(Debug)]
pub(crate) struct Certificates {
    pub(crate) authority: PathBuf,
    pub(crate) server: PathBuf,
    pub(crate) server_key: PathBuf,
    pub(crate) client: PathBuf,
    pub(crate) client_key: PathBuf,
}

/// Makes them in this directory.
pub(crate) fn make(dir: &Path) -> Result<Certificates> {
    let file = |name: &str, kind: &str, der: &[u8]| -> Result<PathBuf> {
        let path = dir.join(name);
        fs::write(&path, pem(kind, der))?;
        Ok(path)
    };
    let mut authority = CertificateParams::default();
    authority.distinguished_name = named("a test's authority");
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate()?;
    let own = authority.self_signed(&key)?;
    let issuer = Issuer::from_params(&authority, &key);
    let signed = |name: &str| -> Result<(PathBuf, PathBuf)> {
        let mut leaf = CertificateParams::new(["127.0.0.1".to_owned()])?;
        leaf.distinguished_name = named(name);
        let key = KeyPair::generate()?;
        let certificate = leaf.signed_by(&key, &issuer)?;
        let key = file(&format!("{name}.key"), "PRIVATE KEY", &key.serialize_der())?;
        Ok((file(&format!("{name}.pem"), "CERTIFICATE", certificate.der())?, key))
    };
    let ((server, server_key), (client, client_key)) = (signed("server")?, signed("client")?);
    let authority = file("authority.pem", "CERTIFICATE", own.der())?;
    Ok(Certificates { authority, server, server_key, client, client_key })
}

fn named(name: &str) -> DistinguishedName {
    let mut full = DistinguishedName::new();
    full.push(DnType::CommonName, name);
    full
}

/// RFC 7468.
fn pem(kind: &str, der: &[u8]) -> String {
    let letters: Vec<u8> = base64(der).into_bytes();
    let lines: Vec<_> = letters.chunks(64).map(String::from_utf8_lossy).collect();
    format!("-----BEGIN {kind}-----\n{}\n-----END {kind}-----\n", lines.join("\n"))
}

fn base64(bytes: &[u8]) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for three in bytes.chunks(3) {
        let word = three.iter().fold(0, |word, byte| word << 8 | usize::from(*byte)) << (8 * (3 - three.len()));
        for n in 0..4 {
            let letter = char::from(LETTERS[word >> (18 - 6 * n) & 63]);
            text.push(if n <= three.len() { letter } else { '=' });
        }
    }
    text
}
