//! Ports for processes that are stopped and started again.
//!
//! While such a process is away its port is free. The kernel gives outgoing connections ports of a range of its own
//! (`ip_local_port_range`): a port of that range may have been given to one when the process comes back, which then cannot listen. So
//! ports are chosen below that range, where nobody gets one that did not ask for it.

use crate::output::{Exit, Failure, Outcome};
use std::net::{SocketAddr, TcpListener};
use std::ops::Range;

/// Attempts to find free ports in a row.
const ATTEMPTS: usize = 100;
/// Below are the ports of well-known services.
const LOWEST: u16 = 10_000;
/// Where the kernel's own range begins unless somebody changed it.
const KERNELS: u16 = 32_768;

/// Free ports, so many in a row for each: from `base` on, or any. All are held until all are chosen. The first of each row.
pub(crate) fn ports(base: Option<u16>, rows: &[u16]) -> Outcome<Vec<SocketAddr>> {
    let mut held = Vec::new();
    let mut next = base;
    for count in rows {
        let row = match next {
            Some(first) => {
                let row = row(first, *count).map_err(|why| {
                    Failure::new(
                        Exit::Refused,
                        format!("{count} ports of 127.0.0.1 from {first} on cannot be used: {why}"),
                    )
                })?;
                next = Some(first.checked_add(*count).ok_or_else(|| Failure::usage("there are no ports after 65535"))?);
                row
            }
            None => any_row(*count)?,
        };
        held.push(row);
    }
    let first = held.iter().filter_map(|row| row.first()).map(TcpListener::local_addr);
    Ok(first.collect::<Result<_, _>>().map_err(anyhow::Error::from)?)
}

fn row(first: u16, count: u16) -> std::io::Result<Vec<TcpListener>> {
    (0..count)
        .map(|n| TcpListener::bind(("127.0.0.1", first.checked_add(n).ok_or(std::io::ErrorKind::AddrNotAvailable)?)))
        .collect()
}

fn any_row(count: u16) -> Outcome<Vec<TcpListener>> {
    let range = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap_or_default();
    let firsts = firsts(&range, count);
    for _ in 0..ATTEMPTS {
        let drawn = getrandom::u32().map_err(anyhow::Error::from)?;
        let first = u32::from(firsts.start) + drawn % u32::from(firsts.end - firsts.start);
        if let Ok(row) = row(u16::try_from(first).unwrap_or(LOWEST), count) {
            return Ok(row);
        }
    }
    Err(Failure::new(
        Exit::Failed,
        format!("found no {count} free ports in a row on 127.0.0.1: choose some with --port"),
    ))
}

/// Where a row of so many ports may begin. Where there is no room below the kernel's range, anywhere: it is only likelier to be taken then.
fn firsts(range: &str, count: u16) -> Range<u16> {
    let kernels = range.split_ascii_whitespace().next().and_then(|first| first.parse().ok()).unwrap_or(KERNELS);
    let end = |limit: u16| limit.saturating_sub(count.max(1)).saturating_add(1);
    let below = LOWEST..end(kernels);
    if below.len() > ATTEMPTS { below } else { LOWEST..end(u16::MAX) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_lie_below_the_ports_that_the_kernel_gives_away() {
        assert_eq!(firsts("32768\t60999\n", 1), 10_000..32_768);
        assert_eq!(firsts("32768\t60999\n", 8), 10_000..32_761, "the last one, too");
        assert_eq!(firsts("", 1), 10_000..32_768);
        assert_eq!(firsts("1024\t65535\n", 2), 10_000..65_534, "no room below");
        let kernels = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").expect("Linux");
        let from: u16 = kernels.split_ascii_whitespace().next().and_then(|n| n.parse().ok()).expect("two numbers");
        let all = ports(None, &[1, 4, 4]).unwrap_or_else(|failure| panic!("{failure:?}"));
        assert_eq!(all.len(), 3);
        assert!(from < 11_000 || all.iter().all(|at| at.port() < from), "{all:?}");
    }
}
