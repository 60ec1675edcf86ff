//! One ring with connections and a disk. All that is unsafe about the floor is here.

use anyhow::{Context, Result, bail, ensure};
use io_uring::{IoUring, opcode, types};
use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::fs::File;
use std::net::TcpStream;
use std::ops::{Deref, DerefMut};
use std::os::fd::AsRawFd;
use std::ptr::NonNull;

/// Bytes that a connection takes in at a time: some of the longest messages.
const INBOX: usize = 4 << 20;
const PAGE: usize = 4096;
/// What is written is on the disk when it is answered; from linux/fs.h.
const RWF_DSYNC: i32 = 2;

/// Memory as `O_DIRECT` wants it.
pub(super) struct Aligned {
    at: NonNull<u8>,
    layout: Layout,
    /// How much of it is filled.
    pub(super) len: usize,
}

impl Aligned {
    pub(super) fn new(bytes: usize) -> Result<Self> {
        ensure!(bytes > 0, "no memory is asked for");
        let layout = Layout::from_size_align(bytes, PAGE)?;
        // SAFETY: the layout is not of size 0.
        let at = NonNull::new(unsafe { alloc_zeroed(layout) }).unwrap_or_else(|| handle_alloc_error(layout));
        Ok(Self { at, layout, len: 0 })
    }

    pub(super) fn room(&self) -> usize {
        self.layout.size() - self.len
    }

    pub(super) fn append(&mut self, bytes: &[u8]) {
        let from = self.len;
        self.len += bytes.len();
        self[from..].copy_from_slice(bytes);
    }
}

impl Deref for Aligned {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        assert!(self.len <= self.layout.size());
        // SAFETY: as many bytes are allocated, initialised from the start, and belong to this value alone.
        unsafe { std::slice::from_raw_parts(self.at.as_ptr(), self.len) }
    }
}

impl DerefMut for Aligned {
    fn deref_mut(&mut self) -> &mut [u8] {
        assert!(self.len <= self.layout.size());
        // SAFETY: as above, and `self` is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.at.as_ptr(), self.len) }
    }
}

impl Drop for Aligned {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout, once.
        unsafe { dealloc(self.at.as_ptr(), self.layout) }
    }
}

struct Line {
    socket: TcpStream,
    /// Never moved or resized: the kernel writes to it while `receiving`.
    inbox: Box<[u8]>,
    from: usize,
    to: usize,
    receiving: bool,
    /// What is to go out next, and what goes out now; the kernel reads `sending` while `busy`.
    next: Vec<u8>,
    sending: Vec<u8>,
    sent: usize,
    busy: bool,
    gone: bool,
}

/// What happened.
pub(super) enum Event {
    /// There is more in a connection's inbox.
    Received(usize),
    /// Nothing comes or goes on this connection any more.
    Gone(usize),
    /// A disk operation is over; its memory is back.
    Disk(u64, Aligned),
}

/// See the module's head.
pub(super) struct Ring {
    ring: IoUring,
    lines: Vec<Line>,
    disk: Option<File>,
    /// What the disk reads or writes now: the kernel's until it is over.
    at_disk: Vec<Option<(u64, Aligned)>>,
}

const RECEIVE: u64 = 1 << 56;
const SEND: u64 = 2 << 56;
const DISK: u64 = 3 << 56;

impl Ring {
    pub(super) fn new(disk: Option<File>) -> Result<Self> {
        let mut builder = IoUring::builder();
        builder.setup_single_issuer().setup_defer_taskrun();
        let ring = builder.build(1024).context("io_uring")?;
        Ok(Self { ring, lines: Vec::new(), disk, at_disk: Vec::new() })
    }

    pub(super) fn add(&mut self, socket: TcpStream) -> Result<usize> {
        socket.set_nodelay(true)?;
        self.lines.push(Line {
            socket,
            inbox: vec![0; INBOX].into_boxed_slice(),
            from: 0,
            to: 0,
            receiving: false,
            next: Vec::new(),
            sending: Vec::new(),
            sent: 0,
            busy: false,
            gone: false,
        });
        Ok(self.lines.len() - 1)
    }

    pub(super) fn lines(&self) -> usize {
        self.lines.len()
    }

    /// What came in and was not taken yet.
    pub(super) fn inbox(&self, line: usize) -> &[u8] {
        let line = &self.lines[line];
        &line.inbox[line.from..line.to]
    }

    pub(super) fn take(&mut self, line: usize, bytes: usize) {
        self.lines[line].from += bytes;
    }

    /// Sends this after all else.
    pub(super) fn send(&mut self, line: usize, parts: &[&[u8]]) {
        parts.iter().for_each(|part| self.lines[line].next.extend_from_slice(part));
    }

    /// Sends what one connection has in its inbox on another.
    pub(super) fn forward(&mut self, from: usize, bytes: std::ops::Range<usize>, head: &[u8], to: usize) {
        let mut next = std::mem::take(&mut self.lines[to].next);
        next.extend_from_slice(head);
        next.extend_from_slice(&self.inbox(from)[bytes]);
        self.lines[to].next = next;
    }

    pub(super) fn write(&mut self, id: u64, memory: Aligned, at: u64) -> Result<()> {
        self.disk_op(id, memory, |fd, ptr, len| opcode::Write::new(fd, ptr, len).offset(at).rw_flags(RWF_DSYNC).build())
    }

    pub(super) fn read(&mut self, id: u64, memory: Aligned, at: u64) -> Result<()> {
        self.disk_op(id, memory, |fd, ptr, len| opcode::Read::new(fd, ptr, len).offset(at).build())
    }

    fn disk_op(
        &mut self,
        id: u64,
        memory: Aligned,
        entry: impl FnOnce(types::Fd, *mut u8, u32) -> io_uring::squeue::Entry,
    ) -> Result<()> {
        let disk = self.disk.as_ref().context("no disk")?;
        let slot = self.at_disk.iter().position(Option::is_none).unwrap_or(self.at_disk.len());
        let entry = entry(types::Fd(disk.as_raw_fd()), memory.at.as_ptr(), u32::try_from(memory.len)?);
        if slot == self.at_disk.len() {
            self.at_disk.push(None);
        }
        self.at_disk[slot] = Some((id, memory));
        self.push(entry.user_data(DISK | slot as u64))
    }

    fn push(&mut self, entry: io_uring::squeue::Entry) -> Result<()> {
        loop {
            // SAFETY: what the entry points to belongs to a line or to `at_disk`, stays where it is and is left alone until its
            // completion is taken in `wait`; the ring is dropped before neither, or the process ends.
            if unsafe { self.ring.submission().push(&entry) }.is_ok() {
                return Ok(());
            }
            self.ring.submit()?;
        }
    }

    /// Starts what there is to receive and to send, and waits until something happened.
    pub(super) fn wait(&mut self, events: &mut Vec<Event>) -> Result<()> {
        for n in 0..self.lines.len() {
            self.start(n)?;
        }
        match self.ring.submit_and_wait(1) {
            Ok(_) => {}
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error).context("io_uring_enter"),
        }
        let done: Vec<(u64, i32)> = self.ring.completion().map(|done| (done.user_data(), done.result())).collect();
        for (name, result) in done {
            let n = usize::try_from(name & 0xffff_ffff)?;
            match name & !0xffff_ffff {
                RECEIVE | SEND if result <= 0 => {
                    let line = &mut self.lines[n];
                    if !std::mem::replace(&mut line.gone, true) {
                        events.push(Event::Gone(n));
                    }
                }
                RECEIVE => {
                    let line = &mut self.lines[n];
                    (line.receiving, line.to) = (false, line.to + usize::try_from(result)?);
                    events.push(Event::Received(n));
                }
                SEND => {
                    let line = &mut self.lines[n];
                    (line.busy, line.sent) = (false, line.sent + usize::try_from(result)?);
                }
                _ => {
                    let Some((id, memory)) = self.at_disk[n].take() else { bail!("a completion of nothing") };
                    ensure!(
                        result == i32::try_from(memory.len)?,
                        "the disk answered {result} for {} bytes",
                        memory.len
                    );
                    events.push(Event::Disk(id, memory));
                }
            }
        }
        Ok(())
    }

    fn start(&mut self, n: usize) -> Result<()> {
        let line = &mut self.lines[n];
        if line.gone {
            return Ok(());
        }
        let fd = types::Fd(line.socket.as_raw_fd());
        let mut entries = [None, None];
        if !line.receiving {
            line.inbox.copy_within(line.from..line.to, 0);
            (line.from, line.to) = (0, line.to - line.from);
            let free = &mut line.inbox[line.to..];
            if !free.is_empty() {
                let receive = opcode::Recv::new(fd, free.as_mut_ptr(), u32::try_from(free.len())?).build();
                entries[0] = Some(receive.user_data(RECEIVE | n as u64));
                line.receiving = true;
            }
        }
        if !line.busy {
            if line.sent == line.sending.len() {
                line.sending.clear();
                line.sent = 0;
                std::mem::swap(&mut line.sending, &mut line.next);
            }
            let left = &line.sending[line.sent..];
            if !left.is_empty() {
                let send = opcode::Send::new(fd, left.as_ptr(), u32::try_from(left.len())?).build();
                entries[1] = Some(send.user_data(SEND | n as u64));
                line.busy = true;
            }
        }
        entries.into_iter().flatten().try_for_each(|entry| self.push(entry))
    }
}
