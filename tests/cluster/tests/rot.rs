//! A thousand bits flipped, writes lost and writes misdirected on one node's disk: each is met, each is put right, no reader sees one.
//!
//! ```text
//!   every block written ► picture of n1's disk ► every block written again, half of them once more ► all stopped (or killed)
//!     ► of n1's copies: FLIPS bits, lost writes, misdirected writes ► all started ► read over NBD where n1 is primary, scrubbed elsewhere
//! ```
//! What a disk holds where is found by content (`cluster::rot`). `SEED=` and `FLIPS=` choose others; both are printed.
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation)] // a test: small numbers, and a panic is its way to fail

use cluster::nbd::{Command, Nbd};
use cluster::rot::{BLOCK, Kind, Picture, Planted, Planter, Spot, Stamp};
use cluster::{Cluster, LONG, Random, Shape, wait_until};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

const MIB: usize = 1 << 20;
/// The volume whose blocks are damaged: a shard for each node to be primary of, at 4096 blocks.
const DB: u32 = 1;
const SHARDS: u64 = 3;
const SHARD_MIB: u64 = 16;
const SHARD: u64 = (SHARD_MIB << 20) / BLOCK as u64;
const BLOCKS: u64 = SHARDS * SHARD;
/// Another one, whose blocks are laid over those.
const OTHER: u32 = 2;
const OTHER_BLOCKS: u64 = 512;
/// The node with the rotten disk.
const ROTTEN: usize = 0;
/// Requests at a time.
const DEPTH: usize = 64;

struct Bench {
    cluster: Cluster,
    db: Nbd,
    /// The newest acknowledged write of each block.
    versions: Vec<u32>,
    random: Random,
    /// Bits that are flipped for each of the two: where n1 is primary, and where it is not.
    flips: usize,
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

fn write(volume: u32, block: u64, version: u32, blocks: u64) -> Command {
    let bytes = (block..block + blocks).flat_map(|block| Stamp { volume, block, version }.content()).collect();
    Command::Write { offset: block * BLOCK as u64, bytes }
}

/// Sends all of them, and waits until as many as `enough` are acknowledged; what is done with each reply's number is the caller's.
fn send(nbd: &mut Nbd, commands: impl IntoIterator<Item = Command>, enough: usize, mut done: impl FnMut(u64)) {
    let mut commands = commands.into_iter().peekable();
    let mut acknowledged = 0;
    while acknowledged < enough && (commands.peek().is_some() || nbd.in_flight() > 0) {
        while nbd.in_flight() < DEPTH
            && let Some(command) = commands.next()
        {
            nbd.submit(&command);
        }
        for reply in nbd.turn(LONG).unwrap() {
            reply.result.unwrap();
            acknowledged += 1;
            done(reply.handle);
        }
    }
}

impl Bench {
    fn new() -> Self {
        let clock = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
        let seed = number("SEED").unwrap_or(u64::from(clock.subsec_nanos()));
        let flips = number("FLIPS").unwrap_or(320) as usize;
        println!("rot: SEED={seed} FLIPS={flips}");
        let mut cluster = Cluster::start(Shape::default()).unwrap();
        cluster.create("db", SHARDS * SHARD_MIB, SHARD_MIB).unwrap();
        cluster.create("other", (OTHER_BLOCKS * BLOCK as u64) >> 20, 2).unwrap();
        let place = cluster.attach("other").unwrap();
        let mut other = Nbd::connect(&place, "other").unwrap();
        send(&mut other, (0..OTHER_BLOCKS).step_by(16).map(|block| write(OTHER, block, 1, 16)), usize::MAX, |_| ());
        other.disconnect().unwrap();
        let place = cluster.attach("db").unwrap();
        let mut db = Nbd::connect(&place, "db").unwrap();
        let whole = (MIB / BLOCK) as u64;
        send(&mut db, (0..BLOCKS).step_by(whole as usize).map(|block| write(DB, block, 1, whole)), usize::MAX, |_| ());
        Self { cluster, db, versions: vec![1; BLOCKS as usize], random: Random::new(seed), flips }
    }

    /// Writes of one to four blocks that cover all, in any order: the next version of each.
    fn rewrite(&mut self, part: f64) {
        let mut runs = Vec::new();
        let mut at = 0;
        while at < BLOCKS {
            let blocks = (1 + self.random.below(4)).min(BLOCKS - at);
            if (self.random.below(1000) as f64) < part * 1000.0 {
                runs.push((at, blocks));
            }
            at += blocks;
        }
        self.shuffle(&mut runs);
        let version = *self.versions.iter().max().unwrap() + 1;
        for (at, blocks) in &runs {
            self.versions[*at as usize..(at + blocks) as usize].fill(version);
        }
        let commands = runs.into_iter().map(|(at, blocks)| write(DB, at, version, blocks));
        send(&mut self.db, commands, usize::MAX, |_| ());
    }

    fn shuffle<T>(&mut self, of: &mut [T]) {
        for n in (1..of.len()).rev() {
            of.swap(n, self.random.below(n as u64 + 1) as usize);
        }
    }

    fn picture(&self) -> Picture {
        Picture::of(&self.cluster.disk(ROTTEN)).unwrap()
    }

    /// Waits until the rotten node has moved all that was written to its place.
    fn all_is_home(&self) {
        let home = |spot: &Spot| spot.journaled.is_none() && self.is_newest(spot);
        let all = || Ok(self.picture().spots(DB).values().filter(|spot| home(spot)).count() as u64 == BLOCKS);
        wait_until("all is home", LONG, || {
            std::thread::sleep(Duration::from_millis(200));
            all()
        })
        .unwrap();
    }

    fn is_newest(&self, spot: &Spot) -> bool {
        self.versions[spot.stamp.block as usize] == spot.stamp.version
    }

    /// The conductor first, so that nobody is promoted; what is primary of what is the same when they are back.
    fn stop(&mut self, how: impl Fn(&mut cluster::Process)) {
        how(&mut self.cluster.conductor);
        self.cluster.nodes.iter_mut().for_each(how);
    }

    fn start(&mut self) {
        self.cluster.nodes.iter_mut().for_each(|node| node.start().unwrap());
        self.cluster.conductor.start().unwrap();
        self.cluster.wait_healthy("db").unwrap();
        self.cluster.wait_healthy("other").unwrap();
    }

    /// The shards that the rotten node is primary of.
    fn led(&self) -> BTreeSet<u64> {
        (0..SHARDS).filter(|shard| self.cluster.primary("db", *shard as usize).unwrap() == ROTTEN).collect()
    }

    /// Of the stopped disks: what `trine store dump` says of n1's copies of db (name, shard), and the blocks that are written again when the
    /// nodes are back, because some copy has them above K.
    fn dumped(&self) -> (BTreeMap<String, u64>, BTreeSet<u64>) {
        let (mut copies, mut above) = (BTreeMap::new(), BTreeSet::new());
        for n in 0..3 {
            let dump = self.cluster.json(&["store", "dump", &self.disk(n)]).unwrap();
            for copy in dump["copies"].as_array().unwrap() {
                // The volume that was created first.
                let Some(shard) = copy["shard"].as_str().unwrap().strip_prefix("v1/") else { continue };
                let shard: u64 = shard.parse().unwrap();
                if n == ROTTEN {
                    copies.insert(copy["copy"].as_str().unwrap().to_owned(), shard);
                }
                for held in copy["above_known_good"].as_array().unwrap() {
                    let from = shard * SHARD + held["from"].as_u64().unwrap();
                    above.extend(from..from + held["blocks"].as_u64().unwrap());
                }
            }
        }
        (copies, above)
    }

    fn disk(&self, n: usize) -> String {
        self.cluster.disk(n).display().to_string()
    }

    fn findings(&self) -> (Vec<Value>, u64) {
        findings(&self.cluster)
    }

    /// Damages as many blocks of each kind, taken from `pool`.
    fn plant(&mut self, planter: &mut Planter<'_>, pool: &mut Vec<Spot>, kinds: [(Kind, usize); 3]) {
        for (kind, wanted) in kinds {
            let (mut planted, mut left) = (0, Vec::new());
            while planted < wanted
                && let Some(spot) = pool.pop()
            {
                match planter.plant(kind, spot, &mut self.random).unwrap() {
                    true => planted += 1,
                    false => left.push(spot),
                }
            }
            assert_eq!(planted, wanted, "{kind:?}: not enough places");
            pool.extend(left);
        }
    }

    /// Reads these blocks over NBD, in pieces that are no chunks; each is what was acknowledged last.
    fn read(&mut self, blocks: std::ops::Range<u64>) {
        const PIECE: u64 = 5 * BLOCK as u64 + 512;
        let (mut at, end) = (blocks.start * BLOCK as u64, blocks.end * BLOCK as u64);
        while at < end {
            let len = PIECE.min(end - at);
            let block = |n: u64| Stamp { volume: DB, block: n, version: self.versions[n as usize] }.content();
            let first = at / BLOCK as u64;
            let right: Vec<u8> = (first..(at + len).div_ceil(BLOCK as u64)).flat_map(block).collect();
            let skip = (at - first * BLOCK as u64) as usize;
            let read = self.db.call(&Command::Read { offset: at, len: len as u32 }, LONG).unwrap();
            assert!(
                read.as_deref() == Ok(&right[skip..skip + len as usize]),
                "blocks from {first}: a reader got what was not written there, or {:?}",
                read.err()
            );
            at += len;
        }
    }

    /// Damaged and repaired as the cluster counts them, and as the rotten node's disk does.
    fn counted(&self) -> [(u64, u64); 2] {
        let pair = |of: &Value| (of["damaged"].as_u64().unwrap(), of["repaired"].as_u64().unwrap());
        let shown = self.cluster.json(&["node", "show", "n1"]).unwrap();
        [pair(&self.cluster.status().unwrap()["totals"]), pair(&shown["info"]["disks"][0])]
    }

    fn counters(&self, node: usize) -> [u64; 2] {
        ["damage.found", "damage.repaired"].map(|name| self.cluster.counter(node, name).unwrap())
    }

    /// All nodes stopped: copies equal, checks clean, and the planted places hold what they did before.
    fn sound(mut self, planted: &[Planted]) {
        drop(self.db);
        self.cluster.detach("db").unwrap();
        self.cluster.detach("other").unwrap();
        for node in &mut self.cluster.nodes {
            node.terminate().unwrap();
        }
        let disks = [0, 1, 2].map(|n| self.cluster.disk(n).display().to_string());
        let [a, b, c] = disks.each_ref().map(String::as_str);
        let checked = self.cluster.try_trine(&["store", "check", "--data", a, b, c]).unwrap();
        assert_eq!(checked.code, 0, "{checked:?}");
        assert_eq!(findings(&self.cluster), (vec![], 0), "not even a notice");
        let now = Picture::of(&self.cluster.disk(ROTTEN)).unwrap();
        let spots = now.spots(DB);
        for Planted { kind, spot } in planted {
            let newest = self.versions[spot.stamp.block as usize];
            match spot.journaled {
                None => assert_eq!(Stamp::of(now.block(spot.at)), Some(spot.stamp), "{kind:?} {spot:?}"),
                Some(_) => assert_eq!(spots.get(&spot.stamp.block).map(|s| s.stamp.version), Some(newest), "{spot:?}"),
            }
        }
        self.cluster.stop_and_compare().unwrap();
    }
}

/// A finding of a block: the copy and the block.
fn block_found(finding: &Value) -> Option<(String, u64)> {
    let at = finding["at"].as_str().filter(|_| finding["part"] == "block")?;
    let (block, rest) = at.split_once(" of copy ")?;
    Some((rest.split(',').next()?.to_owned(), block.parse().ok()?))
}

/// So many of each kind.
fn kinds(flips: usize) -> [(Kind, usize); 3] {
    let others = flips * 13 / 32;
    // What was written once only cannot be a lost write: these choose first.
    [(Kind::LostWrite, others), (Kind::Flip, flips), (Kind::Misdirected, others)]
}

/// Where good blocks lie that are laid elsewhere: of the same volume and of another.
fn strays(now: &Picture) -> Vec<u64> {
    [DB, OTHER].iter().flat_map(|volume| now.spots(*volume).into_values().map(|spot| spot.at)).collect()
}

/// What `trine store check --data` finds on the rotten disk: all that is listed, and how many more there are.
fn findings(cluster: &Cluster) -> (Vec<Value>, u64) {
    let checked =
        cluster.try_trine(&["store", "check", "--data", "-o", "json", &cluster.disk(ROTTEN).display().to_string()]);
    let checked: Value = serde_json::from_str(&checked.unwrap().stdout).unwrap();
    let disk = &checked["disks"][0];
    (disk["findings"].as_array().unwrap().clone(), disk["unlisted"].as_u64().unwrap())
}

#[test]
fn flipped_bits_and_lost_and_misdirected_writes_are_never_read_and_all_put_right() {
    let mut bench = Bench::new();
    bench.all_is_home();
    let before = bench.picture();
    bench.rewrite(1.0);
    bench.rewrite(0.5);
    bench.all_is_home();
    let led = bench.led();
    assert!(!led.is_empty() && led.len() < SHARDS as usize, "n1 is primary of {led:?}");
    bench.stop(|process| process.terminate().unwrap());

    let now = bench.picture();
    let (copies, above) = bench.dumped();
    let mut planter = Planter::new(&now, &before, strays(&now)).unwrap();
    // Of each metadata page a mirror: the first, which whoever needs the page meets, or the second, which only the scrub's patrol does.
    for (n, (_, _, mirrors)) in now.pages().into_iter().enumerate() {
        planter.flip(mirrors[n % 2], &mut bench.random).unwrap();
    }
    let pages = bench.findings().0;
    assert!(pages.len() >= 20 && pages.iter().all(|f| f["part"] == "page" && f["severity"] == "notice"), "{pages:?}");

    let mut spots: Vec<Spot> = now.spots(DB).into_values().collect();
    spots.retain(|spot| bench.is_newest(spot) && !above.contains(&spot.stamp.block));
    bench.shuffle(&mut spots);
    let (mut own, mut others): (Vec<Spot>, Vec<Spot>) =
        spots.into_iter().partition(|spot| led.contains(&(spot.stamp.block / SHARD)));
    let flips = bench.flips;
    bench.plant(&mut planter, &mut own, kinds(flips));
    let read = planter.planted.len() as u64;
    bench.plant(&mut planter, &mut others, kinds(flips));
    let planted = planter.planted;
    let [flipped, lost, misdirected] = [Kind::Flip, Kind::LostWrite, Kind::Misdirected]
        .map(|kind| planted.iter().filter(|planted| planted.kind == kind).count());
    println!(
        "rot: {flipped} bits flipped, {lost} writes lost, {misdirected} misdirected; {read} of {} where n1 is primary; {} pages",
        planted.len(),
        pages.len()
    );
    assert!(bench.flips < 320 || (flipped >= 600 && lost >= 250 && misdirected >= 250));

    // The offline check finds these, and nothing else.
    let names: BTreeSet<u64> = planted.iter().map(|planted| planted.spot.stamp.block).collect();
    let (found, unlisted) = bench.findings();
    assert_eq!(found.len() as u64 + unlisted, (pages.len() + planted.len()) as u64);
    let blocks = found.iter().filter_map(block_found).map(|(copy, block)| copies[&copy] * SHARD + block);
    assert!(blocks.into_iter().all(|block| names.contains(&block)), "a sound block was taken for a damaged one");

    bench.start();
    assert_eq!(bench.led(), led, "n1 is primary of what it was");
    for shard in &led {
        bench.read(shard * SHARD..(shard + 1) * SHARD);
    }
    assert_eq!(bench.counters(ROTTEN), [read, read], "met by reads and put right");
    let scrub = bench.cluster.json(&["volume", "scrub", "db", "--rate", "1G", "--wait"]).unwrap();
    let rest = planted.len() as u64 - read;
    assert_eq!((&scrub["damaged"], &scrub["repaired"]), (&rest.into(), &rest.into()), "{scrub}");
    bench.cluster.trine(&["volume", "scrub", "other", "--wait"]).unwrap();
    bench.read(0..BLOCKS);
    // Nodes count again every ten seconds.
    let all = planted.len() as u64;
    let mut last = [(0, 0); 2];
    let told = wait_until("all is counted", LONG, || {
        last = bench.counted();
        Ok(last.iter().all(|count| *count >= (all, all)))
    });
    assert_eq!((told.is_ok(), last), (true, [(all, all); 2]));
    bench.sound(&planted);
}

#[test]
fn what_rots_in_a_journal_that_a_killed_node_left_behind_is_put_right_too() {
    let mut bench = Bench::new();
    bench.rewrite(1.0);
    bench.all_is_home();
    let before = bench.picture();
    let led = bench.led();
    // One block each, so that each has a record of its own; the nodes are killed in the midst of them.
    let mut order: Vec<u64> = (0..BLOCKS).collect();
    bench.shuffle(&mut order);
    order.truncate(4000);
    let writes: Vec<Command> = order.iter().map(|block| write(DB, *block, 3, 1)).collect();
    let mut sure = BTreeSet::new();
    let first = bench.db.submit(&writes[0]);
    let mut done = |handle: u64| {
        sure.insert(order[(handle - first) as usize]);
    };
    send(&mut bench.db, writes[1..].iter().cloned(), 3000, &mut done);
    let sent = sure.len() + bench.db.in_flight();
    bench.stop(|process| process.kill().unwrap());

    let now = bench.picture();
    let (_, above) = bench.dumped();
    for block in &order {
        bench.versions[*block as usize] = 3;
    }
    let changing: BTreeSet<u64> = order.into_iter().collect();
    let mut planter = Planter::new(&now, &before, strays(&now)).unwrap();
    let mut spots: Vec<Spot> = now.spots(DB).into_values().collect();
    // Not what is sent again, nor what no later group vouches for: rot in that cannot be told from a write that power cut short.
    spots.retain(|spot| {
        let whole = !changing.contains(&spot.stamp.block) || sure.contains(&spot.stamp.block);
        whole && bench.is_newest(spot) && !above.contains(&spot.stamp.block) && spot.journaled != Some(false)
    });
    bench.shuffle(&mut spots);
    let (mut journaled, mut home): (Vec<Spot>, Vec<Spot>) =
        spots.into_iter().partition(|spot| spot.journaled.is_some());
    println!("rot: {} blocks can be damaged in the journal, {} at home", journaled.len(), home.len());
    let flips = bench.flips / 2;
    // How much is in the journal still is the fold's to say: with a quicker one, or slower writes, there is less to be damaged.
    let there = flips.min(journaled.len() / 2);
    assert!(there >= flips / 4, "{} blocks in the journal", journaled.len());
    bench.plant(&mut planter, &mut journaled, kinds(there));
    bench.plant(&mut planter, &mut home, kinds(flips));
    // And some of its headers, which the groups behind them repeat: never two in a row.
    let mut headers: Vec<u64> = now.headers().into_iter().step_by(2).collect();
    bench.shuffle(&mut headers);
    headers.truncate(8);
    for at in &headers {
        planter.flip(*at, &mut bench.random).unwrap();
    }
    let planted = planter.planted;
    bench.start();
    // What was under way is written now.
    send(&mut bench.db, [], usize::MAX, |_| ());
    let commands = writes.into_iter().skip(sent);
    send(&mut bench.db, commands, usize::MAX, |_| ());
    assert_eq!(bench.led(), led, "n1 is primary of what it was");
    bench.read(0..BLOCKS);
    let scrub = bench.cluster.json(&["volume", "scrub", "db", "--rate", "1G", "--wait"]).unwrap();
    let read = bench.counters(ROTTEN);
    println!(
        "rot: {} planted, {} headers; {read:?} met by n1, {} by the scrub",
        planted.len(),
        headers.len(),
        scrub["damaged"]
    );
    assert_eq!(scrub["damaged"], scrub["repaired"]);
    assert_eq!(read[0], read[1]);
    let again = bench.cluster.json(&["volume", "scrub", "db", "--wait"]).unwrap();
    assert_eq!(again["damaged"], 0, "nothing is left: {again}");
    bench.cluster.trine(&["volume", "scrub", "other", "--wait"]).unwrap();
    bench.read(0..BLOCKS);
    bench.sound(&planted);
}

/// What the disk's books need to be opened with is lost in both places where it is kept. The copies on it are out of service, with the
/// reason and the way on in the node's log; an empty disk in its place is filled, and meanwhile everything reads as it was written.
#[test]
fn a_disk_that_cannot_be_opened_is_out_of_service_with_its_reason_and_an_empty_one_is_filled_in_its_place() {
    let mut bench = Bench::new();
    bench.rewrite(0.2);
    bench.all_is_home();
    bench.cluster.nodes[ROTTEN].terminate().unwrap();
    let now = bench.picture();
    let mut planter = Planter::new(&now, &now, Vec::new()).unwrap();
    // The copies' own records, wherever there are any: all of them, of older checkpoints too.
    for (_, _, mirrors) in now.pages().into_iter().filter(|(array, ..)| *array == 1) {
        for at in mirrors {
            planter.flip(at, &mut bench.random).unwrap();
        }
    }
    let (found, _) = bench.findings();
    assert!(found.iter().any(|found| found["part"] == "page" && found["severity"] == "fatal"), "{found:?}");
    bench.cluster.nodes[ROTTEN].start().unwrap();
    wait_until("the node gives up", LONG, || Ok(!bench.cluster.nodes[ROTTEN].is_alive())).unwrap();
    let said = bench.cluster.nodes[ROTTEN].last_words();
    let path = bench.disk(ROTTEN);
    assert!(said.lines().last().is_some_and(|line| line.contains(&path) && line.contains("damaged")), "{said}");
    bench.cluster.wait_health("db", "degraded").unwrap();
    bench.read(0..BLOCKS);

    let disks = bench.cluster.json(&["disk", "list"]).unwrap();
    let node = disks.as_array().unwrap().iter().find(|node| node["node"] == 1).unwrap_or(&disks[0]);
    let lost = node["disks"][0]["disk"].as_str().unwrap().to_owned();
    bench.cluster.lose_disks(ROTTEN).unwrap();
    bench.cluster.nodes[ROTTEN].start().unwrap();
    bench.cluster.wait_alive(3).unwrap();
    bench.cluster.trine(&["disk", "remove", &lost, "--force"]).unwrap();
    bench.cluster.wait_healthy("db").unwrap();
    bench.cluster.wait_healthy("other").unwrap();
    bench.read(0..BLOCKS);
    bench.sound(&[]);
}

/// A volume's only copy has a block that does not read: a drain moves all else, and ends. Where it is now, who reads the block is told so, until it is
/// written again.
#[test]
fn a_drain_of_an_only_copy_goes_past_a_block_that_does_not_read() {
    const ALL: u64 = 2048;
    const BAD: u64 = 777;
    let mut cluster = Cluster::start(Shape { nodes: 2, ..Shape::default() }).unwrap();
    cluster.trine(&["volume", "create", "solo", "--size", "8M", "--copies", "1", "--min-copies", "1"]).unwrap();
    cluster.wait_healthy("solo").unwrap();
    let place = cluster.attach("solo").unwrap();
    let mut solo = Nbd::connect(&place, "solo").unwrap();
    send(&mut solo, (0..ALL).step_by(256).map(|block| write(DB, block, 1, 256)), usize::MAX, |_| ());
    let node = cluster.primary("solo", 0).unwrap();
    cluster.nodes[node].terminate().unwrap();
    let now = Picture::of(&cluster.disk(node)).unwrap();
    let spot = now.spots(DB)[&BAD];
    Planter::new(&now, &now, Vec::new()).unwrap().plant(Kind::Flip, spot, &mut Random::new(1)).unwrap();
    cluster.nodes[node].start().unwrap();
    cluster.wait_alive(2).unwrap();
    cluster.wait_healthy("solo").unwrap();

    cluster.trine(&["node", "drain", &format!("n{}", node + 1)]).unwrap();
    assert_eq!(cluster.primary("solo", 0).unwrap(), 1 - node);
    let mut read = |block: u64, count: u64| {
        let (offset, len) = (block * BLOCK as u64, count as u32 * BLOCK as u32);
        solo.call(&Command::Read { offset, len }, LONG).unwrap()
    };
    let content = |block, version| Stamp { volume: DB, block, version }.content();
    for block in (0..ALL).filter(|block| *block != BAD) {
        assert!(read(block, 1) == Ok(content(block, 1)), "block {block}");
    }
    assert_eq!(read(BAD, 1), Err(5), "EIO: neither zeros nor what rotted");
    let said = || Ok(cluster.status()?["warnings"].to_string().contains(&format!("no copy has block b{BAD}")));
    wait_until("it is said", LONG, said).unwrap();
    let Command::Write { offset, bytes } = write(DB, BAD, 2, 1) else { panic!("a write") };
    solo.call(&Command::Write { offset, bytes }, LONG).unwrap().unwrap();
    let len = BLOCK as u32;
    assert!(solo.call(&Command::Read { offset, len }, LONG).unwrap() == Ok(content(BAD, 2)));
    cluster.wait_healthy("solo").unwrap();
}
