//! Who knows which secret.

use hmac::{Hmac, KeyInit, Mac as _};
use sha2::Sha256;
use std::fmt;

use crate::HelloInfo;

/// What a client or node and its peers share. Never sent, never printed.
pub type Secret = [u8; 32];

/// Where secrets come from. Asked by the connecting side for its own Hello, by the accepting side for the peer's.
pub trait Secrets {
    /// The secret of whoever says this of itself; none if it is not known here.
    fn secret(&self, who: &HelloInfo) -> Option<Secret>;

    /// Whether the ticket that is shown was issued for the attachment that is spoken of. Only the cluster's key can tell.
    fn is_attached(&self, _who: &HelloInfo) -> bool {
        false
    }
}

/// One key for a cluster, from which each name's and each card's secret is derived: nodes need no list of clients, and a client that is
/// given only its own secret can impersonate nobody else.
#[derive(Clone)]
pub struct ClusterKey(pub Secret);

impl ClusterKey {
    /// What the authority of the cluster's certificates is made of: whoever has the key is the authority.
    pub fn authority_seed(&self) -> Secret {
        mac(&self.0, b"trine/1 certificate authority", &[]).finalize().into_bytes().into()
    }
}

impl Secrets for ClusterKey {
    fn secret(&self, who: &HelloInfo) -> Option<Secret> {
        if let Some(card) = &who.card {
            return card.secret(self);
        }
        let parts: [&[u8]; 2] = [&[who.role.code()], who.name.as_bytes()];
        Some(mac(&self.0, b"trine/1 secret", &parts).finalize().into_bytes().into())
    }

    fn is_attached(&self, who: &HelloInfo) -> bool {
        who.ticket.is_some_and(|ticket| ticket.is_for(self, who))
    }
}

impl fmt::Debug for ClusterKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ClusterKey")
    }
}

/// What proofs over TLS are made with instead of the secret: one that was made in clear, or for another `binding`, proves nothing there,
/// and none that is made there proves anything elsewhere. So nobody in the middle can pass proofs on between two that he speaks to
/// in different ways.
pub fn over_tls(secret: &Secret, binding: &[u8]) -> Secret {
    mac(secret, b"trine/1 over TLS", &[binding]).finalize().into_bytes().into()
}

/// HMAC-SHA-256 over a label and parts, each preceded by its length, so that no two inputs run together.
pub(crate) fn mac(key: &Secret, label: &[u8], parts: &[&[u8]]) -> Hmac<Sha256> {
    // The key type's size is the one this MAC asks for, so this constructor cannot fail; the slice one can.
    let mut block = [0; 64];
    block[..key.len()].copy_from_slice(key);
    let mut mac = Hmac::<Sha256>::new(&block.into());
    for part in std::iter::once(&label).chain(parts) {
        mac.update(&(part.len() as u64).to_le_bytes());
        mac.update(part);
    }
    mac
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Role;

    #[test]
    fn each_name_and_role_has_its_own_secret() {
        let key = ClusterKey([7; 32]);
        let of = |key: &ClusterKey, role, name: &str| key.secret(&HelloInfo::new(role, name, 1));
        let all = [of(&key, Role::Node, "a"), of(&key, Role::Client, "a"), of(&key, Role::Node, "b")];
        assert!(all[0] != all[1] && all[0] != all[2] && all[1] != all[2]);
        assert_eq!(all[0], of(&ClusterKey([7; 32]), Role::Node, "a"));
        assert_ne!(all[0], of(&ClusterKey([8; 32]), Role::Node, "a"));
    }

    #[test]
    fn the_authority_is_the_clusters_and_not_its_key() {
        let seed = ClusterKey([7; 32]).authority_seed();
        assert_eq!(seed, ClusterKey([7; 32]).authority_seed());
        assert!(seed != ClusterKey([8; 32]).authority_seed() && seed != [7; 32]);
    }

    #[test]
    fn over_tls_a_secret_is_another_one_for_each_binding() {
        let [clear, none, one, other] =
            [[7; 32], over_tls(&[7; 32], &[]), over_tls(&[7; 32], &[1; 32]), over_tls(&[7; 32], &[2; 32])];
        assert!(clear != none && clear != one && none != one && one != other);
        assert_eq!(one, over_tls(&[7; 32], &[1; 32]));
        assert_ne!(one, over_tls(&[8; 32], &[1; 32]));
    }

    #[test]
    fn golden_secrets_over_tls() {
        let digits = |binding: &[u8]| crate::card::to_hex(&over_tls(&[7; 32], binding));
        assert_eq!(digits(&[]), "76a4a0a56dc67dd4292fbf437c313ee92d651badc8c4676b706215930cf3287c");
        assert_eq!(digits(&[1; 32]), "edf01a5b5ca44db9aeebd9b386a00716a991ff1ecb0854e1846ea97bc9291d57");
    }

    #[test]
    fn a_shorter_key_is_padded_with_zeros_as_rfc_2104_says() {
        use hmac::digest::FixedOutput;
        let ours = mac(&[3; 32], b"l", &[b"part"]).finalize_fixed();
        let mut theirs = Hmac::<Sha256>::new_from_slice(&[3; 32]).unwrap();
        theirs.update(&1u64.to_le_bytes());
        theirs.update(b"l");
        theirs.update(&4u64.to_le_bytes());
        theirs.update(b"part");
        assert_eq!(ours, theirs.finalize_fixed());
    }
}
