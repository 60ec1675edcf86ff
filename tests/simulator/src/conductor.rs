//! The conductor's process: the model, what it has persisted, and whether it is up.

use conductor_model::{Answer, ClusterId, Conductor, Corrupt, Dirty, Error, Key, Millis, Record, Request};
use std::collections::BTreeMap;

/// The conductor.
pub(crate) struct Service {
    model: Conductor,
    persisted: BTreeMap<Key, Record>,
    up: bool,
    /// It will die after handling the next request that changes something, before persisting that.
    dies_before_persisting: bool,
}

impl Service {
    pub(crate) fn new(cluster: u64, now: Millis) -> Self {
        let (model, dirty) = Conductor::new(ClusterId(cluster), now);
        let mut this = Self { model, persisted: BTreeMap::new(), up: true, dies_before_persisting: false };
        this.persist(&dirty);
        this
    }

    fn persist(&mut self, dirty: &Dirty) {
        for key in dirty.keys() {
            match self.model.record(key) {
                Some(record) => self.persisted.insert(key, record),
                None => self.persisted.remove(&key),
            };
        }
    }

    /// True while it answers.
    pub(crate) fn is_up(&self) -> bool {
        self.up
    }

    /// The model, for looking at.
    pub(crate) fn model(&self) -> &Conductor {
        &self.model
    }

    /// Handles a request; no answer if it is down, or dies of it.
    pub(crate) fn handle(&mut self, now: Millis, request: &Request) -> Option<Answer> {
        if !self.up {
            return None;
        }
        let (answer, dirty) = self.model.handle(now, request);
        self.finish(&dirty).then_some(answer)
    }

    /// An administrator's command.
    pub(crate) fn command<T>(
        &mut self,
        command: impl FnOnce(&mut Conductor) -> Result<(T, Dirty), Error>,
    ) -> Result<T, Error> {
        let (answer, dirty) = command(&mut self.model)?;
        self.persist(&dirty);
        Ok(answer)
    }

    /// Time has passed.
    pub(crate) fn tick(&mut self, now: Millis) {
        if self.up {
            let dirty = self.model.tick(now);
            self.finish(&dirty);
        }
    }

    fn finish(&mut self, dirty: &Dirty) -> bool {
        if self.dies_before_persisting && !dirty.is_empty() {
            self.crash();
            return false;
        }
        self.persist(dirty);
        true
    }

    /// It dies: what was not persisted is forgotten.
    pub(crate) fn crash(&mut self) {
        self.up = false;
        self.dies_before_persisting = false;
    }

    /// See the field.
    pub(crate) fn crash_at_next_change(&mut self) {
        self.dies_before_persisting = true;
    }

    /// It starts again.
    pub(crate) fn restart(&mut self, now: Millis) -> Result<(), Corrupt> {
        if !self.up {
            self.model = Conductor::restore(self.persisted.values().cloned(), now)?;
        }
        self.up = true;
        self.dies_before_persisting = false;
        Ok(())
    }
}
