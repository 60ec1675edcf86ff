//! What the tests of commands have in common: a cluster of real processes on loopback, which none of them outlives.

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};
use std::{env, fs};

/// A cluster's directory. Whatever happens, its processes are ended and its files removed.
pub(crate) struct Dir(pub(crate) PathBuf);

impl Dir {
    pub(crate) fn new(name: &str) -> Self {
        let dir = env::temp_dir().join(format!("trine-{name}-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        Self(dir)
    }

    pub(crate) fn cluster(&self) -> PathBuf {
        self.0.join("cluster")
    }

    pub(crate) fn trine(&self, args: &[&str]) -> Output {
        self.command(args).output().unwrap()
    }

    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_trine"));
        for (name, _) in env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("TRINE_")) {
            command.env_remove(name);
        }
        command.env("TRINE_DIR", self.cluster()).env("TRINE_CONFIG", "/dev/null");
        command.args(args).stdin(Stdio::null());
        command
    }

    #[track_caller]
    pub(crate) fn ok(&self, args: &[&str]) -> String {
        let output = self.trine(args);
        let (said, complained) = (text(&output.stdout), text(&output.stderr));
        assert!(output.status.success(), "trine {args:?}: {}\n{said}{complained}", output.status);
        said
    }

    #[track_caller]
    pub(crate) fn json(&self, args: &[&str]) -> Value {
        serde_json::from_str(&self.ok(&[args, &["-o", "json"]].concat())).unwrap()
    }

    /// It fails with this code and one sentence.
    #[track_caller]
    pub(crate) fn fails(&self, code: i32, args: &[&str]) -> String {
        let output = self.trine(args);
        let complained = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "trine {args:?}: {complained}");
        assert!(complained.starts_with("trine: ") && complained.trim_end().lines().count() == 1, "{complained}");
        complained
    }

    #[track_caller]
    pub(crate) fn wait_until(&self, what: &str, mut is_so: impl FnMut() -> bool) {
        let until = Instant::now() + Duration::from_secs(30);
        while !is_so() {
            assert!(Instant::now() < until, "{what}: still not so; {}", text(&self.trine(&["status"]).stdout));
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let nodes = (1..=4).map(|n| self.cluster().join(format!("n{n}/node.pid")));
        let others = ["conductor.pid", "attached/db.pid"].map(|file| self.cluster().join(file));
        for file in nodes.chain(others) {
            if let Some(pid) = living(&file) {
                let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
            }
        }
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// The process that a pid file names, if it still is the one that was started.
pub(crate) fn living(file: &Path) -> Option<i32> {
    let note = fs::read_to_string(file).ok()?;
    let (pid, started) = note.trim().split_once(' ')?;
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let field = stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.to_owned();
    (field == started).then(|| pid.parse().ok())?
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
