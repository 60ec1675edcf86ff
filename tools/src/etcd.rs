//! Where a conductor's state is: `--store`, and what belongs to etcd.

use crate::output::{Failure, Outcome};
use clap::Args;
use conductor_service::{EtcdStore, EtcdTls, EtcdUser, Store};
use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

/// How etcd is used, where it is.
#[derive(Args)]
pub(crate) struct EtcdArgs {
    /// How the names of this cluster's keys in etcd begin: one etcd may serve several clusters
    #[arg(long, env = "TRINE_ETCD_PREFIX", default_value = "trine/", value_name = "TEXT", value_parser = prefix)]
    etcd_prefix: String,
    /// etcd's user, who may read and write these keys: where etcd asks for a password
    #[arg(long, env = "TRINE_ETCD_USER", value_name = "NAME", requires = "etcd_password_file")]
    etcd_user: Option<String>,
    /// File with that user's password
    #[arg(long, env = "TRINE_ETCD_PASSWORD_FILE", value_name = "FILE", requires = "etcd_user")]
    etcd_password_file: Option<PathBuf>,
    /// File (PEM) with the certificates of whoever has signed those of etcd's members: for https
    #[arg(long, env = "TRINE_ETCD_CA", value_name = "FILE")]
    etcd_ca: Option<PathBuf>,
    /// File (PEM) with the certificate that this conductor shows to etcd, where that wants one of its clients
    #[arg(long, env = "TRINE_ETCD_CERT", value_name = "FILE", requires = "etcd_key", requires = "etcd_ca")]
    etcd_cert: Option<PathBuf>,
    /// File (PEM) with that certificate's key
    #[arg(long, env = "TRINE_ETCD_KEY", value_name = "FILE", requires = "etcd_cert")]
    etcd_key: Option<PathBuf>,
}

impl EtcdArgs {
    /// The store as it was named, with this.
    pub(crate) fn complete(self, store: Store) -> Outcome<Store> {
        let Store::Etcd(at) = store else { return Ok(store) };
        let is_tls = |url: &String| url.starts_with("https://");
        let tls = match self.etcd_ca {
            Some(_) if !at.urls.iter().all(is_tls) => {
                return Err(Failure::usage("--etcd-ca is for https: write etcd:https://HOST:PORT for every member"));
            }
            None if at.urls.iter().any(is_tls) => {
                return Err(Failure::usage("who has signed the certificates of etcd's members? Pass --etcd-ca FILE"));
            }
            None => None,
            Some(file) => {
                let authority = pem(&file, "CERTIFICATE")?;
                let identity = self.etcd_cert.zip(self.etcd_key);
                let read = |(certificate, key): (PathBuf, PathBuf)| {
                    Ok::<_, Failure>((pem(&certificate, "CERTIFICATE")?, pem(&key, "PRIVATE KEY")?))
                };
                Some(EtcdTls { authority, identity: identity.map(read).transpose()? })
            }
        };
        let user = match self.etcd_user.zip(self.etcd_password_file) {
            None => None,
            Some((name, file)) => {
                if let Some(url) = at.urls.iter().find(|url| !is_tls(url) && !is_here(url)) {
                    return Err(Failure::usage(format!(
                        "{url}: the password would go over the network in clear; have etcd speak TLS, and write https"
                    )));
                }
                let password = text(&file)?.trim_end_matches(['\r', '\n']).to_owned();
                Some(EtcdUser { name, password })
            }
        };
        Ok(Store::Etcd(EtcdStore { prefix: self.etcd_prefix, user, tls, ..at }))
    }
}

/// Loopback.
fn is_here(url: &str) -> bool {
    let place = url.strip_prefix("http://").unwrap_or(url);
    let host = place.rsplit_once(':').map_or(place, |(host, _)| host).trim_matches(['[', ']']);
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

fn text(file: &Path) -> Outcome<String> {
    fs::read_to_string(file).map_err(|why| Failure::usage(format!("cannot read {}: {why}", file.display())))
}

/// A file that has something of this kind.
fn pem(file: &Path, kind: &str) -> Outcome<String> {
    let text = text(file)?;
    let has_it = text.lines().any(|line| line.starts_with("-----BEGIN ") && line.ends_with(&format!("{kind}-----")));
    match has_it {
        true => Ok(text),
        false => Err(Failure::usage(format!("{} has no {} in PEM", file.display(), kind.to_lowercase()))),
    }
}

/// `redb:FILE` or `etcd:URL,URL,…`.
pub(crate) fn store(text: &str) -> Result<Store, String> {
    let bad = || "write redb:FILE, or etcd:http://HOST:PORT,http://HOST:PORT,… (or https)".to_owned();
    match text.split_once(':') {
        Some(("redb", path)) if !path.is_empty() => Ok(Store::Redb(PathBuf::from(path))),
        Some(("etcd", urls)) => {
            let urls: Vec<String> = urls.split(',').map(|url| url.trim().to_owned()).collect();
            for url in &urls {
                let place = url.strip_prefix("http://").or_else(|| url.strip_prefix("https://"));
                host_port(place.ok_or_else(bad)?.trim_end_matches('/'))?;
            }
            Ok(Store::Etcd(EtcdStore { urls, ..EtcdStore::default() }))
        }
        _ => Err(bad()),
    }
}

/// The store, as `--store` takes it; behind that what names the cluster in it, if that is not the default.
pub(crate) fn name(store: &Store) -> String {
    match store {
        Store::Redb(file) => format!("redb:{}", file.display()),
        Store::Etcd(at) if at.prefix == EtcdStore::default().prefix => format!("etcd:{}", at.urls.join(",")),
        Store::Etcd(at) => format!("etcd:{} --etcd-prefix {}", at.urls.join(","), at.prefix),
    }
}

fn prefix(text: &str) -> Result<String, String> {
    let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'/' | b'-' | b'_' | b'.');
    match text.ends_with('/') && text.bytes().all(plain) {
        true => Ok(text.to_owned()),
        false => Err("write letters, digits and /-_. with a / at the end".to_owned()),
    }
}

/// An address with its port.
pub(crate) fn host_port(text: &str) -> Result<String, String> {
    let port =
        text.rsplit_once(':').filter(|(host, _)| !host.is_empty()).and_then(|(_, port)| port.parse::<u16>().ok());
    match port {
        Some(_) => Ok(text.to_owned()),
        None => Err(format!("{text:?} is not HOST:PORT")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_is_a_file_or_etcd() {
        assert_eq!(store("redb:/x/y"), Ok(Store::Redb("/x/y".into())));
        let urls = ["http://a:2379", "https://[::1]:2379/"].map(str::to_owned).to_vec();
        let etcd = Ok(Store::Etcd(EtcdStore { urls, ..EtcdStore::default() }));
        assert_eq!(store("etcd:http://a:2379, https://[::1]:2379/"), etcd);
        for bad in ["redb:", "/x", "etcd:", "etcd:a:1", "etcd:http://a", "etcd:http://a:1,", "etcd:https://a"] {
            assert!(store(bad).is_err(), "{bad}");
        }
        assert!(prefix("trine/").is_ok() && prefix("").is_err() && prefix("trine").is_err() && prefix("a b/").is_err());
        assert!(host_port("c1:7000").is_ok() && host_port(":7000").is_err() && host_port("c1").is_err());
    }

    #[test]
    fn a_password_does_not_leave_the_machine_in_clear_and_https_wants_to_know_whom_to_trust() {
        let dir = std::env::temp_dir().join(format!("trine-etcd-args-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let (password, ca) = (dir.join("password"), dir.join("ca"));
        fs::write(&password, "secret\n").unwrap();
        fs::write(&ca, "-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----\n").unwrap();
        let args = |user: bool, trust: Option<&Path>| EtcdArgs {
            etcd_prefix: "trine/".to_owned(),
            etcd_user: user.then(|| "trine".to_owned()),
            etcd_password_file: user.then(|| password.clone()),
            etcd_ca: trust.map(Path::to_owned),
            etcd_cert: None,
            etcd_key: None,
        };
        let complete = |url: &str, user, trust| args(user, trust).complete(store(url).unwrap());
        let Ok(Store::Etcd(at)) = complete("etcd:https://a:1", true, Some(&ca)) else { panic!("it is all there") };
        assert_eq!(at.user.as_ref().map(|user| user.password.as_str()), Some("secret"));
        assert!(!format!("{at:?}").contains("secret"), "it is never printed");
        for here in ["etcd:http://127.0.0.1:1", "etcd:http://[::1]:1", "etcd:http://localhost:1"] {
            assert!(complete(here, true, None).is_ok(), "{here}");
        }
        assert!(complete("etcd:http://10.0.0.1:1", true, None).is_err());
        assert!(complete("etcd:https://a:1", false, None).is_err());
        assert!(complete("etcd:http://a:1", false, Some(&ca)).is_err());
        assert!(complete("etcd:https://a:1", false, Some(&password)).is_err(), "that is no certificate");
        fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn a_store_is_named_as_it_is_given() {
        for text in ["redb:/x/y", "etcd:http://a:2379,http://b:2379"] {
            assert_eq!(store(text).map(|store| name(&store)).as_deref(), Ok(text));
        }
    }
}
