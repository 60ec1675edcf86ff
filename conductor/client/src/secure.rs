//! TLS below HTTP: connections to whoever has a certificate of the cluster's authority, by whatever address it was reached.
//!
//! The key file says whom to trust. A certificate's name is that of the conductor's role, not of a host, which is why ureq's own TLS does
//! not serve: it looks for the host's.

use crate::Error;
use crate::resolver::Names;
use std::fmt;
use std::io::{self, Read, Write};
use std::sync::Arc;
use tls::rustls::pki_types::ServerName;
use tls::rustls::{self, ClientConfig, ClientConnection, StreamOwned};
use tls::{Authority, Role, TlsError, Trust};
use ureq::Agent;
use ureq::config::Config;
use ureq::unversioned::transport::{
    Buffers, ConnectionDetails, Connector, LazyBuffers, NextTimeout, TcpConnector, Transport, TransportAdapter,
};
use wire::Key;

/// Whom a holder of this key trusts.
pub(crate) fn trust_of(key: &Key) -> Result<Trust, Error> {
    match key {
        Key::Cluster(key) => Ok(Authority::new(&key.authority_seed()).map_err(unusable)?.trust()),
        Key::Client(key) => Ok(Trust(key.authority)),
    }
}

fn unusable(error: TlsError) -> Error {
    Error::Tls(error.to_string())
}

/// An agent whose connections all are over TLS.
pub(crate) fn secure(config: Config, trust: Trust) -> Result<Agent, Error> {
    let name = Role::Conductor.server_name().map_err(unusable)?;
    let over = Secure { config: trust.config().map_err(unusable)?, name };
    Ok(Agent::with_parts(config, TcpConnector::default().chain(over), Names))
}

/// Begins TLS on a stream.
struct Secure {
    config: Arc<ClientConfig>,
    name: ServerName<'static>,
}

impl fmt::Debug for Secure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secure")
    }
}

impl<In: Transport> Connector<In> for Secure {
    type Out = Secured;

    fn connect(&self, details: &ConnectionDetails<'_>, chained: Option<In>) -> Result<Option<Secured>, ureq::Error> {
        let Some(stream) = chained else { return Ok(None) };
        let conn = ClientConnection::new(Arc::clone(&self.config), self.name.clone());
        let mut conn = conn.map_err(|error| Unopened::of(ureq::Error::Other(error.into())))?;
        let boxed: Box<dyn Transport> = Box::new(stream);
        let mut sock = TransportAdapter::new(boxed, Arc::clone(&details.current_time));
        sock.set_timeout(details.timeout);
        conn.complete_io(&mut sock).map_err(|error| Unopened::of(refused(error)))?;
        let buffers = LazyBuffers::new(details.config.input_buffer_size(), details.config.output_buffer_size());
        Ok(Some(Secured { buffers, stream: StreamOwned::new(conn, sock) }))
    }
}

/// What failed before anything could be said: no byte of a request has left.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub(crate) struct Unopened(pub(crate) ureq::Error);

impl Unopened {
    pub(crate) fn of(error: ureq::Error) -> ureq::Error {
        ureq::Error::Other(Box::new(Self(error)))
    }
}

/// Says what a person can do about it.
fn refused(error: io::Error) -> ureq::Error {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    match inner {
        Some(rustls::Error::InvalidMessage(_)) => {
            ureq::Error::Tls("it does not speak TLS: leave --tls and https:// out")
        }
        Some(rustls::Error::InvalidCertificate(_)) => {
            ureq::Error::Tls("its certificate is not of the cluster that the key file is for")
        }
        Some(_) => ureq::Error::Other(Box::new(error)),
        None => error.into(),
    }
}

/// A stream over TLS.
struct Secured {
    buffers: LazyBuffers,
    stream: StreamOwned<ClientConnection, TransportAdapter>,
}

impl fmt::Debug for Secured {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secured")
    }
}

impl Transport for Secured {
    fn buffers(&mut self) -> &mut dyn Buffers {
        &mut self.buffers
    }

    fn transmit_output(&mut self, amount: usize, timeout: NextTimeout) -> Result<(), ureq::Error> {
        self.stream.get_mut().set_timeout(timeout);
        self.stream.write_all(&self.buffers.output()[..amount])?;
        Ok(())
    }

    fn await_input(&mut self, timeout: NextTimeout) -> Result<bool, ureq::Error> {
        self.stream.get_mut().set_timeout(timeout);
        let amount = self.stream.read(self.buffers.input_append_buf())?;
        self.buffers.input_appended(amount);
        Ok(amount > 0)
    }

    fn is_open(&mut self) -> bool {
        self.stream.get_mut().get_mut().is_open()
    }

    fn is_tls(&self) -> bool {
        true
    }
}
