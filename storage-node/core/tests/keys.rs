//! Clients with keys of their own: what a card is for is checked here, and one that was removed is cut off.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::{Cluster, block};
use conductor_model::Durability;
use conductor_model::api::KeyList;
use driver::Span;
use node_core::Mail;
use node_protocol::{Status, op};
use sim::ProcessId;
use wire::{Card, READ_ONLY};

/// One block.
const LEN: u32 = 4096;

/// Volume 1, and nobody who uses it.
fn cluster(seed: u64) -> Cluster {
    let mut c = Cluster::new(seed);
    c.create(1, &[0, 1, 2], None, Durability::Always);
    c
}

/// A client of volume 1 that shows this card.
fn keyed(c: &mut Cluster, serial: u64, volumes: &[u32], read_only: bool, features: u32) -> ProcessId {
    let (name, volumes) = (format!("key{serial}"), volumes.iter().copied().collect());
    c.client_with(1, |info| {
        info.name = format!("{name}@host");
        info.features = features;
        info.card = Some(Card { name, serial, read_only, volumes });
    })
}

fn is_served(c: &mut Cluster, client: ProcessId) -> bool {
    let token = c.ask(client, 1, op::READ, 0, LEN, Vec::new());
    c.run(Span::seconds(5));
    c.answers.contains_key(&token)
}

fn tell(c: &mut Cluster, upto: u64, valid: &[u64]) {
    for node in 0..3 {
        c.mail(node, Mail::Keys(KeyList { upto, valid: valid.iter().copied().collect() }));
    }
    c.run(Span::millis(200));
}

#[test]
fn a_card_is_for_its_own_volumes_alone() {
    let mut c = cluster(51);
    tell(&mut c, 2, &[1, 2]);
    let own = keyed(&mut c, 1, &[1, 7], false, 0);
    c.write(own, 1, 0, 7);
    let refused = c.count("hello.refused");
    let other = keyed(&mut c, 2, &[2, 7], false, 0);
    assert!(!is_served(&mut c, other));
    assert!(c.count("hello.refused") > refused);
    assert_eq!(c.read(own, 1, 0), 7, "the other one has changed nothing");
}

#[test]
fn a_card_for_reading_lets_nobody_write_whatever_he_says_of_himself() {
    let mut c = cluster(52);
    tell(&mut c, 2, &[1, 2]);
    let own = keyed(&mut c, 1, &[1], false, 0);
    c.write(own, 1, 0, 7);
    let says_that_it_writes = keyed(&mut c, 2, &[1], true, 0);
    assert!(!is_served(&mut c, says_that_it_writes));
    let reader = keyed(&mut c, 2, &[1], true, READ_ONLY);
    assert_eq!(c.read(reader, 1, 0), 7);
    for (what, data) in [(op::WRITE, block(9)), (op::WRITE_ZEROES, Vec::new()), (op::DISCARD, Vec::new())] {
        let change = c.ask(reader, 1, what, 0, LEN, data);
        assert_eq!(c.answer(change).0, Status::Denied, "{what:?}");
    }
    assert_eq!(c.read(reader, 1, 0), 7);
}

#[test]
fn a_key_that_was_removed_is_cut_off_for_good_and_others_go_on() {
    let mut c = cluster(53);
    tell(&mut c, 2, &[1, 2]);
    let (own, other) = (keyed(&mut c, 1, &[1], false, 0), keyed(&mut c, 2, &[1], false, 0));
    c.write(own, 1, 0, 7);
    c.write(other, 1, 1, 8);
    tell(&mut c, 2, &[2]);
    assert!(!is_served(&mut c, own), "its connection is closed, and it is not let in again");
    assert!(is_served(&mut c, other));
    // What was said before that comes late.
    tell(&mut c, 2, &[1, 2]);
    tell(&mut c, 1, &[1]);
    let again = keyed(&mut c, 1, &[1], false, 0);
    assert!(!is_served(&mut c, again) && is_served(&mut c, other));
}

#[test]
fn a_key_that_nothing_was_heard_of_yet_waits() {
    let mut c = cluster(54);
    let early = keyed(&mut c, 1, &[1], false, 0);
    let token = c.start_write(early, 1, 0, 7);
    c.run(Span::seconds(1));
    assert!(!c.answers.contains_key(&token), "before the conductor has said anything");
    tell(&mut c, 1, &[1]);
    let heard = keyed(&mut c, 1, &[1], false, 0);
    c.write(heard, 1, 0, 9);
    let next = keyed(&mut c, 2, &[1], false, 0);
    assert!(!is_served(&mut c, next), "it is newer than what was heard");
    tell(&mut c, 2, &[1, 2]);
    let next = keyed(&mut c, 2, &[1], false, 0);
    assert_eq!(c.read(next, 1, 0), 9);
}
