//! Requests that wait for their reply.
//!
//! A slot is used again under the next generation, so a reply that comes too late, twice or out of nowhere matches nothing.

use driver::Time;

/// The requests of one connection: as many as its depth.
#[derive(Default)]
pub(crate) struct Slots {
    slots: Vec<Slot>,
    free: Vec<u32>,
}

struct Slot {
    generation: u32,
    waiting: Option<Waiting>,
}

#[derive(Clone, Copy)]
struct Waiting {
    token: u64,
    deadline: Time,
}

impl Slots {
    pub(crate) fn new(depth: u16) -> Self {
        Self {
            slots: (0..depth).map(|_| Slot { generation: 1, waiting: None }).collect(),
            free: (0..u32::from(depth)).rev().collect(),
        }
    }

    pub(crate) fn free(&self) -> usize {
        self.free.len()
    }

    pub(crate) fn waiting(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// A slot for a request, with its generation.
    pub(crate) fn open(&mut self, token: u64, deadline: Time) -> Option<(u32, u32)> {
        let index = self.free.pop()?;
        let slot = &mut self.slots[index as usize];
        slot.waiting = Some(Waiting { token, deadline });
        Some((index, slot.generation))
    }

    /// The token of the request that this reply belongs to, if any.
    pub(crate) fn close(&mut self, index: u32, generation: u32) -> Option<u64> {
        let slot = self.slots.get_mut(index as usize).filter(|slot| slot.generation == generation)?;
        let waiting = slot.waiting.take()?;
        slot.generation = slot.generation.wrapping_add(1);
        self.free.push(index);
        Some(waiting.token)
    }

    /// The earliest deadline. It costs a look at each slot only where something waits.
    pub(crate) fn deadline(&self) -> Option<Time> {
        if self.waiting() == 0 {
            return None;
        }
        self.slots.iter().filter_map(|slot| Some(slot.waiting?.deadline)).min()
    }

    /// Takes out one request whose deadline has passed.
    pub(crate) fn expire(&mut self, now: Time) -> Option<u64> {
        if self.waiting() == 0 {
            return None;
        }
        self.take(|waiting| waiting.deadline <= now)
    }

    /// Takes out any request.
    pub(crate) fn abandon(&mut self) -> Option<u64> {
        self.take(|_| true)
    }

    fn take(&mut self, which: impl Fn(&Waiting) -> bool) -> Option<u64> {
        let index = self.slots.iter().position(|slot| slot.waiting.as_ref().is_some_and(&which))?;
        let generation = self.slots[index].generation;
        self.close(u32::try_from(index).ok()?, generation)
    }
}
