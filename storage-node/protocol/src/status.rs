//! How a request ended.

/// The status of a reply. The number is what travels.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[repr(u16)]
pub enum Status {
    /// Done, durably, on every in-sync copy.
    Ok = 0,
    /// The request's epoch is older than the shard's, or this node is not its primary: refresh the map and resend.
    StaleEpoch = 1,
    /// Not now: the node does not know the request's epoch yet (the conductor tells it), or has no room or memory for it at the
    /// moment. Nothing of it is left there; resend a little later.
    Later = 2,
    /// Replica ops: this copy has not joined that epoch. Not a failure of the copy.
    NotJoined = 3,
    /// Join: the store was opened anew; the connection's Hello names the new open id.
    Reopened = 4,
    /// The range does not lie within the shard.
    OutOfRange = 5,
    /// The message contradicts itself, or this page.
    BadRequest = 6,
    /// No space, before any copy was touched.
    NoSpace = 7,
    /// The disk failed, or a block does not match its checksum.
    Io = 8,
    /// The session may not do this: other volume, read-only, or fenced.
    Denied = 9,
    /// No such op here.
    Unsupported = 10,
    /// The snapshot, or the copy that it is of, is not on this disk.
    NoSnapshot = 11,
    /// Another session holds a range that is in the way, or waits for it.
    RangeTaken = 12,
    /// The session shares the volume, and does not hold what it wants to write.
    NotHeld = 13,
    /// There are as many as there can be.
    TooMany = 14,
    /// Fill: these blocks are not to be lost here, where the copy has something of its own.
    Kept = 15,
}

impl Status {
    /// Every status, in order of its number.
    pub const ALL: [Self; 16] = [
        Self::Ok,
        Self::StaleEpoch,
        Self::Later,
        Self::NotJoined,
        Self::Reopened,
        Self::OutOfRange,
        Self::BadRequest,
        Self::NoSpace,
        Self::Io,
        Self::Denied,
        Self::Unsupported,
        Self::NoSnapshot,
        Self::RangeTaken,
        Self::NotHeld,
        Self::TooMany,
        Self::Kept,
    ];

    /// The number that travels.
    pub fn code(self) -> u16 {
        self as u16
    }

    /// The status with this number. `None` if there is none: the peer is newer than we are, or talks nonsense, and its reply counts as
    /// none.
    pub fn from_code(code: u16) -> Option<Self> {
        Self::ALL.get(usize::from(code)).copied()
    }
}
