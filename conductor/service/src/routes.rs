//! Every route, in one table, and the handlers of nodes and volumes; those of everything else are in the modules named for them.
//! `openapi.json` describes the same routes, which a test checks.
//!
//! Handlers parse, ask the ledger and serialise; the only waiting that is done here is holding a heartbeat without news,
//! a forced attach, or an eviction, that the primaries have not confirmed yet (rule 19), and a choice of places just after a start.

mod clients;
mod copy_ranges;
mod duties;
mod events;
mod recovery;
mod resync;
mod room;
mod scrubs;
mod settings;
mod snapshots;

use crate::answer::{Failure, body};
use crate::front::Advertised;
use crate::gate::{Caller, Gate};
use crate::ledger::Ledger;
use crate::limits::{CONFIRM, CONFIRM_EVERY, HOLD, LISTEN_EVERY, NODE_BODY, SMALL_BODY};
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Path, Query, Request, State};
use axum::http::{StatusCode, header};
use axum::middleware::{Next, from_fn};
use axum::response::IntoResponse;
use axum::routing::{MethodRouter, delete, get, post};
use axum::{Extension, Json, Router};
use conductor_model::api::{
    Heartbeat, HeartbeatAnswer, MembershipAnswer, MembershipRequest, Register, Registered, Report, VolumeMap,
};
use conductor_model::views::{
    Attach, Detach, NewVolume, NodeInfo, Rename, Resize, Space, Status, Version, VolumeDetail, VolumeInfo,
};
use conductor_model::{Commit, Conductor, Dirty, Error, Millis, NodeId, VolumeId, check_volume_name};
use serde::Deserialize;
use std::collections::BTreeSet;
use std::sync::Arc;
use tokio::time::{Instant, timeout_at};
use wire::{Attached, READ_ONLY, SHARED};

pub(crate) use room::Waiters;
use room::{Room, limit};

pub(crate) type Answer<T> = Result<Json<T>, Failure>;
pub(crate) type Name = Result<Path<String>, PathRejection>;
pub(crate) type Names = Result<Path<(String, String)>, PathRejection>;

const OPENAPI: &str = include_str!("openapi.json");

/// Method, path and handler of everything that is served.
fn table() -> Vec<(&'static str, &'static str, MethodRouter<Ledger>)> {
    vec![
        ("get", "/v1/version", get(version)),
        ("get", "/v1/openapi.json", get(openapi)),
        ("get", "/v1/status", get(status)),
        ("get", "/v1/backup", get(recovery::backup)),
        ("get", "/v1/recovery", get(recovery::doubt)),
        ("post", "/v1/recovery/adopt", post(recovery::adopt)),
        ("get", "/v1/nodes", get(nodes)),
        ("get", "/v1/nodes/{id}", get(node)),
        ("post", "/v1/nodes/{id}/duty", post(duties::duty)),
        ("post", "/v1/disks/{id}/remove", post(duties::remove_disk)),
        ("post", "/v1/disks/{id}/keep", post(duties::keep_disk)),
        ("post", "/v1/disks/{id}/replace", post(duties::replace_disk)),
        ("post", "/v1/disks/{id}/check-replacement", post(duties::check_replacement)),
        ("get", "/v1/settings", get(settings::settings)),
        ("post", "/v1/settings", post(settings::change_settings)),
        ("get", "/v1/resync", get(resync::list)),
        ("get", "/v1/events", get(events::since)),
        ("post", "/v1/nodes/register", post(register)),
        ("post", "/v1/nodes/heartbeat", post(heartbeat)),
        ("post", "/v1/nodes/report", post(report)),
        ("post", "/v1/nodes/sessions", post(clients::sessions)),
        ("post", "/v1/membership", post(membership)),
        ("get", "/v1/space", get(space)),
        ("get", "/v1/clients", get(clients::list)),
        ("post", "/v1/clients/evict", post(clients::evict)),
        ("post", "/v1/clients/keys", post(clients::add_key)),
        ("post", "/v1/clients/keys/rotate", post(clients::rotate_key)),
        ("post", "/v1/clients/keys/remove", post(clients::remove_key)),
        ("get", "/v1/volumes", get(volumes)),
        ("post", "/v1/volumes", post(create)),
        ("get", "/v1/volumes/{name}", get(show)),
        ("delete", "/v1/volumes/{name}", delete(remove)),
        ("post", "/v1/volumes/{name}/resize", post(resize)),
        ("post", "/v1/volumes/{name}/rename", post(rename)),
        ("post", "/v1/volumes/{name}/redundancy", post(duties::copies)),
        ("post", "/v1/volumes/{name}/resync", post(resync::ask)),
        ("post", "/v1/volumes/{name}/attach", post(attach)),
        ("post", "/v1/volumes/{name}/detach", post(detach)),
        ("get", "/v1/volumes/{name}/map", get(map)),
        ("get", "/v1/volumes/{name}/snapshots", get(snapshots::list)),
        ("post", "/v1/volumes/{name}/snapshots", post(snapshots::create)),
        ("delete", "/v1/volumes/{name}/snapshots/{snapshot}", delete(snapshots::remove)),
        ("post", "/v1/volumes/{name}/snapshots/{snapshot}/rollback", post(snapshots::rollback)),
        ("delete", "/v1/volumes/{name}/snapshots/{snapshot}/rollback", delete(snapshots::cancel_rollback)),
        ("get", "/v1/volumes/{name}/snapshots/{snapshot}/map", get(snapshots::map)),
        ("post", "/v1/volumes/{name}/flatten", post(snapshots::flatten)),
        ("get", "/v1/volumes/{name}/copies", get(copy_ranges::list)),
        ("post", "/v1/volumes/{name}/copies", post(copy_ranges::begin)),
        ("delete", "/v1/volumes/{name}/copies/{id}", delete(copy_ranges::cancel)),
        ("get", "/v1/volumes/{name}/scrub", get(scrubs::show)),
        ("post", "/v1/volumes/{name}/scrub", post(scrubs::ask)),
    ]
}

/// The whole service.
pub(crate) fn router(ledger: Ledger, gate: Gate) -> Router {
    let routes = table().into_iter().fold(Router::new(), |router, (_, path, handler)| router.route(path, handler));
    let room = Arc::new(Room::new());
    let limited = from_fn(move |request: Request, next: Next| limit(Arc::clone(&room), request, next));
    routes
        .fallback(async || Failure::new(StatusCode::NOT_FOUND, "no-route", "no such path: see /v1/openapi.json"))
        .method_not_allowed_fallback(async || {
            Failure::new(StatusCode::METHOD_NOT_ALLOWED, "no-method", "not with this method: see /v1/openapi.json")
        })
        .layer(Extension(gate.clone()))
        .layer(limited)
        // Before that: what proves nothing, or has not arrived yet, takes no room.
        .layer(from_fn(move |request: Request, next: Next| gate.clone().pass(request, next)))
        .with_state(ledger)
}

/// What nodes say.
const OF_NODES: [&str; 5] =
    ["/v1/nodes/register", "/v1/nodes/heartbeat", "/v1/nodes/report", "/v1/nodes/sessions", "/v1/membership"];

/// How large a body may be there.
pub(crate) fn largest_body(path: &str) -> usize {
    // That one may name every copy of a volume.
    if OF_NODES.contains(&path) || path.ends_with("/resync") { NODE_BODY } else { SMALL_BODY }
}

/// Runs a command that may change something.
pub(crate) async fn change<T: Send + 'static>(
    ledger: &Ledger,
    command: impl FnOnce(&mut Conductor, Millis) -> Result<(T, Dirty), Error> + Send + 'static,
) -> Result<T, Failure> {
    let answer = ledger.ask(move |model, now| match command(model, now) {
        Ok((answer, dirty)) => (Ok(answer), dirty),
        Err(refused) => (Err(refused), Dirty::default()),
    });
    Ok(answer.await??)
}

/// Runs one that only looks.
pub(crate) async fn look<T: Send + 'static>(
    ledger: &Ledger,
    question: impl FnOnce(&Conductor, Millis) -> Result<T, Error> + Send + 'static,
) -> Result<T, Failure> {
    Ok(ledger.ask(move |model, now| (question(model, now), Dirty::default())).await??)
}

/// Waits while of some node it is not known whether it is there, which is 10 s at most: before places of copies are chosen, and before it is said
/// who is there and who is not.
pub(crate) async fn listened(ledger: &Ledger, waiters: &Waiters) -> Result<(), Failure> {
    let is_listening = || look(ledger, |m, now| Ok(m.is_listening(now)));
    if !is_listening().await? {
        return Ok(());
    }
    let _permit = waiters.enter()?;
    while is_listening().await? {
        tokio::time::sleep(LISTEN_EVERY).await;
    }
    Ok(())
}

/// Random copy ids. A source that fails gives 0, which the model takes for no number at all and gives up after a few.
fn draw() -> u64 {
    getrandom::u64().unwrap_or(0)
}

/// A name from a path, checked before anything is made of it.
pub(crate) fn name(path: Name) -> Result<String, Failure> {
    let Path(name) = path.map_err(|error| Failure::bad_request(error.body_text()))?;
    check_volume_name(&name)?;
    Ok(name)
}

async fn version(State(ledger): State<Ledger>) -> Answer<Version> {
    let about = |m: &Conductor, _: Millis| {
        Ok(Version { version: env!("CARGO_PKG_VERSION").to_owned(), cluster: m.cluster(), commit: m.commit().0 })
    };
    look(&ledger, about).await.map(Json)
}

async fn openapi() -> impl IntoResponse {
    ([(header::CONTENT_TYPE, "application/json")], OPENAPI)
}

async fn status(State(ledger): State<Ledger>, Extension(Advertised(this)): Extension<Advertised>) -> Answer<Status> {
    look(&ledger, move |m, now| Ok(Status { leader: this.to_string(), ..m.status(now) })).await.map(Json)
}

async fn nodes(State(ledger): State<Ledger>) -> Answer<Vec<NodeInfo>> {
    look(&ledger, |m, now| Ok(m.node_list(now))).await.map(Json)
}

/// Takes `3` and `n3`.
pub(crate) fn node_id(id: Name) -> Result<NodeId, Failure> {
    let Path(id) = id.map_err(|error| Failure::bad_request(error.body_text()))?;
    let number = id.strip_prefix('n').unwrap_or(&id).parse();
    number.map(NodeId).map_err(|_| Failure::bad_request("a node's id is a number, like 3 or n3"))
}

async fn node(State(ledger): State<Ledger>, id: Name) -> Answer<NodeInfo> {
    let node = node_id(id)?;
    look(&ledger, move |m, now| m.node(now, node)).await.map(Json)
}

async fn register(State(ledger): State<Ledger>, request: Request) -> Answer<Registered> {
    let register: Register = body(request, NODE_BODY).await?;
    let node = register.node;
    let registered = change(&ledger, move |m, now| m.register(now, &register)).await?;
    tracing::info!(%node, "node registered");
    Ok(Json(registered))
}

async fn heartbeat(State(ledger): State<Ledger>, request: Request) -> Answer<HeartbeatAnswer> {
    let beat: Heartbeat = body(request, NODE_BODY).await?;
    let (node, after) = (beat.node, Commit(beat.after));
    let until = Instant::now() + HOLD;
    let mut news = ledger.news();
    let heard = move |m: &mut Conductor, now| {
        let (answer, dirty) = m.heartbeat(now, &beat)?;
        Ok(((answer, m.has_news(node, after)), dirty))
    };
    let (mut answer, mut is_news) = change(&ledger, heard).await?;
    // News of others wake it, too: without end, where there is much.
    while !is_news && Instant::now() < until {
        match timeout_at(until, news.changed()).await {
            Ok(Ok(())) => {}
            Ok(Err(_)) | Err(_) => break,
        }
        let newer = move |m: &Conductor, _: Millis| Ok((m.answer(node, after), m.has_news(node, after)));
        (answer, is_news) = look(&ledger, newer).await?;
    }
    Ok(Json(answer))
}

/// How orders stand. Taken when it is durable.
async fn report(State(ledger): State<Ledger>, request: Request) -> Result<StatusCode, Failure> {
    let report: Report = body(request, NODE_BODY).await?;
    change(&ledger, move |m, now| m.report(now, &report)).await?;
    Ok(StatusCode::NO_CONTENT)
}

async fn space(State(ledger): State<Ledger>) -> Answer<Space> {
    look(&ledger, |m, now| Ok(m.space(now))).await.map(Json)
}

async fn membership(State(ledger): State<Ledger>, request: Request) -> Answer<Vec<MembershipAnswer>> {
    let requests: Vec<MembershipRequest> = body(request, NODE_BODY).await?;
    change(&ledger, move |m, now| m.membership(now, &requests)).await.map(Json)
}

async fn volumes(State(ledger): State<Ledger>) -> Answer<Vec<VolumeInfo>> {
    look(&ledger, |m, now| Ok(m.list(now))).await.map(Json)
}

async fn create(
    State(ledger): State<Ledger>,
    Extension(waiters): Extension<Waiters>,
    request: Request,
) -> Result<(StatusCode, Json<VolumeInfo>), Failure> {
    let new: NewVolume = body(request, SMALL_BODY).await?;
    listened(&ledger, &waiters).await?;
    let info = change(&ledger, move |m, now| m.create(now, &new, &mut draw)).await?;
    tracing::info!(volume = info.name, size = info.size.0, "volume created");
    Ok((StatusCode::CREATED, Json(info)))
}

async fn show(State(ledger): State<Ledger>, path: Name) -> Answer<VolumeDetail> {
    let name = name(path)?;
    look(&ledger, move |m, now| m.show(now, &name)).await.map(Json)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Force {
    #[serde(default)]
    force: bool,
}

async fn remove(
    State(ledger): State<Ledger>,
    path: Name,
    query: Result<Query<Force>, QueryRejection>,
) -> Result<StatusCode, Failure> {
    let name = name(path)?;
    let Query(Force { force }) = query.map_err(|error| Failure::bad_request(error.body_text()))?;
    tracing::info!(volume = name, force, "volume deletion asked");
    change(&ledger, move |m, _| m.delete(&name, force)).await?;
    Ok(StatusCode::NO_CONTENT)
}

async fn resize(
    State(ledger): State<Ledger>,
    Extension(waiters): Extension<Waiters>,
    path: Name,
    request: Request,
) -> Answer<VolumeInfo> {
    let name = name(path)?;
    let Resize { size } = body(request, SMALL_BODY).await?;
    listened(&ledger, &waiters).await?;
    change(&ledger, move |m, now| m.resize(now, &name, size, &mut draw)).await.map(Json)
}

async fn rename(State(ledger): State<Ledger>, path: Name, request: Request) -> Answer<VolumeInfo> {
    let old = name(path)?;
    let Rename { name: new, force } = body(request, SMALL_BODY).await?;
    change(&ledger, move |m, now| m.rename(now, &old, &new, force)).await.map(Json)
}

async fn attach(
    State(ledger): State<Ledger>,
    Extension(gate): Extension<Gate>,
    Extension(caller): Extension<Caller>,
    Extension(waiters): Extension<Waiters>,
    path: Name,
    request: Request,
) -> Answer<VolumeMap> {
    let name = name(path)?;
    let attach: Attach = body(request, SMALL_BODY).await?;
    caller.speaks_for(&attach.client, attach.read_only)?;
    let force = attach.force;
    let (volume, asked, who) = (name.clone(), attach.clone(), caller.clone());
    let attached = move |m: &mut Conductor, now| {
        who.permits_attach(m, &volume, &asked)?;
        m.attach(now, &volume, &asked)
    };
    let mut map = change(&ledger, attached).await?;
    let features = if attach.read_only {
        READ_ONLY
    } else if attach.shared {
        SHARED
    } else {
        0
    };
    let (volume, generation) = (map.volume.0, map.attach.0);
    let given = Attached { client: &attach.client, volume, generation, features };
    map.ticket = gate.ticket(&caller, &given);
    tracing::info!(volume = name, generation = %map.attach, force, "volume attached");
    // It is, whatever is not confirmed yet, and whoever asked may have nothing by which to give it back.
    let evict = format!("`trine client evict {}` gives it up again", attach.client);
    let done = format!("{name} is attached as {}, and {evict}", map.attach);
    let taken =
        Unconfirmed { done, whom: if force { "the old client" } else { "whom it was taken from" }, next: AGAIN };
    // Rule 19: a forced one has taken effect when no primary would serve whom the volume belonged to any more.
    let missing = move |m: &Conductor, now| {
        let nodes = if force { m.unconfirmed(now, &name) } else { m.may_serve_others(now, &name) };
        // One that is gone meanwhile is served to nobody.
        nodes.unwrap_or_default().into_iter().collect()
    };
    no_more_missing(&ledger, &waiters, missing, &taken).await?;
    Ok(Json(map))
}

/// What can be done where it is not confirmed, if the same may be asked for once more.
const AGAIN: &str = "try again when it is heard";

/// What is said if nodes may still serve somebody.
struct Unconfirmed<'a> {
    done: String,
    whom: &'a str,
    next: &'a str,
}

/// Waits until no node is missing, and refuses if some still are.
async fn no_more_missing(
    ledger: &Ledger,
    waiters: &Waiters,
    missing: impl Fn(&Conductor, Millis) -> BTreeSet<NodeId> + Clone + Send + 'static,
    Unconfirmed { done, whom, next }: &Unconfirmed<'_>,
) -> Result<(), Failure> {
    let missing = still_missing(ledger, waiters, missing).await?;
    if missing.is_empty() {
        return Ok(());
    }
    let missing = missing.iter().map(NodeId::to_string).collect::<Vec<_>>().join(", ");
    let message = format!(
        "{done}, but {missing} may still serve {whom}: {next}, or, if it is lost for good, remove it (trine node remove)"
    );
    Err(Failure::new(StatusCode::SERVICE_UNAVAILABLE, "unconfirmed", message))
}

/// Waits until no node is. Returns those that still are when that takes too long, or at once if too many wait: what was asked for is done, and
/// that it is not confirmed is no less true then.
pub(crate) async fn still_missing(
    ledger: &Ledger,
    waiters: &Waiters,
    missing: impl Fn(&Conductor, Millis) -> BTreeSet<NodeId> + Clone + Send + 'static,
) -> Result<BTreeSet<NodeId>, Failure> {
    let until = Instant::now() + CONFIRM;
    let mut waits = None;
    loop {
        let missing = missing.clone();
        let missing = look(ledger, move |m: &Conductor, now| Ok(missing(m, now))).await?;
        if missing.is_empty() || Instant::now() >= until {
            return Ok(missing);
        }
        if waits.is_none() {
            let Ok(permit) = waiters.enter() else { return Ok(missing) };
            waits = Some(permit);
        }
        tokio::time::sleep(CONFIRM_EVERY).await;
    }
}

async fn detach(
    State(ledger): State<Ledger>,
    Extension(caller): Extension<Caller>,
    path: Name,
    request: Request,
) -> Result<StatusCode, Failure> {
    let name = name(path)?;
    let detach: Detach = body(request, SMALL_BODY).await?;
    caller.speaks_for(&detach.client, true)?;
    let detached = move |m: &mut Conductor, _| {
        caller.permits(m, &name)?;
        m.detach(&name, &detach)
    };
    change(&ledger, detached).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Which volume a target takes the one of a name for: who has a client's key hears that this one is gone.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct TakenFor {
    volume: Option<VolumeId>,
}

pub(crate) fn taken_for(query: Result<Query<TakenFor>, QueryRejection>) -> Result<Option<VolumeId>, Failure> {
    let Query(TakenFor { volume }) = query.map_err(|error| Failure::bad_request(error.body_text()))?;
    Ok(volume)
}

async fn map(
    State(ledger): State<Ledger>,
    Extension(caller): Extension<Caller>,
    path: Name,
    query: Result<Query<TakenFor>, QueryRejection>,
) -> Answer<VolumeMap> {
    let (name, known) = (name(path)?, taken_for(query)?);
    let asked = move |m: &Conductor, _| {
        caller.permits_known(m, &name, known)?;
        m.map(&name)
    };
    look(&ledger, asked).await.map(Json)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_openapi_document_describes_exactly_the_routes() {
        let document: serde_json::Value = serde_json::from_str(OPENAPI).unwrap();
        let mut described = BTreeSet::new();
        for (path, methods) in document["paths"].as_object().unwrap() {
            for (method, operation) in methods.as_object().unwrap() {
                assert!(operation["summary"].is_string(), "{method} {path}");
                assert!(operation["responses"].is_object(), "{method} {path}");
                described.insert((method.clone(), path.clone()));
            }
        }
        let mut served: BTreeSet<_> = table().iter().map(|(m, p, _)| ((*m).to_owned(), (*p).to_owned())).collect();
        served.insert(("get".to_owned(), crate::front::ROLE.to_owned()));
        assert_eq!(described, served);
        for reference in OPENAPI.split("\"#/components/schemas/").skip(1) {
            let name = reference.split('"').next().unwrap();
            assert!(document["components"]["schemas"][name].is_object(), "{name} is not described");
        }
    }
}
