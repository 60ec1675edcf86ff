//! What the clients saw: each operation's beginning and end in one order, and what reads returned.

/// What an operation did, sector by sector.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum What {
    /// Wrote its own number to each sector.
    Write,
    /// Made each sector zero.
    Zero,
    /// Read these values, one for each sector; empty until it is answered.
    Read(Vec<u32>),
    /// Wrote these values, one for each sector: a rollback. No client's, so that it fences none.
    Set(Vec<u32>),
}

/// How an operation ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// Succeeded at this moment.
    Ok(u64),
    /// Failed, or its client died: it may have taken effect or not, now or later, until fenced.
    Open,
}

/// One operation of a client.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Operation {
    /// Its number, from 1: the value that a write leaves in each sector.
    pub id: u32,
    /// The attach generation of the client.
    pub generation: u64,
    /// What it did.
    pub what: What,
    /// First sector that it concerned.
    pub first: u64,
    /// How many.
    pub sectors: u64,
    /// When it was handed down.
    pub began: u64,
    /// When its completion was handed up.
    pub end: End,
}

/// All operations of a run.
#[derive(Clone, Default, Debug)]
pub struct History {
    /// By number: `id - 1` is the index.
    pub operations: Vec<Operation>,
    clock: u64,
}

impl History {
    /// A moment after all before.
    pub fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    /// Something that was no client's request: over the first sectors, when it is known what it read or wrote.
    pub(crate) fn add(&mut self, what: What, began: u64, end: End) {
        let sectors = match &what {
            What::Read(values) | What::Set(values) => values.len() as u64,
            What::Write | What::Zero => 0,
        };
        let id = self.next_id();
        self.operations.push(Operation { id, generation: 0, what, first: 0, sectors, began, end });
    }

    /// A client was told at this moment that sectors are zeros, which is as good as reading them.
    pub(crate) fn told_zeros(&mut self, generation: u64, first: u64, sectors: u64, began: u64) {
        let (end, id) = (End::Ok(self.tick()), self.next_id());
        let what = What::Read(vec![0; usize::try_from(sectors).unwrap_or_default()]);
        self.operations.push(Operation { id, generation, what, first, sectors, began, end });
    }

    /// An operation is handed down. Returns its number.
    pub fn begin(&mut self, generation: u64, what: What, first: u64, sectors: u64) -> u32 {
        let began = self.tick();
        let id = self.next_id();
        self.operations.push(Operation { id, generation, what, first, sectors, began, end: End::Open });
        id
    }

    /// The number that the next operation will have.
    pub fn next_id(&self) -> u32 {
        u32::try_from(self.operations.len() + 1).unwrap_or(u32::MAX)
    }

    /// Its completion is handed up. A failed one stays open.
    pub fn end(&mut self, id: u32, ok: bool, values: Vec<u32>) {
        let at = self.tick();
        let Some(operation) = self.operations.get_mut(id as usize - 1) else { return };
        if ok {
            operation.end = End::Ok(at);
            if let What::Read(read) = &mut operation.what {
                *read = values;
            }
        }
    }

    /// Operations that succeeded.
    pub fn completed(&self) -> usize {
        self.operations.iter().filter(|o| o.end != End::Open).count()
    }
}
