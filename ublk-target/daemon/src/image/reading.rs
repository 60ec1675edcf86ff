//! A volume that is read in order: what is in it is asked after, then asked for, many pieces at a time, and goes into the file one behind the
//! other.

use super::desk::{Found, What};
use super::file::PIECE;
use super::{DEPTH, Put, Remote};
use crate::error::TargetError;
use conductor_model::Bytes;
use std::collections::{BTreeMap, VecDeque};
use std::sync::mpsc::SyncSender;
use volume_client::Extent;
use volume_client::limits::MAX_EXTENTS;

/// Pieces and holes that were asked for and are not in the file yet: what has been read waits for what is before it.
pub(super) const WINDOW: usize = 2 * DEPTH as usize;

pub(super) struct Reading {
    size: u64,
    /// What was not asked for yet begins here.
    next: u64,
    /// What is known of it.
    known: VecDeque<Extent>,
    /// It is being asked after.
    looking: bool,
    /// What was asked for, in order.
    order: VecDeque<(u64, Extent)>,
    /// What of it has arrived.
    arrived: BTreeMap<u64, Vec<u8>>,
    to: SyncSender<Put>,
    /// On their way into the file.
    filing: usize,
    /// All was put there, and its end.
    ended: bool,
    /// Bytes that are in the file, zeros and all.
    pub(super) done: u64,
    /// Bytes that were read.
    pub(super) data: u64,
}

impl Reading {
    pub(super) fn new(size: u64, to: SyncSender<Put>) -> Self {
        Self {
            size,
            next: 0,
            known: VecDeque::new(),
            looking: false,
            order: VecDeque::new(),
            arrived: BTreeMap::new(),
            to,
            filing: 0,
            ended: false,
            done: 0,
            data: 0,
        }
    }

    /// The file has all of it, for good.
    pub(super) fn is_over(&self) -> bool {
        self.ended && self.filing == 0
    }

    /// Does what there is room for.
    pub(super) fn go_on(&mut self, desk: &mut Remote) -> Result<(), TargetError> {
        self.ask(desk)?;
        self.put()
    }

    fn ask(&mut self, desk: &mut Remote) -> Result<(), TargetError> {
        while desk.in_flight < usize::from(DEPTH) && self.order.len() + self.filing < WINDOW {
            let Some(Extent { len: Bytes(left), is_data }) = self.known.pop_front() else { break };
            let len = if is_data { left.min(PIECE as u64) } else { left };
            if len < left {
                self.known.push_front(Extent { len: Bytes(left - len), is_data });
            }
            if is_data {
                desk.ask(self.next, What::Read(len))?;
            }
            self.order.push_back((self.next, Extent { len: Bytes(len), is_data }));
            self.next += len;
        }
        if self.known.is_empty() && self.next < self.size && !self.looking {
            self.looking = true;
            desk.ask(self.next, What::Extents((self.size - self.next).min(MAX_EXTENTS)))?;
        }
        Ok(())
    }

    /// Up to the first piece that has not arrived.
    fn put(&mut self) -> Result<(), TargetError> {
        while let Some(&(at, Extent { len, is_data })) = self.order.front() {
            let put = match (is_data, self.arrived.remove(&at)) {
                (false, _) => Put::Zeros { len: len.0 },
                (true, Some(bytes)) => Put::Bytes { at, bytes },
                (true, None) => return Ok(()),
            };
            self.order.pop_front();
            self.data += if is_data { len.0 } else { 0 };
            self.file(put)?;
        }
        if self.done == self.size && !self.ended {
            self.ended = true;
            self.file(Put::End)?;
        }
        Ok(())
    }

    fn file(&mut self, put: Put) -> Result<(), TargetError> {
        self.filing += 1;
        self.to.send(put).map_err(|_| TargetError::Ended)
    }

    pub(super) fn found(&mut self, at: u64, found: Found) {
        match found {
            Found::Extents(extents) => (self.known, self.looking) = (extents.into(), false),
            Found::Bytes(bytes) => drop(self.arrived.insert(at, bytes)),
            Found::Done => {}
        }
    }

    pub(super) fn filed(&mut self, len: u64) {
        (self.filing, self.done) = (self.filing - 1, self.done + len);
    }
}
