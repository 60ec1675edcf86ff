//! The `trine` command as a person types it, with a time limit.

use anyhow::{Context, Result, ensure};
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// No command of these tests takes longer than this on any machine that can build it.
const LIMIT: Duration = Duration::from_secs(120);

/// What a command left behind.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The exit code; −1 for a signal.
    pub code: i32,
    /// What it wrote to standard output.
    pub stdout: String,
    /// What it wrote to standard error.
    pub stderr: String,
}

/// The built binary: `TRINE`, or what lies beside the test's own directory.
pub fn binary() -> Result<PathBuf> {
    let path = match std::env::var_os("TRINE") {
        Some(path) => PathBuf::from(path),
        None => {
            let test = std::env::current_exe()?;
            test.parent().and_then(Path::parent).context("a test lies in target/PROFILE/deps")?.join("trine")
        }
    };
    ensure!(path.is_file(), "{} is not there: `cargo build -p trine` first", path.display());
    Ok(fs::canonicalize(path)?)
}

/// A command that goes on beside the test. One that is let go of is killed.
#[derive(Debug)]
pub struct Running {
    child: Child,
    shown: String,
    files: [PathBuf; 2],
    since: Instant,
}

impl Running {
    /// Starts `trine` with these arguments, behind `prefix`, and nothing of the caller's own settings. `dir` becomes TRINE_DIR.
    pub(crate) fn start<S: AsRef<OsStr>>(prefix: &[OsString], dir: &Path, args: &[S]) -> Result<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        // Files, not pipes: what stays behind in the background must not keep us waiting.
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let files = ["out", "err"].map(|end| dir.join(format!("command-{n}.{end}")));
        let shown = args.iter().map(|arg| arg.as_ref().to_string_lossy()).collect::<Vec<_>>().join(" ");
        let argv: Vec<OsString> = prefix.iter().cloned().chain([binary()?.into()]).collect();
        let mut command = Command::new(&argv[0]);
        command
            .args(&argv[1..])
            .args(args)
            .stdin(Stdio::null())
            .stdout(File::create(&files[0])?)
            .stderr(File::create(&files[1])?);
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("TRINE")) {
            command.env_remove(name);
        }
        let child = command.env("TRINE_DIR", dir).spawn()?;
        Ok(Self { child, shown, files, since: Instant::now() })
    }

    /// Waits for its end.
    pub fn end(mut self) -> Result<Outcome> {
        let status = loop {
            if let Some(status) = self.child.try_wait()? {
                break status;
            }
            ensure!(self.since.elapsed() < LIMIT, "`trine {}` took longer than {LIMIT:?}", self.shown);
            std::thread::sleep(Duration::from_millis(5));
        };
        let [stdout, stderr] = self.files.each_ref().map(|file| {
            let text = fs::read_to_string(file).unwrap_or_default();
            let _ = fs::remove_file(file);
            text
        });
        Ok(Outcome { code: status.code().unwrap_or(-1), stdout, stderr })
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // One that has ended is not there to be killed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs `trine`, however it ends.
pub(crate) fn trine<S: AsRef<OsStr>>(prefix: &[OsString], dir: &Path, args: &[S]) -> Result<Outcome> {
    Running::start(prefix, dir, args)?.end()
}

/// Runs it and expects success.
pub(crate) fn trine_ok<S: AsRef<OsStr>>(prefix: &[OsString], dir: &Path, args: &[S]) -> Result<String> {
    let shown = args.iter().map(|arg| arg.as_ref().to_string_lossy()).collect::<Vec<_>>().join(" ");
    let outcome = trine(prefix, dir, args)?;
    ensure!(outcome.code == 0, "`trine {shown}` ended with {}: {}{}", outcome.code, outcome.stderr, outcome.stdout);
    Ok(outcome.stdout)
}
