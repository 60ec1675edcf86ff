//! A connection's stream, with or without TLS.
//!
//! ```text
//!   Waiting ── first byte: of a TLS handshake ──► Shaking ──► Secure
//!           └─ anything else ──► a word in clear: this is TLS ──► end
//! ```
//! The handshake goes on with whatever is read or written, so that accepting waits for nobody.

use std::future::Future;
use std::io;
use std::net::Shutdown;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tls::Identity;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::server::TlsStream;
use tokio_rustls::{Accept, TlsAcceptor};

/// The type of a handshake's records: the first byte of every TLS connection.
const HANDSHAKE: u8 = 0x16;
/// What is read of a request that was said in clear, so that the end of the connection does not overtake the answer.
const IN_CLEAR: usize = 16 << 10;
const THIS_IS_TLS: &str = concat!(
    "HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: 96\r\n\r\n",
    r#"{"error":"tls","message":"this conductor speaks TLS: pass --tls, or write https:// before it"}"#,
    "\r\n"
);

/// See the module's head.
pub(crate) enum Stream {
    Plain(TcpStream),
    Waiting(TcpStream, TlsAcceptor),
    Shaking(Box<Accept<TcpStream>>),
    Secure(Box<TlsStream<TcpStream>>),
    Over,
}

impl Stream {
    pub(crate) fn new(stream: TcpStream, identity: Option<&Identity>) -> Self {
        match identity {
            Some(identity) => Self::Waiting(stream, TlsAcceptor::from(identity.config())),
            None => Self::Plain(stream),
        }
    }

    /// Until bytes can be moved; `None` if none ever can.
    fn poll_open(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Option<Pin<&mut dyn Moves>>>> {
        loop {
            match self {
                Self::Plain(_) | Self::Secure(_) | Self::Over => break,
                Self::Waiting(stream, _) => {
                    let mut first = [0; 1];
                    let seen = ready!(stream.poll_peek(cx, &mut ReadBuf::new(&mut first)))?;
                    let Self::Waiting(stream, acceptor) = std::mem::replace(self, Self::Over) else { break };
                    if seen > 0 && first == [HANDSHAKE] {
                        *self = Self::Shaking(Box::new(acceptor.accept(stream)));
                    } else if seen > 0 {
                        say_so(stream);
                    }
                }
                Self::Shaking(accept) => {
                    let outcome = ready!(Pin::new(&mut **accept).poll(cx));
                    *self = Self::Over;
                    *self = Self::Secure(Box::new(outcome?));
                }
            }
        }
        Poll::Ready(Ok(match self {
            Self::Plain(stream) => Some(Pin::new(stream)),
            Self::Secure(stream) => Some(Pin::new(&mut **stream)),
            Self::Waiting(..) | Self::Shaking(_) | Self::Over => None,
        }))
    }
}

/// As far as it goes without waiting: whoever speaks HTTP in clear here is a person's mistake.
fn say_so(stream: TcpStream) {
    let Ok(stream) = stream.into_std() else { return };
    let _read = io::Read::read(&mut &stream, &mut [0; IN_CLEAR]);
    let _said = io::Write::write(&mut &stream, THIS_IS_TLS.as_bytes());
    let _ended = stream.shutdown(Shutdown::Write);
}

/// Both ways.
trait Moves: AsyncRead + AsyncWrite + Unpin {}
impl Moves for TcpStream {}
impl Moves for TlsStream<TcpStream> {}

impl AsyncRead for Stream {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match ready!(self.poll_open(cx))? {
            Some(stream) => stream.poll_read(cx, into),
            None => Poll::Ready(Ok(())),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, from: &[u8]) -> Poll<io::Result<usize>> {
        match ready!(self.poll_open(cx))? {
            Some(stream) => stream.poll_write(cx, from),
            None => Poll::Ready(Err(io::ErrorKind::BrokenPipe.into())),
        }
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        from: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match ready!(self.poll_open(cx))? {
            Some(stream) => stream.poll_write_vectored(cx, from),
            None => Poll::Ready(Err(io::ErrorKind::BrokenPipe.into())),
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match ready!(self.poll_open(cx))? {
            Some(stream) => stream.poll_flush(cx),
            None => Poll::Ready(Ok(())),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut *self {
            Self::Plain(stream) | Self::Waiting(stream, _) => Pin::new(stream).poll_shutdown(cx),
            Self::Secure(stream) => Pin::new(&mut **stream).poll_shutdown(cx),
            // Nothing was said that could be lost.
            Self::Shaking(_) | Self::Over => Poll::Ready(Ok(())),
        }
    }
}

impl std::fmt::Debug for Stream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Plain(_) => "in clear",
            Self::Waiting(..) | Self::Shaking(_) => "TLS, in its handshake",
            Self::Secure(_) => "TLS",
            Self::Over => "over",
        })
    }
}
