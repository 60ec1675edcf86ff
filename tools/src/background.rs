//! An attach that starts its target, which goes on behind it, and waits for one line on its standard output: the device, or why there is
//! none.

use crate::inherited::keep_files;
use crate::output::{Exit, Failure, Outcome, note};
use crate::pidfile::Process;
use anyhow::Context;
use nix::sys::signal::{SigSet, Signal};
use nix::unistd::{dup2_stdout, setsid};
use std::env;
use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};
use target_daemon::{Options, Place};

/// A target attaches within the conductor's call (10 s); a device that is recovered waits for its old daemon (30 s) and for nodes.
const READY: Duration = Duration::from_secs(90);
/// A target that is told to end while it comes up finishes a call of the conductor and gives the volume back by another (10 s each), or
/// fails what its device waits for (15 s); an old target's device may have to be waited for, too (30 s).
const ENDED: Duration = Duration::from_secs(45);
/// Marks the line that says why there is no device; everything else is the device.
const FAILED: &str = "failed: ";

/// The target itself, behind an attach that waits for one line.
pub(crate) fn serve(options: impl FnOnce() -> Outcome<Options>) -> Outcome {
    // It was started as a child and leads no group yet; if it does, it is as good.
    let _leads_already = setsid();
    let served = options().and_then(|options| {
        // All paths are absolute or read by now; the caller's directory may be on a filesystem that is to be unmounted.
        env::set_current_dir("/").context("cannot leave the working directory")?;
        Ok(target_daemon::run(options, |record| say(&record.device))?)
    });
    if let Err(failure) = &served {
        say(&format!("{FAILED}{:#}", failure.why));
    }
    served
}

/// The one line. After it nobody listens, and nobody may wait for our end.
fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    let _gone = writeln!(out, "{line}").and_then(|()| out.flush());
    if let Ok(null) = OpenOptions::new().write(true).open("/dev/null") {
        let _stays_open = dup2_stdout(null);
    }
}

/// Returns the device.
pub(crate) fn spawn(place: &Place) -> Outcome<String> {
    // From before there is a target: nobody ends us without ending it. It has the mask, too, and wants it.
    let stops = SigSet::from_iter([Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP]);
    stops.thread_block().context("cannot block signals")?;
    let program = env::current_exe().context("cannot find this program")?;
    // Behind `--` it would be an operand.
    let args: Vec<OsString> = env::args_os().skip(1).collect();
    let (options, operands) = args.split_at(args.iter().position(|arg| arg == "--").unwrap_or(args.len()));
    keep_files();
    let mut child = Command::new(program)
        .args(options)
        .arg("--background")
        .args(operands)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(log(place)?)
        .spawn()
        .context("cannot start the target")?;
    match heard(&mut child, stops)? {
        Heard::Line(line) => match line.strip_prefix(FAILED) {
            None => Ok(line),
            Some(why) => Err(Failure::new(code(&mut child)?, why)),
        },
        Heard::End => {
            let log = place.log();
            let status = child.wait().context("cannot wait for the target")?;
            Err(Failure::new(Exit::Failed, format!("the target ended ({status}): see {}", log.display())))
        }
        Heard::Stop => give_up(place, &mut child),
    }
}

/// Ends the target that was started, as Ctrl-C would if it were in the foreground.
fn give_up<T>(place: &Place, child: &mut Child) -> Outcome<T> {
    let volume = place.volume();
    note(format_args!("trine: ending the target of {volume}; what it did is taken back"));
    let until = Instant::now() + ENDED;
    if let Some(target) = Process::of(child.id()) {
        target.terminate()?;
        // It is our child: what is waited for is that it becomes a zombie.
        if !target.wait(until) {
            let why = format!("the target of {volume} still runs: `trine detach --force {volume}` ends it");
            return Err(Failure::new(Exit::TimedOut, why));
        }
    }
    let status = child.wait().context("cannot wait for the target")?;
    let left = place.read()?.is_some();
    let left = if left { format!(": `trine attach {volume}` goes on with what is left") } else { String::new() };
    Err(Failure::new(Exit::Failed, format!("told to end; the target of {volume} has ended ({status}){left}")))
}

fn log(place: &Place) -> Outcome<File> {
    let path = place.log();
    if let Some(dir) = path.parent() {
        std::fs::create_dir_all(dir).with_context(|| format!("cannot create {}", dir.display()))?;
    }
    let opened = OpenOptions::new().create(true).append(true).mode(0o600).open(&path);
    Ok(opened.with_context(|| format!("cannot open {}", path.display()))?)
}

/// What an attach waits for.
enum Heard {
    /// The target's one line.
    Line(String),
    /// It ended without a word.
    End,
    /// We are told to end.
    Stop,
}

fn heard(child: &mut Child, stops: SigSet) -> Outcome<Heard> {
    let Some(stdout) = child.stdout.take() else { return Ok(Heard::End) };
    let (to, from) = mpsc::channel();
    let stopped = to.clone();
    // Both threads wait until this process ends, which is soon. What comes too late is heard by nobody.
    std::thread::spawn(move || {
        let mut line = String::new();
        let read = BufReader::new(stdout).read_line(&mut line);
        let end = |len| if len > 0 { Heard::Line(line.trim_end().to_owned()) } else { Heard::End };
        let _late = to.send(read.map(end));
    });
    std::thread::spawn(move || {
        if stops.wait().is_ok() {
            let _late = stopped.send(Ok(Heard::Stop));
        }
    });
    match from.recv_timeout(READY) {
        Ok(heard) => Ok(heard.context("cannot hear the target")?),
        Err(_) => Err(Failure::new(
            Exit::TimedOut,
            format!(
                "the target is not ready after {} s; it goes on trying: `trine attached` shows it, `trine detach` ends it",
                READY.as_secs()
            ),
        )),
    }
}

/// The code that the target ended with.
fn code(child: &mut Child) -> Outcome<Exit> {
    let status = child.wait().context("cannot wait for the target")?;
    Ok(match status.code() {
        Some(2) => Exit::Usage,
        Some(3) => Exit::Unreachable,
        Some(4) => Exit::NoSuch,
        Some(5) => Exit::Refused,
        Some(6) => Exit::TimedOut,
        _ => Exit::Failed,
    })
}
