//! Everybody in turn, round after round.

use crate::account::{self, Used};
use crate::capacity;
use crate::cases::{Case, Chosen};
use crate::many::Many;
use crate::options::{Medium, Options};
use crate::peers::{self, Peer, Who};
use crate::report::{Report, Sample};
use anyhow::{Context, Result, ensure};
use std::process::{Command, ExitCode};

pub(crate) fn all(options: &Options) -> Result<ExitCode> {
    let chosen = Chosen::by(options);
    ensure!(!chosen.is_empty(), "no case has such a name");
    if options.pin {
        // Before anything is started: children inherit it.
        let mut one = nix::sched::CpuSet::new();
        one.set(0)?;
        nix::sched::sched_setaffinity(nix::unistd::Pid::from_raw(0), &one)?;
    }
    let capacity =
        options.media.contains(&Medium::File) && chosen.capacity && (!options.quick || !options.only.is_empty());
    if capacity {
        capacity::ask_for_room()?;
    }
    let mut report = Report::new(machine()?, options);
    // What was measured is told, whatever comes between.
    let failed = measure_all(&chosen, capacity, options, &mut report).err();
    report.judge();
    if let Some(dir) = options.plots.as_ref().filter(|_| failed.is_none()) {
        report.save(dir)?;
    }
    if options.json {
        println!("{}", serde_json::to_string_pretty(&report)?);
    } else {
        println!("{}", report.tables());
    }
    if let Some(error) = failed {
        return Err(error.context("not all of it could be measured"));
    }
    let broken = report.limits.iter().filter(|limit| !limit.holds()).count();
    if options.quick || broken == 0 {
        return Ok(ExitCode::SUCCESS);
    }
    eprintln!("bench-cluster: {broken} limits do not hold");
    Ok(ExitCode::from(1))
}

fn measure_all(chosen: &Chosen, capacity: bool, options: &Options, report: &mut Report) -> Result<()> {
    for medium in &options.media {
        std::fs::create_dir_all(medium.dir())?;
        peers::sweep(*medium)?;
        if !chosen.cases.is_empty() {
            measure(*medium, &chosen.cases, options, report)?;
        }
    }
    // What a request costs does not depend on the disks.
    if options.media.contains(&Medium::Ram) && !chosen.growth.is_empty() {
        grow(Medium::Ram, &chosen.growth, options, report)?;
    }
    if capacity {
        eprintln!("bench-cluster: 8 of 100 GiB are written");
        report.capacity = Some(capacity::measure()?);
    }
    Ok(())
}

fn measure(medium: Medium, cases: &[Case], options: &Options, report: &mut Report) -> Result<()> {
    eprintln!("bench-cluster: starting all of them, on disks of {}", medium.name());
    let start = |who: Who| Peer::start(who, medium).with_context(|| who.name());
    let servers = Who::ALL.into_iter().filter(|who| who.server() == *who);
    let mut peers = servers.map(start).collect::<Result<Vec<_>>>()?;
    for case in cases {
        for round in 1..=options.rounds {
            eprintln!("bench-cluster: {}, {}, round {round} of {}", medium.name(), case.name, options.rounds);
            for who in Who::ALL {
                let server = peers.iter_mut().find(|peer| peer.who == who.server() && peer.does(who, case));
                let Some(peer) = server else { continue };
                let sample = one(peer, who, case, options).with_context(|| format!("{}, {}", who.name(), case.name))?;
                report.add(medium, case, who, sample);
            }
        }
    }
    let trine = peers.iter().find(|peer| peer.who == Who::Trine).context("Trine was not started")?;
    report.memory.push((medium, account::memory(&trine.pids)?));
    Ok(())
}

/// Round after round, each number of volumes and clients, beside the floor with as many clients.
fn grow(medium: Medium, cases: &[Case], options: &Options, report: &mut Report) -> Result<()> {
    eprintln!("bench-cluster: starting a cluster for many volumes and clients");
    let mut many = Many::start(medium)?;
    let mut floor = Peer::start(Who::Floor, medium)?;
    for round in 1..=options.rounds {
        for case in cases {
            eprintln!("bench-cluster: {}, {}, round {round} of {}", medium.name(), case.name, options.rounds);
            many.arrange(case).with_context(|| case.name)?;
            report.add(
                medium,
                case,
                Who::Trine,
                one(&mut many.peer, Who::Trine, case, options).with_context(|| case.name)?,
            );
            if case.for_floor() {
                report.add(
                    medium,
                    case,
                    Who::Floor,
                    one(&mut floor, Who::Floor, case, options).with_context(|| case.name)?,
                );
            }
        }
    }
    Ok(())
}

/// One turn of one of them. Who puts work off does as much of it as comes in when it is measured, and has done the rest of it before
/// others have their turn.
fn one(peer: &mut Peer, who: Who, case: &Case, options: &Options) -> Result<Sample> {
    peer.prepare(case)?;
    let owes = peer.who == Who::Trine && case.writes();
    if owes {
        peer.run(who, case, options.time, options.pin)?;
    }
    let (used, enters) = (Used::by(&peer.pids)?, peer.enters()?);
    let ran = peer.run(who, case, options.time, options.pin)?;
    let used = Used::by(&peer.pids)?.since(used);
    let enters = peer.enters()?.zip(enters).map(|(after, before)| (after - before) as f64);
    if owes {
        account::rest(&peer.pids)?;
    }
    Ok(Sample { ran, used, enters })
}

/// What a figure belongs to.
fn machine() -> Result<Vec<(&'static str, String)>> {
    let read = |path: &str| std::fs::read_to_string(path).map(|text| text.trim().to_owned());
    let commit = Command::new("git").args(["rev-parse", "--short=12", "HEAD"]).output();
    let commit = commit
        .ok()
        .filter(|git| git.status.success())
        .map(|git| String::from_utf8_lossy(&git.stdout).trim().to_owned());
    let cpu = read("/proc/cpuinfo")?;
    let cpu = cpu.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or_default();
    Ok(vec![
        ("commit", commit.unwrap_or_else(|| "unknown".to_owned())),
        ("kernel", read("/proc/sys/kernel/osrelease")?),
        (
            "processor",
            format!("{} × {}", std::thread::available_parallelism()?, cpu.trim_start_matches(['\t', ' ', ':'])),
        ),
        ("load before", read("/proc/loadavg")?),
    ])
}
