//! Readers of a volume that nobody writes: many at once, without a write, until the conductor or a writer ends them (rule 19).

use crate::common::{Cluster, block};
use conductor_model::api::ReaderList;
use conductor_model::{AttachGeneration, Durability, VolumeId};
use driver::Span;
use node_core::Mail;
use node_protocol::{Status, op};
use sim::{Latency, ProcessId};
use wire::READ_ONLY;

/// One block.
const LEN: u32 = 4096;

/// Volume 1 with a block of sevens, and nobody who writes.
fn written(seed: u64) -> Cluster {
    let mut c = Cluster::new(seed);
    c.create(1, &[0, 1, 2], None, Durability::Always);
    let writer = c.client(1, 0);
    c.write(writer, 1, 0, 7);
    c
}

fn reader(c: &mut Cluster, name: &str, generation: u64) -> ProcessId {
    c.client_with(1, |info| {
        name.clone_into(&mut info.name);
        (info.features, info.generation, info.incarnation) = (READ_ONLY, generation, generation);
    })
}

/// True if it is answered at all.
fn is_served(c: &mut Cluster, client: ProcessId) -> bool {
    let token = c.ask(client, 1, op::READ, 0, LEN, Vec::new());
    c.run(Span::seconds(5));
    c.answers.contains_key(&token)
}

fn tell(c: &mut Cluster, upto: u64, readers: &[u64]) {
    let readers = readers.iter().copied().map(AttachGeneration).collect();
    let list = ReaderList { volume: VolumeId(1), upto: AttachGeneration(upto), readers };
    for node in 0..3 {
        c.mail(node, Mail::Readers(vec![list.clone()]));
    }
    c.run(Span::millis(200));
}

#[test]
fn a_reader_reads_and_changes_nothing() {
    let mut c = written(41);
    let (a, b) = (reader(&mut c, "a", 2), reader(&mut c, "b", 3));
    for client in [a, b, a] {
        assert_eq!(c.read(client, 1, 0), 7);
        let flush = c.ask(client, 1, op::FLUSH, 0, 0, Vec::new());
        assert_eq!(c.answer(flush).0, Status::Ok);
        for (what, data) in [(op::WRITE, block(9)), (op::WRITE_ZEROES, Vec::new()), (op::DISCARD, Vec::new())] {
            let change = c.ask(client, 1, what, 0, LEN, data);
            assert_eq!(c.answer(change).0, Status::Denied, "{what:?}");
        }
        assert_eq!(c.read(client, 1, 0), 7);
    }
    // Who is there, and with how many requests that are not answered yet.
    let primary = c.primary(1);
    c.holds_reads[primary].set(true);
    let held = c.ask(b, 1, op::READ, 0, LEN, Vec::new());
    c.run(Span::millis(100));
    let sessions = c.view(primary).unwrap().sessions;
    let seen: Vec<_> = sessions.iter().map(|s| (s.client.as_str(), s.read_only, s.lanes, s.requests)).collect();
    assert_eq!(seen, [("a", true, 1, 0), ("b", true, 1, 1)], "the writer before them is gone");
    c.holds_reads[primary].set(false);
    assert_eq!(c.answer(held).0, Status::Ok);
}

#[test]
fn a_reader_that_is_not_listed_any_more_is_served_nothing_and_does_not_come_back() {
    let mut c = written(42);
    let (a, b) = (reader(&mut c, "a", 2), reader(&mut c, "b", 3));
    assert!(is_served(&mut c, a) && is_served(&mut c, b));
    tell(&mut c, 3, &[2]);
    assert!(is_served(&mut c, a) && !is_served(&mut c, b));
    let again = reader(&mut c, "b", 3);
    assert!(!is_served(&mut c, again), "in the generation that has ended");
    let anew = reader(&mut c, "b", 4);
    assert!(is_served(&mut c, anew) && is_served(&mut c, a));
}

#[test]
fn a_writer_ends_all_readers_before_it() {
    let mut c = written(43);
    let (a, b) = (reader(&mut c, "a", 2), reader(&mut c, "b", 3));
    assert!(is_served(&mut c, a) && is_served(&mut c, b));
    let writer = c.client_with(1, |info| info.generation = 4);
    c.write(writer, 1, 0, 8);
    assert!(!is_served(&mut c, a) && !is_served(&mut c, b));
    let again = reader(&mut c, "a", 2);
    assert!(!is_served(&mut c, again));
    assert_eq!(c.read(writer, 1, 0), 8);
}

/// Whoever has the memory takes its time: a read that waits for some does not keep others from writing what it would read.
#[test]
fn a_read_that_finds_no_memory_gives_way_to_writes_of_what_it_reads() {
    const PIECE: u32 = 512 << 10;
    let mut c = Cluster::new(44);
    c.create(1, &[0, 1, 2], None, Durability::Always);
    let writer = c.client(1, 0);
    c.write(writer, 1, 0, 7);
    c.snapshot(1, 1);
    let primary = c.primary(1);
    // Readers of a snapshot, of which the store answers none: what they are to read into is taken.
    c.holds_reads[primary].set(true);
    for n in 0..8 {
        let slow = c.client_with(1, |info| {
            info.name = format!("slow{n}");
            (info.view, info.generation) = (1, 0);
        });
        let asked: Vec<u64> = (0..8).map(|_| c.ask(slow, 1, op::READ, PIECE.into(), PIECE, Vec::new())).collect();
        c.run(Span::millis(20));
        assert!(asked.iter().all(|token| !c.answers.contains_key(token)), "held");
    }
    let waits = c.ask(writer, 1, op::READ, 0, PIECE, Vec::new());
    c.run(Span::millis(100));
    assert!(c.count("memory.waits") > 0);
    let write = c.start_write(writer, 1, 0, 8);
    c.run(Span::millis(500));
    assert!(!c.answers.contains_key(&write), "behind the read");
    c.run(Span::seconds(1));
    assert_eq!(c.answers[&waits].0, Status::Later);
    assert_eq!(c.answers[&write].0, Status::Ok);
    assert!(c.count("memory.gave-way") > 0);
    c.holds_reads[primary].set(false);
    c.run(Span::seconds(1));
    assert_eq!(c.read(writer, 1, 0), 8);
}

/// Memory is taken by many small reads, each of which is followed by another one as soon as it is answered.
#[test]
fn a_large_read_finds_its_memory_beside_many_small_ones() {
    const SMALL: u32 = 64 << 10;
    const LARGE: u32 = 1 << 20;
    const READERS: u64 = 8;
    let mut c = Cluster::new(45);
    c.create(1, &[0, 1, 2], None, Durability::Always);
    let writer = c.client(1, 0);
    for n in 0..READERS {
        c.write(writer, 1, 16 * n as u32, 7);
    }
    c.snapshot(1, 1);
    let small = |c: &mut Cluster, (reader, n): (ProcessId, u64)| {
        c.ask(reader, 1, op::READ, n * u64::from(SMALL), SMALL, vec![])
    };
    let mut asked = Vec::new();
    for n in 0..READERS {
        let reader = c.client_with(1, |info| {
            info.name = format!("reader{n}");
            (info.view, info.generation) = (1, 0);
        });
        asked.extend((0..60).map(|_| ((reader, n), small(&mut c, (reader, n)))));
    }
    let mut read = 0;
    let mut read_for = |c: &mut Cluster, rounds: u32, large: Option<u64>| {
        (0..rounds).any(|_| {
            c.run(Span::micros(50));
            for (reader, token) in &mut asked {
                if let Some((status, _)) = c.answers.remove(token) {
                    assert!(matches!(status, Status::Ok | Status::Later), "{status:?}");
                    read += 1;
                    *token = small(c, *reader);
                }
            }
            large.is_some_and(|large| c.answers.contains_key(&large))
        })
    };
    let primary = c.primary(1);
    c.w.disk(c.disks[primary]).latency = Latency::micros(5000, 2000);
    read_for(&mut c, 1000, None);
    let large = c.ask(writer, 1, op::READ, 0, LARGE, Vec::new());
    assert!(read_for(&mut c, 10_000, Some(large)), "no answer within half a second");
    assert_eq!(c.answers[&large].0, Status::Ok);
    println!("{} small reads, {} waits", read, c.count("memory.waits"));
}
