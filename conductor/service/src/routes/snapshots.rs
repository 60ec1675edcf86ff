//! Routes of snapshots and clones.
//!
//! Handlers carry no decision, as in `routes`; the only waiting done here is for a snapshot that is being made, whose outcome the model
//! has in bounded time (`conductor_model::limits::SNAPSHOT_ATTEMPTS`).

use crate::answer::{Failure, body};
use crate::gate::Caller;
use crate::ledger::Ledger;
use crate::limits::SMALL_BODY;
use crate::routes::{Answer, Name, Names, TakenFor, Waiters, change, look, name, taken_for};
use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, Request, State};
use axum::http::StatusCode;
use axum::{Extension, Json};
use conductor_model::api::VolumeMap;
use conductor_model::views::{NewSnapshot, SnapshotInfo, VolumeInfo};
use conductor_model::{Conductor, check_snapshot_name, check_volume_name};

/// Two names from a path: a volume's and a snapshot's.
fn names(path: Names) -> Result<(String, String), Failure> {
    let Path((volume, snapshot)) = path.map_err(|error| Failure::bad_request(error.body_text()))?;
    check_volume_name(&volume)?;
    check_snapshot_name(&snapshot)?;
    Ok((volume, snapshot))
}

pub(crate) async fn list(State(ledger): State<Ledger>, path: Name) -> Answer<Vec<SnapshotInfo>> {
    let volume = name(path)?;
    look(&ledger, move |m, _| m.snapshot_list(&volume)).await.map(Json)
}

/// Answers when the snapshot is complete, or all attempts have failed.
pub(crate) async fn create(
    State(ledger): State<Ledger>,
    Extension(waiters): Extension<Waiters>,
    path: Name,
    request: Request,
) -> Result<(StatusCode, Json<SnapshotInfo>), Failure> {
    let volume = name(path)?;
    let NewSnapshot { name } = body(request, SMALL_BODY).await?;
    let _permit = waiters.enter()?;
    let mut news = ledger.news();
    let (of, named) = (volume.clone(), name.clone());
    let asked = change(&ledger, move |m, now| m.create_snapshot(now, &of, &named)).await?;
    loop {
        if let Some(outcome) = look(&ledger, move |m, _| Ok(m.snapshot_outcome(asked))).await? {
            match &outcome {
                Ok(info) => tracing::info!(volume, name, snapshot = %info.id, "snapshot complete"),
                Err(why) => tracing::warn!(volume, name, %why, "no snapshot"),
            }
            return Ok((StatusCode::CREATED, Json(outcome?)));
        }
        // Every step of an attempt is a transaction.
        if news.changed().await.is_err() {
            return Err(crate::ledger::Stopped.into());
        }
    }
}

pub(crate) async fn remove(State(ledger): State<Ledger>, path: Names) -> Result<StatusCode, Failure> {
    let (volume, name) = names(path)?;
    tracing::info!(volume, name, "snapshot deletion asked");
    change(&ledger, move |m, now| m.delete_snapshot(now, &volume, &name)).await?;
    Ok(StatusCode::NO_CONTENT)
}

pub(crate) async fn rollback(State(ledger): State<Ledger>, path: Names) -> Answer<VolumeInfo> {
    let (volume, name) = names(path)?;
    tracing::info!(volume, name, "rollback asked");
    change(&ledger, move |m, now| m.rollback(now, &volume, &name)).await.map(Json)
}

pub(crate) async fn cancel_rollback(State(ledger): State<Ledger>, path: Names) -> Answer<VolumeInfo> {
    let (volume, name) = names(path)?;
    tracing::info!(volume, name, "rollback to be cancelled");
    change(&ledger, move |m, now| m.cancel_rollback(now, &volume, &name)).await.map(Json)
}

pub(crate) async fn map(
    State(ledger): State<Ledger>,
    Extension(caller): Extension<Caller>,
    path: Names,
    query: Result<Query<TakenFor>, QueryRejection>,
) -> Answer<VolumeMap> {
    let ((volume, name), known) = (names(path)?, taken_for(query)?);
    let asked = move |m: &Conductor, _| {
        caller.permits_known(m, &volume, known)?;
        m.snapshot_map(&volume, &name)
    };
    look(&ledger, asked).await.map(Json)
}

pub(crate) async fn flatten(State(ledger): State<Ledger>, path: Name) -> Answer<VolumeInfo> {
    let name = name(path)?;
    change(&ledger, move |m, now| m.flatten(now, &name)).await.map(Json)
}
