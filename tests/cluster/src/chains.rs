//! Writes whose order shows in what they leave: whether a picture of a volume is one of a single moment can be told from it alone.
//!
//! Many chains write at a time. A chain issues its step k + 1, on the next shard, only when step k was acknowledged, and each step says
//! how far all chains were when it was issued. What had been acknowledged then came before it: a picture that shows a
//! step and not all that it knew of is of no moment (rule 17).
//!
//! ```text
//!   chain 0:  shard 0: step 0, 4, 8 …   shard 1: step 1, 5, 9 …   shard 2 …   shard 3 …
//!   chain 1:  shard 1: step 0, 4, 8 …   …
//! ```

use crate::LONG;
use crate::nbd::{Command, Nbd, Place};
use anyhow::{Context, Result, bail, ensure};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Chains, each with one write in flight: the depth.
pub const CHAINS: usize = 16;
/// Steps of a chain after which it writes over its own blocks again.
const PERIOD: u64 = 32;
const BLOCK: usize = 4096;
/// Bytes of all chains' places side by side.
const ROW: u32 = 16 * 4096;
const _: () = assert!(ROW as usize == CHAINS * BLOCK);
const MARK: u64 = 0x6e69_6168_6320_6e61;

/// Where the chains of a volume write.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    /// Shards of the volume.
    pub shards: u64,
    /// Bytes of each.
    pub shard: u64,
}

/// How many steps of each chain were done.
pub type Steps = [u64; CHAINS];

/// What a picture of a volume shows: for each chain and place the number of its step plus one, and what that one knew of.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Picture(Vec<Vec<(u64, Steps)>>);

fn index(step: u64) -> usize {
    usize::try_from(step % PERIOD).unwrap_or(usize::MAX)
}

fn place(layout: Layout, chain: usize, step: u64) -> u64 {
    let (chain, step) = (chain as u64, step % PERIOD);
    let shard = (chain + step) % layout.shards;
    shard * layout.shard + (step / layout.shards * CHAINS as u64 + chain) * BLOCK as u64
}

fn block(chain: usize, step: u64, known: &Steps) -> Vec<u8> {
    let words = [MARK, chain as u64, step + 1].into_iter().chain(known.iter().copied());
    let mut bytes: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
    // The whole block, so that a torn one is seen.
    bytes.resize(BLOCK, (step + 1).to_le_bytes()[0]);
    bytes
}

fn parse(chain: usize, bytes: &[u8]) -> Result<(u64, Steps)> {
    if bytes.iter().all(|byte| *byte == 0) {
        return Ok((0, [0; CHAINS]));
    }
    let word = |n: usize| bytes[n * 8..].first_chunk().copied().map_or(0, u64::from_le_bytes);
    let (step, known) = (word(2), std::array::from_fn(|n| word(3 + n)));
    ensure!(step > 0 && bytes == block(chain, step - 1, &known), "chain {chain}: a block that nobody wrote");
    Ok((step, known))
}

impl Picture {
    /// Reads it.
    pub fn read(nbd: &mut Nbd, layout: Layout) -> Result<Self> {
        let mut chains = vec![vec![(0, [0; CHAINS]); index(PERIOD - 1) + 1]; CHAINS];
        // The places of all chains at one step of one shard lie side by side.
        for row in 0..PERIOD.div_ceil(layout.shards) {
            for shard in 0..layout.shards {
                let offset = shard * layout.shard + row * u64::from(ROW);
                let read = nbd.call(&Command::Read { offset, len: ROW }, LONG)?;
                let bytes = read.map_err(|errno| anyhow::anyhow!("at {offset}: error {errno}"))?;
                for (chain, bytes) in bytes.chunks(BLOCK).enumerate() {
                    let steps = row * layout.shards..PERIOD.min((row + 1) * layout.shards);
                    let step = steps.clone().find(|step| (chain as u64 + step) % layout.shards == shard);
                    if let Some(step) = step {
                        chains[chain][index(step)] = parse(chain, bytes)?;
                    }
                }
            }
        }
        Ok(Self(chains))
    }

    /// How far each chain was.
    pub fn steps(&self) -> Steps {
        std::array::from_fn(|chain| self.0[chain].iter().map(|(step, _)| *step).max().unwrap_or(0))
    }

    /// Fails unless it is one of a single moment.
    pub fn check(&self) -> Result<()> {
        let done = self.steps();
        for (chain, places) in self.0.iter().enumerate() {
            for (at, (step, known)) in places.iter().enumerate() {
                // The last of the chain's steps that wrote here.
                let last = (0..done[chain]).rev().take(places.len()).find(|step| step % PERIOD == at as u64);
                let last = last.map_or(0, |last| last + 1);
                ensure!(
                    *step == last,
                    "chain {chain} was at step {} and its place {at} is of step {step}, not {last}",
                    done[chain]
                );
                for (other, known) in known.iter().enumerate() {
                    ensure!(
                        *known <= done[other],
                        "chain {chain} shows step {step}, issued when chain {other} had done {known}: it shows {}",
                        done[other]
                    );
                }
            }
        }
        Ok(())
    }

    /// Fails unless all chains were at least (or at most) so far.
    pub fn is_between(&self, least: &Steps, most: &Steps) -> Result<()> {
        for (chain, done) in self.steps().into_iter().enumerate() {
            let (least, most) = (least[chain], most[chain]);
            ensure!((least..=most).contains(&done), "chain {chain} shows {done} steps, not {least} to {most}");
        }
        Ok(())
    }
}

#[derive(Default, Debug)]
struct Shared {
    stop: AtomicBool,
    failed: AtomicBool,
    /// Steps acknowledged.
    done: [AtomicU64; CHAINS],
}

/// The writers.
#[derive(Debug)]
pub struct Chains {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<Result<()>>>,
}

impl Chains {
    /// Starts on a fresh volume.
    pub fn start(at: &Place, export: &str, layout: Layout) -> Result<Self> {
        let nbd = Nbd::connect(at, export)?;
        let shared = Arc::new(Shared::default());
        let seen = Arc::clone(&shared);
        let run = move || {
            let outcome = write(nbd, layout, &seen);
            seen.failed.store(outcome.is_err(), Ordering::SeqCst);
            outcome
        };
        let thread = std::thread::Builder::new().name("chains".to_owned()).spawn(run)?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Steps that were acknowledged by now.
    pub fn acknowledged(&self) -> Steps {
        std::array::from_fn(|chain| self.shared.done[chain].load(Ordering::SeqCst))
    }

    /// Steps that can have been issued by now.
    pub fn issued(&self) -> Steps {
        self.acknowledged().map(|done| done + 1)
    }

    /// Waits until every chain has done so many more.
    pub fn progress(&self, more: u64) -> Result<()> {
        let (start, from) = (Instant::now(), self.acknowledged());
        while self.acknowledged().iter().zip(from).any(|(now, from)| *now < from + more) {
            ensure!(!self.shared.failed.load(Ordering::SeqCst), "the chains have failed: see what stop() says");
            ensure!(start.elapsed() < LONG, "no {more} steps within {LONG:?}: {from:?} → {:?}", self.acknowledged());
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    /// Lets what is in flight end; says how far all are.
    pub fn stop(mut self) -> Result<Steps> {
        self.shared.stop.store(true, Ordering::SeqCst);
        let thread = self.thread.take().context("stopped twice")?;
        thread.join().unwrap_or_else(|_| bail!("the chains panicked"))?;
        Ok(self.acknowledged())
    }
}

impl Drop for Chains {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
    }
}

fn write(mut nbd: Nbd, layout: Layout, shared: &Shared) -> Result<()> {
    let mut flying = BTreeMap::new();
    let next = |nbd: &mut Nbd, chain: usize| {
        let known = std::array::from_fn(|chain| shared.done[chain].load(Ordering::SeqCst));
        let step = known[chain];
        let bytes = block(chain, step, &known);
        nbd.submit(&Command::Write { offset: place(layout, chain, step), bytes })
    };
    for chain in 0..CHAINS {
        flying.insert(next(&mut nbd, chain), chain);
    }
    let mut last = Instant::now();
    while !flying.is_empty() {
        let replies = nbd.turn(Duration::from_millis(50))?;
        if !replies.is_empty() {
            last = Instant::now();
        }
        ensure!(last.elapsed() < LONG, "no reply within {LONG:?}: {} are in flight", flying.len());
        for reply in replies {
            let chain = flying.remove(&reply.handle).context("a reply to nobody")?;
            reply.result.map_err(|errno| anyhow::anyhow!("chain {chain}: error {errno}"))?;
            shared.done[chain].fetch_add(1, Ordering::SeqCst);
            if !shared.stop.load(Ordering::SeqCst) {
                flying.insert(next(&mut nbd, chain), chain);
            }
        }
    }
    nbd.disconnect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The picture of the moment at which every chain had done so many steps.
    fn moment(steps: u64) -> Picture {
        let at = |at: u64| {
            let last = (0..steps).rev().find(|step| step % PERIOD == at);
            last.map_or((0, [0; CHAINS]), |step| (step + 1, [step; CHAINS]))
        };
        Picture(vec![(0..PERIOD).map(at).collect(); CHAINS])
    }

    #[test]
    fn a_picture_of_two_moments_is_noticed() {
        for steps in [0, 1, 31, 32, 33, 1000] {
            moment(steps).check().unwrap();
            moment(steps).is_between(&[steps; CHAINS], &[steps; CHAINS]).unwrap();
        }
        assert!(moment(7).is_between(&[8; CHAINS], &[9; CHAINS]).is_err());
        let mut torn = moment(100);
        torn.0[3] = moment(102).0[3].clone();
        let why = torn.check().unwrap_err().to_string();
        assert!(why.starts_with("chain 3 shows step 102, issued when chain 0 had done 101"), "{why}");
        let mut hole = moment(100);
        hole.0[5][index(98)] = moment(80).0[5][index(98)];
        let why = hole.check().unwrap_err().to_string();
        assert!(why.contains("chain 5") && why.contains("not 99"), "{why}");
    }

    #[test]
    fn each_step_has_a_block_of_its_own_on_the_next_shard() {
        let layout = Layout { shards: 4, shard: 1 << 24 };
        let mut places = std::collections::BTreeSet::new();
        for chain in 0..CHAINS {
            for step in 0..PERIOD {
                assert!(places.insert(place(layout, chain, step)));
                let shard = |step| place(layout, chain, step) / layout.shard;
                assert_ne!(shard(step), shard(step + 1));
            }
            assert_eq!(place(layout, chain, 0), place(layout, chain, PERIOD));
        }
        let known = std::array::from_fn(|n| n as u64);
        assert_eq!(parse(2, &block(2, 9, &known)).unwrap(), (10, known));
        assert!(parse(3, &block(2, 9, &known)).is_err(), "another chain's");
    }
}
