//! What the links between nodes go over.

use crate::common::{Cluster, elsewhere, endpoint, shard};
use conductor_model::Durability;
use conductor_model::TransportAddress;
use conductor_model::api::Reachable;
use driver::{Address, Span};
use node_core::Mail;
use node_protocol::Status;

/// Whether the primary's links are all up; and over RDMA.
fn links(c: &Cluster) -> (bool, bool) {
    let links = c.view(c.primary(1)).unwrap().links;
    (links.iter().all(|link| link.up), links.iter().all(|link| matches!(link.over, Some(Address::Rdma(_)))))
}

#[test]
fn links_over_tcp_are_moved_to_rdma_under_load_and_no_copy_is_lost() {
    let mut c = Cluster::new(51);
    c.create(1, &[0, 1, 2], None, Durability::Always);
    let client = c.client(1, 0);
    c.write(client, 1, 0, 1);
    assert_eq!(links(&c), (true, false));
    let rdma = |node| Reachable { endpoint: endpoint(node), addresses: vec![TransportAddress::Rdma(endpoint(node))] };
    let all: Vec<_> = (0..3).map(rdma).collect();
    (0..3).for_each(|node| c.mail(node, Mail::Reachable(all.clone())));
    let until = c.w.now() + tcp::PROBE_FIRST + Span::seconds(5);
    let mut of = 1;
    while c.w.now() < until {
        of = of % 250 + 1;
        c.write(client, 1, 0, of);
        c.run(Span::millis(20));
    }
    assert_eq!(links(&c), (true, true), "{}", c.picture());
    assert!(c.count("link.made-room") >= 2);
    assert_eq!(c.in_sync(1).len(), 3, "{}", c.picture());
    assert_eq!(c.read(client, 1, 0), of);
}

#[test]
fn a_way_that_falls_silent_is_left_for_another_one_before_its_node_is_taken_for_lost() {
    let mut c = Cluster::new(52);
    c.create(1, &[0, 1, 2], None, Durability::Always);
    let client = c.client(1, 0);
    c.write(client, 1, 0, 1);
    let both = |node| Reachable { endpoint: endpoint(node), addresses: vec![TransportAddress::Rdma(endpoint(node))] };
    let all: Vec<_> = (0..3).map(both).collect();
    (0..3).for_each(|node| c.mail(node, Mail::Reachable(all.clone())));
    c.run(Span::seconds(1));
    let primary = c.primary(1);
    let replicas = || (0..3).filter(move |node| *node != primary);
    for node in replicas() {
        c.w.reset_between(c.nodes[primary], c.nodes[node]);
    }
    c.until("the links go over what is tried first", |c| links(c) == (true, true));
    let epoch = c.configs[&shard(1)].epoch;
    for (of, node) in (2..).zip(replicas()) {
        c.w.cut(c.nodes[node], Address::Rdma(endpoint(node)));
        let since = c.w.now();
        c.write(client, 1, 0, of);
        let pause = c.w.now().since(since);
        assert!((Span::millis(700)..Span::millis(1300)).contains(&pause), "{pause:?}");
        assert_eq!(c.in_sync(1).len(), 3, "{}", c.picture());
    }
    assert_eq!((links(&c).0, c.configs[&shard(1)].epoch), (true, epoch), "{}", c.picture());
    assert!(c.count("link.silent-way") >= 2 && c.count("link.silent") == 0);
    // Both ways: then it is lost, as one with a single way is.
    let node = replicas().next().unwrap();
    c.w.cut(c.nodes[node], Address::Tcp(endpoint(node)));
    let since = c.w.now();
    c.write(client, 1, 0, 9);
    let pause = c.w.now().since(since);
    assert!((Span::millis(1400)..Span::millis(2600)).contains(&pause), "{pause:?}");
    assert_eq!(c.in_sync(1).len(), 2, "{}", c.picture());
}

#[test]
fn a_member_that_came_back_at_an_address_which_others_use_already_is_not_taken_for_the_one_that_joined() {
    let mut c = Cluster::new(53);
    c.create(1, &[0, 1, 2], None, Durability::Always);
    c.create(2, &[0, 1, 2], None, Durability::Always);
    let client = c.client(1, 0);
    c.write(client, 1, 0, 1);
    let before = c.opened[2].clone();
    c.w.kill(c.nodes[2]);
    c.w.cut(c.nodes[2], Address::Tcp(endpoint(2)));
    c.w.restart(c.nodes[2]);
    c.until("opened anew", |c| c.opened[2] != before);
    // The conductor's map tells of it one shard after the other: the first one has the link made, the second one finds it.
    for (met, volume) in (1..).zip([2, 1]) {
        let config = c.configs.get_mut(&shard(volume)).unwrap();
        config.members.iter_mut().for_each(|m| {
            if m.endpoint == endpoint(2) {
                m.endpoint = elsewhere(2);
            }
        });
        let config = config.clone();
        c.mail(0, Mail::Assign(vec![config]));
        c.run(Span::millis(400));
        assert_eq!(c.count("member.reopened"), met, "{}", c.picture());
    }
    let since = c.w.now();
    let client = c.client(1, 0);
    c.write(client, 1, 0, 2);
    assert!(c.w.now().since(since) < Span::seconds(1), "{}", c.picture());
}

#[test]
fn a_disk_that_hangs_leaves_credits_to_the_others_behind_the_same_link() {
    let mut c = Cluster::with_disks(57, 2, 24 << 20);
    c.blocks = 1 << 12;
    c.create(1, &[0, 1, 2], None, Durability::Always);
    c.on = 1;
    // Several, so that one shard's window is not what bounds them.
    (2..5).for_each(|volume| c.create(volume, &[0, 1, 2], None, Durability::Always));
    let clients: Vec<_> = (1..5).map(|volume| c.client(volume, 0)).collect();
    (1..5).for_each(|volume| c.write(clients[volume - 1], volume as u32, 0, 1));

    c.second_hangs[2].set(true);
    let stuck: Vec<_> = (2..5u32)
        .flat_map(|volume| (0..100).map(move |n| (volume, n)))
        .map(|(volume, n)| c.start_write(clients[volume as usize - 1], volume, n, 2))
        .collect();
    c.run(Span::millis(200));
    assert!(stuck.iter().all(|token| !c.answers.contains_key(token)), "they wait for the disk");
    for n in 0..50 {
        let write = c.start_write(clients[0], 1, n, 3);
        c.run(Span::millis(20));
        assert_eq!(c.answers.get(&write).map(|a| a.0), Some(Status::Ok), "write {n}\n{}", c.picture());
    }
    // Who waits is served without the copies on it, and nobody else lost one.
    stuck.into_iter().for_each(|token| assert_eq!(c.answer(token).0, Status::Ok));
    assert_eq!((c.in_sync(1), c.in_sync(2)), (vec![0, 1, 2], vec![0, 1]));
}
