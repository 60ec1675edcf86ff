//! What a reactor's streams are encrypted with, where the cluster speaks TLS.

use crate::{Error, NodeOptions};
use memory::Arena;
use std::time::{Duration, Instant};
use tls::{Authority, Layer, LayerOptions, Role};
use wire::{ClusterKey, Reason};

/// Between two words about peers that do not speak it, or are not trusted: whoever connects can cause them.
const SAY_EVERY: Duration = Duration::from_secs(10);

/// For all that the reactor accepts, and all that it connects to.
pub(crate) fn layer(options: &NodeOptions, arena: &Arena) -> Result<Layer, Error> {
    let authority = Authority::new(&ClusterKey(options.key).authority_seed())?;
    let mut said: Option<Instant> = None;
    let options = LayerOptions {
        identity: Some(authority.identity(Role::Node, &[])?),
        on_request: None,
        trust: Some(authority.trust()),
        in_clear: tcp::refusal(Reason::Tls),
        report: Box::new(move |to, why| {
            if said.is_none_or(|said| said.elapsed() > SAY_EVERY) {
                said = Some(Instant::now());
                match to {
                    Some(to) => tracing::warn!(?to, %why, "a connection to another node failed"),
                    None => tracing::warn!(%why, "a connection was refused"),
                }
            }
        }),
    };
    Ok(Layer::new(options, arena.clone())?)
}
