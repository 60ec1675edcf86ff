//! A cluster with several conductors, on one etcd.

use super::spread::{node_args, text, write_key};
use super::{Cluster, LONG, Shape, new_dir, wait_until};
use crate::command::binary;
use crate::etcd::Etcd;
use crate::ports::free_ports;
use crate::process::Process;
use crate::watcher::Watcher;
use anyhow::{Context, Result, ensure};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::path::Path;
use std::time::Duration;

impl Cluster {
    /// Starts one with so many conductors, each process on a port of its own, and waits until all of it is there.
    pub fn with_conductors(shape: Shape, conductors: usize, etcd: &Etcd) -> Result<Self> {
        let dir = new_dir(&std::env::temp_dir())?;
        let watcher = Watcher::start(&dir, "")?;
        write_key(&dir)?;
        let places: Vec<_> = free_ports(conductors + shape.nodes)?.iter().map(ToString::to_string).collect();
        let (led, nodes) = places.split_at(conductors);
        let addresses = led.join(",");
        fs::write(dir.join("conductor.addr"), format!("{addresses}\n"))?;
        let spawn = |name: &str, args: Vec<OsString>, log: &Path| {
            Process::spawn(name, std::iter::once(binary()?.into()).chain(args).collect(), &dir, log)
        };
        let conductor = |n: usize| {
            // Its watcher knows a process by a file of the cluster that it names.
            let mut args = text(&["conductor", "run", "--listen", &led[n], "--store", &format!("etcd:{}", etcd.url())]);
            args.extend(text(&["--etcd-prefix", &format!("{}/", dir.display()), "--key-file"]));
            args.push(dir.join("cluster.key").into());
            args.extend(etcd.options().into_iter().map(OsString::from));
            spawn(&format!("conductor{n}"), args, &dir.join(format!("conductor{n}.log")))
        };
        let first = conductor(0)?;
        let more = (1..conductors).map(conductor).collect::<Result<_>>()?;
        let node = |n: usize| {
            let place = dir.join(format!("n{}", n + 1));
            fs::create_dir_all(&place)?;
            spawn(&format!("n{}", n + 1), node_args(&dir, shape, n, &nodes[n], &addresses), &place.join("node.log"))
        };
        let nodes = (0..shape.nodes).map(node).collect::<Result<_>>()?;
        let targets = BTreeMap::new();
        let this = Self { dir, shape, conductor: first, more, nodes, targets, network: None, _watcher: watcher };
        this.wait_alive(shape.nodes)?;
        Ok(this)
    }

    /// One of several conductors.
    pub fn conductor_of(&mut self, n: usize) -> &mut Process {
        match n.checked_sub(1) {
            None => &mut self.conductor,
            Some(n) => &mut self.more[n],
        }
    }

    /// Where one of several conductors is.
    pub fn conductor_address_of(&self, n: usize) -> Result<String> {
        let all = self.conductor_address()?;
        Ok(all.split(',').nth(n).context("no such conductor")?.to_owned())
    }

    /// Which of several conductors lead, as they see it.
    pub fn leaders(&self) -> Result<Vec<usize>> {
        let list = self.json(&["conductor", "list"])?;
        let rows = list.as_array().context("no list")?;
        Ok(rows.iter().enumerate().filter(|(_, row)| row["role"] == "leader").map(|(n, _)| n).collect())
    }

    /// Waits until exactly one leads, and says which.
    pub fn leader(&self) -> Result<usize> {
        let mut leaders = Vec::new();
        wait_until("one conductor leads", LONG, || {
            leaders = self.leaders()?;
            Ok(leaders.len() == 1)
        })?;
        Ok(leaders[0])
    }

    /// Waits until another one than `former` leads; says which, and how long that took.
    pub fn next_leader(&self, former: usize) -> Result<(usize, Duration)> {
        let mut leaders = Vec::new();
        let took = wait_until("another conductor leads", LONG, || {
            leaders = self.leaders()?;
            Ok(leaders.len() == 1 && leaders[0] != former)
        })?;
        Ok((leaders[0], took))
    }

    /// All events, which must be all there are: numbered from 1, none left out, none twice.
    pub fn all_events(&self) -> Result<Vec<serde_json::Value>> {
        let events = self.json(&["events"])?.as_array().context("no events")?.clone();
        for (n, event) in events.iter().enumerate() {
            ensure!(event["number"] == n as u64 + 1, "event {} is {event}", n + 1);
        }
        Ok(events)
    }
}
