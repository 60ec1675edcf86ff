//! The one module that knows libublk, whose next version will look different.
//!
//! Used of it: the character device (`UblkDev`), the queue (`UblkQueue`) and its ring in thread-local storage, and the kernel's
//! numbers (`sys`). Control commands are our own: libublk's lose a command to a signal, take EBUSY for success, and keep
//! state in a directory that anybody can write to.

mod control;
mod gate;
mod partitions;
mod queue;
mod scheduler;

pub(crate) use control::{Control, Info, State};
pub(crate) use gate::{Buffer, Door, Gate};
pub(crate) use partitions::{flush_within, open_once, open_within, read as read_partitions};
pub(crate) use queue::{Event, KernelQueue, Lasting, QueueRing, make_ring};
pub(crate) use scheduler::leave_out as leave_out_scheduler;
