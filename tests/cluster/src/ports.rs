//! Ports for processes of a test, which may be killed and started again: none that the kernel gives to outgoing connections
//! meanwhile (`ip_local_port_range`, from 32768 on).

use anyhow::{Context, Result};
use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::{AtomicU32, Ordering};

/// Below those of the kernel, and apart from those of well-known services.
const PORTS: std::ops::Range<u32> = 10_000..32_768;

/// So many free ports of 127.0.0.1, all held until all were known.
pub(crate) fn free_ports(count: usize) -> Result<Vec<SocketAddr>> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let len = PORTS.end - PORTS.start;
    // Each process of tests begins somewhere else.
    let begin = std::process::id().wrapping_mul(0x9e37_79b1) % len;
    let tried = (0..len).map(|_| PORTS.start + (begin + NEXT.fetch_add(1, Ordering::Relaxed)) % len);
    let free = tried.filter_map(|port| TcpListener::bind(("127.0.0.1", u16::try_from(port).ok()?)).ok());
    let held: Vec<TcpListener> = free.take(count).collect();
    anyhow::ensure!(held.len() == count, "there are no {count} free ports");
    held.iter().map(|listener| listener.local_addr().context("a listener without an address")).collect()
}
