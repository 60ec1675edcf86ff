//! `trine attached`: the volumes that are attached to this host.

use crate::attach::records;
use crate::config::{ClusterArgs, DirArgs};
use crate::output::{Outcome, OutputArgs, note, table};
use crate::trace::{self, Step, steps};
use clap::Args;
use serde::Serialize;
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use target_daemon::{Place, Record, TargetError, TargetView, look, unrecorded};

#[derive(Args)]
pub(crate) struct AttachedArgs {
    /// Show where the requests that finished last spent their time, also in nodes on this machine
    #[arg(long)]
    trace: bool,
    #[command(flatten)]
    cluster: ClusterArgs,
    #[command(flatten)]
    output: OutputArgs,
}

/// One attachment in a listing.
#[derive(Serialize)]
struct Attached {
    #[serde(flatten)]
    known: Known,
    /// The target's process lives.
    live: bool,
    /// `live`, `dead`, `starting` (its device is not usable yet), `fenced` (a newer attachment exists), `unreadable` (its record is), or `silent` (it lives and does
    /// not answer).
    state: &'static str,
    /// What it says of itself, if it lives and answers.
    target: Option<TargetView>,
    /// Where the requests that finished last spent their time, if that was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    steps: Option<Vec<Step>>,
}

/// What there is to know of it.
#[derive(Serialize)]
#[serde(untagged)]
enum Known {
    Record(Record),
    /// It has just begun.
    Nothing {
        volume: String,
        pid: Option<u32>,
    },
}

/// Its record is no record, or of another version.
const UNREADABLE: &str = "unreadable";

pub(crate) fn attached(args: &AttachedArgs) -> Outcome {
    let mut all = Vec::new();
    let served = if args.trace { Some(trace::served(&trace::sockets(&args.cluster)?)) } else { None };
    for place in Place::all(&records(&args.cluster)?)? {
        let (live, holder) = (place.is_live()?, place.holder());
        // One that comes up may show what a dead one left.
        let own = |record: &Record| holder.is_some_and(|holder| record.is_of(holder));
        let nothing = || Known::Nothing { volume: place.volume().to_owned(), pid: holder.map(|holder| holder.pid) };
        let read = match place.read() {
            // The others are to be seen all the same.
            Err(bad @ TargetError::BadRecord { .. }) => {
                note(format!("trine: {bad}"));
                all.push(Attached { known: nothing(), live, state: UNREADABLE, target: None, steps: None });
                continue;
            }
            read => read?,
        };
        all.push(match read {
            Some(record) if !live => {
                Attached { known: Known::Record(record), live, state: "dead", target: None, steps: None }
            }
            Some(record) if own(&record) => {
                let look = look(&place).ok();
                let state = match &look {
                    None if record.starting => "starting",
                    None => "silent",
                    Some(look) if look.target.fenced => "fenced",
                    Some(look) if look.starting => "starting",
                    Some(_) => "live",
                };
                let target = look.map(|look| look.target);
                let steps = target.as_ref().zip(served.as_ref()).map(|(target, served)| steps(&target.traces, served));
                Attached { known: Known::Record(record), live, state, target, steps }
            }
            _ if live => Attached { known: nothing(), live, state: "starting", target: None, steps: None },
            // One that is detached meanwhile is none.
            _ => continue,
        });
    }
    args.output.print(&all, |all| people(all))?;
    let recorded = all.iter().filter_map(|attached| match &attached.known {
        Known::Record(record) => Some(record.device.clone()),
        Known::Nothing { .. } => None,
    });
    let mut recorded: BTreeSet<String> = recorded.collect();
    for elsewhere in usual_places(&args.cluster)? {
        // One that cannot be looked at has nothing to mention.
        let places = Place::all(&elsewhere.join("attached")).unwrap_or_default();
        recorded.extend(places.iter().filter_map(|place| Some(place.read().ok()??.device)));
        let volumes: Vec<String> = places
            .into_iter()
            .filter(|place| place.is_live().unwrap_or(false))
            .map(|place| place.volume().to_owned())
            .collect();
        if !volumes.is_empty() {
            let (dir, volumes) = (elsewhere.display(), volumes.join(", "));
            note(format!(
                "trine: also attached to this host, recorded in {dir}: {volumes}; see `trine attached --dir {dir}`"
            ));
        }
    }
    for (device, volume) in unrecorded(&recorded) {
        let volume = volume.unwrap_or_else(|| "VOLUME".to_owned());
        note(format!(
            "trine: {device} waits for a target of {volume}, and is recorded in another --dir, or its record was lost: \
             `trine detach {volume} --force` ends it"
        ));
    }
    Ok(())
}

/// Where attachments may be recorded besides where this command looks: with a conductor named it is elsewhere than without.
fn usual_places(cluster: &ClusterArgs) -> Outcome<Vec<PathBuf>> {
    let seen = records(cluster)?;
    let named = ClusterArgs { conductor: Some(String::new()), dir: DirArgs { dir: None }, ..cluster.clone() };
    let unnamed = ClusterArgs { conductor: None, dir: DirArgs { dir: None }, ..cluster.clone() };
    // Without a home directory one of them is none.
    let places: BTreeSet<PathBuf> = [records(&named), records(&unnamed)].into_iter().flatten().collect();
    Ok(places.into_iter().filter(|place| *place != seen).filter_map(|place| Some(place.parent()?.to_owned())).collect())
}

fn people(all: &[Attached]) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let none = || "-".to_owned();
    let rows = all.iter().map(|Attached { known, live, state, target, .. }| {
        let dead = !*live && *state != UNREADABLE;
        let state = if dead { format!("{state} (recover with trine attach)") } else { (*state).to_owned() };
        let requests = target.as_ref().map_or_else(none, |target| target.requests.to_string());
        let over = target.as_ref().map_or_else(none, over);
        match known {
            Known::Record(record) => {
                let since = now.saturating_sub(Duration::from_millis(record.since_ms));
                let since = humantime::format_duration(Duration::from_secs(since.as_secs())).to_string();
                let device = if record.device.is_empty() { none() } else { record.device.clone() };
                vec![record.volume.clone(), device, state, record.pid.to_string(), since, requests, over]
            }
            Known::Nothing { volume, pid } => {
                let pid = pid.map_or_else(none, |pid| pid.to_string());
                vec![volume.clone(), none(), state, pid, none(), requests, over]
            }
        }
    });
    let mut text = table(&["VOLUME", "DEVICE", "STATE", "PID", "SINCE", "REQUESTS", "OVER"], rows);
    for Attached { known, target, steps, .. } in all {
        let (Known::Record(record), Some(target)) = (known, target) else { continue };
        for wait in &target.waiting {
            let seconds = wait.longest_ms / 1000;
            text += &format!("  {}: shard {} waits for {seconds} s: {}\n", record.volume, wait.shard, wait.reason);
        }
        if let Some(steps) = steps {
            text += &format!(
                "\n{}: where the requests that finished last spent their time\n{}",
                record.volume,
                trace::people(steps)
            );
        }
    }
    text
}

/// What its connections go over: `tcp`, `rdma`, `rdma 2, tcp 1`; none if there is no connection.
fn over(target: &TargetView) -> String {
    let of = |way: &str| target.links.iter().filter(|link| link.state == "up" && link.transport == way).count();
    match (of("rdma"), of("tcp")) {
        (0, 0) => "-".to_owned(),
        (0, _) => "tcp".to_owned(),
        (_, 0) => "rdma".to_owned(),
        (rdma, tcp) => format!("rdma {rdma}, tcp {tcp}"),
    }
}
