//! What the links between nodes go over.

use crate::common::{Cluster, elsewhere, endpoint, shard};
use conductor_model::Durability;
use conductor_model::TransportAddress;
use conductor_model::api::Reachable;
use driver::{Address, Span};
use node_core::Mail;

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
    let before = c.opened[2];
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
