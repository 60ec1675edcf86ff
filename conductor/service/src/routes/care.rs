//! Routes of what is wanted of nodes, disks and copies, and of the event log.
//!
//! Handlers carry no decision, as in `routes`; the only waiting done here is for events that have not happened yet.

use crate::answer::{Failure, body};
use crate::ledger::Ledger;
use crate::limits::{EVENTS, NODE_BODY, SMALL_BODY};
use crate::routes::{Answer, Name, Waiters, change, listened, look, name, node_id};
use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, Request, State};
use axum::{Extension, Json};
use conductor_model::DiskId;
use conductor_model::events::Event;
use conductor_model::views::{
    CheckReplacement, Force, NewCopies, NewDuty, NodeInfo, RemoveDisk, ReplaceDisk, ResyncChange, ResyncInfo, Settings,
    VolumeInfo,
};
use serde::Deserialize;
use tokio::time::{Instant, timeout_at};

pub(crate) async fn duty(
    State(ledger): State<Ledger>,
    Extension(waiters): Extension<Waiters>,
    id: Name,
    request: Request,
) -> Answer<NodeInfo> {
    let node = node_id(id)?;
    let NewDuty { duty, force, sentence } = body(request, SMALL_BODY).await?;
    tracing::info!(%node, %duty, force, sentence, "duty asked");
    let force = Force { force, sentence };
    listened(&ledger, &waiters).await?;
    change(&ledger, move |m, now| m.set_duty(now, node, duty, force)).await.map(Json)
}

fn disk_id(id: Name) -> Result<DiskId, Failure> {
    let Path(id) = id.map_err(|error| Failure::bad_request(error.body_text()))?;
    id.parse().map_err(|why| Failure::bad_request(format!("{id:?} is no disk's name: {why}")))
}

pub(crate) async fn remove_disk(
    State(ledger): State<Ledger>,
    Extension(waiters): Extension<Waiters>,
    id: Name,
    request: Request,
) -> Answer<NodeInfo> {
    let disk = disk_id(id)?;
    let RemoveDisk { force, sentence } = body(request, SMALL_BODY).await?;
    tracing::info!(%disk, force, sentence, "disk removal asked");
    let force = Force { force, sentence };
    listened(&ledger, &waiters).await?;
    change(&ledger, move |m, now| m.remove_disk(now, disk, force)).await.map(Json)
}

pub(crate) async fn keep_disk(State(ledger): State<Ledger>, id: Name) -> Answer<NodeInfo> {
    let disk = disk_id(id)?;
    tracing::info!(%disk, "disk is to stay");
    change(&ledger, move |m, now| m.keep_disk(now, disk)).await.map(Json)
}

pub(crate) async fn replace_disk(
    State(ledger): State<Ledger>,
    Extension(waiters): Extension<Waiters>,
    id: Name,
    request: Request,
) -> Answer<NodeInfo> {
    let disk = disk_id(id)?;
    let ReplaceDisk { with } = body(request, SMALL_BODY).await?;
    tracing::info!(%disk, %with, "disk replacement asked");
    listened(&ledger, &waiters).await?;
    change(&ledger, move |m, now| m.replace_disk(now, disk, with)).await.map(Json)
}

/// Changes nothing.
pub(crate) async fn check_replacement(
    State(ledger): State<Ledger>,
    Extension(waiters): Extension<Waiters>,
    id: Name,
    request: Request,
) -> Answer<NodeInfo> {
    let disk = disk_id(id)?;
    let CheckReplacement { capacity } = body(request, SMALL_BODY).await?;
    listened(&ledger, &waiters).await?;
    look(&ledger, move |m, now| m.check_replacement(now, disk, capacity)).await.map(Json)
}

pub(crate) async fn copies(
    State(ledger): State<Ledger>,
    Extension(waiters): Extension<Waiters>,
    path: Name,
    request: Request,
) -> Answer<VolumeInfo> {
    let name = name(path)?;
    let NewCopies { copies, min_copies } = body(request, SMALL_BODY).await?;
    listened(&ledger, &waiters).await?;
    change(&ledger, move |m, now| m.set_copies(now, &name, copies, min_copies)).await.map(Json)
}

pub(crate) async fn settings(State(ledger): State<Ledger>) -> Answer<Settings> {
    look(&ledger, |m, _| Ok(m.settings())).await.map(Json)
}

pub(crate) async fn change_settings(State(ledger): State<Ledger>, request: Request) -> Answer<Settings> {
    let settings: Settings = body(request, SMALL_BODY).await?;
    tracing::info!(?settings, "settings asked");
    change(&ledger, move |m, now| m.change_settings(now, settings)).await.map(Json)
}

pub(crate) async fn resyncs(State(ledger): State<Ledger>) -> Answer<Vec<ResyncInfo>> {
    look(&ledger, |m, now| Ok(m.resyncs(now))).await.map(Json)
}

pub(crate) async fn change_resync(
    State(ledger): State<Ledger>,
    path: Name,
    request: Request,
) -> Answer<Vec<ResyncInfo>> {
    let volume = name(path)?;
    let asked: ResyncChange = body(request, NODE_BODY).await?;
    tracing::info!(volume, verb = %asked.verb, copies = asked.copies.len(), "resync asked");
    change(&ledger, move |m, now| m.change_resync(now, &volume, &asked)).await.map(Json)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct After {
    #[serde(default)]
    after: u64,
    #[serde(default)]
    wait: bool,
}

/// Events after a number; with `wait`, held for some time until there is one.
pub(crate) async fn events(
    State(ledger): State<Ledger>,
    Extension(waiters): Extension<Waiters>,
    query: Result<Query<After>, QueryRejection>,
) -> Answer<Vec<Event>> {
    let Query(After { after, wait }) = query.map_err(|error| Failure::bad_request(error.body_text()))?;
    let _permit = if wait { Some(waiters.enter()?) } else { None };
    let until = Instant::now() + EVENTS;
    let mut news = ledger.news();
    loop {
        let events = look(&ledger, move |m, _| Ok(m.events(after))).await?;
        if !wait || !events.is_empty() {
            return Ok(Json(events));
        }
        match timeout_at(until, news.changed()).await {
            Ok(Ok(())) => {}
            Ok(Err(_)) | Err(_) => return Ok(Json(events)),
        }
    }
}
