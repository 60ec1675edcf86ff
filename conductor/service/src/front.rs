//! What every conductor answers, whether it leads or follows.
//!
//! ```text
//!            ┌─ follower: who leads, as far as is known (kind not-leader, status 503)
//! request ───┤
//!            └─ leader:   this reign's routes; their answer, unless the reign ended meanwhile
//! ```
//! `/v1/role` is answered by both. A conductor with a file of its own leads for as long as it runs.

use crate::answer::Failure;
use crate::gate::Gate;
use crate::store::etcd::Validity;
use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Extension, Json, Router};
use conductor_model::views::{ConductorInfo, ConductorRole};
use std::sync::Arc;
use tokio::sync::watch;
use tower_service::Service;

/// The route of every conductor.
pub(crate) const ROLE: &str = "/v1/role";

/// Where this conductor says that it can be reached.
#[derive(Clone, Debug)]
pub(crate) struct Advertised(pub(crate) Arc<str>);

/// Decides who answers.
#[derive(Clone)]
pub(crate) struct Front {
    advertised: Advertised,
    gate: Gate,
    role: Arc<watch::Sender<Role>>,
}

#[derive(Clone)]
enum Role {
    Leader { routes: Router, validity: Option<Validity> },
    Follower { leader: Option<String>, trouble: Option<String> },
}

impl Front {
    pub(crate) fn new(advertised: &str, gate: Gate) -> Self {
        let (role, _) = watch::channel(Role::Follower { leader: None, trouble: None });
        Self { advertised: Advertised(advertised.into()), gate, role: Arc::new(role) }
    }

    /// Who is let in to the leader's routes.
    pub(crate) fn gate(&self) -> &Gate {
        &self.gate
    }

    pub(crate) fn address(&self) -> &str {
        &self.advertised.0
    }

    /// From now on these routes answer, while the lease holds if there is one.
    pub(crate) fn lead(&self, routes: Router, validity: Option<Validity>) {
        let routes = routes.layer(Extension(self.advertised.clone()));
        self.role.send_replace(Role::Leader { routes, validity });
    }

    /// From now on everything is refused.
    pub(crate) fn follow(&self, leader: Option<String>, trouble: Option<String>) {
        // Our own address can only be of a reign that has ended.
        let leader = leader.filter(|leader| leader != self.address());
        self.role.send_replace(Role::Follower { leader, trouble });
    }

    pub(crate) fn router(self) -> Router {
        Router::new().route(ROLE, get(role)).fallback(answer).with_state(self)
    }

    fn present(&self) -> Role {
        let role = self.role.borrow().clone();
        match role {
            Role::Leader { validity: Some(validity), .. } if !validity.holds() => {
                Role::Follower { leader: None, trouble: None }
            }
            other => other,
        }
    }
}

/// Also says what a proof is to be made for: whoever has much to say asks here first.
async fn role(State(front): State<Front>) -> Response {
    let (role, leader, trouble) = match front.present() {
        Role::Leader { .. } => (ConductorRole::Leader, Some(front.address().to_owned()), None),
        Role::Follower { leader, trouble } => (ConductorRole::Follower, leader, trouble),
    };
    let info = ConductorInfo { version: env!("CARGO_PKG_VERSION").to_owned(), role, leader, trouble };
    let mut response = Json(info).into_response();
    front.gate.challenge().map(|value| response.headers_mut().insert(header::WWW_AUTHENTICATE, value));
    response
}

async fn answer(State(front): State<Front>, request: Request) -> Response {
    let (mut routes, validity) = match front.present() {
        Role::Leader { routes, validity } => (routes, validity),
        Role::Follower { leader, trouble } => return refusal(&front, leader, trouble).into_response(),
    };
    // A router is always ready and never fails.
    let Ok(response) = routes.call(request).await;
    if validity.is_some_and(|validity| !validity.holds()) {
        let lost = "this conductor ceased to lead meanwhile: whether the command took effect is unknown";
        return Failure::new(StatusCode::SERVICE_UNAVAILABLE, "stopped", lost).into_response();
    }
    response
}

fn refusal(front: &Front, leader: Option<String>, trouble: Option<String>) -> Failure {
    let this = front.address();
    let message = match (&leader, trouble) {
        (Some(leader), _) => format!("the conductor {this} does not lead: {leader} does"),
        (None, Some(trouble)) => format!("the conductor {this} does not lead, and knows nobody who does: {trouble}"),
        (None, None) => format!("the conductor {this} does not lead; who does is being decided: ask again"),
    };
    Failure::new(StatusCode::SERVICE_UNAVAILABLE, conductor_model::NOT_LEADER, message).with_leader(leader)
}
