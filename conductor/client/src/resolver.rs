//! Where an address is.
//!
//! An IP address says so itself. A name is looked up, for which nothing but the system's own configuration sets a time: that is done by a
//! thread of its own, so that a call keeps its deadline and the next conductor has its turn. ureq's own resolver makes such a thread of every
//! address, and panics where the system has none to give, which ends a daemon whose I/O goes on without any conductor.

use crate::secure::Unopened;
use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::mpsc;
use std::thread::Builder;
use ureq::Error;
use ureq::config::Config;
use ureq::http::Uri;
use ureq::unversioned::resolver::{ResolvedSocketAddrs, Resolver};
use ureq::unversioned::transport::NextTimeout;

/// As many as the list of addresses has room for.
const MOST: usize = 16;

/// Looks up names only.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Names;

impl Resolver for Names {
    fn resolve(&self, uri: &Uri, _: &Config, timeout: NextTimeout) -> Result<ResolvedSocketAddrs, Error> {
        let (host, port) = (uri.host().ok_or(Error::HostNotFound)?, uri.port_u16().ok_or(Error::HostNotFound)?);
        let addresses = match literal(host) {
            Some(ip) => vec![SocketAddr::new(ip, port)],
            None => look_up(host.to_owned(), port, timeout)?,
        };
        let mut found = self.empty();
        for address in addresses.into_iter().take(MOST) {
            found.push(address);
        }
        if found.is_empty() { Err(Error::HostNotFound) } else { Ok(found) }
    }
}

fn literal(host: &str) -> Option<IpAddr> {
    let v6 = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    v6.unwrap_or(host).parse().ok()
}

/// Nothing is sent before its end: what goes wrong here leaves no doubt whether a command was done.
fn look_up(host: String, port: u16, timeout: NextTimeout) -> Result<Vec<SocketAddr>, Error> {
    let failed = |what, error: io::Error| Unopened::of(io::Error::new(error.kind(), format!("{what}: {error}")).into());
    let (tell, found) = mpsc::sync_channel(1);
    let run = move || {
        // Nobody may wait for it any more.
        let _ = tell.send((host.as_str(), port).to_socket_addrs());
    };
    let thread = Builder::new().name("names".to_owned()).spawn(run);
    thread.map_err(|error| failed("no thread to look up its name", error))?;
    match found.recv_timeout(*timeout.after) {
        Ok(found) => Ok(found.map_err(|error| failed("its name cannot be looked up", error))?.collect()),
        Err(_) => Err(Error::Timeout(timeout.reason)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ureq::unversioned::transport::time::Duration;

    /// With a timeout that leaves no time for any other thread.
    fn at_once(uri: &str) -> Result<Vec<SocketAddr>, Error> {
        let timeout =
            NextTimeout { after: Duration::from_secs(0), reason: ureq::Timeout::Resolve, ..NextTimeout::default() };
        Names.resolve(&uri.parse().unwrap(), &Config::default(), timeout).map(|found| found.to_vec())
    }

    #[test]
    fn an_ip_address_is_not_looked_up() {
        assert_eq!(at_once("http://10.0.0.1:7070/v1/role").unwrap(), ["10.0.0.1:7070".parse().unwrap()]);
        assert_eq!(at_once("https://[::1]:7070/").unwrap(), ["[::1]:7070".parse().unwrap()]);
    }

    #[test]
    fn a_name_is_and_in_time() {
        assert!(matches!(at_once("http://no-such-host.invalid:1/"), Err(Error::Timeout(ureq::Timeout::Resolve))));
        let long =
            NextTimeout { after: Duration::from_secs(60), reason: ureq::Timeout::Resolve, ..NextTimeout::default() };
        let found = Names.resolve(&"http://localhost:7070/".parse().unwrap(), &Config::default(), long).unwrap();
        assert!(found.iter().all(|address| address.ip().is_loopback() && address.port() == 7070), "{found:?}");
    }
}
