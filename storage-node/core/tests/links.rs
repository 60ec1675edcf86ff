//! What the links between nodes go over.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::{Cluster, endpoint};
use conductor_model::Durability;
use conductor_model::api::RdmaEndpoint;
use driver::Span;
use node_core::Mail;

/// Whether the primary's links are all up; and over RDMA.
fn links(c: &Cluster) -> (bool, bool) {
    let links = c.view(c.primary(1)).unwrap().links;
    (links.iter().all(|link| link.up), links.iter().all(|link| link.rdma))
}

#[test]
fn links_over_tcp_are_moved_to_rdma_under_load_and_no_copy_is_lost() {
    let mut c = Cluster::new(51);
    c.create(1, &[0, 1, 2], None, Durability::Always);
    let client = c.client(1, 0);
    c.write(client, 1, 0, 1);
    assert_eq!(links(&c), (true, false));
    let rdma: Vec<_> = (0..3).map(|node| RdmaEndpoint { endpoint: endpoint(node), rdma: endpoint(node) }).collect();
    (0..3).for_each(|node| c.mail(node, Mail::Rdma(rdma.clone())));
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
