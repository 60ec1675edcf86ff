//! Routes of what is wanted of nodes, disks and the number of copies. Handlers carry no decision, as in `routes`.

use crate::answer::{Failure, body};
use crate::ledger::Ledger;
use crate::limits::SMALL_BODY;
use crate::routes::{Answer, Name, Waiters, change, listened, look, name, node_id};
use axum::extract::{Path, Request, State};
use axum::{Extension, Json};
use conductor_model::DiskId;
use conductor_model::views::{
    CheckReplacement, Force, NewCopies, NewDuty, NodeInfo, RemoveDisk, ReplaceDisk, VolumeInfo,
};

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
