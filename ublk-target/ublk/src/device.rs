//! A device's life, from the first command to the last.
//!
//! ```text
//!   make:  ADD_DEV, SET_PARAMS ─▶ queues fetch ─▶ start: START_DEV ─────────▶ served ─▶ detach: STOP_DEV, DEL_DEV
//!          START_USER_RECOVERY ─▶ queues fetch ─▶ start: END_USER_RECOVERY ─▶ served ─▶ leave, or a kill: the device waits
//! ```
//!
//! `start`, `grow` and `detach` wait for the kernel, which may wait for requests of this device: whoever calls them is not who
//! tells the executors what they need for an answer. That one has [`Queues`].

use crate::attached::path_of;
use crate::features::{Feature, Probe};
use crate::kernel::{Control, Door, Gate, Info, Lasting, State, leave_out_scheduler, open_once, read_partitions};
use crate::limits::{GONE_POLL, GONE_WAIT, IN_USE_POLL, IN_USE_WAIT, MAIL, RECOVER_POLL, RECOVER_WAIT};
use crate::openers::{can_be_opened, claim};
use crate::queue::{QueueView, Report, prepare, serve};
use crate::queues::Queues;
use crate::{BuildError, DeviceError, DeviceOptions, Executor, Owner, QueueFailure, QueueId};
use conductor_model::Bytes;
use driver::Errno;
use reactor::mailbox;
use std::any::Any;
use std::fs::File;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

/// A device to be recovered whose daemon still runs after this is not going to be ours.
const SERVED_WAIT: Duration = Duration::from_secs(2);

/// What can always be opened.
const NOTHING: &str = "/dev/null";
/// The control device, its ring and the character device, and as many again.
const SPARE_FILES: usize = 6;

/// A device that is served. Dropping it is leaving: the device waits for the next daemon.
pub struct Device<M> {
    id: u32,
    path: PathBuf,
    queues: Queues<M>,
    reports: Receiver<Report>,
    /// Whose it is.
    owner: Owner,
    /// Made by a daemon before us.
    recovered: bool,
    /// It was started, and its daemon did not live to see that.
    half_started: bool,
    /// The kernel leaves the partition table to us.
    reads_partitions: bool,
}

/// A queue that ended while its device was served. Well: the device was stopped by somebody else. Not well: the process should
/// end, and another one recover the device.
#[derive(Debug)]
pub struct Ended {
    /// Which.
    pub queue: QueueId,
    /// How.
    pub result: Result<QueueView, QueueFailure>,
}

impl<M: Send + 'static> Device<M> {
    /// Makes a device, or takes one over, whose queues are ready for [`Device::start`]. Waits for no request, but up to
    /// 30 s for the end of the daemon before. `build` makes each queue's executor on that queue's thread; `on_letter`
    /// gets what executors have to say, on that thread too.
    pub fn make<E>(
        options: &DeviceOptions,
        build: impl Fn(QueueId) -> Result<E, BuildError> + Send + Sync + 'static,
        on_letter: impl Fn(QueueId, E::Letter) + Send + Sync + 'static,
    ) -> Result<Self, DeviceError>
    where
        E: Executor<Mail = M> + 'static,
    {
        options.check()?;
        let mut control = Control::open()?;
        let probe = Probe::ask(&mut control);
        let info = match options.recover {
            None => control.add(options, &probe)?,
            Some(id) => when_free(&mut control, id, options.owner, |_, info| Ok(Some(info)))?,
        };
        let (reporter, reports) = channel();
        let mut device = Self {
            id: info.id,
            path: path_of(info.id),
            queues: Queues::default(),
            reports,
            owner: options.owner,
            recovered: options.recover.is_some(),
            half_started: options.half_started,
            reads_partitions: probe.has(Feature::NoPartitionScan),
        };
        let parts = Arc::new((build, on_letter));
        match device
            .prepare(options, &info, &parts, &reporter)
            .and_then(|gates| device.open(&mut control, &info, gates))
        {
            Ok(()) if device.recovered => Ok(device),
            Ok(()) => match control.shape(info.id, options) {
                Ok(()) => Ok(device),
                Err(error) => Err(device.given_up(error)),
            },
            Err(error) => Err(device.given_up(error)),
        }
    }

    fn given_up(mut self, error: DeviceError) -> DeviceError {
        self.abandon();
        error
    }

    /// All that a queue needs but the device itself. What fails here leaves a device that is to be recovered as it was.
    fn prepare<E, B, L>(
        &mut self,
        options: &DeviceOptions,
        info: &Info,
        parts: &Arc<(B, L)>,
        reporter: &Sender<Report>,
    ) -> Result<Vec<Sender<Arc<Gate>>>, DeviceError>
    where
        E: Executor<Mail = M> + 'static,
        B: Fn(QueueId) -> Result<E, BuildError> + Send + Sync + 'static,
        L: Fn(QueueId, E::Letter) + Send + Sync + 'static,
    {
        let queues = (0..info.queues).map(QueueId);
        let gates =
            queues.map(|queue| self.spawn(&options.name, queue, info, parts, reporter)).collect::<Result<_, _>>()?;
        self.all_say_so()?;
        Ok(gates)
    }

    /// Opens the device, and has every queue fetch. Nothing that may fail is put in between: before 6.15 the kernel lets nobody recover
    /// a device that was taken over by a daemon of which no queue has fetched, and stumbles over one of which only some have.
    fn open(&mut self, control: &mut Control, info: &Info, gates: Vec<Sender<Arc<Gate>>>) -> Result<(), DeviceError> {
        let door = Door::find(info)?;
        if self.recovered {
            door.is_there()?;
            let spare = spare_files()?;
            when_free(control, info.id, self.owner, |control, _| match control.begin_recovery(info.id) {
                // Its character device is still being closed.
                Err(DeviceError::Refused { errno: Errno(libc::EBUSY), .. }) => Ok(None),
                Err(DeviceError::Refused { errno: Errno(libc::EINVAL), .. }) => Err(DeviceError::Lost(info.id)),
                other => other.map(Some),
            })?;
            drop(spare);
        }
        // The queues' alone: with the last of them the kernel is rid of this daemon, whatever else of it still waits.
        let gate = Arc::new(door.open()?);
        self.queues.are_behind(&gate);
        for to in gates {
            // One that has ended says so.
            let _ended = to.send(Arc::clone(&gate));
        }
        drop(gate);
        self.all_say_so()
    }

    /// Makes it usable, without an I/O scheduler. The kernel reads the partition table of a new one before this returns, which takes as long
    /// as the executors take to answer; [`Queues::refuse`] ends that. After an error a new device is gone, and one that was taken over waits for the
    /// next daemon.
    pub fn start(&mut self) -> Result<(), DeviceError> {
        let started = Control::open().and_then(|mut control| match self.recovered {
            false => control.start(self.id),
            true => control.end_recovery(self.id),
        });
        match started {
            Ok(()) if !self.recovered || self.half_started => {
                self.wait_for_partitions();
                self.leave_out_scheduler();
            }
            Ok(()) => {}
            Err(_) => self.abandon(),
        }
        started
    }

    /// Gives up a device that was never started: a new one is removed, one that was taken over waits for the next daemon.
    pub fn abandon(&mut self) {
        self.leave();
        if !self.recovered {
            let deleted = Control::open().and_then(|mut control| remove(&mut control, self.id));
            if let Err(error) = deleted {
                tracing::warn!(%error, "a device that was never started is still there");
            }
        }
    }

    fn spawn<E, B, L>(
        &mut self,
        name: &str,
        queue: QueueId,
        &Info { depth, io_buf_bytes, .. }: &Info,
        parts: &Arc<(B, L)>,
        reporter: &Sender<Report>,
    ) -> Result<Sender<Arc<Gate>>, DeviceError>
    where
        E: Executor<Mail = M> + 'static,
        B: Fn(QueueId) -> Result<E, BuildError> + Send + Sync + 'static,
        L: Fn(QueueId, E::Letter) + Send + Sync + 'static,
    {
        let (gates, gate) = channel::<Arc<Gate>>();
        let (letters, mail) = mailbox(MAIL).map_err(DeviceError::Mailbox)?;
        let (parts, reporter) = (Arc::clone(parts), reporter.clone());
        let body = move || {
            let mut lasting = Lasting::new(depth, io_buf_bytes);
            let (build, on_letter) = &*parts;
            let served = catch_unwind(AssertUnwindSafe(|| {
                prepare(depth, &mut lasting)?;
                // A device that is gone does not listen.
                drop(reporter.send(Report::Ready));
                let gate = gate.recv().map_err(|_| QueueFailure::Open("the device was given up".to_owned()))?;
                let on_letter = |letter| on_letter(queue, letter);
                let on_fetched = || drop(reporter.send(Report::Ready));
                serve(&gate, queue, &mut lasting, mail, build, on_letter, on_fetched)
            }));
            let result = served.unwrap_or_else(|panic| Err(QueueFailure::Panic(text_of(&*panic))));
            drop(parts);
            drop(reporter.send(Report::Ended(queue, result)));
            lasting
        };
        // A thread's name has 15 bytes.
        let name = format!("ublk{queue} {name}");
        let name = name.chars().filter(|c| c.is_ascii_graphic() || *c == ' ').take(15).collect();
        let thread = std::thread::Builder::new().name(name).spawn(body).map_err(DeviceError::Thread)?;
        self.queues.add(letters, thread);
        Ok(gates)
    }

    /// Waits until every queue is prepared, or has fetched; or one has failed.
    fn all_say_so(&self) -> Result<(), DeviceError> {
        for _ in 0..self.queues.count() {
            match self.reports.recv() {
                Ok(Report::Ready) => {}
                Ok(Report::Ended(queue, result)) => {
                    let failure = result.err().unwrap_or_else(|| QueueFailure::Open("it was stopped".to_owned()));
                    return Err(DeviceError::Queue { id: self.id, queue, failure });
                }
                Err(_) => return Err(DeviceError::NoDevice(self.id)),
            }
        }
        Ok(())
    }

    /// The kernel's number for it.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// `/dev/ublkbN`.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// True if a daemon before us made it.
    pub fn is_recovered(&self) -> bool {
        self.recovered
    }

    /// The way to its queues, for other threads too.
    pub fn queues(&self) -> &Queues<M> {
        &self.queues
    }

    /// Its size, as the kernel has it.
    pub fn size(&self) -> Result<Bytes, DeviceError> {
        Control::open()?.read_shape(self.id).map(|shape| shape.size)
    }

    /// Waits for a queue to end by itself; `None` if all are well after `timeout`.
    pub fn wait(&self, timeout: Duration) -> Option<Ended> {
        match self.reports.recv_timeout(timeout) {
            Ok(Report::Ended(queue, result)) => Some(Ended { queue, result }),
            Ok(Report::Ready) | Err(_) => None,
        }
    }

    /// Makes the live device larger. The volume must be that large already.
    pub fn grow(&self, size: Bytes) -> Result<(), DeviceError> {
        let mut control = Control::open()?;
        let now = control.read_shape(self.id)?.size;
        if size == now {
            return Ok(());
        }
        if size < now || !size.is_block_aligned() {
            return Err(DeviceError::Options("a device only grows, by whole 4 KiB blocks"));
        }
        if !Probe::ask(&mut control).has(Feature::UpdateSize) {
            return Err(DeviceError::TooOld("grow a live device", "6.16"));
        }
        // Some kernels make the system stumble over a device that was stopped.
        if control.info(self.id)?.state != State::Live {
            return Err(DeviceError::NoDevice(self.id));
        }
        control.resize(self.id, size)
    }

    /// Ends the device. Fails with [`DeviceError::InUse`] if it is mounted or the like, and then goes on serving; with `force`
    /// nobody is asked, and what is in flight fails.
    pub fn detach(&mut self, force: bool) -> Result<(), DeviceError> {
        let mut control = Control::open()?;
        if force {
            self.queues.refuse();
            control.stop(self.id)?;
        } else {
            match stop_unused(&mut control, self.id) {
                // Somebody else has stopped it just now.
                Err(DeviceError::NoDevice(_)) if self.clear() => return Ok(()),
                stopped => stopped?,
            }
        }
        // The stop takes all tags back: the queues end.
        self.leave();
        // It is stopped, which nothing takes back: what the kernel keeps of it is nobody's, and removed by the next attach.
        match remove(&mut control, self.id) {
            // Somebody else has removed it.
            Ok(()) | Err(DeviceError::NoDevice(_)) => {}
            Err(error) => tracing::warn!(%error, "the device, which is stopped, is still there"),
        }
        Ok(())
    }

    /// Removes what is left of a device that somebody else has stopped. False if it was not stopped: it waits for the next daemon.
    pub fn clear(&mut self) -> bool {
        self.leave();
        let until = Instant::now() + IN_USE_WAIT;
        loop {
            let cleared = Control::open().and_then(|mut control| {
                let info = control.info(self.id)?;
                // Its number may be another one's by now.
                if info.owner == Some(self.owner) && info.state == State::Dead {
                    control.delete_later(self.id)?;
                }
                Ok(info.owner != Some(self.owner) || info.state == State::Dead)
            });
            match cleared {
                // Whoever stopped it may have removed it, too.
                Ok(true) | Err(DeviceError::NoDevice(_)) => return true,
                Ok(false) if Instant::now() < until => std::thread::sleep(IN_USE_POLL),
                Ok(false) => return false,
                Err(error) => {
                    tracing::warn!(%error, "the device is still there");
                    return true;
                }
            }
        }
    }

    /// Stops serving, with nothing lost: what is in flight is finished or will be asked again, and the device waits for the
    /// daemon that recovers it.
    pub fn leave(&mut self) {
        self.end_queues();
        self.queues = Queues::default();
    }

    /// Until the kernel has read the partition table. From Linux 6.19 to 7.0 it does so at a time of its own: there an open waits, if
    /// it does not come first.
    fn wait_for_partitions(&self) {
        let read = if self.reads_partitions { read_partitions(&self.path) } else { open_once(&self.path) };
        if let Err(error) = read {
            tracing::debug!(path = %self.path.display(), %error, "the partition table of a new device cannot be read");
        }
    }
}

impl<M> Device<M> {
    fn leave_out_scheduler(&self) {
        if let Err(error) = leave_out_scheduler(self.id) {
            tracing::debug!(path = %self.path.display(), %error, "a new device keeps its I/O scheduler");
        }
    }

    fn end_queues(&mut self) {
        self.queues.leave();
        self.queues.join();
    }
}

impl<M> Drop for Device<M> {
    fn drop(&mut self) {
        self.end_queues();
    }
}

impl<M> std::fmt::Debug for Device<M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ublk device {} with {} queues", self.id, self.queues.count())
    }
}

/// As many files as a device is opened with, and its queues: kept free for them by whoever keeps these.
fn spare_files() -> Result<Vec<File>, DeviceError> {
    let open = |_| File::open(NOTHING).map_err(|error| DeviceError::Open { path: NOTHING.into(), error });
    (0..SPARE_FILES).map(open).collect()
}

/// Does something with a device as soon as its daemon is gone, and the kernel has seen it; again, while it comes to nothing.
fn when_free<T>(
    control: &mut Control,
    id: u32,
    owner: Owner,
    mut attempt: impl FnMut(&mut Control, Info) -> Result<Option<T>, DeviceError>,
) -> Result<T, DeviceError> {
    let begin = Instant::now();
    loop {
        let info = control.info(id)?;
        if info.owner != Some(owner) || !info.recoverable || info.state == State::Dead {
            return Err(DeviceError::NotOurs(id));
        }
        if info.state != State::Live
            && let Some(done) = attempt(control, info)?
        {
            return Ok(done);
        }
        let waited = begin.elapsed();
        if waited > SERVED_WAIT && runs(info.pid) {
            return Err(DeviceError::Served { id, pid: info.pid });
        }
        if waited > RECOVER_WAIT {
            return Err(DeviceError::Unnoticed { id, pid: info.pid });
        }
        std::thread::sleep(RECOVER_POLL);
    }
}

/// True if that process exists and has not ended.
pub(crate) fn runs(pid: i32) -> bool {
    let Ok(stat) = std::fs::read_to_string(format!("/proc/{pid}/stat")) else { return false };
    // The state follows the name, which may contain anything, in parentheses.
    let state = stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
    !matches!(state, None | Some('Z' | 'X'))
}

/// Stops a device unless somebody has it open. Who opens it for a moment, as udev does after a umount, is waited for.
pub(crate) fn stop_unused(control: &mut Control, id: u32) -> Result<(), DeviceError> {
    let safe = Probe::ask(control).has(Feature::SafeStop);
    let begin = Instant::now();
    loop {
        let stopped = match safe {
            // The command waits for whoever opens the device, and whoever reads its partition table, for ever.
            true if can_be_opened(&path_of(id)) => control.stop_unused(id),
            true => Err(DeviceError::InUse(id)),
            false => match claim(id) {
                Some(_claim) => control.stop(id),
                None => Err(DeviceError::InUse(id)),
            },
        };
        match stopped {
            Err(DeviceError::InUse(_)) if begin.elapsed() < IN_USE_WAIT => std::thread::sleep(IN_USE_POLL),
            other => return other,
        }
    }
}

/// Removes a stopped device. Its number is free when this returns, unless somebody still has it open, who is not waited for: the kernel does
/// not say before 7.0 that there is somebody, and may keep it so for ever.
pub(crate) fn remove(control: &mut Control, id: u32) -> Result<(), DeviceError> {
    control.delete_later(id)?;
    let until = Instant::now() + GONE_WAIT;
    while Instant::now() < until && control.info(id).is_ok_and(|info| info.state == State::Dead) {
        std::thread::sleep(GONE_POLL);
    }
    Ok(())
}

/// What a panic said.
fn text_of(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no message".to_owned())
}
