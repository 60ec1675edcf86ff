//! A disk in a file (of a tmpfs), served through the very queues that serve volumes: for tests in the guest.
//!
//! The file is the memory, so that a killed server loses nothing that it answered. It says `ready ID PATH`, serves until it
//! reads `leave`, `detach`, `force`, `grow BYTES` or `look` on its standard input, and ends after the first three.

use anyhow::{Context, Result, bail};
use clap::Parser;
use conductor_model::Bytes;
use driver::{Done, Errno, Machine, Outbox, Span, Time};
use memory::{Arena, Class, Filling};
use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::BufRead;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use ublk_device::{Asking, Device, DeviceOptions, Executor, Owner, QueueId, daemon};
use volume_client::{BlockDone, BlockError, BlockOp, BlockRequest, Completion};

/// So little that a queue of large writes feels back-pressure.
const ARENA: usize = 4 << 20;

#[derive(Parser)]
struct Cli {
    /// The file that is the disk; made if it is not there
    #[arg(long, default_value = "/dev/shm/ublk-ram.disk")]
    file: PathBuf,
    #[arg(long, default_value_t = 256 << 20)]
    size: u64,
    #[arg(long, default_value_t = 1)]
    queues: u16,
    #[arg(long, default_value_t = 64)]
    depth: u16,
    #[arg(long)]
    read_only: bool,
    #[arg(long)]
    write_back: bool,
    /// Take over this device
    #[arg(long)]
    recover: Option<u32>,
    /// Make /dev/trine/NAME
    #[arg(long, default_value = "ram")]
    name: String,
    /// Answer each write so many microseconds after it came
    #[arg(long, default_value_t = 0)]
    write_delay_us: u64,
    /// Let this queue's setup fail
    #[arg(long)]
    fail_queue: Option<u16>,
    /// Only say what the kernel offers and which devices are ours
    #[arg(long)]
    probe: bool,
    /// Only remove this device, which nobody serves
    #[arg(long)]
    forget: Option<u32>,
}

/// Requests are executed when they come and answered after the delay.
struct Ram {
    file: Arc<File>,
    arena: Arena,
    delay: Span,
    due: VecDeque<(Time, Completion)>,
    now: Time,
    depth: usize,
    stopped: bool,
}

impl Ram {
    fn execute(&self, request: BlockRequest) -> Result<BlockDone, BlockRequest> {
        let BlockRequest { ref op, offset, len, .. } = request;
        let length = usize::try_from(len.0).unwrap_or(usize::MAX);
        let done = |result: std::io::Result<()>| result.map(|()| BlockDone::Done);
        let result = match op {
            BlockOp::Write { data, .. } => done(self.file.write_all_at(&data[..length], offset.0)),
            BlockOp::Read => {
                let Some(mut into) = self.arena.take(length, Class::Client) else { return Err(request) };
                let read = self.file.read_exact_at(&mut into, offset.0);
                read.map(|()| BlockDone::Read([into.filled().whole()].into_iter().collect()))
            }
            BlockOp::WriteZeroes | BlockOp::Discard => done(self.punch(offset.0, len.0)),
            BlockOp::Flush => Ok(BlockDone::Done),
            // The kernel asks for none.
            BlockOp::Extents => return Err(request),
        };
        result.map_err(|_| request)
    }

    fn punch(&self, offset: u64, len: u64) -> std::io::Result<()> {
        let mode = nix::fcntl::FallocateFlags::FALLOC_FL_PUNCH_HOLE | nix::fcntl::FallocateFlags::FALLOC_FL_KEEP_SIZE;
        nix::fcntl::fallocate(&*self.file, mode, offset.cast_signed(), len.cast_signed()).map_err(Into::into)
    }
}

impl Machine for Ram {
    type Mail = ();
    type Letter = ();
    fn start(&mut self, _: Time, _: &mut dyn Outbox<()>) {}
    fn done(&mut self, _: Time, _: Done, _: &mut dyn Outbox<()>) {}
    fn mail(&mut self, _: Time, (): (), _: &mut dyn Outbox<()>) {}
    fn end_turn(&mut self, now: Time, _: &mut dyn Outbox<()>) {
        self.now = now;
    }
    fn next_deadline(&self) -> Option<Time> {
        self.due.front().map(|(due, _)| *due)
    }
    fn finished(&self) -> bool {
        self.stopped && self.due.is_empty()
    }
}

impl Executor for Ram {
    fn memory(&self, len: usize) -> Option<Filling> {
        self.arena.take(len, Class::Client)
    }

    fn submit(&mut self, now: Time, request: BlockRequest) -> Result<(), BlockRequest> {
        if self.due.len() >= self.depth {
            return Err(request);
        }
        let (tag, is_write) = (request.tag, request.op.is_change());
        let result = match self.execute(request) {
            Ok(done) => Ok(done),
            Err(back) if matches!(back.op, BlockOp::Read) => return Err(back),
            Err(_) => Err(BlockError::Io),
        };
        if is_write {
            self.due.push_back((now + self.delay, Completion { tag, result }));
        } else {
            self.due.push_front((now, Completion { tag, result }));
        }
        Ok(())
    }

    fn next_completion(&mut self) -> Option<Completion> {
        self.due.pop_front_if(|(due, _)| *due <= self.now).map(|(_, completion)| completion)
    }

    fn in_flight(&self) -> usize {
        self.due.len()
    }

    fn stop(&mut self) {
        self.stopped = true;
    }

    fn abort(&mut self, _: Time, _: &mut dyn Outbox<()>) {
        self.stopped = true;
        for (due, completion) in &mut self.due {
            (*due, completion.result) = (Time(0), Err(BlockError::Stopped));
        }
    }
}

fn main() -> Result<()> {
    let cli = Cli::parse();
    if cli.probe {
        println!("features: {}", ublk_device::probe()?.names().join(" "));
        for device in ublk_device::known()? {
            println!("{device:?} {:?}", ublk_device::link_of(&device.path));
        }
        return Ok(());
    }
    if let Some(id) = cli.forget {
        ublk_device::forget(id, Owner::default(), Asking::Nothing)?;
        println!("stale names: {:?}", ublk_device::unlink_stale()?);
        return Ok(());
    }
    let errno = |what: &'static str| move |errno: Errno| anyhow::anyhow!("{what}: {errno}");
    daemon::own_mount_namespace(&[&cli.file]).map_err(errno("mount namespace"))?;
    daemon::io_flusher().map_err(errno("io flusher"))?;

    let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&cli.file)?;
    if file.metadata()?.len() < cli.size {
        file.set_len(cli.size)?;
    }
    let file = Arc::new(file);
    let options = DeviceOptions {
        queues: cli.queues,
        depth: cli.depth,
        read_only: cli.read_only,
        write_back: cli.write_back,
        recover: cli.recover,
        ..DeviceOptions::new(cli.name.clone(), Bytes(cli.size))
    };
    let (disk, delay, depth) = (Arc::clone(&file), Span::micros(cli.write_delay_us), usize::from(cli.depth));
    let build = move |queue: QueueId| {
        if cli.fail_queue == Some(queue.0) {
            return Err("asked to fail".into());
        }
        let (file, arena) = (Arc::clone(&disk), Arena::small(ARENA));
        Ok(Ram { file, arena, delay, due: VecDeque::new(), now: Time(0), depth, stopped: false })
    };
    let mut device = Device::make(&options, build, |_, ()| {})?;
    device.start()?;
    let path = device.path().to_path_buf();
    let link = ublk_device::link(&cli.name, &path, |_| false)?.unwrap_or_default();
    println!("ready {} {} {} of {}", device.id(), path.display(), link.display(), device.size()?);
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let (word, rest) = line.split_once(' ').unwrap_or((&line, ""));
        match word {
            "leave" => {
                device.leave();
                return Ok(());
            }
            "detach" | "force" => match device.detach(word == "force") {
                Ok(()) => {
                    ublk_device::unlink(&cli.name, &path)?;
                    println!("detached");
                    return Ok(());
                }
                Err(error) => println!("refused: {error}"),
            },
            "grow" => {
                let bytes: u64 = rest.parse().context("bytes")?;
                file.set_len(bytes)?;
                match device.grow(Bytes(bytes)) {
                    Ok(()) => println!("grown to {}", device.size()?),
                    Err(error) => println!("refused: {error}"),
                }
            }
            "look" => {
                for view in device.queues().look() {
                    println!("{view:?}");
                }
                if let Some(ended) = device.wait(Duration::ZERO) {
                    bail!("{ended:?}");
                }
            }
            other => bail!("{other:?} is no command"),
        }
    }
    // Without a standard input it serves until it is killed.
    loop {
        if let Some(ended) = device.wait(Duration::from_secs(3600)) {
            bail!("{ended:?}");
        }
    }
}
