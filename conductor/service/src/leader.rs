//! Several conductors on one etcd: one leads, the others wait.
//!
//! ```text
//!            nobody leads, and we made the key             records read
//! follower ────────────────────────────────────► taking over ─────────► leading
//!     ▲                                              │                     │
//!     └──────────────────────────────────────────────┴─────────────────────┘
//!        the lease may have run out · another's key · an operation of etcd's failed or was not answered
//! ```
//! A reign begins as a restart does: from the records, judging nobody before it has listened. Whatever ends one, the next begins when etcd
//! says so; only records that make no sense end the process. All goes to one member of etcd; after a failure to the next one.

use crate::clock::Clock;
use crate::front::Front;
use crate::store::etcd::{Etcd, Reign};
use crate::{Error, EtcdStore, Leading, limits, wait};
use tokio::sync::watch;
use tokio::time::sleep;

/// Leads whenever it can, until `stop`; a reign then goes on until `drained`.
pub(crate) async fn run(
    at: &EtcdStore,
    front: &Front,
    leading: &Leading,
    clock: Clock,
    stop: &watch::Receiver<bool>,
    drained: &watch::Receiver<bool>,
) -> Result<(), Error> {
    let mut members = Members::new(Etcd::members(at)?);
    loop {
        let reign = tokio::select! {
            () = wait(stop.clone()) => return Ok(()),
            reign = become_leader(&mut members, front) => reign,
        };
        tracing::info!(address = front.address(), "leading: reading the records");
        let ended = rule(&reign, front, leading, clock, drained).await;
        front.follow(None, None);
        reign.abdicate().await;
        match ended {
            Ok(()) => return Ok(()),
            Err(error @ (Error::Deposed(_) | Error::Etcd { .. })) => {
                tracing::warn!(%error, "not leading any more");
                members.next();
            }
            Err(error) => return Err(error),
        }
    }
}

/// etcd's members, one of which is used.
struct Members {
    /// Each with its last trouble, which is said once.
    all: Vec<(Etcd, String)>,
    at: usize,
}

impl Members {
    fn new(all: Vec<Etcd>) -> Self {
        Self { all: all.into_iter().map(|etcd| (etcd, String::new())).collect(), at: 0 }
    }

    fn next(&mut self) {
        self.at = (self.at + 1) % self.all.len().max(1);
    }
}

async fn become_leader(members: &mut Members, front: &Front) -> Reign {
    let mut followed = None;
    loop {
        let (etcd, trouble) = &mut members.all[members.at];
        let looked = async {
            Ok::<_, Error>(match etcd.leader().await? {
                Some(leader) => Err(Some(leader)),
                None => etcd.campaign(front.address()).await?.ok_or(None),
            })
        };
        match looked.await {
            Ok(Ok(reign)) => return reign,
            Ok(Err(leader)) => {
                trouble.clear();
                if let Some(leader) = leader {
                    if followed.as_ref() != Some(&leader) {
                        tracing::info!(%leader, "following");
                    }
                    followed = Some(leader.clone());
                    front.follow(Some(leader), None);
                }
            }
            Err(error) => {
                let why = error.to_string();
                if *trouble != why {
                    tracing::warn!(%error, "waiting for etcd");
                    trouble.clone_from(&why);
                }
                front.follow(None, Some(why));
                members.next();
            }
        }
        sleep(limits::LOOK_EVERY).await;
    }
}

/// One reign, to its end; `Ok` if the process is to end.
async fn rule(
    reign: &Reign,
    front: &Front,
    leading: &Leading,
    clock: Clock,
    drained: &watch::Receiver<bool>,
) -> Result<(), Error> {
    let mut validity = reign.validity();
    let over = async {
        tokio::select! {
            lapsed = validity.lapsed() => lapsed,
            lost = reign.keep() => lost,
        }
    };
    tokio::pin!(over);
    let model = tokio::select! {
        biased;
        lost = &mut over => return Err(lost),
        read = reign.take_over(leading.existing, || clock.now()) => read?,
    };
    let until = async {
        tokio::select! {
            () = wait(drained.clone()) => Ok(()),
            lost = &mut over => Err(lost),
        }
    };
    leading.lead(front, reign.store(), model, clock, Some(reign.validity()), until, || ()).await
}
