//! What the kernel knows of devices, whoever serves them or does no more.

use crate::device::{remove, runs, stop_unused};
use crate::features::driver_is_loaded;
use crate::kernel::{Control, Info, State};
use crate::limits::{RECOVER_POLL, RECOVER_WAIT};
use crate::openers::is_seen_in_use;
use crate::{DeviceError, Owner};
use conductor_model::Bytes;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// The kernel's list of character devices of ublk.
const LIST: &str = "/sys/class/ublk-char";

/// How a device stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum KernelState {
    /// Served.
    Live,
    /// Its daemon is gone, its requests wait: recover it, or [`forget`] it.
    Waiting,
    /// Stopped or never started: [`forget`] it.
    Dead,
}

impl KernelState {
    fn of(state: State) -> Self {
        match state {
            State::Live => Self::Live,
            State::Quiesced | State::FailIo => Self::Waiting,
            State::Dead => Self::Dead,
        }
    }
}

/// A device that was looked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Found {
    /// Its number.
    pub id: u32,
    /// Whose it is.
    pub owner: Owner,
    /// How it stands.
    pub state: KernelState,
    /// How many queues it has.
    pub queues: u16,
    /// Requests per queue.
    pub depth: u16,
}

impl Found {
    fn of(&Info { id, state, queues, depth, .. }: &Info, owner: Owner) -> Self {
        Self { id, owner, state: KernelState::of(state), queues, depth }
    }

    /// `/dev/ublkbN`.
    pub fn path(&self) -> PathBuf {
        path_of(self.id)
    }
}

/// A device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KernelDevice {
    /// Its number.
    pub id: u32,
    /// Whose it is.
    pub owner: Owner,
    /// `/dev/ublkbN`.
    pub path: PathBuf,
    /// How it stands.
    pub state: KernelState,
    /// Who serves it, if anybody does.
    pub pid: Option<i32>,
    /// How many queues it has.
    pub queues: u16,
    /// Requests per queue.
    pub depth: u16,
    /// Its size.
    pub size: Bytes,
    /// No writes.
    pub read_only: bool,
    /// The kernel sends FLUSH: see [`crate::DeviceOptions::write_back`].
    pub write_back: bool,
}

/// All devices that Trine made, by number. None where there is no ublk.
pub fn known() -> Result<Vec<KernelDevice>, DeviceError> {
    let mut all = Vec::new();
    for (info, owner) in ours()? {
        match Control::open().and_then(|mut control| describe(&mut control, info, owner)) {
            Err(DeviceError::NoDevice(_)) => {}
            described => all.push(described?),
        }
    }
    Ok(all)
}

/// Removes `owner`'s devices that were made and never started, by a process that is gone: it had no time to write down their numbers.
/// Which they were.
pub fn sweep(owner: Owner) -> Result<Vec<u32>, DeviceError> {
    let mut swept = Vec::new();
    for (info, whose) in ours()? {
        if whose != owner || info.state != State::Dead || info.pid > 0 && runs(info.pid) {
            continue;
        }
        match forget(info.id, owner, Asking::Nothing) {
            Ok(()) => swept.push(info.id),
            Err(DeviceError::NoDevice(_)) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(swept)
}

/// Devices of Trine's, by number, as far as can be said at once.
fn ours() -> Result<Vec<(Info, Owner)>, DeviceError> {
    let Ok(entries) = std::fs::read_dir(LIST) else { return Ok(Vec::new()) };
    if !driver_is_loaded() {
        return Ok(Vec::new());
    }
    let name = |entry: std::fs::DirEntry| entry.file_name().to_str()?.strip_prefix("ublkc")?.parse().ok();
    let mut ids: Vec<u32> = entries.flatten().filter_map(name).collect();
    ids.sort_unstable();
    let mut control = Control::open()?;
    let mut all = Vec::new();
    for id in ids {
        match control.info(id) {
            Ok(info) => all.extend(info.owner.map(|owner| (info, owner))),
            // Gone since it was listed.
            Err(DeviceError::NoDevice(_)) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(all)
}

/// `owner`'s device of that number as far as can be said at once: what [`known`] asks besides waits for as long as the kernel starts
/// or stops the device, which takes as long as requests do.
pub fn find(id: u32, owner: Owner) -> Result<Option<Found>, DeviceError> {
    if !driver_is_loaded() {
        return Ok(None);
    }
    match Control::open()?.info(id) {
        Ok(info) if info.owner == Some(owner) => Ok(Some(Found::of(&info, owner))),
        // Its number may be another one's by now.
        Ok(_) | Err(DeviceError::NoDevice(_)) => Ok(None),
        Err(error) => Err(error),
    }
}

/// All devices of Trine's of which the kernel says that they wait for a daemon, as far as can be said at once.
pub fn waiting() -> Result<Vec<Found>, DeviceError> {
    let found = ours()?.into_iter().map(|(info, owner)| Found::of(&info, owner));
    Ok(found.filter(|found| found.state == KernelState::Waiting).collect())
}

/// Does the kernel send FLUSH to that device?
pub fn is_write_back(id: u32) -> Result<bool, DeviceError> {
    Ok(Control::open()?.read_shape(id)?.write_back)
}

fn describe(control: &mut Control, info: Info, owner: Owner) -> Result<KernelDevice, DeviceError> {
    let Info { id, state, pid, queues, depth, .. } = info;
    let shape = control.read_shape(id)?;
    Ok(KernelDevice {
        id,
        owner,
        path: path_of(id),
        state: KernelState::of(state),
        pid: (pid > 0).then_some(pid),
        queues,
        depth,
        size: shape.size,
        read_only: shape.read_only,
        write_back: shape.write_back,
    })
}

/// How much is asked before a device is stopped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Asking {
    /// It is not stopped if somebody uses it.
    All,
    /// It is not stopped if it is mounted or the like. That is seen without opening it: it may be one that nobody can open, as it is just
    /// being started.
    Seen,
    /// Nothing.
    Nothing,
}

/// Stops and removes `owner`'s device that nobody serves: what waits for it fails. [`DeviceError::InUse`] if somebody uses it, as far as that
/// is asked.
pub fn forget(id: u32, owner: Owner, asking: Asking) -> Result<(), DeviceError> {
    let mut control = Control::open()?;
    let begin = Instant::now();
    let info = loop {
        let info = control.info(id)?;
        if info.owner != Some(owner) {
            return Err(DeviceError::NotOurs(id));
        }
        if info.state != State::Live || info.pid <= 0 {
            break info;
        }
        if runs(info.pid) {
            return Err(DeviceError::Served { id, pid: info.pid });
        }
        if begin.elapsed() > RECOVER_WAIT {
            return Err(DeviceError::Unnoticed { id, pid: info.pid });
        }
        std::thread::sleep(RECOVER_POLL);
    };
    // A dead one has no block device that could be in use.
    let asking = if info.state == State::Dead { Asking::Nothing } else { asking };
    match asking {
        Asking::All => stop_unused(&mut control, id)?,
        Asking::Seen if is_seen_in_use(id) => return Err(DeviceError::InUse(id)),
        Asking::Seen | Asking::Nothing => control.stop(id)?,
    }
    remove(&mut control, id)
}

/// Whose device has that path, as far as can be said at once, and what the kernel thinks of it. `None`: nobody's of Trine.
pub fn whose(path: &Path) -> Option<(Owner, KernelState)> {
    let id = path.to_str()?.strip_prefix("/dev/ublkb")?.parse().ok()?;
    let info = Control::open().ok()?.info(id).ok()?;
    Some((info.owner?, KernelState::of(info.state)))
}

/// The block device of that number.
pub(crate) fn path_of(id: u32) -> PathBuf {
    PathBuf::from(format!("/dev/ublkb{id}"))
}
