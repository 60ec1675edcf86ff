//! The volume client with a load: so many requests in flight until so many are done.

use crate::cluster::{KEY, Said, VOLUME_BYTES};
use conductor_model::Bytes;
use conductor_model::api::VolumeMap;
use driver::{Done, Machine, Outbox, Time};
use memory::{Arena, Class};
use sim::{Birth, Rng};
use std::rc::Rc;
use volume_client::{BlockOp, BlockRequest, ClientOptions, Transport, VolumeClient};

/// The client's memory.
const ARENA_BYTES: usize = 32 << 20;

/// What is asked for from now on.
#[derive(Clone, Copy)]
pub(crate) struct Load {
    pub(crate) writes: bool,
    /// Bytes of each request.
    pub(crate) bytes: u64,
    pub(crate) depth: u32,
    pub(crate) requests: u32,
}

pub(crate) struct Loader {
    client: VolumeClient,
    arena: Arena,
    random: Rng,
    load: Option<Load>,
    issued: u32,
    done: u32,
}

impl Loader {
    pub(crate) fn new(map: &VolumeMap, birth: &Birth) -> Self {
        let mut random = Rng::new(birth.seed);
        let (arena, mut nonces) = (Arena::small(ARENA_BYTES), random.fork());
        let options = ClientOptions {
            name: "hot-path".to_owned(),
            process: 1,
            attach: map.attach,
            lane: 0,
            read_only: false,
            io_timeout: None,
            depth: 128,
            conn_depth: 128,
            card: None,
            transport: Transport::Tcp,
            secrets: Rc::new(KEY),
            random: Box::new(move || nonces.next_u64()),
        };
        let client = VolumeClient::new(options, map, arena.clone()).unwrap_or_else(|error| panic!("{error}"));
        Self { client, arena, random, load: None, issued: 0, done: 0 }
    }

    fn issue(&mut self, now: Time) {
        let Some(load) = self.load else { return };
        while self.issued < load.requests && self.issued - self.done < load.depth {
            let offset = Bytes(self.random.below(VOLUME_BYTES / load.bytes) * load.bytes);
            let op = if load.writes {
                let len = usize::try_from(load.bytes).unwrap_or(0);
                let Some(mut data) = self.arena.take(len, Class::Client) else { panic!("no memory") };
                data[..8].copy_from_slice(&u64::from(self.issued).to_le_bytes());
                BlockOp::Write { data: data.filled(), crcs: None }
            } else {
                BlockOp::Read
            };
            let request = BlockRequest { tag: u64::from(self.issued), op, offset, len: Bytes(load.bytes), fua: false };
            if self.client.submit(now, request).is_err() {
                panic!("the client takes no more than {} requests", self.issued - self.done);
            }
            self.issued += 1;
        }
    }
}

impl Machine for Loader {
    type Mail = Load;
    type Letter = Said;

    fn start(&mut self, _now: Time, _out: &mut dyn Outbox<Said>) {}
    fn done(&mut self, now: Time, done: Done, out: &mut dyn Outbox<Said>) {
        self.client.done(now, done, out);
    }
    fn mail(&mut self, _now: Time, load: Load, _out: &mut dyn Outbox<Said>) {
        (self.load, self.issued, self.done) = (Some(load), 0, 0);
    }
    fn end_turn(&mut self, now: Time, out: &mut dyn Outbox<Said>) {
        loop {
            self.issue(now);
            self.client.end_turn(now, out);
            let before = self.done;
            while let Some(completion) = self.client.next_completion() {
                if let Err(error) = completion.result {
                    panic!("request {}: {error}", completion.tag);
                }
                self.done += 1;
            }
            // What was answered makes room for more, which leaves in this turn, too.
            if self.done == before {
                break;
            }
        }
        if self.load.is_some_and(|load| self.done == load.requests) {
            self.load = None;
            out.post(Said::Loaded);
        }
    }
    fn next_deadline(&self) -> Option<Time> {
        self.client.next_deadline()
    }
    fn finished(&self) -> bool {
        false
    }
}
