//! Routes of scrubs. Handlers carry no decision, as in `routes`.

use crate::answer::body;
use crate::ledger::Ledger;
use crate::limits::SMALL_BODY;
use crate::routes::{Answer, Name, change, look, name};
use axum::Json;
use axum::extract::{Request, State};
use conductor_model::views::{Scrub, ScrubInfo};

pub(crate) async fn show(State(ledger): State<Ledger>, path: Name) -> Answer<ScrubInfo> {
    let name = name(path)?;
    look(&ledger, move |m, _| m.scrub(&name)).await.map(Json)
}

pub(crate) async fn ask(State(ledger): State<Ledger>, path: Name, request: Request) -> Answer<ScrubInfo> {
    let name = name(path)?;
    let scrub: Scrub = body(request, SMALL_BODY).await?;
    change(&ledger, move |m, now| m.change_scrub(now, &name, &scrub)).await.map(Json)
}
