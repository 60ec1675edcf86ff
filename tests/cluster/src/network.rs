//! Where the processes of a cluster are: each in a network namespace of its own, between which packets can be dropped; or all on
//! loopback, where they cannot.
//!
//! ```text
//!   [conductor] [n1] [n2] [n3] [client]     ethN = 10.77.N.k in each namespace, its other end in the switch's
//!        └───────┴────┴────┴──────┘
//!              switch: a bridge each        the test looks on from here: nobody is ever cut off from it
//! ```
//!
//! What is cut is dropped by the receiver's nftables, without a word, as a broken network does; a cable that is pulled has its end in the
//! switch taken from the bridge, so that the carrier stays.

use anyhow::{Context, Result, ensure};
use std::ffi::OsString;
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU8, Ordering};

/// Who is somewhere in the network.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Spot {
    /// The test, and `trine` as a person calls it.
    Observer,
    /// The conductor.
    Conductor,
    /// A node; n1 is 0.
    Node(u8),
    /// The targets.
    Client,
}

/// The network of one cluster.
#[derive(Debug)]
pub struct Network {
    /// How the names of its namespaces begin; `None`: everything is on loopback.
    name: Option<String>,
    nodes: u8,
    /// To each of which everybody has a cable.
    bridges: u8,
    /// On loopback: an address range of its own.
    range: u8,
}

fn run(program: &str, args: &[&str]) -> Result<()> {
    let shown = || format!("{program} {}", args.join(" "));
    let out = Command::new(program).args(args).output().with_context(shown)?;
    ensure!(out.status.success(), "{}: {}", shown(), String::from_utf8_lossy(&out.stderr).trim());
    Ok(())
}

impl Network {
    /// Namespaces for so many nodes if this machine allows that, which takes root; else loopback.
    pub fn new(nodes: u8) -> Result<Self> {
        Self::with_bridges(nodes, 1)
    }

    /// The same with so many networks side by side, where they can be made.
    pub fn with_bridges(nodes: u8, bridges: u8) -> Result<Self> {
        static NEXT: AtomicU8 = AtomicU8::new(0);
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let mut this = Self { name: Some(format!("trine{}-{n}", std::process::id())), nodes, bridges, range: n };
        match this.make() {
            Ok(()) => Ok(this),
            Err(_) if !nix::unistd::geteuid().is_root() => {
                this.clear();
                (this.name, this.bridges) = (None, 1);
                Ok(this)
            }
            Err(error) => Err(error.context("network namespaces")),
        }
    }

    /// True if `deafen` works.
    pub fn can_be_cut(&self) -> bool {
        self.name.is_some()
    }

    fn spots(&self) -> impl Iterator<Item = Spot> + use<> {
        [Spot::Conductor, Spot::Client].into_iter().chain((0..self.nodes).map(Spot::Node))
    }

    fn make(&self) -> Result<()> {
        let switch = self.namespace(Spot::Observer).unwrap_or_default();
        run("ip", &["netns", "add", &switch])?;
        for bridge in 0..self.bridges {
            let (br, address) = (format!("br{bridge}"), format!("{}/24", self.address_on(bridge, Spot::Observer)));
            run("ip", &["-n", &switch, "link", "add", &br, "type", "bridge"])?;
            run("ip", &["-n", &switch, "addr", "add", &address, "dev", &br])?;
            run("ip", &["-n", &switch, "link", "set", "dev", &br, "up"])?;
        }
        for spot in self.spots() {
            let name = self.namespace(spot).unwrap_or_default();
            run("ip", &["netns", "add", &name])?;
            run("ip", &["-n", &name, "link", "set", "dev", "lo", "up"])?;
            for bridge in 0..self.bridges {
                let (eth, br, port) = (format!("eth{bridge}"), format!("br{bridge}"), port(bridge, spot));
                let address = format!("{}/24", self.address_on(bridge, spot));
                run(
                    "ip",
                    &["-n", &name, "link", "add", &eth, "type", "veth", "peer", "name", &port, "netns", &switch],
                )?;
                run("ip", &["-n", &switch, "link", "set", "dev", &port, "master", &br, "up"])?;
                run("ip", &["-n", &name, "addr", "add", &address, "dev", &eth])?;
                run("ip", &["-n", &name, "link", "set", "dev", &eth, "up"])?;
            }
            let chain = "add table inet chaos; add chain inet chaos in { type filter hook input priority 0; }";
            self.nft(spot, chain)?;
        }
        Ok(())
    }

    fn nft(&self, at: Spot, command: &str) -> Result<()> {
        let prefix = self.prefix(at);
        let mut argv = prefix.iter().map(|part| part.to_str().unwrap_or_default());
        let program = argv.next().context("no namespaces")?;
        run(program, &argv.chain(["nft", command]).collect::<Vec<_>>())
    }

    fn namespace(&self, spot: Spot) -> Option<String> {
        self.name.as_ref().map(|name| format!("{name}-{}", number(spot)))
    }

    /// The address of somebody.
    pub fn address(&self, spot: Spot) -> IpAddr {
        self.address_on(0, spot)
    }

    /// One for each network.
    pub fn addresses(&self, spot: Spot) -> impl Iterator<Item = IpAddr> {
        (0..self.bridges).map(move |bridge| self.address_on(bridge, spot))
    }

    fn address_on(&self, bridge: u8, spot: Spot) -> IpAddr {
        let address = match self.name {
            Some(_) => Ipv4Addr::new(10, 77, bridge, number(spot)),
            // The whole range is this machine's: no other test has these addresses.
            None => {
                let [.., high, low] = std::process::id().to_be_bytes();
                Ipv4Addr::new(127, 128 | (high & 0x3f), low, 32 * (self.range % 8) + number(spot) % 32)
            }
        };
        address.into()
    }

    /// What goes before a command line so that it runs there.
    pub fn prefix(&self, spot: Spot) -> Vec<OsString> {
        let Some(name) = self.namespace(spot) else { return Vec::new() };
        vec!["nsenter".into(), PathBuf::from(format!("--net=/run/netns/{name}")).into()]
    }

    /// From now on `at` gets nothing that `from` sends.
    pub fn deafen(&self, at: Spot, from: Spot) -> Result<()> {
        self.nft(at, &format!("add rule inet chaos in ip saddr {} drop", self.address(from)))
    }

    /// Neither gets what the other one sends.
    pub fn cut(&self, one: Spot, other: Spot) -> Result<()> {
        self.deafen(one, other)?;
        self.deafen(other, one)
    }

    /// Pulls somebody's cable to a network out of the switch.
    pub fn pull(&self, bridge: u8, spot: Spot) -> Result<()> {
        let switch = self.namespace(Spot::Observer).context("no namespaces")?;
        run("ip", &["-n", &switch, "link", "set", "dev", &port(bridge, spot), "nomaster"])
    }

    /// And puts it back.
    pub fn plug(&self, bridge: u8, spot: Spot) -> Result<()> {
        let switch = self.namespace(Spot::Observer).context("no namespaces")?;
        run("ip", &["-n", &switch, "link", "set", "dev", &port(bridge, spot), "master", &format!("br{bridge}")])
    }

    /// Everybody hears everybody again.
    pub fn heal(&self) -> Result<()> {
        if self.name.is_none() {
            return Ok(());
        }
        self.spots().try_for_each(|spot| self.nft(spot, "flush chain inet chaos in"))
    }

    fn clear(&self) {
        for spot in self.spots().chain([Spot::Observer]) {
            if let Some(name) = self.namespace(spot) {
                // Some may not have been made.
                let _ = run("ip", &["netns", "del", &name]);
            }
        }
    }

    /// How the names of its namespaces begin, for who cleans up behind a test that was killed.
    pub(crate) fn names(&self) -> &str {
        self.name.as_deref().unwrap_or_default()
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        self.clear();
    }
}

/// The switch's end of somebody's cable to a network.
fn port(bridge: u8, spot: Spot) -> String {
    format!("p{bridge}-{}", number(spot))
}

fn number(spot: Spot) -> u8 {
    match spot {
        Spot::Observer => 254,
        Spot::Conductor => 1,
        Spot::Client => 2,
        Spot::Node(n) => 11 + n,
    }
}
