//! fio as a second load: writes and verifies in rounds, over NBD, beside the test.

use crate::nbd::Place;
use anyhow::{Context, Result, bail, ensure};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// What one round writes, and then reads back.
const ROUND: &str = "16M";
/// fio, running.
#[derive(Debug)]
pub struct Fio {
    stop: Arc<AtomicBool>,
    rounds: Arc<AtomicU64>,
    thread: Option<JoinHandle<Result<()>>>,
}

/// One round's fio, which does not outlive the test.
struct Round(std::process::Child);

impl Drop for Round {
    fn drop(&mut self) {
        // One that has ended is not there to be killed.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start(dir: &Path, uri: &str, rate: Option<u32>, round: u64) -> Result<(Round, PathBuf)> {
    let log = dir.join("fio.log");
    let file = File::create(&log)?;
    let mut command = Command::new("fio");
    command.args(["--name=chaos", "--ioengine=nbd", "--rw=randwrite", "--bs=4k", "--iodepth=8", "--thread"]);
    command.args(["--verify=crc32c", "--do_verify=1", "--verify_fatal=1", "--error_dump=1"]);
    command.args([format!("--uri={uri}"), format!("--size={ROUND}")]);
    command.args(rate.map(|rate| format!("--rate_iops={rate}")));
    command.arg(format!("--randseed={}", round + 1)).current_dir(dir);
    let child = command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file).spawn();
    Ok((Round(child.context("fio")?), log))
}

impl Fio {
    /// Begins on an export on a Unix socket, with so many commands a second at most; its log is in `dir`.
    pub fn start(dir: &Path, place: &Place, export: &str, rate: Option<u32>) -> Result<Self> {
        let Place::Unix(socket) = place else { bail!("fio is given a Unix socket") };
        let (uri, dir) = (format!("nbd+unix:///{export}?socket={}", socket.display()), dir.to_owned());
        let (stop, rounds) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (stopping, done) = (Arc::clone(&stop), Arc::clone(&rounds));
        let run = move || {
            while !stopping.load(Ordering::Relaxed) {
                let (mut round, log) = start(&dir, &uri, rate, done.load(Ordering::Relaxed))?;
                let status = round.0.wait()?;
                let said = || std::fs::read_to_string(&log).unwrap_or_default();
                ensure!(status.success(), "fio ended with {status}: {}", said());
                done.fetch_add(1, Ordering::Relaxed);
            }
            Ok(())
        };
        let thread = std::thread::Builder::new().name("fio".to_owned()).spawn(run)?;
        Ok(Self { stop, rounds, thread: Some(thread) })
    }

    /// What it has met, if that ended it.
    pub fn check(&mut self) -> Result<()> {
        match self.thread.take_if(|thread| thread.is_finished()) {
            None => Ok(()),
            Some(over) => over.join().unwrap_or_else(|_| bail!("it panicked")),
        }
    }

    /// Lets the round end, and says how many there were.
    pub fn stop(mut self) -> Result<u64> {
        self.stop.store(true, Ordering::Relaxed);
        let thread = self.thread.take().context("fio has ended")?;
        let until = std::time::Instant::now() + 3 * crate::LONG;
        while !thread.is_finished() {
            ensure!(std::time::Instant::now() < until, "a round of fio does not end");
            std::thread::sleep(Duration::from_millis(20));
        }
        thread.join().unwrap_or_else(|_| bail!("it panicked"))?;
        Ok(self.rounds.load(Ordering::Relaxed))
    }
}

impl Drop for Fio {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}
