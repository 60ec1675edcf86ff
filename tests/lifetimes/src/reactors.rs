//! Two reactors, each on a thread of its own and, if so wanted, in a network namespace of its own.

use driver::Address;
use nix::sched::{CloneFlags, setns};
use reactor::{Limits, Mailbox, OwnRing, Uring, mailbox};
use std::fs::File;
use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::{Ends, Order, Peer, Told, Who};

/// For everything that a case waits for.
const PATIENCE: Duration = Duration::from_secs(60);
/// Orders that a peer has not looked at.
const ORDERS: usize = 64;

/// What the connections go over.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Over {
    /// Loopback.
    Tcp,
    /// RDMA.
    Rdma {
        /// Where the server listens.
        at: SocketAddr,
        /// The network namespaces of client and server; none: this process's.
        spaces: Option<[String; 2]>,
    },
}

/// See the module's head.
pub struct Reactors {
    at: Address,
    ends: [End; 2],
}

struct End {
    orders: Mailbox<Order>,
    told: Receiver<Told>,
    thread: Option<JoinHandle<()>>,
}

impl Reactors {
    /// Starts both.
    pub fn new(over: &Over) -> Self {
        let (server, at) = start(Who::Server, over);
        let (client, _) = start(Who::Client, over);
        Self { at, ends: [client, server] }
    }

    fn join(&mut self, who: Who) {
        if let Some(thread) = self.ends[who as usize].thread.take() {
            thread.join().unwrap();
        }
    }
}

/// Starts a peer; says where it listens, if it is the server.
fn start(who: Who, over: &Over) -> (End, Address) {
    let (orders, mail) = mailbox(ORDERS).unwrap();
    let (tell, told) = channel();
    let (ready, is_ready) = channel();
    let over = over.clone();
    let thread = thread::spawn(move || {
        let (address, rdma) = match &over {
            Over::Tcp => (Address::Tcp(([127, 0, 0, 1], 0).into()), false),
            Over::Rdma { at, .. } => (Address::Rdma(*at), true),
        };
        if let Over::Rdma { spaces: Some(spaces), .. } = &over {
            let space = File::open(format!("/run/netns/{}", spaces[who as usize])).unwrap();
            setns(space, CloneFlags::CLONE_NEWNET).unwrap();
        }
        let limits = Limits::default();
        let mut uring = Uring::new(OwnRing::new(&limits).unwrap(), limits).unwrap();
        let peer = Peer::new(who, 1 + who as u64);
        if rdma {
            uring.open_rdma(peer.arena()).unwrap();
        }
        let listener = (who == Who::Server).then(|| uring.listen(&address).unwrap());
        let (listener, actual) = listener.map_or((None, address), |(listener, actual)| (Some(listener), actual));
        ready.send(actual).unwrap();
        // A case that has failed does not listen any more.
        let ended = reactor::run(peer.on(listener), uring, mail, |told: Told| drop(tell.send(told))).unwrap();
        assert!(ended.streams_left_open == 0 || ended.machine.vanished(), "streams left open");
    });
    let at: Result<Address, _> = is_ready.recv();
    match at {
        Ok(at) => (End { orders, told, thread: Some(thread) }, at),
        Err(_) => panic!("the {who:?} did not start: {:?}", thread.join().map_err(|_| "see above")),
    }
}

impl Ends for Reactors {
    fn address(&self) -> Address {
        self.at.clone()
    }

    fn nowhere(&self) -> Address {
        match self.at {
            Address::Rdma(at) => Address::Rdma(SocketAddr::new(at.ip(), at.port() + 1)),
            _ => Address::Tcp(([127, 0, 0, 1], 1).into()),
        }
    }

    fn tell(&mut self, who: Who, order: Order) {
        self.ends[who as usize].orders.send(order).unwrap();
    }

    fn next(&mut self, who: Who) -> Told {
        let told = self.ends[who as usize].told.recv_timeout(PATIENCE);
        told.unwrap_or_else(|error| panic!("the {who:?} tells nothing: {error}"))
    }

    fn pause(&mut self) {
        thread::sleep(Duration::from_millis(1));
    }

    fn kill(&mut self, who: Who) {
        self.tell(who, Order::Vanish);
        self.join(who);
    }

    fn descriptors(&self) -> Option<usize> {
        Some(std::fs::read_dir("/proc/self/fd").unwrap().count())
    }

    fn end(mut self: Box<Self>) {
        for end in &self.ends {
            // One that was told so already, or was killed, has ended.
            let _ended = end.orders.send(Order::Stop);
        }
        for who in [Who::Client, Who::Server] {
            self.join(who);
        }
    }
}
