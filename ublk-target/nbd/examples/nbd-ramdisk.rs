//! A disk in memory behind the NBD session, for foreign clients: `nbd-ramdisk unix:PATH|tcp:ADDR SIZE_MIB [read-only] [reorder] [pieces]`.
//!
//! One blocking thread per client. `reorder` finishes the requests of a burst in the opposite order, `pieces` receives a few
//! bytes at a time. Prints `ready` when it listens; ends when it is killed.

#[path = "../tests/common/ram_disk.rs"]
mod ram_disk;

use conductor_model::Bytes;
use memory::{Arena, ArenaOptions, Backing, Shares};
use nbd_session::{Event, Export, Limits, Session, Tls};
use ram_disk::RamDisk;
use std::io::{self, Read, Write};
use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::sync::{Arc, Mutex, PoisonError};

/// Memory of one client: a session's limit, and what it needs beside it.
const ARENA: usize = 48 << 20;
/// Parts of one send.
const PARTS: usize = 16;

struct Server {
    export: Export,
    disk: Mutex<RamDisk>,
    reorder: bool,
    pieces: bool,
}

fn main() {
    if let Err(error) = run() {
        eprintln!("nbd-ramdisk: {error}");
        std::process::exit(1);
    }
}

fn run() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let (Some(address), Some(mib)) = (args.next(), args.next()) else {
        return Err("usage: nbd-ramdisk unix:PATH|tcp:ADDR SIZE_MIB [read-only] [reorder] [pieces]".into());
    };
    let words: Vec<String> = args.collect();
    let has = |word: &str| words.iter().any(|other| other == word);
    let size = mib.parse::<usize>()? << 20;
    let mut export = Export::new("ram", "a disk in memory", Bytes(size as u64))?;
    export.read_only = has("read-only");
    export.fast_zero = true;
    let disk = Mutex::new(RamDisk::new(size));
    let server = Arc::new(Server { export, disk, reorder: has("reorder"), pieces: has("pieces") });
    if let Some(path) = address.strip_prefix("unix:") {
        let listener = UnixListener::bind(path)?;
        println!("ready");
        for stream in listener.incoming() {
            spawn(&server, stream?);
        }
    } else {
        let listener = TcpListener::bind(address.strip_prefix("tcp:").unwrap_or(&address))?;
        println!("ready");
        for stream in listener.incoming() {
            let stream = stream?;
            stream.set_nodelay(true)?;
            spawn(&server, stream);
        }
    }
    Ok(())
}

fn spawn(server: &Arc<Server>, stream: impl Read + Write + Send + 'static) {
    let server = Arc::clone(server);
    std::thread::spawn(move || {
        if let Err(error) = serve(&server, stream) {
            eprintln!("nbd-ramdisk: {error}");
        }
    });
}

fn serve(server: &Server, mut stream: impl Read + Write) -> io::Result<()> {
    let options = ArenaOptions { bytes: ARENA, backing: Backing::Heap, shares: Shares::only_client() };
    let arena = Arena::new(options).map_err(io::Error::other)?;
    let mut session = Session::new(server.export.clone(), Limits::default(), Tls::Off);
    loop {
        let (mut batch, mut over) = (Vec::new(), false);
        while let Some(event) = session.poll(&arena) {
            match event {
                Event::Request(request) => batch.push(request),
                Event::StartTls => session.close(),
                Event::Closed(why) => {
                    eprintln!("nbd-ramdisk: {why}");
                    over = true;
                }
            }
        }
        if !server.reorder {
            batch.reverse(); // it is worked off from its end
        }
        let worked = !batch.is_empty();
        while let Some(request) = batch.pop() {
            let mut disk = server.disk.lock().unwrap_or_else(PoisonError::into_inner);
            match disk.run(request, &arena) {
                Ok((ticket, outcome)) => session.finish(ticket, outcome),
                Err(request) => batch.push(request),
            }
            drop(disk);
            flush(&mut session, &arena, &mut stream)?;
        }
        flush(&mut session, &arena, &mut stream)?;
        if over {
            assert!(session.is_finished(), "nothing is in flight between batches");
            return Ok(());
        }
        if worked {
            continue; // there may be room for more of what was received
        }
        if let Some(mut recv) = session.next_recv(&arena) {
            let mut space = &mut recv.into[recv.from..];
            if server.pieces {
                let most = space.len().min(1000);
                space = &mut space[..most];
            }
            let n = stream.read(space)?;
            session.received(recv.into, n);
        }
    }
}

fn flush(session: &mut Session, arena: &Arena, stream: &mut impl Write) -> io::Result<()> {
    while let Some(parts) = session.take_output(arena, PARTS) {
        for part in &parts {
            stream.write_all(part.bytes())?;
        }
        session.sent();
    }
    Ok(())
}
