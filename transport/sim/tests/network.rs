//! Streams, partitions, resets and processes, seen from two machines that check every byte.

#![allow(clippy::unwrap_used, reason = "a test")]

mod common;

use common::{Echo, Log, Seen, Talker, address};
use driver::{Conn, ConnId, Done, Errno, ListenerId, Machine, Op, Outbox, Provider, Span, StreamId, Time, why};
use memory::{Arena, Class};
use refcount::Table;
use sim::{Clock, News, Options, ProcessId, Setup, Stall, State, World};

type Echoes = World<(), ()>;

fn pair(seed: u64, options: Options, chunk: usize) -> (Echoes, ProcessId, ProcessId, Log<Seen>) {
    let mut world = World::new(seed, options);
    let echo = world.spawn(Setup::named("echo").listen(address(1)), |_| Echo::new());
    let seen = Log::<Seen>::default();
    let log = seen.clone();
    let fast = Clock { offset: 77_000, ppm: 250 };
    let talker = world.spawn(Setup::named("talker").clock(fast), move |_| Talker::new(address(1), chunk, log.clone()));
    (world, echo, talker, seen)
}

fn run(world: &mut Echoes, millis: u64) {
    let until = world.now() + Span::millis(millis);
    world.run_until(until, |_, _: News<()>| {});
}

#[test]
fn the_same_seed_gives_the_same_hash_and_another_one_another() {
    let hash = |seed| {
        let (mut world, echo, talker, _) = pair(seed, Options::default(), 3000);
        world.network().reset_ppm = 2_000;
        run(&mut world, 100);
        world.partition(echo, talker);
        run(&mut world, 50);
        world.heal_all();
        world.kill(echo);
        world.restart(echo);
        run(&mut world, 100);
        world.hash()
    };
    assert_eq!(hash(1), hash(1));
    assert_ne!(hash(1), hash(2));
}

#[test]
fn bytes_arrive_in_order_in_pieces_and_replies_may_overtake_send_completions() {
    let mut overtaken = 0;
    for seed in 0..10 {
        let (mut world, _, _, seen) = pair(seed, Options::default(), 6000);
        run(&mut world, 200);
        let seen = seen.borrow();
        assert!(seen.echoed > 500_000, "{seen:?}");
        assert!(seen.pieces > seen.echoed / 6000, "some were cut");
        assert!(seen.errors.is_empty());
        overtaken += seen.echoed_when_sent.iter().zip(1..).filter(|(heard, n)| **heard >= n * 6000).count();
    }
    assert!(overtaken > 0, "a whole echo came back before its own send was complete");
}

#[test]
fn memory_is_given_back_only_after_its_last_byte_was_read() {
    let mut world_scribbled = 0;
    for seed in 0..10 {
        let mut options = Options::default();
        options.network.piece = 512;
        options.network.window = 4096;
        let (mut world, _, talker, seen) = pair(seed, options, 10_000);
        run(&mut world, 200);
        world_scribbled += world.machine::<Talker>(talker).unwrap().scribbled;
        assert!(seen.borrow().echoed > 50_000, "{:?}", seen.borrow());
        assert!(world.count("net.window_full") > 0);
    }
    // The talker overwrites what it sent the moment it is the only holder, and checks every echoed byte.
    assert!(world_scribbled > 50);
}

#[test]
fn a_reset_gives_every_operation_back_and_cuts_frames() {
    let mut mid_frame = 0;
    for seed in 0..20 {
        let (mut world, echo, talker, seen) = pair(seed, Options::default(), 5000);
        world.network().reset_ppm = 10_000;
        run(&mut world, 400);
        world.network().reset_ppm = 0;
        world.reset_between(echo, talker);
        run(&mut world, 100);
        let seen = seen.borrow();
        assert!(seen.connected > 2, "{seen:?}");
        assert!(seen.errors.contains(&Errno::RESET));
        assert!(
            seen.submitted - seen.returned <= 3,
            "two receives and a send of the stream that is open now: {seen:?}"
        );
        mid_frame += u32::from(!seen.echoed.is_multiple_of(5000));
    }
    assert!(mid_frame > 5);
}

#[test]
fn a_short_partition_delays_and_a_long_one_breaks() {
    let (mut world, echo, talker, seen) = pair(3, Options::default(), 5000);
    run(&mut world, 50);
    world.partition(echo, talker);
    run(&mut world, 20);
    let before = seen.borrow().echoed;
    run(&mut world, 5_000);
    assert_eq!(seen.borrow().echoed, before, "nothing passes");
    assert!(world.count("net.held") > 0);
    world.heal(echo, talker);
    run(&mut world, 100);
    assert!(seen.borrow().echoed > before);
    assert_eq!(seen.borrow().connected, 1, "the stream survived");

    world.partition_one_way(echo, talker);
    run(&mut world, 60_000);
    assert!(seen.borrow().errors.contains(&Errno::TIMED_OUT), "{:?}", seen.borrow().errors);
    let before = seen.borrow().echoed;
    world.heal_all();
    run(&mut world, 3_000);
    assert!(seen.borrow().echoed > before && seen.borrow().connected == 2);
}

#[test]
fn a_cut_address_holds_what_goes_there_and_not_what_goes_to_another_one_of_the_same_process() {
    let mut world: Echoes = World::new(4, Options::default());
    let both = Setup::named("echo").listen(address(1)).listen(address(2));
    let echo = world.spawn(both, |_| Echo::with_listeners(2));
    let seen = [1, 2].map(|port| {
        let seen = Log::<Seen>::default();
        let log = seen.clone();
        world.spawn(Setup::named("talker"), move |_| Talker::new(address(port), 5000, log.clone()));
        seen
    });
    let echoed = || seen.each_ref().map(|seen| seen.borrow().echoed);
    run(&mut world, 50);
    world.cut(echo, address(1));
    run(&mut world, 20);
    let before = echoed();
    run(&mut world, 5_000);
    assert!(echoed()[0] == before[0] && echoed()[1] > before[1], "{before:?} {:?}", echoed());
    world.mend(echo, &address(1));
    run(&mut world, 100);
    assert!(echoed()[0] > before[0]);
    assert_eq!(seen[0].borrow().connected, 1, "the stream survived");
    world.cut(echo, address(2));
    run(&mut world, 60_000);
    assert!(seen[1].borrow().errors.contains(&Errno::TIMED_OUT), "{:?}", seen[1].borrow().errors);
    world.heal_all();
    run(&mut world, 3_000);
    assert_eq!(seen[1].borrow().connected, 2);
}

#[test]
fn a_silenced_stream_is_given_up_and_a_new_one_works() {
    let (mut world, echo, talker, seen) = pair(4, Options::default(), 5000);
    run(&mut world, 50);
    world.silence_between(echo, talker);
    run(&mut world, 40_000);
    assert_eq!(seen.borrow().connected, 2);
    assert!(seen.borrow().errors.contains(&Errno::TIMED_OUT));
}

#[test]
fn a_dead_process_refuses_and_one_without_power_is_silent() {
    let (mut world, echo, _, seen) = pair(5, Options::default(), 5000);
    run(&mut world, 50);
    world.kill(echo);
    assert_eq!(world.state(echo), State::Dead);
    run(&mut world, 200);
    assert!(seen.borrow().errors.contains(&Errno::REFUSED));
    world.restart(echo);
    run(&mut world, 200);
    assert!(seen.borrow().connected >= 2);

    seen.borrow_mut().errors.clear();
    world.cut_power(echo);
    run(&mut world, 10_000);
    assert!(seen.borrow().errors.is_empty(), "nobody tells: {:?}", seen.borrow().errors);
    let before = seen.borrow().connected;
    world.restart(echo);
    assert!(world.local(echo) < Time(1_000_000), "its clock started with its host");
    run(&mut world, 3_000);
    assert!(seen.borrow().connected > before, "what was sent to the old life was answered by a reset");

    world.cut_power(echo);
    run(&mut world, 60_000);
    assert!(seen.borrow().errors.contains(&Errno::TIMED_OUT), "streams and connects give up");
}

#[test]
fn a_killed_peer_is_seen_as_an_end_or_as_a_reset() {
    let (mut ends, mut resets) = (0, 0);
    for seed in 0..40 {
        let (mut world, echo, _, seen) = pair(seed, Options::default(), 5000);
        run(&mut world, 20);
        world.kill(echo);
        run(&mut world, 20);
        ends += seen.borrow().ends.min(1);
        resets += u64::from(seen.borrow().errors.contains(&Errno::RESET));
    }
    assert!(ends > 5 && resets > 5, "{ends} {resets}");
}

#[test]
fn a_paused_process_gets_nothing_and_then_all_of_it() {
    let (mut world, _, talker, seen) = pair(6, Options::default(), 5000);
    run(&mut world, 20);
    world.pause(talker);
    let returned = seen.borrow().returned;
    run(&mut world, 1_000);
    assert_eq!(seen.borrow().returned, returned);
    world.resume(talker);
    run(&mut world, 20);
    assert!(seen.borrow().returned > returned);
    assert_eq!(seen.borrow().connected, 1);
}

#[test]
fn a_world_in_which_nothing_can_happen_any_more_says_who_waits_for_what() {
    let mut world = Echoes::new(1, Options::default());
    world.spawn(Setup::named("lonely").listen(address(9)), |_| Echo::new());
    let stall = world.run_until_done(Time(1_000_000), |_, _| {}, |_| false).unwrap_err();
    assert!(
        matches!(&stall, Stall::Idle(report) if report.contains("lonely") && report.contains("1 accept")),
        "{stall}"
    );
}

#[test]
fn alarms_come_when_asked_for_and_the_trace_tells_what_happened() {
    let (mut world, _, _, _) = pair(7, Options::default(), 100);
    world.keep_trace(50);
    world.alarm_at(Time(5_000_000), 42);
    let mut heard = None;
    world.run_until(Time(10_000_000), |world, news| {
        if news == News::Alarm(42) {
            heard = Some(world.now());
        }
    });
    assert_eq!(heard, Some(Time(5_000_000)));
    assert_eq!(world.now(), Time(10_000_000));
    assert_eq!(world.trace().count(), 50);
    assert!(world.trace().any(|line| line.contains("done.recv")));
}

/// Watches what it accepts, and reads nothing before the watch is over; then all.
struct Deaf {
    arena: Arena,
    conns: Table<Conn>,
    noticed: Option<Time>,
    read: u64,
    over: bool,
}

impl Deaf {
    fn conn() -> Conn {
        Conn::new(ConnId { slot: 0, generation: 0 }, Provider::Nbd)
    }

    fn receive(&self, stream: StreamId, out: &mut dyn Outbox<()>) {
        let into = self.arena.take(4096, Class::Client).unwrap();
        out.submit(Op::Recv { stream, on: self.conns.insert::<why::Rx>(Self::conn()), into, from: 0 });
    }
}

impl Machine for Deaf {
    type Mail = ();
    type Letter = ();
    fn start(&mut self, _: Time, out: &mut dyn Outbox<()>) {
        out.submit(Op::Accept { listener: ListenerId(0) });
    }
    fn done(&mut self, now: Time, done: Done, out: &mut dyn Outbox<()>) {
        match (done.op, done.result) {
            (Op::Accept { .. }, Ok(stream)) => {
                let on = self.conns.insert::<why::Watch>(Self::conn());
                out.submit(Op::Watch { stream: StreamId(stream), on });
            }
            (Op::Watch { stream, .. }, result) => {
                assert_eq!(result, Ok(0));
                assert!(self.noticed.replace(now).is_none(), "once");
                self.receive(stream, out);
            }
            (Op::Recv { stream, .. }, Ok(n)) if n > 0 => {
                self.read += u64::from(n);
                self.receive(stream, out);
            }
            (Op::Recv { stream, .. }, _) => out.submit(Op::Close { stream }),
            (Op::Close { .. }, _) => self.over = true,
            other => panic!("{other:?}"),
        }
    }
    fn mail(&mut self, _: Time, (): (), _: &mut dyn Outbox<()>) {}
    fn end_turn(&mut self, _: Time, _: &mut dyn Outbox<()>) {
        while self.conns.reap().is_some() {}
    }
    fn next_deadline(&self) -> Option<Time> {
        None
    }
    fn finished(&self) -> bool {
        false
    }
}

#[test]
fn a_watch_notices_a_peer_that_died_or_was_cut_off_though_nothing_is_read() {
    let mut unread = 0;
    for seed in 0..20 {
        let mut world: Echoes = World::new(seed, Options::default());
        let deaf = || Deaf { arena: Arena::small(1 << 20), conns: Table::new(), noticed: None, read: 0, over: false };
        let server = world.spawn(Setup::named("deaf").listen(address(1)), move |_| deaf());
        let log = Log::<Seen>::default();
        let talker = world.spawn(Setup::named("talker"), move |_| Talker::new(address(1), 3000, log.clone()));
        run(&mut world, 200);
        assert_eq!(world.machine::<Deaf>(server).unwrap().noticed, None, "bytes are no end");
        let before = world.local(server);
        if seed % 2 == 0 {
            world.kill(talker);
        } else {
            world.reset_between(server, talker);
        }
        run(&mut world, 15);
        let it = world.machine::<Deaf>(server).unwrap();
        assert!(it.noticed.is_some_and(|at| at >= before), "seed {seed}: {}", world.report());
        unread += it.read;
        run(&mut world, 500);
        assert!(world.machine::<Deaf>(server).unwrap().over, "seed {seed}: {}", world.report());
    }
    assert!(unread > 0, "what came before the end was there to be read");
}
