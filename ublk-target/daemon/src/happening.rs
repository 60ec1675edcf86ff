//! What the main thread is told by the others.

use crate::control::Look;
use crate::error::TargetError;
use conductor_model::api::VolumeMap;
use std::sync::Arc;
use std::sync::mpsc::SyncSender;

pub(crate) enum Happening {
    /// A signal to end.
    Signal,
    /// Somebody asked for an end; `now`: without finishing what is in flight. Answered with why not, if not.
    Stop { now: bool, answer: SyncSender<Option<String>> },
    /// Somebody wants to look inside; `None` if there is no answer.
    Look(SyncSender<Option<Box<Look>>>),
    /// The conductor's newest map.
    Map(Arc<VolumeMap>),
    /// What is served was deleted, and nothing will ever be answered any more.
    Gone,
    /// What is to be held of a shared volume is, all of it; or some of it is another's. Of a volume that is not shared: at once.
    Held(bool),
    /// The device has been started; or it has not, and is gone, unless it was taken over.
    Started(Result<(), TargetError>),
    /// The device was told to end, and goes on, because.
    Stays(TargetError),
    /// The device waits for the next target.
    Left,
    /// What came of a load so far.
    Figures(Box<crate::bench::Figures>),
    /// What an image is to be told.
    Image(crate::image::Event),
    /// The front end is over.
    Ended(Result<(), TargetError>),
}
