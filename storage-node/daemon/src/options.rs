//! What a node is started with.

use crate::Error;
use crate::limits::{MAX_DISKS_PER_REACTOR, MIN_MEMORY, MIN_METADATA_CACHE};
use conductor_model::limits::MAX_ADDRESSES;
use conductor_model::{NodeId, TransportAddress};
use memory::{HugePages, NamedFiles, Placement};
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

/// One disk.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DiskPlan {
    /// A file or a block device.
    pub path: PathBuf,
    /// Bytes of the file to be made if there is nothing at that path.
    pub create: Option<u64>,
    /// Where its store keeps its journal, if not on the disk itself: a block device, or a file, which is mapped; best on NVDIMM. A file
    /// is made if there is none and the disk's size is said.
    pub journal: Option<PathBuf>,
    /// Bytes of the journal of a store that is made: from [`MIN_JOURNAL_BYTES`](crate::MIN_JOURNAL_BYTES) to
    /// [`MAX_JOURNAL_BYTES`](crate::MAX_JOURNAL_BYTES), and half the disk at most; a sixteenth of it if nothing is said. What is written again
    /// before it goes home is written home once, so that a journal larger than what is written all the time spares writes.
    pub journal_size: Option<u64>,
}

/// How to run a node.
#[derive(Clone, Debug)]
pub struct NodeOptions {
    /// Its number, from 1; the same for ever.
    pub node: NodeId,
    /// Its machine, for people and for failure domains.
    pub host: String,
    /// The rack that its machine is in; empty: the machine stands for itself.
    pub rack: String,
    /// Its disks.
    pub disks: Vec<DiskPlan>,
    /// Reserve no space for files that are made. They are slow at first, and the file system can be full before they are: for trying
    /// out only. Otherwise they are written in full.
    pub sparse: bool,
    /// Make a store on disks that hold none. A disk that holds one is never formatted.
    pub format: bool,
    /// Make it although a disk carries something else's marks, which are wiped. One that is mounted or otherwise in use stays refused.
    pub force: bool,
    /// Take the page cache where a file system refuses O_DIRECT.
    pub allow_buffered: bool,
    /// Where the first reactor listens; the others on the ports after it. Port 0 takes any free one for each.
    pub listen: SocketAddr,
    /// Where it listens, too: at most [`MAX_ADDRESSES`]; the other reactors on the ports after each. Others use these addresses.
    pub more: Vec<TransportAddress>,
    /// The addresses that others use over TCP instead of `listen`, which may be all of this machine's; the first one is the node's name.
    pub advertise: Vec<IpAddr>,
    /// `HOST:PORT` of the conductor.
    pub conductor: String,
    /// What proves that a peer belongs to the cluster.
    pub key: [u8; 32],
    /// Where to listen for `trine node show`; nowhere if none.
    pub control: Option<PathBuf>,
    /// Buffer memory of all reactors together, in bytes.
    pub memory: u64,
    /// Memory for the metadata of each disk, beside that: at least [`crate::MIN_METADATA_CACHE`].
    pub metadata_cache: u64,
    /// Have the buffers on reserved huge pages, all there from the start.
    pub huge_pages: bool,
    /// Or on files in these directories, best one on each memory node; in ordinary memory if there is none.
    pub memory_dirs: Vec<PathBuf>,
    /// Requests in flight per connection and direction.
    pub depth: u16,
    /// Reactor threads; the disks are spread over them.
    pub reactors: usize,
    /// Processors for the reactor threads, in turn; empty leaves it to the kernel.
    pub pin: Vec<usize>,
    /// Listen beyond loopback although nothing is encrypted.
    pub plaintext: bool,
    /// All that goes over TCP is TLS, with certificates that follow from the key. The conductor's address says it of the conductor.
    pub tls: bool,
}

/// Huge pages that a node with this much memory for its reactors takes.
pub fn huge_pages_needed(memory: u64, reactors: usize) -> u64 {
    let reactors = reactors.max(1);
    let each = usize::try_from(memory).unwrap_or(usize::MAX) / reactors;
    HugePages::for_bytes(each) * reactors as u64
}

impl NodeOptions {
    /// What can be known to be wrong before anything is done.
    pub(crate) fn check(&self) -> Result<(), Error> {
        if self.disks.is_empty() {
            return Err(Error::NoDisk);
        }
        if self.reactors == 0 || self.reactors > self.disks.len() {
            return Err(Error::Reactors { reactors: self.reactors, disks: self.disks.len() });
        }
        if self.disks.len().div_ceil(self.reactors) > MAX_DISKS_PER_REACTOR {
            return Err(Error::TooManyDisks { disks: self.disks.len(), reactors: self.reactors });
        }
        if self.memory / (self.reactors as u64) < MIN_MEMORY {
            return Err(Error::Memory { bytes: self.memory, reactors: self.reactors });
        }
        if self.metadata_cache < MIN_METADATA_CACHE {
            return Err(Error::Cache(self.metadata_cache));
        }
        if !self.listen.ip().is_loopback() && !self.plaintext && !self.tls {
            return Err(Error::Plaintext(self.listen));
        }
        if self.listen.ip().is_unspecified() && self.advertise.is_empty() {
            return Err(Error::Unspecified(self.listen));
        }
        if self.more.len() + self.advertise.len().saturating_sub(1) > MAX_ADDRESSES {
            return Err(Error::Addresses);
        }
        for address in &self.more {
            let at = address.at();
            if self.tls && address.is_rdma() {
                return Err(Error::RdmaInClear(at));
            }
            if !at.ip().is_loopback() && !self.plaintext && !self.tls {
                return Err(Error::Plaintext(at));
            }
            // There is no other one to tell of.
            if at.ip().is_unspecified() {
                return Err(Error::UnspecifiedMore(at));
            }
        }
        let all: Vec<_> = [TransportAddress::Tcp(self.listen)].into_iter().chain(self.more.iter().copied()).collect();
        for (place, address) in all.iter().enumerate() {
            if let Some(other) = all[..place].iter().find(|other| self.collide(**other, *address)) {
                return Err(Error::AddressTwice(*other, *address));
            }
        }
        for listen in self.more.iter().map(|address| address.at()).chain([self.listen]) {
            let last = usize::from(listen.port()) + self.reactors - 1;
            if listen.port() != 0 && last > usize::from(u16::MAX) {
                return Err(Error::Ports(listen));
            }
        }
        Ok(())
    }

    /// Whether two reactors would listen at the same place.
    fn collide(&self, one: TransportAddress, other: TransportAddress) -> bool {
        let everywhere = one.at().ip().is_unspecified() || other.at().ip().is_unspecified();
        let ports = [one, other].map(|address| usize::from(address.at().port()));
        one.is_rdma() == other.is_rdma()
            && (everywhere || one.at().ip() == other.at().ip())
            && !ports.contains(&0)
            && ports[0].abs_diff(ports[1]) < self.reactors
    }

    /// Buffer memory of each reactor, in bytes.
    pub(crate) fn memory_of_each(&self) -> usize {
        usize::try_from(self.memory).unwrap_or(usize::MAX) / self.reactors
    }

    /// The files that hold the buffers of reactor `lane`, if they are on files: its first directory is its own, as far as there are enough.
    pub(crate) fn memory_files_of(&self, lane: u16) -> Option<NamedFiles> {
        let dirs = self.memory_dirs.clone();
        let name = format!("trine-{}-lane{lane}", self.node);
        (!dirs.is_empty()).then(|| NamedFiles { dirs, name, first: lane.into() })
    }

    /// Where the buffers of reactor `lane` should be: where its thread runs, or, if it may run anywhere, on all memory nodes alike.
    pub(crate) fn placement_of(&self, lane: u16) -> Placement {
        self.cpu_of(lane).map_or(Placement::Spread, Placement::Near)
    }

    /// The processor that reactor `lane` is pinned to.
    pub(crate) fn cpu_of(&self, lane: u16) -> Option<usize> {
        self.pin.iter().copied().cycle().nth(lane.into())
    }

    /// Where reactor `lane` listens.
    pub(crate) fn listen_of(&self, lane: u16) -> SocketAddr {
        of_lane(self.listen, lane)
    }

    /// Where else it listens.
    pub(crate) fn more_of(&self, lane: u16) -> impl Iterator<Item = TransportAddress> {
        self.more.iter().map(move |address| address.on(of_lane(address.at(), lane)))
    }

    /// Whether it listens over RDMA.
    pub(crate) fn is_rdma(&self) -> bool {
        self.more.iter().any(|address| address.is_rdma())
    }

    /// What others are told of the address `actual`: the name, and further addresses.
    pub(crate) fn names(&self, actual: SocketAddr) -> (SocketAddr, Vec<TransportAddress>) {
        let mut told = self.advertise.iter().map(|ip| SocketAddr::new(*ip, actual.port()));
        let name = told.next().unwrap_or(actual);
        (name, told.map(TransportAddress::Tcp).collect())
    }

    /// The disks of reactor `lane`.
    pub(crate) fn disks_of(&self, lane: u16) -> impl Iterator<Item = &DiskPlan> {
        self.disks.iter().skip(usize::from(lane)).step_by(self.reactors)
    }
}

fn of_lane(first: SocketAddr, lane: u16) -> SocketAddr {
    SocketAddr::new(first.ip(), if first.port() == 0 { 0 } else { first.port().saturating_add(lane) })
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn options(disks: usize) -> NodeOptions {
        NodeOptions {
            node: NodeId(1),
            host: "here".to_owned(),
            rack: String::new(),
            disks: (0..disks)
                .map(|n| DiskPlan { path: format!("disk{n}").into(), create: None, journal: None, journal_size: None })
                .collect(),
            sparse: false,
            format: false,
            force: false,
            allow_buffered: false,
            listen: "127.0.0.1:7100".parse().unwrap(),
            more: Vec::new(),
            advertise: Vec::new(),
            conductor: "127.0.0.1:7000".to_owned(),
            key: [0; 32],
            control: None,
            memory: crate::DEFAULT_MEMORY,
            metadata_cache: crate::DEFAULT_METADATA_CACHE,
            huge_pages: false,
            memory_dirs: Vec::new(),
            depth: crate::DEFAULT_DEPTH,
            reactors: 1,
            pin: Vec::new(),
            plaintext: false,
            tls: false,
        }
    }

    #[test]
    fn disks_are_spread_and_each_reactor_has_its_port() {
        let options = NodeOptions { reactors: 2, ..options(5) };
        options.check().unwrap();
        let of = |lane| options.disks_of(lane).map(|d| d.path.display().to_string()).collect::<Vec<_>>();
        assert_eq!(
            (of(0), of(1)),
            (vec!["disk0".into(), "disk2".into(), "disk4".into()], vec!["disk1".into(), "disk3".into()])
        );
        assert_eq!(options.listen_of(1), "127.0.0.1:7101".parse().unwrap());
        assert_eq!(options.memory_files_of(1), None);
        let options = NodeOptions { memory_dirs: vec!["/a".into(), "/b".into()], ..options };
        let files = |lane| options.memory_files_of(lane).unwrap();
        assert_eq!((files(1).first, files(2).first), (1, 2));
        assert_eq!((options.placement_of(1), options.cpu_of(1)), (Placement::Spread, None));
        let pinned = NodeOptions { pin: vec![4, 6], ..options.clone() };
        assert_eq!([0, 1, 2].map(|lane| pinned.placement_of(lane)), [4, 6, 4].map(Placement::Near));
        assert_ne!(files(0).name, files(2).name);
        assert_eq!(options.names("127.0.0.1:9".parse().unwrap()), ("127.0.0.1:9".parse().unwrap(), Vec::new()));
    }

    #[test]
    fn what_cannot_work_is_refused_with_a_sentence() {
        let beyond = |plaintext, advertise: Option<&str>| NodeOptions {
            listen: "0.0.0.0:7100".parse().unwrap(),
            plaintext,
            advertise: advertise.iter().map(|a| a.parse().unwrap()).collect(),
            ..options(1)
        };
        assert!(matches!(beyond(false, Some("10.0.0.1")).check(), Err(Error::Plaintext(_))));
        assert!(matches!(beyond(true, None).check(), Err(Error::Unspecified(_))));
        assert!(beyond(true, Some("10.0.0.1")).check().is_ok());
        assert!(NodeOptions { tls: true, ..beyond(false, Some("10.0.0.1")) }.check().is_ok());
        assert!(matches!(options(0).check(), Err(Error::NoDisk)));
        assert!(matches!(NodeOptions { reactors: 2, ..options(1) }.check(), Err(Error::Reactors { .. })));
        assert!(matches!(NodeOptions { reactors: 0, ..options(1) }.check(), Err(Error::Reactors { .. })));
        assert!(matches!(options(MAX_DISKS_PER_REACTOR + 1).check(), Err(Error::TooManyDisks { .. })));
        assert!(matches!(NodeOptions { memory: 1 << 20, ..options(1) }.check(), Err(Error::Memory { .. })));
        assert!(matches!(NodeOptions { metadata_cache: 1 << 20, ..options(1) }.check(), Err(Error::Cache(_))));
        let more = |at: &str, plaintext| NodeOptions { more: vec![at.parse().unwrap()], plaintext, ..options(1) };
        for over in ["tcp", "rdma"] {
            let at = |at: &str, plaintext| more(&format!("{over}:{at}"), plaintext);
            assert!(matches!(at("10.0.0.1:7100", false).check(), Err(Error::Plaintext(_))));
            assert!(matches!(at("0.0.0.0:7100", true).check(), Err(Error::UnspecifiedMore(_))));
            let two = NodeOptions { reactors: 2, disks: options(2).disks, ..at("10.0.0.1:65535", true) };
            assert!(matches!(two.check(), Err(Error::Ports(_))));
            let third = format!("{over}:10.0.0.1:7102").parse().unwrap();
            assert_eq!(at("10.0.0.1:7100", true).more_of(2).collect::<Vec<_>>(), [third]);
            let both = NodeOptions { tls: true, ..at("10.0.0.1:7100", false) };
            assert_eq!(matches!(both.check(), Err(Error::RdmaInClear(_))), over == "rdma", "in clear");
        }
        let two = |at: &str| NodeOptions { reactors: 2, disks: options(2).disks, ..more(at, true) };
        assert!(matches!(more("tcp:127.0.0.1:7100", true).check(), Err(Error::AddressTwice(..))));
        assert!(matches!(two("tcp:127.0.0.1:7101").check(), Err(Error::AddressTwice(..))), "the second reactor's");
        assert!(two("tcp:127.0.0.1:7102").check().is_ok() && two("tcp:127.0.0.2:7101").check().is_ok());
        let both = NodeOptions { more: two("tcp:10.0.0.1:7100").more, ..beyond(true, Some("10.0.0.1")) };
        assert!(matches!(both.check(), Err(Error::AddressTwice(..))), "0.0.0.0 is everywhere");
        assert!(more("rdma:127.0.0.1:7100", true).check().is_ok(), "its ports are not TCP's");
        let many = NodeOptions { advertise: vec!["10.0.0.1".parse().unwrap(); MAX_ADDRESSES + 2], ..options(1) };
        assert!(matches!(many.check(), Err(Error::Addresses)));
        let everywhere = beyond(true, Some("10.0.0.1"));
        let everywhere =
            NodeOptions { advertise: ["10.0.0.1", "10.1.0.1"].map(|ip| ip.parse().unwrap()).into(), ..everywhere };
        let (name, others) = everywhere.names("0.0.0.0:7101".parse().unwrap());
        assert_eq!(
            (name.to_string(), others),
            ("10.0.0.1:7101".to_owned(), vec!["tcp:10.1.0.1:7101".parse().unwrap()])
        );
        let high = NodeOptions { listen: "127.0.0.1:65535".parse().unwrap(), reactors: 2, ..options(2) };
        assert!(matches!(high.check(), Err(Error::Ports(_))));
    }
}
