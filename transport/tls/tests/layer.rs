//! The layer between two machines, byte for byte: pieces of every size, garbage, ends, and peers that do not speak TLS.
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation)] // a test: small numbers, and a panic is its way to fail

mod common;

use common::{STREAM, Side, authority, meet, pair, settle, settle_at};
use driver::{Done, Errno, Op, Time};
use tls::Failure;

const SECRET: &[u8] = b"nobody on the way may read this";

fn is_connect(op: &Op) -> bool {
    matches!(op, Op::Connect { .. })
}

fn is_send(op: &Op) -> bool {
    matches!(op, Op::Send { .. })
}

/// Up to the handshake's end.
fn established(piece: usize) -> (Side, Side) {
    let (mut a, mut b) = pair(Some(authority(1).trust()), Some(1));
    b.recv(4096);
    settle(&mut a, &mut b, piece);
    assert_eq!(a.result_of(is_connect), Some(Ok(STREAM.0)), "pieces of {piece}");
    (a, b)
}

fn holds(text: &[u8], pattern: &[u8]) -> bool {
    text.windows(pattern.len()).any(|window| window == pattern)
}

#[test]
fn what_is_sent_arrives_in_pieces_of_every_size_and_is_never_in_clear() {
    for piece in [1, 2, 3, 5, 7, 16, 100, 4096, usize::MAX] {
        let (mut a, mut b) = established(piece);
        a.send(&[b"head", SECRET, b"tail"]);
        settle(&mut a, &mut b, piece);
        assert_eq!(a.result_of(is_send), Some(Ok(8 + u32::try_from(SECRET.len()).unwrap())));
        let mut got = b.take_received().0;
        let whole = [b"head", SECRET, b"tail"].concat();
        while got.len() < whole.len() {
            b.recv(4096);
            settle(&mut a, &mut b, piece);
            got.extend(b.take_received().0);
        }
        assert_eq!(got, whole);
        a.recv(10);
        b.send(&[SECRET]);
        let mut back = Vec::new();
        while back.len() < SECRET.len() {
            settle(&mut a, &mut b, piece);
            back.extend(a.take_received().0);
            a.recv(10);
        }
        assert_eq!(back, SECRET);
        assert!(!holds(&a.said, SECRET) && !holds(&b.said, SECRET));
        a.assert_at_rest();
        b.assert_at_rest();
    }
}

#[test]
fn both_ends_of_a_session_know_what_nobody_else_does_before_anything_is_said_on_it() {
    let mut seen = Vec::new();
    for piece in [1, usize::MAX] {
        let (mut a, mut b) = pair(Some(authority(1).trust()), Some(1));
        assert!(a.owner().binding().is_none() && b.owner().binding().is_none());
        b.recv(4096);
        settle(&mut a, &mut b, piece);
        assert_eq!(a.result_of(is_connect), Some(Ok(STREAM.0)));
        let bound = a.owner().binding().unwrap();
        a.send(&[SECRET]);
        settle(&mut a, &mut b, piece);
        assert!(!b.take_received().0.is_empty());
        assert!(b.owner().binding() == Some(bound) && !seen.contains(&bound));
        seen.push(bound);
        a.assert_at_rest();
        b.assert_at_rest();
    }
    let (mut a, mut b) = pair(None, None);
    b.recv(4096);
    a.send(&[SECRET]);
    settle(&mut a, &mut b, usize::MAX);
    assert!(a.owner().binding().is_none() && b.owner().binding().is_none(), "nothing is bound in clear");
    assert_eq!(b.take_received().0, SECRET);
    a.dones.clear();
    a.assert_at_rest();
    b.assert_at_rest();
}

#[test]
fn an_accepted_stream_goes_on_in_tls_when_the_machine_says_so() {
    for piece in [1, 7, usize::MAX] {
        let (mut a, mut b) = meet(Side::new(None, Some(authority(1).trust())), Side::with(None, Some(1), None));
        assert_eq!(b.secure(), Ok(0));
        assert_eq!(b.secure(), Err(Errno::NOT_SUPPORTED), "once");
        b.recv(4096);
        settle(&mut a, &mut b, piece);
        assert_eq!(a.result_of(is_connect), Some(Ok(STREAM.0)));
        a.send(&[SECRET]);
        b.send(&[SECRET]);
        settle(&mut a, &mut b, piece);
        assert_eq!(b.take_received().0, SECRET);
        assert!(!holds(&a.said, SECRET) && !holds(&b.said, SECRET));
        a.recv(4096);
        settle(&mut a, &mut b, piece);
        assert_eq!(a.take_received().0, SECRET);
        a.assert_at_rest();
        b.assert_at_rest();
    }
    // Until then, and where there is nothing to show, it is in clear.
    for on_request in [None, Some(1)] {
        let (mut a, mut b) = meet(Side::new(None, None), Side::with(None, on_request, None));
        if on_request.is_none() {
            assert_eq!(b.secure(), Err(Errno::NOT_SUPPORTED));
        }
        b.recv(4096);
        a.send(&[SECRET]);
        settle(&mut a, &mut b, usize::MAX);
        assert_eq!(b.take_received().0, SECRET);
        assert!(b.owner().binding().is_none());
        a.assert_at_rest();
        b.assert_at_rest();
    }
}

#[test]
fn much_at_once_goes_through_bounded_memory_in_both_directions() {
    let (mut a, mut b) = established(usize::MAX);
    let much: Vec<u8> = (0..1_000_000u32).map(|n| (n % 251) as u8).collect();
    let pieces: Vec<&[u8]> = much.chunks(100_000).collect();
    a.send(&pieces);
    b.send(&pieces);
    let (mut at_a, mut at_b) = (Vec::new(), b.take_received().0);
    a.recv(60_000);
    while at_a.len() < much.len() || at_b.len() < much.len() {
        settle(&mut a, &mut b, usize::MAX);
        let (to_a, to_b) = (a.take_received().0, b.take_received().0);
        assert!(!to_a.is_empty() || !to_b.is_empty());
        if !to_a.is_empty() && at_a.len() + to_a.len() < much.len() {
            a.recv(60_000);
        }
        if !to_b.is_empty() && at_b.len() + to_b.len() < much.len() {
            b.recv(4096);
        }
        at_a.extend(to_a);
        at_b.extend(to_b);
    }
    assert!(at_a == much && at_b == much);
    assert_eq!((a.result_of(is_send), b.result_of(is_send)), (Some(Ok(1_000_000)), Some(Ok(1_000_000))));
    a.assert_at_rest();
    b.assert_at_rest();
}

#[test]
fn a_send_is_over_only_when_the_driver_is_done_with_all_that_stands_for_it() {
    let (mut a, mut b) = established(usize::MAX);
    a.slow = true;
    a.send(&[SECRET]);
    settle(&mut a, &mut b, usize::MAX);
    assert_eq!(a.result_of(is_send), None);
    assert_eq!(a.owner().counts().total(), 2, "the machine's hold is in the driver's send");
    a.slow = false;
    settle(&mut a, &mut b, usize::MAX);
    assert_eq!(a.result_of(is_send), Some(Ok(31)));
    a.dones.clear();
    assert_eq!(a.owner().counts().total(), 1);
    a.assert_at_rest();
    b.assert_at_rest();
}

#[test]
fn a_send_that_comes_while_the_handshake_is_still_being_sent_keeps_its_holds() {
    let (mut a, mut b) = pair(Some(authority(1).trust()), Some(1));
    b.recv(4096);
    while a.drive(Time(0), usize::MAX) {}
    a.slow = true;
    settle(&mut a, &mut b, usize::MAX);
    assert_eq!(a.result_of(is_connect), Some(Ok(STREAM.0)));
    a.send(&[SECRET]);
    while a.drive(Time(0), usize::MAX) {}
    assert_eq!(a.result_of(is_send), None, "the handshake's own send is not over");
    assert_eq!(a.owner().counts().total(), 2);
    a.slow = false;
    settle(&mut a, &mut b, usize::MAX);
    let at = a.dones.iter().position(|done| is_send(&done.op)).unwrap();
    let done = a.dones.remove(at);
    assert!(matches!(&done, Done { op: Op::Send { on, .. }, result: Ok(31) } if on.len() == 1));
    drop(done);
    assert_eq!(b.take_received().0, SECRET);
    a.assert_at_rest();
    b.assert_at_rest();
}

#[test]
fn a_peer_of_another_cluster_is_refused_and_told_so() {
    let (mut a, mut b) = pair(Some(authority(2).trust()), Some(1));
    b.recv(4096);
    settle(&mut a, &mut b, usize::MAX);
    assert_eq!(a.result_of(is_connect), Some(Err(Errno::KEY_REJECTED)));
    assert_eq!(*a.failures.borrow(), [Failure::Untrusted(tls::rustls::CertificateError::BadSignature)]);
    assert!(a.closed, "the machine never knew the stream");
    assert_eq!(b.take_received(), (vec![], Some(Err(Errno::PROTOCOL))));
    assert!(matches!(b.failures.borrow()[..], [Failure::Broken(tls::rustls::Error::AlertReceived(_))]));
    a.assert_at_rest();
    b.assert_at_rest();
}

#[test]
fn a_peer_that_speaks_no_tls_is_told_so_in_clear() {
    let (mut a, mut b) = pair(None, Some(1));
    b.recv(4096);
    settle(&mut a, &mut b, usize::MAX);
    assert_eq!(a.result_of(is_connect), Some(Ok(STREAM.0)), "a stream as it is");
    a.send(&[b"TRN1 and so on"]);
    a.recv(4096);
    settle(&mut a, &mut b, usize::MAX);
    assert_eq!(a.take_received().0, b"this is TLS");
    assert_eq!(b.take_received(), (vec![], Some(Err(Errno::PROTOCOL))));
    assert_eq!(*b.failures.borrow(), [Failure::NotTls]);
    b.shutdown();
    b.close();
    settle(&mut a, &mut b, usize::MAX);
    assert!(b.closed);
    a.assert_at_rest();
    b.assert_at_rest();
}

#[test]
fn one_that_listens_in_clear_is_not_spoken_to() {
    for answer in [&b"TRN1"[..], b"HTTP/1.1 400 Bad Request", b"\x00"] {
        let (mut a, mut b) = pair(Some(authority(1).trust()), None);
        b.recv(4096);
        b.send(&[answer]);
        settle(&mut a, &mut b, usize::MAX);
        assert_eq!(a.result_of(is_connect), Some(Err(Errno::PROTOCOL)), "{answer:?}");
        assert_eq!(*a.failures.borrow(), [Failure::NotTls]);
        a.assert_at_rest();
        b.assert_at_rest();
    }
    let (mut a, mut b) = pair(Some(authority(1).trust()), None);
    b.shutdown();
    settle(&mut a, &mut b, usize::MAX);
    assert_eq!(a.result_of(is_connect), Some(Err(Errno::PROTOCOL)));
    assert_eq!(*a.failures.borrow(), [Failure::Ended]);
    a.assert_at_rest();
    b.assert_at_rest();
}

#[test]
fn a_silent_peer_has_its_time() {
    let (mut a, mut b) = pair(Some(authority(1).trust()), None);
    settle(&mut a, &mut b, usize::MAX);
    let deadline = a.layer.next_deadline().unwrap();
    a.drive(Time(deadline.0 - 1), 1);
    assert_eq!(a.result_of(is_connect), None);
    a.drive(deadline, 1);
    while a.drive(deadline, 1) {}
    assert_eq!(a.result_of(is_connect), Some(Err(Errno::TIMED_OUT)));
    assert_eq!(*a.failures.borrow(), [Failure::TooLate]);
    assert_eq!((a.layer.next_deadline(), a.closed), (None, true));
    a.assert_at_rest();
    b.assert_at_rest();
}

#[test]
fn one_wrong_bit_anywhere_ends_the_stream_and_gives_nothing_wrong() {
    let sealed = || {
        let (mut a, b) = established(usize::MAX);
        a.send(&[SECRET]);
        let mut between = Side::new(None, None);
        settle(&mut a, &mut between, usize::MAX);
        let record: Vec<u8> = between.arrived.drain(..).collect();
        (record, b)
    };
    let (record, mut b) = sealed();
    assert!(record.len() > SECRET.len());
    b.ended = true;
    while b.drive(Time(0), usize::MAX) {}
    assert_eq!(b.take_received(), (vec![], Some(Ok(0))), "cut off between records: the end, as without TLS");
    for (at, bit) in (0..record.len()).map(|at| (at, at % 8)) {
        let (mut record, mut b) = sealed();
        record[at] ^= 1 << bit;
        b.arrived.extend(&record);
        b.ended = true;
        while b.drive(Time(0), usize::MAX) {}
        let (bytes, end) = b.take_received();
        // Type and version of a record mean nothing any more in TLS 1.3, and are not always looked at.
        if at < 3 && bytes == SECRET {
            continue;
        }
        assert!(bytes.is_empty() && end.is_some(), "bit {bit} of byte {at}: {end:?}");
        b.assert_at_rest();
    }
}

#[test]
fn a_handshake_that_is_cut_off_anywhere_ends_in_an_error() {
    let whole = {
        let (a, _b) = established(usize::MAX);
        a.said.len()
    };
    for cut in 0..whole {
        let (mut a, mut between) = pair(Some(authority(1).trust()), None);
        settle(&mut a, &mut between, usize::MAX);
        let hello: Vec<u8> = between.arrived.drain(..).collect();
        if cut >= hello.len() {
            break;
        }
        let (_, mut b) = pair(None, Some(1));
        b.recv(4096);
        b.arrived.extend(&hello[..cut]);
        b.ended = true;
        while b.drive(Time(0), usize::MAX) {}
        assert_eq!(b.take_received(), (vec![], Some(Err(Errno::PROTOCOL))), "cut at {cut}");
        assert_eq!(*b.failures.borrow(), [Failure::Ended]);
        b.assert_at_rest();
    }
}

#[test]
fn what_waits_comes_back_when_the_machine_shuts_the_stream_down() {
    // Before the handshake: a send waits for it, a receive is out.
    let (_a, mut b) = pair(None, Some(1));
    b.recv(4096);
    b.send(&[SECRET]);
    while b.drive(Time(0), 1) {}
    assert!(b.has_recv_posted() && b.dones.is_empty());
    b.shutdown();
    while b.drive(Time(0), 1) {}
    assert_eq!(b.result_of(is_send), Some(Err(Errno::CANCELED)));
    assert!(b.take_received().1.is_some());
    b.close();
    while b.drive(Time(0), 1) {}
    assert!(b.closed && b.layer.held() == 0);
    b.assert_at_rest();
}

#[test]
fn one_that_was_accepted_says_its_last_word_before_it_ends_and_waits_for_no_peer() {
    let end = |b: &mut Side, shuts: bool| {
        let mut between = Side::new(None, None);
        if shuts {
            b.shutdown();
            settle(b, &mut between, usize::MAX);
        }
        b.close();
        settle(b, &mut between, usize::MAX);
        assert!(b.closed && b.layer.held() == 0);
        between.arrived
    };
    for shuts in [true, false] {
        let (mut a, mut b) = established(usize::MAX);
        a.send(&[SECRET]);
        settle(&mut a, &mut b, usize::MAX);
        assert_eq!(b.take_received().0, SECRET);
        a.recv(4096);
        a.arrived = end(&mut b, shuts);
        while a.drive(Time(0), usize::MAX) {}
        assert_eq!(a.take_received(), (vec![], Some(Ok(0))), "TLS has ended, the stream has not");
        a.assert_at_rest();
        b.assert_at_rest();

        // Somebody who does not read.
        let (mut a, mut b) = established(usize::MAX);
        a.send(&[SECRET]);
        settle(&mut a, &mut b, usize::MAX);
        b.slow = true;
        assert!(end(&mut b, shuts).is_empty());
        a.assert_at_rest();
        b.assert_at_rest();
    }
}

#[test]
fn all_comes_back_when_the_driver_ends() {
    let (mut a, mut b) = pair(Some(authority(1).trust()), None);
    settle(&mut a, &mut b, usize::MAX);
    a.layer.cancel_all();
    while a.drive(Time(0), 1) {}
    assert!(a.result_of(is_connect).is_some_and(|end| end.is_err()));
    assert_eq!(a.layer.held(), 0);
    a.assert_at_rest();
    b.assert_at_rest();
}

#[test]
fn who_waits_for_memory_waits_once_whatever_for_and_goes_on_when_there_is_some() {
    let a = Side::new(None, Some(authority(1).trust()));
    let kept = a.take_all();
    let (mut a, mut b) = meet(a, Side::new(Some(1), None));
    // Its Hello and the answer, and memory for neither.
    a.drive(Time(0), usize::MAX);
    let mut now = Time(0);
    for _ in 0..12 {
        now = now + driver::Span::millis(1);
        assert!(a.layer.next_deadline().is_some_and(|at| at <= now));
        a.drive(now, usize::MAX);
        a.drive(now, usize::MAX);
    }
    assert!((12..16).contains(&a.layer.counters().stalls), "{:?}", a.layer.counters());
    drop(kept);
    now = now + driver::Span::millis(1);
    b.recv(4096);
    settle_at(now, &mut a, &mut b, usize::MAX);
    assert_eq!(a.result_of(is_connect), Some(Ok(STREAM.0)));
    a.assert_at_rest();
    b.assert_at_rest();
}

#[test]
fn a_send_waits_for_memory_and_what_is_heard_does_not() {
    let (mut a, mut b) = established(usize::MAX);
    let mut kept = b.take_all();
    // More than a small buffer holds: the next one is to be a large one, for which there is no memory.
    a.send(&[&[1; 8000]]);
    settle(&mut a, &mut b, usize::MAX);
    assert_eq!(b.take_received().0, [1; 4096]);
    kept.truncate(kept.len() - 1);
    b.recv(4096);
    assert_eq!(b.layer.counters().stalls, 0);
    settle(&mut a, &mut b, usize::MAX);
    assert_eq!(b.take_received().0, [1; 8000 - 4096]);
    // Now a send and a receive, which has the small one still.
    kept.extend(b.take_all());
    kept.truncate(kept.len() - 2);
    b.send(&[SECRET]);
    b.recv(4096);
    kept.extend(b.take_all());
    let mut now = Time(0);
    for _ in 0..12 {
        now = now + driver::Span::millis(1);
        assert!(b.layer.next_deadline().is_some_and(|at| at <= now));
        b.drive(now, usize::MAX);
        b.drive(now, usize::MAX);
    }
    assert!(b.dones.is_empty() && b.has_recv_posted());
    assert!((12..16).contains(&b.layer.counters().stalls), "{:?}", b.layer.counters());
    drop(kept);
    now = now + driver::Span::millis(1);
    b.drive(now, usize::MAX);
    while b.drive(now, usize::MAX) {}
    assert_eq!((b.result_of(is_send), b.layer.next_deadline()), (Some(Ok(31)), None));
    a.recv(4096);
    a.send(&[SECRET]);
    settle(&mut a, &mut b, usize::MAX);
    assert_eq!((a.take_received().0, b.take_received().0), (SECRET.to_vec(), SECRET.to_vec()));
    a.assert_at_rest();
    b.assert_at_rest();
}

#[test]
fn a_message_of_a_handshake_that_is_longer_than_is_kept_ends_the_stream() {
    let (_a, mut b) = pair(None, Some(1));
    b.recv(4096);
    // A ClientHello of 65,535 bytes, which is more with its head, in the largest records.
    let mut hello = vec![1, 0, 0xff, 0xff];
    hello.resize(5 << 14, 0);
    for record in hello.chunks(1 << 14) {
        b.arrived.extend([0x16, 3, 1, 0x40, 0].iter().chain(record));
    }
    while b.drive(Time(0), usize::MAX) {}
    assert_eq!(b.take_received(), (vec![], Some(Err(Errno::PROTOCOL))));
    assert!(matches!(b.failures.borrow()[..], [Failure::Broken(_)]), "{:?}", b.failures);
    b.assert_at_rest();
}

/// One that has a large buffer, in a receive that waits for more.
fn busy() -> (Side, Side) {
    let (mut a, mut b) = established(usize::MAX);
    a.send(&[&[1; 100_000]]);
    let mut got = 0;
    while got < 100_000 {
        settle(&mut a, &mut b, usize::MAX);
        got += b.take_received().0.len();
        b.recv(4096);
    }
    let busy = b.arena.in_use();
    assert!(busy >= 64 << 10, "{busy}");
    (a, b)
}

#[test]
fn a_stream_at_rest_gives_its_large_buffer_back_with_the_first_little_that_comes() {
    let (mut a, mut b) = busy();
    for (at, large) in [(Time(0), true), (Time(0) + driver::Span::seconds(2), false)] {
        a.send(&[SECRET]);
        settle_at(at, &mut a, &mut b, usize::MAX);
        assert_eq!(b.take_received().0, SECRET);
        b.recv(4096);
        assert_eq!(b.arena.in_use() >= 64 << 10, large, "{at:?}");
    }
    a.assert_at_rest();
    b.assert_at_rest();
}

#[test]
fn a_stream_at_rest_keeps_its_large_buffer_where_there_is_no_small_one() {
    let (mut a, mut b) = busy();
    let mut kept = b.take_all();
    a.send(&[SECRET]);
    settle_at(Time(0) + driver::Span::seconds(2), &mut a, &mut b, usize::MAX);
    assert_eq!(b.take_received().0, SECRET);
    // What it might have let go of is somebody else's, but for what the machine receives into.
    kept.extend(b.take_all());
    kept.pop();
    b.recv(4096);
    b.drive(Time(0), usize::MAX);
    assert!(b.has_recv_posted(), "it goes on hearing");
    a.send(&[SECRET]);
    drop(kept);
    settle_at(Time(0) + driver::Span::seconds(4), &mut a, &mut b, usize::MAX);
    assert_eq!(b.take_received().0, SECRET);
    assert!(b.arena.in_use() < 64 << 10, "{:?}", b.arena);
    a.assert_at_rest();
    b.assert_at_rest();
}
