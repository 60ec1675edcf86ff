//! The conductors' addresses as people write them.

use crate::Error;

/// More conductors than any cluster needs: three or five.
const MOST: usize = 16;

/// One or more, with commas between.
pub(crate) fn base_urls(addresses: &str) -> Result<Vec<String>, Error> {
    let all = addresses.split(',').map(|address| base_url(address.trim())).collect::<Result<Vec<_>, _>>()?;
    let bad = |why| Error::BadAddress { address: addresses.to_owned(), why };
    if all.len() > MOST {
        return Err(bad("more than 16 conductors"));
    }
    if !all.iter().all(|base| is_tls(base)) && all.iter().any(|base| is_tls(base)) {
        return Err(bad("either all conductors of a cluster speak TLS or none does"));
    }
    Ok(all)
}

/// Whether TLS is spoken there.
pub(crate) fn is_tls(base: &str) -> bool {
    base.starts_with("https://")
}

/// `http://HOST:PORT`, from that, from `http://HOST:PORT/`, or from `HOST:PORT`; the same with https, but for the last.
fn base_url(address: &str) -> Result<String, Error> {
    let bad = |why| Error::BadAddress { address: address.to_owned(), why };
    let (scheme, rest) = match address.split_once("://") {
        Some((scheme @ ("http" | "https"), rest)) => (scheme, rest),
        Some(_) => return Err(bad("only http and https are spoken")),
        None => ("http", address),
    };
    let rest = rest.strip_suffix('/').unwrap_or(rest);
    let (host, port) = rest.rsplit_once(':').ok_or(bad("it names no port"))?;
    if port.parse::<u16>().is_err() {
        return Err(bad("its port is no number from 0 to 65535"));
    }
    let bracketed = host.strip_prefix('[').and_then(|h| h.strip_suffix(']'));
    let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_');
    let is_host = match bracketed {
        Some(v6) => v6.parse::<std::net::Ipv6Addr>().is_ok(),
        None => !host.is_empty() && host.bytes().all(plain),
    };
    if !is_host {
        return Err(bad("it is not HOST:PORT"));
    }
    Ok(format!("{scheme}://{host}:{port}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ways_of_writing_it_are_one() {
        for address in ["http://127.0.0.1:7070", "http://127.0.0.1:7070/", "127.0.0.1:7070"] {
            assert_eq!(base_url(address).unwrap(), "http://127.0.0.1:7070");
        }
        assert_eq!(base_url("https://c1:7070/").unwrap(), "https://c1:7070");
        assert_eq!(base_url("[::1]:7070").unwrap(), "http://[::1]:7070");
        assert_eq!(base_url("conductor-1.example:80").unwrap(), "http://conductor-1.example:80");
    }

    #[test]
    fn several_have_commas_between() {
        let both = ["http://a:1", "http://b:2"].map(str::to_owned).to_vec();
        assert_eq!(base_urls("a:1, http://b:2/").unwrap(), both);
        assert!(base_urls("https://a:1,b:2").is_err(), "half a cluster with TLS");
        assert!(base_urls("a:1,").is_err() && base_urls("").is_err() && base_urls(&vec!["a:1"; 17].join(",")).is_err());
    }

    #[test]
    fn nonsense_is_refused() {
        for address in ["", ":", "host", "host:", "host:x", "host:70000", "ftp://h:1", "h/p:1", "u@h:1", "::1:80"] {
            assert!(base_url(address).is_err(), "{address}");
        }
    }
}
