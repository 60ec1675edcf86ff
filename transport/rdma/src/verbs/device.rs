//! A device as one reactor uses it: a protection domain, the arena registered once, and one channel for all completions.

use super::{Id, check, last, set_nonblocking};
use driver::Errno;
use memory::Arena;
use rdma_sys as sys;
use std::mem::zeroed;
use std::os::fd::RawFd;
use std::ptr::{self, NonNull};

use crate::RdmaError;

/// The last share of it goes before the last id that is bound to the device, its keeper: the library closes the context of a device that is
/// gone with the last id.
#[derive(Debug)]
pub(crate) struct Device {
    /// Is told when the device goes, whoever else there is.
    keeper: Id,
    pub(super) domain: NonNull<sys::ibv_pd>,
    pub(super) region: NonNull<sys::ibv_mr>,
    pub(super) channel: NonNull<sys::ibv_comp_channel>,
    /// Its bytes are what is registered.
    _arena: Arena,
}

impl Device {
    /// Opens what the device that `keeper` is bound to offers; registers the arena.
    pub(crate) fn new(keeper: Id, arena: &Arena) -> Result<Self, RdmaError> {
        let context = keeper.context();
        if context.is_null() {
            return Err(RdmaError::NoDevice(Errno(libc::ENODEV)));
        }
        // SAFETY: integers and arrays of them, for which all zeros is a value; the library fills it in.
        let mut attributes: sys::ibv_device_attr = unsafe { zeroed() };
        // SAFETY: the context is open; the library writes the attributes during the call.
        check(unsafe { sys::ibv_query_device(context, &raw mut attributes) }).map_err(RdmaError::NoDevice)?;
        let windows = sys::ibv_device_cap_flags::IBV_DEVICE_MEM_WINDOW_TYPE_2A.0
            | sys::ibv_device_cap_flags::IBV_DEVICE_MEM_WINDOW_TYPE_2B.0;
        if attributes.device_cap_flags & windows == 0 {
            return Err(RdmaError::NoWindows);
        }
        // SAFETY: the context is open.
        let domain = NonNull::new(unsafe { sys::ibv_alloc_pd(context) }).ok_or_else(|| RdmaError::NoDevice(last()))?;
        let (start, len) = arena.range();
        // The region itself lets no peer in: only windows do.
        let access = sys::ibv_access_flags::IBV_ACCESS_LOCAL_WRITE.0 | sys::ibv_access_flags::IBV_ACCESS_MW_BIND.0;
        // SAFETY: the mapping lives until the arena does, which this holds.
        let region = unsafe { sys::ibv_reg_mr(domain.as_ptr(), start.as_ptr().cast(), len, access.cast_signed()) };
        let Some(region) = NonNull::new(region) else {
            let error = last();
            // SAFETY: ours, and nothing was made in it.
            unsafe { sys::ibv_dealloc_pd(domain.as_ptr()) };
            return Err(RdmaError::Register { bytes: len, error });
        };
        // SAFETY: the context is open.
        let channel = unsafe { sys::ibv_create_comp_channel(context) };
        let failed = || {
            let error = last();
            // SAFETY: both are ours, the region first.
            unsafe {
                sys::ibv_dereg_mr(region.as_ptr());
                sys::ibv_dealloc_pd(domain.as_ptr());
            }
            RdmaError::NoDevice(error)
        };
        let channel = NonNull::new(channel).ok_or_else(failed)?;
        let device = Self { keeper, domain, region, channel, _arena: arena.clone() };
        set_nonblocking(device.fd()).map_err(RdmaError::NoDevice)?;
        Ok(device)
    }

    pub(crate) fn is(&self, context: *mut sys::ibv_context) -> bool {
        self.context() == context
    }

    pub(super) fn context(&self) -> *mut sys::ibv_context {
        self.keeper.context()
    }

    /// The arena's key for our own device.
    pub(super) fn local_key(&self) -> u32 {
        // SAFETY: the region lives as long as self.
        unsafe { self.region.as_ref().lkey }
    }

    /// Readable when something completed.
    pub(crate) fn fd(&self) -> RawFd {
        // SAFETY: the channel lives as long as self.
        unsafe { self.channel.as_ref().fd }
    }

    /// Acknowledges what the channel says and arms it again; whoever calls polls all completion queues **afterwards**.
    pub(crate) fn acknowledge(&self) {
        let (mut queue, mut context) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: the channel is ours and does not block; the queue it names is alive, for a queue's destruction acknowledges
        // nothing and waits for events that were not: `Pair` is destroyed only between two calls of this.
        unsafe {
            while sys::ibv_get_cq_event(self.channel.as_ptr(), &raw mut queue, &raw mut context) == 0 {
                sys::ibv_ack_cq_events(queue, 1);
                // A queue that cannot be armed belongs to a dead device, of which the connection manager tells.
                sys::ibv_req_notify_cq(queue, 0);
            }
        }
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // SAFETY: ours; every Pair holds an Rc of its device, so nothing is left that was made of them.
        unsafe {
            sys::ibv_destroy_comp_channel(self.channel.as_ptr());
            sys::ibv_dereg_mr(self.region.as_ptr());
            sys::ibv_dealloc_pd(self.domain.as_ptr());
        }
    }
}
