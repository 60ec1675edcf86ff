//! Cleans up behind a test that was killed itself.
//!
//! A small shell, in a session of its own, that holds the other end of a pipe. When the pipe ends, however the test ended, it kills
//! the `trine` (or etcd) processes whose command line names a file of the cluster's directory, and removes the directory and the network.

use crate::command::binary;
use anyhow::{Context, Result};
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// `$0` is the directory, `$1` the binary: nobody else's processes have both. `$2`: how the names of its network namespaces begin.
const SCRIPT: &str = r#"
read -r nothing
for process in /proc/[0-9]*; do
    case "$(readlink "$process/exe")" in "$1"*) ;; *) continue ;; esac
    if grep -qsF "$0/" "$process/cmdline"; then kill -9 "${process#/proc/}"; fi
done
rm -rf "$0"
if [ -n "$2" ]; then for space in "/run/netns/$2-"*; do [ -e "$space" ] && ip netns del "${space##*/}"; done; fi
"#;

/// The watcher of one cluster.
#[derive(Debug)]
pub(crate) struct Watcher(Child);

impl Watcher {
    /// Starts it for the cluster in `dir`, in a network whose names begin like this.
    pub(crate) fn start(dir: &Path, network: &str) -> Result<Self> {
        Self::of(dir, &binary()?, network)
    }

    /// Starts it for processes of this program.
    pub(crate) fn of(dir: &Path, program: &Path, network: &str) -> Result<Self> {
        let mut command = Command::new("setsid");
        command.args(["sh", "-c", SCRIPT]).arg(dir).arg(program).arg(network);
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        Ok(Self(command.spawn().context("setsid")?))
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}
