//! `trine node run --listen`: the addresses that a node listens at.

use conductor_model::TransportAddress;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

/// One address of `--listen`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Listen {
    rdma: bool,
    ip: IpAddr,
    port: Option<u16>,
}

impl FromStr for Listen {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let at = text.strip_prefix("rdma:").or_else(|| text.strip_prefix("tcp:")).unwrap_or(text);
        let rdma = text.starts_with("rdma:");
        let bare = at.strip_prefix('[').and_then(|at| at.strip_suffix(']')).unwrap_or(at);
        match (at.parse::<SocketAddr>(), bare.parse::<IpAddr>()) {
            (Ok(at), _) => Ok(Self { rdma, ip: at.ip(), port: Some(at.port()) }),
            (_, Ok(ip)) => Ok(Self { rdma, ip, port: None }),
            _ => Err("write IP:PORT, behind the first one also IP, rdma:IP or rdma:IP:PORT".to_owned()),
        }
    }
}

/// The address over TCP that is the node's name, and the others: RDMA's ports are not TCP's, so the same number will do.
pub(crate) fn listens(given: &[Listen]) -> Result<(SocketAddr, Vec<TransportAddress>), String> {
    let name = given.iter().position(|listen| !listen.rdma);
    let name =
        name.ok_or("--listen rdma: is beside TCP, which is what others fall back to: --listen IP:PORT,rdma:IP")?;
    let Listen { ip, port: Some(port), .. } = given[name] else {
        return Err("--listen: the first address needs a port: --listen IP:PORT,IP".to_owned());
    };
    let others = given.iter().enumerate().filter(|(place, _)| *place != name).map(|(_, listen)| {
        let at = SocketAddr::new(listen.ip, listen.port.unwrap_or(port));
        if listen.rdma { TransportAddress::Rdma(at) } else { TransportAddress::Tcp(at) }
    });
    Ok((SocketAddr::new(ip, port), others.collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_address_over_tcp_is_the_name_and_has_the_port() {
        let at = |given: &str| {
            let given: Result<Vec<Listen>, String> = given.split(',').map(str::parse).collect();
            let (name, others) = given.and_then(|given| listens(&given))?;
            Ok::<_, String>(others.iter().fold(name.to_string(), |text, other| format!("{text} {other}")))
        };
        for (given, means) in [
            ("10.0.0.1:7100", "10.0.0.1:7100"),
            ("rdma:10.0.0.2,10.0.0.1:7100", "10.0.0.1:7100 rdma:10.0.0.2:7100"),
            ("[::1]:1,rdma:[::1]:2", "[::1]:1 rdma:[::1]:2"),
            ("[::1]:1,[::2],rdma:[::1]", "[::1]:1 tcp:[::2]:1 rdma:[::1]:1"),
            ("10.0.0.1:7100,10.1.0.1,10.2.0.1:9", "10.0.0.1:7100 tcp:10.1.0.1:7100 tcp:10.2.0.1:9"),
        ] {
            assert_eq!(at(given).unwrap(), means, "{given}");
        }
        for wrong in ["rdma:10.0.0.1", "10.0.0.1", "10.0.0.1,10.0.0.2:1", "10.0.0.1:1,rdma:x", "host:1", ""] {
            assert!(at(wrong).is_err(), "{wrong:?}");
        }
    }
}
