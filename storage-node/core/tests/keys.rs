//! Clients with keys of their own: what a card is for is checked here, and one that was removed is cut off.

use crate::common::{Cluster, KEY, block};
use conductor_model::Durability;
use conductor_model::api::KeyList;
use driver::Span;
use node_core::Mail;
use node_protocol::{Status, op};
use sim::ProcessId;
use wire::{Attached, Card, HelloInfo, READ_ONLY, Ticket};

/// One block.
const LEN: u32 = 4096;

/// Volume 1, and nobody who uses it.
fn cluster(seed: u64) -> Cluster {
    let mut c = Cluster::new(seed);
    c.create(1, &[0, 1, 2], None, Durability::Always);
    c
}

/// What the conductor gives to a client that attaches so.
fn ticket(info: &HelloInfo) -> Option<Ticket> {
    let HelloInfo { name, volume, generation, features, .. } = info;
    let what = Attached { client: name, volume: *volume, generation: *generation, features: *features };
    Some(Ticket::issue(&KEY, &what))
}

/// A client of volume 1 that shows this card.
fn keyed(c: &mut Cluster, serial: u64, volumes: &[u32], read_only: bool, features: u32) -> ProcessId {
    let (name, volumes) = (format!("key{serial}"), volumes.iter().copied().collect());
    c.client_with(1, |info| {
        info.name = format!("{name}@host");
        info.features = features;
        info.ticket = ticket(info);
        info.card = Some(Card { name, serial, read_only, volumes });
    })
}

/// A client of volume 1 with the first key, that may have changed what the conductor gave it.
fn forged(c: &mut Cluster, forge: impl FnOnce(&mut HelloInfo)) -> ProcessId {
    let (name, volumes) = ("key1".to_owned(), [1].into_iter().collect());
    c.client_with(1, |info| {
        info.name = format!("{name}@host");
        info.ticket = ticket(info);
        info.card = Some(Card { name, serial: 1, read_only: false, volumes });
        forge(info);
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

#[test]
fn a_generation_is_the_conductors_to_give() {
    let mut c = cluster(55);
    tell(&mut c, 2, &[1, 2]);
    let other = keyed(&mut c, 2, &[1], false, 0);
    c.write(other, 1, 0, 7);
    let refused = |c: &mut Cluster, what: &str, forge: &dyn Fn(&mut HelloInfo)| {
        let client = forged(c, forge);
        assert!(!is_served(c, client), "{what}");
        assert_eq!(c.read(other, 1, 0), 7, "{what}: the other one was fenced");
    };
    refused(&mut c, "a higher one than was given", &|info| info.generation = u64::MAX >> 1);
    refused(&mut c, "none was given", &|info| info.ticket = None);
    refused(&mut c, "another client's", &|info| info.name = "key1@elsewhere".to_owned());
    refused(&mut c, "a reader's that says it writes", &|info| {
        info.ticket = ticket(&HelloInfo { features: READ_ONLY, ..info.clone() });
    });
    let given = forged(&mut c, |info| {
        info.generation = 2;
        info.ticket = ticket(info);
    });
    assert_eq!(c.read(given, 1, 0), 7, "the conductor was not asked, and is not needed");
    assert!(!is_served(&mut c, other), "whose attachment is over now");
    let reads = forged(&mut c, |info| (info.view, info.generation, info.ticket) = (9, 0, None));
    let token = c.ask(reads, 1, op::READ, 0, LEN, Vec::new());
    assert_eq!(c.answer(token).0, Status::NoSnapshot, "a snapshot's reader has no generation, and is let in");
}
