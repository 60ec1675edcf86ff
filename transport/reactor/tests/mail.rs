//! Mail from other threads.
#![allow(clippy::unwrap_used, dead_code, reason = "a test, and helpers that not every test uses")]

mod common;

use common::{Bench, Listens, driver};
use reactor::{Limits, NotSent, Reactor, mailbox};
use std::thread;
use std::time::{Duration, Instant};

/// Far more than it takes, on a busy machine too.
const LONG: Duration = Duration::from_secs(60);

#[test]
fn mail_arrives_in_order_and_wakes_a_sleeping_reactor() {
    let mut bench = Bench::new();
    let mailbox = bench.mailbox.clone();
    let sender = thread::spawn(move || {
        for piece in 0..2000 {
            if piece % 500 == 0 {
                thread::sleep(Duration::from_millis(3));
            }
            while let Err(NotSent::Full(_)) = mailbox.send(piece) {
                thread::yield_now();
            }
        }
    });
    while bench.reactor.machine().mails.len() < 2000 {
        bench.reactor.turn().unwrap();
    }
    sender.join().unwrap();
    assert!(bench.reactor.machine().mails.iter().copied().eq(0..2000));
    bench.assert_empty();
}

#[test]
fn a_wake_takes_far_less_than_a_tick() {
    let mut bench = Bench::new();
    let mailbox = bench.mailbox.clone();
    let sender = thread::spawn(move || {
        for _ in 0..50 {
            thread::sleep(Duration::from_millis(1));
            mailbox.send(reactor::clock::now().0).unwrap();
        }
    });
    let mut delays = Vec::new();
    while delays.len() < 50 {
        bench.reactor.turn().unwrap();
        let now = reactor::clock::now().0;
        delays.extend(bench.reactor.machine().mails.drain(..).map(|sent| Duration::from_nanos(now - sent)));
    }
    sender.join().unwrap();
    delays.sort();
    println!("wake: median {:?}, worst {:?}", delays[25], delays[49]);
    // The best of them: on a busy machine any other may wait for a processor.
    assert!(delays[0] < Duration::from_millis(5), "{delays:?}");
}

#[test]
fn a_full_mailbox_gives_the_mail_back() {
    let (mailbox, rx) = mailbox::<u64>(2).unwrap();
    mailbox.send(1).unwrap();
    mailbox.send(2).unwrap();
    assert!(matches!(mailbox.send(3), Err(NotSent::Full(3))));
    drop(rx);
    assert!(matches!(mailbox.send(4), Err(NotSent::Ended(4))));
    assert_eq!(mailbox.counters(Duration::from_secs(5)), None);
}

#[test]
fn counters_are_copied_out_on_request() {
    let (mailbox, rx) = mailbox::<u64>(2).unwrap();
    let thread = thread::spawn(move || {
        let mut reactor = Reactor::start(Listens::default(), driver(Limits::default()), rx).unwrap();
        while reactor.machine().mails.is_empty() {
            reactor.turn().unwrap();
        }
    });
    let first = mailbox.counters(LONG).unwrap();
    let second = mailbox.counters(LONG).unwrap();
    assert!(second.wakes > first.wakes && second.enters > first.enters);
    mailbox.send(0).unwrap();
    thread.join().unwrap();
}

#[test]
fn a_deadline_ends_a_turn_in_which_nothing_happens() {
    let mut bench = Bench::new();
    bench.reactor.machine().deadline = Some(reactor::clock::now() + driver::Span::millis(30));
    let before = Instant::now();
    bench.reactor.turn().unwrap();
    assert!(before.elapsed() >= Duration::from_millis(29));
}

#[test]
fn a_reactor_that_spins_hears_everything_too() {
    let (mailbox, rx) = mailbox::<u64>(16).unwrap();
    let sender = thread::spawn(move || {
        for piece in 0..20 {
            thread::sleep(Duration::from_micros(300));
            mailbox.send(piece).unwrap();
        }
    });
    let mut reactor = Reactor::start(Listens::default(), driver(Limits::default()), rx).unwrap();
    reactor = reactor.spin(driver::Span::millis(1));
    while reactor.machine().mails.len() < 20 {
        reactor.turn().unwrap();
    }
    sender.join().unwrap();
}
