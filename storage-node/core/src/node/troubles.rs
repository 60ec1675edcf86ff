//! Why a shard whose primary is here does not serve, or not with all its copies, and what nobody can read of it: for people.

use super::Node;
use super::wishes::DISK_FAILED;
use crate::bad_blocks::Unreadable;
use crate::mail::Letter;
use crate::primary::{BadBlock, Primary, PrimaryPhase};
use conductor_model::api::{Ailment, MembershipChange, Trouble};
use conductor_model::{CopyState, Member};
use driver::{Outbox, Time};
use node_protocol::Status;
use node_store::{Store, View};

impl<S: Store> Node<S> {
    /// Why a shard does not serve, in one sentence; `None` if it does.
    pub(super) fn trouble(&self, primary: &Primary) -> Option<String> {
        let silent = |m: &&Member| self.links.get(m.endpoint).is_none_or(|l| l.up.is_none());
        let names = |members: Vec<&Member>| members.iter().map(|m| m.node.to_string()).collect::<Vec<_>>().join(", ");
        match &primary.phase {
            PrimaryPhase::Serving | PrimaryPhase::Settling(_) => {
                let away: Vec<&Member> = primary.others().filter(silent).collect();
                if !away.is_empty() {
                    return Some(format!("{} cannot be reached: writes wait for it", names(away)));
                }
                let (copy, status) = primary.write_refusals.first_key_value()?;
                let how = match status {
                    Status::Io => DISK_FAILED,
                    Status::NoSpace => "its disk is full",
                    _ => "it refuses them",
                };
                let node = primary.config.member(*copy)?.node;
                Some(format!("{node} does not take writes, {how}: they wait for it"))
            }
            PrimaryPhase::Joining => {
                let missing: Vec<&Member> =
                    primary.config.in_sync_members().filter(|m| !primary.answers.contains_key(&m.copy)).collect();
                let waits = format!("waiting for {} to join {}", names(missing), primary.config.epoch);
                let refused = primary
                    .join_refusals
                    .iter()
                    .find_map(|(copy, why)| Some(format!(": {} refuses: {why}", primary.config.member(*copy)?.node)));
                Some(waits + &refused.unwrap_or_default())
            }
            PrimaryPhase::Sealed => {
                let (in_sync, least) = (primary.config.in_sync(), primary.config.min_copies);
                let waits = format!("{in_sync} of at least {least} copies in sync: writes wait for another one");
                let why = self.why_unfilled(primary).map(|why| format!(", which is not filled, because {why}"));
                Some(waits + &why.unwrap_or_default())
            }
            PrimaryPhase::Asking(MembershipChange::Past(copies)) if copies.contains(&primary.config.primary) => {
                Some("the primary's disk is in a state from the past: another copy has to take over".to_owned())
            }
            PrimaryPhase::Asking(_) => Some("waiting for the conductor to persist a new epoch".to_owned()),
            PrimaryPhase::Failed { why, .. } => Some(format!("the primary's own copy failed: {why}")),
        }
    }

    /// What keeps a copy from being filled, and the way out.
    fn why_unfilled(&self, primary: &Primary) -> Option<String> {
        let shard = primary.config.shard;
        let sealed = primary.is_sealed();
        let filling = primary.filling.as_ref();
        if let Some(View::Snapshot(snapshot)) = filling.and_then(|f| f.stuck).map(|(layer, _)| layer)
            && !self.is_dropped(shard, View::Snapshot(snapshot))
        {
            let own = primary.config.primary_member()?.node;
            let others = primary.others().next().map(|_| format!(", or stop {own} until another node is primary"));
            let away = primary.holder_away().map(|node| format!(", or bring {node} back: it is filled first"));
            return Some(format!(
                "{own} has lost what snapshot {snapshot} was, or an older one: delete that snapshot and all newer ones{}",
                others.or(away).unwrap_or_default()
            ));
        }
        let fills_a_holder = sealed && filling.is_some_and(|f| primary.config.full_set.contains(&f.copy));
        let bad = primary.keeps_from_filling.filter(|bad| !fills_a_holder && !self.is_dropped(shard, bad.view));
        let BadBlock { view, block, held_by } = bad?;
        // One that held all of this is filled past it.
        let away = primary.holder_away().filter(|_| sealed);
        let way_out = match (held_by, view) {
            (Some(node), _) if primary.others().any(|member| member.node == node) => {
                format!("{node} may have it: with --min-copies {} it is put right", primary.config.in_sync())
            }
            (Some(node), _) => format!("{node} may have it: bring it back"),
            (None, _) if let Some(node) = away => format!("bring {node} back, which is filled all the same"),
            (None, View::Live) if sealed => {
                format!("with --min-copies {} it can be written again", primary.config.in_sync())
            }
            (None, View::Live) => "write it again, or restore it from a backup".to_owned(),
            (None, View::Snapshot(snapshot)) => format!("it is snapshot {snapshot}'s, without which it would be"),
        };
        Some(format!("block {block} does not read: {way_out}"))
    }

    /// What is wrong with shards and makes nothing wait.
    fn ailments(&self) -> impl Iterator<Item = Trouble> {
        let ails = |shard, reason, ailment| Trouble { shard, waiting: 0, reason, lost: false, ailment: Some(ailment) };
        let unfilled = self.primaries.iter().filter_map(move |(shard, primary)| {
            let missing = !primary.is_sealed() && primary.listed_others().any(|m| m.state != CopyState::InSync);
            let why = self.why_unfilled(primary).filter(|_| missing)?;
            Some(ails(*shard, format!("a copy is not filled, because {why}"), Ailment::Unfilled))
        });
        let unreadable = self.damage.left.unreadable().into_iter();
        let unreadable = unreadable.filter(|found| self.primaries.contains_key(&found.shard));
        unfilled.chain(unreadable.map(move |found| ails(found.shard, unreadable_reason(found), Ailment::Unreadable)))
    }

    pub(super) fn report_troubles(&mut self, now: Time, out: &mut dyn Outbox<Letter>) {
        let troubles: Vec<Trouble> = self
            .primaries
            .iter()
            .filter_map(|(shard, p)| {
                let waiting = u32::try_from(p.requests.len()).unwrap_or(u32::MAX);
                Some(Trouble { shard: *shard, waiting, reason: self.trouble(p)?, lost: p.is_lost(), ailment: None })
            })
            .chain(self.waiting_copies(now))
            .chain(self.ailments())
            .collect();
        if troubles != self.troubles {
            self.troubles.clone_from(&troubles);
            out.post(Letter::Troubles(troubles));
        }
    }
}

/// What nobody can read, and what to do about it.
fn unreadable_reason(found: Unreadable) -> String {
    let Unreadable { view, block, count, more, views, .. } = found;
    let (what, them) = match (count, more) {
        (1, false) => (format!("block {block}"), "it"),
        (1, true) => (format!("block {block}, and perhaps others"), "them"),
        (n, false) => (format!("{n} blocks ({block} first)"), "them"),
        (n, true) => (format!("{n} blocks or more ({block} first)"), "them"),
    };
    match view {
        View::Live => {
            format!("no copy has {what}: an error to who reads {them}, until written again, or restored from a backup")
        }
        View::Snapshot(snapshot) if views == 1 => {
            format!("no copy has {what} of snapshot {snapshot}: an error to who reads {them}, until that is deleted")
        }
        View::Snapshot(snapshot) => {
            format!(
                "no copy has {what} of {views} snapshots ({snapshot} first): an error to who reads {them}, until those are deleted"
            )
        }
    }
}
