//! Who is trusted: whoever has a certificate that was signed with the key that follows from the cluster's.
//!
//! Nobody keeps an authority, or hands one out: each daemon that has the cluster's key makes it anew at its start, and with it a
//! certificate for a key of its own that never leaves its memory. Whoever connects needs no more than the authority's public key, 32
//! bytes, which travel with a client's secret. The name in a certificate is that of a role, not of a host: a node may be reached at any
//! address, and is no conductor. Certificates do not end, and no clock is asked: a machine whose clock is wrong reaches its volumes.

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, PKCS_ED25519,
};
use rustls::client::Resumption;
use rustls::crypto::CryptoProvider;
use rustls::crypto::ring::{cipher_suite, default_provider, kx_group};
use rustls::pki_types::{Der, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName, TrustAnchor, UnixTime};
use rustls::server::{NoServerSessionStorage, VerifierBuilderError};
use rustls::time_provider::TimeProvider;
use rustls::version::TLS13;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// The authority's name in certificates.
const AUTHORITY: &str = "trine cluster";
/// A name as X.509 encodes it, without its outermost sequence: `AUTHORITY` as the common name.
const AUTHORITY_NAME: &[u8] = b"\x31\x16\x30\x14\x06\x03\x55\x04\x03\x0c\x0dtrine cluster";
/// RFC 8410: what stands before a seed of Ed25519 in PKCS #8, and before a public key in a certificate (again without the sequence).
const SEED_HEAD: &[u8] = b"\x30\x2e\x02\x01\x00\x30\x05\x06\x03\x2b\x65\x70\x04\x22\x04\x20";
const PUBLIC_HEAD: &[u8] = b"\x30\x05\x06\x03\x2b\x65\x70\x03\x21\x00";
/// Certificates hold from 1975 on, and for longer than any of us.
const ANY_DAY: Duration = Duration::from_secs(1_000_000_000);

/// Why there is no certificate, or no use for it.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A certificate could not be made.
    #[error("cannot make a certificate")]
    Certificate(#[from] rcgen::Error),
    /// What was made or read does not serve.
    #[error("cannot set up TLS")]
    Setup(#[from] rustls::Error),
    /// A file does not hold what it is to hold.
    #[error("{0} cannot be read")]
    Pem(&'static str, #[source] rustls::pki_types::pem::Error),
    /// There is no telling clients by them.
    #[error("the clients' authority does not serve")]
    Clients(#[from] VerifierBuilderError),
    /// A role's name is no name.
    #[error("cannot set up TLS: {0} is no name")]
    Name(&'static str),
}

/// What a daemon is, as far as others have to know.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// It serves data.
    Node,
    /// It decides.
    Conductor,
}

impl Role {
    fn name(self) -> &'static str {
        match self {
            Self::Node => "node.trine.internal",
            Self::Conductor => "conductor.trine.internal",
        }
    }

    /// The name that its certificate has.
    pub fn server_name(self) -> Result<ServerName<'static>, TlsError> {
        ServerName::try_from(self.name()).map_err(|_| TlsError::Name(self.name()))
    }
}

/// Whoever can make certificates of this cluster.
pub struct Authority(KeyPair);

impl Authority {
    /// The one that follows from this seed, which follows from the cluster's key.
    pub fn new(seed: &[u8; 32]) -> Result<Self, TlsError> {
        let der = PrivatePkcs8KeyDer::from([SEED_HEAD, seed].concat());
        Ok(Self(KeyPair::from_pkcs8_der_and_sign_algo(&der, &PKCS_ED25519)?))
    }

    /// What others have to know of it.
    pub fn trust(&self) -> Trust {
        let mut key = [0; 32];
        key.copy_from_slice(self.0.public_key_raw());
        Trust(key)
    }

    /// A certificate for this life of a daemon; `hosts` are for foreign clients, that look for the address they asked for.
    pub fn identity(&self, role: Role, hosts: &[String]) -> Result<Identity, TlsError> {
        let mut authority = CertificateParams::default();
        authority.distinguished_name = named(AUTHORITY);
        authority.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        authority.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let names = std::iter::once(role.name().to_owned()).chain(hosts.iter().cloned());
        let mut leaf = CertificateParams::new(names.collect::<Vec<_>>())?;
        leaf.distinguished_name = named(role.name());
        leaf.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        leaf.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        let key = KeyPair::generate_for(&PKCS_ED25519)?;
        let certificate = leaf.signed_by(&key, &Issuer::from_params(&authority, &self.0))?;
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let config = ServerConfig::builder_with_details(cluster_provider(), Arc::new(Whenever))
            .with_protocol_versions(&[&TLS13])?
            .with_no_client_auth()
            .with_single_cert(vec![certificate.der().clone()], key)?;
        Ok(Identity::new(without_resumption(config)))
    }
}

impl fmt::Debug for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Authority")
    }
}

/// What a daemon shows to whoever connects.
#[derive(Clone)]
pub struct Identity(Arc<ServerConfig>);

impl Identity {
    pub(crate) fn new(config: ServerConfig) -> Self {
        Self(Arc::new(config))
    }

    /// As rustls has it.
    pub fn config(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.0)
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Identity")
    }
}

/// Whom a cluster's members trust: the public key of its authority. No secret.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Trust(pub [u8; 32]);

impl Trust {
    /// For whoever connects: TLS 1.3 alone, with a certificate of this authority alone.
    pub fn config(&self) -> Result<Arc<ClientConfig>, TlsError> {
        let anchor = TrustAnchor {
            subject: Der::from_slice(AUTHORITY_NAME),
            subject_public_key_info: Der::from([PUBLIC_HEAD, &self.0].concat()),
            name_constraints: None,
        };
        let mut config = ClientConfig::builder_with_details(cluster_provider(), Arc::new(Whenever))
            .with_protocol_versions(&[&TLS13])?
            .with_root_certificates(RootCertStore { roots: vec![anchor] })
            .with_no_client_auth();
        config.resumption = Resumption::disabled();
        // There is one certificate behind each address.
        config.enable_sni = false;
        Ok(Arc::new(config))
    }
}

/// A connection lasts as long as its two ends, so that nothing is won by going on with an older one's keys.
pub(crate) fn without_resumption(mut config: ServerConfig) -> ServerConfig {
    config.send_tls13_tickets = 0;
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config
}

/// What `ring` does, AES-128 first: half of what AES-256 costs per block is what the data path pays for.
pub(crate) fn provider() -> Arc<CryptoProvider> {
    Arc::new(CryptoProvider {
        cipher_suites: vec![
            cipher_suite::TLS13_AES_128_GCM_SHA256,
            cipher_suite::TLS13_AES_256_GCM_SHA384,
            cipher_suite::TLS13_CHACHA20_POLY1305_SHA256,
        ],
        ..default_provider()
    })
}

/// The same for a cluster's own, without P-384: whoever connects chooses the group, and proves who he is only later. With that one a handshake
/// takes a listener some 800 µs, with the others 110.
fn cluster_provider() -> Arc<CryptoProvider> {
    let kx_groups = vec![kx_group::X25519, kx_group::SECP256R1];
    Arc::new(CryptoProvider { kx_groups, ..CryptoProvider::clone(&provider()) })
}

fn named(name: &str) -> DistinguishedName {
    let mut named = DistinguishedName::new();
    named.push(DnType::CommonName, name);
    named
}

/// For certificates that do not end.
#[derive(Debug)]
struct Whenever;

impl TimeProvider for Whenever {
    fn current_time(&self) -> Option<UnixTime> {
        Some(UnixTime::since_unix_epoch(ANY_DAY))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustls::{ClientConnection, ServerConnection};
    use std::io::{Read, Write};

    /// A handshake in memory, and a word each way.
    fn talk(trust: Trust, asked: Role, identity: &Identity) -> Result<(), rustls::Error> {
        let name = asked.server_name().unwrap();
        let mut client = ClientConnection::new(trust.config().unwrap(), name)?;
        let mut server = ServerConnection::new(identity.config())?;
        client.writer().write_all(b"to the server").unwrap();
        server.writer().write_all(b"to the client").unwrap();
        for _ in 0..4 {
            let mut bytes = Vec::new();
            while client.wants_write() {
                client.write_tls(&mut bytes).unwrap();
            }
            let mut rest = &bytes[..];
            while !rest.is_empty() && server.read_tls(&mut rest).unwrap() > 0 {
                server.process_new_packets()?;
            }
            bytes.clear();
            while server.wants_write() {
                server.write_tls(&mut bytes).unwrap();
            }
            let mut rest = &bytes[..];
            while !rest.is_empty() && client.read_tls(&mut rest).unwrap() > 0 {
                client.process_new_packets()?;
            }
        }
        let (mut to_server, mut to_client) = ([0; 13], [0; 13]);
        server.reader().read_exact(&mut to_server).unwrap();
        client.reader().read_exact(&mut to_client).unwrap();
        assert_eq!((&to_server, &to_client), (b"to the server", b"to the client"));
        assert_eq!(client.protocol_version(), Some(rustls::ProtocolVersion::TLSv1_3));
        Ok(())
    }

    #[test]
    fn nobody_chooses_what_costs_a_listener_most() {
        let authority = Authority::new(&[7; 32]).unwrap();
        let node = authority.identity(Role::Node, &[]).unwrap();
        let asks_for = |group| {
            let provider = Arc::new(CryptoProvider { kx_groups: vec![group], ..default_provider() });
            let config = ClientConfig::builder_with_details(provider, Arc::new(Whenever));
            let config = config.with_protocol_versions(&[&TLS13]).unwrap();
            let config = config.with_root_certificates(RootCertStore::empty()).with_no_client_auth();
            let mut client = ClientConnection::new(Arc::new(config), Role::Node.server_name().unwrap()).unwrap();
            let mut server = ServerConnection::new(node.config()).unwrap();
            let mut hello = Vec::new();
            client.write_tls(&mut hello).unwrap();
            server.read_tls(&mut &hello[..]).unwrap();
            server.process_new_packets().map(|_| ())
        };
        assert_eq!([kx_group::X25519, kx_group::SECP256R1].map(asks_for), [Ok(()), Ok(())]);
        let refused = rustls::Error::PeerIncompatible(rustls::PeerIncompatible::NoKxGroupsInCommon);
        assert_eq!(asks_for(kx_group::SECP384R1), Err(refused));
    }

    #[test]
    fn an_authority_follows_from_its_seed() {
        let authority = Authority::new(&[7; 32]).unwrap();
        assert_eq!(authority.trust(), Authority::new(&[7; 32]).unwrap().trust());
        assert_ne!(authority.trust(), Authority::new(&[8; 32]).unwrap().trust());
        assert_eq!(format!("{authority:?}"), "Authority");
    }

    #[test]
    fn whoever_knows_the_authority_believes_its_certificates_and_no_others() {
        let ours = Authority::new(&[7; 32]).unwrap();
        let node = ours.identity(Role::Node, &["127.0.0.1".to_owned(), "n1.example".to_owned()]).unwrap();
        talk(ours.trust(), Role::Node, &node).unwrap();
        let again = Authority::new(&[7; 32]).unwrap();
        talk(again.trust(), Role::Node, &node).unwrap();
        let theirs = Authority::new(&[8; 32]).unwrap();
        assert!(talk(theirs.trust(), Role::Node, &node).is_err(), "another cluster's");
        assert!(talk(ours.trust(), Role::Conductor, &node).is_err(), "a node is no conductor");
    }
}
