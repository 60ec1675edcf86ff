//! Connections, bounded in number and in how long one may do nothing.
//!
//! A node's held heartbeat moves bytes twice a second and no request runs longer than `limits::REQUEST`: what is silent for
//! `limits::IDLE`, half a request or an unread answer among it, is given up and leaves its place to others. When all places are taken, one
//! is made: whoever has proven no key goes first, then whoever has proven a client's, and of equals who was never answered or is silent for longest. Nodes and those who
//! administer stay; those who connect and say nothing, or a byte now and then, or ask for what is told to all, lock nobody out. A handshake
//! of TLS is no answer.

use crate::limits::{CONNECTIONS, IDLE};
use crate::secure::Stream;
use axum::Router;
use axum::serve::Listener;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::TokioIo;
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tls::Identity;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpListener;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, Sleep, sleep};

/// Between two words about connections that made room.
const SAY_EVERY: Duration = Duration::from_secs(10);

/// Answers all who connect, until told to stop and no request is under way any more. HTTP/1.1 alone: one request at a time for each place. HTTP/2,
/// which the client of etcd brings along and `axum::serve` would take for that, lets each connection have hundreds.
pub(crate) async fn serve(mut bounded: Bounded, routes: Router, stop: impl Future<Output = ()>) {
    let under_way = GracefulShutdown::new();
    let mut stop = std::pin::pin!(stop);
    loop {
        let connection = tokio::select! {
            (connection, _) = bounded.accept() => connection,
            () = &mut stop => break,
        };
        let (routes, standing) = (TowerToHyperService::new(routes.clone()), connection.asker());
        let service = service_fn(move |mut request| {
            request.extensions_mut().insert(standing.clone());
            routes.call(request)
        });
        let served = http1::Builder::new().serve_connection(TokioIo::new(connection), service);
        // How one ends concerns nobody else: its client sees it.
        tokio::spawn(under_way.watch(served));
    }
    drop(bounded);
    under_way.shutdown().await;
}

/// What is told to everybody, by others than a conductor, under the same limits.
pub async fn serve_to_all(listener: TcpListener, routes: Router, stop: impl Future<Output = ()>) {
    serve(Bounded::new(listener, None), routes, stop).await;
}

/// A listener that accepts no more connections than there are places.
#[derive(Debug)]
pub(crate) struct Bounded {
    listener: TcpListener,
    /// What is shown where TLS is spoken.
    identity: Option<Identity>,
    places: Arc<Semaphore>,
    /// Who has one, or had.
    standing: Vec<Weak<Mutex<Standing>>>,
    displaced: u64,
    said: Option<Instant>,
}

/// Whose connection a request came over.
#[derive(Clone, Debug)]
pub(crate) struct Asker(Arc<Mutex<Standing>>);

impl Asker {
    /// A request of this connection was proven with such a key.
    pub(crate) fn has_proven(&self, known: Known) {
        let mut it = lock(&self.0);
        it.known = it.known.max(known);
    }
}

/// Whose key a connection has proven: who comes later in this list is displaced later.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Known {
    Nobody,
    Client,
    /// The cluster's: nodes, and those who administer it.
    Cluster,
}

/// How a connection stands among the others.
#[derive(Debug)]
struct Standing {
    answered: bool,
    known: Known,
    moved: Instant,
    /// It makes room.
    ends: bool,
    waker: Option<Waker>,
}

impl Bounded {
    pub(crate) fn new(listener: TcpListener, identity: Option<Identity>) -> Self {
        let places = Arc::new(Semaphore::new(CONNECTIONS));
        Self { listener, identity, places, standing: Vec::new(), displaced: 0, said: None }
    }

    /// The connection that others need least ends.
    fn make_room(&mut self) {
        self.standing.retain(|standing| standing.strong_count() > 0);
        let all: Vec<_> = self.standing.iter().filter_map(Weak::upgrade).collect();
        let rank = |standing: &Arc<Mutex<Standing>>| {
            let it = lock(standing);
            (it.ends, it.known, it.answered, it.moved)
        };
        let Some(least) = all.into_iter().min_by_key(rank) else { return };
        let waker = {
            let mut it = lock(&least);
            it.ends = true;
            it.waker.take()
        };
        waker.into_iter().for_each(Waker::wake);
        self.displaced += 1;
        if self.said.is_none_or(|said| said.elapsed() > SAY_EVERY) {
            self.said = Some(Instant::now());
            tracing::warn!(
                displaced = self.displaced,
                "all places for connections are taken; some made room for others"
            );
        }
    }
}

fn lock(standing: &Mutex<Standing>) -> std::sync::MutexGuard<'_, Standing> {
    standing.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Listener for Bounded {
    type Io = Connection;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Connection, SocketAddr) {
        let (stream, address) = Listener::accept(&mut self.listener).await;
        let place = match Arc::clone(&self.places).try_acquire_owned() {
            Ok(place) => Some(place),
            Err(_) => {
                self.make_room();
                // The semaphore is never closed; were it, connections would go on without a place.
                Arc::clone(&self.places).acquire_owned().await.ok()
            }
        };
        let new = Standing { answered: false, known: Known::Nobody, moved: Instant::now(), ends: false, waker: None };
        let standing = Arc::new(Mutex::new(new));
        self.standing.push(Arc::downgrade(&standing));
        if self.standing.len() > 2 * CONNECTIONS {
            self.standing.retain(|standing| standing.strong_count() > 0);
        }
        let stream = Stream::new(stream, self.identity.as_ref());
        (Connection { stream, silence: Box::pin(sleep(IDLE)), standing, _place: place }, address)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// A connection and its place.
#[derive(Debug)]
pub(crate) struct Connection {
    stream: Stream,
    silence: Pin<Box<Sleep>>,
    standing: Arc<Mutex<Standing>>,
    _place: Option<OwnedSemaphorePermit>,
}

impl Connection {
    fn asker(&self) -> Asker {
        Asker(Arc::clone(&self.standing))
    }

    /// Passes an outcome on; one that still waits fails when the connection was silent for too long.
    fn watched<T>(&mut self, cx: &mut Context<'_>, outcome: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        let mut standing = lock(&self.standing);
        if outcome.is_ready() {
            let now = Instant::now();
            // What was never answered stands by when it came: a byte now and then gains it nothing.
            if standing.answered {
                standing.moved = now;
            }
            self.silence.as_mut().reset(now + IDLE);
            return outcome;
        }
        if standing.ends {
            return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
        }
        standing.waker = Some(cx.waker().clone());
        drop(standing);
        self.silence.as_mut().poll(cx).map(|()| Err(io::ErrorKind::TimedOut.into()))
    }
}

impl Connection {
    /// The same for what only waits until others have moved: that it is over is no move.
    fn waits(&mut self, cx: &mut Context<'_>, outcome: Poll<io::Result<()>>) -> Poll<io::Result<()>> {
        if outcome.is_ready() { outcome } else { self.watched(cx, outcome) }
    }

    /// The same for what is written.
    fn answers(&mut self, cx: &mut Context<'_>, outcome: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        if matches!(outcome, Poll::Ready(Ok(_))) {
            lock(&self.standing).answered = true;
        }
        self.watched(cx, outcome)
    }
}

impl AsyncRead for Connection {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let outcome = Pin::new(&mut self.stream).poll_read(cx, into);
        self.watched(cx, outcome)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, from: &[u8]) -> Poll<io::Result<usize>> {
        let outcome = Pin::new(&mut self.stream).poll_write(cx, from);
        self.answers(cx, outcome)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        from: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let outcome = Pin::new(&mut self.stream).poll_write_vectored(cx, from);
        self.answers(cx, outcome)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let outcome = Pin::new(&mut self.stream).poll_flush(cx);
        self.waits(cx, outcome)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let outcome = Pin::new(&mut self.stream).poll_shutdown(cx);
        self.waits(cx, outcome)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;

    #[tokio::test(start_paused = true)]
    async fn a_silent_connection_is_given_up() {
        let mut bounded = Bounded::new(TcpListener::bind("127.0.0.1:0").await.unwrap(), None);
        let _silent = TcpStream::connect(bounded.local_addr().unwrap()).await.unwrap();
        let (mut connection, _) = bounded.accept().await;
        let error = connection.read_u8().await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }

    #[tokio::test]
    async fn who_asks_over_tls_and_reads_no_answer_is_given_up_whatever_is_waited_for() {
        use tls::{Authority, Role};
        use tokio_rustls::TlsConnector;
        let authority = Authority::new(&[1; 32]).unwrap();
        let identity = authority.identity(Role::Conductor, &[]).unwrap();
        let mut bounded = Bounded::new(TcpListener::bind("127.0.0.1:0").await.unwrap(), Some(identity));
        let peer = TcpStream::connect(bounded.local_addr().unwrap()).await.unwrap();
        let (mut connection, _) = bounded.accept().await;
        let asks = async {
            let asker = TlsConnector::from(authority.trust().config().unwrap());
            let mut peer = asker.connect(Role::Conductor.server_name().unwrap(), peer).await.unwrap();
            peer.write_all(b"?").await.unwrap();
            peer
        };
        let (_peer, asked) = tokio::join!(asks, connection.read_u8());
        asked.unwrap();
        tokio::time::pause();
        // Until neither TLS nor the socket below it takes any more of the answer.
        let ended = loop {
            let fill = std::future::poll_fn(|cx| {
                while let Poll::Ready(written) = Pin::new(&mut connection).poll_write(cx, &[0; 4096]) {
                    written.unwrap();
                }
                Poll::Ready(())
            });
            tokio::task::unconstrained(fill).await;
            let flushed = tokio::time::timeout(2 * IDLE, connection.flush()).await.expect("it is given up");
            if let Err(ended) = flushed {
                break ended;
            }
        };
        assert_eq!(ended.kind(), io::ErrorKind::TimedOut);
        let ended = tokio::time::timeout(2 * IDLE, connection.shutdown()).await.expect("it is given up");
        assert_eq!(ended.unwrap_err().kind(), io::ErrorKind::TimedOut);
    }

    #[tokio::test]
    async fn a_place_comes_back_with_its_connection() {
        let mut bounded = Bounded::new(TcpListener::bind("127.0.0.1:0").await.unwrap(), None);
        let _peer = TcpStream::connect(bounded.local_addr().unwrap()).await.unwrap();
        let (connection, _) = bounded.accept().await;
        assert_eq!(bounded.places.available_permits(), CONNECTIONS - 1);
        drop(connection);
        assert_eq!(bounded.places.available_permits(), CONNECTIONS);
    }

    /// All places are taken by connections that stand as `how` makes them; the third one makes room for one more.
    async fn the_third_makes_room(how: impl AsyncFn(usize, &mut Connection)) {
        let mut bounded = Bounded::new(TcpListener::bind("127.0.0.1:0").await.unwrap(), None);
        let at = bounded.local_addr().unwrap();
        let mut open = Vec::new();
        for n in 0..CONNECTIONS {
            let peer = TcpStream::connect(at).await.unwrap();
            let (mut connection, _) = bounded.accept().await;
            how(n, &mut connection).await;
            open.push((peer, connection));
        }
        let (_peer, mut third) = open.remove(2);
        let ended = tokio::spawn(async move { third.read_u8().await.unwrap_err().kind() });
        tokio::task::yield_now().await;
        let _late = TcpStream::connect(at).await.unwrap();
        let _place = bounded.accept().await;
        assert_eq!(ended.await.unwrap(), io::ErrorKind::ConnectionAborted);
        assert_eq!(bounded.displaced, 1);
    }

    #[tokio::test]
    async fn who_was_never_answered_makes_room_before_who_was() {
        the_third_makes_room(async |n, connection| {
            if n < 2 {
                connection.write_all(b"x").await.unwrap();
            }
        })
        .await;
    }

    #[tokio::test]
    async fn who_has_proven_no_key_makes_room_before_who_has_however_often_it_is_answered() {
        the_third_makes_room(async |n, connection| {
            connection.write_all(b"x").await.unwrap();
            if n < 2 {
                connection.asker().has_proven(Known::Client);
            }
        })
        .await;
    }

    #[tokio::test]
    async fn who_has_a_clients_key_makes_room_before_who_has_the_clusters_however_long_that_one_is_silent() {
        the_third_makes_room(async |n, connection| {
            connection.write_all(b"x").await.unwrap();
            connection.asker().has_proven(if n < 2 { Known::Cluster } else { Known::Client });
        })
        .await;
    }
}
