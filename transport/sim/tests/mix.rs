//! Everything at once: whatever happens to it, a world heals, and its machines get on.

mod common;

use common::{Echo, Log, Seen, Talker, address};
use driver::{Span, Time};
use sim::{News, Options, Rng, Setup, State, World};
use std::collections::BTreeMap;

/// Seeds of this test: a second or two.
const SEEDS: u64 = 30;

#[test]
fn after_any_mix_of_faults_everybody_is_heard_again_and_every_fault_has_happened() {
    let mut totals = BTreeMap::<&str, u64>::new();
    for seed in 0..SEEDS {
        let mut options = Options::default();
        // Far apart and impatient, so that not much happens before the timeouts.
        options.network.latency.min = Span::millis(10);
        options.network.connect_timeout = Span::seconds(1);
        options.network.stream_timeout = Span::seconds(2);
        options.network.window = 32 << 10;
        let mut world = World::<(), ()>::new(seed, options);
        let mut chance = Rng::new(seed);
        let echo = world.spawn(Setup::named("echo").listen(address(1)), |_| Echo::new());
        let logs: Vec<Log<Seen>> = (0..3).map(|_| Log::<Seen>::default()).collect();
        let talkers: Vec<_> = logs
            .iter()
            .map(|log| {
                let log = log.clone();
                world.spawn(Setup::named("talker"), move |_| Talker::new(address(1), 3000, log.clone()))
            })
            .collect();
        world.network().reset_ppm = 2_000;
        world.network().silent_ppm = 300;
        for _ in 0..25 {
            let talker = talkers[chance.index(talkers.len())];
            let victim = if chance.coin() { echo } else { talker };
            match chance.below(10) {
                0 => world.partition(echo, talker),
                1 => world.partition_one_way(echo, talker),
                2 => world.partition_one_way(talker, echo),
                3 => world.heal_all(),
                4 => world.kill(victim),
                5 => world.cut_power(victim),
                6 => world.pause(victim),
                7 => world.resume(victim),
                8 => world.silence_between(echo, talker),
                _ => world.reset_between(echo, talker),
            }
            if world.state(victim) == State::Dead && chance.coin() {
                world.restart(victim);
            }
            let most = if chance.below(8) == 0 { Span::seconds(3) } else { Span::millis(200) };
            let span = chance.span(most);
            let until = world.now() + span;
            world.run_until(until, |_, _: News<()>| {});
        }
        (world.network().reset_ppm, world.network().silent_ppm) = (0, 0);
        world.heal_all();
        for process in talkers.iter().copied().chain([echo]) {
            match world.state(process) {
                State::Dead => world.restart(process),
                State::Paused => world.resume(process),
                State::Running => {}
            }
        }
        let before: Vec<u64> = logs.iter().map(|log| log.borrow().echoed).collect();
        let limit = Time(world.now().0 + Span::seconds(20).0);
        let heard =
            |_: &World<(), ()>| logs.iter().zip(&before).all(|(log, before)| log.borrow().echoed > *before + 10_000);
        world.run_until_done(limit, |_, _| {}, heard).unwrap_or_else(|stall| panic!("seed {seed}: {stall}"));
        for (name, n) in world.counts() {
            *totals.entry(name).or_insert(0) += n;
        }
    }
    for name in [
        "net.refused",
        "net.connect_timeout",
        "net.syn_unanswered",
        "net.held",
        "net.unacknowledged",
        "net.reset",
        "net.reset_lost",
        "net.silenced",
        "net.stream_timeout",
        "net.answered_by_reset",
        "net.peer_ended",
        "net.peer_reset",
        "net.peer_silent",
        "net.send_flushed",
        "net.window_full",
        "process.power_cut",
        "process.paused",
    ] {
        assert!(totals.get(name).is_some_and(|n| *n >= 5), "{name} in {totals:#?}");
    }
}
