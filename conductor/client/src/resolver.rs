//! Where an address is.
//!
//! An IP address says so itself. A name is looked up, for which nothing but the system's own configuration sets a time: that is done by a
//! thread of its own, so that a call keeps its deadline and the next conductor has its turn. ureq's own resolver makes such a thread of every
//! address, and panics where the system has none to give, which ends a daemon whose I/O goes on without any conductor.

use crate::secure::Unopened;
use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
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
            None => look_up((host.to_owned(), port), timeout)?,
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

/// A name that is looked up, for all who want it: one that hangs takes one thread, and not one of each call.
#[derive(Debug, Default)]
struct LookUp {
    found: Mutex<Option<Result<Vec<SocketAddr>, String>>>,
    over: Condvar,
}

type Name = (String, u16);
static UNDER_WAY: Mutex<BTreeMap<Name, Arc<LookUp>>> = Mutex::new(BTreeMap::new());

/// What is locked here is whole whoever panics.
fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Nothing is sent before its end: what goes wrong here leaves no doubt whether a command was done.
fn look_up(name: Name, timeout: NextTimeout) -> Result<Vec<SocketAddr>, Error> {
    let look = under_way(name).map_err(|error| failed("no thread to look up its name", &error.to_string()))?;
    let found = look.over.wait_timeout_while(lock(&look.found), *timeout.after, |found| found.is_none());
    let (found, _) = found.unwrap_or_else(PoisonError::into_inner);
    match found.as_ref() {
        Some(Ok(addresses)) => Ok(addresses.clone()),
        Some(Err(why)) => Err(failed("its name cannot be looked up", why)),
        None => Err(Error::Timeout(ureq::Timeout::Resolve)),
    }
}

fn failed(what: &str, why: &str) -> Error {
    Unopened::of(io::Error::other(format!("{what}: {why}")).into())
}

/// The look-up of a name that is under way, or a new one.
fn under_way(name: Name) -> io::Result<Arc<LookUp>> {
    let mut all = lock(&UNDER_WAY);
    if let Some(look) = all.get(&name) {
        return Ok(Arc::clone(look));
    }
    let look = Arc::<LookUp>::default();
    let (own, told) = (name.clone(), Arc::clone(&look));
    // It ends behind the entry that is made here, which it removes.
    Builder::new().name("names".to_owned()).spawn(move || {
        let (host, port) = &own;
        let found = (host.as_str(), *port).to_socket_addrs();
        lock(&UNDER_WAY).remove(&own);
        *lock(&told.found) = Some(found.map(Iterator::collect).map_err(|error| error.to_string()));
        told.over.notify_all();
    })?;
    all.insert(name, Arc::clone(&look));
    Ok(look)
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

    #[test]
    fn a_name_that_is_looked_up_is_not_looked_up_beside_that() {
        let name = ("trine-looked-up-already".to_owned(), 7070);
        let look = Arc::<LookUp>::default();
        lock(&UNDER_WAY).insert(name.clone(), Arc::clone(&look));
        assert!(matches!(at_once("http://trine-looked-up-already:7070/"), Err(Error::Timeout(_))), "it hangs");
        let address = "10.0.0.7:7070".parse().unwrap();
        *lock(&look.found) = Some(Ok(vec![address]));
        assert_eq!(at_once("http://trine-looked-up-already:7070/").unwrap(), [address]);
        lock(&UNDER_WAY).remove(&name);
    }
}
