//! Who asked for a connection: a stranger, until he has proven who he is.

use driver::{Proven, Time};

/// See above. Of a connection that we asked for there is none.
pub(crate) struct Stranger {
    since: Time,
    /// An accept was answered with his connection: the machine knows of it.
    pub(crate) accepted: bool,
    /// What the machine says of him, from its first receive on.
    proven: Option<Proven>,
}

impl Stranger {
    pub(crate) fn new(now: Time) -> Self {
        Self { since: now, accepted: false, proven: None }
    }

    /// The machine receives from him.
    pub(crate) fn heard(&mut self, proven: impl FnOnce() -> Proven) {
        self.proven.get_or_insert_with(proven);
    }

    /// Since when he is one who can be made to go: until he has proven who he is; and of a connection that is `ending`, only where nobody
    /// has accepted it, for otherwise the machine sees it, and has it closed.
    pub(crate) fn since(&self, ending: bool) -> Option<Time> {
        let known = self.proven.as_ref().is_some_and(Proven::is);
        if known || self.accepted && ending { None } else { Some(self.since) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use driver::{Conn, ConnId, Provider};

    #[test]
    fn a_peer_is_a_stranger_until_it_has_proven_who_it_is() {
        let conn = Conn::new(ConnId { slot: 0, generation: 1 }, Provider::Framed);
        let mut peer = Stranger::new(Time(7));
        assert_eq!((peer.since(false), peer.since(true)), (Some(Time(7)), Some(Time(7))), "nobody asks for it");
        peer.accepted = true;
        peer.heard(|| conn.proven());
        assert_eq!(peer.since(false), Some(Time(7)), "whoever is accepted may say nothing more");
        assert_eq!(peer.since(true), None, "it goes anyway");
        conn.prove();
        assert_eq!(peer.since(false), None);
    }
}
