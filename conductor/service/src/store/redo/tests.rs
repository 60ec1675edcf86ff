//! Transactions on a real etcd, stopped at every step.
#![allow(clippy::unwrap_used, reason = "a test")]

use super::*;
use crate::backup::{BackupError, recover_from_nodes};
use crate::store::Records;
use crate::store::etcd::Reign;
use crate::{EtcdStore, EtcdTls, EtcdUser, Store};
use cluster::Etcd as Server;
use conductor_model::{ClusterId, Millis};
use std::collections::BTreeMap;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

type Content = BTreeMap<String, Vec<u8>>;

/// One for all tests that leave it alone. Its watcher ends it.
fn server() -> &'static Server {
    static SERVER: OnceLock<Server> = OnceLock::new();
    SERVER.get_or_init(|| Server::start().unwrap())
}

/// A cluster of its own in it.
async fn fresh(server: &Server) -> Etcd {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let prefix = format!("test-{}/", NEXT.fetch_add(1, Ordering::Relaxed));
    Etcd::members(&EtcdStore { urls: vec![server.url()], prefix, ..EtcdStore::default() }).unwrap().remove(0)
}

async fn reign(etcd: &Etcd) -> Reign {
    loop {
        if let Ok(Some(reign)) = etcd.campaign("test:1").await {
            return reign;
        }
        tokio::time::sleep(limits::LOOK_EVERY).await;
    }
}

async fn content(etcd: &Etcd) -> Content {
    etcd.all("record/").await.unwrap().into_iter().collect()
}

/// Its whole content, also what is not a record's.
async fn nothing_is_left_over(etcd: &Etcd) {
    assert_eq!(etcd.get("head").await.unwrap(), None);
    assert_eq!(etcd.all("pending/").await.unwrap(), []);
}

fn applied(mut content: Content, changes: &[Change]) -> Content {
    for (key, value) in changes {
        match value {
            Some(value) => drop(content.insert(key.clone(), value.clone())),
            None => drop(content.remove(key)),
        }
    }
    content
}

fn put(n: usize, fill: u8, bytes: usize) -> Change {
    (format!("shard/{n:010}"), Some(vec![fill; bytes]))
}

/// What is there before: some of it is changed, and some removed.
fn before() -> Vec<Change> {
    (0..90).map(|n| put(n, b'a', 100)).collect()
}

/// Two parts to stage, three to apply.
fn large() -> Vec<Change> {
    let removed = (0..30).map(|n| (format!("shard/{n:010}"), None));
    removed.chain((30..230).map(|n| put(n, b'b', 6000))).collect()
}
const STAGED: i64 = 2;
const STEPS: i64 = STAGED + 1 + 3 + 1;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transaction_larger_than_etcd_takes_is_whole_or_not_there_wherever_its_leader_stops() {
    let old = applied(Content::new(), &before());
    let new = applied(old.clone(), &large());
    for stop in 0..=STEPS {
        for again in 0..=STEPS {
            let etcd = fresh(server()).await;
            let first = reign(&etcd).await;
            first.guarded.commit(&before()).await.unwrap();
            first.guarded.budget.store(stop, Ordering::SeqCst);
            let done = first.guarded.commit(&large()).await;
            assert_eq!(done.is_ok(), stop == STEPS);
            first.abdicate().await;
            // The next one stops while it takes over.
            let second = reign(&etcd).await;
            second.guarded.budget.store(again, Ordering::SeqCst);
            let through = second.guarded.take_over().await.is_ok();
            second.abdicate().await;
            let third = reign(&etcd).await;
            third.guarded.take_over().await.unwrap();
            let expected = if stop <= STAGED { &old } else { &new };
            assert!(content(&etcd).await == *expected, "stopped after {stop} steps, and after {again}");
            nothing_is_left_over(&etcd).await;
            third.guarded.commit(&[put(7, b'c', 10)]).await.unwrap();
            assert_eq!(content(&etcd).await["shard/0000000007"], b"cccccccccc");
            if through {
                break;
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn first_records_are_there_with_their_format_or_not_at_all_wherever_who_makes_them_stops() {
    let first: Vec<Change> = (0..230).map(|n| put(n, b'a', 6000)).collect();
    for stop in 0..=STEPS {
        let etcd = fresh(server()).await;
        let maker = reign(&etcd).await;
        maker.guarded.budget.store(stop, Ordering::SeqCst);
        assert_eq!(maker.guarded.found(&first).await.is_ok(), stop == STEPS);
        maker.abdicate().await;
        let next = reign(&etcd).await;
        next.guarded.take_over().await.unwrap();
        let is_there = stop > STAGED;
        let expected = if is_there { applied(Content::new(), &first) } else { Content::new() };
        assert!(content(&etcd).await == expected, "stopped after {stop} steps");
        assert_eq!(etcd.get("format").await.unwrap(), is_there.then(|| b"1".to_vec()), "stopped after {stop} steps");
        nothing_is_left_over(&etcd).await;
    }
}

/// A guarded one, as whoever has its password names it.
fn guarded(server: &Server) -> EtcdStore {
    let options = server.options();
    let value = |name: &str| options.iter().skip_while(|option| *option != name).nth(1).unwrap();
    let file = |name: &str| std::fs::read_to_string(value(name)).unwrap();
    let user =
        EtcdUser { name: value("--etcd-user").clone(), password: file("--etcd-password-file").trim().to_owned() };
    let identity = Some((file("--etcd-cert"), file("--etcd-key")));
    let tls = EtcdTls { authority: file("--etcd-ca"), identity };
    EtcdStore { urls: vec![server.url()], prefix: "guarded/".to_owned(), user: Some(user), tls: Some(tls) }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn etcd_is_used_over_tls_by_who_has_its_password_and_by_nobody_else() {
    let mut server = Server::start_guarded().unwrap();
    let at = guarded(&server);
    let etcd = Etcd::members(&at).unwrap().remove(0);
    let first = reign(&etcd).await;
    first.guarded.commit(&before()).await.unwrap();
    first.guarded.commit(&large()).await.unwrap();
    let expected = applied(applied(Content::new(), &before()), &large());
    assert!(content(&etcd).await == expected);
    // It forgets whom it had let in.
    server.kill().unwrap();
    server.start_again().unwrap();
    let second = reign(&etcd).await;
    assert!(content(&etcd).await == expected);
    second.abdicate().await;

    let refused = async |at: EtcdStore| match Etcd::members(&at).unwrap()[0].leader().await {
        Err(Error::Etcd { why, .. }) => why,
        other => panic!("{other:?}"),
    };
    let user = |password: &str| Some(EtcdUser { name: "trine".to_owned(), password: password.to_owned() });
    let why = refused(EtcdStore { user: user("guessed"), ..at.clone() }).await;
    assert!(why.contains("authentication failed"), "{why}");
    refused(EtcdStore { user: None, ..at.clone() }).await;
    let other = Server::start_guarded().unwrap();
    let tls = guarded(&other).tls.unwrap();
    let trusts = EtcdTls { identity: at.tls.clone().unwrap().identity, ..tls.clone() };
    let why = refused(EtcdStore { tls: Some(trusts), ..at.clone() }).await;
    assert!(why.contains("certificate"), "whoever answers there is not believed: {why}");
    let shows = EtcdTls { identity: tls.identity, ..at.tls.clone().unwrap() };
    refused(EtcdStore { tls: Some(shows), ..at.clone() }).await;
    refused(EtcdStore { tls: Some(EtcdTls { identity: None, ..at.tls.clone().unwrap() }), ..at.clone() }).await;
    assert_eq!(etcd.leader().await.unwrap(), None, "who has all of it is let in all the while");
}

/// The place of `fresh`, as people name it.
fn named(etcd: &Etcd) -> Store {
    Store::Etcd(EtcdStore { urls: vec![server().url()], prefix: etcd.key(""), ..EtcdStore::default() })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_state_is_made_again_where_there_is_none_and_nobody_leads() {
    let recover = async |store: &Store| {
        let store = store.clone();
        tokio::task::spawn_blocking(move || recover_from_nodes(Some(ClusterId(7)), &store)).await.unwrap()
    };
    let etcd = fresh(server()).await;
    let store = named(&etcd);
    let leader = reign(&etcd).await;
    let keeper = tokio::spawn(async move {
        leader.keep().await;
        leader
    });
    let refused = recover(&store).await;
    assert!(
        matches!(&refused, Err(BackupError::State(Error::Led { leader, .. })) if leader == "test:1"),
        "{refused:?}"
    );
    // A conductor that was killed: its lease runs out by itself.
    keeper.abort();
    recover(&store).await.unwrap();
    let model = reign(&etcd).await.take_over(false, || Millis(9)).await.unwrap();
    assert_eq!(model.cluster(), ClusterId(7));
    assert!(model.doubted().is_some(), "nothing is changed before it is adopted");
    let before = content(&etcd).await;
    let refused = recover(&store).await;
    let named = |whose: &str| whose.contains(&ClusterId(7).to_string());
    assert!(matches!(&refused, Err(BackupError::State(Error::Occupied { whose, .. })) if named(whose)), "{refused:?}");
    assert!(content(&etcd).await == before);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_leader_had_decided_is_somebodys_state() {
    let etcd = fresh(server()).await;
    let first = reign(&etcd).await;
    first.guarded.budget.store(STAGED + 1, Ordering::SeqCst);
    assert!(first.guarded.commit(&large()).await.is_err());
    first.abdicate().await;
    let store = named(&etcd);
    let refused = tokio::task::spawn_blocking(move || recover_from_nodes(None, &store)).await.unwrap();
    assert!(matches!(refused, Err(BackupError::State(Error::Occupied { .. }))), "{refused:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_decided_is_finished_behind_a_restart_of_etcd() {
    for stop in [STAGED, STAGED + 1, STAGED + 2] {
        let mut server = Server::start().unwrap();
        let etcd = fresh(&server).await;
        let first = reign(&etcd).await;
        first.guarded.commit(&before()).await.unwrap();
        first.guarded.budget.store(stop, Ordering::SeqCst);
        assert!(first.guarded.commit(&large()).await.is_err());
        server.kill().unwrap();
        assert!(etcd.leader().await.is_err(), "there is no etcd");
        server.start_again().unwrap();
        // The dead leader's lease runs out.
        let second = reign(&etcd).await;
        second.guarded.take_over().await.unwrap();
        let old = applied(Content::new(), &before());
        let expected = if stop <= STAGED { old } else { applied(old, &large()) };
        assert!(content(&etcd).await == expected, "stopped after {stop} steps");
        nothing_is_left_over(&etcd).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deposed_leader_writes_nothing() {
    let etcd = fresh(server()).await;
    let first = reign(&etcd).await;
    first.guarded.commit(&before()).await.unwrap();
    assert!(etcd.campaign("test:2").await.unwrap().is_none(), "somebody leads");
    let late = first.guarded.clone();
    first.abdicate().await;
    let refused = async |late: &Guarded| {
        for changes in [vec![put(1, b'x', 10)], large()] {
            let outcome = late.commit(&changes).await;
            assert!(matches!(outcome, Err(Error::Deposed(_))), "{outcome:?}");
        }
        assert!(matches!(late.take_over().await, Err(Error::Deposed(_))));
    };
    refused(&late).await;
    let second = reign(&etcd).await;
    refused(&late).await;
    assert!(content(&etcd).await == applied(Content::new(), &before()));
    nothing_is_left_over(&etcd).await;
    second.guarded.commit(&large()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_cannot_keep_its_lease_ends_before_etcd_lets_another_one_lead() {
    let mut server = Server::start().unwrap();
    let etcd = fresh(&server).await;
    let first = reign(&etcd).await;
    let model = first.take_over(false, || Millis(1)).await.unwrap();
    let (mut validity, store) = (first.validity(), first.store());
    assert!(store.is_ours().is_ok());
    let kept = tokio::time::timeout(limits::LEASE * 2, async {
        tokio::select! {
            lapsed = validity.lapsed() => lapsed,
            lost = first.keep() => lost,
        }
    });
    assert!(kept.await.is_err(), "it lapses although it is kept");
    server.process.freeze().unwrap();
    let lapsed = tokio::select! {
        lapsed = validity.lapsed() => lapsed,
        lost = first.keep() => lost,
    };
    assert!(matches!(lapsed, Error::Deposed(_)));
    assert!(store.is_ours().is_err());
    server.process.thaw().unwrap();
    let second = reign(&etcd).await;
    let read = second.take_over(false, || Millis(2)).await.unwrap();
    assert_eq!((read.cluster(), read.commit()), (model.cluster(), model.commit()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reign_ends_at_once_when_its_lease_or_its_key_is_gone() {
    let etcd = fresh(server()).await;
    for lease in [true, false] {
        let first = reign(&etcd).await;
        let (validity, store) = (first.validity(), first.store());
        if lease {
            etcd.revoke(first.lease).await;
        } else {
            // The lease goes on.
            let gone = Txn::new().and_then([TxnOp::delete(etcd.key("leader"), None)]);
            etcd.txn("remove the key", gone).await.unwrap();
        }
        // It is not left to the lease's time.
        let lost = tokio::time::timeout(limits::LEASE * 10, first.keep()).await.unwrap();
        assert!(matches!(lost, Error::Deposed(_)), "{lost:?}");
        assert!(!validity.holds() && store.is_ours().is_err());
        let late = first.take_over(false, || panic!("nothing is read by who does not lead")).await;
        assert!(matches!(late, Err(Error::Deposed(_))), "{:?}", late.err());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_decided_transaction_of_more_than_one_answer_of_etcds_is_finished_by_the_next_leader() {
    let etcd = fresh(server()).await;
    let first = reign(&etcd).await;
    let parts = limits::ETCD_ANSWER / limits::TXN_BYTES + 1;
    let most = limits::TXN_BYTES - limits::CHANGE_BYTES - "shard/0000000000".len();
    let changes: Vec<Change> = (0..parts).map(|n| put(n, b'a', most)).collect();
    first.guarded.budget.store(i64::try_from(parts).unwrap() + 1, Ordering::SeqCst);
    assert!(first.guarded.commit(&changes).await.is_err(), "it stops when it is decided");
    assert_eq!(etcd.get("head").await.unwrap().unwrap(), parts.to_string().as_bytes());
    first.abdicate().await;
    let second = reign(&etcd).await;
    second.guarded.take_over().await.unwrap();
    let present = applied(Content::new(), &changes);
    assert!(content(&etcd).await == present);
    nothing_is_left_over(&etcd).await;
    // Behind small ones, which do not tell how large these are.
    let small: Vec<Change> = (0..400).map(|n| (format!("node/{n:010}"), Some(vec![b'a'; 20]))).collect();
    second.guarded.commit(&small).await.unwrap();
    assert!(content(&etcd).await == applied(present, &small));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_nodes_death_is_one_transaction() {
    let etcd = fresh(server()).await;
    let leader = reign(&etcd).await;
    let changes: Vec<Change> = (0..25_600).map(|n| put(n, b'a', 900)).collect();
    let start = Instant::now();
    leader.guarded.commit(&changes).await.unwrap();
    println!("25,600 shards written in {:?}", start.elapsed());
    let (start, asked) = (Instant::now(), etcd.pages());
    assert!(content(&etcd).await == applied(Content::new(), &changes));
    println!("and read in {:?}", start.elapsed());
    // Each is as much work for etcd as all records are: with pages of one size that would be the square of their number.
    let asked = etcd.pages() - asked;
    assert!((2..12).contains(&asked), "{asked} questions");
    nothing_is_left_over(&etcd).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_record_larger_than_etcd_takes_is_refused_before_anything_is_written() {
    let etcd = fresh(server()).await;
    let leader = reign(&etcd).await;
    leader.guarded.commit(&before()).await.unwrap();
    let most = limits::TXN_BYTES - limits::CHANGE_BYTES - "shard/0000000000".len();
    leader.guarded.commit(&[put(0, b'a', most), put(1, b'a', most)]).await.unwrap();
    let changes = [put(2, b'a', 10), put(3, b'a', most + 1)];
    assert!(matches!(leader.guarded.commit(&changes).await, Err(Error::TooLarge { .. })));
    let present = content(&etcd).await;
    assert_eq!((present["shard/0000000001"].len(), present["shard/0000000002"].len()), (most, 100));
}

#[test]
fn pieces_are_within_both_limits_and_leave_nothing_out() {
    for (count, bytes) in [(0, 1), (1, 1), (100, 1), (101, 1), (1000, 5000), (7, 900_000), (3, 1_040_000)] {
        let changes: Vec<Change> = (0..count).map(|n| put(n, b'a', bytes)).collect();
        let pieces: Vec<&[Change]> = pieces(&changes, limits::TXN_CHANGES).collect();
        assert_eq!(pieces.concat(), changes);
        let fits = |piece: &&[Change]| {
            piece.len() <= limits::TXN_CHANGES && piece.iter().map(size).sum::<usize>() <= limits::TXN_BYTES
        };
        assert!(pieces.iter().all(fits), "{count} of {bytes}");
    }
}
