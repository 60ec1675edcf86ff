//! The proof that a conductor gave a client the attach generation that its Hello names (rule 19).
//!
//! A generation fences all that are older, so nobody who can be told from the conductor may choose it. Who has the cluster's key could make
//! the proof himself, and shows none. It is no secret: it is good for nothing without the secret of the client that it names.

use hmac::Mac as _;
use std::fmt;

use crate::card::{from_hex, to_hex};
use crate::handshake::MAC_LEN;
use crate::secrets::mac;
use crate::{ClusterKey, HelloInfo, READ_ONLY, SHARED};

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
    /// How it is used: [`READ_ONLY`] or [`SHARED`] of one of several, which fences nobody; 0 of one alone.
    pub features: u32,
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
        let what = Attached { client: name, volume: *volume, generation: *generation, features: *features };
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
    let Attached { client, volume, generation, features } = what;
    let (volume, generation) = (volume.to_le_bytes(), generation.to_le_bytes());
    let way = features & (READ_ONLY | SHARED);
    mac(&key.0, LABEL, &[client.as_bytes(), &volume, &generation, &way.to_le_bytes()])
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
    const GIVEN: Attached<'_> = Attached { client: "web1@h/db", volume: 3, generation: 9, features: 0 };

    #[test]
    fn golden_digits() {
        let ticket = Ticket::issue(&KEY, &GIVEN);
        assert_eq!(ticket.to_hex(), "2b91ca1f424ef548543c3c66b1b9d46b20d3e70bc24bca78fed7f11359e35be5");
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
            issue(Attached { features: READ_ONLY, ..GIVEN }),
            issue(Attached { features: SHARED, ..GIVEN }),
            Some(Ticket::issue(&ClusterKey([8; 32]), &GIVEN)),
        ];
        for (n, other) in others.into_iter().enumerate() {
            assert!(!KEY.is_attached(&shown(other)), "{n}");
        }
        let reads = HelloInfo { features: READ_ONLY, ..shown(issue(Attached { features: READ_ONLY, ..GIVEN })) };
        assert!(KEY.is_attached(&reads));
        assert!(!KEY.is_attached(&HelloInfo { features: 0, ..reads }), "a reader that says that it writes");
    }
}
