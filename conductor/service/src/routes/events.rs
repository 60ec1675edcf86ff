//! The route of the event log. The only waiting done here is for events that have not happened yet.

use crate::answer::Failure;
use crate::ledger::Ledger;
use crate::limits::EVENTS;
use crate::routes::{Answer, Waiters, look};
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::{Extension, Json};
use conductor_model::events::Event;
use serde::Deserialize;
use tokio::time::{Instant, timeout_at};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct After {
    #[serde(default)]
    after: u64,
    #[serde(default)]
    wait: bool,
}

/// Events after a number; with `wait`, held for some time until there is one.
pub(crate) async fn since(
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
