//! A volume client as the executor of a queue.

use crate::Executor;
use conductor_model::api::VolumeMap;
use driver::{Done, Machine, Outbox, Time};
use memory::{Arena, Class, Filling};
use reactor::ReactorError;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use tls::Layer;
use volume_client::{BlockRequest, Completion, View, VolumeClient, Word};

/// What the daemon tells a lane.
#[derive(Debug)]
pub enum VolumeMail {
    /// A map arrived from the conductor, asked for or not.
    Map(Arc<VolumeMap>),
    /// What is served was deleted.
    Gone,
    /// Show yourself.
    Look(Sender<View>),
}

/// What a lane tells the daemon.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum VolumeLetter {
    /// A fresh map is needed now.
    WantsMap,
    /// To be said to people.
    Word(Word),
}

/// A volume client and the arena that it shares with its queue.
pub struct Volume {
    client: VolumeClient,
    arena: Arena,
    tls: Option<Layer>,
}

impl Volume {
    /// `arena` is the one that `client` was made with, and `tls` what its connections to nodes are encrypted with, if they are.
    pub fn new(client: VolumeClient, arena: Arena, tls: Option<Layer>) -> Self {
        Self { client, arena, tls }
    }
}

impl Machine for Volume {
    type Mail = VolumeMail;
    type Letter = VolumeLetter;

    fn start(&mut self, _: Time, _: &mut dyn Outbox<VolumeLetter>) {}

    fn done(&mut self, now: Time, done: Done, out: &mut dyn Outbox<VolumeLetter>) {
        self.client.done(now, done, out);
    }

    fn mail(&mut self, now: Time, mail: VolumeMail, out: &mut dyn Outbox<VolumeLetter>) {
        match mail {
            VolumeMail::Map(map) => self.client.map(now, &map),
            VolumeMail::Gone => self.client.gone(now, out),
            VolumeMail::Look(to) => {
                // Who asked may have given up.
                let _gone = to.send(self.client.view(now));
            }
        }
    }

    fn end_turn(&mut self, now: Time, out: &mut dyn Outbox<VolumeLetter>) {
        self.client.end_turn(now, out);
        if self.client.wants_map(now) {
            out.post(VolumeLetter::WantsMap);
        }
        while let Some(word) = self.client.next_word() {
            out.post(VolumeLetter::Word(word));
        }
    }

    fn next_deadline(&self) -> Option<Time> {
        self.client.next_deadline()
    }

    fn finished(&self) -> bool {
        self.client.finished()
    }
}

impl Executor for Volume {
    fn open_rdma(&mut self, open: &mut dyn FnMut(&Arena) -> Result<(), ReactorError>) -> Result<(), ReactorError> {
        self.client.open_rdma(|| open(&self.arena)).map(|refused| {
            if let Some(error) = refused {
                tracing::warn!(%error, "no RDMA here: everything goes over TCP");
            }
        })
    }

    fn take_tls(&mut self) -> Option<Layer> {
        self.tls.take()
    }

    fn memory(&self, len: usize) -> Option<Filling> {
        self.arena.take(len, Class::Client)
    }

    fn submit(&mut self, now: Time, request: BlockRequest) -> Result<(), BlockRequest> {
        self.client.submit(now, request)
    }

    fn next_completion(&mut self) -> Option<Completion> {
        self.client.next_completion()
    }

    fn in_flight(&self) -> usize {
        self.client.in_flight()
    }

    fn stop(&mut self) {
        self.client.stop();
    }

    fn abort(&mut self, now: Time, out: &mut dyn Outbox<VolumeLetter>) {
        self.client.abort(now, out);
    }
}

impl std::fmt::Debug for Volume {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Debug::fmt(&self.client, f)
    }
}
