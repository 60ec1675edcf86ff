//! What people set for the whole cluster while it runs; persisted, and told to every node with its heartbeats.

use crate::events::Happened;
use crate::limits::MIN_FILL_RATE;
use crate::views::Settings;
use crate::{Bytes, Conductor, Dirty, Error, Key, Millis};

impl Conductor {
    /// What is set.
    pub fn settings(&self) -> Settings {
        self.meta.settings
    }

    /// Sets it anew.
    pub fn change_settings(&mut self, now: Millis, settings: Settings) -> Result<(Settings, Dirty), Error> {
        self.check_trusted()?;
        self.date_events(now);
        if let Some(rate) = settings.fill_rate.filter(|rate| *rate != Bytes(0) && *rate < MIN_FILL_RATE) {
            let why = format!("a fill rate is at least {MIN_FILL_RATE} per second, or 0, not {rate}");
            return Err(Error::Invalid(why));
        }
        let mut dirty = Dirty::default();
        if self.meta.settings != settings {
            self.meta.settings = settings;
            dirty.add(Key::Meta);
            self.note(Happened::FillRateChanged { rate: settings.fill_rate }, &mut dirty);
        }
        let dirty = self.seal(dirty);
        Ok((self.settings(), dirty))
    }
}
