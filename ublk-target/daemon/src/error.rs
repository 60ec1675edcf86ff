//! Why a target does not start, or ended badly. One sentence each, with what to do.

use crate::record::Record;
use std::path::PathBuf;

/// See the module's head.
#[derive(Debug, thiserror::Error)]
pub enum TargetError {
    /// The same volume is attached from this directory, by a process that lives.
    #[error("{} is already attached here as {} by process {}: `trine detach {}` first", .0.volume, .0.device, .0.pid, .0.volume)]
    Attached(Box<Record>),
    /// Another process is just attaching or detaching it.
    #[error(
        "{volume} is just being attached or detached here: `trine attached` shows it, `trine detach {volume}` ends it"
    )]
    Busy {
        /// The volume.
        volume: String,
    },
    /// It is not attached from this directory.
    #[error("{volume} is not attached here: `trine attached` lists what is")]
    NotAttached {
        /// The volume.
        volume: String,
    },
    /// NBD over TCP is neither authenticated nor encrypted; over TLS it is encrypted, whoever the client is.
    #[error(
        "an NBD export on {0} is open to everybody on that network: use a loopback address, a Unix socket or --nbd-tls required with certificates of clients, or say --plaintext"
    )]
    Plaintext(std::net::SocketAddr),
    /// RDMA goes past TLS.
    #[error("nothing is encrypted over RDMA, and this cluster speaks TLS: leave --transport rdma out")]
    RdmaInClear,
    /// TLS cannot be set up.
    #[error(transparent)]
    Tls(#[from] tls::TlsError),
    /// The conductor's word.
    #[error(transparent)]
    Conductor(#[from] conductor_client::Error),
    /// Its device is there and waits for a target.
    #[error("{} still has {}, which waits for its target: `trine attach {}` goes on with it, `trine detach {}` ends it", .0.volume, .0.device, .0.volume, .0.volume)]
    Waits(Box<Record>),
    /// The like, and to be attached read-only: what it was told to write would fail.
    #[error("{} still has {}, which is written to and waits for its target: leave --read-only out, or `trine detach {}` first", .0.volume, .0.device, .0.volume)]
    WaitsToWrite(Box<Record>),
    /// The other way round: a device that is read-only stays so.
    #[error("{} still has {}, which is read-only and waits for its target: say --read-only, or `trine detach {}` first", .0.volume, .0.device, .0.volume)]
    WaitsToRead(Box<Record>),
    /// Its device is there and waits, and nothing here says how to go on with it.
    #[error(
        "{volume} still has {device}, which waits for its target, and has no record here: `trine attach {volume}` goes on with it where it was \
         recorded (--dir); `trine detach {volume} --force` ends it"
    )]
    Unrecorded {
        /// The volume.
        volume: String,
        /// `/dev/ublkbN`.
        device: String,
    },
    /// What it was to hold of a shared volume.
    #[error("volume {0} is not attached: another client holds a range that was asked for; --range-wait waits for it")]
    RangeTaken(String),
    /// Told to end before it served.
    #[error("the target of {volume} was told to end before {volume} was attached: {left}")]
    Stopped {
        /// The volume.
        volume: String,
        /// What is left.
        left: &'static str,
    },
    /// The target goes on, because.
    #[error("{volume} stays attached: {why}")]
    Refused {
        /// The volume.
        volume: String,
        /// Why.
        why: String,
    },
    /// A ublk device.
    #[error(transparent)]
    Device(#[from] ublk_device::DeviceError),
    /// A queue of a device ended by itself.
    #[error("queue {queue} ended unexpectedly: {failure}; the device waits for `trine attach`")]
    Queue {
        /// Which.
        queue: u16,
        /// Why.
        failure: ublk_device::QueueFailure,
    },
    /// No volume client.
    #[error(transparent)]
    Client(#[from] volume_client::ClientError),
    /// No reactor.
    #[error(transparent)]
    Reactor(#[from] reactor::ReactorError),
    /// No memory.
    #[error(transparent)]
    Arena(#[from] memory::ArenaError),
    /// A name that NBD cannot carry.
    #[error(transparent)]
    Export(#[from] nbd_session::ExportError),
    /// A file of the attachment.
    #[error("cannot {what} {}: {error}", .path.display())]
    File {
        /// What was to be done with it.
        what: &'static str,
        /// Which.
        path: PathBuf,
        /// The system's word.
        error: std::io::Error,
    },
    /// The record is not one of ours.
    #[error(
        "{} is no attachment's record that this version can read ({error}): use the version of trine that wrote it; if it is damaged, and \
         no target runs, remove it: a block device that it left waits until this host is started again",
        .path.display()
    )]
    BadRecord {
        /// Which.
        path: PathBuf,
        /// What is wrong.
        error: serde_json::Error,
    },
    /// The system refuses something that every process may do.
    #[error("cannot {what}: {error}")]
    System {
        /// What was to be done.
        what: &'static str,
        /// The system's word.
        error: std::io::Error,
    },
    /// No answer on the control socket.
    #[error("the target of {volume} does not answer ({why}): `trine detach --force {volume}` ends it")]
    Silent {
        /// The volume.
        volume: String,
        /// What happened.
        why: String,
    },
    /// A request of an image failed.
    #[error("at byte {at}: {error}")]
    Request {
        /// Its first byte.
        at: u64,
        /// Why.
        error: volume_client::BlockError,
    },
    /// What is in the way of a new image.
    #[error("{} exists: name another file, or move it away", .0.display())]
    Exists(PathBuf),
    /// The like.
    #[error("{} is a directory: name a new file in it", .0.display())]
    Directory(PathBuf),
    /// What an image is called until all of it is there.
    #[error("{} exists, which is what an export leaves that was cut short: delete it, unless one is still at it, or name another file", .0.display())]
    CutShort(PathBuf),
    /// An image whose bytes are not a disk's.
    #[error(
        "{} is a {format} image, not a raw one: import what `qemu-img convert -f {format} -O raw IMAGE RAW` makes of it, or say --raw to \
         have its bytes as they are",
        .path.display()
    )]
    NotRaw {
        /// Where it is.
        path: PathBuf,
        /// As qemu-img calls it.
        format: &'static str,
    },
    /// An image is shorter than was said.
    #[error("only {came} of {size} bytes came: say --short if that is all there is")]
    TooShort {
        /// So much of it came.
        came: u64,
        /// The volume's size.
        size: u64,
    },
    /// An image is longer than its volume.
    #[error("the image is longer than the volume, which has {size} bytes")]
    TooLong {
        /// The volume's size.
        size: u64,
    },
    /// The same command, on the same host.
    #[error(
        "{0} runs on this host already, and would lose the volume to another one: wait for its end, or use a snapshot"
    )]
    Runs(String),
    /// What is to be used was deleted.
    #[error("{0} is another volume by now: it was deleted meanwhile, and made anew")]
    Replaced(String),
    /// What is read was deleted.
    #[error("it was deleted meanwhile")]
    Deleted,
    /// A signal ended it.
    #[error("interrupted")]
    Interrupted,
    /// The target did not end in time.
    #[error("the target of {volume} still runs: {reason}")]
    StillRuns {
        /// The volume.
        volume: String,
        /// What it waits for.
        reason: String,
    },
    /// Its reactor ended by itself.
    #[error("the target's thread ended unexpectedly: see its log")]
    Ended,
    /// Something was still held at the end: a bug, reported with who holds what.
    #[error("objects were still held at the end: {0}")]
    Leaks(String),
}

impl TargetError {
    /// For `map_err` on files.
    pub(crate) fn file(what: &'static str, path: &std::path::Path) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.to_owned();
        move |error| Self::File { what, path, error }
    }

    /// For `map_err` on system calls.
    pub(crate) fn system(what: &'static str) -> impl FnOnce(std::io::Error) -> Self {
        move |error| Self::System { what, error }
    }
}
