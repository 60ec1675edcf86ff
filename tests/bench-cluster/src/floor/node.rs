//! A server of the floor.

use super::ring::{Aligned, Event, Ring};
use super::{HEAD, Head, Kind};
use crate::options::FloorNode;
use anyhow::{Context, Result, ensure};
use std::collections::HashMap;
use std::fs::OpenOptions;
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::OpenOptionsExt;

/// Most that one durable write carries.
const GROUP: usize = 8 << 20;
/// The name of a durable write; reads are named by their request.
const COMMIT: u64 = u64::MAX;

/// A request that is not answered yet: whose it is, and how many durable writes it waits for.
struct Open {
    line: usize,
    id: u64,
    left: usize,
}

struct Node {
    ring: Ring,
    /// The first connections; the others are clients'.
    replicas: Vec<usize>,
    /// Those who have not gone away.
    clients: usize,
    open: HashMap<u64, Open>,
    next: u64,
    /// Where the next group goes; from the start again at the end of the disk.
    at: u64,
    size: u64,
    /// What goes with the next group, and whose it is; `None` while it is at the disk.
    group: Aligned,
    of_group: Vec<u64>,
    /// The other one, unless it is being written, and whose that is.
    spare: Option<Aligned>,
    of_written: Vec<u64>,
}

pub(crate) fn run(options: &FloorNode) -> Result<()> {
    const O_DIRECT: i32 = 0o40000;
    let mut open = OpenOptions::new();
    open.read(true).write(true);
    let direct = open.clone().custom_flags(O_DIRECT).open(&options.disk);
    let disk = direct.or_else(|_| open.open(&options.disk)).with_context(|| options.disk.display().to_string())?;
    let size = disk.metadata()?.len();
    ensure!(size >= 2 * GROUP as u64, "a disk of {size} bytes is too small");
    let listener = TcpListener::bind(options.listen)?;
    let mut ring = Ring::new(Some(disk))?;
    let replicas = options.replicas.iter().map(|to| ring.add(TcpStream::connect(to)?)).collect::<Result<_>>()?;
    let (group, spare) = (Aligned::new(GROUP)?, Some(Aligned::new(GROUP)?));
    let mut node = Node {
        ring,
        replicas,
        clients: options.clients,
        open: HashMap::new(),
        next: 0,
        at: 0,
        size,
        group,
        of_group: Vec::new(),
        spare,
        of_written: Vec::new(),
    };
    // Or one primary; then this process is over.
    for _ in 0..options.clients {
        let (client, _) = listener.accept()?;
        node.ring.add(client)?;
    }
    while node.turn()? {}
    Ok(())
}

impl Node {
    fn turn(&mut self) -> Result<bool> {
        let mut events = Vec::new();
        self.ring.wait(&mut events)?;
        for event in events {
            match event {
                Event::Received(line) => self.received(line)?,
                Event::Gone(line) => {
                    self.clients -= usize::from(!self.replicas.contains(&line));
                    if self.clients == 0 || self.replicas.contains(&line) {
                        return Ok(false);
                    }
                }
                Event::Disk(COMMIT, memory) => {
                    self.spare = Some(memory);
                    for request in std::mem::take(&mut self.of_written) {
                        self.one_done(request);
                    }
                    // Who found no room in the group is still in an inbox.
                    self.commit()?;
                    (0..self.ring.lines()).try_for_each(|line| self.received(line))?;
                }
                Event::Disk(request, memory) => {
                    if let Some(open) = self.open.remove(&request) {
                        let head = Head { kind: Kind::Answer, id: open.id, at: 0, len: memory.len };
                        self.ring.send(open.line, &[&head.bytes(), &memory]);
                    }
                }
            }
        }
        self.commit()?;
        Ok(true)
    }

    fn received(&mut self, line: usize) -> Result<()> {
        while let Some(head) = Head::parse(self.ring.inbox(line))? {
            let whole = HEAD + head.payload(false);
            if self.ring.inbox(line).len() < whole {
                break;
            }
            match head.kind {
                Kind::Write => {
                    if self.group.room() < head.len {
                        // Back-pressure: the rest stays in the inbox until a group is written.
                        break;
                    }
                    self.next += 1;
                    let request = self.next;
                    let left = 1 + self.replicas.len();
                    self.open.insert(request, Open { line, id: head.id, left });
                    for n in 0..self.replicas.len() {
                        let forwarded = Head { id: request, ..head }.bytes();
                        self.ring.forward(line, HEAD..whole, &forwarded, self.replicas[n]);
                    }
                    self.group.append(&self.ring.inbox(line)[HEAD..whole]);
                    self.of_group.push(request);
                }
                Kind::Read => {
                    self.next += 1;
                    self.open.insert(self.next, Open { line, id: head.id, left: 1 });
                    let mut memory = Aligned::new(head.len)?;
                    memory.len = head.len;
                    self.ring.read(self.next, memory, head.at % (self.size - head.len as u64) / 4096 * 4096)?;
                }
                Kind::Answer => self.one_done(head.id),
            }
            self.ring.take(line, whole);
        }
        Ok(())
    }

    fn one_done(&mut self, request: u64) {
        let Some(open) = self.open.get_mut(&request) else { return };
        open.left -= 1;
        if open.left == 0 {
            let head = Head { kind: Kind::Answer, id: open.id, at: 0, len: 0 };
            self.ring.send(open.line, &[&head.bytes()]);
            self.open.remove(&request);
        }
    }

    /// All that is ready goes to the disk in one durable write, one at a time.
    fn commit(&mut self) -> Result<()> {
        if self.group.len == 0 {
            return Ok(());
        }
        let Some(mut empty) = self.spare.take() else { return Ok(()) };
        empty.len = 0;
        let full = std::mem::replace(&mut self.group, empty);
        self.of_written = std::mem::take(&mut self.of_group);
        if self.at + full.len as u64 > self.size {
            self.at = 0;
        }
        let at = self.at;
        self.at += full.len as u64;
        self.ring.write(COMMIT, full, at)
    }
}
