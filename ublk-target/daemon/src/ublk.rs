//! The ublk front end: a device whose queues are lanes.

use crate::error::TargetError;
use crate::happening::Happening;
use crate::limits::{LOOK, UBLK_DEPTH, UBLK_NETWORK};
use crate::maps::Early;
use crate::record::Record;
use crate::setup::Setup;
use crate::view::TargetView;
use conductor_model::Bytes;
use conductor_model::api::VolumeMap;
use memory::{Arena, ArenaOptions, Backing, Shares};
use std::path::Path;
use std::sync::mpsc::{Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};
use ublk_device::{
    Device, DeviceError, DeviceOptions, KernelDevice, KernelState, Owner, QueueId, Volume, VolumeLetter, VolumeMail,
};

/// A device that is served.
pub(crate) struct UblkFront {
    device: Device<VolumeMail>,
    volume: String,
    size: Bytes,
}

/// What to make of it.
pub(crate) struct UblkShape {
    pub(crate) queues: u16,
    /// Whose it is.
    pub(crate) owner: Owner,
    /// Take this device over.
    pub(crate) recover: Option<u32>,
}

/// The number of a device that Trine serves or served: from `/dev/ublkbN`.
pub(crate) fn number(device: &str) -> Option<u32> {
    device.strip_prefix("/dev/ublkb")?.parse().ok()
}

/// The attachment's own device among `known`. Its number may be another volume's by now.
fn device_of<'k>(record: &Record, known: &'k [KernelDevice]) -> Option<&'k KernelDevice> {
    let (id, owner) = (number(&record.device)?, Owner::of(record.cluster, record.volume_id));
    known.iter().find(|known| known.id == id && known.owner == owner)
}

/// The number of the attachment's device, if the kernel keeps it, and what it was asked, for the next daemon.
pub(crate) fn waits(record: &Record) -> Result<Option<u32>, TargetError> {
    if number(&record.device).is_none() {
        return Ok(None);
    }
    let known = ublk_device::known()?;
    let waits = device_of(record, &known).filter(|known| known.state != KernelState::Dead);
    Ok(waits.map(|known| known.id))
}

/// Removes what a dead target left of its device; without `force` not if it is in use.
pub(crate) fn forget(record: &Record, force: bool) -> Result<(), TargetError> {
    if number(&record.device).is_none() {
        return Ok(());
    }
    if let Some(known) = device_of(record, &ublk_device::known()?) {
        ublk_device::forget(known.id, known.owner, force).map_err(|error| match error {
            DeviceError::InUse(_) => TargetError::Refused { volume: record.volume.clone(), why: error.to_string() },
            other => other.into(),
        })?;
    }
    Ok(ublk_device::unlink(&record.volume, Path::new(&record.device))?)
}

/// To be called before the process has a second thread.
pub(crate) fn prepare_process() -> Result<(), TargetError> {
    let system =
        |what| move |errno: driver::Errno| TargetError::system(what)(std::io::Error::from_raw_os_error(errno.0));
    ublk_device::daemon::io_flusher().map_err(system("become an I/O flusher (run as root)"))?;
    ublk_device::daemon::own_mount_namespace().map_err(system("get a mount namespace (run as root)"))
}

impl UblkFront {
    /// Makes the device, or takes it over; returns when it is usable.
    pub(crate) fn start(
        setup: Setup,
        shape: &UblkShape,
        early: &Early,
        asks: SyncSender<()>,
        tell: Sender<Happening>,
    ) -> Result<Self, TargetError> {
        let (volume, size) = (setup.map.name.clone(), setup.map.size);
        let mut options = DeviceOptions::new(&volume, size);
        options.queues = shape.queues;
        options.owner = shape.owner;
        options.depth = setup.depth.unwrap_or(UBLK_DEPTH);
        options.read_only = setup.read_only;
        options.recover = shape.recover;
        // A device that is taken over keeps its depth.
        let kept = match shape.recover {
            Some(id) => ublk_device::known()?.into_iter().find(|known| known.id == id).map(|known| known.depth),
            None => None,
        };
        let depth = kept.unwrap_or(options.depth);
        // Every request can have all its memory, twice for rounding; so nothing waits for memory for ever.
        let bytes = usize::from(depth) * 2 * options.io_buf_bytes as usize + UBLK_NETWORK;
        let lanes = Arc::clone(early);
        let build = move |queue: QueueId| {
            let arena = Arena::new(ArenaOptions { bytes, backing: Backing::Heap, shares: Shares::only_client() })?;
            let client = setup.client(queue.0, depth, &arena)?;
            let (to, maps) = sync_channel(1);
            lanes.lock().unwrap_or_else(PoisonError::into_inner).push(to);
            Ok(Volume::new(client, arena).with_maps(maps))
        };
        let on_letter = move |_, letter| match letter {
            VolumeLetter::WantsMap => drop(asks.try_send(())),
            VolumeLetter::Fenced => drop(tell.send(Happening::Fenced)),
        };
        let device = Device::attach(&options, build, on_letter)?;
        // Mail reaches them from now on.
        early.lock().unwrap_or_else(PoisonError::into_inner).clear();
        let mut new = Self { device, volume, size };
        match new.name() {
            Ok(()) => Ok(new),
            Err(error) => {
                // One that was taken over has its users; a new one has none yet.
                if shape.recover.is_none() {
                    let _first_error_counts = new.detach(true);
                }
                Err(error)
            }
        }
    }

    /// Its size as the kernel has it, and its name in `/dev/trine`.
    fn name(&mut self) -> Result<(), TargetError> {
        self.size = self.device.size()?;
        let gone = ublk_device::unlink_stale()?;
        if !gone.is_empty() {
            tracing::info!(?gone, "names of devices that are gone were removed");
        }
        ublk_device::link(&self.volume, self.device.path())?;
        Ok(())
    }

    pub(crate) fn path(&self) -> &Path {
        self.device.path()
    }

    /// A new map for every queue; the device grows with the volume.
    pub(crate) fn map(&mut self, map: &Arc<VolumeMap>) {
        let queues = (0..self.device.queues()).filter_map(|queue| u16::try_from(queue).ok());
        let told = queues.map(|queue| self.device.mail(QueueId(queue), VolumeMail::Map(Arc::clone(map))));
        let all = told.filter(Result::is_err).count() == 0;
        // The lanes must know the new size before the kernel uses it; a look is answered after what was sent before.
        if map.size > self.size && all && self.device.look().len() == self.device.queues() {
            match self.device.grow(map.size) {
                Ok(()) => tracing::info!(size = map.size.0, "the device has grown"),
                Err(error) => tracing::warn!(%error, "the volume has grown, the device has not"),
            }
            self.size = map.size;
        }
    }

    pub(crate) fn look(&self) -> Option<TargetView> {
        let (to, views) = channel();
        for queue in (0..self.device.queues()).filter_map(|queue| u16::try_from(queue).ok()) {
            // One that is too busy to take mail does not show.
            let _busy = self.device.mail(QueueId(queue), VolumeMail::Look(to.clone()));
        }
        drop(to);
        let until = Instant::now() + LOOK;
        let next = || views.recv_timeout(until.saturating_duration_since(Instant::now())).ok();
        let mut view = TargetView::of(&std::iter::from_fn(next).collect::<Vec<_>>());
        for queue in self.device.look() {
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
        Some(view)
    }

    /// A queue that ended by itself: `Ok` if somebody else stopped the device.
    pub(crate) fn ended(&self) -> Option<Result<(), TargetError>> {
        let ended = self.device.wait(Duration::ZERO)?;
        Some(ended.result.map(drop).map_err(|failure| TargetError::Queue { queue: ended.queue.0, failure }))
    }

    /// Ends the device, if nobody uses it; `now`: in any case.
    pub(crate) fn detach(&mut self, now: bool) -> Result<(), TargetError> {
        self.device.detach(now)?;
        Ok(ublk_device::unlink(&self.volume, self.device.path())?)
    }

    /// Leaves the device to the next daemon; nothing is lost.
    pub(crate) fn leave(&mut self) {
        self.device.leave();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use conductor_model::{AttachGeneration, ClusterId, VolumeId};

    #[test]
    fn a_device_whose_number_is_another_volumes_by_now_is_not_the_attachments() {
        let record = Record {
            volume: "db".into(),
            cluster: ClusterId(0xc1),
            volume_id: VolumeId(7),
            pid: 1,
            started: 1,
            since_ms: 1,
            device: "/dev/ublkb3".into(),
            client: "host/db".into(),
            generation: AttachGeneration(3),
            read_only: false,
        };
        let device = |id, cluster, volume| KernelDevice {
            id,
            owner: Owner::of(ClusterId(cluster), VolumeId(volume)),
            path: format!("/dev/ublkb{id}").into(),
            state: KernelState::Waiting,
            pid: None,
            queues: 1,
            depth: 1,
            size: Bytes(4096),
            read_only: false,
        };
        let all = [device(2, 0xc1, 7), device(3, 0xc1, 7)];
        assert_eq!(device_of(&record, &all), Some(&all[1]));
        assert_eq!(device_of(&record, &[device(2, 0xc1, 7)]), None);
        assert_eq!(device_of(&record, &[device(3, 0xc1, 8)]), None);
        assert_eq!(device_of(&record, &[device(3, 0xc2, 7)]), None);
        let nbd = Record { device: "nbd://127.0.0.1:10809/db".into(), ..record };
        assert_eq!(device_of(&nbd, &all), None);
    }
}
