//! Routes of clients: who they are, and ending what they have.
//!
//! Handlers carry no decision, as in `routes`; an eviction is answered when no primary serves the client any more (rule 19).

use crate::answer::{Failure, body};
use crate::ledger::Ledger;
use crate::limits::{NODE_BODY, SMALL_BODY};
use crate::routes::{Answer, change, confirmed, look};
use axum::Json;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use conductor_model::Dirty;
use conductor_model::api::NodeSessions;
use conductor_model::views::{ClientInfo, Evict};

pub(crate) async fn list(State(ledger): State<Ledger>) -> Answer<Vec<ClientInfo>> {
    look(&ledger, |m, _| Ok(m.clients())).await.map(Json)
}

/// A node tells of its sessions.
pub(crate) async fn sessions(State(ledger): State<Ledger>, request: Request) -> Result<StatusCode, Failure> {
    let said: NodeSessions = body(request, NODE_BODY).await?;
    change(&ledger, move |m, now| Ok((m.hear_sessions(now, &said)?, Dirty::default()))).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Answers with the volumes that it had.
pub(crate) async fn evict(State(ledger): State<Ledger>, request: Request) -> Answer<Vec<String>> {
    let Evict { client } = body(request, SMALL_BODY).await?;
    let name = client.clone();
    let volumes = change(&ledger, move |m, _| m.evict(&name)).await?;
    tracing::info!(client, ?volumes, "client evicted");
    confirmed(&ledger, &volumes, &format!("{client} is evicted"), "it").await?;
    Ok(Json(volumes))
}
