//! The conductor's records, as its state file and a backup hold them, and what nodes and targets read of its answers.
//!
//! Input: JSON in each line. Records that a conductor accepts as a whole are what it would write again.

use crate::conductor::Cluster;
use crate::json::{alike, line};
use conductor_model::api::{HeartbeatAnswer, MembershipAnswer, VolumeMap};
use conductor_model::views::ErrorBody;
use conductor_model::{ClusterId, Commit, Conductor, Configuration, Key, Millis, NodeId, Record};
use std::collections::BTreeMap;

const LINES: usize = 64;

pub(crate) fn target(data: &[u8]) {
    let mut records = Vec::new();
    for text in data.split(|byte| *byte == b'\n').take(LINES) {
        match alike::<Record>(text) {
            Some(record) => records.push(record),
            None => answer(text),
        }
    }
    let now = Millis(1_000_000);
    let Ok(model) = Conductor::restore(records.iter().cloned(), now) else { return };
    let by_key = |records: Vec<Record>| records.into_iter().map(|r| (r.key(), r)).collect::<BTreeMap<Key, Record>>();
    assert_eq!(by_key(model.snapshot()), by_key(records), "no record is lost or changed");
    assert!(model.check().is_ok());
}

/// JSON that travels the other way.
fn answer(text: &[u8]) {
    alike::<Configuration>(text);
    alike::<HeartbeatAnswer>(text);
    alike::<Vec<MembershipAnswer>>(text);
    alike::<VolumeMap>(text);
    alike::<ErrorBody>(text);
}

pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let empty = Conductor::new(ClusterId(7), Millis(1)).0.snapshot();
    let Cluster { mut model, now, .. } = Cluster::new();
    model.create_snapshot(now, "v", "s").expect("a volume");
    let lines = |records: Vec<Record>| records.iter().map(|r| line("", r)).collect::<Vec<_>>().join(&b'\n');
    let shards: Vec<Configuration> = model
        .snapshot()
        .into_iter()
        .filter_map(|record| if let Record::Shard(shard) = record { Some(shard.config) } else { None })
        .collect();
    let config = shards.first().expect("one shard").clone();
    vec![
        lines(empty),
        lines(model.snapshot()),
        line("", &config),
        line("", &model.answer(NodeId(1), Commit(0))),
        line("", &model.map("v").expect("a volume")),
        line("", &vec![MembershipAnswer::Granted(config)]),
        line("", &ErrorBody { error: "no".to_owned(), message: "not".to_owned(), leader: None }),
    ]
}
