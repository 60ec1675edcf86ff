//! The proof that a conductor gave a client the attach generation that its Hello names (rule 19).
//!
//! A generation fences all that are older, so nobody who can be told from the conductor may choose it. Who has the cluster's key could make
//! the proof himself, and shows none. It is no secret: it is good for nothing without the secret of the client that it names.

use hmac::Mac as _;
use std::fmt;

use crate::card::{from_hex, to_hex};
use crate::handshake::MAC_LEN;
use crate::secrets::mac;
use crate::{ClusterKey, HelloInfo, READ_ONLY};

const LABEL: &[u8] = b"trine/1 attach";

/// What an attach has given to whom.
#[derive(Clone, Copy, Debug)]
pub struct Attached<'a> {
    /// The client's name.
    pub client: &'a str,
    /// The volume's id.
    pub volume: u32,
    /// The generation that was issued.
    pub generation: u64,
    /// As one of several readers, which fence nobody.
    pub read_only: bool,
}

/// HMAC-SHA-256 under the cluster's key over an [`Attached`].
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Ticket(pub [u8; MAC_LEN]);

impl Ticket {
    /// For a client that was given this.
    pub fn issue(key: &ClusterKey, what: &Attached<'_>) -> Self {
        Self(hmac(key, what).finalize().into_bytes().into())
    }

    /// Whether it was issued for what this Hello says. Compares in constant time.
    pub(crate) fn is_for(&self, key: &ClusterKey, who: &HelloInfo) -> bool {
        let HelloInfo { name, volume, generation, features, .. } = who;
        let read_only = features & READ_ONLY != 0;
        let what = Attached { client: name, volume: *volume, generation: *generation, read_only };
        hmac(key, &what).verify_slice(&self.0).is_ok()
    }

    /// As text: 64 hexadecimal digits.
    pub fn to_hex(self) -> String {
        to_hex(&self.0)
    }

    /// Reads that text.
    pub fn from_hex(text: &str) -> Option<Self> {
        from_hex(text)?.try_into().ok().map(Self)
    }
}

fn hmac(key: &ClusterKey, what: &Attached<'_>) -> hmac::Hmac<sha2::Sha256> {
    let Attached { client, volume, generation, read_only } = what;
    let (volume, generation) = (volume.to_le_bytes(), generation.to_le_bytes());
    mac(&key.0, LABEL, &[client.as_bytes(), &volume, &generation, &[u8::from(*read_only)]])
}

impl fmt::Debug for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Ticket")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Role, Secrets};

    const KEY: ClusterKey = ClusterKey([7; 32]);
    const GIVEN: Attached<'_> = Attached { client: "web1@h/db", volume: 3, generation: 9, read_only: false };

    #[test]
    fn golden_digits() {
        let ticket = Ticket::issue(&KEY, &GIVEN);
        assert_eq!(ticket.to_hex(), "cbd60ba344beec34cb1d27b6907a008e835663f066e5a101469d0be412258ed4");
        assert_eq!(Ticket::from_hex(&ticket.to_hex()), Some(ticket));
        for bad in ["", "0", &ticket.to_hex()[2..], &format!("{}00", ticket.to_hex()), &"x".repeat(64)] {
            assert_eq!(Ticket::from_hex(bad), None, "{bad}");
        }
    }

    #[test]
    fn it_is_for_one_client_volume_generation_and_way_of_use() {
        let issue = |what: Attached<'_>| Some(Ticket::issue(&KEY, &what));
        let hello = HelloInfo { volume: 3, generation: 9, ..HelloInfo::new(Role::Client, "web1@h/db", 1) };
        let shown = |ticket| HelloInfo { ticket, ..hello.clone() };
        assert!(KEY.is_attached(&shown(issue(GIVEN))));
        let others = [
            None,
            issue(Attached { client: "web1@h/d", ..GIVEN }),
            issue(Attached { volume: 4, ..GIVEN }),
            issue(Attached { generation: 8, ..GIVEN }),
            issue(Attached { read_only: true, ..GIVEN }),
            Some(Ticket::issue(&ClusterKey([8; 32]), &GIVEN)),
        ];
        for (n, other) in others.into_iter().enumerate() {
            assert!(!KEY.is_attached(&shown(other)), "{n}");
        }
        let reads = HelloInfo { features: READ_ONLY, ..shown(issue(Attached { read_only: true, ..GIVEN })) };
        assert!(KEY.is_attached(&reads));
        assert!(!KEY.is_attached(&HelloInfo { features: 0, ..reads }), "a reader that says that it writes");
    }
}
