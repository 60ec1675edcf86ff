//! The honest client: fio writes and verifies in rounds over NBD, as fast as it may, and its target says how many commands it took.

use anyhow::{Context, Result, ensure};
use cluster::nbd::Place;
use cluster::{Cluster, Fio};
use serde_json::Value;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// What one rate is measured over: a round of fio is a few of these, and a slow machine's pauses are shorter.
const WINDOW: Duration = Duration::from_secs(2);

/// A control socket's answer to one line.
pub(crate) fn ask(socket: &Path, line: &str) -> Result<Value> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(cluster::LONG))?;
    stream.write_all(line.as_bytes())?;
    let mut answer = String::new();
    BufReader::new(stream).read_line(&mut answer)?;
    serde_json::from_str(&answer).with_context(|| format!("{line:?} answered with {answer:?}"))
}

/// fio, and how fast it is.
pub(crate) struct Honest {
    fio: Fio,
    stop: Arc<AtomicBool>,
    samples: JoinHandle<Result<Vec<(Instant, u64)>>>,
}

/// Commands a second, in each whole window between two moments.
fn rates(samples: &[(Instant, u64)], (from, to): (Instant, Instant)) -> Vec<f64> {
    let mut rates = Vec::new();
    let mut begin: Option<(Instant, u64)> = None;
    for (at, count) in samples.iter().filter(|(at, _)| (from..=to).contains(at)) {
        match begin {
            Some((since, before)) if *at - since >= WINDOW => {
                rates.push((count - before) as f64 / (*at - since).as_secs_f64());
                begin = Some((*at, *count));
            }
            Some(_) => {}
            None => begin = Some((*at, *count)),
        }
    }
    rates
}

fn median(mut of: Vec<f64>) -> f64 {
    of.sort_by(f64::total_cmp);
    of.get(of.len() / 2).copied().unwrap_or(0.0)
}

impl Honest {
    pub(crate) fn start(cluster: &Cluster, place: &Place, volume: &str) -> Result<Self> {
        let fio = Fio::start(cluster.dir(), place, volume, None)?;
        let socket: PathBuf = cluster.dir().join(format!("attached/{volume}.sock"));
        let stop = Arc::new(AtomicBool::new(false));
        let stopping = Arc::clone(&stop);
        let samples = std::thread::spawn(move || {
            let mut samples = Vec::new();
            while !stopping.load(Ordering::Relaxed) {
                let look = ask(&socket, "look\n")?;
                let count = look["target"]["counters"]["nbd_requests"].as_u64().context("no nbd_requests")?;
                samples.push((Instant::now(), count));
                std::thread::sleep(Duration::from_millis(250));
            }
            Ok(samples)
        });
        Ok(Self { fio, stop, samples })
    }

    /// fio has met nothing that it did not expect.
    pub(crate) fn check(&mut self) -> Result<()> {
        self.fio.check()
    }

    /// It ends: not an error, and beside what happened in `beside` at least a third of the rate that it had in `alone`.
    pub(crate) fn end(self, alone: &[(Instant, Instant)], beside: (Instant, Instant)) -> Result<()> {
        let rounds = self.fio.stop()?;
        self.stop.store(true, Ordering::Relaxed);
        let samples = self.samples.join().map_err(|_| anyhow::anyhow!("the sampler panicked"))??;
        let alone = median(alone.iter().flat_map(|phase| rates(&samples, *phase)).collect());
        let windows = rates(&samples, beside);
        let least = windows.iter().copied().fold(f64::INFINITY, f64::min);
        let count = windows.len();
        let median = median(windows);
        println!("the honest client: {rounds} rounds of fio without an error; commands a second: {alone:.0} alone,");
        println!("  {median:.0} beside it all ({count} windows of {WINDOW:?}, the least {least:.0})");
        ensure!(3.0 * median >= alone, "{median:.0} a second beside, {alone:.0} alone");
        Ok(())
    }
}
