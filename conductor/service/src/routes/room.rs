//! Room for requests under way.
//!
//! ```text
//!  what nodes say           512 places    a node that cannot say that it lives is taken for dead, whoever else is many
//!  with the cluster's key   256, of which 128 may wait for long
//!  with a client's          128, of which  64 may wait for long; one key has 16 at most, of which 8 may wait
//! ```
//! None takes a place of another's: a client that asks without end is in the way of those with its own key, and of nobody else.

use crate::answer::{Failure, late};
use crate::gate::Caller;
use crate::limits::{
    CLIENT_REQUESTS, CLIENT_WAITERS, KEY_REQUESTS, KEY_WAITERS, NODE_REQUESTS, OTHER_REQUESTS, REQUEST, WAITERS,
};
use crate::routes::OF_NODES;
use axum::extract::Request;
use axum::http::StatusCode;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::timeout;

/// Who has how many places.
pub(super) struct Room {
    nodes: Semaphore,
    others: Semaphore,
    /// Of clients, by the key's name: none without one.
    clients: Mutex<BTreeMap<String, OfKey>>,
    waiters: Arc<Semaphore>,
    waiting_clients: Arc<Semaphore>,
}

/// What a key has.
struct OfKey {
    places: usize,
    waiters: Arc<Semaphore>,
}

/// A place, until it is dropped.
enum Place<'a> {
    Shared { _permit: SemaphorePermit<'a> },
    OfKey { room: &'a Room, name: String },
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let Self::OfKey { room, name } = self else { return };
        let mut clients = room.clients();
        match clients.get_mut(name) {
            Some(own) if own.places > 1 => own.places -= 1,
            _ => drop(clients.remove(name)),
        }
    }
}

impl Room {
    pub(super) fn new() -> Self {
        let waiters = |places| Arc::new(Semaphore::new(places));
        Self {
            nodes: Semaphore::new(NODE_REQUESTS),
            others: Semaphore::new(OTHER_REQUESTS),
            clients: Mutex::default(),
            waiters: waiters(WAITERS),
            waiting_clients: waiters(CLIENT_WAITERS),
        }
    }

    fn clients(&self) -> MutexGuard<'_, BTreeMap<String, OfKey>> {
        self.clients.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place for a request, and who it may wait among; none if all are taken.
    fn enter(&self, path: &str, caller: Option<&Caller>) -> Option<(Place<'_>, Waiters)> {
        let Some(Caller::Client(card)) = caller else {
            let at_once = if OF_NODES.contains(&path) { &self.nodes } else { &self.others };
            let place = Place::Shared { _permit: at_once.try_acquire().ok()? };
            return Some((place, Waiters { all: self.waiters.clone(), of_key: None }));
        };
        let mut clients = self.clients();
        if clients.values().map(|own| own.places).sum::<usize>() >= CLIENT_REQUESTS {
            return None;
        }
        let new = || OfKey { places: 0, waiters: Arc::new(Semaphore::new(KEY_WAITERS)) };
        let own = clients.entry(card.name.clone()).or_insert_with(new);
        if own.places >= KEY_REQUESTS {
            return None;
        }
        own.places += 1;
        let waiters = Waiters { all: self.waiting_clients.clone(), of_key: Some(own.waiters.clone()) };
        Some((Place::OfKey { room: self, name: card.name.clone() }, waiters))
    }
}

/// Neither too many requests at once, nor one for ever.
pub(super) async fn limit(room: Arc<Room>, mut request: Request, next: Next) -> Response {
    let Some((_place, waiters)) = room.enter(request.uri().path(), request.extensions().get()) else {
        return busy().into_response();
    };
    request.extensions_mut().insert(waiters);
    match timeout(REQUEST, next.run(request)).await {
        Ok(response) => response,
        Err(_) => late().into_response(),
    }
}

fn busy() -> Failure {
    Failure::new(StatusCode::SERVICE_UNAVAILABLE, "busy", "too many requests at once")
}

/// Room for requests that wait for long, each in its place: there is always some for those that do not, with the same key, too.
#[derive(Clone)]
pub(crate) struct Waiters {
    all: Arc<Semaphore>,
    of_key: Option<Arc<Semaphore>>,
}

/// Room for one that waits, until it is dropped.
pub(crate) struct Waiting<'a> {
    _all: SemaphorePermit<'a>,
    _of_key: Option<SemaphorePermit<'a>>,
}

impl Waiters {
    /// For as long as one waits.
    pub(crate) fn enter(&self) -> Result<Waiting<'_>, Failure> {
        let of_key = self.of_key.as_ref().map(|of_key| of_key.try_acquire().map_err(|_| busy())).transpose()?;
        Ok(Waiting { _all: self.all.try_acquire().map_err(|_| busy())?, _of_key: of_key })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::Card;

    #[test]
    fn a_key_has_some_places_and_leaves_those_of_all_others() {
        let key = |n: usize| {
            let card =
                Card { name: format!("key{n}"), serial: 1, read_only: false, volumes: [1].into_iter().collect() };
            Caller::Client(Arc::new(card))
        };
        let room = Room::new();
        let enter = |key: &Caller| room.enter("/v1/volumes/db/map", Some(key));
        let places: Vec<_> = std::iter::from_fn(|| enter(&key(0))).collect();
        assert_eq!(places.len(), KEY_REQUESTS);
        let others: Vec<_> = (1..1000).filter_map(|n| enter(&key(n))).collect();
        assert_eq!(others.len(), CLIENT_REQUESTS - KEY_REQUESTS);
        let whole: Vec<_> = std::iter::from_fn(|| room.enter("/v1/volumes", Some(&Caller::Administrator))).collect();
        assert_eq!(whole.len(), OTHER_REQUESTS);
        assert!(room.enter(OF_NODES[0], Some(&Caller::Administrator)).is_some());
        drop((places, others));
        assert!(enter(&key(0)).is_some() && room.clients().is_empty(), "nothing is left of who has gone");
    }
}
