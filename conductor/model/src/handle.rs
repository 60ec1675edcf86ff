//! One entry for everything nodes and targets say: what the simulator drives, message in and answer out.

use crate::api::{
    Heartbeat, HeartbeatAnswer, MembershipAnswer, MembershipRequest, Register, Registered, Report, VolumeMap,
};
use crate::views::{Attach, Detach};
use crate::{Conductor, Dirty, Error, Millis};

/// A message to the conductor.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Request {
    /// See `Conductor::register`.
    Register(Register),
    /// See `Conductor::heartbeat`.
    Heartbeat(Heartbeat),
    /// See `Conductor::membership`.
    Membership(Vec<MembershipRequest>),
    /// See `Conductor::attach`: the volume's name, and who wants it.
    Attach(String, Attach),
    /// See `Conductor::detach`: the volume's name, and who is done with it.
    Detach(String, Detach),
    /// See `Conductor::map`: the volume's name.
    Map(String),
    /// See `Conductor::report`.
    Report(Report),
}

/// What comes back. Not to be sent before the records in `Dirty` are durable.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Answer {
    /// To `Register`.
    Registered(Registered),
    /// To `Heartbeat`.
    Heartbeat(HeartbeatAnswer),
    /// To `Membership`: one for each request.
    Membership(Vec<MembershipAnswer>),
    /// To `Attach` and `Map`.
    Map(VolumeMap),
    /// To `Detach`.
    Detached,
    /// To `Report`: taken, and not to be said again.
    Reported,
    /// To any: nothing was changed.
    Refused(Error),
}

impl Conductor {
    /// Handles one message.
    pub fn handle(&mut self, now: Millis, request: &Request) -> (Answer, Dirty) {
        let handled = match request {
            Request::Register(register) => self.register(now, register).map(|(a, d)| (Answer::Registered(a), d)),
            Request::Heartbeat(beat) => self.heartbeat(now, beat).map(|(a, d)| (Answer::Heartbeat(a), d)),
            Request::Membership(requests) => self.membership(now, requests).map(|(a, d)| (Answer::Membership(a), d)),
            Request::Attach(name, attach) => self.attach(now, name, attach).map(|(a, d)| (Answer::Map(a), d)),
            Request::Detach(name, detach) => self.detach(name, detach).map(|((), d)| (Answer::Detached, d)),
            Request::Report(report) => self.report(now, report).map(|((), d)| (Answer::Reported, d)),
            Request::Map(name) => self.map(name).map(|map| (Answer::Map(map), Dirty::default())),
        };
        handled.unwrap_or_else(|refused| (Answer::Refused(refused), Dirty::default()))
    }
}
