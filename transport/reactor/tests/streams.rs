//! Streams on the real kernel: connected, filled, cut off.
#![allow(clippy::unwrap_used, dead_code, reason = "a test, and helpers that not every test uses")]

mod common;

use common::{Bench, Dir, any_port, driver};
use driver::{Address, Errno, ListenerId, Op, Span, StreamId};
use io_uring::opcode;
use reactor::{Limits, ReactorError, Ring};
use std::time::{Duration, Instant};

#[test]
fn what_is_sent_arrives_in_order_on_tcp_and_unix_sockets() {
    let dir = Dir::new();
    for address in [any_port(), dir.socket()] {
        let mut bench = Bench::new();
        let (a, b) = bench.pair(&address);
        let parts = [1, 2, 3].map(|byte| bench.page(1000, byte).filled().whole());
        let send = bench.send(a, parts);
        assert_eq!(bench.result(send), Ok(3000));
        let mut got = Vec::new();
        while got.len() < 3000 {
            let recv = bench.recv(b, 700);
            bench.submit(recv);
            let done = bench.dones(1).pop().unwrap();
            let Op::Recv { into, .. } = done.op else { panic!("{:?}", done.op) };
            got.extend_from_slice(&into[..done.result.unwrap() as usize]);
        }
        assert_eq!(got, [[1; 1000], [2; 1000], [3; 1000]].concat());
        bench.assert_empty();
    }
}

#[test]
fn with_everything_in_flight_a_shutdown_brings_every_operation_back_once() {
    let mut bench = Bench::new();
    let (a, b) = bench.pair(&any_port());
    // 16 MiB do not fit into the sockets' buffers, and nobody reads: both sends stay.
    let block = bench.page(1 << 20, 7).filled();
    for end in [a, b] {
        let send = bench.send(end, (0..16).map(|_| block.share().whole()));
        bench.submit(send);
    }
    bench.reactor.machine().deadline = Some(reactor::clock::now() + Span::millis(20));
    for _ in 0..3 {
        bench.reactor.turn().unwrap();
    }
    assert!(bench.reactor.machine().dones.is_empty());
    for stream in [a, b] {
        bench.submit(Op::Shutdown { stream });
    }
    let dones = bench.dones(4);
    let sends = dones.iter().filter(|done| matches!(done.op, Op::Send { .. }) && done.result.is_err()).count();
    let shutdowns = dones.iter().filter(|done| matches!(done.op, Op::Shutdown { .. }) && done.result.is_ok()).count();
    assert_eq!((sends, shutdowns), (2, 2));
    drop((dones, block));
    let recv = bench.recv(a, 100);
    bench.submit(recv);
    drop(bench.dones(1));
    // A close that comes early waits for the shutdown beside it, and nothing starts after it.
    for op in [Op::Shutdown { stream: a }, Op::Close { stream: a }, Op::Shutdown { stream: a }] {
        bench.submit(op);
    }
    let results: Vec<_> =
        bench.dones(3).iter().map(|done| (matches!(done.op, Op::Close { .. }), done.result)).collect();
    assert_eq!(results.iter().position(|result| *result == (true, Ok(0))), Some(2), "{results:?}");
    assert!(results.contains(&(false, Ok(0))) && results.contains(&(false, Err(Errno(libc::EBADF)))), "{results:?}");
    assert_eq!(bench.result(Op::Close { stream: b }), Ok(0));
    for stream in [a, b] {
        let recv = bench.recv(stream, 1);
        assert_eq!(bench.result(recv), Err(Errno(libc::EBADF)), "a closed stream's number leads nowhere");
    }
    assert_eq!(bench.reactor.driver().open_streams(), 0);
    let (c, d) = bench.pair(&any_port());
    assert!([c, d].iter().all(|new| ![a, b].contains(new)), "numbers are not given out again at once");
    bench.assert_empty();
}

#[test]
fn a_watch_sees_the_end_behind_bytes_that_nobody_read_and_they_can_be_read_still() {
    let dir = Dir::new();
    for address in [any_port(), dir.socket()] {
        let mut bench = Bench::new();
        let (a, b) = bench.pair(&address);
        let (watch, send) = (bench.watch(b), bench.send(a, [bench.page(1000, 5).filled().whole()]));
        bench.submit(watch);
        assert_eq!(bench.result(send), Ok(1000), "bytes are no end");
        bench.submit(Op::Close { stream: a });
        let dones = bench.dones(2);
        assert!(dones.iter().all(|done| done.result == Ok(0)), "{dones:?}");
        assert!(dones.iter().any(|done| matches!(done.op, Op::Watch { stream, .. } if stream == b)));
        drop(dones);
        for expected in [Ok(1000), Ok(0)] {
            let recv = bench.recv(b, 4096);
            assert_eq!(bench.result(recv), expected);
        }
        let again = bench.watch(b);
        assert_eq!(bench.result(again), Ok(0), "an end stays one");
        assert_eq!(bench.result(Op::Close { stream: b }), Ok(0));
        bench.assert_empty();
    }
}

#[test]
fn a_watch_is_over_before_its_stream_is_closed() {
    let dir = Dir::new();
    for address in [any_port(), dir.socket()] {
        let mut bench = Bench::new();
        let (a, b) = bench.pair(&address);
        let watch = bench.watch(b);
        for op in [watch, Op::Shutdown { stream: b }, Op::Close { stream: b }] {
            bench.submit(op);
        }
        let dones = bench.dones(3);
        assert!(dones.iter().all(|done| done.result == Ok(0)), "{dones:?}");
        assert!(matches!(dones[2].op, Op::Close { .. }), "{dones:?}");
        drop(dones);
        let watch = bench.watch(b);
        assert_eq!(bench.result(watch), Err(Errno(libc::EBADF)), "a closed stream has no end to wait for");
        assert_eq!(bench.result(Op::Close { stream: a }), Ok(0));
        bench.assert_empty();
    }
}

#[test]
fn a_driver_that_is_dropped_in_flight_gives_all_memory_back() {
    let mut bench = Bench::new();
    let (a, _) = bench.pair(&any_port());
    let (listener, _) = bench.reactor.driver().listen(&any_port()).unwrap();
    let send = bench.send(a, (0..16).map(|_| bench.page(1 << 20, 1).filled().whole()));
    let (recv, watch) = (bench.recv(a, 4096), bench.watch(a));
    for op in [send, recv, watch, Op::Accept { listener }] {
        bench.submit(op);
    }
    bench.reactor.push_pending().unwrap();
    let Bench { reactor, arena, conns, .. } = bench;
    assert!(arena.in_use() > 16 << 20);
    drop(reactor);
    arena.leaks().unwrap();
    conns.leaks().unwrap();
}

#[test]
fn a_finished_machine_gets_its_accepts_back() {
    let mut bench = Bench::new();
    let (listener, to) = bench.reactor.driver().listen(&any_port()).unwrap();
    (0..3).for_each(|_| bench.submit(Op::Accept { listener }));
    bench.reactor.machine().finished = true;
    let mailbox = bench.mailbox.clone();
    let ended = bench.reactor.run(|()| {}).unwrap();
    assert_eq!(ended.machine.dones.len(), 3);
    assert!(ended.machine.dones.iter().all(|done| done.result == Err(Errno::CANCELED)));
    let Address::Tcp(to) = to else { panic!("{to:?}") };
    assert!(std::net::TcpStream::connect(to).is_err(), "the listener is gone");
    let report = ended.mailbox.unwrap_err().to_string();
    assert!(report.contains("mailbox: 2 handle"), "{report}");
    assert!(mailbox.send(1).is_err());
}

#[test]
fn a_connect_that_nobody_answers_fails_in_its_own_way() {
    let dir = Dir::new();
    let mut bench = Bench::with(driver(Limits { connect: Span::millis(60), ..Limits::default() }));
    let unused = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap();
    let connect = bench.connect(&Address::Tcp(unused));
    assert_eq!(bench.result(connect), Err(Errno::REFUSED));
    let connect = bench.connect(&dir.socket());
    assert_eq!(bench.result(connect), Err(Errno(libc::ENOENT)));
    let connect = bench.connect(&Address::Unix("x".repeat(200).into()));
    assert!(bench.result(connect).is_err(), "a path that no socket can have");

    // A TCP listener with a full backlog drops what comes: the connect hangs.
    let full = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    full.bind(&std::net::SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
    full.listen(0).unwrap();
    let to = Address::Tcp(full.local_addr().unwrap().as_socket().unwrap());
    let before = Instant::now();
    for _ in 0..4 {
        let connect = bench.connect(&to);
        bench.submit(connect);
    }
    let results: Vec<_> = bench.dones(4).iter().map(|done| done.result).collect();
    assert!(results.contains(&Err(Errno::TIMED_OUT)), "{results:?}");
    assert!(before.elapsed() >= Duration::from_millis(60));
    bench.assert_empty();
}

#[test]
fn a_completion_of_an_earlier_use_of_a_slot_is_dropped() {
    let mut bench = Bench::new();
    let (a, b) = bench.pair(&any_port());
    let recv = bench.recv(a, 100);
    bench.submit(recv);
    bench.reactor.push_pending().unwrap();
    // A NOP that carries the tokens of all uses of the first slots but possibly the last one.
    for (generation, slot) in [(0_u64, 0_u64), (0, 1), (7, 0), (7, 1), (1, 999)] {
        let stale = 0x81 << 56 | generation << 20 | slot;
        bench.reactor.driver().ring().with(&mut |ring| {
            let entry = opcode::Nop::new().build().user_data(stale);
            // SAFETY: a NOP points to nothing.
            unsafe { ring.submission().push(&entry) }.unwrap();
        });
    }
    while bench.reactor.driver().counters().stale < 5 {
        bench.reactor.turn().unwrap();
    }
    assert!(bench.reactor.machine().dones.is_empty(), "the receive is still posted");
    let send = bench.send(b, [bench.page(3, 9).filled().whole()]);
    bench.submit(send);
    assert_eq!(bench.dones(2).len(), 2);
}

#[test]
fn more_operations_than_slots_wait_their_turn_and_a_small_ring_loses_none() {
    let limits = Limits { ops: 8, submissions: 4, ..Limits::default() };
    let mut bench = Bench::with(driver(limits));
    let (a, b) = bench.pair(&any_port());
    for round in 0..100_u8 {
        let send = bench.send(a, [bench.page(10, round).filled().whole()]);
        bench.submit(send);
    }
    let sent = bench.dones(100);
    assert!(sent.iter().all(|done| done.result == Ok(10)));
    drop(sent);
    let counters = bench.reactor.driver().counters();
    assert!(counters.waited >= 92 && counters.extra_submits > 0, "{counters:?}");
    for _ in 0..30 {
        let recv = bench.recv(b, 1);
        bench.submit(recv);
    }
    assert_eq!(bench.dones(30).iter().filter(|done| done.result == Ok(1)).count(), 30);
    bench.assert_empty();
}

#[test]
fn a_socket_file_left_by_a_killed_process_is_replaced_and_a_live_one_is_not() {
    let dir = Dir::new();
    let Address::Unix(path) = dir.socket() else { panic!() };
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    assert!(path.exists());
    let mut first = driver(Limits::default());
    first.listen(&dir.socket()).unwrap();
    let error = driver(Limits::default()).listen(&dir.socket()).unwrap_err();
    assert!(matches!(error, ReactorError::Listen { .. }) && error.to_string().contains("socket"), "{error}");
}

#[test]
fn a_listener_takes_its_socket_file_with_it_and_never_its_successors() {
    let dir = Dir::new();
    let Address::Unix(path) = dir.socket() else { panic!() };
    let mut first = driver(Limits::default());
    first.listen(&dir.socket()).unwrap();
    assert!(path.exists());
    drop(first);
    assert!(!path.exists(), "from here on nothing of it has anything to remove");
    let mut second = driver(Limits::default());
    second.listen(&dir.socket()).unwrap();
    std::os::unix::net::UnixStream::connect(&path).unwrap();
}

#[test]
fn where_nobody_can_listen_it_is_said_what_to_do_about_it() {
    let dir = Dir::new();
    let Address::Unix(path) = dir.socket() else { panic!() };
    std::fs::write(&path, "mine").unwrap();
    let why = |path: &std::path::Path| {
        let refused = driver(Limits::default()).listen(&Address::Unix(path.to_owned()));
        refused.unwrap_err().to_string()
    };
    assert!(why(&path).contains("File exists") && why(&path).ends_with("or move it away"), "{}", why(&path));
    assert_eq!(std::fs::read(&path).unwrap(), b"mine", "it is left alone");
    assert!(why(&path.with_file_name("none").join("x")).contains("make the directory first"));
    assert!(why(&path.join("x")).contains("make the directory first"));
    assert!(why(&path.with_file_name("x".repeat(108))).contains("107 bytes at most"));
    let other = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = Address::Tcp(other.local_addr().unwrap());
    let taken = driver(Limits::default()).listen(&taken).unwrap_err().to_string();
    assert!(taken.contains("stop who uses this one"), "{taken}");
}

#[test]
fn unknown_listeners_and_streams_come_back_with_an_error() {
    let mut bench = Bench::new();
    let nowhere = StreamId(77);
    let recv = bench.recv(nowhere, 10);
    assert_eq!(bench.result(recv), Err(Errno(libc::EBADF)));
    assert_eq!(bench.result(Op::Close { stream: nowhere }), Err(Errno(libc::EBADF)));
    assert_eq!(bench.result(Op::Accept { listener: driver::ListenerId(3) }), Err(Errno(libc::EBADF)));
    bench.assert_empty();
}

#[test]
fn rdma_that_was_not_opened_is_refused_and_does_not_hang() {
    let mut bench = Bench::new();
    let at = ([127, 0, 0, 1], 7000).into();
    let connect = bench.connect(&Address::Rdma(at));
    assert_eq!(bench.result(connect), Err(Errno(libc::EPROTONOSUPPORT)));
    assert_eq!(bench.result(Op::Accept { listener: ListenerId(0x8000) }), Err(Errno(libc::EBADF)));
    assert_eq!(bench.result(Op::Shutdown { stream: StreamId(0x8000) }), Err(Errno(libc::EBADF)));
    let error = bench.reactor.driver().listen(&Address::Rdma(at)).unwrap_err().to_string();
    assert!(error.contains("rdma:127.0.0.1:7000"), "{error}");
    bench.assert_empty();
}

/// On a machine without RDMA the first half of it; on one with it, what belongs to nobody comes back from there.
#[test]
fn rdma_that_cannot_be_had_says_what_is_missing() {
    let mut bench = Bench::new();
    let arena = bench.arena.clone();
    match bench.reactor.driver().open_rdma(&arena) {
        Err(error) => assert!(error.to_string().contains("or use tcp"), "{error}"),
        Ok(()) => {
            assert_eq!(bench.result(Op::Shutdown { stream: StreamId(0x8000) }), Ok(0));
            assert_eq!(bench.result(Op::Close { stream: StreamId(0x8000) }), Err(Errno(libc::EBADF)));
            let recv = bench.recv(StreamId(0x8000), 100);
            assert_eq!(bench.result(recv), Err(Errno(libc::EBADF)));
        }
    }
    drop(arena);
    bench.assert_empty();
}
