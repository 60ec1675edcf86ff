//! Routes of backups and of a conductor in doubt.

use crate::answer::{Failure, body};
use crate::backup;
use crate::ledger::Ledger;
use crate::limits::SMALL_BODY;
use crate::routes::{Answer, change, look};
use axum::Json;
use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use conductor_model::Error;
use conductor_model::views::{Adopt, RecoveryInfo};
use std::thread::Builder;
use tokio::sync::oneshot;

/// All records, as they are between two transactions.
pub(crate) async fn backup(State(ledger): State<Ledger>) -> Result<impl IntoResponse, Failure> {
    let all = look(&ledger, |m, now| Ok((m.cluster(), m.commit(), now, m.snapshot()))).await?;
    let (tell, written) = oneshot::channel();
    // Not of the runtime's pool, which panics where the system has no thread to give.
    let thread = Builder::new().name("backup".to_owned()).spawn(move || {
        // Whoever asked may have gone.
        let _ = tell.send(backup::text(all.0, all.1, all.2, &all.3));
    });
    thread.map_err(|error| {
        let why = format!("no thread to write the records down ({error}): ask again when the host has threads to give");
        Failure::new(StatusCode::SERVICE_UNAVAILABLE, "busy", why)
    })?;
    let text = written.await.ok().and_then(Result::ok);
    let failed =
        || Failure::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", "the records could not be written down");
    Ok(([(header::CONTENT_TYPE, "application/jsonl")], text.ok_or_else(failed)?))
}

pub(crate) async fn doubt(State(ledger): State<Ledger>) -> Answer<RecoveryInfo> {
    look(&ledger, |m, _| m.recovery().ok_or(Error::NotInDoubt)).await.map(Json)
}

pub(crate) async fn adopt(State(ledger): State<Ledger>, request: Request) -> Answer<RecoveryInfo> {
    let ask: Adopt = body(request, SMALL_BODY).await?;
    tracing::info!(without = ?ask.without, forced = ask.force.is_some(), dry_run = ask.dry_run, "adoption asked");
    change(&ledger, move |m, now| m.adopt(now, &ask)).await.map(Json)
}
