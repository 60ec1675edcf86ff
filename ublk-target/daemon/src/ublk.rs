//! The ublk front end: a device whose queues are lanes, and the thread that gives the kernel its commands.
//!
//! ```text
//!   main thread ──Order──▶ device's thread ──START_DEV, UPDATE_SIZE, STOP_DEV──▶ kernel ──requests──▶ queues
//!      ▲  └───────────────────────── maps, looks, refuse ─────────────────────────────────────────────▲
//!      └──── Started, Stays, Left, Ended ┘
//! ```

use crate::error::TargetError;
use crate::happening::Happening;
use crate::limits::{
    GROW_AGAIN, LET_GO, LOCK_POLL, LOOK, QUEUES_EVERY, RDMA_NETWORK, TLS_NETWORK, UBLK_DEPTH, UBLK_NETWORK,
};
use crate::record::{Place, Record};
use crate::setup::{Setup, say};
use crate::subject::Subject;
use crate::view::TargetView;
use conductor_client::Client;
use conductor_model::Bytes;
use conductor_model::api::VolumeMap;
use memory::{Arena, ArenaOptions, Backing, Shares};
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel};
use std::thread;
use std::time::{Duration, Instant};
use ublk_device::{
    Asking, Device, DeviceError, DeviceOptions, Found, KernelState, Owner, QueueId, Queues, Volume, VolumeLetter,
    VolumeMail,
};
use volume_client::Transport;

/// A device that is started and served, as the main thread knows it.
pub(crate) struct UblkFront {
    queues: Queues<VolumeMail>,
    orders: Sender<Order>,
    wanted: Arc<AtomicU64>,
}

/// What the device's thread is told. It does one after the other, and says what came of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Order {
    /// End the device, if nobody uses it; `now`: in any case. `Ended`, or `Stays`.
    Stop { now: bool },
    /// Leave the device to the next target; nothing is lost. `Left`.
    Leave,
}

/// A device whose queues are ready, and of which nobody knows yet.
pub(crate) struct UblkMade {
    device: Device<VolumeMail>,
    volume: String,
    size: Bytes,
    owner: Owner,
}

/// What to make of it.
pub(crate) struct UblkShape {
    pub(crate) queues: u16,
    /// Whose it is.
    pub(crate) owner: Owner,
    /// Take this device over.
    pub(crate) recover: Option<u32>,
    /// Its target did not live to see it started.
    pub(crate) half_started: bool,
    /// The volume is taken from whoever has it: one that waits here, too.
    pub(crate) force: bool,
}

/// The number of a device that Trine serves or served: from `/dev/ublkbN`.
pub(crate) fn number(device: &str) -> Option<u32> {
    device.strip_prefix("/dev/ublkb")?.parse().ok()
}

/// The number of the attachment's device, and whose a device of that number is to be: it may be another volume's by now.
fn named(record: &Record) -> Option<(u32, Owner)> {
    Some((number(&record.device)?, Owner::of(record.cluster, record.volume_id, record.snapshot)))
}

/// The attachment's own device, if the kernel keeps it.
fn device_of(record: &Record) -> Result<Option<Found>, TargetError> {
    let Some((id, owner)) = named(record) else { return Ok(None) };
    Ok(ublk_device::find(id, owner)?)
}

/// A device that waits for its next target, which it is taken over by as it was made.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Kept {
    /// `/dev/ublkbN`.
    pub device: String,
    /// Threads that serve it.
    pub queues: u16,
    /// Requests in flight, per queue.
    pub depth: u16,
}

/// What waits for the next target of `place`, as far as can be seen.
pub fn kept(place: &Place) -> Option<Kept> {
    let record = place.read().ok().flatten().filter(|_| place.is_live().is_ok_and(|live| !live))?;
    let found = device_of(&record).ok().flatten().filter(|found| found.state != KernelState::Dead)?;
    Some(Kept { device: record.device, queues: found.queues, depth: found.depth })
}

/// The number of the attachment's device, if the kernel keeps it, and what it was asked, for the next daemon. One that was never
/// started, or was stopped already, is of no use to anybody, and removed.
pub(crate) fn waits(record: &Record) -> Result<Option<u32>, TargetError> {
    match device_of(record)? {
        Some(Found { id, owner, state: KernelState::Dead, .. }) => {
            ublk_device::forget(id, owner, Asking::All)?;
            Ok(None)
        }
        found => Ok(found.map(|found| found.id)),
    }
}

/// Removes what a dead target left of its device; without `force` not if it is in use. One that may not have been started to its end is not
/// opened for the question: nobody might be able to.
pub(crate) fn forget(record: &Record, force: bool) -> Result<(), TargetError> {
    let asking = match (force, record.starting) {
        (true, _) => Asking::Nothing,
        (false, true) => Asking::Seen,
        (false, false) => Asking::All,
    };
    if record.device.is_empty() {
        sweep(Owner::of(record.cluster, record.volume_id, record.snapshot))?;
        return Ok(());
    }
    if number(&record.device).is_none() {
        return Ok(());
    }
    if let Some(found) = device_of(record)? {
        ublk_device::forget(found.id, found.owner, asking).map_err(|error| match error {
            DeviceError::InUse(_) => TargetError::Refused { volume: record.volume.clone(), why: error.to_string() },
            other => other.into(),
        })?;
    }
    Ok(ublk_device::unlink(&record.volume, Path::new(&record.device))?)
}

/// Is the attachment's device there, whatever became of its target?
pub(crate) fn is_there(record: &Record) -> bool {
    matches!(device_of(record), Ok(Some(_)))
}

/// Is the device of an attachment that has ended still open somewhere?
pub(crate) fn is_left_open(record: &Record) -> bool {
    matches!(device_of(record), Ok(Some(Found { state: KernelState::Dead, .. })))
}

/// Removes devices of whom a target was killed before it knew their number.
fn sweep(owner: Owner) -> Result<(), DeviceError> {
    let swept = ublk_device::sweep(owner)?;
    if !swept.is_empty() {
        tracing::info!(?swept, "devices that a killed target had made and not started were removed");
    }
    Ok(())
}

fn waiting_of(owner: Owner) -> Result<Vec<Found>, DeviceError> {
    let mut all = ublk_device::waiting()?;
    all.retain(|found| found.owner == owner);
    Ok(all)
}

/// Devices of Trine's that wait for a target and are not of these, as far as can be seen: by path, and the volume's name if they have it still.
pub fn unrecorded(recorded: &BTreeSet<String>) -> Vec<(String, Option<String>)> {
    let all = ublk_device::waiting().unwrap_or_default().into_iter().map(|found| found.path());
    let others = all.filter(|path| !recorded.contains(&path.display().to_string()));
    others.map(|path| (path.display().to_string(), ublk_device::link_of(&path))).collect()
}

/// Ends devices that wait for a target of the volume and have no record. False if there are none, or the conductor does not say whose they
/// would be.
pub(crate) fn forget_unrecorded(volume: &str, conductor: &Client) -> Result<bool, TargetError> {
    let whose = || {
        let map = volume.parse::<Subject>().ok()?.map(conductor).ok()?;
        Some(Owner::of(conductor.version().ok()?.cluster, map.volume, map.snapshot))
    };
    let Some(owner) = whose() else { return Ok(false) };
    let all = waiting_of(owner)?;
    for found in &all {
        ublk_device::forget(found.id, owner, Asking::Nothing)?;
        ublk_device::unlink(volume, &found.path())?;
    }
    Ok(!all.is_empty())
}

/// To be called before the process has a second thread. Beside its records it needs no files that are the user's.
pub(crate) fn prepare_process(records: &Path) -> Result<(), TargetError> {
    let system =
        |what| move |errno: driver::Errno| TargetError::system(what)(std::io::Error::from_raw_os_error(errno.0));
    // What root could not mend is said first.
    if !ublk_device::driver_is_loaded() {
        return Err(DeviceError::NoDriver.into());
    }
    ublk_device::daemon::io_flusher().map_err(system("become an I/O flusher (run as root)"))?;
    if let Err(errno) = ublk_device::daemon::stay_in_memory() {
        tracing::warn!(%errno, "this target may be swapped out, or ended when memory runs out: do not swap to its device");
    }
    ublk_device::daemon::own_mount_namespace(&[records]).map_err(system("get a mount namespace (run as root)"))
}

impl UblkMade {
    /// Makes the device, or takes it over; returns when it can be started.
    pub(crate) fn make(setup: Setup, shape: &UblkShape, asks: SyncSender<()>) -> Result<Self, TargetError> {
        let (volume, size) = (setup.name.clone(), setup.map.size);
        let mut options = DeviceOptions::new(&volume, size);
        options.queues = shape.queues;
        options.owner = shape.owner;
        options.depth = setup.depth.unwrap_or(UBLK_DEPTH);
        options.read_only = setup.read_only;
        options.write_back = setup.write_back();
        (options.recover, options.half_started) = (shape.recover, shape.half_started);
        // A device that is taken over keeps its depth, and whether the kernel flushes it: the writes of one that it never flushes are
        // durable at once.
        let kept = match shape.recover {
            Some(id) => ublk_device::find(id, shape.owner)?,
            None => None,
        };
        let depth = kept.map_or(options.depth, |kept| kept.depth);
        let write_through = match (shape.recover, kept) {
            (None, _) => false,
            (Some(_), kept) => !kept.map(|kept| ublk_device::is_write_back(kept.id)).transpose()?.unwrap_or(false),
        };
        // Every request can have all its memory, twice for rounding; so nothing waits for memory for ever.
        let rdma = if setup.transport == Transport::Tcp { 0 } else { RDMA_NETWORK };
        let network = UBLK_NETWORK + rdma + if setup.trust.is_some() { TLS_NETWORK } else { 0 };
        let bytes = usize::from(depth) * 2 * options.io_buf_bytes as usize + network;
        let build = move |queue: QueueId| {
            let arena = Arena::new(ArenaOptions { bytes, backing: Backing::Heap, shares: Shares::only_client() })?;
            let client = setup.client(queue.0, depth, &arena)?;
            let client = if write_through { client.write_through() } else { client };
            let layer = setup.tls(None, &arena)?;
            Ok(Volume::new(client, arena, layer))
        };
        let on_letter = move |_, letter| match letter {
            VolumeLetter::WantsMap => drop(asks.try_send(())),
            VolumeLetter::Word(word) => say(&word),
        };
        if shape.recover.is_none()
            && let Err(error) = sweep(shape.owner)
        {
            tracing::warn!(%error, "a device that a killed target had made is still there");
        }
        // Whose record was lost. Of those that are only read there may be several, from several directories.
        if shape.recover.is_none()
            && !shape.force
            && !options.read_only
            && let Some(left) = waiting_of(shape.owner)?.first()
        {
            return Err(TargetError::Unrecorded { volume, device: left.path().display().to_string() });
        }
        Ok(Self { device: Device::make(&options, build, on_letter)?, volume, size, owner: shape.owner })
    }

    pub(crate) fn path(&self) -> &Path {
        self.device.path()
    }

    /// Takes it back.
    pub(crate) fn abandon(mut self) {
        self.device.abandon();
    }

    /// Starts it, which is told, and serves it from now on.
    pub(crate) fn start(self, tell: Sender<Happening>) -> Result<UblkFront, TargetError> {
        let (orders, ordered) = channel();
        let wanted = Arc::new(AtomicU64::new(0));
        let front = UblkFront { queues: self.device.queues().clone(), orders, wanted: Arc::clone(&wanted) };
        let keeper = Keeper {
            device: self.device,
            volume: self.volume,
            size: self.size,
            wanted,
            grow_at: Instant::now(),
            owner: self.owner,
        };
        let thread = thread::Builder::new().name("device".into()).spawn(move || keeper.run(&ordered, &tell));
        thread.map_err(TargetError::system("start a thread"))?;
        Ok(front)
    }
}

/// Owns the device, on a thread of its own: the kernel's answers may take as long as requests do.
struct Keeper {
    device: Device<VolumeMail>,
    volume: String,
    size: Bytes,
    /// The volume's size, when all lanes were told.
    wanted: Arc<AtomicU64>,
    /// Not before this is it tried to grow.
    grow_at: Instant,
    owner: Owner,
}

impl Keeper {
    fn run(mut self, orders: &Receiver<Order>, tell: &Sender<Happening>) {
        // Nobody listens to a target that is over.
        let tell = |what| drop(tell.send(what));
        let started = self.start();
        let failed = started.is_err();
        tell(Happening::Started(started));
        if failed {
            return;
        }
        loop {
            match orders.recv_timeout(QUEUES_EVERY) {
                Ok(Order::Stop { now }) => match self.stop(now) {
                    Ok(()) => return tell(Happening::Ended(Ok(()))),
                    Err(error) => tell(Happening::Stays(error)),
                },
                Ok(Order::Leave) => {
                    self.device.leave();
                    return tell(Happening::Left);
                }
                Err(RecvTimeoutError::Timeout) => {
                    // A queue that ended by itself; well, if somebody else stopped the device.
                    if let Some(ended) = self.device.wait(Duration::ZERO) {
                        if ended.result.is_ok() && !self.clear() {
                            return tell(Happening::Left);
                        }
                        let failed = |failure| TargetError::Queue { queue: ended.queue.0, failure };
                        return tell(Happening::Ended(ended.result.map(drop).map_err(failed)));
                    }
                    self.grow();
                }
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    fn start(&mut self) -> Result<(), TargetError> {
        self.device.start()?;
        match self.name() {
            // It has its users already, who wait for it.
            Err(error) if self.device.is_recovered() => {
                tracing::warn!(%error, "the device has no name in /dev/trine");
                Ok(())
            }
            // Nobody knows of it yet, and nobody uses it.
            Err(error) => {
                if let Err(error) = self.stop(true) {
                    tracing::warn!(%error, "the device is still there");
                }
                Err(error)
            }
            named => named,
        }
    }

    /// Its size as the kernel has it, and its name in `/dev/trine`.
    fn name(&mut self) -> Result<(), TargetError> {
        self.size = self.device.size()?;
        let gone = ublk_device::unlink_stale()?;
        if !gone.is_empty() {
            tracing::info!(?gone, "names of devices that are gone were removed");
        }
        let theirs = |(owner, state)| owner != self.owner && state != KernelState::Dead;
        let taken = |path: &Path| ublk_device::whose(path).is_some_and(theirs);
        if ublk_device::link(&self.volume, self.device.path(), taken)?.is_none() {
            let path = self.device.path().display();
            tracing::warn!(%path, "another cluster's volume has this one's name in /dev/trine: it is known by its number alone");
        }
        Ok(())
    }

    /// The device grows with the volume. The lanes must know the new size before the kernel uses it: a look is answered after what
    /// was sent before.
    fn grow(&mut self) {
        let wanted = Bytes(self.wanted.load(Ordering::Acquire));
        if wanted <= self.size
            || Instant::now() < self.grow_at
            || self.device.queues().look().len() < self.device.queues().count()
        {
            return;
        }
        match self.device.grow(wanted) {
            Ok(()) => {
                tracing::info!(size = wanted.0, "the device has grown");
                self.size = wanted;
            }
            // It stays so with this kernel.
            Err(error @ DeviceError::TooOld(..)) => {
                tracing::warn!(%error, "the volume has grown, the device has not");
                self.size = wanted;
            }
            Err(error) => {
                tracing::warn!(%error, "the volume has grown, the device has not; it is tried again");
                self.grow_at = Instant::now() + GROW_AGAIN;
            }
        }
    }

    /// Somebody else has stopped the device: nothing of it stays. False if it waits for the next target.
    fn clear(&mut self) -> bool {
        if !self.device.clear() {
            return false;
        }
        if let Err(error) = ublk_device::unlink(&self.volume, self.device.path()) {
            tracing::warn!(%error, "the device's name is still there");
        }
        true
    }

    fn stop(&mut self, now: bool) -> Result<(), TargetError> {
        self.device.detach(now)?;
        Ok(ublk_device::unlink(&self.volume, self.device.path())?)
    }
}

impl UblkFront {
    /// One without queues, whose device's thread is the test.
    #[cfg(test)]
    pub(crate) fn without_queues() -> (Self, Receiver<Order>) {
        let (orders, ordered) = channel();
        (Self { queues: Queues::default(), orders, wanted: Arc::default() }, ordered)
    }

    /// False if the device's thread is over.
    pub(crate) fn order(&self, order: Order) -> bool {
        self.orders.send(order).is_ok()
    }

    /// Fails everything from now on: nothing waits for the device any more.
    pub(crate) fn refuse(&self) {
        self.queues.refuse();
    }

    /// Takes the device from the kernel's hands by force, although its own thread still waits for the kernel: without its queues nothing
    /// that the kernel waits for is ours. False if that failed.
    pub(crate) fn wrest(&self, record: &Record) -> bool {
        if !self.queues.let_go(LET_GO) {
            return false;
        }
        let until = Instant::now() + LET_GO;
        loop {
            match forget(record, true) {
                Ok(()) => return true,
                // The kernel notices a moment later.
                Err(TargetError::Device(DeviceError::Served { .. })) if Instant::now() < until => {
                    thread::sleep(LOCK_POLL);
                }
                Err(error) => {
                    tracing::warn!(%error, "the device is still there");
                    return false;
                }
            }
        }
    }

    /// A new map for every queue; the device grows with the volume.
    pub(crate) fn map(&self, map: &Arc<VolumeMap>) {
        if self.queues.mail(|| VolumeMail::Map(Arc::clone(map))) == self.queues.count() {
            self.wanted.store(map.size.0, Ordering::Release);
        }
    }

    /// One that is too busy to take mail asks for a map again, and is told again.
    pub(crate) fn gone(&self) {
        let _all = self.queues.mail(|| VolumeMail::Gone);
    }

    pub(crate) fn look(&self) -> TargetView {
        let (to, views) = channel();
        // One that is too busy to take mail does not show.
        let _all = self.queues.mail(|| VolumeMail::Look(to.clone()));
        drop(to);
        let until = Instant::now() + LOOK;
        let next = || views.recv_timeout(until.saturating_duration_since(Instant::now())).ok();
        let mut view = TargetView::of(&std::iter::from_fn(next).collect::<Vec<_>>());
        for queue in self.queues.look() {
            view.add_reactor(&queue.reactor);
            let c = queue.counters;
            for (name, value) in [
                ("ublk_reads", c.reads),
                ("ublk_writes", c.writes),
                ("ublk_fua", c.fua),
                ("ublk_flushes", c.flushes),
                ("ublk_discards", c.discards),
                ("ublk_write_zeroes", c.zeroes),
                ("ublk_bytes_read", c.read_bytes),
                ("ublk_bytes_written", c.written_bytes),
                ("ublk_errors", c.errors),
                ("ublk_held_back", c.held_back),
            ] {
                view.count(name, value);
            }
        }
        view
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use conductor_model::{AttachGeneration, ClusterId, SnapshotId, VolumeId};

    #[test]
    fn a_device_whose_number_is_another_volumes_by_now_is_not_the_attachments() {
        let record = Record {
            volume: "db".into(),
            snapshot: None,
            cluster: ClusterId(0xc1),
            volume_id: VolumeId(7),
            pid: 1,
            started: 1,
            since_ms: 1,
            device: "/dev/ublkb3".into(),
            client: "host/db".into(),
            generation: AttachGeneration(3),
            read_only: false,
            starting: false,
        };
        let owner = |cluster, volume| Owner::of(ClusterId(cluster), VolumeId(volume), None);
        let (id, whose) = named(&record).unwrap();
        assert_eq!((id, whose), (3, owner(0xc1, 7)));
        assert!(![owner(0xc1, 8), owner(0xc2, 7)].contains(&whose));
        let snapshot = Record { snapshot: Some(SnapshotId(1)), ..record.clone() };
        assert_ne!(named(&snapshot).unwrap().1, whose, "the volume's own");
        let nbd = Record { device: "nbd://127.0.0.1:10809/db".into(), ..record };
        assert_eq!(named(&nbd), None);
    }
}
