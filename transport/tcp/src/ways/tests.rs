//! Ways: which is tried when, and what is found by looking.

use super::*;

const T0: Time = Time(0);

fn at(port: u16) -> SocketAddr {
    ([192, 0, 2, 1], port).into()
}

/// Of a connection that did not come up, or failed.
const FAILED: Reason = Reason::Io;

fn is_rdma(ways: &Ways, conn: ConnId) -> bool {
    matches!(ways.over(conn), Some(Address::Rdma(_)))
}

/// A connection is up: the way around which it leads, if that is told.
fn up(ways: &mut Ways, now: Time, conn: ConnId) -> Option<Address> {
    ways.up(now, conn).map(|detour| detour.around)
}

fn attempt(ways: &mut Ways, slot: u32) -> (ConnId, Address) {
    let (conn, to) = (ConnId { slot, generation: 1 }, ways.attempt(at(1)).to);
    ways.connecting(conn, at(1), to.clone());
    (conn, to)
}

#[test]
fn rdma_that_does_not_come_up_is_followed_by_tcp_and_said_once() {
    let mut ways = Ways::new(Transport::Auto, 0);
    assert_eq!(ways.attempt(at(1)).to, Address::Tcp(at(1)), "nothing is known");
    ways.know(T0, [(at(1), vec![Address::Rdma(at(2))])]);
    let (first, to) = attempt(&mut ways, 1);
    assert_eq!((to, is_rdma(&ways, first)), (Address::Rdma(at(2)), true));
    ways.down(T0, first, FAILED);
    let (second, to) = attempt(&mut ways, 2);
    assert_eq!((to, is_rdma(&ways, second)), (Address::Tcp(at(1)), false));
    assert_eq!(up(&mut ways, T0, second), Some(Address::Rdma(at(2))));
    ways.down(T0, second, FAILED);
    let (third, to) = attempt(&mut ways, 3);
    assert_eq!(to, Address::Rdma(at(2)), "RDMA has its chance again");
    ways.down(T0, third, FAILED);
    let (fourth, to) = attempt(&mut ways, 4);
    assert_eq!((to, up(&mut ways, T0, fourth)), (Address::Tcp(at(1)), None), "it was said");
    ways.down(T0, fourth, FAILED);
    let (fifth, to) = attempt(&mut ways, 5);
    assert_eq!(to, Address::Rdma(at(2)), "neither lasted: in turn");
    assert_eq!(up(&mut ways, T0, fifth), None);
    ways.down(T0 + BRIEF, fifth, FAILED);
    let (sixth, to) = attempt(&mut ways, 6);
    assert_eq!(to, Address::Rdma(at(2)), "it was up");
    ways.down(T0, sixth, FAILED);
    let (seventh, _) = attempt(&mut ways, 7);
    assert_eq!(up(&mut ways, T0, seventh), Some(Address::Rdma(at(2))), "it had led there in between");
    ways.know(T0, []);
    assert_eq!(ways.attempt(at(1)).to, Address::Tcp(at(1)));
}

#[test]
fn who_wants_one_way_gets_it() {
    let mut ways = Ways::new(Transport::Rdma, 0);
    assert_eq!(ways.attempt(at(1)).to, Address::Rdma(at(1)));
    ways.know(T0, [(at(1), vec![Address::Rdma(at(2))])]);
    let (conn, to) = attempt(&mut ways, 1);
    assert_eq!(to, Address::Rdma(at(2)));
    ways.down(T0, conn, FAILED);
    assert_eq!(ways.attempt(at(1)).to, Address::Rdma(at(2)));
    ways.only_tcp();
    assert_eq!(ways.attempt(at(1)).to, Address::Tcp(at(1)));
    ways.down(T0, ConnId { slot: 9, generation: 9 }, FAILED);
}

#[test]
fn while_tcp_is_up_it_is_looked_now_and_then_whether_rdma_leads_there() {
    let mut ways = Ways::new(Transport::Auto, 0);
    ways.know(T0, [(at(1), vec![Address::Rdma(at(2))])]);
    let (first, _) = attempt(&mut ways, 1);
    ways.down(T0, first, FAILED);
    let (tcp, _) = attempt(&mut ways, 2);
    ways.up(T0, tcp);
    assert_eq!((ways.probe(T0), ways.next_deadline()), (None, Some(T0 + PROBE_FIRST)));
    let (mut now, mut pauses) = (T0, Vec::new());
    for slot in 10..17 {
        let due = ways.next_deadline().unwrap();
        pauses.push(due.since(now).0 / 1_000_000_000);
        now = due;
        assert_eq!(ways.probe(Time(now.0 - 1)), None, "not before");
        let looks = ways.probe(now);
        assert_eq!(looks, Some((at(1), Address::Rdma(at(2)))));
        let conn = ConnId { slot, generation: 1 };
        ways.probing(at(1), Address::Rdma(at(2)), conn);
        assert!(ways.is_probe(conn) && ways.probe(now).is_none() && ways.next_deadline().is_none(), "one at a time");
        assert_eq!(ways.probed(now, conn, slot == 16), (slot == 16).then_some(tcp));
    }
    assert_eq!(pauses, [30, 60, 120, 240, 480, 600, 600]);
    ways.down(T0, tcp, FAILED);
    let (rdma, to) = attempt(&mut ways, 3);
    assert_eq!(to, Address::Rdma(at(2)));
    ways.up(T0, rdma);
    assert_eq!(ways.next_deadline(), None, "there is nothing to look for");
}

#[test]
fn rdma_that_comes_up_and_soon_ends_is_as_one_that_does_not_come_up() {
    let mut ways = Ways::new(Transport::Auto, 0);
    ways.know(T0, [(at(1), vec![Address::Rdma(at(2))])]);
    let (mut now, mut slot, mut over_tcp) = (T0, 0, Vec::new());
    let mut next = |ways: &mut Ways| {
        slot += 1;
        attempt(ways, slot)
    };
    // It comes up each time, and each time it ends before it has lasted.
    for round in 0..7 {
        let (rdma, to) = next(&mut ways);
        assert_eq!(to, Address::Rdma(at(2)), "{round}");
        ways.up(now, rdma);
        now = now + Span(BRIEF.0 - 1);
        ways.down(now, rdma, FAILED);
        let (tcp, to) = next(&mut ways);
        assert_eq!(to, Address::Tcp(at(1)), "{round}");
        assert_eq!(up(&mut ways, now, tcp), (round == 0).then_some(Address::Rdma(at(2))), "said once");
        assert_eq!(ways.probe(now), None, "not at once");
        let due = ways.next_deadline().unwrap();
        over_tcp.push(due.since(now).0 / 1_000_000_000);
        now = due;
        assert!(ways.probe(now).is_some());
        let look = ConnId { slot: 100 + round, generation: 1 };
        ways.probing(at(1), Address::Rdma(at(2)), look);
        assert_eq!(ways.probed(now, look, true), Some(tcp), "that it comes up is all that a look can show");
        ways.down(now, tcp, Reason::Closed);
    }
    assert_eq!(over_tcp, [30, 60, 120, 240, 480, 600, 600]);
    // One that lasts, and one that we end ourselves, lead there: all begins anew.
    for (lasts, why) in [(BRIEF, FAILED), (Span(1), Reason::Closed)] {
        let (rdma, to) = next(&mut ways);
        assert_eq!(to, Address::Rdma(at(2)));
        ways.up(now, rdma);
        now = now + lasts;
        ways.down(now, rdma, why);
        assert_eq!(ways.attempt(at(1)).to, Address::Rdma(at(2)));
    }
    let (brief, _) = next(&mut ways);
    ways.up(now, brief);
    ways.down(now, brief, FAILED);
    let (tcp, _) = next(&mut ways);
    assert_eq!(up(&mut ways, now, tcp), Some(Address::Rdma(at(2))), "said again");
    assert_eq!((ways.probe(now), ways.next_deadline()), (None, Some(now + PROBE_FIRST)));
}

/// A peer with two addresses over TCP and one over RDMA.
fn three(lane: u16) -> Ways {
    let mut ways = Ways::new(Transport::Auto, lane);
    ways.know(T0, [(at(1), vec![Address::Tcp(at(2)), Address::Rdma(at(3)), Address::Tcp(at(1))])]);
    ways
}

#[test]
fn lanes_begin_at_different_addresses_of_a_kind() {
    let order = |lane| three(lane).ways(at(1));
    let (first, second, rdma) = (Address::Tcp(at(1)), Address::Tcp(at(2)), Address::Rdma(at(3)));
    assert_eq!(order(0), [rdma.clone(), first.clone(), second.clone()]);
    assert_eq!(order(1), [rdma, second, first]);
    let mut one = Ways::new(Transport::Auto, 3);
    assert_eq!(one.attempt(at(1)), Attempt::only(Address::Tcp(at(1))));
}

#[test]
fn behind_rdma_comes_another_network() {
    let [a, b] = [1, 2].map(|net| SocketAddr::from(([10, net, 0, 1], 7100)));
    let mut ways = Ways::new(Transport::Auto, 0);
    ways.know(T0, [(a, vec![Address::Tcp(b), Address::Rdma(a)])]);
    assert_eq!(ways.ways(a), [Address::Rdma(a), Address::Tcp(b), Address::Tcp(a)]);
    ways.know(T0, [(a, vec![Address::Tcp(b), Address::Rdma(b)])]);
    assert_eq!(ways.ways(a), [Address::Rdma(b), Address::Tcp(a), Address::Tcp(b)]);
}

#[test]
fn a_way_that_is_known_to_fail_is_not_taken_after_one_that_lasted_and_costs_no_more_than_the_first_time() {
    let mut ways = three(0);
    let (rdma, _) = attempt(&mut ways, 1);
    ways.down(T0, rdma, Reason::ConnectTimeout);
    let (tcp, _) = attempt(&mut ways, 2);
    ways.up(T0, tcp);
    for slot in 10..16 {
        let now = ways.next_deadline().unwrap();
        let look = ConnId { slot, generation: 1 };
        ways.probing(at(1), Address::Rdma(at(3)), look);
        assert_eq!(ways.probed(now, look, false), None);
    }
    ways.down(T0 + BRIEF, tcp, Reason::PeerClosed);
    let (tcp, to) = attempt(&mut ways, 3);
    assert_eq!(to, Address::Tcp(at(1)));
    ways.down(T0 + BRIEF, tcp, FAILED);
    let (other, to) = attempt(&mut ways, 4);
    assert_eq!(to, Address::Tcp(at(2)));
    ways.down(T0 + BRIEF, other, FAILED);
    assert_eq!(ways.attempt(at(1)).within, Span(TRY_RDMA.0 * 2), "the second round, not the eighth");
}

#[test]
fn what_does_not_come_up_is_given_more_time_each_round() {
    let mut ways = three(0);
    let mut seconds = Vec::new();
    for slot in 0..18 {
        let Attempt { to, within, others } = ways.attempt(at(1));
        assert!(others);
        seconds.push(within.0 / 1_000_000_000);
        let conn = ConnId { slot, generation: 1 };
        ways.connecting(conn, at(1), to);
        ways.down(T0, conn, Reason::ConnectTimeout);
    }
    assert_eq!(seconds, [3, 1, 1, 6, 2, 2, 12, 4, 4, 12, 8, 8, 12, 12, 12, 12, 12, 12]);
    let (conn, to) = attempt(&mut ways, 90);
    ways.up(T0, conn);
    let health = ways.look(at(1));
    assert_eq!((&health[0].to, health[0].up, health[0].failures), (&to.to_string(), true, 0));
    assert_eq!((health[1].failures, &health[1].last), (6, &Some(Reason::ConnectTimeout.to_string())));
}

#[test]
fn a_peer_that_falls_silent_is_reached_another_way_at_once_and_one_that_hangs_up_the_same_way() {
    let mut ways = three(0);
    let (rdma, to) = attempt(&mut ways, 1);
    ways.up(T0, rdma);
    let now = T0 + BRIEF;
    ways.down(now, rdma, Reason::PeerSilent);
    let rdma = to;
    let (tcp, to) = attempt(&mut ways, 2);
    assert_eq!(to, Address::Tcp(at(1)));
    let detour = Detour { endpoint: at(1), around: rdma, why: Reason::PeerSilent };
    assert_eq!(ways.up(now, tcp), Some(detour));
    let now = now + BRIEF;
    ways.down(now, tcp, Reason::PeerSilent);
    let (other, to) = attempt(&mut ways, 3);
    assert_eq!(to, Address::Tcp(at(2)), "the next one, and not the first");
    assert_eq!(ways.up(now, other), None, "told");
    let now = now + BRIEF;
    ways.down(now, other, Reason::PeerClosed);
    let (same, to) = attempt(&mut ways, 4);
    assert_eq!(to, Address::Tcp(at(2)), "its end says that it is there: again, and not where nothing led");
    ways.down(now, same, Reason::Busy);
    assert_eq!(attempt(&mut ways, 5).1, Address::Tcp(at(2)), "and so does a refusal");
}

#[test]
fn better_ways_are_looked_at_in_turn_and_the_one_that_leads_there_is_taken() {
    let mut ways = three(0);
    for slot in [1, 2] {
        let (conn, _) = attempt(&mut ways, slot);
        ways.down(T0, conn, FAILED);
    }
    let (last, to) = attempt(&mut ways, 3);
    assert_eq!(to, Address::Tcp(at(2)));
    ways.up(T0, last);
    let mut looked = Vec::new();
    for slot in 10..13 {
        let now = ways.next_deadline().unwrap();
        let (_, to) = ways.probe(now).unwrap();
        looked.push(to.clone());
        let conn = ConnId { slot, generation: 1 };
        ways.probing(at(1), to, conn);
        ways.probed(now, conn, false);
    }
    assert_eq!(looked, [Address::Rdma(at(3)), Address::Tcp(at(1)), Address::Rdma(at(3))]);
    let now = ways.next_deadline().unwrap();
    let look = ConnId { slot: 20, generation: 1 };
    ways.probing(at(1), Address::Tcp(at(1)), look);
    assert_eq!(ways.probed(now, look, true), Some(last));
    ways.down(now, last, Reason::Closed);
    let (found, to) = attempt(&mut ways, 4);
    assert_eq!(to, Address::Tcp(at(1)), "what was found, not what is best");
    ways.up(now, found);
    assert!(ways.next_deadline().is_some(), "the best one is still looked for");
}

#[test]
fn a_way_that_becomes_known_is_looked_at_and_one_that_is_gone_is_not_taken() {
    let mut ways = Ways::new(Transport::Tcp, 0);
    let (conn, _) = attempt(&mut ways, 1);
    ways.up(T0, conn);
    assert_eq!(ways.next_deadline(), None);
    ways.know(T0, [(at(1), vec![Address::Tcp(at(2)), Address::Rdma(at(3))])]);
    assert_eq!(ways.next_deadline(), None, "it is over the first one");
    ways.down(T0, conn, FAILED);
    let (conn, to) = attempt(&mut ways, 2);
    assert_eq!(to, Address::Tcp(at(2)));
    ways.up(T0, conn);
    let now = ways.next_deadline().unwrap();
    let (_, to) = ways.probe(now).unwrap();
    let look = ConnId { slot: 9, generation: 1 };
    ways.probing(at(1), to, look);
    ways.know(now, []);
    assert!(ways.is_probe(look), "it comes to its end");
    assert_eq!(ways.probed(now, look, true), None, "there is a way less, and nothing to make room for");
    assert_eq!((ways.probe(now), ways.attempt(at(1))), (None, Attempt::only(Address::Tcp(at(1)))));
}
