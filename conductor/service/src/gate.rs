//! Who asks: with the cluster's key for everything, with a client's for what a client needs.
//!
//! ```text
//!  request ── proof under the cluster's key ───────────────────────────► everything
//!          ├─ proof under a client's: what a client needs ─────────────► the handler asks the model whether the volume is one of the key's
//!          │                          anything else ───────────────────► 403
//!          └─ no proof, a wrong one, one that was seen before ─────────► 401, with a challenge to prove for
//! ```
//! A challenge is drawn by this conductor and serves for a while, each time with another number, which is remembered for as long.

use crate::Error;
use crate::answer::{Failure, late};
use crate::connections::{Asker, Known};
use crate::limits::{CHALLENGE, PROOFS, REFUSED, REQUEST, SMALL_BODY};
use crate::routes::largest_body;
use axum::body::Body;
use axum::extract::{MatchedPath, Request};
use axum::http::{HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use conductor_model::views::Attach;
use conductor_model::{Conductor, VolumeId, limits};
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;
use tokio::time::timeout;
use wire::{
    Attached, Card, ClusterKey, MAX_KEY_NAME, MAX_KEY_VOLUMES, Over, RequestChallenge, RequestProof, Ticket, key_of,
};

const _: () = assert!(limits::MAX_KEY_NAME == MAX_KEY_NAME && limits::MAX_KEY_VOLUMES == MAX_KEY_VOLUMES);

/// Who asks, as far as is proven. Goes with the request.
#[derive(Clone, Debug)]
pub(crate) enum Caller {
    /// Whoever has the cluster's key.
    Administrator,
    /// A client with a key of its own.
    Client(Arc<Card>),
}

impl Caller {
    /// Whether it may use this volume.
    pub(crate) fn permits(&self, model: &Conductor, volume: &str) -> Result<(), conductor_model::Error> {
        match self {
            Self::Administrator => Ok(()),
            Self::Client(card) => model.permit(&card.name, card.serial, volume),
        }
    }

    /// The same, where it says which volume it takes this for.
    pub(crate) fn permits_known(
        &self,
        model: &Conductor,
        volume: &str,
        known: Option<VolumeId>,
    ) -> Result<(), conductor_model::Error> {
        match self {
            Self::Administrator => Ok(()),
            Self::Client(card) => model.permit_known(&card.name, card.serial, volume, known),
        }
    }

    /// Whether it may attach this volume so.
    pub(crate) fn permits_attach(
        &self,
        model: &Conductor,
        volume: &str,
        attach: &Attach,
    ) -> Result<(), conductor_model::Error> {
        match self {
            Self::Administrator => Ok(()),
            Self::Client(card) => model.permit_attach(&card.name, card.serial, volume, attach),
        }
    }

    /// Whether it may be this client, and write or not.
    pub(crate) fn speaks_for(&self, client: &str, reads_only: bool) -> Result<(), Failure> {
        match (self, key_of(client)) {
            (Self::Administrator, Some(key)) => {
                Err(Failure::bad_request(format!("the name {client} is for clients with the key {key}")))
            }
            (Self::Administrator, None) => Ok(()),
            (Self::Client(card), key) if key != Some(&card.name) => {
                Err(forbidden(format!("clients with the key {0} are named {0}@…, not {client}", card.name)))
            }
            (Self::Client(card), _) if card.read_only && !reads_only => {
                Err(forbidden(format!("the key {} is for reading alone: attach with --read-only", card.name)))
            }
            (Self::Client(_), _) => Ok(()),
        }
    }
}

fn forbidden(message: String) -> Failure {
    Failure::new(StatusCode::FORBIDDEN, "forbidden", message)
}

fn unknown(message: &str) -> Failure {
    Failure::new(StatusCode::UNAUTHORIZED, "unauthenticated", message)
}

/// What a client needs, besides `/v1/role`. Handlers of what names a volume ask whether it is one of the key's.
const FOR_CLIENTS: [(Method, &str); 5] = [
    (Method::GET, "/v1/version"),
    (Method::GET, "/v1/volumes/{name}/map"),
    (Method::GET, "/v1/volumes/{name}/snapshots/{snapshot}/map"),
    (Method::POST, "/v1/volumes/{name}/attach"),
    (Method::POST, "/v1/volumes/{name}/detach"),
];

/// What proofs are made for, and which were.
struct Window {
    challenge: RequestChallenge,
    since: Instant,
    used: BTreeSet<u64>,
}

/// The one that is handed out last, and the one before.
struct Windows {
    current: Window,
    former: Option<Window>,
}

/// Lets requests in.
#[derive(Clone)]
pub(crate) struct Gate(Arc<Lock>);

struct Lock {
    key: ClusterKey,
    over: Over,
    windows: Mutex<Windows>,
}

fn draw() -> Result<Window, Error> {
    let mut challenge = RequestChallenge([0; 16]);
    getrandom::fill(&mut challenge.0).map_err(Error::Random)?;
    Ok(Window { challenge, since: Instant::now(), used: BTreeSet::new() })
}

impl Gate {
    /// For a cluster with this key, whose requests come over this.
    pub(crate) fn new(key: ClusterKey, over: Over) -> Result<Self, Error> {
        let windows = Mutex::new(Windows { current: draw()?, former: None });
        Ok(Self(Arc::new(Lock { key, over, windows })))
    }

    /// What proves an attachment to nodes; none for whoever has the cluster's key, and can make it.
    pub(crate) fn ticket(&self, caller: &Caller, what: &Attached<'_>) -> Option<String> {
        match caller {
            Caller::Administrator => None,
            Caller::Client(_) => Some(Ticket::issue(&self.0.key, what).to_hex()),
        }
    }

    /// What is to be proven for now, for a header.
    pub(crate) fn challenge(&self) -> Option<HeaderValue> {
        HeaderValue::from_str(&self.0.current().to_header()).ok()
    }

    /// Hands a request on, with its [`Caller`], or refuses it.
    pub(crate) async fn pass(self, request: Request, next: Next) -> Response {
        match self.0.admit(request).await {
            Ok((request, renew)) => {
                let mut response = next.run(request).await;
                if renew {
                    self.challenge().map(|value| response.headers_mut().insert(header::WWW_AUTHENTICATE, value));
                }
                response
            }
            Err(failure) => {
                let mut response = failure.into_response();
                self.challenge().map(|value| response.headers_mut().insert(header::WWW_AUTHENTICATE, value));
                response
            }
        }
    }
}

impl Lock {
    /// The request with who asks; and whether the asker should prove for another challenge from now on.
    async fn admit(&self, request: Request) -> Result<(Request, bool), Failure> {
        let judged = self.judge(&request);
        let (mut parts, body) = request.into_parts();
        let (proof, limit) = match judged {
            Ok(admitted) => {
                let known = if admitted.0.card.is_some() { Known::Client } else { Known::Cluster };
                if let Some(asker) = parts.extensions.get::<Asker>() {
                    asker.has_proven(known);
                }
                admitted
            }
            Err(failure) => {
                // What is refused is read all the same, if it is little: the connection would be closed on whoever asks again with a proof.
                let _rest = timeout(REFUSED, axum::body::to_bytes(body, SMALL_BODY)).await;
                return Err(failure);
            }
        };
        let Ok(read) = timeout(REQUEST, axum::body::to_bytes(body, limit)).await else {
            return Err(late());
        };
        let Ok(bytes) = read else {
            let why = format!("a body that arrives, of at most {limit} bytes, is expected here");
            return Err(Failure::new(StatusCode::PAYLOAD_TOO_LARGE, "too-large", why));
        };
        if !proof.covers(&bytes) {
            return Err(unknown("the body is not the one that was proven"));
        }
        let renew = self.current() != proof.challenge;
        parts.extensions.insert(proof.card.map_or(Caller::Administrator, |card| Caller::Client(Arc::new(card))));
        Ok((Request::from_parts(parts, Body::from(bytes)), renew))
    }

    /// Who asks, and how large a body may be; of that nothing was read yet.
    fn judge(&self, request: &Request) -> Result<(RequestProof, usize), Failure> {
        let said = request.headers().get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
        let Some(said) = said else {
            return Err(unknown("this conductor answers those with a key of this cluster: see --key-file"));
        };
        let Some(proof) = RequestProof::from_header(said) else {
            return Err(unknown("what is said of who asks is malformed"));
        };
        let path = request.uri().path_and_query().map_or("", |path| path.as_str());
        if !proof.is_proven(&self.key, self.over, request.method().as_str(), path) {
            if self.over == Over::Tls && proof.is_proven(&self.key, Over::Clear, request.method().as_str(), path) {
                let why = "who asks does so in clear, and somebody on the way made TLS of it: pass --tls to know whom you ask";
                return Err(unknown(why));
            }
            return Err(unknown("the key is not of this cluster, or was changed: see --key-file"));
        }
        if !self.spend(proof.challenge, proof.nonce) {
            return Err(unknown("the proof of who asks was used before, or is too old: ask again"));
        }
        let Some(card) = &proof.card else { return Ok((proof, largest_body(request.uri().path()))) };
        let path = request.extensions().get::<MatchedPath>().map_or("", MatchedPath::as_str);
        if !FOR_CLIENTS.iter().any(|(method, known)| method == request.method() && *known == path) {
            let why = "administers nothing: it is for attaching its volumes";
            return Err(forbidden(format!("the key {} {why}", card.name)));
        }
        Ok((proof, SMALL_BODY))
    }

    fn windows(&self) -> MutexGuard<'_, Windows> {
        self.windows.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The challenge that is handed out; another one after a while, and when this one was used often.
    fn current(&self) -> RequestChallenge {
        let mut windows = self.windows();
        let Window { since, used, .. } = &windows.current;
        // Without random numbers the old one is used up; then nobody is let in.
        if (since.elapsed() >= CHALLENGE || used.len() >= PROOFS)
            && let Ok(fresh) = draw()
        {
            windows.former = Some(std::mem::replace(&mut windows.current, fresh));
        }
        windows.current.challenge
    }

    /// Whether it is a challenge of ours, and this the first proof with that number.
    fn spend(&self, challenge: RequestChallenge, nonce: u64) -> bool {
        self.current();
        let mut windows = self.windows();
        let Windows { current, former } = &mut *windows;
        let window = std::iter::once(current).chain(former).find(|window| window.challenge == challenge);
        window.is_some_and(|window| {
            let alive = window.since.elapsed() < 2 * CHALLENGE && window.used.len() < 2 * PROOFS;
            alive && window.used.insert(nonce)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn locked() -> Arc<Lock> {
        Gate::new(ClusterKey([7; 32]), Over::Clear).unwrap().0
    }

    #[test]
    fn a_proof_serves_once_and_a_strange_challenge_never() {
        let locked = locked();
        let now = locked.current();
        assert!(locked.spend(now, 1) && locked.spend(now, 2));
        assert!(!locked.spend(now, 1), "it was seen");
        assert!(!locked.spend(RequestChallenge([1; 16]), 3), "of another conductor, or from long ago");
    }

    #[test]
    fn challenges_change_and_what_is_remembered_is_bounded() {
        let locked = locked();
        let mut seen = BTreeSet::new();
        for nonce in 0..=5 * PROOFS as u64 {
            let now = locked.current();
            seen.insert(now.0);
            assert!(locked.spend(now, nonce));
            let windows = locked.windows();
            let remembered = windows.current.used.len() + windows.former.as_ref().map_or(0, |w| w.used.len());
            assert!(remembered <= 3 * PROOFS, "{remembered}");
        }
        assert!(seen.len() >= 5);
        let first = locked.windows().former.as_ref().unwrap().challenge;
        assert!(locked.spend(first, u64::MAX), "the one before serves for a while");
    }

    #[test]
    fn a_client_speaks_in_its_keys_name_alone() {
        let card =
            |read_only| Card { name: "web1".to_owned(), serial: 1, read_only, volumes: [3].into_iter().collect() };
        let [writes, reads] = [false, true].map(|read_only| Caller::Client(Arc::new(card(read_only))));
        assert!(writes.speaks_for("web1@h/db", false).is_ok() && reads.speaks_for("web1@h/db", true).is_ok());
        assert!(reads.speaks_for("web1@h/db", false).is_err(), "it reads only");
        for other in ["web2@h/db", "h/db", "web1", "web1/db"] {
            assert!(writes.speaks_for(other, false).is_err(), "{other}");
        }
        assert!(Caller::Administrator.speaks_for("h/db", false).is_ok());
        assert!(Caller::Administrator.speaks_for("web1@h/db", false).is_err(), "it would be removed with the key");
    }
}
