//! Routes of clients: who they are, and ending what they have.
//!
//! Handlers carry no decision, as in `routes`; an eviction is answered when no primary serves the client any more (rule 19).

use crate::answer::{Failure, body};
use crate::ledger::Ledger;
use crate::limits::{NODE_BODY, SMALL_BODY};
use crate::routes::{AGAIN, Answer, Unconfirmed, Waiters, change, look, no_more_missing, still_missing};
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::{Extension, Json};
use conductor_model::api::NodeSessions;
use conductor_model::views::{ClientInfo, Evict, KeyInfo, NewKey, RemoveKey, RotateKey, RotatedKey};
use conductor_model::{Conductor, Dirty, NodeId, Rotated};
use std::collections::BTreeSet;

pub(crate) async fn list(State(ledger): State<Ledger>) -> Answer<Vec<ClientInfo>> {
    look(&ledger, |m, now| Ok(m.clients(now))).await.map(Json)
}

/// A node tells of its sessions.
pub(crate) async fn sessions(State(ledger): State<Ledger>, request: Request) -> Result<StatusCode, Failure> {
    let said: NodeSessions = body(request, NODE_BODY).await?;
    change(&ledger, move |m, now| Ok((m.hear_sessions(now, &said)?, Dirty::default()))).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Answers with the volumes that it had.
pub(crate) async fn evict(
    State(ledger): State<Ledger>,
    Extension(waiters): Extension<Waiters>,
    request: Request,
) -> Answer<Vec<String>> {
    let Evict { client } = body(request, SMALL_BODY).await?;
    let name = client.clone();
    let volumes = change(&ledger, move |m, _| m.evict(&name)).await?;
    tracing::info!(client, ?volumes, "client evicted");
    let names = volumes.clone();
    let missing = move |m: &Conductor, now| {
        names.iter().filter_map(|volume| m.may_serve_others(now, volume).ok()).flatten().collect()
    };
    let evicted = Unconfirmed { done: format!("{client} is evicted"), whom: "it", next: AGAIN };
    no_more_missing(&ledger, &waiters, missing, &evicted).await?;
    Ok(Json(volumes))
}

/// What the key is for; its secret is made of that by whoever has the cluster's key, and never sent.
pub(crate) async fn add_key(
    State(ledger): State<Ledger>,
    request: Request,
) -> Result<(StatusCode, Json<KeyInfo>), Failure> {
    let new: NewKey = body(request, SMALL_BODY).await?;
    let info = change(&ledger, move |m, now| m.add_key(now, &new)).await?;
    tracing::info!(key = info.name, serial = info.serial, read_only = info.read_only, "key added");
    Ok((StatusCode::CREATED, Json(info)))
}

/// The like of a key that is renewed. Where the former one holds no more, answered when no primary of its volumes takes it any more, or
/// with those that may. It is no failure: what is answered cannot be asked for again, and the former key is one no more.
pub(crate) async fn rotate_key(
    State(ledger): State<Ledger>,
    Extension(waiters): Extension<Waiters>,
    request: Request,
) -> Result<(StatusCode, Json<RotatedKey>), Failure> {
    let rotate: RotateKey = body(request, SMALL_BODY).await?;
    let at_once = rotate.grace_ms == 0;
    let rotated = move |m: &mut Conductor, now| {
        let (rotated, dirty) = m.rotate_key(now, &rotate)?;
        let primaries = m.unconfirmed_since(now, &rotated.volumes, rotated.at);
        Ok(((rotated, primaries), dirty))
    };
    let (Rotated { key, volumes, at }, primaries) = change(&ledger, rotated).await?;
    tracing::info!(key = key.name, serial = key.serial, "key renewed");
    let mut unconfirmed = BTreeSet::new();
    if at_once {
        let missing = move |m: &Conductor, now| m.unconfirmed_since(now, &volumes, at);
        // If it cannot be asked any more, none has confirmed as far as is known.
        unconfirmed = still_missing(&ledger, &waiters, missing).await.unwrap_or(primaries);
    }
    let unconfirmed: Vec<NodeId> = unconfirmed.into_iter().collect();
    Ok((StatusCode::CREATED, Json(RotatedKey { key, unconfirmed })))
}

/// Answered when no primary of its volumes serves it any more.
pub(crate) async fn remove_key(
    State(ledger): State<Ledger>,
    Extension(waiters): Extension<Waiters>,
    request: Request,
) -> Result<StatusCode, Failure> {
    let RemoveKey { name } = body(request, SMALL_BODY).await?;
    let key = name.clone();
    let (volumes, at) = change(&ledger, move |m, now| m.remove_key(now, &key)).await?;
    tracing::info!(key = name, "key removed");
    let missing = move |m: &Conductor, now| m.unconfirmed_since(now, &volumes, at);
    // It cannot be removed once more.
    let next = "it does so no more once it is heard (trine node list)";
    let removed = Unconfirmed { done: format!("the key {name} is removed"), whom: "its clients", next };
    no_more_missing(&ledger, &waiters, missing, &removed).await?;
    Ok(StatusCode::NO_CONTENT)
}
