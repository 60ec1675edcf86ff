//! What is so over every driver.

use driver::Address;
use tcp::Lost;
use wire::Reason;

use crate::peer::DEPTH;
use crate::{Ends, Look, Order, Told, Who};
use Who::{Client, Server};

/// A case, and how many rounds it does if it does rounds.
pub type Case = fn(&mut dyn Ends, usize);

/// All of them.
pub const CASES: [(&str, Case); 9] = [
    ("the counts of a handshake are those of the table, on both sides", handshake),
    ("a request holds its connection until it is answered", request),
    ("payloads of every size come back as they were", payloads),
    ("whoever closes, the other sees an end, and nothing holds either connection", closes),
    ("a goodbye is said after what is queued", goodbye),
    ("a connect to where nobody listens ends, and again", nobody),
    ("a peer that is gone in mid-transfer leaves nothing behind", gone),
    ("connections that come and go leave nothing", rounds),
    ("connections that are closed in mid-transfer leave nothing", cuts),
];

const LARGE: usize = 1 << 20;
/// Received in place, and moved by READ and WRITE, as a larger one is.
const MIDDLING: usize = 128 << 10;

/// Each after a moment: a minute at least.
const LOOKS: u32 = 60_000;

fn at_rest() -> String {
    format!("1 owner + {} rx", 2 * DEPTH + 2)
}

/// Waits until a peer tells what `is` wanted; what comes before is dropped.
fn wait<T>(ends: &mut dyn Ends, who: Who, mut is: impl FnMut(&Told) -> Option<T>) -> T {
    loop {
        if let Some(found) = is(&ends.next(who)) {
            return found;
        }
    }
}

fn up(ends: &mut dyn Ends) {
    let to = ends.address();
    ends.tell(Client, Order::Connect(to));
    for who in [Client, Server] {
        wait(ends, who, |told| (*told == Told::Up).then_some(()));
    }
}

fn down(ends: &mut dyn Ends, who: Who) -> Reason {
    wait(ends, who, |told| if let Told::Down(reason) = told { Some(*reason) } else { None })
}

fn answered(ends: &mut dyn Ends) -> Result<usize, Lost> {
    wait(ends, Client, |told| if let Told::Answered(result) = told { Some(*result) } else { None })
}

fn look(ends: &mut dyn Ends, who: Who) -> Look {
    ends.tell(who, Order::Look);
    wait(ends, who, |told| if let Told::Looked(look) = told { Some(look.clone()) } else { None })
}

/// Looks until it is so: completions come when they come, and a ping may be under way.
fn until(ends: &mut dyn Ends, who: Who, what: &str, is: impl Fn(&Look) -> bool) -> Look {
    let mut seen = Look::default();
    for _ in 0..LOOKS {
        seen = look(ends, who);
        if is(&seen) {
            return seen;
        }
        ends.pause();
    }
    panic!("the {who:?} does not come to {what}: {seen:?}")
}

/// No connection, and no memory.
fn at_zero(ends: &mut dyn Ends, who: Who) {
    until(ends, who, "nothing", |look| look.connections == 0 && look.memory == 0);
}

fn handshake(ends: &mut dyn Ends, _: usize) {
    up(ends);
    let (receive, send) = ("1 owner + 1 rx", "1 owner + 1 tx");
    // connect, hello, challenge, proof, ack; on the other side hello, challenge, proof, ack.
    for (who, steps) in
        [(Client, &[receive, send, receive, send, receive][..]), (Server, &[receive, send, receive, send])]
    {
        let seen = until(ends, who, "rest", |look| look.holds.as_deref() == Some(&*at_rest()));
        let mut table: Vec<_> = steps.iter().map(ToString::to_string).collect();
        table.push(at_rest());
        assert!(seen.counts.starts_with(&table), "the {who:?}: {:?}", seen.counts);
    }
}

fn request(ends: &mut dyn Ends, _: usize) {
    up(ends);
    ends.tell(Server, Order::Keep(true));
    ends.tell(Client, Order::Ask(4096));
    wait(ends, Server, |told| (*told == Told::Asked(4096)).then_some(()));
    until(ends, Server, "one answer", |look| look.holds == Some(format!("{} + 1 answers", at_rest())));
    ends.tell(Server, Order::Keep(false));
    assert_eq!(answered(ends), Ok(4096));
    for who in [Client, Server] {
        until(ends, who, "rest", |look| look.holds == Some(at_rest()));
    }
}

fn payloads(ends: &mut dyn Ends, _: usize) {
    up(ends);
    // Around what travels in messages, what is received in place, and what RDMA moves with READ and WRITE.
    for len in [1, 4095, 4096, 8192, 8193, 16 << 10, (16 << 10) + 1, 64 << 10, 300_000, LARGE] {
        ends.tell(Client, Order::Ask(len));
        assert_eq!(answered(ends), Ok(len));
    }
    let mixed = [LARGE, 1, 20_000, 4096, LARGE, 8192, MIDDLING, 3];
    mixed.iter().for_each(|len| ends.tell(Client, Order::Ask(*len)));
    let mut back: Vec<_> = mixed.iter().map(|_| answered(ends).unwrap()).collect();
    let mut sent = mixed.to_vec();
    back.sort_unstable();
    sent.sort_unstable();
    assert_eq!(back, sent);
    for who in [Client, Server] {
        until(ends, who, "rest", |look| look.holds == Some(at_rest()));
    }
}

fn closes(ends: &mut dyn Ends, _: usize) {
    for (first, other) in [(Client, Server), (Server, Client)] {
        up(ends);
        ends.tell(first, Order::Close);
        assert_eq!((down(ends, first), down(ends, other)), (Reason::Closed, Reason::PeerClosed));
        at_zero(ends, first);
        at_zero(ends, other);
    }
}

fn goodbye(ends: &mut dyn Ends, _: usize) {
    up(ends);
    ends.tell(Server, Order::Keep(true));
    for _ in 0..3 {
        ends.tell(Client, Order::Ask(LARGE));
        wait(ends, Server, |told| (*told == Told::Asked(LARGE)).then_some(()));
    }
    // The answers go before it.
    ends.tell(Server, Order::Keep(false));
    ends.tell(Server, Order::Stop);
    for _ in 0..3 {
        assert_eq!(answered(ends), Ok(LARGE));
    }
    assert_eq!(down(ends, Client), Reason::Goodbye);
    at_zero(ends, Client);
}

fn nobody(ends: &mut dyn Ends, _: usize) {
    for _ in 0..3 {
        let to: Address = ends.nowhere();
        ends.tell(Client, Order::Connect(to));
        assert_eq!(down(ends, Client), Reason::ConnectFailed);
        at_zero(ends, Client);
    }
    up(ends);
}

fn gone(ends: &mut dyn Ends, _: usize) {
    up(ends);
    ends.tell(Server, Order::Keep(true));
    for _ in 0..DEPTH {
        ends.tell(Client, Order::Ask(LARGE));
    }
    // One is there, the others are on their way.
    wait(ends, Server, |told| (*told == Told::Asked(LARGE)).then_some(()));
    ends.kill(Server);
    for _ in 0..DEPTH {
        assert_eq!(answered(ends), Err(Lost::ConnLost));
    }
    let reason = down(ends, Client);
    assert!(matches!(reason, Reason::PeerClosed | Reason::Io), "{reason:?}");
    at_zero(ends, Client);
}

/// Connections one after the other; `use_it` has each of them ended. Descriptors are where they were after the first ones.
fn come_and_go(ends: &mut dyn Ends, rounds: usize, mut use_it: impl FnMut(&mut dyn Ends, usize)) {
    let mut before = None;
    for round in 0..rounds {
        up(ends);
        use_it(ends, round);
        at_zero(ends, Client);
        at_zero(ends, Server);
        if round == 4 {
            before = Some(ends.descriptors());
        }
    }
    assert!(before.is_none_or(|before| before == ends.descriptors()), "{before:?} became {:?}", ends.descriptors());
}

fn rounds(ends: &mut dyn Ends, rounds: usize) {
    come_and_go(ends, rounds, |ends, round| {
        let len = [4096, 64 << 10, 1][round % 3];
        ends.tell(Client, Order::Ask(len));
        assert_eq!(answered(ends), Ok(len));
        ends.tell([Client, Server][round % 2], Order::Close);
        down(ends, Client);
        down(ends, Server);
    });
}

fn cuts(ends: &mut dyn Ends, rounds: usize) {
    let mut lost = 0;
    come_and_go(ends, rounds, |ends, round| {
        for _ in 0..4 {
            ends.tell(Client, Order::Ask(MIDDLING));
        }
        // Of the bytes of these requests and their answers some have arrived: in other rounds others.
        for _ in 0..round % 4 {
            wait(ends, Server, |told| (*told == Told::Asked(MIDDLING)).then_some(()));
        }
        ends.tell([Client, Server][round % 2], Order::Close);
        lost += (0..4).filter(|_| answered(ends).is_err()).count();
        down(ends, Client);
        down(ends, Server);
    });
    assert!(lost > 0, "nothing was under way when the connections were closed");
}
