//! A storage node on an established session: a client's or another node's, as the first byte says.
//!
//! Input: role u8, then messages (op, body and payload as they come; checksums, session and tag are made right). The node owns a store
//! with copies of volumes 1 and 2; of volume 1 it is the primary. Whatever is asked, it answers or closes the connection, and in the end
//! it stops and gives everything back.

use crate::arena;
use crate::input::Input;
use crate::line::{KEY, Line, Message, client};
use crate::store::{DISK, DISK_ID, Disk, IMAGE, Rig, config, range, stamp};
use conductor_model::api::MembershipAnswer;
use conductor_model::{Bytes, CopyId, Epoch, NodeId, OpenId, Sequence, ShardSnapshot, SnapshotId, Stamp};
use driver::{ListenerId, Machine, Span};
use node_core::{Letter, Mail, Node, NodeOptions};
use node_protocol::{
    FillBody, IoBody, JoinBody, LayerBody, Mark, MarkBody, Prefix, PromiseBody, RangeBody, ReplicaBody, ScanBody,
    ViewBody, op,
};
use node_store::journaled::JournaledStore;
use std::rc::Rc;
use tcp::{Net, NetOptions};
use wire::{HelloInfo, Op, Role, SHARED};

const MESSAGES: usize = 12;
/// The copies of the image.
const ONE: CopyId = CopyId(1);
const TWO: CopyId = CopyId(2);
/// Longer than any deadline of a node.
const LONG: Span = Span::seconds(120);

type Serving = Line<'static, Node<JournaledStore>>;

fn serving() -> Serving {
    let (store, disk, started) = Rig::open(Disk::new(&IMAGE), &arena::shared()).expect("a good image").taken();
    // What its life before may have promised is over.
    let now = started + LONG;
    let options = NodeOptions { node: NodeId(1), process: 2, lane: 0 };
    let disks = vec![node_core::Disk { disk: DISK_ID, open: OpenId(1), index: DISK, store }];
    let mut last = 0u64;
    let random = move || {
        last += 1;
        last.wrapping_mul(0x9e37_79b9_7f4a_7c15)
    };
    let net = NetOptions::new(Node::hello_info(&options, &disks), Rc::new(KEY), Box::new(random));
    let net = Net::new(net, arena::shared());
    let node = Node::new(options, arena::shared(), net, disks, vec![ListenerId(0)], started);
    let mut line = Line::new(node, disk, now);
    line.machine.mail(now, Mail::Assign(vec![config(ONE, 3)]), &mut line.out);
    line.turn();
    line
}

/// The conductor grants whatever is asked.
fn grant(line: &mut Serving) {
    for letter in std::mem::take(&mut line.out.letters) {
        if let Letter::Ask(ask) = letter {
            let next = config(ONE, ask.epoch.0.saturating_add(1));
            let granted = Mail::Membership(ask.shard, MembershipAnswer::Granted(next));
            line.machine.mail(line.now, granted, &mut line.out);
        }
    }
}

pub(crate) fn target(data: &[u8]) {
    let in_use = arena::shared().in_use();
    let mut input = Input::new(data);
    let info = match input.u8() % 4 {
        0 => client(),
        1 => HelloInfo { view: 6, ..client() },
        2 => HelloInfo::new(Role::Node, "n2", 9),
        _ => HelloInfo { features: SHARED, ..client() },
    };
    let mut line = serving();
    let (session, key) = line.enter(&info);
    for _ in 0..MESSAGES {
        if input.is_empty() || line.is_over() {
            break;
        }
        let bytes = Message::read(&mut input).frame(session, &key);
        line.send(&bytes, u8::MAX);
        line.pass(Span::millis(20));
        grant(&mut line);
        while line.hear().is_some() {}
    }
    let _ = line.machine.view();
    line.end();
    line.pass(Span::seconds(10));
    grant(&mut line);
    line.machine.mail(line.now, Mail::Stop, &mut line.out);
    line.pass(LONG);
    assert!(line.machine.finished(), "{:?}", line.machine.view().refs);
    drop(line);
    assert_eq!(arena::shared().in_use(), in_use, "all memory is back");
}

pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let message = |op: Op, slot: u8, body: &[u8], payload: usize| Message {
        op: op.0,
        stamped: true,
        slot,
        body: body.to_vec(),
        payload: vec![7; payload],
        ..Message::default()
    };
    let (one, two) = (config(ONE, 3), config(TWO, 3));
    let block = conductor_model::BLOCK;
    let io = |op: Op, slot: u8, offset: u64, len: u32, payload: usize| {
        message(op, slot, IoBody::new(one.shard, Epoch(3), u64::from(slot) + 1, Bytes(offset), len).bytes(), payload)
    };
    let at = range(5, 2);
    let change = |sequence: u64| {
        let stamp = Stamp { epoch: Epoch(3), sequence: Sequence(sequence) };
        ReplicaBody::new(two.shard, stamp, at, None, None)
    };
    let of = ShardSnapshot { shard: one.shard, snapshot: SnapshotId(6) };
    let join = JoinBody {
        volume: 2.into(),
        epoch: 3.into(),
        copy: 2.into(),
        open: 1.into(),
        primary: 2.into(),
        primary_open: 1.into(),
        ..JoinBody::default()
    };
    let json = serde_json::to_vec(&two).expect("a configuration");
    let join = Message { payload: json, ..message(op::JOIN, 0, join.bytes(), 0) };
    let mark = Mark { base: stamp(1), upto: stamp(2), ..Mark::default() };
    let view = |shard| ViewBody::new(shard, Epoch(3), None, at);
    let replica = |op: Op, slot: u8, payload: usize| message(op, slot, change(10 + u64::from(slot)).bytes(), payload);
    let sync = ReplicaBody { at: 0.into(), prefix: Prefix::default(), ..change(12) };
    let seed = |role: u8, messages: &[Message]| {
        let mut bytes = vec![role];
        messages.iter().for_each(|message| message.write(&mut bytes));
        bytes
    };
    let reads = [io(op::READ, 0, 57_344, 4096, 0), io(op::READ, 1, 100, 700, 0), io(op::FLUSH, 2, 0, 0, 0)];
    let writes = [
        io(op::WRITE, 0, 512, 512, 512),
        io(op::WRITE_ZEROES, 1, 4096, 8192, 0),
        io(op::DISCARD, 2, 0, 65_536, 0),
        io(op::READ, 3, 0, 4096, 0),
        io(op::EXTENTS, 4, 0, 65_536, 0),
    ];
    let hold = |op: Op, slot: u8| {
        // As if it had held it before: the primary may follow another one.
        let body = RangeBody::new(one.shard, Epoch(3), range(0, 4)).for_writing(true).held_before(true);
        message(op, slot, body.bytes(), 0)
    };
    let fill = FillBody::new(two.shard, Epoch(3), stamp(4), at);
    vec![
        seed(0, &reads),
        seed(0, &writes),
        seed(1, &reads),
        seed(3, &[hold(op::REGISTER_RANGE, 0), writes[0].clone(), hold(op::UNREGISTER_RANGE, 1), writes[3].clone()]),
        seed(2, &[join.clone(), replica(op::REPLICA_ZERO, 1, 0), message(op::REPLICA_FLUSH, 2, sync.bytes(), 0)]),
        seed(2, &[join.clone(), message(op::REPLICA_SNAPSHOT, 1, LayerBody::new(change(11), of).bytes(), 0)]),
        seed(2, &[join.clone(), message(op::REPLICA_SHARE, 1, LayerBody::new(change(11), of).bytes(), 0)]),
        seed(
            2,
            &[
                join.clone(),
                message(op::REPLICA_READ, 1, view(two.shard).bytes(), 0),
                message(op::REPLICA_VERIFY, 2, view(two.shard).bytes(), 0),
            ],
        ),
        seed(
            2,
            &[
                join.clone(),
                message(op::FILL_SCAN, 1, ScanBody::new(two.shard, Epoch(3), stamp(0), range(0, 1).from).bytes(), 0),
            ],
        ),
        seed(
            2,
            &[
                join,
                message(op::FILL, 1, fill.with_zeroes().bytes(), 0),
                message(op::FILL, 4, fill.with_lost(None).bytes(), 0),
                message(op::FILL_SNAPSHOT, 2, fill.with_snapshot(SnapshotId(9)).bytes(), 0),
                message(op::FILL_MARK, 3, MarkBody::new(two.shard, Epoch(3), mark).bytes(), 0),
            ],
        ),
        seed(
            2,
            &[message(op::PROMISE, 0, PromiseBody::default().bytes(), 0), replica(op::REPLICA_WRITE, 1, 2 * block)],
        ),
        seed(2, &[message(op::REPLICA_REPAIR, 0, view(one.shard).bytes(), 2 * block)]),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use node_protocol::{ReplyBody, Status};

    /// What the messages of a seed are answered.
    fn answers(seed: &[u8], info: &HelloInfo) -> Vec<Option<Status>> {
        let mut line = serving();
        let (session, key) = line.enter(info);
        let mut input = Input::new(&seed[1..]);
        let mut answers = Vec::new();
        while !input.is_empty() {
            line.send(&Message::read(&mut input).frame(session, &key), u8::MAX);
            line.pass(Span::millis(20));
            grant(&mut line);
            while let Some((header, body)) = line.hear() {
                if header.flags.is_reply() {
                    answers.push(ReplyBody::status_of(&body));
                }
            }
        }
        answers
    }

    #[test]
    fn the_seeds_are_requests_that_a_node_carries_out() {
        let seeds = seeds();
        let ok = Some(Status::Ok);
        assert_eq!(answers(&seeds[0], &client()), [ok; 3]);
        assert_eq!(answers(&seeds[1], &client()), [ok; 5]);
        let node = HelloInfo::new(Role::Node, "n2", 9);
        let shares = HelloInfo { features: SHARED, ..client() };
        assert_eq!(answers(&seeds[3], &shares), [ok; 4]);
        assert_eq!(answers(&seeds[4], &node), [ok; 3]);
    }
}
