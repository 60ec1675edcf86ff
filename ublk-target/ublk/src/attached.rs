//! What the kernel knows of devices, whoever serves them or does no more.

use crate::device::stop_unused;
use crate::features::driver_is_loaded;
use crate::kernel::{Control, Info, State};
use crate::{DeviceError, Owner};
use conductor_model::Bytes;
use std::path::PathBuf;

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
            Ok(info) => {
                if let Some(owner) = info.owner {
                    all.push(describe(&mut control, info, owner)?);
                }
            }
            // Gone since it was listed.
            Err(DeviceError::NoDevice(_)) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(all)
}

fn describe(control: &mut Control, info: Info, owner: Owner) -> Result<KernelDevice, DeviceError> {
    let Info { id, state, pid, queues, depth, .. } = info;
    let shape = control.read_shape(id)?;
    Ok(KernelDevice {
        id,
        owner,
        path: path_of(id),
        state: match state {
            State::Live => KernelState::Live,
            State::Quiesced | State::FailIo => KernelState::Waiting,
            State::Dead => KernelState::Dead,
        },
        pid: (pid > 0).then_some(pid),
        queues,
        depth,
        size: shape.size,
        read_only: shape.read_only,
        write_back: shape.write_back,
    })
}

/// Stops and removes `owner`'s device that nobody serves: what waits for it fails. Without `force` not if somebody uses it
/// ([`DeviceError::InUse`]).
pub fn forget(id: u32, owner: Owner, force: bool) -> Result<(), DeviceError> {
    let mut control = Control::open()?;
    let info = control.info(id)?;
    if info.owner != Some(owner) {
        return Err(DeviceError::NotOurs(id));
    }
    if info.state == State::Live && info.pid > 0 {
        return Err(DeviceError::Served { id, pid: info.pid });
    }
    // A dead one has no block device that could be in use.
    if force || info.state == State::Dead {
        control.stop(id)?;
    } else {
        stop_unused(&mut control, id)?;
    }
    control.delete(id)
}

/// The block device of that number.
pub(crate) fn path_of(id: u32) -> PathBuf {
    PathBuf::from(format!("/dev/ublkb{id}"))
}
