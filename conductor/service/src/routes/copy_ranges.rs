//! Routes of copy-ranges. Handlers carry no decision, as in `routes`.

use crate::answer::{Failure, body};
use crate::ledger::Ledger;
use crate::limits::SMALL_BODY;
use crate::routes::{Answer, Name, Names, change, look, name};
use axum::Json;
use axum::extract::{Path, Request, State};
use axum::http::StatusCode;
use conductor_model::views::{CopyRange, CopyRangeInfo};
use conductor_model::{OrderId, check_volume_name};

pub(crate) async fn list(State(ledger): State<Ledger>, path: Name) -> Answer<Vec<CopyRangeInfo>> {
    let name = name(path)?;
    look(&ledger, move |m, _| m.copy_ranges(&name)).await.map(Json)
}

pub(crate) async fn begin(
    State(ledger): State<Ledger>,
    path: Name,
    request: Request,
) -> Result<(StatusCode, Json<CopyRangeInfo>), Failure> {
    let name = name(path)?;
    let range: CopyRange = body(request, SMALL_BODY).await?;
    let info = change(&ledger, move |m, now| m.copy_range(now, &name, &range)).await?;
    Ok((StatusCode::CREATED, Json(info)))
}

pub(crate) async fn cancel(State(ledger): State<Ledger>, path: Names) -> Result<StatusCode, Failure> {
    let Path((volume, id)) = path.map_err(|error| Failure::bad_request(error.body_text()))?;
    check_volume_name(&volume)?;
    let number = id.strip_prefix('q').unwrap_or(&id).parse();
    let id = OrderId(number.map_err(|_| Failure::bad_request("a copy's id is a number, like 3 or q3"))?);
    change(&ledger, move |m, now| m.cancel_copy_range(now, &volume, id)).await?;
    Ok(StatusCode::NO_CONTENT)
}
