//! What the world does about machines of several types, mail, stopping, and machines that break the contract.

mod common;

use common::{Echo, Log, Seen, Talker, address};
use driver::{Done, Machine, Op, Outbox, Span, StreamId, Time};
use sim::{Clock, News, Options, Setup, State, Step, World};
use std::time::Instant;

/// Answers numbers by their double, a little later, and stops at zero.
struct Doubler {
    due: Option<(Time, u32)>,
    stopped: bool,
    spins: bool,
}

impl Machine for Doubler {
    type Mail = u32;
    type Letter = u64;
    fn start(&mut self, _: Time, _: &mut dyn Outbox<u64>) {}
    fn done(&mut self, _: Time, _: Done, _: &mut dyn Outbox<u64>) {}
    fn mail(&mut self, now: Time, mail: u32, _: &mut dyn Outbox<u64>) {
        self.stopped = mail == 0;
        self.due = (mail > 0).then_some((now + Span::millis(10), mail));
    }
    fn end_turn(&mut self, now: Time, out: &mut dyn Outbox<u64>) {
        if !self.spins
            && let Some((at, n)) = self.due
            && at <= now
        {
            self.due = None;
            out.post(u64::from(n) * 2);
        }
    }
    fn next_deadline(&self) -> Option<Time> {
        self.due.map(|(at, _)| at)
    }
    fn finished(&self) -> bool {
        self.stopped
    }
}

/// Does one forbidden thing.
struct Breaker(fn() -> Op);

impl Machine for Breaker {
    type Mail = std::convert::Infallible;
    type Letter = u64;
    fn start(&mut self, _: Time, out: &mut dyn Outbox<u64>) {
        out.submit((self.0)());
    }
    fn done(&mut self, _: Time, _: Done, _: &mut dyn Outbox<u64>) {}
    fn mail(&mut self, _: Time, mail: Self::Mail, _: &mut dyn Outbox<u64>) {
        match mail {}
    }
    fn end_turn(&mut self, _: Time, _: &mut dyn Outbox<u64>) {}
    fn next_deadline(&self) -> Option<Time> {
        None
    }
    fn finished(&self) -> bool {
        false
    }
}

/// The mail and letters of a world of both kinds.
enum Post {
    Number(u32),
    Other,
}
impl TryFrom<Post> for u32 {
    type Error = ();
    fn try_from(post: Post) -> Result<u32, ()> {
        match post {
            Post::Number(n) => Ok(n),
            Post::Other => Err(()),
        }
    }
}
impl TryFrom<Post> for std::convert::Infallible {
    type Error = ();
    fn try_from(_: Post) -> Result<Self, ()> {
        Err(())
    }
}
#[derive(Debug, PartialEq)]
struct Letter(u64);
impl From<u64> for Letter {
    fn from(n: u64) -> Self {
        Self(n)
    }
}

fn doubler(spins: bool) -> Doubler {
    Doubler { due: None, stopped: false, spins }
}

#[test]
fn machines_of_several_types_share_a_world_and_letters_come_when_they_are_posted() {
    let mut world = World::<Post, Letter>::new(1, Options::default());
    let slow = Clock { offset: 1_000_000_000, ppm: -100_000 };
    let process = world.spawn(Setup::named("doubler").clock(slow), |_| doubler(false));
    world.mail_after(process, Span::millis(1), Post::Number(21));
    let mut heard = Vec::new();
    world.run_until(Time(50_000_000), |world, news| {
        if heard.is_empty() {
            world.mail_after(process, Span::millis(1), Post::Number(0));
        }
        heard.push((world.now(), news));
    });
    assert!(matches!(&heard[0], (_, News::Letter { life: 1, letter: Letter(42), .. })));
    assert!(heard[0].0 >= Time(1_000_000 + 10_000_000 * 10 / 9), "ten milliseconds of a slow clock");
    assert_eq!(heard[1].1, News::Finished(process));
    assert_eq!(world.state(process), State::Dead);
    assert_eq!(world.step(), Step::Idle);
}

#[test]
fn mail_for_an_earlier_life_is_lost() {
    let mut world = World::<Post, Letter>::new(1, Options::default());
    let process = world.spawn(Setup::named("doubler"), |_| doubler(false));
    world.mail_after(process, Span::millis(1), Post::Number(1));
    world.kill(process);
    world.mail_after(process, Span::millis(1), Post::Number(2));
    world.restart(process);
    world.run_until(Time(100_000_000), |_, news| panic!("{news:?}"));
    assert_eq!((world.count("mail.lost"), world.life(process)), (2, 2));
    assert!(world.machine::<Doubler>(process).is_some_and(|it| it.due.is_none()));
    assert!(world.machine::<Echo>(process).is_none());
}

#[test]
#[should_panic(expected = "stays due")]
fn a_machine_that_spins_is_found() {
    let mut world = World::<Post, Letter>::new(1, Options::default());
    let process = world.spawn(Setup::named("spinner"), |_| doubler(true));
    world.mail_after(process, Span::millis(1), Post::Number(1));
    world.run_until(Time(u64::MAX), |_, _| {});
}

#[test]
#[should_panic(expected = "breaker (p0): StreamId(3) is not open")]
fn a_close_of_a_number_never_given_out_is_found() {
    World::<Post, Letter>::new(1, Options::default())
        .spawn(Setup::named("breaker"), |_| Breaker(|| Op::Close { stream: StreamId(3) }));
}

#[test]
#[should_panic(expected = "unaligned")]
fn an_unaligned_disk_operation_is_found() {
    let mut world = World::<Post, Letter>::new(1, Options::default());
    let disk = world.add_disk(sim::DiskOptions::sized(1 << 20));
    let punch = || Op::DiskPunch { disk: driver::DiskIndex(0), tag: 0, at: 512, len: 4096 };
    world.spawn(Setup::named("breaker").disk(disk), move |_| Breaker(punch));
}

#[test]
#[should_panic(expected = "another kind of machine")]
fn mail_that_no_machine_takes_is_found() {
    let mut world = World::<Post, Letter>::new(1, Options::default());
    let process = world.spawn(Setup::named("doubler"), |_| doubler(false));
    world.mail_after(process, Span(0), Post::Other);
    world.run_until(Time(1_000_000), |_, _| {});
}

#[test]
fn a_hundred_thousand_completions_take_seconds_at_most() {
    let mut world = World::<(), ()>::new(1, Options::default());
    let seen = Log::<Seen>::default();
    world.spawn(Setup::named("echo").listen(address(1)), |_| Echo::new());
    let log = seen.clone();
    world.spawn(Setup::named("talker"), move |_| Talker::new(address(1), 4096, log.clone()));
    let start = Instant::now();
    let enough = |world: &World<(), ()>| world.count("done.recv") + world.count("done.send") > 100_000;
    world.run_until_done(Time(u64::MAX), |_, _| {}, enough).unwrap();
    println!("{:?} for {:?} of it", start.elapsed(), world.now());
    assert!(start.elapsed().as_secs() < 20, "some thousand times slower than it should be");
}
