//! Certificates that somebody else made, for clients that know nothing of a cluster: as OpenSSL, GnuTLS and everybody else write them.

use crate::TlsError;
use crate::trust::{Identity, provider, without_resumption};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::version::TLS13;
use rustls::{RootCertStore, ServerConfig};
use std::fmt;
use std::sync::Arc;

/// What the files hold.
pub struct PemFiles<'a> {
    /// The certificate to show, and what is between it and an authority.
    pub certificate: &'a [u8],
    /// Its private key.
    pub key: &'a [u8],
    /// Whoever connects has to show a certificate of one of these authorities; none lets everybody in.
    pub clients: Option<&'a [u8]>,
}

impl fmt::Debug for PemFiles<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PemFiles")
    }
}

impl Identity {
    /// From files. Unlike those of a cluster, clients' certificates end: their dates are looked at with this machine's clock.
    pub fn from_pem(files: &PemFiles<'_>) -> Result<Self, TlsError> {
        let chain = certificates(files.certificate, "the server's certificate")?;
        let bad = |error| TlsError::Pem("the server's key", error);
        let key = PrivateKeyDer::from_pem_slice(files.key).map_err(bad)?;
        let provider = provider();
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider)).with_protocol_versions(&[&TLS13])?;
        let builder = match files.clients {
            None => builder.with_no_client_auth(),
            Some(authorities) => {
                let mut roots = RootCertStore::empty();
                for authority in certificates(authorities, "the clients' authority")? {
                    roots.add(authority)?;
                }
                let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build()?;
                builder.with_client_cert_verifier(verifier)
            }
        };
        Ok(Self::new(without_resumption(builder.with_single_cert(chain, key)?)))
    }
}

/// At least one.
fn certificates(pem: &[u8], whose: &'static str) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let bad = |error| TlsError::Pem(whose, error);
    let all = CertificateDer::pem_slice_iter(pem).collect::<Result<Vec<_>, _>>().map_err(bad)?;
    if all.is_empty() { Err(bad(rustls::pki_types::pem::Error::NoItemsFound)) } else { Ok(all) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Failure;
    use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
    use rustls::pki_types::ServerName;
    use rustls::{ClientConfig, ClientConnection, ServerConnection};

    type Authority = CertifiedIssuer<'static, KeyPair>;

    fn authority() -> Authority {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
    }

    fn pem(what: &str, der: &[u8]) -> String {
        const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
        let mut text = String::new();
        for three in der.chunks(3) {
            let bits = three.iter().fold(0, |bits, byte| bits << 8 | usize::from(*byte)) << (8 * (3 - three.len()));
            let digits = [18, 12, 6, 0].map(|shift| char::from(DIGITS[bits >> shift & 63]));
            text.extend(digits.iter().take(three.len() + 1));
            text.push_str(&"=="[..3 - three.len()]);
        }
        format!("-----BEGIN {what}-----\n{text}\n-----END {what}-----\n")
    }

    fn signed(by: &Authority) -> (String, String) {
        signed_until(by, 4000)
    }

    fn signed_until(by: &Authority, year: i32) -> (String, String) {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(["localhost".to_owned()]).unwrap();
        params.not_after = rcgen::date_time_ymd(year, 1, 1);
        let certificate = params.signed_by(&key, by).unwrap();
        (pem("CERTIFICATE", certificate.der()), pem("PRIVATE KEY", &key.serialize_der()))
    }

    /// Whether whoever trusts `trusted`, and shows this, gets through.
    fn talk(identity: &Identity, trusted: &Authority, shown: Option<(String, String)>) -> Result<(), rustls::Error> {
        let mut roots = RootCertStore::empty();
        roots.add(trusted.der().clone()).unwrap();
        let builder = ClientConfig::builder_with_provider(provider()).with_protocol_versions(&[&TLS13])?;
        let builder = builder.with_root_certificates(roots);
        let config = match shown {
            None => builder.with_no_client_auth(),
            Some((certificate, key)) => builder.with_client_auth_cert(
                certificates(certificate.as_bytes(), "mine").unwrap(),
                PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap(),
            )?,
        };
        let name = ServerName::try_from("localhost").unwrap();
        let mut client = ClientConnection::new(Arc::new(config), name)?;
        let mut server = ServerConnection::new(identity.config())?;
        for _ in 0..4 {
            let mut bytes = Vec::new();
            while client.wants_write() {
                client.write_tls(&mut bytes).unwrap();
            }
            server.read_tls(&mut &bytes[..]).unwrap();
            server.process_new_packets()?;
            bytes.clear();
            while server.wants_write() {
                server.write_tls(&mut bytes).unwrap();
            }
            client.read_tls(&mut &bytes[..]).unwrap();
            client.process_new_packets()?;
        }
        assert!(!client.is_handshaking() && !server.is_handshaking());
        Ok(())
    }

    #[test]
    fn clients_show_a_certificate_of_the_authority_where_there_is_one() {
        let (ours, other) = (authority(), authority());
        let (certificate, key) = signed(&ours);
        let authority = pem("CERTIFICATE", ours.der());
        let files = PemFiles { certificate: certificate.as_bytes(), key: key.as_bytes(), clients: None };
        let anybody = Identity::from_pem(&files).unwrap();
        talk(&anybody, &ours, None).unwrap();
        assert!(talk(&anybody, &other, None).is_err(), "another authority's server");
        let known = Identity::from_pem(&PemFiles { clients: Some(authority.as_bytes()), ..files }).unwrap();
        talk(&known, &ours, Some(signed(&ours))).unwrap();
        assert!(talk(&known, &ours, None).is_err(), "no certificate");
        assert!(talk(&known, &ours, Some(signed(&other))).is_err(), "another authority's client");
        let expired = Failure::from(talk(&known, &ours, Some(signed_until(&ours, 2020))).unwrap_err());
        assert!(matches!(&expired, Failure::Untrusted(_)) && expired.to_string().contains("expired"), "{expired}");
    }

    #[test]
    fn what_is_no_certificate_or_another_ones_key_is_refused() {
        let ours = authority();
        let ((certificate, key), (_, other)) = (signed(&ours), signed(&ours));
        let files = |certificate: &str, key: &str, clients: Option<&str>| {
            Identity::from_pem(&PemFiles {
                certificate: certificate.as_bytes(),
                key: key.as_bytes(),
                clients: clients.map(str::as_bytes),
            })
        };
        files(&certificate, &key, None).unwrap();
        for (bad, why) in [
            (files("", &key, None), "the server's certificate"),
            (files(&certificate, "", None), "the server's key"),
            (files(&certificate, &key, Some("no PEM")), "the clients' authority"),
            (files(&certificate, &other, None), "cannot set up TLS"),
        ] {
            let error = bad.unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
    }
}
