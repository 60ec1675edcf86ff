//! Streams between two links: every byte in order, by the way that its size asks for, and every count back at rest.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::{ACCEPTING, CONNECTING, Fabric, Rng};
use driver::{Done, Errno, Op};
use rdma_link::{End, LARGE, RX, SLOT, WINDOWS, Work};

fn noise(rng: &mut Rng, len: usize) -> Vec<u8> {
    let start = rng.below(251);
    (0..len).map(|at| u8::try_from((start + at * 7 + at / 251) % 251).unwrap()).collect()
}

fn sized(rng: &mut Rng, sizes: &[usize]) -> Vec<u8> {
    let len = sizes[rng.below(sizes.len())];
    noise(rng, len)
}

/// Sends parts one way and receives with rooms of all sizes, until everything is over there.
fn transfer(fabric: &mut Fabric, from: usize, parts: &[Vec<u8>], rooms: &[usize]) {
    let whole: Vec<u8> = parts.concat();
    fabric.sides[from].send(parts);
    let (mut got, mut room) = (Vec::new(), rooms.iter().cycle());
    while got.len() < whole.len() {
        fabric.sides[1 - from].recv(*room.next().unwrap());
        while !fabric.sides[1 - from].dones.iter().any(|done| matches!(done.op, Op::Recv { .. })) {
            assert!(fabric.step(), "stuck after {} of {} bytes", got.len(), whole.len());
        }
        for Done { op, result } in fabric.sides[1 - from].dones.drain(..) {
            let (Op::Recv { into, from: start, .. }, Ok(n)) = (op, result) else { panic!("{result:?}") };
            got.extend_from_slice(&into[start..start + n as usize]);
        }
    }
    fabric.settle();
    assert!(got == whole, "the bytes of the stream");
    let [Done { op: Op::Send { .. }, result }] = &fabric.sides[from].dones[..] else { panic!("the send is over once") };
    assert_eq!(result.unwrap() as usize, whole.len());
    fabric.sides[from].dones.clear();
}

#[test]
fn small_parts_go_with_the_message_and_large_ones_are_moved_by_the_accepting_side() {
    let mut fabric = Fabric::up(1);
    let mut rng = Rng(1);
    for from in [CONNECTING, ACCEPTING] {
        transfer(&mut fabric, from, &[noise(&mut rng, 80), noise(&mut rng, 4096)], &[64 << 10]);
        fabric.at_rest();
        assert_eq!(fabric.sides[from].has_posted("data"), 1, "head and block are one message");
    }
    for side in &fabric.sides {
        assert_eq!(side.has_posted("open") + side.has_posted("take") + side.has_posted("give"), 0);
    }
    transfer(&mut fabric, CONNECTING, &[noise(&mut rng, 80), noise(&mut rng, 1 << 20)], &[4096, 1 << 20]);
    let [connecting, accepting] = &fabric.sides;
    assert_eq!((accepting.has_posted("take"), accepting.has_posted("give")), (1, 0), "READ for what it receives");
    assert_eq!((connecting.has_posted("open"), connecting.has_posted("shut")), (1, 1));
    transfer(&mut fabric, ACCEPTING, &[noise(&mut rng, 80), noise(&mut rng, 1 << 20)], &[4096, 1 << 20]);
    let [connecting, accepting] = &fabric.sides;
    assert_eq!((accepting.has_posted("take"), accepting.has_posted("give")), (1, 1), "WRITE for what it sends");
    assert_eq!((connecting.has_posted("open"), connecting.has_posted("shut")), (2, 2));
    assert_eq!(connecting.has_posted("take") + connecting.has_posted("give"), 0, "it never moves anything");
    assert_eq!(accepting.has_posted("open"), 0, "a server opens its memory to nobody");
    fabric.at_rest();
}

#[test]
fn any_mixture_of_parts_arrives_whole_through_rooms_of_any_size() {
    for seed in 0..60 {
        let mut fabric = Fabric::up(seed);
        let mut rng = Rng(seed);
        for _ in 0..6 {
            let from = rng.below(2);
            let sizes = [1, 80, 4096, SLOT, SLOT + 1, LARGE, LARGE + 1, 50_000, 200_000, 400_000];
            let parts: Vec<_> = (0..1 + rng.below(20)).map(|_| sized(&mut rng, &sizes)).collect();
            let rooms = [4096, 64 << 10, 100, 300_000, 1 + rng.below(9000)];
            transfer(&mut fabric, from, &parts, &rooms);
            fabric.at_rest();
        }
    }
}

#[test]
fn both_ways_at_once_neither_waits_for_ever_for_the_others_credits() {
    for seed in 0..40 {
        let mut fabric = Fabric::up(seed);
        let mut rng = Rng(seed);
        let mut left = [30, 30];
        let mut got = [0, 0];
        let mut sent = [0, 0];
        for side in 0..2 {
            fabric.sides[side].recv(64 << 10);
        }
        loop {
            for side in 0..2 {
                if !fabric.sides[side].link.outstanding_send() && left[side] > 0 {
                    left[side] -= 1;
                    let parts: Vec<_> =
                        (0..40).map(|_| sized(&mut rng, &[4096, 4096, SLOT, LARGE, LARGE * 2])).collect();
                    sent[side] += parts.iter().map(Vec::len).sum::<usize>();
                    fabric.sides[side].send(&parts);
                }
                let dones = std::mem::take(&mut fabric.sides[side].dones);
                for Done { op, result } in dones {
                    if matches!(op, Op::Recv { .. }) {
                        got[side] += result.unwrap() as usize;
                        fabric.sides[side].recv(64 << 10);
                    }
                }
            }
            if !fabric.step() && fabric.sides.iter().all(|side| side.dones.is_empty()) {
                break;
            }
        }
        assert_eq!((left, got), ([0, 0], [sent[1], sent[0]]), "seed {seed}");
    }
}

#[test]
fn who_reads_nothing_is_still_told_where_its_own_large_parts_go() {
    for seed in 0..10 {
        for (silent, parts) in [(ACCEPTING, 16), (CONNECTING, 16), (ACCEPTING, 200), (CONNECTING, 200)] {
            let mut fabric = Fabric::up(seed);
            let mut rng = Rng(seed);
            // All the messages that one may send lie unread at the other, whose own send must go on nevertheless.
            let unread: Vec<_> = (0..100).map(|_| noise(&mut rng, SLOT)).collect();
            fabric.sides[1 - silent].send(&unread);
            fabric.settle();
            let large: Vec<_> = (0..parts).map(|_| noise(&mut rng, LARGE * 2)).collect();
            fabric.sides[silent].send(&large);
            let (whole, mut got) = (parts * LARGE * 2, 0);
            while got < whole {
                fabric.sides[1 - silent].recv(LARGE * 2);
                fabric.settle();
                let dones = std::mem::take(&mut fabric.sides[1 - silent].dones);
                let n = dones.into_iter().find_map(|done| matches!(done.op, Op::Recv { .. }).then_some(done.result));
                got += n.unwrap_or_else(|| panic!("seed {seed}: stuck after {got} of {whole} bytes")).unwrap() as usize;
            }
        }
    }
}

#[test]
fn completions_that_are_seen_late_hold_nothing_up_for_ever() {
    for seed in 0..30 {
        let mut fabric = Fabric::up(seed);
        let mut rng = Rng(seed);
        let (mut left, mut got, mut sent) = ([6, 6], [0, 0], [0, 0]);
        (0..2).for_each(|side| fabric.sides[side].recv(64 << 10));
        loop {
            for side in 0..2 {
                match rng.below(12) {
                    0 => fabric.sides[side].sleep(),
                    1 | 2 => _ = fabric.sides[side].wake(),
                    _ => {}
                }
                if !fabric.sides[side].link.outstanding_send() && left[side] > 0 {
                    left[side] -= 1;
                    let parts: Vec<_> = (0..12).map(|_| sized(&mut rng, &[80, 4096, SLOT, LARGE * 2])).collect();
                    sent[side] += parts.iter().map(Vec::len).sum::<usize>();
                    fabric.sides[side].send(&parts);
                }
                for Done { op, result } in std::mem::take(&mut fabric.sides[side].dones) {
                    if matches!(op, Op::Recv { .. }) {
                        got[side] += result.unwrap() as usize;
                        fabric.sides[side].recv(64 << 10);
                    }
                }
            }
            let moved = fabric.step();
            let woken = !moved && fabric.sides.iter_mut().map(|side| side.wake()).fold(false, |a, b| a | b);
            if !moved && !woken && fabric.sides.iter().all(|side| side.dones.is_empty()) {
                break;
            }
        }
        assert_eq!((left, got), ([0, 0], [sent[1], sent[0]]), "seed {seed}");
    }
}

#[test]
fn a_queue_pair_that_dies_at_any_step_gives_everything_back_once() {
    for seed in 0..400 {
        let mut fabric = Fabric::up(seed);
        let mut rng = Rng(seed);
        let steps = rng.below(60);
        for side in 0..2 {
            let parts: Vec<_> = (0..12).map(|_| sized(&mut rng, &[80, 4096, LARGE * 3])).collect();
            fabric.sides[side].send(&parts);
            fabric.sides[side].recv(LARGE * 3);
        }
        for _ in 0..steps {
            fabric.step();
            for side in 0..2 {
                if fabric.sides[side].dones.iter().any(|done| matches!(done.op, Op::Recv { .. })) {
                    fabric.sides[side].dones.retain(|done| matches!(done.op, Op::Send { .. }));
                    fabric.sides[side].recv(LARGE * 3);
                }
            }
        }
        fabric.kill();
        for side in &mut fabric.sides {
            let sends = side.dones.iter().filter(|done| matches!(done.op, Op::Send { .. })).count();
            let recvs = side.dones.iter().filter(|done| matches!(done.op, Op::Recv { .. })).count();
            assert_eq!((sends, recvs), (1, 1), "seed {seed}");
            side.dones.clear();
        }
        for side in &mut fabric.sides {
            // What had arrived and nobody asked for goes with the link.
            side.link.forget();
        }
        fabric.at_rest();
    }
}

#[test]
fn a_late_write_of_the_peer_finds_no_window_and_the_memory_is_not_given_back_before() {
    let mut fabric = Fabric::up(3);
    fabric.sides[ACCEPTING].send(&[vec![1; LARGE * 2]]);
    fabric.sides[CONNECTING].recv(LARGE * 2);
    while fabric.sides[CONNECTING].open.is_empty() {
        assert!(fabric.step());
    }
    let (&key, open) = fabric.sides[CONNECTING].open.first_key_value().unwrap();
    let Work::Open { lent, .. } = open else { unreachable!() };
    let (at, len) = lent.range();
    assert_eq!(len, LARGE * 2);
    assert!(!fabric.write(CONNECTING, key, at + 1, &vec![9; len]), "not a byte beyond what was asked for");
    assert!(!fabric.write(CONNECTING, key ^ 1, at, &[9]), "not under another key");
    assert!(fabric.write(CONNECTING, key, at, &[9]));
    fabric.settle();
    assert!(matches!(fabric.sides[CONNECTING].dones[..], [Done { result: Ok(_), .. }]));
    assert!(!fabric.write(CONNECTING, key, at, &[9]), "the window is shut when the receive is over");
}

#[test]
fn a_peer_that_does_not_read_what_it_is_lent_still_gets_rid_of_what_it_has() {
    for seed in 0..20 {
        let mut fabric = Fabric::up(seed);
        fabric.sides[CONNECTING].send(&vec![vec![1; LARGE * 2]; 2 * usize::from(WINDOWS)]);
        fabric.sides[ACCEPTING].send(&[vec![2; LARGE * 3]]);
        fabric.sides[CONNECTING].recv(LARGE * 3);
        fabric.settle();
        let received =
            |done: &Done| matches!(done.op, Op::Recv { .. }) && done.result.is_ok_and(|n| n as usize == LARGE * 3);
        assert!(fabric.sides[CONNECTING].dones.iter().any(received), "{:?}", fabric.sides[CONNECTING].link);
        assert!(fabric.sides[CONNECTING].link.outstanding_send(), "nobody has read it");
        assert!(matches!(fabric.sides[ACCEPTING].dones[..], [Done { op: Op::Send { .. }, result: Ok(_) }]));
    }
}

#[test]
fn memory_that_is_open_stays_reserved_until_the_queue_pair_is_destroyed() {
    for from in [CONNECTING, ACCEPTING] {
        let mut fabric = Fabric::up(4);
        fabric.sides[from].send(&[vec![1; LARGE * 2]]);
        if from == ACCEPTING {
            fabric.sides[CONNECTING].recv(LARGE * 2);
        }
        while fabric.sides[CONNECTING].open.is_empty() {
            assert!(fabric.step());
        }
        let side = &mut fabric.sides[CONNECTING];
        side.link.lost(End::Ours, &mut side.out);
        side.take();
        assert!(side.dones.is_empty(), "closed, but the peer may still use it");
        assert!(side.link.outstanding());
        fabric.kill();
        let [done] = &fabric.sides[CONNECTING].dones[..] else { panic!("one operation") };
        assert_eq!(done.result, Err(Errno::CANCELED));
    }
}

#[test]
fn what_arrives_before_it_is_known_to_be_up_is_kept() {
    let mut fabric = Fabric::new(5);
    fabric.sides[ACCEPTING].recv(4096);
    let side = &mut fabric.sides[CONNECTING];
    side.link.up(RX, RX, &mut side.out);
    side.take();
    fabric.sides[CONNECTING].send(&[vec![7; 100]]);
    fabric.settle();
    assert!(matches!(fabric.sides[ACCEPTING].dones[..], [Done { result: Ok(100), .. }]));
    let side = &mut fabric.sides[ACCEPTING];
    side.link.up(RX, RX, &mut side.out);
    side.take();
    fabric.settle();
    fabric.sides[ACCEPTING].dones.clear();
    fabric.sides[CONNECTING].dones.clear();
    fabric.at_rest();
}

#[test]
fn what_the_peer_sent_before_it_closed_is_received_and_then_the_end() {
    let mut fabric = Fabric::up(6);
    fabric.sides[CONNECTING].send(&[vec![7; 100]]);
    fabric.settle();
    let side = &mut fabric.sides[ACCEPTING];
    side.link.lost(End::Peer, &mut side.out);
    side.recv(4096);
    side.recv(4096);
    assert!(matches!(side.dones[..], [Done { result: Ok(100), .. }, Done { result: Ok(0), .. }]));
}

#[test]
fn whoever_closes_after_its_last_send_loses_nothing_of_it() {
    let mut last_moment = 0;
    for seed in 0..400 {
        let mut fabric = Fabric::up(seed);
        let mut rng = Rng(seed);
        let from = rng.below(2);
        let to = 1 - from;
        let parts: Vec<_> = (0..1 + rng.below(4)).map(|_| sized(&mut rng, &[80, 4096, LARGE * 2, LARGE * 3])).collect();
        let whole = parts.concat();
        fabric.sides[from].send(&parts);
        let (mut got, mut over) = (Vec::new(), false);
        fabric.sides[to].recv(LARGE * 2);
        while !over {
            match rng.below(8) {
                0 => fabric.sides[to].sleep(),
                1 => _ = fabric.sides[to].wake(),
                _ => {}
            }
            if !fabric.step() {
                assert!(fabric.sides[to].wake() || !fabric.sides[to].dones.is_empty(), "seed {seed}: stuck");
            }
            if let Some(Done { result, .. }) = fabric.sides[from].dones.first() {
                assert_eq!(*result, Ok(u32::try_from(whole.len()).unwrap()));
                last_moment += usize::from(!fabric.sides[to].open.is_empty());
                fabric.close(from);
            }
            for Done { op, result } in std::mem::take(&mut fabric.sides[to].dones) {
                let Op::Recv { into, from: start, .. } = op else { panic!("it sends nothing") };
                let n =
                    result.unwrap_or_else(|error| panic!("seed {seed}: {error:?} after {} bytes", got.len())) as usize;
                got.extend_from_slice(&into[start..start + n]);
                over |= n == 0;
                if !over {
                    fabric.sides[to].recv(LARGE * 2);
                }
            }
        }
        assert!(got == whole, "seed {seed}: {} of {} bytes", got.len(), whole.len());
    }
    assert!(last_moment > 20, "closed while the window of the last part was still open: {last_moment}");
}

#[test]
fn a_grant_that_is_seen_after_its_peer_has_closed_costs_nothing() {
    let grant = [&[0; 8][..], &u32::try_from(LARGE).unwrap().to_le_bytes(), &[0; 4]].concat();
    let mut fabric = Fabric::up(10);
    fabric.sides[ACCEPTING].send(&[vec![1; LARGE * 2]]);
    fabric.deliver(ACCEPTING, 4 << 24, &grant);
    fabric.sides[ACCEPTING].sleep();
    fabric.deliver(ACCEPTING, 4 << 24, &grant);
    let side = &mut fabric.sides[ACCEPTING];
    side.link.lost(End::Peer, &mut side.out);
    assert!(side.wake());
    assert_eq!(side.has_posted("give"), 1, "nobody is there to be given more");
    fabric.kill();
    let [Done { result, .. }] = fabric.sides[ACCEPTING].dones[..] else { panic!("the send is over once") };
    assert_eq!(result, Err(Errno::RESET));
    fabric.sides[ACCEPTING].dones.clear();
    fabric.at_rest();
}

#[test]
fn what_no_legal_peer_says_ends_the_link_and_harms_nobody() {
    let saying = |len: u32| [&[0; 8][..], &len.to_le_bytes(), &[0; 4]].concat();
    let data = |credits: u32| (1 << 24 | credits, vec![1]);
    let bad: Vec<(usize, (u32, Vec<u8>))> = vec![
        (ACCEPTING, (0, vec![])),
        (ACCEPTING, (9 << 24, vec![])),
        (ACCEPTING, (1 << 24, vec![])),
        (ACCEPTING, data(1)),
        (ACCEPTING, data(0xffff)),
        (ACCEPTING, (2 << 24, vec![1; 15])),
        (ACCEPTING, (2 << 24, saying(0))),
        (CONNECTING, (2 << 24, saying(4096))),
        (ACCEPTING, (3 << 24, saying(4096))),
        (ACCEPTING, (4 << 24, saying(4096))),
        (CONNECTING, (4 << 24, saying(4096))),
        (CONNECTING, (5 << 24, saying(4096))),
        (ACCEPTING, (5 << 24, saying(4096))),
        (CONNECTING, (6 << 24, saying(4096))),
        (ACCEPTING, (7 << 24, vec![1])),
    ];
    for (to, (immediate, bytes)) in bad {
        let mut fabric = Fabric::up(7);
        fabric.deliver(to, immediate, &bytes);
        assert_eq!(fabric.sides[to].link.ended(), Some(End::Failed), "{immediate:#x} {bytes:?}");
        fabric.kill();
        fabric.at_rest();
    }
}

#[test]
fn a_peer_that_lends_offers_or_grants_without_end_is_ended_and_costs_little() {
    let saying = |len: u32| [&[0; 8][..], &len.to_le_bytes(), &[0; 4]].concat();
    let (lend, offer, grant) = (2 << 24, 3 << 24, 4 << 24);
    for (to, what, most) in [(ACCEPTING, lend, usize::from(WINDOWS)), (CONNECTING, offer, 256), (ACCEPTING, grant, 70)]
    {
        let mut fabric = Fabric::up(9);
        if what == grant {
            // It may be given in pieces, of which each is told: as many as the peer has receives for.
            fabric.sides[ACCEPTING].send(&[vec![1; LARGE * 2]]);
        }
        let mut taken = 0;
        while fabric.sides[to].link.ended().is_none() {
            fabric.deliver(to, what, &saying(1));
            taken += 1;
            assert!(taken <= most + 1, "{what:#x}: so many are taken");
        }
        assert_eq!(fabric.sides[to].link.ended(), Some(End::Failed));
        fabric.kill();
        // What is left of the send is given back, too.
        fabric.sides[to].dones.clear();
        fabric.sides[to].link.forget();
        fabric.at_rest();
    }
}

#[test]
fn a_peer_that_sends_more_than_it_has_receives_for_is_ended() {
    let mut fabric = Fabric::up(11);
    let mut taken = 0;
    while fabric.sides[ACCEPTING].link.ended().is_none() {
        fabric.deliver(ACCEPTING, 7 << 24, &[]);
        taken += 1;
        assert!(taken < 2000, "what is owed is returned as long as it may speak: 66 times a quarter of its receives");
    }
    assert_eq!(fabric.sides[ACCEPTING].link.ended(), Some(End::Failed));
    fabric.kill();
    fabric.at_rest();
}

#[test]
fn a_peer_that_returns_credits_for_what_its_device_does_not_take_is_ended() {
    let mut fabric = Fabric::up(12);
    let mut taken = 0;
    while fabric.sides[ACCEPTING].link.ended().is_none() {
        // For so many there is an answer, which is never sent.
        (0..RX / 4 - 1).for_each(|_| fabric.deliver(ACCEPTING, 7 << 24, &[]));
        fabric.deliver(ACCEPTING, 7 << 24 | u32::from(taken > 0), &[]);
        taken += 1;
        assert!(taken < 1000, "what waits to be sent grows without end");
    }
    assert_eq!(taken, 15 * usize::from(RX) + 1, "a legal peer comes nowhere near");
    fabric.kill();
    fabric.at_rest();
}

#[test]
fn a_send_comes_back_however_many_grants_its_peer_says_and_takes_nothing() {
    let grant = [&[0; 8][..], &1_u32.to_le_bytes(), &[0; 4]].concat();
    // Whether it is the receive that is posted again or the answer with which the link finds out that there are too many works.
    for small in 0..6 {
        let mut fabric = Fabric::up(13);
        let mut parts = vec![vec![1; SLOT]; small];
        parts.push(vec![1; LARGE * 2]);
        fabric.sides[ACCEPTING].send(&parts);
        let mut taken = 0;
        while fabric.sides[ACCEPTING].link.ended().is_none() {
            // What the last one was answered with is returned.
            fabric.deliver(ACCEPTING, 4 << 24 | u32::from(taken > 0), &grant);
            taken += 1;
        }
        assert!(taken > 400, "it is the works that are too many: {taken}");
        fabric.kill();
        let [Done { result, .. }] = fabric.sides[ACCEPTING].dones[..] else { panic!("the send is over once") };
        assert_eq!(result, Err(Errno::RESET));
        fabric.sides[ACCEPTING].dones.clear();
        fabric.at_rest();
    }
}

#[test]
fn a_grant_of_more_than_was_offered_is_not_written_to() {
    let mut fabric = Fabric::up(8);
    fabric.sides[ACCEPTING].send(&[vec![1; LARGE * 2]]);
    let grant = |len: usize| [&[0; 8][..], &u32::try_from(len).unwrap().to_le_bytes(), &[0; 4]].concat();
    fabric.deliver(ACCEPTING, 4 << 24, &grant(LARGE));
    assert_eq!(fabric.sides[ACCEPTING].has_posted("give"), 1);
    fabric.deliver(ACCEPTING, 4 << 24, &grant(LARGE + 1));
    assert_eq!(fabric.sides[ACCEPTING].link.ended(), Some(End::Failed));
    assert_eq!(fabric.sides[ACCEPTING].has_posted("give"), 1);
}
