//! A peer that speaks a node's protocol for itself: a real client's handshake and frames, and whatever else a test wants to send.
//!
//! Blocking, on std sockets, over `wire`'s own encoding; nothing of the volume client is in it.

use anyhow::{Context, Result, bail, ensure};
use conductor_model::api::VolumeMap;
use node_protocol::{IoBody, RangeBody, Status};
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};
use wire::{
    Card, Challenge, ClusterKey, Flags, HEADER_LEN, Header, Hello, HelloAck, HelloInfo, Key, Limits, MAX_PAYLOAD,
    Nonce, Op, ProtectionKey, READ_ONLY, Reason, Reject, Role, SHARED, Secret, Secrets, SessionId, Ticket, pieces,
    tree,
};

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(20);
/// A node takes a client that says nothing for 1.9 s for gone.
const PING_EVERY: Duration = Duration::from_millis(500);

/// Who connects.
#[derive(Clone, Debug)]
pub struct Identity {
    /// The cluster's key, another one, or a client's.
    pub key: Key,
    /// What it shows of that.
    pub card: Option<Card>,
    /// What proves its generation, if it shows a card.
    pub ticket: Option<Ticket>,
    /// It says that it writes nothing.
    pub read_only: bool,
    /// It says that it writes only what it holds ranges of.
    pub shared: bool,
    /// The snapshot that it reads; 0 for the volume itself.
    pub view: u64,
    /// The client's name.
    pub name: String,
    /// What it has attached.
    pub volume: u32,
    /// Under which generation.
    pub generation: u64,
    /// In which life.
    pub incarnation: u64,
    /// On which lane.
    pub lane: u16,
    /// Requests in flight that it asks for.
    pub depth: u16,
}

impl Identity {
    /// A client that has attached this volume.
    pub fn of(key: [u8; 32], name: &str, map: &VolumeMap) -> Self {
        let (volume, generation) = (map.volume.0, map.attach.0);
        let (key, name) = (Key::Cluster(ClusterKey(key)), name.to_owned());
        Self {
            key,
            card: None,
            ticket: map.ticket.as_deref().and_then(Ticket::from_hex),
            read_only: false,
            shared: false,
            view: 0,
            name,
            volume,
            generation,
            incarnation: 1,
            lane: 0,
            depth: 32,
        }
    }
}

/// What a frame says.
#[derive(Clone, Debug)]
pub struct Frame {
    /// Its header.
    pub header: Header,
    /// Its body.
    pub body: Vec<u8>,
    /// Its payload.
    pub payload: Vec<u8>,
}

impl Frame {
    /// The status, if it is a reply.
    pub fn status(&self) -> Option<Status> {
        self.header.flags.is_reply().then(|| node_protocol::ReplyBody::status_of(&self.body)).flatten()
    }
}

/// Why there is no session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refused {
    /// The node said why.
    Rejected(Reason),
    /// It closed without a word, or never answered.
    Silently,
}

/// An admitted connection.
#[derive(Debug)]
pub struct Peer {
    stream: TcpStream,
    session: SessionId,
    key: ProtectionKey,
    /// Requests in flight that the node allows.
    pub depth: u16,
    next: u32,
}

/// A frame's bytes.
pub fn frame(op: Op, slot: u32, body: &[u8], payload: &[u8]) -> Vec<u8> {
    let header = Header {
        payload_len: u32::try_from(payload.len()).unwrap_or(u32::MAX),
        payload_crc: tree(&pieces(payload)),
        ..Header::new(op, Flags::NONE, slot, 1)
    };
    let mut bytes = vec![0; HEADER_LEN + body.len()];
    header.put(body, &mut bytes);
    bytes.extend(payload);
    bytes
}

/// Makes a changed header's own checksum right again, so that the change itself is met. `body_len` bytes of body follow it.
pub fn reseal(bytes: &mut [u8], body_len: usize) {
    let covered = HEADER_LEN - 4;
    let crc = crc32c::crc32c_append(crc32c::crc32c(&bytes[..covered]), &bytes[HEADER_LEN..HEADER_LEN + body_len]);
    bytes[covered..HEADER_LEN].copy_from_slice(&crc.to_le_bytes());
}

/// Connects, and nothing more.
pub fn dial(to: SocketAddr) -> Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&to, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// Reads one frame; `None` at the end of the stream.
pub fn read_frame(stream: &mut TcpStream) -> Result<Option<Frame>> {
    let mut bytes = vec![0; HEADER_LEN];
    match stream.read(&mut bytes[..1]) {
        Ok(0) => return Ok(None),
        Ok(_) => {}
        Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => return Ok(None),
        Err(error) => return Err(error.into()),
    }
    stream.read_exact(&mut bytes[1..])?;
    let body_len = usize::from(u16::from_le_bytes([bytes[16], bytes[17]]));
    bytes.resize(HEADER_LEN + body_len, 0);
    stream.read_exact(&mut bytes[HEADER_LEN..])?;
    let (header, body) = Header::parse(&bytes)?.context("a whole header")?;
    let body = body.to_vec();
    ensure!(header.payload_len <= MAX_PAYLOAD, "a payload of {} bytes", header.payload_len);
    let mut payload = vec![0; header.payload_len as usize];
    stream.read_exact(&mut payload)?;
    ensure!(tree(&pieces(&payload)) == header.payload_crc, "a payload that fails its checksum");
    Ok(Some(Frame { header, body, payload }))
}

/// True if the node ends the connection within `limit`, whatever it says before.
pub fn is_closed_within(stream: &mut TcpStream, limit: Duration) -> Result<bool> {
    stream.set_read_timeout(Some(Duration::from_millis(100)))?;
    let start = std::time::Instant::now();
    let mut sink = [0; 4096];
    while start.elapsed() < limit {
        match stream.read(&mut sink) {
            Ok(0) => return Ok(true),
            Ok(_) => {}
            Err(error) if matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut) => {}
            Err(_) => return Ok(true),
        }
    }
    Ok(false)
}

impl Peer {
    /// The whole handshake. The outer error is a failure of the test; the inner one is what the node decided.
    pub fn connect(to: SocketAddr, who: &Identity) -> Result<Result<Self, Refused>> {
        Self::over(dial(to)?, who, |secret| secret)
    }

    /// The same on a stream that is there, where proofs are made with what becomes of the secret.
    pub fn over(
        mut stream: TcpStream,
        who: &Identity,
        bound: impl Fn(Secret) -> Secret,
    ) -> Result<Result<Self, Refused>> {
        let process = u64::from(std::process::id()) << 32 | u64::from(who.lane) << 16 | who.incarnation;
        let info = HelloInfo {
            incarnation: who.incarnation,
            lane: who.lane,
            volume: who.volume,
            generation: who.generation,
            view: who.view,
            features: if who.read_only { READ_ONLY } else { 0 } | if who.shared { SHARED } else { 0 },
            card: who.card.clone(),
            ticket: who.ticket.filter(|_| who.card.is_some()),
            ..HelloInfo::new(Role::Client, who.name.clone(), process)
        };
        // Whoever shows another card than its own has the wrong secret for it.
        let secret = bound(match &who.key {
            Key::Client(key) => key.secret,
            key => key.secret(&info).context("a secret")?,
        });
        let limits = Limits { depth: who.depth, max_payload: MAX_PAYLOAD };
        let hello = Hello { nonce: Nonce(rand_nonce(process)), limits, info }.encode()?;
        stream.write_all(&frame(Op::HELLO, 0, &hello, &[]))?;
        let Some(answer) = read_frame(&mut stream)? else { return Ok(Err(Refused::Silently)) };
        if answer.header.op == Op::REJECT {
            return Ok(Err(Refused::Rejected(Reject::parse(&answer.body)?.reason)));
        }
        ensure!(answer.header.op == Op::CHALLENGE, "{:?} instead of a challenge", answer.header.op);
        let challenge = Challenge::parse(&answer.body)?;
        // Somebody with the wrong key cannot check the node's proof, and goes on all the same.
        let transcript = match challenge.verify(&hello, &secret) {
            Ok(transcript) => transcript,
            Err(_) => Challenge::to(&hello, &secret, Nonce([0; 16]), 0).1,
        };
        stream.write_all(&frame(Op::PROOF, 0, &transcript.prove().encode(), &[]))?;
        let Some(answer) = read_frame(&mut stream)? else { return Ok(Err(Refused::Silently)) };
        match answer.header.op {
            Op::HELLO_ACK => {
                let ack = HelloAck::parse(&answer.body, &transcript)?;
                let key = transcript.protection_key();
                Ok(Ok(Self { stream, session: ack.session, key, depth: ack.limits.depth, next: 0 }))
            }
            Op::REJECT => Ok(Err(Refused::Rejected(Reject::parse(&answer.body)?.reason))),
            other => bail!("{other:?} instead of a hello-ack"),
        }
    }

    /// A request's bytes with session and tag filled in; its slot.
    pub fn request(&mut self, op: Op, body: &[u8], payload: &[u8]) -> (u32, Vec<u8>) {
        let slot = self.next;
        // Any slots will do as long as no two in flight are the same.
        self.next = (self.next + 1) % 4096;
        let mut body = body.to_vec();
        // A body too short for a session prefix goes as it is.
        let _ = wire::prefix::stamp(&mut body, self.session, &self.key, op, slot, 1);
        (slot, frame(op, slot, &body, payload))
    }

    /// Sends bytes as they are.
    pub fn send(&mut self, bytes: &[u8]) -> Result<()> {
        Ok(self.stream.write_all(bytes)?)
    }

    /// The next reply; pings are answered on the way, and sent, as every client does. `None` if the node closes.
    pub fn reply(&mut self) -> Result<Option<Frame>> {
        loop {
            self.wait()?;
            let Some(frame) = read_frame(&mut self.stream)? else { return Ok(None) };
            match frame.header.op {
                Op::PING => self.stream.write_all(&self::frame(Op::PONG, frame.header.slot, &frame.body, &[]))?,
                Op::PONG => {}
                Op::GOODBYE => return Ok(None),
                _ => return Ok(Some(frame)),
            }
        }
    }

    /// Until there is something to read, or the patience is over.
    fn wait(&mut self) -> Result<()> {
        let from = Instant::now();
        self.stream.set_read_timeout(Some(PING_EVERY))?;
        while let Err(error) = self.stream.peek(&mut [0]) {
            let nothing = matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut);
            if !nothing || from.elapsed() > PATIENCE {
                break;
            }
            // A node that closes meanwhile says so when it is read.
            let _closed = self.stream.write_all(&frame(Op::PING, 0, &[], &[]));
        }
        Ok(self.stream.set_read_timeout(Some(PATIENCE))?)
    }

    /// A request and its answer's status; `None` if the node closes instead.
    pub fn ask(&mut self, op: Op, body: &IoBody, payload: &[u8]) -> Result<Option<Status>> {
        let (_, bytes) = self.request(op, body.bytes(), payload);
        self.send(&bytes)?;
        Ok(self.reply()?.and_then(|frame| frame.status()))
    }

    /// The like about a range.
    pub fn ask_range(&mut self, op: Op, body: &RangeBody) -> Result<Option<Status>> {
        let (_, bytes) = self.request(op, body.bytes(), &[]);
        self.send(&bytes)?;
        Ok(self.reply()?.and_then(|frame| frame.status()))
    }

    /// The socket itself.
    pub fn stream(&mut self) -> &mut TcpStream {
        &mut self.stream
    }
}

/// Different for each connection of this process: good enough for a peer that has nothing to protect.
fn rand_nonce(process: u64) -> [u8; 16] {
    use std::sync::atomic::{AtomicU64, Ordering};
    static NEXT: AtomicU64 = AtomicU64::new(1);
    let mut random = crate::random::Random::new(process ^ NEXT.fetch_add(1, Ordering::Relaxed));
    std::array::from_fn(|_| random.draw().to_le_bytes()[5])
}
