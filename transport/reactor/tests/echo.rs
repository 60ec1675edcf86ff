//! An echo server on a reactor: thousands of messages, one enter per turn, nothing left at the end.
#![allow(clippy::unwrap_used, dead_code, reason = "a test, and helpers that not every test uses")]

mod common;

use common::{Dir, any_port, driver};
use driver::{Address, Conn, ConnId, Done, ListenerId, Machine, Op, Outbox, Provider, StreamId, Time, why};
use memory::{Arena, Class};
use reactor::{Ended, Limits, Mailbox, mailbox};
use refcount::{Hold, Table};
use smallvec::smallvec;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::unix::net::UnixStream;
use std::thread::{self, JoinHandle};

/// Sends back what it receives, one receive or send per stream at a time. Told to stop, it shuts all streams down.
struct Echo {
    arena: Arena,
    conns: Table<Conn>,
    listeners: Vec<ListenerId>,
    open: Vec<(StreamId, Hold<Conn, why::Owner>)>,
    submitted: u64,
    done: u64,
    stopping: bool,
}

impl Echo {
    fn ask(&mut self, op: Op, out: &mut dyn Outbox<String>) {
        self.submitted += 1;
        out.submit(op);
    }

    fn recv(&mut self, stream: StreamId, on: Hold<Conn, why::Rx>, out: &mut dyn Outbox<String>) {
        let into = self.arena.take(256 << 10, Class::Client).unwrap();
        self.ask(Op::Recv { stream, on, into, from: 0 }, out);
    }
}

impl Machine for Echo {
    type Mail = ();
    type Letter = String;

    fn start(&mut self, _: Time, out: &mut dyn Outbox<String>) {
        for listener in self.listeners.clone() {
            self.ask(Op::Accept { listener }, out);
        }
    }

    fn done(&mut self, _: Time, Done { op, result }: Done, out: &mut dyn Outbox<String>) {
        self.done += 1;
        match (op, result) {
            (Op::Accept { listener }, Ok(stream)) => {
                let stream = StreamId(stream);
                let owner = self.conns.insert(Conn::new(ConnId { slot: 0, generation: 0 }, Provider::Framed));
                let rx = owner.share();
                self.open.push((stream, owner));
                out.post(format!("open {stream:?}"));
                self.recv(stream, rx, out);
                self.ask(Op::Accept { listener }, out);
            }
            (Op::Recv { stream, on, mut into, .. }, Ok(len)) if len > 0 => {
                into.truncate(len as usize);
                let parts = smallvec![into.filled().whole()];
                self.ask(Op::Send { stream, on: smallvec![on.rename()], parts }, out);
            }
            (Op::Send { stream, mut on, .. }, Ok(_)) if !self.stopping => {
                let on = on.pop().unwrap().rename();
                self.recv(stream, on, out);
            }
            // Closed once: a stop that came now would shut down what is no more, and the driver answers that without the ring.
            (Op::Recv { stream, .. } | Op::Send { stream, .. }, _) => {
                self.open.retain(|(other, _)| *other != stream);
                self.ask(Op::Close { stream }, out);
            }
            (Op::Accept { .. } | Op::Shutdown { .. } | Op::Close { .. }, _) => {}
            (op, result) => panic!("{op:?}: {result:?}"),
        }
    }

    fn mail(&mut self, _: Time, (): (), out: &mut dyn Outbox<String>) {
        self.stopping = true;
        for (stream, _) in std::mem::take(&mut self.open) {
            self.ask(Op::Shutdown { stream }, out);
        }
    }

    fn end_turn(&mut self, _: Time, _: &mut dyn Outbox<String>) {
        while self.conns.reap().is_some() {}
    }

    fn next_deadline(&self) -> Option<Time> {
        None
    }

    fn finished(&self) -> bool {
        self.stopping && self.submitted - self.done == self.listeners.len() as u64
    }
}

struct Ending {
    counters: reactor::Counters,
    streams_left_open: usize,
    letters: usize,
}

fn server(address: Address) -> (Address, Mailbox<()>, JoinHandle<Ending>) {
    let (mailbox, rx) = mailbox(1).unwrap();
    let (tell, told) = std::sync::mpsc::channel();
    let thread = thread::spawn(move || {
        let mut driver = driver(Limits::default());
        let (listener, actual) = driver.listen(&address).unwrap();
        tell.send(actual).unwrap();
        let (arena, conns) = (Arena::small(32 << 20), Table::new());
        let echo = Echo {
            arena: arena.clone(),
            conns: conns.clone(),
            listeners: vec![listener],
            open: Vec::new(),
            submitted: 0,
            done: 0,
            stopping: false,
        };
        let mut letters = 0;
        let Ended { machine, counters, streams_left_open, .. } =
            reactor::run(echo, driver, rx, |_| letters += 1).unwrap();
        assert_eq!(machine.submitted, machine.done, "every operation came back, once");
        drop(machine);
        arena.leaks().unwrap();
        conns.leaks().unwrap();
        Ending { counters, streams_left_open, letters }
    });
    (told.recv().unwrap(), mailbox, thread)
}

/// Sends and receives at the same time, and compares.
fn converse<S: Read + Write + Send>(mut writer: S, mut reader: S, sizes: &[usize]) {
    let message = |number: usize, size: usize| -> Vec<u8> {
        (0..size).map(|at| (number * 7 + at % 251).to_le_bytes()[0]).collect()
    };
    thread::scope(|scope| {
        scope.spawn(move || {
            for (number, size) in sizes.iter().enumerate() {
                writer.write_all(&message(number, *size)).unwrap();
            }
        });
        for (number, size) in sizes.iter().enumerate() {
            let mut got = vec![0; *size];
            reader.read_exact(&mut got).unwrap();
            assert!(got == message(number, *size), "message {number}");
        }
    });
}

#[test]
fn thousands_of_messages_come_back_with_one_enter_per_turn() {
    let dir = Dir::new();
    let sizes: Vec<usize> = (0..3000).map(|n| 1 + n % 700).chain([1 << 20; 20]).collect();
    for address in [any_port(), dir.socket()] {
        let (at, mailbox, thread) = server(address);
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| match &at {
                    Address::Tcp(at) => {
                        let stream = TcpStream::connect(at).unwrap();
                        converse(stream.try_clone().unwrap(), stream, &sizes);
                    }
                    Address::Unix(at) => {
                        let stream = UnixStream::connect(at).unwrap();
                        converse(stream.try_clone().unwrap(), stream, &sizes);
                    }
                    Address::Rdma(_) => unreachable!("no socket"),
                });
            }
        });
        mailbox.send(()).unwrap();
        let ending = thread.join().unwrap();
        let counters = ending.counters;
        assert_eq!((ending.streams_left_open, ending.letters, counters.stale), (0, 4, 0));
        assert_eq!(counters.enters, counters.turns, "{counters:?}");
        println!("{counters:?}");
    }
}

#[test]
fn a_stop_in_the_middle_of_everything_leaves_nothing() {
    let (at, mailbox, thread) = server(any_port());
    let Address::Tcp(at) = at else { panic!() };
    // These write and never read, so the server hangs in its sends; others are idle in a receive.
    let writers: Vec<_> = (0..4).map(|_| TcpStream::connect(at).unwrap()).collect();
    let idle: Vec<_> = (0..20).map(|_| TcpStream::connect(at).unwrap()).collect();
    for mut writer in &writers {
        writer.set_write_timeout(Some(std::time::Duration::from_millis(50))).unwrap();
        while writer.write_all(&[1; 1 << 16]).is_ok() {}
    }
    // All are open once the last one answers.
    let mut last = idle.last().unwrap();
    last.write_all(b"x").unwrap();
    last.read_exact(&mut [0]).unwrap();
    mailbox.send(()).unwrap();
    let ending = thread.join().unwrap();
    assert_eq!((ending.streams_left_open, ending.letters), (0, 24));
    drop((writers, idle));
}

#[test]
fn peers_that_come_and_go_leave_nothing() {
    let (at, mailbox, thread) = server(any_port());
    let Address::Tcp(at) = at else { panic!() };
    for _ in 0..200 {
        let mut stream = TcpStream::connect(at).unwrap();
        stream.write_all(b"hello").unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        let mut back = Vec::new();
        stream.read_to_end(&mut back).unwrap();
        assert_eq!(back, b"hello");
    }
    mailbox.send(()).unwrap();
    let ending = thread.join().unwrap();
    assert_eq!((ending.streams_left_open, ending.letters), (0, 200));
}
