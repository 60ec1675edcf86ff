//! Bodies in and out: JSON, with an error kind and one sentence for everything that is not a success.

use crate::ledger::Stopped;
use axum::Json;
use axum::extract::Request;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use conductor_model::views::ErrorBody;
use conductor_model::{Class, Error};
use serde::de::DeserializeOwned;

/// What a handler answers instead of a success.
#[derive(Debug)]
pub(crate) struct Failure {
    status: StatusCode,
    body: ErrorBody,
}

impl Failure {
    pub(crate) fn new(status: StatusCode, kind: &str, message: impl Into<String>) -> Self {
        Self { status, body: ErrorBody { error: kind.to_owned(), message: message.into(), leader: None } }
    }

    /// Says who would answer.
    pub(crate) fn with_leader(mut self, leader: Option<String>) -> Self {
        self.body.leader = leader;
        self
    }

    pub(crate) fn bad_request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "bad-request", message)
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        (self.status, Json(self.body)).into_response()
    }
}

impl From<Error> for Failure {
    fn from(refused: Error) -> Self {
        let status = match refused.class() {
            Class::Invalid => StatusCode::BAD_REQUEST,
            Class::NotFound => StatusCode::NOT_FOUND,
            Class::Conflict => StatusCode::CONFLICT,
            Class::Forbidden => StatusCode::FORBIDDEN,
        };
        Self::new(status, refused.kind(), refused.to_string())
    }
}

impl From<Stopped> for Failure {
    fn from(Stopped: Stopped) -> Self {
        Self::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "stopped",
            "the conductor is stopping, or ceased to lead: whether the command took effect is unknown",
        )
    }
}

/// What a request is answered that is given up.
pub(crate) fn late() -> Failure {
    Failure::new(StatusCode::REQUEST_TIMEOUT, "timeout", "the request took too long")
}

/// Reads a request's body, at most `limit` bytes, whatever its content type says.
pub(crate) async fn body<T: DeserializeOwned>(request: Request, limit: usize) -> Result<T, Failure> {
    let bytes = axum::body::to_bytes(request.into_body(), limit).await.map_err(|error| {
        if error.to_string().contains("length limit") {
            Failure::new(StatusCode::PAYLOAD_TOO_LARGE, "too-large", format!("a body has at most {limit} bytes here"))
        } else {
            Failure::bad_request(format!("the body did not arrive: {error}"))
        }
    })?;
    serde_json::from_slice(&bytes)
        .map_err(|error| Failure::bad_request(format!("the body is not as expected: {error}")))
}
