//! A state that was made again, put into etcd where there is none (`trine conductor recover`).
//!
//! Whoever does it leads meanwhile: a conductor that leads is in the way, nobody else can make a cluster under the same prefix at the same
//! time, and what is not written by the end of the reign never is. What is there already is not written over. A crash leaves nothing, or
//! what the next leader finishes (`redo`): never records of which it could not be told whether they are all.

use super::etcd::{Etcd, Reign, encoded};
use super::restore;
use crate::clock::uptime;
use crate::{Error, EtcdStore, limits};
use conductor_model::{Conductor, Millis};
use tokio::time::sleep;

/// What stands in the place of a leader's address meanwhile: no client has that in its list.
const US: &str = "trine conductor recover";

/// Makes these the first records under the prefix.
pub(crate) async fn found(at: &EtcdStore, model: &Conductor) -> Result<(), Error> {
    let members = Etcd::members(at)?;
    // `members` refuses an empty list.
    let mut n = 0;
    let reign = loop {
        match lead(&members[n]).await {
            Err(error @ Error::Etcd { .. }) if n + 1 < members.len() => {
                tracing::warn!(%error, "asking the next member");
                n += 1;
            }
            led => break led?,
        }
    };
    let done = tokio::select! {
        lost = reign.keep() => Err(lost),
        done = fill(&reign, model) => done,
    };
    reign.abdicate().await;
    done
}

/// Waits for the end of a conductor's lease that is not kept any more, not for that of one that is.
async fn lead(etcd: &Etcd) -> Result<Reign, Error> {
    let until = uptime() + 2 * limits::LEASE;
    loop {
        if let Some(reign) = etcd.campaign(US).await? {
            return Ok(reign);
        }
        if let Some(leader) = etcd.leader().await?.filter(|_| uptime() > until) {
            return Err(Error::Led { place: etcd.place.to_string(), leader });
        }
        sleep(limits::LOOK_EVERY).await;
    }
}

async fn fill(reign: &Reign, model: &Conductor) -> Result<(), Error> {
    reign.guarded.take_over().await?;
    let etcd = reign.guarded.etcd();
    let format = etcd.get("format").await?;
    let records = etcd.all("record/").await?;
    if format.is_some() || !records.is_empty() {
        let count = records.len();
        let format = format.and_then(|text| String::from_utf8_lossy(&text).parse().ok());
        let whose = match restore(&etcd.place, format, records, Millis(0)) {
            Ok(Some(found)) => format!("cluster {} at commit {}", found.cluster(), found.commit()),
            _ => format!("{count} records of no whole state"),
        };
        return Err(Error::Occupied { place: etcd.place.to_string(), whose });
    }
    let all: Vec<_> = model.snapshot().into_iter().map(|record| (record.key(), Some(record))).collect();
    reign.guarded.found(&encoded(&all)?).await
}
