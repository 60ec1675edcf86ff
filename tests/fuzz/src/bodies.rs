//! The body of every data message, and what travels as their payloads.
//!
//! The first byte says which; the rest is the body, at its end filled up with zeros or cut to the length that it has.

use crate::input::Input;
use conductor_model::{BlockRange, Blocks, Bytes, Epoch, Sequence, ShardId, ShardIndex, ShardSnapshot, SnapshotId};
use conductor_model::{Held, HeldKind, Stamp, VolumeId};
use node_protocol::{
    Fill, FillBody, FillState, IoBody, JoinAnswer, JoinBody, LayerBody, Mark, MarkBody, Prefix, PromiseAnswer,
    PromiseBody, RangeBody, ReplicaBody, ReplyBody, ScanBody, StaleBody, Status, VerifyAnswer, ViewBody,
    decode_changed, decode_crcs, decode_held, decode_withheld, encode_changed, encode_crcs, encode_held,
    encode_withheld,
};
use wire::MAX_BODY;

const KINDS: u8 = 21;

/// Parses a body that has the right length, and no other; it is what was sent.
macro_rules! body {
    ($of:ty, $bytes:expr) => {{
        let mut bytes = $bytes.to_vec();
        assert_eq!(<$of>::parse(&bytes).is_some(), bytes.len() == <$of>::LEN);
        assert!(<$of>::LEN <= MAX_BODY);
        bytes.resize(<$of>::LEN, 0);
        let body = <$of>::parse(&bytes).expect("it has the right length");
        assert_eq!(body.bytes(), bytes);
        body
    }};
}

pub(crate) fn target(data: &[u8]) {
    let mut input = Input::new(data);
    let kind = input.u8() % KINDS;
    let bytes = input.rest();
    match kind {
        0 => {
            body!(Prefix, bytes);
        }
        1 => {
            let body = body!(IoBody, bytes);
            let again = IoBody::new(
                body.shard(),
                Epoch(body.epoch.get()),
                body.sequence.get(),
                Bytes(body.offset.get()),
                body.len(),
            );
            let again = if body.is_fua() { again.with_fua() } else { again };
            assert_eq!((again.shard(), again.len(), again.is_fua()), (body.shard(), body.len(), body.is_fua()));
        }
        2 => replica(&body!(ReplicaBody, bytes)),
        3 => {
            let body = body!(LayerBody, bytes);
            replica(&body.change);
            assert_eq!(LayerBody::new(body.change, body.of()), body);
        }
        4 => {
            let body = body!(JoinBody, bytes);
            let _ = (body.shard(), body.epoch(), body.copy(), body.open());
        }
        5 => {
            let body = body!(ReplyBody, bytes);
            assert_eq!(
                ReplyBody::status_of(body.bytes()).map(Status::code).unwrap_or(body.status.get()),
                body.status.get()
            );
            assert_eq!(ReplyBody::word_of(body.bytes()), body.word.get());
            // Of any body, whatever its length.
            let _ = (ReplyBody::status_of(bytes), ReplyBody::word_of(bytes));
        }
        6 => {
            body!(StaleBody, bytes);
        }
        7 => {
            body!(JoinAnswer, bytes);
        }
        8 => {
            body!(PromiseBody, bytes);
        }
        9 => {
            body!(PromiseAnswer, bytes);
        }
        10 => {
            let body = body!(ScanBody, bytes);
            let again = ScanBody::new(body.shard(), body.epoch(), body.above(), body.from());
            assert_eq!(
                (again.shard(), again.epoch(), again.above(), again.from()),
                (body.shard(), body.epoch(), body.above(), body.from())
            );
        }
        11 => {
            let body = body!(FillBody, bytes);
            let again =
                FillBody::new(body.shard(), body.epoch(), body.version(), body.range()).with_snapshot(body.snapshot());
            // Of flags that nobody knows nothing is made.
            let (again, what) = match body.what() {
                Some(Fill::Zeroes) => (again.with_zeroes(), Some(Fill::Zeroes)),
                Some(Fill::Lost) => (again.with_lost(body.lost_of()), Some(Fill::Lost)),
                Some(Fill::Content) | None => (again, Some(Fill::Content)),
            };
            assert_eq!(
                (again.version(), again.range(), again.what(), again.snapshot()),
                (body.version(), body.range(), what, body.snapshot())
            );
        }
        12 => {
            let body = body!(MarkBody, bytes);
            assert_eq!(MarkBody::new(body.shard(), body.epoch(), body.mark()).mark(), body.mark());
        }
        13 => {
            let body = body!(ViewBody, bytes);
            let again = ViewBody::new(body.shard(), body.epoch(), body.snapshot(), body.range());
            assert_eq!((again.shard(), again.snapshot(), again.range()), (body.shard(), body.snapshot(), body.range()));
        }
        14 => {
            body!(VerifyAnswer, bytes);
        }
        15 => {
            let Some(list) = decode_held(bytes) else { return };
            let mut again = Vec::new();
            list.iter().for_each(|held| encode_held(&mut again, held));
            assert_eq!(decode_held(&again), Some(list));
        }
        16 => {
            let Some(list) = decode_withheld(bytes) else { return };
            let mut again = Vec::new();
            list.iter().for_each(|(shard, epoch)| encode_withheld(&mut again, *shard, *epoch));
            assert_eq!(again, bytes);
        }
        17 => {
            let Some(list) = decode_changed(bytes) else { return };
            let mut end = 0;
            for (at, _) in &list {
                assert!(at.count.0 > 0 && u64::from(at.from.0) >= end, "in order");
                end = at.end();
            }
            let mut again = Vec::new();
            list.iter().for_each(|(at, version)| encode_changed(&mut again, *at, *version));
            assert_eq!(again, bytes);
        }
        18 => {
            let Some(state) = FillState::decode(bytes) else { return };
            assert_eq!(FillState::decode(&state.encode()), Some(state));
        }
        19 => {
            let count = u32::try_from(bytes.len() / 4).unwrap_or(u32::MAX);
            assert_eq!(decode_crcs(bytes, count + 1), None);
            let Some(crcs) = decode_crcs(bytes, count) else { return };
            let mut again = Vec::new();
            encode_crcs(&mut again, &crcs);
            assert_eq!(again, bytes);
        }
        _ => {
            let body = body!(RangeBody, bytes);
            let again = RangeBody::new(body.shard(), Epoch(body.epoch.get()), body.range()).waiting(body.wait_ms());
            let again = again.for_writing(body.is_for_writing()).held_before(body.was_held_before());
            assert_eq!((again.shard(), again.range(), again.wait_ms()), (body.shard(), body.range(), body.wait_ms()));
            assert_eq!(again.is_sound(), body.range().count.0 > 0);
        }
    }
}

fn replica(body: &ReplicaBody) {
    let again = ReplicaBody::new(body.shard(), body.stamp(), body.range(), body.known_good(), body.floor());
    let again = again.with_durable(body.is_durable());
    assert_eq!((again.shard(), again.stamp(), again.range()), (body.shard(), body.stamp(), body.range()));
    assert_eq!(
        (again.known_good(), again.floor(), again.is_durable()),
        (body.known_good(), body.floor(), body.is_durable())
    );
    let end = body.range().end();
    assert_eq!(end, u64::from(body.at.get()) + u64::from(body.range().count.0), "no sum of blocks wraps");
}

pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let shard = ShardId { volume: VolumeId(7), index: ShardIndex(3) };
    let (epoch, stamp) = (Epoch(9), Stamp { epoch: Epoch(9), sequence: Sequence(100) });
    let at = BlockRange { from: Blocks(5), count: Blocks(2) };
    let change = ReplicaBody::new(shard, stamp, at, Some(Sequence(98)), None);
    let mark = Mark { base: stamp, cursor: Blocks(16), upto: stamp, complete: true };
    let (mut held, mut withheld, mut changed, mut crcs) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let kinds = [HeldKind::Write, HeldKind::Zero, HeldKind::Barrier];
    kinds.into_iter().for_each(|kind| encode_held(&mut held, &Held { stamp, at, kind }));
    encode_withheld(&mut withheld, shard, epoch);
    encode_changed(&mut changed, at, stamp);
    encode_crcs(&mut crcs, &[1, 2, 3]);
    let state = FillState { mark, snapshots: vec![SnapshotId(4), SnapshotId(5)] };
    let bodies: [Vec<u8>; KINDS as usize] = [
        Prefix::default().bytes().to_vec(),
        IoBody::new(shard, epoch, 7, Bytes(4096), 8192).with_fua().bytes().to_vec(),
        change.with_durable(true).bytes().to_vec(),
        LayerBody::new(change, ShardSnapshot { shard, snapshot: SnapshotId(1) }).bytes().to_vec(),
        JoinBody { copy: 1.into(), open: 2.into(), ..JoinBody::default() }.bytes().to_vec(),
        ReplyBody::new(Status::NoSnapshot).bytes().to_vec(),
        StaleBody { epoch: 4.into(), cache: 2.into(), reply: ReplyBody::new(Status::Later) }.bytes().to_vec(),
        JoinAnswer { known_good_epoch: 3.into(), ..JoinAnswer::default() }.bytes().to_vec(),
        PromiseBody { known: 5.into(), ..PromiseBody::default() }.bytes().to_vec(),
        PromiseAnswer { withheld: 6.into(), ..PromiseAnswer::default() }.bytes().to_vec(),
        ScanBody::new(shard, epoch, stamp, Blocks(16)).bytes().to_vec(),
        FillBody::new(shard, epoch, stamp, at).with_zeroes().with_snapshot(SnapshotId(8)).bytes().to_vec(),
        MarkBody::new(shard, epoch, mark).bytes().to_vec(),
        ViewBody::new(shard, epoch, Some(SnapshotId(2)), at).bytes().to_vec(),
        VerifyAnswer { damaged: 5.into(), ..VerifyAnswer::default() }.bytes().to_vec(),
        held,
        withheld,
        changed,
        state.encode(),
        crcs,
        RangeBody::new(shard, epoch, at).for_writing(true).held_before(true).waiting(20).bytes().to_vec(),
    ];
    (0..KINDS).zip(bodies).map(|(kind, body)| [&[kind], &body[..]].concat()).collect()
}
