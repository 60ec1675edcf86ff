//! Routes of what is set for the whole cluster. Handlers carry no decision, as in `routes`.

use crate::answer::body;
use crate::ledger::Ledger;
use crate::limits::SMALL_BODY;
use crate::routes::{Answer, change, look};
use axum::Json;
use axum::extract::{Request, State};
use conductor_model::views::Settings;

pub(crate) async fn settings(State(ledger): State<Ledger>) -> Answer<Settings> {
    look(&ledger, |m, _| Ok(m.settings())).await.map(Json)
}

pub(crate) async fn change_settings(State(ledger): State<Ledger>, request: Request) -> Answer<Settings> {
    let settings: Settings = body(request, SMALL_BODY).await?;
    tracing::info!(?settings, "settings asked");
    change(&ledger, move |m, now| m.change_settings(now, settings)).await.map(Json)
}
