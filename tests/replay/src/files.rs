//! Files on a filesystem on the volume: made, removed, extended, replaced, each synced, and what may be found of them after a power loss.
//!
//! One thread does all of it, so that what was begun and not acknowledged is one deed at most.

use crate::Random;
use crate::ledger::{Begun, Deed, Ledger, Moment};
use crate::random::mix;
use anyhow::{Context, Result, bail, ensure};
use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

/// Files kept; then one is removed for each made.
const KEPT: usize = 40;
/// The largest file made, in bytes.
const LARGEST: u64 = 96 << 10;
/// The growing file's end; then it is left alone.
const GROWN: u64 = 2 << 20;
const GROWING: &str = "growing";
const CURRENT: &str = "current";

/// Bytes `from..to` of the content of this number.
fn content(id: u64, from: u64, to: u64) -> Vec<u8> {
    let byte = |at: u64| mix(mix(id).wrapping_add(at / 8)).to_le_bytes()[(at % 8) as usize];
    (from..to).map(byte).collect()
}

fn name(id: u64) -> String {
    format!("file-{id}")
}

/// Makes and changes files until told to stop.
///
/// # Errors
/// An operation failed, or the ledger cannot be written.
pub fn write(dir: &Path, seed: u64, ledger: &Ledger, stop: &AtomicBool) -> Result<()> {
    let mut random = Random::new(seed);
    let mut kept: Vec<u64> = Vec::new();
    let mut grown = 0;
    while !stop.load(Ordering::Relaxed) {
        let deed = match random.below(8) {
            0 | 1 if grown < GROWN => Deed::Grow { bytes: grown + 1 + random.below(16 << 10) },
            2 | 3 => Deed::Replace { bytes: 1 + random.below(8 << 10) },
            _ if kept.len() >= KEPT => Deed::Remove { file: kept[usize::try_from(random.below(KEPT as u64))?] },
            _ => Deed::Create { bytes: random.below(LARGEST) },
        };
        let id = ledger.begin(deed)?;
        act(dir, id, deed, grown).with_context(|| format!("{}: {deed:?} failed", dir.display()))?;
        ledger.acknowledge(id)?;
        match deed {
            Deed::Grow { bytes } => grown = bytes,
            Deed::Create { .. } => kept.push(id),
            Deed::Remove { file } => kept.retain(|kept| *kept != file),
            _ => {}
        }
    }
    Ok(())
}

fn act(dir: &Path, id: u64, deed: Deed, grown: u64) -> Result<()> {
    let synced = |path: PathBuf, bytes: u64| -> Result<()> {
        let mut file = File::create(path)?;
        file.write_all(&content(id, 0, bytes))?;
        Ok(file.sync_all()?)
    };
    match deed {
        Deed::Create { bytes } => synced(dir.join(name(id)), bytes)?,
        Deed::Remove { file } => fs::remove_file(dir.join(name(file)))?,
        Deed::Grow { bytes } => {
            let mut file = OpenOptions::new().append(true).create(true).open(dir.join(GROWING))?;
            file.write_all(&content(0, grown, bytes))?;
            file.sync_all()?;
        }
        Deed::Replace { bytes } => {
            let next = dir.join("next");
            synced(next.clone(), bytes)?;
            fs::rename(next, dir.join(CURRENT))?;
        }
        Deed::Write { .. } | Deed::Zero { .. } => bail!("no deed of files"),
    }
    Ok(File::open(dir)?.sync_all()?)
}

/// Compares the files with what they may be; says how many there are that must be.
///
/// # Errors
/// A file is missing, is there although it was removed, or holds what it cannot.
pub fn check(dir: &Path, moment: &Moment) -> Result<usize> {
    let mut files: HashMap<u64, (u64, bool, bool)> = HashMap::new();
    let (mut length, mut longest) = (0, 0);
    let mut current: Vec<Option<Begun>> = vec![None];
    for begun in &moment.begun {
        let sure = moment.is_sure(begun.id);
        match begun.deed {
            Deed::Create { bytes } => drop(files.insert(begun.id, (bytes, sure, true))),
            Deed::Remove { file } => {
                let file = files.get_mut(&file).context("the ledger removes a file that it did not make")?;
                file.1 = false;
                file.2 &= !sure;
            }
            Deed::Grow { bytes } => {
                longest = bytes;
                length = if sure { bytes } else { length };
            }
            Deed::Replace { .. } => {
                if sure {
                    current.clear();
                }
                current.push(Some(*begun));
            }
            Deed::Write { .. } | Deed::Zero { .. } => {}
        }
    }
    let mut must = 0;
    for (id, (bytes, there, may)) in files {
        let is = read(dir, &name(id))?;
        if there {
            must += 1;
            ensure!(is.as_deref() == Some(&content(id, 0, bytes)[..]), "{}: {}", name(id), said(is.as_deref(), bytes));
        } else if !may {
            ensure!(is.is_none(), "{} was removed and is there", name(id));
        }
    }
    let is = read(dir, GROWING)?.unwrap_or_default();
    ensure!(
        (length..=longest).contains(&(is.len() as u64)),
        "{GROWING} has {} bytes, not {length} to {longest}",
        is.len()
    );
    let sure = usize::try_from(length)?;
    ensure!(is[..sure] == content(0, 0, length), "{GROWING} differs within its {length} bytes that were acknowledged");
    let is = read(dir, CURRENT)?;
    let may = current.iter().any(|state| match (state, &is) {
        (None, None) => true,
        (Some(Begun { id, deed: Deed::Replace { bytes } }), Some(is)) => *is == content(*id, 0, *bytes),
        _ => false,
    });
    ensure!(may, "{CURRENT} is none of what it may be: {current:?}");
    Ok(must + usize::from(length > 0) + usize::from(!current.contains(&None)))
}

fn said(is: Option<&[u8]>, bytes: u64) -> String {
    match is {
        None => "was acknowledged and is not there".to_owned(),
        Some(is) if is.len() as u64 != bytes => format!("has {} bytes, not {bytes}", is.len()),
        Some(_) => "differs from what was acknowledged".to_owned(),
    }
}

fn read(dir: &Path, name: &str) -> Result<Option<Vec<u8>>> {
    match fs::read(dir.join(name)) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| format!("cannot read {name}")),
    }
}
