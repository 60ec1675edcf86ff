//! Two processes and a stream over RDMA between them: what `tests/guest/inside/7.2/rdma` runs in two network namespaces.
//!
//! ```text
//!   rdma-pair serve ADDR:PORT                 until a client says so; then looks whether anything is left
//!   rdma-pair drive ADDR:PORT [ROUNDS]        greets, writes, reads, kills queue pairs, comes and goes, crowds, loses its device; then the same
//! ```
//!
//! A request is 16 bytes: op, length, checksum, zero, as little-endian 32-bit numbers. A write's bytes follow it, a read's its answer.
#![allow(clippy::unwrap_used, reason = "a test: what fails ends it, with where")]

use anyhow::{Context, Result, bail, ensure};
use driver::{Address, Conn, ConnId, Done, Errno, Op, Parts, Provider, Span, StreamId, Time, why};
use memory::{Arena, Class, Filling};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use rdma::Rdma;
use rdma_link::{RX, SLOT};
use refcount::{Hold, Table};
use smallvec::SmallVec;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

const HELLO: u32 = 1;
const WRITE: u32 = 2;
const READ: u32 = 3;
const END: u32 = 4;
/// The server's device is gone.
const LOSE: u32 = 5;
const HEAD: usize = 16;
const MOST: usize = 1 << 20;
/// Connections at a time that nobody accepts: more than the server's memory has room for, which is 23.
const CROWD: u64 = 40;
/// For everything that a test waits for.
const PATIENCE: Duration = Duration::from_secs(60);

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args[..] {
        ["serve", at] => serve(at.parse()?),
        ["drive", at] => drive(at.parse()?, 50),
        ["drive", at, rounds] => drive(at.parse()?, rounds.parse()?),
        _ => bail!("usage: rdma-pair serve|drive ADDR:PORT [ROUNDS]"),
    }
}

/// One process: its RDMA, its memory, and the one connection that it has at a time.
struct Bench {
    rdma: Rdma,
    arena: Arena,
    conns: Table<Conn>,
    owner: Hold<Conn, why::Owner>,
    begin: Instant,
    dones: Vec<Done>,
}

/// What a process has when it has nothing to do.
#[derive(PartialEq, Debug)]
struct AtRest {
    memory: usize,
    descriptors: usize,
    holds: String,
}

impl Bench {
    fn new() -> Result<Self> {
        let arena = Arena::small(32 << 20);
        let conns = Table::new();
        let owner = conns.insert(Conn::new(ConnId { slot: 1, generation: 1 }, Provider::Framed));
        // Whoever is served is no stranger any more.
        owner.prove();
        let rdma = Rdma::new(&arena)?;
        Ok(Self { rdma, arena, conns, owner, begin: Instant::now(), dones: Vec::new() })
    }

    fn now(&self) -> Time {
        Time(u64::try_from(self.begin.elapsed().as_nanos()).unwrap())
    }

    fn turn(&mut self, wait: Duration) -> Result<()> {
        let now = self.now();
        let due = self.rdma.next_deadline().map_or(wait, |at| Duration::from_nanos(at.since(now).0).min(wait));
        // SAFETY: the descriptors are those of `rdma`, which closes none before it is asked for the next ones.
        let borrowed = self.rdma.descriptors().flatten().map(|fd| unsafe { BorrowedFd::borrow_raw(fd) });
        let mut descriptors: Vec<_> = borrowed.map(|fd| PollFd::new(fd, PollFlags::POLLIN)).collect();
        let timeout = if due.is_zero() { 0 } else { u16::try_from(due.as_millis().min(1000))? + 1 };
        poll(&mut descriptors, PollTimeout::from(timeout))?;
        let now = self.now();
        self.rdma.turn(now, &mut self.dones);
        Ok(())
    }

    /// Submits an operation and waits for one that `is` what is wanted.
    fn run(&mut self, op: Op, is: impl Fn(&Op) -> bool) -> Result<Done> {
        let now = self.now();
        self.rdma.submit(now, op);
        self.wait(is)
    }

    fn wait(&mut self, is: impl Fn(&Op) -> bool) -> Result<Done> {
        let until = Instant::now() + PATIENCE;
        loop {
            if let Some(at) = self.dones.iter().position(|done| is(&done.op)) {
                return Ok(self.dones.remove(at));
            }
            ensure!(Instant::now() < until, "an operation did not come back: {:?}", self.rdma);
            self.turn(Duration::from_secs(1))?;
        }
    }

    fn connect(&mut self, to: SocketAddr) -> Result<Result<StreamId, Errno>> {
        let op = Op::Connect { on: self.owner.share(), to: Address::Rdma(to), within: Span::seconds(12) };
        let done = self.run(op, |op| matches!(op, Op::Connect { .. }))?;
        Ok(done.result.map(StreamId))
    }

    fn close(&mut self, stream: StreamId) -> Result<()> {
        self.run(Op::Shutdown { stream }, |op| matches!(op, Op::Shutdown { .. }))?;
        let done = self.run(Op::Close { stream }, |op| matches!(op, Op::Close { .. }))?;
        ensure!(done.result == Ok(0), "close: {:?}", done.result);
        Ok(())
    }

    /// Fills `len` bytes from the stream; `None` at its end.
    fn receive(&mut self, stream: StreamId, len: usize) -> Result<Result<Option<Filling>, Errno>> {
        let mut into = self.arena.take(len, Class::Client).context("no memory")?;
        let mut from = 0;
        while from < len {
            let op = Op::Recv { stream, on: self.owner.share(), into, from };
            let done = self.run(op, |op| matches!(op, Op::Recv { .. }))?;
            let Op::Recv { into: back, .. } = done.op else { bail!("another operation") };
            into = back;
            match done.result {
                Ok(0) => return Ok(Ok(None)),
                Ok(n) => from += n as usize,
                Err(error) => return Ok(Err(error)),
            }
        }
        Ok(Ok(Some(into)))
    }

    fn expect(&mut self, stream: StreamId, len: usize) -> Result<Filling> {
        self.receive(stream, len)??.context("the stream ended")
    }

    fn parts(&self, bytes: &[&[u8]]) -> Result<Op> {
        let mut parts: Parts = SmallVec::new();
        for bytes in bytes {
            let mut mem = self.arena.take(bytes.len(), Class::Client).context("no memory")?;
            mem.copy_from_slice(bytes);
            parts.push(mem.filled().whole());
        }
        Ok(Op::Send { stream: StreamId(0), on: SmallVec::from_iter([self.owner.share()]), parts })
    }

    fn send(&mut self, stream: StreamId, bytes: &[&[u8]]) -> Result<Result<u32, Errno>> {
        let Op::Send { on, parts, .. } = self.parts(bytes)? else { bail!("another operation") };
        Ok(self.run(Op::Send { stream, on, parts }, |op| matches!(op, Op::Send { .. }))?.result)
    }

    /// A peer that comes back at once may be on its way in already: its receives are not this connection's.
    fn at_rest(&self) -> Result<AtRest> {
        let coming = self.rdma.queue_pairs() * usize::from(RX) * SLOT;
        Ok(AtRest {
            memory: self.arena.in_use().checked_sub(coming).context("a connection without its receives")?,
            descriptors: std::fs::read_dir("/proc/self/fd")?.count(),
            holds: self.conns.report()[0].to_string(),
        })
    }
}

fn head(op: u32, bytes: usize, crc: u32) -> [u8; HEAD] {
    let mut head = [0; HEAD];
    for (at, value) in [op, u32::try_from(bytes).unwrap(), crc].into_iter().enumerate() {
        head[at * 4..][..4].copy_from_slice(&value.to_le_bytes());
    }
    head
}

fn parse(head: &[u8]) -> (u32, usize, u32) {
    let word = |at: usize| u32::from_le_bytes(head[at * 4..][..4].try_into().unwrap());
    (word(0), word(1) as usize, word(2))
}

fn noise(seed: usize, len: usize) -> Vec<u8> {
    let mut state = seed as u64 | 1;
    let next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    };
    std::iter::repeat_with(next).flatten().take(len).collect()
}

fn resident() -> Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find(|line| line.starts_with("VmRSS")).context("no VmRSS")?;
    Ok(line.split_whitespace().nth(1).context("no number")?.parse()?)
}

fn serve(at: SocketAddr) -> Result<()> {
    let mut bench = Bench::new()?;
    let (listener, at) = bench.rdma.listen(at)?;
    println!("ready on {at}");
    let (mut rest, mut connections) = (None, 0);
    loop {
        let accepted = bench.run(Op::Accept { listener }, |op| matches!(op, Op::Accept { .. }))?;
        let stream = StreamId(accepted.result?);
        let then = talk(&mut bench, stream).context("serve")?;
        bench.close(stream)?;
        connections += 1;
        if then == Then::Lost {
            continue;
        }
        let now = bench.at_rest()?;
        // The first connection opens the device.
        let first = rest.get_or_insert(now);
        ensure!(
            *first == bench.at_rest()?,
            "after {connections} connections {:?}, at first {first:?}",
            bench.at_rest()?
        );
        if then == Then::End {
            break;
        }
    }
    println!("served {connections} connections; at rest {:?}; {:?}", bench.at_rest()?, bench.rdma.counters());
    let counters = bench.rdma.counters();
    let crowd = (counters.displaced, counters.refused);
    ensure!(
        crowd.0 > CROWD / 2 && crowd.1 == 0,
        "a crowd of {CROWD} came, so many were displaced and refused: {crowd:?}"
    );
    finish(bench)
}

/// What comes after a connection.
#[derive(PartialEq)]
enum Then {
    Next,
    /// The next, on a device that is to be opened anew.
    Lost,
    End,
}

/// Serves one connection until it ends.
fn talk(bench: &mut Bench, stream: StreamId) -> Result<Then> {
    loop {
        let Ok(Some(asked)) = bench.receive(stream, HEAD)? else { return Ok(Then::Next) };
        let (op, len, crc) = parse(&asked);
        ensure!(len <= MOST, "a length of {len}");
        let answered = match op {
            HELLO => bench.send(stream, &[&head(HELLO, 0, crc)])?,
            WRITE => {
                let Ok(Some(bytes)) = bench.receive(stream, len)? else { return Ok(Then::Next) };
                ensure!(crc32c::crc32c(&bytes) == crc, "a write of {len} bytes arrived damaged");
                bench.send(stream, &[&head(WRITE, len, crc)])?
            }
            READ => {
                let bytes = noise(crc as usize, len);
                bench.send(stream, &[&head(READ, len, crc32c::crc32c(&bytes)), &bytes])?
            }
            END => return Ok(Then::End),
            LOSE => {
                let now = bench.now();
                bench.rdma.lose_devices(now);
                return Ok(Then::Lost);
            }
            other => bail!("op {other}"),
        };
        if answered.is_err() {
            return Ok(Then::Next);
        }
    }
}

fn drive(at: SocketAddr, rounds: usize) -> Result<()> {
    let mut bench = Bench::new()?;
    // The first connection opens the device, and finds a neighbour who answers before the kernel listens for it.
    let begin = Instant::now();
    let stream = bench.connect(at)??;
    let took = begin.elapsed();
    println!("the first connection in {took:?}");
    ensure!(took < Duration::from_secs(4), "the first connection took {took:?}");
    greet(&mut bench, stream, 7)?;
    bench.close(stream)?;
    let rest = bench.at_rest()?;

    let stream = bench.connect(at)??;
    let begin = Instant::now();
    for at in 0..200 {
        greet(&mut bench, stream, at)?;
    }
    println!("200 greetings in {:?}", begin.elapsed());
    let sizes = [1, 4096, 8192, 16 << 10, (16 << 10) + 1, 64 << 10, 1_000_001, MOST];
    for (seed, len) in sizes.into_iter().cycle().take(24).enumerate() {
        let written = write(&mut bench, stream, &noise(seed, len)).and_then(|written| Ok(written?));
        let read = written.and_then(|()| read(&mut bench, stream, seed, len));
        if let Err(error) = read {
            bench.close(stream)?;
            return Err(error.context(format!("{len} bytes; {:?}", bench.rdma.counters())));
        }
    }
    bench.close(stream)?;
    ensure!(bench.at_rest()? == rest, "after the transfers {:?}, before {rest:?}", bench.at_rest()?);
    println!("24 writes and 24 reads of 1 B to 1 MiB, every byte as it was");

    // A large write is under way, its memory open to the peer; then the queue pair is in error.
    let mut killed = 0;
    for turns in 0..20 {
        let stream = bench.connect(at)??;
        greet(&mut bench, stream, turns)?;
        let bytes = noise(turns, MOST);
        let Op::Send { on, parts, .. } = bench.parts(&[&head(WRITE, MOST, crc32c::crc32c(&bytes)), &bytes])? else {
            bail!("another operation")
        };
        let now = bench.now();
        bench.rdma.submit(now, Op::Send { stream, on, parts });
        for _ in 0..turns {
            bench.turn(Duration::from_millis(1))?;
        }
        bench.rdma.break_queue_pair(stream);
        let done = bench.wait(|op| matches!(op, Op::Send { .. }))?;
        killed += usize::from(done.result.is_err());
        bench.close(stream)?;
        drop(done);
        ensure!(bench.at_rest()? == rest, "after a kill {:?}, before {rest:?}", bench.at_rest()?);
    }
    ensure!(killed > 0, "no transfer was under way when its queue pair was killed");
    println!("20 queue pairs killed, {killed} of them in mid-transfer, everything back each time");

    let mut before = 0;
    for round in 0..rounds {
        if round == 5 {
            before = resident()?;
        }
        let stream = bench.connect(at)??;
        greet(&mut bench, stream, round)?;
        bench.close(stream)?;
        ensure!(bench.at_rest()? == rest, "in round {round} {:?}, before {rest:?}", bench.at_rest()?);
    }
    let grown = resident()?.saturating_sub(before);
    ensure!(grown < 1024, "{grown} KiB more after {rounds} rounds");
    println!("{rounds} rounds: counts at rest, {} descriptors, {grown} KiB more memory", rest.descriptors);

    let mut nobody = at;
    nobody.set_port(at.port() + 1);
    let refused = bench.connect(nobody)?;
    ensure!(refused == Err(Errno::REFUSED), "nobody listens there: {refused:?}");
    ensure!(bench.at_rest()? == rest, "after a refusal {:?}, before {rest:?}", bench.at_rest()?);
    println!("a connect to where nobody listens is refused");

    let begin = Instant::now();
    let nowhere = bench.connect("192.0.2.77:7000".parse()?)?;
    let took = begin.elapsed();
    ensure!(nowhere == Err(Errno(libc::EHOSTUNREACH)), "nobody has that address: {nowhere:?} after {took:?}");
    ensure!(took > Duration::from_secs(4), "an address is given up after {took:?}");
    ensure!(bench.at_rest()? == rest, "after an address that nobody has {:?}, before {rest:?}", bench.at_rest()?);
    println!("a connect to an address that nobody has ends after {took:.1?}");

    let stream = bench.connect(at)??;
    greet(&mut bench, stream, 1)?;
    let crowd = (0..CROWD).map(|_| Ok(bench.connect(at)??)).collect::<Result<Vec<_>>>().context("crowded out")?;
    greet(&mut bench, stream, 2)?;
    for stream in crowd.into_iter().chain([stream]) {
        bench.close(stream)?;
    }
    ensure!(bench.at_rest()? == rest, "after a crowd {:?}, before {rest:?}", bench.at_rest()?);
    println!("{CROWD} connections that nobody accepts: each is taken, and who was there before them is served");

    // Soft-RoCE does not go before who has it open: only what is told of it is as if it did.
    let stream = bench.connect(at)??;
    greet(&mut bench, stream, 1)?;
    let now = bench.now();
    bench.rdma.lose_devices(now);
    ensure!(bench.receive(stream, HEAD)?.is_err(), "a connection without a device has ended in good order");
    bench.close(stream)?;
    let without = bench.at_rest()?;
    ensure!(
        without.descriptors == rest.descriptors - 1 && without.memory == rest.memory,
        "without a device {without:?}, with one {rest:?}"
    );
    let stream = bench.connect(at)??;
    ensure!(
        bench.at_rest()?.descriptors == rest.descriptors,
        "with the device {:?}, before {rest:?}",
        bench.at_rest()?
    );
    bench.send(stream, &[&head(LOSE, 0, 0)])??;
    ensure!(!matches!(bench.receive(stream, HEAD)?, Ok(Some(_))), "the server has a device");
    bench.close(stream)?;
    let until = Instant::now() + PATIENCE;
    let stream = loop {
        match bench.connect(at)? {
            Ok(stream) => break stream,
            Err(error) => ensure!(Instant::now() < until, "the server listens no more: {error}"),
        }
        std::thread::sleep(Duration::from_millis(100));
    };
    println!(
        "a device that goes takes its connections and its descriptor along; the next connection and the listener open it anew"
    );
    // The server ends with it, and does not without it: its end may come before this send's.
    let _reset = bench.send(stream, &[&head(END, 0, 0)])?;
    bench.close(stream)?;
    println!("at rest {:?}; {:?}", bench.at_rest()?, bench.rdma.counters());
    finish(bench)
}

fn greet(bench: &mut Bench, stream: StreamId, number: usize) -> Result<()> {
    let number = u32::try_from(number)?;
    bench.send(stream, &[&head(HELLO, 0, number)])??;
    let answer = bench.expect(stream, HEAD)?;
    ensure!(parse(&answer) == (HELLO, 0, number), "another greeting");
    Ok(())
}

fn write(bench: &mut Bench, stream: StreamId, bytes: &[u8]) -> Result<Result<(), Errno>> {
    let asked = head(WRITE, bytes.len(), crc32c::crc32c(bytes));
    if let Err(error) = bench.send(stream, &[&asked, bytes])? {
        return Ok(Err(error));
    }
    let answer = bench.expect(stream, HEAD)?;
    ensure!(*answer == asked, "another answer");
    Ok(Ok(()))
}

fn read(bench: &mut Bench, stream: StreamId, seed: usize, len: usize) -> Result<()> {
    bench.send(stream, &[&head(READ, len, u32::try_from(seed)?)])??;
    let answer = bench.expect(stream, HEAD)?;
    let (op, said, crc) = parse(&answer);
    ensure!((op, said) == (READ, len), "another answer");
    let bytes = bench.expect(stream, len)?;
    ensure!(crc32c::crc32c(&bytes) == crc && *bytes == noise(seed, len)[..], "a read of {len} bytes arrived damaged");
    Ok(())
}

/// Nothing is left.
fn finish(bench: Bench) -> Result<()> {
    let Bench { rdma, arena, conns, owner, .. } = bench;
    drop((rdma, owner));
    while conns.reap().is_some() {}
    ensure!(conns.leaks().is_ok() && arena.leaks().is_ok(), "{:?} {:?}", conns.leaks(), arena.leaks());
    println!("nothing is left");
    Ok(())
}
