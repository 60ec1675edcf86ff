//! What a run has to have met, and how often.

use std::collections::BTreeMap;

/// Times that each of `REQUIRED` must have happened in `FULL` seeds.
pub const FLOOR: u64 = 20;
/// The seeds of a full run.
pub const FULL: u64 = 500;

/// What must happen. Faults, message ops, transitions, outcomes of subtasks.
pub const REQUIRED: &[&str] = &[
    "op.read",
    "op.write",
    "op.write-zeroes",
    "op.discard",
    "op.replica-write",
    "op.replica-zero",
    "op.join",
    "op.promise",
    "done.client-read",
    "done.client-write",
    "done.client-zero",
    "done.client-discard",
    "done.client-flush",
    "done.client-fenced",
    "write.merged",
    "write.stamped-again",
    "request.dropped",
    "reply.ok",
    "reply.stale-epoch",
    "reply.later",
    "read.waits-for-lease",
    "memory.waits",
    "leg.started",
    "leg.done",
    "leg.refused",
    "leg.lost",
    "leg.stale",
    "leg.started-again",
    "replica.not-joined",
    "replica.repeat-answered",
    "replica.repeat-waits",
    "epoch.adopted",
    "ask.born",
    "ask.reopened",
    "ask.refused",
    "membership.granted",
    "membership.stale",
    "membership.refused",
    "member.reopened",
    "join.answered",
    "join.parked",
    "join.refused",
    "join.repeated",
    "settle.nothing",
    "settle.started",
    "settle.piece",
    "primary.serves",
    "promise.renewed",
    "disk.rot",
    "read.damaged",
    "damage.found",
    "damage.repaired",
    "op.replica-read",
    "op.replica-verify",
    "op.replica-repair",
    "scrub.started",
    "scrub.piece",
    "scrub.done",
    "link.connecting",
    "link.up",
    "link.down",
    "node.fenced",
    "session.fenced",
    "hello.refused",
    "client.started",
    "client.ups",
    "client.downs",
    "client.lost",
    "client.resent",
    "client.no-credit",
    "client.maps",
    "client.stale-epochs",
    "client.laters",
    "client.stale-entries",
    "net.timed-out",
    "net.reset",
    "net.silenced",
    "net.partition",
    "net.heal",
    "net.held",
    "net.peer_reset",
    "net.peer_silent",
    "net.send_flushed",
    "node.restarted",
    "process.killed",
    "process.power_cut",
    "process.paused",
    "process.resumed",
    "process.finished",
    "disk.stuck",
    "disk.in_flight.never",
    "disk.unsettled.kept",
    "disk.unsettled.lost",
    "disk.unsettled.torn",
    "conductor.register",
    "conductor.registered",
    "conductor.heartbeat",
    "conductor.membership",
    "conductor.attach",
    "conductor.map",
    "conductor.assignment",
    "conductor.request-lost",
    "conductor.request-twice",
    "conductor.answer-lost",
    "conductor.answer-twice",
    "conductor.unknown-node",
    "conductor.died-before-persisting",
    "conductor.restarted",
];

/// The floor for a run of so many seeds; none for a handful.
pub fn floor(seeds: u64) -> u64 {
    FLOOR * seeds / FULL
}

/// What was met too rarely.
pub fn missing(counts: &BTreeMap<String, u64>, seeds: u64) -> Vec<String> {
    let floor = floor(seeds);
    let faults = crate::faults::FAULTS.iter();
    let rare = REQUIRED.iter().chain(faults).filter_map(|name| {
        let n = counts.get(*name).copied().unwrap_or(0);
        (n < floor).then(|| format!("{name}: {n} times, at least {floor} wanted"))
    });
    rare.collect()
}
