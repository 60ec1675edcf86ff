//! What a node's control threads do, and the way to the conductor and back: requests and answers are late, lost and sent twice.

use super::{ATTACH_AGAIN, Alarm, Director, HEARTBEAT, Sim, Source};
use crate::mail::{LaneMail, Mail};
use conductor_model::api::{CopyWork, Heartbeat, OrderReport, Register, Report};
use conductor_model::{Answer, Commit, Error, Request, ShardId};
use driver::{Span, Time};
use sim::State;

impl Director {
    pub(super) fn node_says(&mut self, w: &mut Sim, node: usize, life: u32, letter: node_core::Letter) {
        let Some(control) = &mut self.nodes[node].control else { return };
        match letter {
            node_core::Letter::Ask(request) => {
                self.ask(w, Source::Node(node, life, w.now()), Request::Membership(vec![request]));
            }
            node_core::Letter::Deleted(copy) => control.dropped.push(copy),
            node_core::Letter::Troubles(troubles) => control.troubles = troubles,
            node_core::Letter::Usage(_, used) => control.used = used,
            node_core::Letter::View(..)
            | node_core::Letter::Damage(_)
            | node_core::Letter::Detour(_)
            | node_core::Letter::Fillings(_) => {}
            node_core::Letter::Report(report) => self.forward(w, node, life, vec![report], Vec::new()),
            node_core::Letter::Worked(work) => self.forward(w, node, life, Vec::new(), vec![work]),
            node_core::Letter::DiskFailed(..) if life <= self.nodes[node].bad_until => self.disk_failed(w, node, life),
            node_core::Letter::DiskFailed(disk, why) => self.fail(format!("disk {disk} failed: {why}")),
        }
    }

    /// What is said beside the heartbeats.
    fn forward(&mut self, w: &mut Sim, node: usize, life: u32, orders: Vec<OrderReport>, worked: Vec<CopyWork>) {
        let id = conductor_model::NodeId(u32::try_from(node + 1).unwrap_or(0));
        self.ask(w, Source::Node(node, life, w.now()), Request::Report(Report { node: id, orders, worked }));
    }

    /// What a control thread does about twice a second.
    pub(super) fn beat(&mut self, w: &mut Sim, node: usize, life: u32) {
        let process = self.nodes[node].process;
        if w.life(process) != life || w.state(process) == State::Dead {
            return;
        }
        let jitter = self.rng.below(Span::millis(50).0);
        self.alarm(w, Span(HEARTBEAT.0 + jitter), Alarm::Beat(node, life));
        if w.state(process) == State::Paused {
            return;
        }
        let Some(control) = self.nodes[node].control.as_ref().filter(|c| c.life == life) else { return };
        let id = conductor_model::NodeId(u32::try_from(node + 1).unwrap_or(0));
        let request = if control.registered {
            Request::Heartbeat(Heartbeat {
                node: id,
                after: control.after,
                disks: vec![(control.report.disk, control.report.open, control.used)],
                troubles: control.troubles.clone(),
                dropped: control.dropped.clone(),
                copies: Vec::new(),
                integrity: Vec::new(),
                filling: Vec::new(),
                failed: Vec::new(),
            })
        } else {
            Request::Register(Register {
                node: id,
                host: format!("h{node}"),
                rack: String::new(),
                version: String::new(),
                disks: vec![control.report.clone()],
                cluster: self.service.model().cluster(),
                seen: Commit(control.after),
                attached: Vec::new(),
            })
        };
        self.ask(w, Source::Node(node, life, w.now()), request);
    }

    /// Sends a request on its way to the conductor.
    pub(super) fn ask(&mut self, w: &mut Sim, source: Source, request: Request) {
        self.count(
            match &request {
                Request::Register(_) => "conductor.register",
                Request::Heartbeat(_) => "conductor.heartbeat",
                Request::Membership(_) => "conductor.membership",
                Request::Attach(..) => "conductor.attach",
                Request::Detach(..) => "conductor.detach",
                Request::Map(_) => "conductor.map",
                Request::Report(_) => "conductor.report",
            },
            1,
        );
        // Whoever attaches knows that an attempt failed before it makes another.
        let sure = matches!(source, Source::Attach(_));
        if !sure && self.rng.chance(self.lost_ppm) {
            self.count("conductor.request-lost", 1);
            return;
        }
        let late = self.rng.span(self.late);
        if !sure && self.rng.chance(self.twice_ppm) {
            self.count("conductor.request-twice", 1);
            let later = Span(late.0 + self.rng.below(self.late.0));
            self.alarm(w, later, Alarm::Asked(source, request.clone()));
        }
        self.alarm(w, late, Alarm::Asked(source, request));
    }

    pub(super) fn asked(&mut self, w: &mut Sim, source: Source, request: &Request) {
        let was_up = self.service.is_up();
        let answer = self.service.handle(self.now(w), request);
        let news = match &answer {
            Some(Answer::Heartbeat(news)) => {
                !(news.assignments.is_empty() && news.orders.is_empty() && news.work.is_empty() && news.drop.is_empty())
            }
            Some(Answer::Map(_)) => false,
            _ => true,
        };
        if news {
            w.tell(|| format!("{source:?} asked {request:?}: {answer:?}"));
        }
        if was_up && !self.service.is_up() {
            self.count("conductor.died-before-persisting", 1);
        }
        if matches!(answer, Some(Answer::Refused(Error::UnknownNode(_)))) {
            self.count("conductor.unknown-node", 1);
        }
        let lost = answer.is_none() || self.rng.chance(self.lost_ppm);
        if let Source::Attach(attempt) = source
            && lost
        {
            self.alarm(w, ATTACH_AGAIN, Alarm::Attach(attempt));
        }
        let Some(answer) = answer.filter(|_| !lost) else {
            self.count("conductor.answer-lost", 1);
            return;
        };
        let shard = match request {
            Request::Membership(requests) => requests.first().map(|r| r.shard).unwrap_or_default(),
            _ => ShardId::default(),
        };
        let late = self.rng.span(self.late);
        if !matches!(source, Source::Attach(_)) && self.rng.chance(self.twice_ppm) {
            self.count("conductor.answer-twice", 1);
            let later = Span(late.0 + self.rng.below(self.late.0));
            self.alarm(w, later, Alarm::Answered(source, shard, answer.clone()));
        }
        self.alarm(w, late, Alarm::Answered(source, shard, answer));
    }

    pub(super) fn answered(&mut self, w: &mut Sim, source: Source, shard: ShardId, answer: Answer) {
        match (source, answer) {
            (Source::Node(node, life, sent), answer) => self.node_answered(w, node, life, (shard, sent), answer),
            (Source::Lane(process, life), Answer::Map(map)) if w.life(process) == life => {
                w.mail_after(process, Span(0), Mail::Lane(LaneMail::Map(map)));
            }
            (Source::Attach(attempt), Answer::Map(map)) if attempt == self.attempt && self.attaching => {
                self.start_lanes(w, map);
            }
            // The volume is being rolled back.
            (Source::Attach(attempt), Answer::Refused(Error::Busy { .. })) => {
                self.alarm(w, ATTACH_AGAIN, Alarm::Attach(attempt));
            }
            (Source::Attach(_), Answer::Refused(error)) => self.fail(format!("the attach was refused: {error}")),
            _ => {}
        }
    }

    fn node_answered(&mut self, w: &mut Sim, node: usize, life: u32, (shard, sent): (ShardId, Time), answer: Answer) {
        let process = self.nodes[node].process;
        let Some(control) = self.nodes[node].control.as_mut().filter(|c| c.life == life && w.life(process) == life)
        else {
            return;
        };
        let tell = |w: &mut Sim, mail| w.mail_after(process, Span(0), Mail::Node(mail));
        match answer {
            Answer::Registered(_) => {
                control.registered = true;
                self.count("conductor.registered", 1);
            }
            Answer::Heartbeat(answer) => {
                // One thread sends heartbeats, each when the one before is answered or given up: what is open is never told as it was
                // before that. The rest has epochs or generations of its own, and may come in any order.
                let is_old = answer.version < control.after;
                control.after = control.after.max(answer.version);
                if !is_old && (!answer.orders.is_empty() || control.has_orders) {
                    control.has_orders = !answer.orders.is_empty();
                    tell(w, node_core::Mail::Orders(answer.orders));
                }
                if !answer.work.is_empty() {
                    tell(w, node_core::Mail::Work(answer.work));
                }
                control.dropped.retain(|copy| answer.drop.contains(copy));
                if !answer.generations.is_empty() {
                    tell(w, node_core::Mail::Generations(answer.generations));
                }
                if let Some(keys) = answer.keys {
                    tell(w, node_core::Mail::Keys(keys));
                }
                if !answer.readers.is_empty() {
                    tell(w, node_core::Mail::Readers(answer.readers));
                }
                if !answer.assignments.is_empty() {
                    self.count("conductor.assignment", 1);
                    tell(w, node_core::Mail::Assign(answer.assignments));
                }
                if !answer.drop.is_empty() {
                    tell(w, node_core::Mail::Delete(answer.drop));
                }
                tell(w, node_core::Mail::FillRate(answer.fill_rate));
                if let Some(reachable) = answer.reachable {
                    tell(w, node_core::Mail::Reachable(reachable));
                }
                if let Some(held) = answer.held {
                    tell(w, node_core::Mail::AbortedFillings(held));
                }
                if answer.undisputed {
                    tell(w, node_core::Mail::Heard(sent));
                }
            }
            Answer::Membership(answers) => {
                for answer in answers {
                    if let conductor_model::api::MembershipAnswer::Refused(why) = &answer {
                        self.last_refusal = format!("{shard} by node {}: {why}", node + 1);
                    }
                    self.count(
                        match &answer {
                            conductor_model::api::MembershipAnswer::Granted(_) => "membership.granted",
                            conductor_model::api::MembershipAnswer::Stale(_) => "membership.stale",
                            conductor_model::api::MembershipAnswer::Refused(_) => "membership.refused",
                        },
                        1,
                    );
                    tell(w, node_core::Mail::Membership(shard, answer));
                }
            }
            Answer::Refused(Error::UnknownNode(_)) => {
                control.registered = false;
            }
            Answer::Refused(error) => self.fail(format!("node {}: the conductor refused: {error}", node + 1)),
            Answer::Map(_) | Answer::Detached | Answer::Reported => {}
        }
    }
}
