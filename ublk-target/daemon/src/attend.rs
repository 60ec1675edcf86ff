//! What a target does with what it is told, from the moment its front end is there to its end.
//!
//! ```text
//!            a device's START_DEV is back,
//!            or NBD has its ranges                   NBD: asked to end        its time is over, or asked twice
//!   Starting ───────────────────────────▶ Serving ──────────────────▶ Draining ──────────────────▶ Failing ─▶ over
//!      │ asked to end: every request fails  │ ▲
//!      │                  a device: asked   ▼ │ it is in use, and was not told to fail everything
//!      └────────────────────────────────▶ Ending ─▶ over, or left to the next target
//! ```
//!
//! Nothing here waits for a device: its own thread does, and says what came of it.

use crate::control::Look;
use crate::error::TargetError;
use crate::happening::Happening;
use crate::limits::{DEVICE_GIVE_UP, DRAIN, GIVE_UP};
use crate::nbd::{Mail, NbdLane};
use crate::record::Record;
use crate::ublk::{self, Order, UblkFront};
use crate::view::TargetView;
use conductor_model::api::VolumeMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender};
use std::time::Instant;

/// What the process serves.
pub(crate) enum Front {
    Nbd(NbdLane),
    Ublk(UblkFront),
}

/// What is left of a target.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Over {
    /// Nothing.
    Detached,
    /// The device, which waits for the next target; so does the volume.
    Left,
}

/// How it ended.
pub(crate) struct End {
    pub(crate) over: Over,
    pub(crate) result: Result<(), TargetError>,
}

/// Who asked for an end, and is to hear why not, if not.
type Asked = SyncSender<Option<String>>;

enum Stage {
    Starting,
    Serving,
    /// What is in flight is finished, until then.
    Draining(Instant),
    /// It is failed, and the lane ends by then.
    Failing(Instant),
    /// The device was told to end.
    Ending(Ending),
}

struct Ending {
    /// What the device's thread has not answered yet.
    orders: u32,
    asked: Vec<Asked>,
    /// If it is in use, it is left to the next target.
    leave: bool,
    /// It is being left.
    leaving: bool,
    /// It was never started, or fails everything: there is nothing that it could wait for.
    until: Option<Instant>,
}

/// One front end, seen through to its end.
pub(crate) struct Attending<'a, R> {
    front: &'a mut Front,
    record: &'a Record,
    /// The device is another target's, who made it.
    recovered: bool,
    /// Told once, when it serves.
    ready: Option<R>,
    stage: Stage,
    /// What it was to hold of a shared volume was another's.
    taken: bool,
}

impl<'a, R: FnOnce(&Record)> Attending<'a, R> {
    pub(crate) fn new(front: &'a mut Front, record: &'a Record, recovered: bool, ready: R) -> Self {
        Self { front, record, recovered, ready: Some(ready), stage: Stage::Starting, taken: false }
    }

    pub(crate) fn run(mut self, heard: &Receiver<Happening>) -> End {
        if matches!(self.front, Front::Nbd(lane) if !lane.shared) {
            self.serves();
        }
        loop {
            let end = match self.deadline() {
                None => heard.recv().map_err(|_| RecvTimeoutError::Disconnected),
                Some(until) => heard.recv_timeout(until.saturating_duration_since(Instant::now())),
            };
            let end = match end {
                Ok(happening) => self.on(happening),
                Err(RecvTimeoutError::Timeout) => self.late(),
                Err(RecvTimeoutError::Disconnected) => Some(self.left(Err(TargetError::Ended))),
            };
            if let Some(end) = end {
                self.answer(None);
                return end;
            }
        }
    }

    fn serves(&mut self) {
        let Record { volume, device, generation, .. } = self.record;
        tracing::info!(volume, device, %generation, "attached");
        self.stage = Stage::Serving;
        if let Some(ready) = self.ready.take() {
            ready(self.record);
        }
    }

    fn on(&mut self, happening: Happening) -> Option<End> {
        match happening {
            Happening::Map(map) => self.front.map(&map),
            Happening::Gone => self.front.gone(),
            Happening::Look(answer) => {
                let starting = matches!(self.stage, Stage::Starting);
                let look = self.front.look();
                let look = look.map(|target| Box::new(Look { record: self.record.clone(), target, starting }));
                let _gone = answer.send(look);
            }
            Happening::Held(true) if matches!(self.stage, Stage::Starting) => self.serves(),
            Happening::Held(true) => tracing::info!("its ranges are held"),
            Happening::Held(false) if matches!(self.stage, Stage::Starting) => {
                self.taken = true;
                return self.stop(true, None);
            }
            Happening::Held(false) => {
                tracing::error!(
                    "a range is lost to another client of the shared volume: requests that touch it fail from now on"
                );
            }
            Happening::Signal => return self.stop(false, None),
            Happening::Stop { now, answer } => return self.stop(now, Some(answer)),
            Happening::Started(Ok(())) => {
                if matches!(self.stage, Stage::Starting) {
                    self.serves();
                }
            }
            Happening::Started(Err(error)) => return Some(self.never_served(error)),
            Happening::Stays(error) => return self.stays(error),
            Happening::Left => return Some(self.left(self.served())),
            // Of a load or an image, which is no front end.
            Happening::Figures(_) | Happening::Image(_) => {}
            Happening::Ended(Ok(())) => return Some(End { over: Over::Detached, result: self.served() }),
            // What is left of a queue that failed is for the next target.
            Happening::Ended(Err(error @ TargetError::Queue { .. })) => return Some(self.left(Err(error))),
            Happening::Ended(Err(error)) => return Some(End { over: Over::Detached, result: Err(error) }),
        }
        None
    }

    /// The next step to the end. An NBD lane that is asked twice ends at once; a device, if the second one says so.
    fn stop(&mut self, now: bool, asked: Option<Asked>) -> Option<End> {
        match self.front {
            Front::Nbd(lane) => {
                match self.stage {
                    Stage::Starting | Stage::Serving if !now => {
                        tracing::info!("detaching");
                        lane.send(Mail::Stop);
                        self.stage = Stage::Draining(Instant::now() + DRAIN);
                    }
                    Stage::Failing(_) => {}
                    _ => self.fail(),
                }
                // It ends in any case.
                asked.inspect(|asked| drop(asked.send(None)));
                None
            }
            Front::Ublk(device) => {
                let signal = asked.is_none();
                // What nobody could use yet is used by nobody; the kernel's own requests need not be answered well.
                let now = now || matches!(self.stage, Stage::Starting) && !self.recovered;
                if now {
                    device.refuse();
                }
                let until = now.then(|| Instant::now() + DEVICE_GIVE_UP);
                let (orders, asked) = (1, asked.into_iter().collect());
                match &mut self.stage {
                    Stage::Ending(ending) => {
                        ending.asked.extend(asked);
                        ending.leave |= signal;
                        if !now || ending.until.is_some() {
                            return None;
                        }
                        (ending.orders, ending.until) = (ending.orders + 1, until);
                    }
                    stage => {
                        tracing::info!("detaching");
                        *stage = Stage::Ending(Ending { orders, asked, leave: signal, leaving: false, until });
                    }
                }
                self.order(Order::Stop { now })
            }
        }
    }

    /// The device was not stopped.
    fn stays(&mut self, error: TargetError) -> Option<End> {
        let Stage::Ending(ending) = &mut self.stage else { return None };
        ending.orders = ending.orders.saturating_sub(1);
        if ending.orders > 0 {
            return None;
        }
        let refuses = ending.until.is_some();
        if ending.leave {
            return self.leave(&error);
        }
        if self.ready.is_some() && !self.recovered {
            return Some(self.left(Err(error)));
        }
        self.answer(Some(&error));
        if refuses {
            // It fails everything from now on; under the next target it does not.
            return self.leave(&error);
        }
        self.serves();
        None
    }

    /// Nothing is lost: the next target goes on with it.
    fn leave(&mut self, error: &TargetError) -> Option<End> {
        tracing::warn!(%error, "the device is left to the next target");
        if let Stage::Ending(ending) = &mut self.stage {
            // From here on it is quick.
            ending.leaving = true;
            ending.until = Some(Instant::now() + DEVICE_GIVE_UP);
        }
        self.order(Order::Leave)
    }

    fn order(&mut self, order: Order) -> Option<End> {
        let Front::Ublk(device) = &self.front else { return None };
        // A thread that is over has said so, unless it broke.
        if device.order(order) { None } else { Some(self.left(Err(TargetError::Ended))) }
    }

    fn deadline(&self) -> Option<Instant> {
        match &self.stage {
            Stage::Starting | Stage::Serving => None,
            Stage::Draining(until) | Stage::Failing(until) => Some(*until),
            Stage::Ending(ending) => ending.until,
        }
    }

    fn late(&mut self) -> Option<End> {
        match &self.stage {
            Stage::Draining(_) => {
                self.fail();
                None
            }
            Stage::Ending(ending) => {
                // What is left to the next target has its users; nobody uses what was failed, or was never started.
                if !ending.leaving
                    && let Front::Ublk(device) = &self.front
                    && device.wrest(self.record)
                {
                    tracing::warn!("the kernel did not let go of the device, which was taken from it");
                    return Some(End { over: Over::Detached, result: self.served() });
                }
                let reason = format!("the kernel does not let go of {}", self.record.device);
                Some(self.left(Err(TargetError::StillRuns { volume: self.record.volume.clone(), reason })))
            }
            _ => Some(End { over: Over::Detached, result: Err(TargetError::Ended) }),
        }
    }

    /// Fails what is in flight in an NBD lane.
    fn fail(&mut self) {
        if let Front::Nbd(lane) = self.front {
            tracing::warn!("failing what is still in flight");
            lane.send(Mail::Abort);
        }
        self.stage = Stage::Failing(Instant::now() + GIVE_UP);
    }

    fn answer(&mut self, error: Option<&TargetError>) {
        if let Stage::Ending(ending) = &mut self.stage {
            for asked in ending.asked.drain(..) {
                // Who asked may have given up.
                let _gone = asked.send(error.map(ToString::to_string));
            }
        }
    }

    /// An end that was asked for: as good as one, if it ever served.
    fn served(&self) -> Result<(), TargetError> {
        if self.taken {
            return Err(TargetError::RangeTaken(self.record.volume.clone()));
        }
        if self.ready.is_some() { Err(stopped(&self.record.volume, self.recovered)) } else { Ok(()) }
    }

    /// The device did not start.
    fn never_served(&self, error: TargetError) -> End {
        let asked = matches!(self.stage, Stage::Ending(_));
        let result = Err(if asked { stopped(&self.record.volume, self.recovered) } else { error });
        let stays = self.recovered || ublk::is_there(self.record);
        End { over: if stays { Over::Left } else { Over::Detached }, result }
    }

    fn left(&self, result: Result<(), TargetError>) -> End {
        End { over: Over::Left, result }
    }
}

/// It was told to end before it served.
pub(crate) fn stopped(volume: &str, left: bool) -> TargetError {
    let left = if left {
        "what was attached before is: `trine attach` goes on with it, `trine detach` ends it"
    } else {
        "nothing is left of it"
    };
    TargetError::Stopped { volume: volume.to_owned(), left }
}

impl Front {
    fn look(&mut self) -> Option<TargetView> {
        match self {
            Self::Nbd(lane) => lane.look(),
            Self::Ublk(device) => Some(device.look()),
        }
    }

    fn gone(&mut self) {
        match self {
            Self::Nbd(lane) => lane.send(Mail::Gone),
            Self::Ublk(device) => device.gone(),
        }
    }

    fn map(&mut self, map: &Arc<VolumeMap>) {
        match self {
            Self::Nbd(lane) => lane.send(Mail::Map(Box::new((**map).clone()))),
            Self::Ublk(device) => device.map(map),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use conductor_model::{AttachGeneration, ClusterId, VolumeId};
    use std::sync::mpsc::{channel, sync_channel};

    /// A device that serves is told to end so often, and its thread says that it stays, so often and then once more something else.
    fn detach(stops: &[bool], last: Happening) -> (Vec<Order>, Vec<bool>, Over) {
        let record = Record {
            volume: "db".into(),
            snapshot: None,
            cluster: ClusterId(1),
            volume_id: VolumeId(1),
            pid: 1,
            started: 1,
            since_ms: 1,
            device: "/dev/ublkb3".into(),
            client: "host/db".into(),
            generation: AttachGeneration(3),
            read_only: false,
            starting: false,
        };
        let (device, ordered) = UblkFront::without_queues();
        let (tell, heard) = channel();
        let mut answers = Vec::new();
        tell.send(Happening::Started(Ok(()))).unwrap();
        for &now in stops {
            let (answer, answered) = sync_channel(1);
            answers.push(answered);
            tell.send(Happening::Stop { now, answer }).unwrap();
            tell.send(Happening::Stays(TargetError::Ended)).unwrap();
        }
        tell.send(last).unwrap();
        let end = Attending::new(&mut Front::Ublk(device), &record, false, |_: &Record| {}).run(&heard);
        assert!(end.result.is_ok());
        let refused = answers.iter().map(|answered| answered.recv().unwrap().is_some()).collect();
        (ordered.try_iter().collect(), refused, end.over)
    }

    #[test]
    fn a_device_that_stays_serves_on_unless_it_was_told_to_fail_everything() {
        let (asked, forced) = (Order::Stop { now: false }, Order::Stop { now: true });
        let seen = detach(&[false, false], Happening::Ended(Ok(())));
        assert_eq!(seen, (vec![asked, asked], vec![true, true], Over::Detached));
        let seen = detach(&[false, true], Happening::Left);
        assert_eq!(seen, (vec![asked, forced, Order::Leave], vec![true, true], Over::Left));
    }
}
