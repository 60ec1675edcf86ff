//! One call, to whichever of several conductors leads.
//!
//! ```text
//!  the last one that answered ──► an answer, or a refusal: it is the call's
//!            ▲                └─► not the leader: whom it names, else the next one
//!            └── a pause per round ─┴─ nobody there, no TLS, no word in time: the next one, until the call's deadline
//! ```
//! What may be done twice is asked of the next one after three fifths of the time that is left, and the last one has all that is left: a
//! heartbeat, held for half a second, has time for a second conductor, or for another address of the only one. What may not is given once, to
//! one that has just said that it leads; without an answer its fate is unknown.
//! What takes long on a healthy conductor is asked of one that has just said that it leads, too: it is waited for longer. Each such call says
//! how long: one that freezes with it under way is not waited for until the end.

use crate::Error;
use crate::address::is_tls;
use crate::resolver::Names;
use crate::secure::{Unopened, secure, trust_of};
use conductor_model::NOT_LEADER;
use conductor_model::views::{ConductorInfo, ConductorRole, ErrorBody};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tls::Trust;
use ureq::Agent;
use ureq::config::Config;
use ureq::http::{HeaderMap, Method, Request, StatusCode, header};
use ureq::unversioned::transport::DefaultConnector;
use wire::{Key, Over, RequestChallenge, RequestProof};

/// Connecting takes no longer on any network that a cluster would be built on.
const CONNECT: Duration = Duration::from_secs(2);
/// The longest that one of several is waited for, by what may be asked again: a leader's lease and some more, and longer than a
/// conductor holds a question for events (3 s).
const ATTEMPT: Duration = Duration::from_secs(5);
/// Whether one leads, which is known without a look at anything else.
const ROLE: Duration = Duration::from_millis(700);
/// With less time left an attempt that fails says nothing of the conductor.
const LITTLE: Duration = Duration::from_millis(200);
/// After all were asked in vain: a fraction of what finding a leader takes.
const PAUSE: Duration = Duration::from_millis(100);
/// How long one that knows nobody who leads is asked again: it reads its file meanwhile.
const DECIDED: Duration = Duration::from_secs(5);
/// Largest answer read: all assignments of the largest cluster's node.
const MAX_ANSWER: u64 = 256 << 20;
/// What is larger is not sent in vain: it is asked first what a proof is to be made for.
const LARGE: usize = 32 << 10;
/// Longest piece of an answer that is no conductor's, quoted in an error.
const MAX_QUOTE: usize = 120;

/// What is asked.
#[derive(Clone, Debug)]
pub(crate) struct Call<'a> {
    pub(crate) method: Method,
    pub(crate) path: &'a str,
    /// JSON, if anything.
    pub(crate) body: Vec<u8>,
    pub(crate) deadline: Duration,
    pub(crate) given: Given,
}

/// How a call is given, where there are several.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Given {
    /// Once, to one that has just said that it leads.
    Once,
    /// To any: it may be done twice, and none needs long for it.
    Anew,
    /// The like, to one that has just said that it leads. That one is waited for so long at most.
    ToLeader(Duration),
}

/// Conductors of one cluster. Clones share connections, and who answered last.
#[derive(Clone, Debug)]
pub(crate) struct Conductors {
    agent: Agent,
    all: Arc<[String]>,
    current: Arc<AtomicUsize>,
    /// What proves who asks.
    key: Option<Arc<Key>>,
    /// By what they prove who they are.
    trust: Option<Trust>,
    /// What each conductor wants a proof for, as it said last.
    challenges: Arc<Mutex<BTreeMap<String, RequestChallenge>>>,
}

/// How an attempt ended that was no success.
enum Failed {
    /// Nothing was done.
    Undone { why: Error, leader: Option<String> },
    /// Whether it was done is unknown.
    Unknown(Error),
    /// Nothing was done for the want of a proof.
    Unproven(Error),
    /// It was refused, or what answers is no conductor.
    Final(Error),
}

impl Failed {
    fn into_error(self) -> Error {
        match self {
            Self::Undone { why, .. } | Self::Unknown(why) | Self::Unproven(why) | Self::Final(why) => why,
        }
    }

    /// Says so, if this may have been done all the same.
    fn into_error_of(self, call: &Call<'_>) -> Error {
        match self {
            Self::Unknown(why) if call.given == Given::Once => why.of_unknown_fate(),
            other => other.into_error(),
        }
    }
}

impl Conductors {
    pub(crate) fn new(all: Vec<String>) -> Self {
        Self {
            agent: Agent::with_parts(config(), DefaultConnector::default(), Names),
            all: all.into(),
            current: Arc::default(),
            key: None,
            trust: None,
            challenges: Arc::default(),
        }
    }

    /// The same, with a proof of who asks, where one is wanted; and one of theirs where TLS is spoken.
    pub(crate) fn with_key(mut self, key: Key) -> Result<Self, Error> {
        if self.all.iter().all(|base| is_tls(base)) {
            let trust = trust_of(&key)?;
            self.agent = secure(config(), trust)?;
            self.trust = Some(trust);
        }
        Ok(Self { key: Some(Arc::new(key)), ..self })
    }

    pub(crate) fn trust(&self) -> Option<Trust> {
        self.trust
    }

    pub(crate) fn all(&self) -> &[String] {
        &self.all
    }

    /// Whether one of them leads, as it sees it.
    pub(crate) fn role(&self, base: &str) -> Result<ConductorInfo, Error> {
        let ask = Call { method: Method::GET, path: "/v1/role", body: Vec::new(), deadline: ROLE, given: Given::Anew };
        let bytes = self.attempt(base, &ask, ROLE).map_err(Failed::into_error)?;
        serde_json::from_slice(&bytes)
            .map_err(|error| Error::Protocol { address: base.to_owned(), what: error.to_string() })
    }

    /// The body of a success.
    pub(crate) fn call(&self, call: &Call<'_>) -> Result<Vec<u8>, Error> {
        if let [only] = &*self.all {
            return self.attempt_of_one(only, call);
        }
        let until = Instant::now() + call.deadline;
        let first = self.current.load(Ordering::Relaxed);
        let mut failed = BTreeSet::new();
        let (mut round, mut said) = (0, None);
        loop {
            round += 1;
            let at = self.current.load(Ordering::Relaxed) % self.all.len();
            let base = &self.all[at];
            let left = until.saturating_duration_since(Instant::now());
            let last = failed.len() + 1 >= self.all.len();
            let (why, leader) = match self.attempt_of_several(base, call, left, last) {
                Ok(body) => return Ok(body),
                Err(Failed::Undone { why, leader }) => (why, leader),
                Err(Failed::Unknown(why)) if call.given != Given::Once => (why, None),
                Err(unknown @ Failed::Unknown(_)) => {
                    self.current.store(at + 1, Ordering::Relaxed);
                    return Err(unknown.into_error_of(call));
                }
                Err(Failed::Unproven(why) | Failed::Final(why)) => return Err(why),
            };
            failed.insert(at);
            // A leader that was asked in vain may be named for some time yet.
            let named =
                leader.and_then(|leader| self.all.iter().position(|base| base.ends_with(&format!("/{leader}"))));
            let next = named.filter(|named| !failed.contains(named)).unwrap_or(at + 1);
            self.current.store(next, Ordering::Relaxed);
            let pause = if round % self.all.len() == 0 { PAUSE } else { Duration::ZERO };
            // The last one may have had no time to answer: what was heard before says more.
            if left >= LITTLE || said.is_none() {
                said = Some(why.to_string());
            }
            if until.saturating_duration_since(Instant::now()) <= pause {
                // Who came last had little time: the next call goes on behind the one that had most.
                self.current.store(first + 1, Ordering::Relaxed);
                let why = said.unwrap_or_default();
                return Err(Error::Unreachable { address: self.all.join(","), why });
            }
            if !pause.is_zero() {
                std::thread::sleep(pause);
                failed.clear();
            }
        }
    }

    /// One that has just started answers a little before it leads, and has done nothing then.
    fn attempt_of_one(&self, base: &str, call: &Call<'_>) -> Result<Vec<u8>, Error> {
        let until = Instant::now() + call.deadline.min(DECIDED);
        loop {
            match self.attempt(base, call, call.deadline) {
                Err(Failed::Undone { why: Error::Refused { .. }, leader: None }) if Instant::now() + PAUSE < until => {
                    std::thread::sleep(PAUSE);
                }
                other => return other.map_err(|failed| failed.into_error_of(call)),
            }
        }
    }

    /// `last`: the others were asked in vain.
    fn attempt_of_several(&self, base: &str, call: &Call<'_>, left: Duration, last: bool) -> Result<Vec<u8>, Failed> {
        let some = if last { left } else { left * 3 / 5 };
        let limit = match call.given {
            Given::Anew => return self.attempt(base, call, some.min(ATTEMPT)),
            Given::ToLeader(most) => some.min(most),
            Given::Once => left,
        };
        match self.role(base) {
            Ok(ConductorInfo { role: ConductorRole::Leader, .. }) => self.attempt(base, call, limit),
            Ok(ConductorInfo { leader, trouble, .. }) => {
                let why = trouble.unwrap_or_else(|| "it does not lead".to_owned());
                Err(Failed::Undone { why: Error::Unreachable { address: base.to_owned(), why }, leader })
            }
            Err(why) => Err(Failed::Undone { why, leader: None }),
        }
    }

    /// With a proof, if that is wanted: nothing was done by what was refused for the want of one, so it is said once more.
    fn attempt(&self, base: &str, call: &Call<'_>, limit: Duration) -> Result<Vec<u8>, Failed> {
        let until = Instant::now() + limit;
        let in_vain = self.challenge(base).is_none() && !call.body.is_empty();
        if self.key.is_some() && (in_vain || call.body.len() > LARGE) {
            // The answer does not matter, but for what it is to be proven for.
            let ask =
                Call { method: Method::GET, path: "/v1/role", body: Vec::new(), deadline: ROLE, given: Given::Anew };
            let _role = self.attempt_once(base, &ask, limit.min(ROLE));
        }
        match self.attempt_once(base, call, limit) {
            Err(Failed::Unproven(_)) if self.proves(base) => {
                let left = until.saturating_duration_since(Instant::now()).max(LITTLE);
                self.attempt_once(base, call, left)
            }
            result => result,
        }
    }

    fn proves(&self, base: &str) -> bool {
        self.key.is_some() && self.challenge(base).is_some()
    }

    fn challenge(&self, base: &str) -> Option<RequestChallenge> {
        self.challenges.lock().unwrap_or_else(PoisonError::into_inner).get(base).copied()
    }

    fn learn(&self, base: &str, headers: &HeaderMap) {
        let said = headers.get(header::WWW_AUTHENTICATE).and_then(|value| value.to_str().ok());
        if let Some(challenge) = said.and_then(RequestChallenge::from_header) {
            self.challenges.lock().unwrap_or_else(PoisonError::into_inner).insert(base.to_owned(), challenge);
        }
    }

    /// The value of `authorization`, if one is wanted and can be given.
    fn proof(&self, base: &str, call: &Call<'_>) -> Option<String> {
        let (key, challenge) = (self.key.as_ref()?, self.challenge(base)?);
        let nonce = getrandom::u64().ok()?;
        let over = if is_tls(base) { Over::Tls } else { Over::Clear };
        Some(RequestProof::new(key, over, (challenge, nonce), call.method.as_str(), call.path, &call.body).to_header())
    }

    fn attempt_once(&self, base: &str, call: &Call<'_>, limit: Duration) -> Result<Vec<u8>, Failed> {
        let lost = |error: ureq::Error| {
            let undone = is_unsent(&error);
            match Error::of_call(base, error) {
                why if undone => Failed::Undone { why, leader: None },
                why @ Error::Unreachable { .. } => Failed::Unknown(why),
                why => Failed::Final(why),
            }
        };
        let request = Request::builder().method(call.method.clone()).uri(format!("{base}{}", call.path));
        let request = match self.proof(base, call) {
            Some(proof) => request.header(header::AUTHORIZATION, proof),
            None => request,
        };
        let response = if call.body.is_empty() {
            let request = request.body(()).map_err(|why| lost(why.into()))?;
            self.agent.run(self.agent.configure_request(request).timeout_global(Some(limit)).build())
        } else {
            let request = request.header("content-type", "application/json").body(&call.body);
            let request = request.map_err(|why| lost(why.into()))?;
            self.agent.run(self.agent.configure_request(request).timeout_global(Some(limit)).build())
        };
        let response = response.map_err(lost)?;
        let status = response.status();
        self.learn(base, response.headers());
        let bytes = response.into_body().with_config().limit(MAX_ANSWER).read_to_vec().map_err(lost)?;
        if status.is_success() {
            return Ok(bytes);
        }
        match serde_json::from_slice::<ErrorBody>(&bytes) {
            Ok(ErrorBody { error: kind, message, leader }) => {
                let is = |word| kind == word;
                let (follows, stopped) = (is(NOT_LEADER), is("stopped"));
                let why = Error::Refused { kind, message: printable(&message), status: status.as_u16() };
                Err(match (follows, stopped) {
                    (true, _) => Failed::Undone { why, leader },
                    (_, true) => Failed::Unknown(why),
                    _ if status == StatusCode::UNAUTHORIZED => Failed::Unproven(why),
                    _ => Failed::Final(why),
                })
            }
            Err(_) => {
                let quote: String = String::from_utf8_lossy(&bytes).chars().take(MAX_QUOTE).collect();
                Err(Failed::Final(Error::Protocol { address: base.to_owned(), what: format!("{status}: {quote:?}") }))
            }
        }
    }
}

/// Whoever answers: what it says is a sentence, and nothing that a terminal acts upon.
fn printable(message: &str) -> String {
    let escaped = |c: char| if c.is_control() { c.escape_default().collect() } else { String::from(c) };
    message.chars().map(escaped).collect()
}

fn config() -> Config {
    let config = Agent::config_builder().http_status_as_error(false).timeout_connect(Some(CONNECT)).max_redirects(0);
    config.proxy(None).build()
}

/// True if no byte of the request can have arrived.
fn is_unsent(error: &ureq::Error) -> bool {
    use std::io::ErrorKind::{AddrNotAvailable, ConnectionRefused, HostUnreachable, NetworkUnreachable};
    match error {
        ureq::Error::ConnectionFailed | ureq::Error::HostNotFound => true,
        ureq::Error::Other(error) => error.is::<Unopened>(),
        ureq::Error::Timeout(at) => matches!(at, ureq::Timeout::Connect | ureq::Timeout::Resolve),
        ureq::Error::Io(error) => {
            matches!(error.kind(), AddrNotAvailable | ConnectionRefused | HostUnreachable | NetworkUnreachable)
        }
        _ => false,
    }
}
