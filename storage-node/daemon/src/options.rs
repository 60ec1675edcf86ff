//! What a node is started with.

use crate::Error;
use crate::limits::{MAX_DISKS_PER_REACTOR, MIN_MEMORY, MIN_METADATA_CACHE};
use conductor_model::NodeId;
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
    /// Where the first reactor listens over RDMA, too, if it does; the others on the ports after it. Others use this address.
    pub rdma: Option<SocketAddr>,
    /// The address that others use over TCP, if it is not the one listened on.
    pub advertise: Option<IpAddr>,
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
        if self.listen.ip().is_unspecified() && self.advertise.is_none() {
            return Err(Error::Unspecified(self.listen));
        }
        if let Some(rdma) = self.rdma {
            if self.tls {
                return Err(Error::RdmaInClear(rdma));
            }
            if !rdma.ip().is_loopback() && !self.plaintext {
                return Err(Error::Plaintext(rdma));
            }
            // A device is bound to an address, and there is no other one to tell of.
            if rdma.ip().is_unspecified() {
                return Err(Error::Unspecified(rdma));
            }
        }
        for listen in [Some(self.listen), self.rdma].into_iter().flatten() {
            let last = usize::from(listen.port()) + self.reactors - 1;
            if listen.port() != 0 && last > usize::from(u16::MAX) {
                return Err(Error::Ports(listen));
            }
        }
        Ok(())
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

    /// Where it listens over RDMA.
    pub(crate) fn rdma_of(&self, lane: u16) -> Option<SocketAddr> {
        self.rdma.map(|first| of_lane(first, lane))
    }

    /// What others are told of the address `actual`.
    pub(crate) fn endpoint(&self, actual: SocketAddr) -> SocketAddr {
        SocketAddr::new(self.advertise.unwrap_or(actual.ip()), actual.port())
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
                .map(|n| DiskPlan { path: format!("disk{n}").into(), create: None, journal: None })
                .collect(),
            sparse: false,
            format: false,
            force: false,
            allow_buffered: false,
            listen: "127.0.0.1:7100".parse().unwrap(),
            rdma: None,
            advertise: None,
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
        assert_eq!(options.endpoint("127.0.0.1:9".parse().unwrap()), "127.0.0.1:9".parse().unwrap());
    }

    #[test]
    fn what_cannot_work_is_refused_with_a_sentence() {
        let beyond = |plaintext, advertise: Option<&str>| NodeOptions {
            listen: "0.0.0.0:7100".parse().unwrap(),
            plaintext,
            advertise: advertise.map(|a| a.parse().unwrap()),
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
        let rdma = |at: &str, plaintext| NodeOptions { rdma: Some(at.parse().unwrap()), plaintext, ..options(1) };
        assert!(matches!(rdma("10.0.0.1:7100", false).check(), Err(Error::Plaintext(_))));
        assert!(matches!(rdma("0.0.0.0:7100", true).check(), Err(Error::Unspecified(_))));
        let both = NodeOptions { tls: true, ..rdma("127.0.0.1:7100", true) };
        assert!(matches!(both.check(), Err(Error::RdmaInClear(_))), "the way that is tried first is in clear");
        let two = NodeOptions { reactors: 2, disks: options(2).disks, ..rdma("10.0.0.1:65535", true) };
        assert!(matches!(two.check(), Err(Error::Ports(_))));
        assert_eq!(rdma("10.0.0.1:7100", true).rdma_of(2), Some("10.0.0.1:7102".parse().unwrap()));
        let high = NodeOptions { listen: "127.0.0.1:65535".parse().unwrap(), reactors: 2, ..options(2) };
        assert!(matches!(high.check(), Err(Error::Ports(_))));
    }
}
