//! `trine node drain` and `trine node remove`: a node is removed not before it has nothing that anybody could miss, nor anything that nobody
//! would know any more.

use super::{DrainArgs, RemoveArgs, copies};
use crate::disk;
use crate::output::{Exit, Failure, Outcome, note};
use crate::progress::{Unit, explained, follow};
use conductor_client::Client;
use conductor_model::NodeId;
use conductor_model::limits::DEAD_MS;
use conductor_model::views::{Duty, NodeInfo, NodeState, Progress};
use std::time::Duration;

pub(super) fn run(args: &DrainArgs) -> Outcome {
    let client = args.cluster.client()?;
    let begun = client.set_duty(args.node, Duty::Draining, false)?;
    let before = copies(&begun);
    if args.wait.no_wait {
        return args.output.print_done(&begun, |info| format!("{} is being emptied of {before} copies", info.node));
    }
    let emptied = follow(&format!("emptying {}", args.node), Unit::Parts("copies"), args.wait.timeout, || {
        let info = client.node(args.node)?;
        if let Some(way) = ended(info.duty) {
            return Err(Failure::new(Exit::Failed, format!("the drain of {} was ended: {way}", args.node)));
        }
        let left = copies(&info);
        let (done, of) = (u64::from(before.saturating_sub(left)), u64::from(before));
        let reasons = to_be_deleted(&info).into_iter().collect();
        Ok(if is_emptied(&info) { Ok(info) } else { Err(Progress { done, of, reasons }) })
    });
    let emptied = explained(&client, &args.node.to_string(), emptied)?;
    args.output.print_done(&emptied, |info| format!("{} is empty", info.node))
}

/// Somebody else has other plans with it: what becomes of it then. That is no end of those who have it removed, too.
fn ended(duty: Duty) -> Option<&'static str> {
    match duty {
        Duty::Serving => Some("it takes new copies"),
        Duty::Cordoned => Some("it goes on with the copies that it has"),
        Duty::Draining | Duty::Removed => None,
    }
}

/// Has it no copy, and is what nobody needs deleted? Once it is forgotten, nobody knows that any more: such copies would be kept. One that is
/// dead is not waited for.
fn is_emptied(node: &NodeInfo) -> bool {
    copies(node) == 0 && (node.to_delete == 0 || node.state == NodeState::Dead)
}

fn to_be_deleted(node: &NodeInfo) -> Option<String> {
    match node.to_delete {
        0 => None,
        1 => Some("1 copy that nobody needs is to be deleted there".to_owned()),
        n => Some(format!("{n} copies that nobody needs are to be deleted there")),
    }
}

/// How often a node that may have ended is looked at.
const POLL: Duration = Duration::from_millis(200);

pub(super) fn remove(args: &RemoveArgs) -> Outcome {
    let client = args.cluster.client()?;
    let remove = || client.set_duty(args.node, Duty::Removed, disk::force(args.force.as_deref()));
    let info = match remove() {
        Err(error) if error.kind() == Some("in-use") && falls_silent(&client, args.node)? => remove()?,
        other => other?,
    };
    args.output.print_done(&info, removed)
}

/// A node that has ended counts as running for some seconds. False if it is heard again meanwhile, or was dead before.
fn falls_silent(client: &Client, node: NodeId) -> Outcome<bool> {
    let (mut silent_ms, mut waits) = (0, false);
    loop {
        let info = client.node(node)?;
        if info.state == NodeState::Dead || !info.heard || info.silent_ms < silent_ms {
            return Ok(waits && info.state == NodeState::Dead);
        }
        if info.state == NodeState::Late && !waits {
            let (silent, dead) = (info.silent_ms / 1000, DEAD_MS / 1000);
            note(format_args!(
                "trine: {node} was heard {silent} s ago: waiting until that is {dead} s, when it counts as stopped"
            ));
            waits = true;
        }
        silent_ms = info.silent_ms;
        std::thread::sleep(POLL);
    }
}

/// What becomes of a node that is removed.
fn removed(info: &NodeInfo) -> String {
    let node = info.node;
    let mut text = match copies(info) {
        0 => format!("{node} is forgotten"),
        left => format!("{node} is forgotten once {left} copies are made anew"),
    };
    if let Some(left) = to_be_deleted(info) {
        text +=
            &format!("; {left}: should {node} come back, format its disks anew, or what is of deleted volumes is kept");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_drained_node_is_empty_when_it_has_deleted_what_nobody_needs() {
        let node = |to_delete, state| NodeInfo {
            node: NodeId(3),
            host: "host".to_owned(),
            rack: String::new(),
            version: String::new(),
            state,
            duty: Duty::Draining,
            silent_ms: 0,
            heard: true,
            primaries: 0,
            to_delete,
            disks: Vec::new(),
        };
        assert!(is_emptied(&node(0, NodeState::Alive)) && is_emptied(&node(2, NodeState::Dead)));
        assert!(!is_emptied(&node(2, NodeState::Alive)) && !is_emptied(&node(1, NodeState::Late)));
        assert_eq!(
            to_be_deleted(&node(1, NodeState::Alive)).unwrap(),
            "1 copy that nobody needs is to be deleted there"
        );
        assert_eq!(removed(&node(0, NodeState::Dead)), "n3 is forgotten");
        let said = removed(&node(2, NodeState::Dead));
        assert!(said.starts_with("n3 is forgotten; 2 copies") && said.contains("format its disks anew"), "{said}");
    }
}
