//! A reactor's machine from its first turn on: opens its disks, waits to be made a node, and is one from then on.

use crate::Error;
use crate::opening::Opener;
use driver::{DiskIndex, Done, Machine, Op, Outbox, Time};
use node_core::{Letter, Mail, Node};
use node_store::journaled::JournaledStore;

/// See the module's head.
pub(crate) enum Life {
    /// The stores are being recovered.
    Opening(Opener),
    /// They were taken out, to make a node of them.
    Between,
    /// A node. It starts with the next turn's end.
    Node {
        node: Box<Node<JournaledStore>>,
        started: bool,
        /// Disks that are journals, and the disks of their stores.
        journals: Vec<(DiskIndex, DiskIndex)>,
    },
}

impl Life {
    /// The stores, when all are open or one cannot be.
    pub(crate) fn opened(&mut self) -> Option<Result<Vec<(DiskIndex, JournaledStore)>, Error>> {
        match std::mem::replace(self, Self::Between) {
            Self::Opening(opener) if opener.is_over() => Some(opener.finish()),
            other => {
                *self = other;
                None
            }
        }
    }

    /// From now on it is this node, whose `journals` belong to the stores on these disks.
    pub(crate) fn become_node(&mut self, node: Node<JournaledStore>, journals: Vec<(DiskIndex, DiskIndex)>) {
        *self = Self::Node { node: Box::new(node), started: false, journals };
    }
}

/// A node knows each store by one disk: what is over on its journal's comes back under that name. The store itself goes by its tags.
fn under_its_store(journals: &[(DiskIndex, DiskIndex)], done: &mut Done) {
    if let Op::DiskRead { disk, .. }
    | Op::DiskWrite { disk, .. }
    | Op::DiskPunch { disk, .. }
    | Op::DiskSync { disk, .. } = &mut done.op
        && let Some((_, store)) = journals.iter().find(|(journal, _)| journal == disk)
    {
        *disk = *store;
    }
}

impl Machine for Life {
    type Mail = Mail;
    type Letter = Letter;

    fn start(&mut self, now: Time, out: &mut dyn Outbox<Letter>) {
        if let Self::Opening(opener) = self {
            opener.start(now, &mut |op| out.submit(op));
        }
    }

    fn done(&mut self, now: Time, mut done: Done, out: &mut dyn Outbox<Letter>) {
        match self {
            Self::Opening(opener) => opener.done(now, done, &mut |op| out.submit(op)),
            Self::Between => {}
            Self::Node { node, journals, .. } => {
                under_its_store(journals, &mut done);
                node.done(now, done, out);
            }
        }
    }

    fn mail(&mut self, now: Time, mail: Mail, out: &mut dyn Outbox<Letter>) {
        // Nobody writes to a reactor before it has said that it is open; its node is there by then.
        if let Self::Node { node, .. } = self {
            node.mail(now, mail, out);
        }
    }

    fn end_turn(&mut self, now: Time, out: &mut dyn Outbox<Letter>) {
        match self {
            Self::Opening(opener) => opener.end_turn(now, &mut |op| out.submit(op)),
            Self::Between => {}
            Self::Node { node, started, .. } => {
                if !*started {
                    *started = true;
                    node.start(now, out);
                }
                node.end_turn(now, out);
            }
        }
    }

    fn next_deadline(&self) -> Option<Time> {
        match self {
            Self::Node { started: false, .. } => Some(Time::default()),
            Self::Node { node, .. } => node.next_deadline(),
            Self::Opening(opener) => opener.next_deadline(),
            Self::Between => None,
        }
    }

    fn finished(&self) -> bool {
        matches!(self, Self::Node { node, .. } if node.finished())
    }
}
