//! What a client's key is for, shown in clear by whoever has it.
//!
//! ```text
//! Card   0 serial u64 | 8 flags u32 (bit 0: reads only) | 12 name_len u8 | 13 count u8 | 14 zero u16 | 16 name | count × volume u32
//! ```
//!
//! The secret that belongs to a card is made of the cluster's key and of the card's bytes: nobody keeps a list of secrets, and a card in
//! which one bit was changed belongs to a secret that its holder does not have. There is one encoding of a card: volumes ascend.

use hmac::Mac as _;
use smallvec::SmallVec;
use std::fmt;

use crate::HandshakeError;
use crate::bytes::Reader;
use crate::secrets::mac;
use crate::{ClusterKey, HelloInfo, Role, Secret, Secrets};

/// Longest name of a key in bytes: leaves room for a host and a volume in a client's name.
pub const MAX_KEY_NAME: usize = 32;
/// Volumes that one key can be for: keeps every handshake message under 1 KiB.
pub const MAX_KEY_VOLUMES: usize = 64;
/// Bytes of the longest card.
pub const MAX_CARD: usize = 16 + MAX_KEY_NAME + 4 * MAX_KEY_VOLUMES;
/// Between a key's name and the rest of its client's name.
pub const KEY_MARK: char = '@';

const READS_ONLY: u32 = 1;
/// How a client's key file begins.
const FILE_MARK: &str = "trine-client-key";

/// Which volumes a client may use, and how.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Card {
    /// The key's name.
    pub name: String,
    /// Given once: a key of the same name that is made later has another one.
    pub serial: u64,
    /// It is for reading alone.
    pub read_only: bool,
    /// By id, ascending: another volume of the same name is another volume.
    pub volumes: SmallVec<[u32; 4]>,
}

/// Whether a key can be named so: it becomes part of clients' names, paths and tables.
pub fn is_key_name(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    (1..=MAX_KEY_NAME).contains(&name.len()) && name.bytes().all(plain)
}

/// The key that a client of this name has; none if its name is of those that the cluster's key is for.
pub fn key_of(client: &str) -> Option<&str> {
    let (key, _) = client.split_once(KEY_MARK)?;
    is_key_name(key).then_some(key)
}

impl Card {
    /// Whether there can be one like this.
    pub fn check(&self) -> Result<(), HandshakeError> {
        let ascend = self.volumes.windows(2).all(|pair| matches!(pair, [a, b] if a < b));
        let some = (1..=MAX_KEY_VOLUMES).contains(&self.volumes.len()) && self.volumes.iter().all(|id| *id != 0);
        if is_key_name(&self.name) && ascend && some { Ok(()) } else { Err(HandshakeError::Card) }
    }

    /// Its only encoding.
    pub fn encode(&self) -> Result<Vec<u8>, HandshakeError> {
        self.check()?;
        let len = |n: usize| u8::try_from(n).map_err(|_| HandshakeError::Card);
        let mut bytes = self.serial.to_le_bytes().to_vec();
        bytes.extend(if self.read_only { READS_ONLY } else { 0 }.to_le_bytes());
        bytes.extend([len(self.name.len())?, len(self.volumes.len())?, 0, 0]);
        bytes.extend(self.name.as_bytes());
        self.volumes.iter().for_each(|volume| bytes.extend(volume.to_le_bytes()));
        Ok(bytes)
    }

    pub(crate) fn read(from: &mut Reader<'_>) -> Result<Self, HandshakeError> {
        let serial = from.u64()?;
        let flags = from.u32()?;
        let (name_len, count) = (usize::from(from.u8()?), usize::from(from.u8()?));
        from.zeros(2)?;
        if flags & !READS_ONLY != 0 {
            return Err(HandshakeError::Reserved);
        }
        if count > MAX_KEY_VOLUMES {
            return Err(HandshakeError::Card);
        }
        let name = std::str::from_utf8(from.take(name_len)?).map_err(|_| HandshakeError::Card)?.to_owned();
        let volumes = (0..count).map(|_| from.u32()).collect::<Result<_, _>>()?;
        let card = Self { name, serial, read_only: flags & READS_ONLY != 0, volumes };
        card.check()?;
        Ok(card)
    }

    /// Reads one, and nothing else.
    pub fn parse(bytes: &[u8]) -> Result<Self, HandshakeError> {
        let mut from = Reader(bytes);
        let card = Self::read(&mut from)?;
        from.end()?;
        Ok(card)
    }

    /// Whether it is for this volume.
    pub fn is_for(&self, volume: u32) -> bool {
        self.volumes.binary_search(&volume).is_ok()
    }

    /// The secret that belongs to it; none if there can be no such card.
    pub fn secret(&self, key: &ClusterKey) -> Option<Secret> {
        let card = self.encode().ok()?;
        Some(mac(&key.0, b"trine/1 client key", &[&card]).finalize().into_bytes().into())
    }
}

/// What a client has that was added: never printed but once, by whom it is made.
#[derive(Clone)]
pub struct ClientKey {
    /// What it is for.
    pub card: Card,
    /// What proves that.
    pub secret: Secret,
    /// The public key of the cluster's certificates, by which its nodes and conductors are known where they speak TLS. No secret.
    pub authority: [u8; 32],
}

impl ClientKey {
    /// The one of this card, in the cluster with these certificates; none if there can be no such card.
    pub fn new(card: Card, key: &ClusterKey, authority: [u8; 32]) -> Option<Self> {
        let secret = card.secret(key)?;
        Some(Self { card, secret, authority })
    }

    /// One line for a key file: `trine-client-key CARD SECRET AUTHORITY`, all in hexadecimal digits.
    pub fn to_line(&self) -> Result<String, HandshakeError> {
        let card = self.card.encode()?;
        Ok(format!("{FILE_MARK} {} {} {}", to_hex(&card), to_hex(&self.secret), to_hex(&self.authority)))
    }

    /// Reads that line.
    pub fn from_line(line: &str) -> Option<Self> {
        let mut words = line.split_ascii_whitespace();
        if words.next() != Some(FILE_MARK) {
            return None;
        }
        let mut next = || from_hex(words.next()?);
        let (card, secret, authority) = (next()?, next()?, next()?);
        let card = Card::parse(&card).ok()?;
        let key = Self { card, secret: secret.try_into().ok()?, authority: authority.try_into().ok()? };
        words.next().is_none().then_some(key)
    }
}

impl fmt::Debug for ClientKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ClientKey of {}", self.card.name)
    }
}

/// What a process was given to show who it is.
#[derive(Clone, Debug)]
pub enum Key {
    /// The cluster's: for nodes, conductors and administrators.
    Cluster(ClusterKey),
    /// A client's.
    Client(ClientKey),
}

impl Key {
    /// What it is for, if not for everything.
    pub fn card(&self) -> Option<&Card> {
        match self {
            Self::Cluster(_) => None,
            Self::Client(key) => Some(&key.card),
        }
    }

    /// What proofs are made under.
    pub(crate) fn secret_itself(&self) -> &Secret {
        match self {
            Self::Cluster(key) => &key.0,
            Self::Client(key) => &key.secret,
        }
    }
}

impl Secrets for Key {
    fn secret(&self, who: &HelloInfo) -> Option<Secret> {
        match self {
            Self::Cluster(key) => key.secret(who),
            Self::Client(key) => {
                (who.role == Role::Client && who.card.as_ref() == Some(&key.card)).then_some(key.secret)
            }
        }
    }

    fn is_attached(&self, who: &HelloInfo) -> bool {
        matches!(self, Self::Cluster(key) if key.is_attached(who))
    }
}

pub(crate) fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Only lower and upper case digits, two a byte.
pub(crate) fn from_hex(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    if !rest.is_empty() {
        return None;
    }
    pairs.iter().map(|[high, low]| Some(digit(*high)? << 4 | digit(*low)?)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use smallvec::smallvec;

    const KEY: ClusterKey = ClusterKey([7; 32]);

    fn card() -> Card {
        Card { name: "web1".to_owned(), serial: 0x0a, read_only: true, volumes: smallvec![3, 0x0102] }
    }

    #[test]
    fn golden_bytes() {
        let bytes = card().encode().unwrap();
        assert_eq!(to_hex(&bytes), "0a0000000000000001000000040200007765623103000000".to_owned() + "02010000");
        assert_eq!(Card::parse(&bytes), Ok(card()));
        assert_eq!(
            to_hex(&card().secret(&KEY).unwrap()),
            "6cb3bae58d8a6690b500db298f81a986ae88da7dd1dccf86bc823c8e1dfc071a"
        );
    }

    #[test]
    fn every_bit_of_a_card_changes_its_secret_or_makes_it_none() {
        let bytes = card().encode().unwrap();
        let secret = card().secret(&KEY).unwrap();
        for bit in 0..bytes.len() * 8 {
            let mut other = bytes.clone();
            other[bit / 8] ^= 1 << (bit % 8);
            assert!(Card::parse(&other).map_or(true, |card| card.secret(&KEY) != Some(secret)), "bit {bit}");
        }
        assert_ne!(card().secret(&ClusterKey([8; 32])), Some(secret));
    }

    #[test]
    fn cards_that_cannot_be_are_refused_by_both_ends() {
        let bad = [
            Card { name: String::new(), ..card() },
            Card { name: "n".repeat(MAX_KEY_NAME + 1), ..card() },
            Card { name: "a@b".to_owned(), ..card() },
            Card { name: "a/b".to_owned(), ..card() },
            Card { volumes: smallvec![], ..card() },
            Card { volumes: smallvec![0, 1], ..card() },
            Card { volumes: smallvec![2, 1], ..card() },
            Card { volumes: smallvec![1, 1], ..card() },
            Card { volumes: (1..).take(MAX_KEY_VOLUMES + 1).collect(), ..card() },
        ];
        for card in bad {
            assert_eq!(card.encode(), Err(HandshakeError::Card), "{card:?}");
            assert!(card.secret(&KEY).is_none());
        }
        let bytes = card().encode().unwrap();
        let with = |at: usize, value: u8| {
            let mut bytes = bytes.clone();
            bytes[at] = value;
            Card::parse(&bytes)
        };
        assert_eq!(with(8, 2), Err(HandshakeError::Reserved), "a flag that means nothing");
        assert_eq!(with(13, 0xff), Err(HandshakeError::Card), "more volumes than a key can have");
        assert_eq!(with(13, 3), Err(HandshakeError::Short));
        assert_eq!(with(14, 1), Err(HandshakeError::Reserved));
        assert_eq!(with(16, 0xff), Err(HandshakeError::Card), "no UTF-8");
        assert_eq!(with(20, 0), Err(HandshakeError::Card), "volume 0");
        assert_eq!(Card::parse(&[&bytes[..], &[0]].concat()), Err(HandshakeError::Trailing));
        for cut in 0..bytes.len() {
            assert!(Card::parse(&bytes[..cut]).is_err());
        }
    }

    #[test]
    fn a_clients_name_says_whose_key_it_has() {
        assert_eq!((key_of("web1@host/db"), key_of("web1@")), (Some("web1"), Some("web1")));
        for name in ["web1", "host/db", "host/db@snap", "host/db@snap#7", "@db", ""] {
            assert_eq!(key_of(name), None, "{name}: what the cluster's key is for");
        }
    }

    #[test]
    fn a_key_file_is_one_line() {
        let key = ClientKey::new(card(), &KEY, [9; 32]).unwrap();
        let line = key.to_line().unwrap();
        let read = ClientKey::from_line(&format!("{line}\n")).unwrap();
        assert_eq!((&read.card, read.secret, read.authority), (&key.card, key.secret, [9; 32]));
        assert!(!format!("{key:?} {:?}", Key::Client(key.clone())).contains(&to_hex(&key.secret)), "not printed");
        for bad in [
            "",
            "trine-client-key",
            &line[1..],
            &line[..line.len() - 1],
            &line[..line.len() - 65],
            &format!("{line}0"),
            &format!("{line} x"),
        ] {
            assert!(ClientKey::from_line(bad).is_none(), "{bad}");
        }
    }

    #[test]
    fn a_clients_key_speaks_for_its_own_card_alone() {
        let key = Key::Client(ClientKey::new(card(), &KEY, [9; 32]).unwrap());
        let named = |card: Option<Card>| HelloInfo { card, ..HelloInfo::new(Role::Client, "web1@h/db", 1) };
        let mine = named(Some(card()));
        assert_eq!(key.secret(&mine), Key::Cluster(KEY).secret(&mine));
        assert!(key.secret(&mine).is_some());
        let node = HelloInfo { role: Role::Node, ..mine.clone() };
        for other in [named(None), named(Some(Card { read_only: false, ..card() })), node] {
            assert_eq!(key.secret(&other), None);
        }
    }

    proptest! {
        #[test]
        fn what_is_encoded_is_parsed(name in "[a-zA-Z0-9._-]{1,32}", serial: u64, read_only: bool,
            volumes in proptest::collection::btree_set(1u32.., 1..=MAX_KEY_VOLUMES)) {
            let card = Card { name, serial, read_only, volumes: volumes.into_iter().collect() };
            let bytes = card.encode().unwrap();
            prop_assert!(bytes.len() <= MAX_CARD);
            prop_assert_eq!(Card::parse(&bytes), Ok(card));
        }

        #[test]
        fn random_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            if let Ok(card) = Card::parse(&bytes) {
                prop_assert_eq!(card.encode(), Ok(bytes), "there is one encoding");
            }
        }
    }
}
