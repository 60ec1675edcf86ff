//! Routes of copies that are not in sync, and of what people want of their filling. Handlers carry no decision, as in `routes`.

use crate::answer::body;
use crate::ledger::Ledger;
use crate::limits::NODE_BODY;
use crate::routes::{Answer, Name, change, look, name};
use axum::Json;
use axum::extract::{Request, State};
use conductor_model::views::{ResyncChange, ResyncInfo};

pub(crate) async fn list(State(ledger): State<Ledger>) -> Answer<Vec<ResyncInfo>> {
    look(&ledger, |m, now| Ok(m.resyncs(now))).await.map(Json)
}

pub(crate) async fn ask(State(ledger): State<Ledger>, path: Name, request: Request) -> Answer<Vec<ResyncInfo>> {
    let volume = name(path)?;
    let asked: ResyncChange = body(request, NODE_BODY).await?;
    tracing::info!(volume, verb = %asked.verb, copies = asked.copies.len(), "resync asked");
    change(&ledger, move |m, now| m.change_resync(now, &volume, &asked)).await.map(Json)
}
