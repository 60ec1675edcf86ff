//! Who somebody says to be.

use crate::bench::{Bench, closed, connect, send};
use cluster::peer::{Identity, Peer, Refused, read_frame};
use conductor_model::{ShardId, ShardIndex, VolumeId};
use node_protocol::{IoBody, Status, op};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread::JoinHandle;
use wire::Reason;

pub(crate) fn rows(bench: &mut Bench) {
    bench.row("a wrong key", &[("net.closed.unauthenticated", 1)], |bench| {
        let refused = bench.try_peer(&Identity::of([0x55; 32], "thief", &bench.map)).unwrap_err();
        assert!(matches!(refused, Refused::Rejected(Reason::Unauthenticated) | Refused::Silently), "{refused:?}");
        format!("{refused:?}")
    });
    bench.row("a replayed handshake, with the write that followed it", &[("net.closed.unauthenticated", 1)], |bench| {
        let (proxy, recorded) = record(bench.at);
        let mut peer = Peer::connect(proxy, &bench.who("recorded")).unwrap().unwrap();
        assert_eq!(peer.ask(op::WRITE, &bench.body(0, 4096), &[9; 4096]).unwrap(), Some(Status::Ok));
        drop(peer);
        let recorded = recorded.join().unwrap();
        let mut stream = connect(bench.at);
        send(&mut stream, &recorded);
        let challenge = read_frame(&mut stream).unwrap().unwrap();
        let then = read_frame(&mut stream).unwrap().map(|frame| frame.header.op);
        assert!(then.is_none_or(|op| op == wire::Op::REJECT), "{then:?}");
        closed(&mut stream);
        format!("{} recorded bytes: {:?}, then {then:?}, closed", recorded.len(), challenge.header.op)
    });
    bench.row("another client's session id", &[("net.closed.unauthenticated", 2)], |bench| {
        let (mut victim, mut thief) = (bench.peer("victim"), bench.peer("thief"));
        // As it stands, and as the thief's own key would tag it.
        let stolen = victim.request(op::READ, bench.body(0, 4096).bytes(), &[]).1;
        thief.send(&stolen).unwrap();
        closed(thief.stream());
        let mut thief = bench.peer("thief");
        let mut own = thief.request(op::READ, bench.body(0, 4096).bytes(), &[]).1;
        own[32..36].copy_from_slice(&stolen[32..36]);
        cluster::peer::reseal(&mut own, 48);
        thief.send(&own).unwrap();
        closed(thief.stream());
        assert_eq!(victim.ask(op::READ, &bench.body(0, 4096), &[]).unwrap(), Some(Status::Ok), "the victim's goes on");
        "both closed, the victim's session goes on".to_owned()
    });
    bench.row("another volume's shards", &[("reply.denied", 4)], |bench| {
        let mut peer = bench.peer("curious");
        let other = VolumeId(bench.map.volume.0 - 1);
        for shard in 0..4 {
            let shard = ShardId { volume: other, index: ShardIndex(shard) };
            let body = IoBody::new(shard, bench.epoch(), 1, conductor_model::Bytes(0), 4096);
            assert_eq!(peer.ask(op::READ, &body, &[]).unwrap(), Some(Status::Denied));
        }
        assert_eq!(peer.ask(op::READ, &bench.body(0, 4096), &[]).unwrap(), Some(Status::Ok), "its own goes on");
        "denied, the session goes on".to_owned()
    });
}

/// A proxy for one connection to `to`; when that is over: what was said towards it.
fn record(to: SocketAddr) -> (SocketAddr, JoinHandle<Vec<u8>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    let said = std::thread::spawn(move || {
        let (mut near, _) = listener.accept().unwrap();
        let mut far = connect(to);
        let (mut back, mut from) = (near.try_clone().unwrap(), far.try_clone().unwrap());
        let answers = std::thread::spawn(move || pass(&mut from, &mut back));
        let said = pass(&mut near, &mut far);
        far.shutdown(std::net::Shutdown::Both).unwrap();
        answers.join().unwrap();
        said
    });
    (at, said)
}

fn pass(from: &mut TcpStream, to: &mut TcpStream) -> Vec<u8> {
    let (mut all, mut some) = (Vec::new(), [0; 4096]);
    while let Ok(n) = from.read(&mut some) {
        if n == 0 || to.write_all(&some[..n]).is_err() {
            break;
        }
        all.extend(&some[..n]);
    }
    all
}
