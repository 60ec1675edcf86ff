//! Why a shard whose primary is here does not serve, or not with all its copies: for people.

use super::Node;
use super::wishes::DISK_FAILED;
use crate::mail::Letter;
use crate::primary::{BadBlock, Primary, PrimaryPhase};
use conductor_model::Member;
use conductor_model::api::{MembershipChange, Trouble};
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
                let fills_a_holder =
                    primary.filling.as_ref().is_some_and(|f| primary.config.full_set.contains(&f.copy));
                let bad = primary
                    .keeps_from_filling
                    .filter(|bad| !fills_a_holder && !self.is_dropped(primary.config.shard, bad.view));
                let Some(BadBlock { view, block, held_by }) = bad else { return Some(waits) };
                let way_out = match (held_by, view) {
                    (Some(node), _) => format!("{node} may have it: bring it back"),
                    (None, View::Live) => format!("with --min-copies {in_sync} it can be written again"),
                    (None, View::Snapshot(snapshot)) => {
                        format!("it is snapshot {snapshot}'s, without which it would be")
                    }
                };
                Some(format!("{waits}, which is not filled, because block {block} does not read: {way_out}"))
            }
            PrimaryPhase::Asking(MembershipChange::Past(copies)) if copies.contains(&primary.config.primary) => {
                Some("the primary's disk is in a state from the past: another copy has to take over".to_owned())
            }
            PrimaryPhase::Asking(_) => Some("waiting for the conductor to persist a new epoch".to_owned()),
            PrimaryPhase::Failed { why, .. } => Some(format!("the primary's own copy failed: {why}")),
        }
    }

    pub(super) fn report_troubles(&mut self, now: Time, out: &mut dyn Outbox<Letter>) {
        let troubles: Vec<Trouble> = self
            .primaries
            .iter()
            .filter_map(|(shard, p)| {
                let waiting = u32::try_from(p.requests.len()).unwrap_or(u32::MAX);
                Some(Trouble { shard: *shard, waiting, reason: self.trouble(p)?, lost: p.is_lost() })
            })
            .chain(self.waiting_copies(now))
            .collect();
        if troubles != self.troubles {
            self.troubles.clone_from(&troubles);
            out.post(Letter::Troubles(troubles));
        }
    }
}
