//! Disks with a volatile cache, a limited honesty, and a counter of the moments at which they can be stopped.
//!
//! ```text
//!  submit ──▶ in flight ──(any order)──▶ cached: reads see it, a power cut may keep, drop, tear or reorder it
//!                   │                      │ a sync that was submitted after it completed
//!                   └─ durable writes ─────┴──▶ stable
//! ```
//! Tears are at 512 bytes. A power cut loses the cache; a kill leaves it: what the dead process wrote without a sync is readable
//! by the next one, and may be gone after a later power cut. What was punched reads as zeros, as before, or as neither.

use conductor_model::BLOCK;
use driver::{DiskIndex, Done, Errno, Op, Part};
use sim::Rng;
use std::ops::Range;

/// The unit of tearing.
const SECTOR: usize = 512;
/// Bytes of a write that are shown to who looks at what is open.
const HEAD: usize = 128;
/// What punched space may read as.
const GARBAGE: u8 = 0xdb;

/// One of the disks.
struct Platter {
    /// What a read sees.
    visible: Vec<u8>,
    /// What a power cut leaves for sure.
    stable: Vec<u8>,
    /// Per sector, the order of the newest write that is stable: an older one in the cache cannot come over it any more.
    floor: Vec<u64>,
    /// Per block, whether it was ever written: where damage is worth planting.
    touched: Vec<bool>,
}

struct Cached {
    disk: usize,
    at: usize,
    bytes: Vec<u8>,
    order: u64,
}

struct Flight {
    op: Op,
    /// The order of things when it was submitted: a sync covers what was cached before.
    after: u64,
}

/// A write that a crash would find open.
#[derive(Clone, Copy, Debug)]
pub struct Open {
    /// Which disk.
    pub disk: DiskIndex,
    /// Where it begins.
    pub at: u64,
    /// Bytes.
    pub len: u64,
    /// In flight; else it waits for a sync.
    pub flying: bool,
    /// Submitted as a durable one.
    pub durable: bool,
    /// Space is given back, nothing is written.
    pub punch: bool,
    /// Its first bytes.
    pub head: [u8; HEAD],
}

/// Where to stop, counted in durable writes and syncs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stop {
    /// When this one is about to take effect.
    Before(u64),
    /// When this one took effect and nobody knows.
    Unheard(u64),
    /// When this one was reported.
    After(u64),
    /// After so many steps, wherever that is.
    Step(u64),
    /// Never.
    Never,
}

/// What came of asking the disks for a completion.
#[allow(clippy::large_enum_variant)] // moved once, and nearly always the large one
pub enum Step {
    /// This is over.
    Done(Done),
    /// Nothing is in flight.
    Idle,
    /// The moment to stop at has come.
    Stopped,
}

/// How a store ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// Power is cut: the cache is lost, wholly or in part.
    PowerCut,
    /// The process is killed: what is in flight happens or not, the cache stays.
    Kill,
}

/// A fault that the next write that suits it meets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// It is reported done, and nothing was written.
    Lost,
    /// One of its blocks lands at another place that is in use.
    Misdirected,
}

/// The disks of one store, and the cache they share.
pub struct Disks {
    platters: Vec<Platter>,
    cached: Vec<Cached>,
    flights: Vec<Flight>,
    order: u64,
    rng: Rng,
    events: u64,
    steps: u64,
    stop: Stop,
    /// A store on them came to an end in the midst of something, and another one wrote since.
    ended: bool,
    lived_on: bool,
    fault: Option<Fault>,
    /// What the fault did, for the story of a failure.
    planted: Option<String>,
}

impl Disks {
    /// Empty disks of these sizes.
    pub fn new(bytes: &[u64], rng: Rng) -> Self {
        Self::from_images(bytes.iter().map(|&bytes| (vec![0; size(bytes)], vec![])).collect(), rng)
    }

    /// Disks that hold this: bytes, and which blocks count as used.
    pub fn from_images(images: Vec<(Vec<u8>, Vec<bool>)>, rng: Rng) -> Self {
        let platter = |(image, mut touched): (Vec<u8>, Vec<bool>)| {
            touched.resize(image.len() / BLOCK, false);
            let floor = vec![0; image.len() / SECTOR];
            Platter { stable: image.clone(), visible: image, floor, touched }
        };
        Self {
            platters: images.into_iter().map(platter).collect(),
            cached: vec![],
            flights: vec![],
            order: 0,
            rng,
            events: 0,
            steps: 0,
            stop: Stop::Never,
            ended: false,
            lived_on: false,
            fault: None,
            planted: None,
        }
    }

    /// True if something was written after a crash: what that tore may lie before it.
    pub fn lived_on(&self) -> bool {
        self.lived_on
    }

    /// What reads would see, and which blocks were ever written.
    pub fn images(&self) -> Vec<(Vec<u8>, Vec<bool>)> {
        self.platters.iter().map(|platter| (platter.visible.clone(), platter.touched.clone())).collect()
    }

    /// What a read would see, without one; false if it is not within the disk.
    pub fn look(&self, disk: DiskIndex, at: u64, into: &mut [u8]) -> bool {
        let platter = self.platters.get(disk.0 as usize);
        let bytes = platter.and_then(|platter| platter.visible.get(size(at)..)?.get(..into.len()));
        bytes.map(|bytes| into.copy_from_slice(bytes)).is_some()
    }

    /// The size of each.
    pub fn sizes(&self) -> Vec<u64> {
        self.platters.iter().map(|platter| platter.visible.len() as u64).collect()
    }

    /// Durable writes and syncs that were completed.
    pub fn events(&self) -> u64 {
        self.events
    }

    /// Operations that were completed.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// Where to stop from now on.
    pub fn set_stop(&mut self, stop: Stop) {
        self.stop = stop;
    }

    /// The next write that suits it meets this.
    pub fn set_fault(&mut self, fault: Fault) {
        (self.fault, self.planted) = (Some(fault), None);
    }

    /// What was planted, once it was.
    pub fn planted(&self) -> Option<&str> {
        self.planted.as_deref()
    }

    /// Nothing is in flight.
    pub fn is_idle(&self) -> bool {
        self.flights.is_empty()
    }

    /// Flip one bit of what was ever written. Says where.
    pub fn flip(&mut self) -> Option<(DiskIndex, u64)> {
        let disk = self.rng.index(self.platters.len());
        self.flip_on(disk)
    }

    /// The same, on this disk.
    pub fn flip_on(&mut self, disk: usize) -> Option<(DiskIndex, u64)> {
        let block = self.pick_on(disk)?;
        let at = block * BLOCK + self.rng.index(BLOCK);
        let bit = 1 << self.rng.below(8);
        let platter = &mut self.platters[disk];
        platter.visible[at] ^= bit;
        platter.stable[at] ^= bit;
        Some((index(disk), at as u64))
    }

    fn pick_touched(&mut self) -> Option<(usize, usize)> {
        let disk = self.rng.index(self.platters.len());
        Some((disk, self.pick_on(disk)?))
    }

    fn pick_on(&mut self, disk: usize) -> Option<usize> {
        let touched = &self.platters[disk].touched;
        let start = self.rng.index(touched.len());
        (0..touched.len()).map(|n| (start + n) % touched.len()).find(|&n| touched[n])
    }

    /// What a crash now would find open.
    pub fn open(&self) -> Vec<Open> {
        let flying = self.flights.iter().filter_map(|flight| match &flight.op {
            Op::DiskWrite { disk, at, parts, durable, .. } => {
                let len = parts.iter().map(|part| part.len as u64).sum();
                let head = head(parts.first()?.bytes());
                Some(Open { disk: *disk, at: *at, len, flying: true, durable: *durable, punch: false, head })
            }
            Op::DiskPunch { disk, at, len, .. } => {
                let (durable, head) = (false, [0; HEAD]);
                Some(Open { disk: *disk, at: *at, len: *len, flying: true, durable, punch: true, head })
            }
            _ => None,
        });
        let cached = self.cached.iter().map(|cached| Open {
            disk: index(cached.disk),
            at: cached.at as u64,
            len: cached.bytes.len() as u64,
            flying: false,
            durable: false,
            punch: false,
            head: head(&cached.bytes),
        });
        flying.chain(cached).collect()
    }

    /// Take an operation.
    pub fn submit(&mut self, op: Op) {
        let (disk, range) = match &op {
            Op::DiskRead { disk, at, from, len, into, .. } => {
                assert!(*len > 0 && from + len <= into.len(), "a read that does not fit its memory: {op:?}");
                assert!(
                    len.is_multiple_of(BLOCK) && from.is_multiple_of(BLOCK),
                    "a read that is not whole blocks: {op:?}"
                );
                (*disk, *at..at + *len as u64)
            }
            Op::DiskWrite { disk, at, parts, .. } => {
                self.lived_on |= self.ended;
                let len: u64 = parts.iter().map(|part| part.len as u64).sum();
                assert!(len > 0, "an empty write: {op:?}");
                assert!(
                    parts.iter().all(|part| part.from.is_multiple_of(BLOCK) && part.len.is_multiple_of(BLOCK)),
                    "memory is not aligned: {op:?}"
                );
                (*disk, *at..at + len)
            }
            Op::DiskPunch { disk, at, len, .. } => (*disk, *at..at + len),
            Op::DiskSync { disk, .. } => (*disk, 0..0),
            other => panic!("not a disk operation: {other:?}"),
        };
        let platter = self.platters.get(disk.0 as usize).expect("a disk of this store");
        assert!(
            range.end <= platter.visible.len() as u64
                && range.start.is_multiple_of(BLOCK as u64)
                && range.end.is_multiple_of(BLOCK as u64),
            "beyond the disk, or not whole blocks: {range:?}"
        );
        self.flights.push(Flight { op, after: self.order });
    }

    /// Complete any one operation.
    pub fn step(&mut self) -> Step {
        if self.stop == Stop::Step(self.steps) || self.stop == Stop::After(self.events) {
            return Step::Stopped;
        }
        if self.flights.is_empty() {
            return Step::Idle;
        }
        let pick = self.rng.index(self.flights.len());
        let is_event = matches!(self.flights[pick].op, Op::DiskWrite { durable: true, .. } | Op::DiskSync { .. });
        if is_event && self.stop == Stop::Before(self.events + 1) {
            return Step::Stopped;
        }
        let Flight { mut op, after } = self.flights.swap_remove(pick);
        let result = self.effect(&mut op, after);
        self.steps += 1;
        self.events += u64::from(is_event);
        if is_event && self.stop == Stop::Unheard(self.events) {
            return Step::Stopped;
        }
        Step::Done(Done { op, result })
    }

    fn effect(&mut self, op: &mut Op, after: u64) -> Result<u32, Errno> {
        self.order += 1;
        match op {
            Op::DiskRead { disk, at, into, from, len, .. } => {
                let platter = &self.platters[disk.0 as usize];
                into[*from..*from + *len].copy_from_slice(&platter.visible[size(*at)..][..*len]);
                Ok(u32::try_from(*len).expect("a read is short"))
            }
            Op::DiskWrite { disk, at, parts, durable, .. } => {
                let bytes = gather(parts);
                let len = u32::try_from(bytes.len()).expect("a write is short");
                self.write(disk.0 as usize, size(*at), bytes, *durable);
                Ok(len)
            }
            Op::DiskPunch { disk, at, len, .. } => {
                let bytes = match self.rng.below(3) {
                    0 => vec![0; size(*len)],
                    1 => vec![GARBAGE; size(*len)],
                    _ => return Ok(0),
                };
                self.cache(disk.0 as usize, size(*at), bytes);
                Ok(0)
            }
            Op::DiskSync { disk, .. } => {
                let disk = disk.0 as usize;
                let platter = &mut self.platters[disk];
                self.cached.retain(|cached| {
                    let covered = cached.disk == disk && cached.order <= after;
                    if covered {
                        platter.settle(cached.at, &cached.bytes, cached.order);
                    }
                    !covered
                });
                Ok(0)
            }
            _ => unreachable!("checked at submit"),
        }
    }

    fn write(&mut self, disk: usize, at: usize, bytes: Vec<u8>, durable: bool) {
        match self.fault {
            Some(Fault::Lost) => {
                (self.fault, self.planted) = (None, Some(format!("lost write at {at}+{} of disk {disk}", bytes.len())));
            }
            Some(Fault::Misdirected) => {
                let block = self.rng.index(bytes.len() / BLOCK);
                let Some((other, to)) = self.pick_touched() else { return self.put(disk, at, bytes, durable) };
                let (from, to) = (at + block * BLOCK, to * BLOCK);
                if other == disk && (at..at + bytes.len()).contains(&to) {
                    return self.put(disk, at, bytes, durable);
                }
                (self.fault, self.planted) =
                    (None, Some(format!("block for {from} of disk {disk} at {to} of {other}")));
                self.put(other, to, bytes[block * BLOCK..][..BLOCK].to_vec(), durable);
                let after = bytes[(block + 1) * BLOCK..].to_vec();
                let mut before = bytes;
                before.truncate(block * BLOCK);
                self.put(disk, at, before, durable);
                self.put(disk, from + BLOCK, after, durable);
            }
            _ => self.put(disk, at, bytes, durable),
        }
    }

    fn put(&mut self, disk: usize, at: usize, bytes: Vec<u8>, durable: bool) {
        if bytes.is_empty() {
            return;
        }
        if durable {
            let platter = &mut self.platters[disk];
            platter.show(at, &bytes);
            platter.settle(at, &bytes, self.order);
        } else {
            self.cache(disk, at, bytes);
        }
    }

    fn cache(&mut self, disk: usize, at: usize, bytes: Vec<u8>) {
        self.platters[disk].show(at, &bytes);
        self.cached.push(Cached { disk, at, bytes, order: self.order });
    }

    /// The store ends here: what it had in flight, and perhaps what it had not synced, is left to chance.
    pub fn end(&mut self, how: End) {
        self.stop = Stop::Never;
        self.ended = true;
        let flights = std::mem::take(&mut self.flights).into_iter().filter_map(|flight| match flight.op {
            Op::DiskWrite { disk, at, parts, .. } => {
                Some(Cached { disk: disk.0 as usize, at: size(at), bytes: gather(&parts), order: u64::MAX })
            }
            _ => None,
        });
        let mut open: Vec<Cached> = flights.collect();
        if how == End::PowerCut {
            open.append(&mut self.cached);
        }
        for cached in &open {
            let platter = &mut self.platters[cached.disk];
            if how == End::PowerCut {
                let range = cached.at..cached.at + cached.bytes.len();
                platter.visible[range.clone()].copy_from_slice(&platter.stable[range]);
            }
        }
        while !open.is_empty() {
            let Cached { disk, at, bytes, order } = open.swap_remove(self.rng.index(open.len()));
            for kept in self.kept(bytes.len() / SECTOR) {
                let (from, len) = (kept.start * SECTOR, kept.len() * SECTOR);
                let (at, bytes) = (at + from, &bytes[from..from + len]);
                match how {
                    End::PowerCut => self.platters[disk].survive(at, bytes, order),
                    End::Kill => {
                        self.order += 1;
                        self.cache(disk, at, bytes.to_vec());
                    }
                }
            }
        }
    }

    /// Which of so many sectors reach the disk: none, all, the first ones, or any.
    fn kept(&mut self, sectors: usize) -> Vec<Range<usize>> {
        let one = |range: Range<usize>| if range.is_empty() { vec![] } else { vec![range] };
        match self.rng.below(5) {
            0 => vec![],
            1 => one(0..sectors),
            2 => one(0..self.rng.index(sectors)),
            3 => one(self.rng.index(sectors)..sectors),
            _ => (0..sectors).filter(|_| self.rng.coin()).map(|n| n..n + 1).collect(),
        }
    }
}

impl Platter {
    fn show(&mut self, at: usize, bytes: &[u8]) {
        self.visible[at..][..bytes.len()].copy_from_slice(bytes);
        self.touched[at / BLOCK..(at + bytes.len()).div_ceil(BLOCK)].fill(true);
    }

    /// Make it stable, sector by sector where nothing newer is.
    fn settle(&mut self, at: usize, bytes: &[u8], order: u64) {
        for (n, sector) in bytes.chunks(SECTOR).enumerate() {
            let floor = &mut self.floor[at / SECTOR + n];
            if order >= *floor {
                *floor = order;
                self.stable[at + n * SECTOR..][..SECTOR].copy_from_slice(sector);
            }
        }
    }

    /// It is there after a power cut, where nothing newer was stable.
    fn survive(&mut self, at: usize, bytes: &[u8], order: u64) {
        for (n, sector) in bytes.chunks(SECTOR).enumerate() {
            if order >= self.floor[at / SECTOR + n] {
                let range = at + n * SECTOR..at + (n + 1) * SECTOR;
                self.stable[range.clone()].copy_from_slice(sector);
                self.visible[range].copy_from_slice(sector);
            }
        }
        self.touched[at / BLOCK..(at + bytes.len()).div_ceil(BLOCK)].fill(true);
    }
}

fn head(bytes: &[u8]) -> [u8; HEAD] {
    bytes[..HEAD].try_into().expect("a write is at least a block")
}

fn gather(parts: &[Part]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(parts.iter().map(|part| part.len).sum());
    parts.iter().for_each(|part| bytes.extend_from_slice(part.bytes()));
    bytes
}

fn index(disk: usize) -> DiskIndex {
    DiskIndex(u32::try_from(disk).expect("few disks"))
}

/// A byte offset in memory; the disks are small.
fn size(bytes: u64) -> usize {
    usize::try_from(bytes).expect("the disks are in memory")
}

#[cfg(test)]
mod tests {
    use super::*;
    use memory::{Arena, Class};
    use smallvec::smallvec;

    const DISK: DiskIndex = DiskIndex(0);

    fn write(arena: &Arena, at: u64, value: u8, durable: bool) -> Op {
        let mut memory = arena.take(BLOCK, Class::Client).expect("memory");
        memory.fill(value);
        Op::DiskWrite { disk: DISK, tag: 0, at, parts: smallvec![memory.filled().whole()], durable }
    }

    fn complete(disks: &mut Disks, op: Op) {
        disks.submit(op);
        assert!(matches!(disks.step(), Step::Done(_)));
    }

    /// What a block may hold after a power cut, over many seeds: each sector's value.
    fn outcomes(run: impl Fn(&mut Disks, &Arena), end: End) -> (Vec<Vec<u8>>, bool) {
        let arena = Arena::small(1 << 20);
        let (mut seen, mut torn) = (vec![], false);
        for seed in 0..200 {
            let mut disks = Disks::new(&[8 * BLOCK as u64], Rng::new(seed));
            run(&mut disks, &arena);
            disks.end(end);
            let mut values: Vec<u8> = disks.platters[0].visible[..BLOCK].chunks(SECTOR).map(|s| s[0]).collect();
            values.dedup();
            torn |= values.len() > 1;
            values.sort_unstable();
            values.dedup();
            if !seen.contains(&values) {
                seen.push(values);
            }
        }
        seen.sort();
        (seen, torn)
    }

    #[test]
    fn what_is_not_synced_is_kept_dropped_torn_or_reordered() {
        let (seen, torn) = outcomes(
            |disks, arena| {
                complete(disks, write(arena, 0, 1, false));
                complete(disks, write(arena, 0, 2, false));
            },
            End::PowerCut,
        );
        assert!(torn);
        for whole in [vec![0], vec![1], vec![2]] {
            assert!(seen.contains(&whole), "{whole:?} in {seen:?}");
        }
    }

    #[test]
    fn what_is_durable_or_synced_stays_and_nothing_older_comes_over_it() {
        let durable = |disks: &mut Disks, arena: &Arena| {
            complete(disks, write(arena, 0, 1, false));
            complete(disks, write(arena, 0, 2, true));
        };
        assert_eq!(outcomes(durable, End::PowerCut), (vec![vec![2]], false));
        let synced = |disks: &mut Disks, arena: &Arena| {
            complete(disks, write(arena, 0, 1, false));
            complete(disks, write(arena, 0, 2, false));
            complete(disks, Op::DiskSync { disk: DISK, tag: 0 });
        };
        assert_eq!(outcomes(synced, End::PowerCut), (vec![vec![2]], false));
    }

    #[test]
    fn a_sync_does_not_cover_what_completes_while_it_is_in_flight() {
        let (seen, _) = outcomes(
            |disks, arena| {
                let after = disks.order;
                complete(disks, write(arena, 0, 1, false));
                disks.order += 1;
                disks.effect(&mut Op::DiskSync { disk: DISK, tag: 0 }, after).expect("it succeeds");
            },
            End::PowerCut,
        );
        assert!(seen.contains(&vec![0]) && seen.contains(&vec![1]));
    }

    #[test]
    fn a_kill_leaves_the_cache_and_a_power_cut_after_it_takes_it() {
        let loose = |disks: &mut Disks, arena: &Arena| complete(disks, write(arena, 0, 1, false));
        assert_eq!(outcomes(loose, End::Kill), (vec![vec![1]], false));
        let flying = |disks: &mut Disks, arena: &Arena| {
            disks.submit(write(arena, 0, 1, true));
            disks.end(End::Kill);
        };
        let (seen, _) = outcomes(flying, End::PowerCut);
        assert!(seen.contains(&vec![0]) && seen.contains(&vec![1]));
    }

    #[test]
    fn it_stops_before_and_after_each_durable_write_and_sync() {
        let arena = Arena::small(1 << 20);
        for (stop, stable) in [(Stop::Before(1), 0), (Stop::Unheard(1), 7), (Stop::After(1), 7)] {
            let mut disks = Disks::new(&[8 * BLOCK as u64], Rng::new(1));
            disks.set_stop(stop);
            disks.submit(write(&arena, 0, 7, true));
            assert_eq!(matches!(disks.step(), Step::Stopped), stop != Stop::After(1));
            assert_eq!(disks.platters[0].stable[0], stable);
            if let Stop::After(_) = stop {
                assert!(matches!(disks.step(), Step::Stopped));
            }
        }
    }
}
