//! Two processes of the simulator.

use driver::{Address, Span};
use sim::{News, Options, ProcessId, Setup, State, Step, World};
use std::collections::VecDeque;

use crate::{Ends, Order, Peer, Told, Who};

/// Virtual time that is enough for everything that a case waits for.
const PATIENCE: Span = Span::seconds(60);

/// See above. The server is the first process.
pub struct Simulated {
    world: World<Order, Told>,
    ids: [ProcessId; 2],
    told: [VecDeque<Told>; 2],
}

fn at(port: u16) -> Address {
    Address::Tcp(([10, 0, 0, 1], port).into())
}

impl Simulated {
    /// A world of its own for each seed.
    pub fn new(seed: u64) -> Self {
        let mut world = World::new(seed, Options::default());
        let listens = Setup::named("server").listen(at(7000));
        let server = world.spawn(listens, |birth| Peer::new(Who::Server, birth.seed).on(Some(driver::ListenerId(0))));
        let client = world.spawn(Setup::named("client"), |birth| Peer::new(Who::Client, birth.seed));
        Self { world, ids: [client, server], told: Default::default() }
    }

    fn step(&mut self) {
        match self.world.step() {
            Step::News(News::Letter { from, letter, .. }) => {
                let at = usize::from(from == self.ids[Who::Server as usize]);
                self.told[at].push_back(letter);
            }
            Step::News(_) | Step::Quiet => {}
            Step::Idle => panic!("nothing is scheduled, but something is expected\n{}", self.world.report()),
        }
    }
}

impl Ends for Simulated {
    fn address(&self) -> Address {
        at(7000)
    }

    fn nowhere(&self) -> Address {
        at(7001)
    }

    fn tell(&mut self, who: Who, order: Order) {
        self.world.mail_after(self.ids[who as usize], Span::micros(1), order);
    }

    fn next(&mut self, who: Who) -> Told {
        let until = self.world.now() + PATIENCE;
        loop {
            if let Some(told) = self.told[who as usize].pop_front() {
                return told;
            }
            assert!(self.world.now() < until, "the {who:?} tells nothing\n{}", self.world.report());
            self.step();
        }
    }

    fn pause(&mut self) {
        let until = self.world.now() + Span::millis(1);
        let (ids, told) = (self.ids, &mut self.told);
        self.world.run_until(until, |_, news| {
            if let News::Letter { from, letter, .. } = news {
                told[usize::from(from == ids[Who::Server as usize])].push_back(letter);
            }
        });
    }

    fn kill(&mut self, who: Who) {
        self.world.kill(self.ids[who as usize]);
    }

    fn descriptors(&self) -> Option<usize> {
        None
    }

    fn end(mut self: Box<Self>) {
        for id in self.ids {
            if self.world.state(id) == State::Dead {
                continue;
            }
            self.world.mail_after(id, Span::micros(1), Order::Stop);
            while self.world.state(id) != State::Dead {
                self.step();
            }
        }
    }
}
