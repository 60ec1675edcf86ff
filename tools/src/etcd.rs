//! Where a conductor's state is: `--store`, and what belongs to etcd.

use clap::Args;
use conductor_service::{EtcdStore, Store};
use std::path::PathBuf;

/// How etcd is used, where it is.
#[derive(Args)]
pub(crate) struct EtcdArgs {
    /// How the names of this cluster's keys in etcd begin: one etcd may serve several clusters
    #[arg(long, env = "TRINE_ETCD_PREFIX", default_value = "trine/", value_name = "TEXT", value_parser = prefix)]
    etcd_prefix: String,
}

impl EtcdArgs {
    /// The store as it was named, with this.
    pub(crate) fn complete(self, store: Store) -> Store {
        match store {
            Store::Redb(file) => Store::Redb(file),
            Store::Etcd(at) => Store::Etcd(EtcdStore { prefix: self.etcd_prefix, ..at }),
        }
    }
}

/// `redb:FILE` or `etcd:URL,URL,…`.
pub(crate) fn store(text: &str) -> Result<Store, String> {
    let bad = || "write redb:FILE, or etcd:http://HOST:PORT,http://HOST:PORT,…".to_owned();
    match text.split_once(':') {
        Some(("redb", path)) if !path.is_empty() => Ok(Store::Redb(PathBuf::from(path))),
        Some(("etcd", urls)) => {
            let urls: Vec<String> = urls.split(',').map(|url| url.trim().to_owned()).collect();
            for url in &urls {
                if url.starts_with("https://") {
                    return Err(format!(
                        "{url}: TLS to etcd is not built in; let it listen where nobody else can reach it"
                    ));
                }
                host_port(url.strip_prefix("http://").ok_or_else(bad)?.trim_end_matches('/'))?;
            }
            Ok(Store::Etcd(EtcdStore { urls, prefix: String::new() }))
        }
        _ => Err(bad()),
    }
}

/// The store, as `--store` takes it.
pub(crate) fn name(store: &Store) -> String {
    match store {
        Store::Redb(file) => format!("redb:{}", file.display()),
        Store::Etcd(at) => format!("etcd:{}", at.urls.join(",")),
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
        let urls = ["http://a:2379", "http://[::1]:2379/"].map(str::to_owned).to_vec();
        let etcd = Ok(Store::Etcd(EtcdStore { urls, prefix: String::new() }));
        assert_eq!(store("etcd:http://a:2379, http://[::1]:2379/"), etcd);
        for bad in ["redb:", "/x", "etcd:", "etcd:a:1", "etcd:http://a", "etcd:http://a:1,", "etcd:https://a:1"] {
            assert!(store(bad).is_err(), "{bad}");
        }
        assert!(prefix("trine/").is_ok() && prefix("").is_err() && prefix("trine").is_err() && prefix("a b/").is_err());
        assert!(host_port("c1:7000").is_ok() && host_port(":7000").is_err() && host_port("c1").is_err());
    }

    #[test]
    fn a_store_is_named_as_it_is_given() {
        for text in ["redb:/x/y", "etcd:http://a:2379,http://b:2379"] {
            assert_eq!(store(text).map(|store| name(&store)).as_deref(), Ok(text));
        }
    }
}
