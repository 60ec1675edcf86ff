//! A disk that the options name and that cannot be used: its node starts without it, says so, and serves the others.
//!
//! Only where another disk holds a store already. What is wrong with a node's first start are its options, and nobody waits for it.

use crate::{DiskPlan, Error, disks};
use node_store::OpenError;
use reactor::ReactorError;
use std::path::Path;

/// The disk, or the journal of one, that is all that is wrong: it is not there, cannot be read, does not read as it was written, or is not
/// to be formatted for what it carries. What belongs to another node or is in use is a mistake in the options.
fn unusable(why: &Error) -> Option<&Path> {
    match why {
        Error::Missing(path)
        | Error::NoJournal(path)
        | Error::Unreadable { path, .. }
        | Error::Marked { path, .. }
        | Error::Reactor(ReactorError::OpenDisk { path, .. })
        | Error::Open {
            path,
            source: OpenError::NotAStore | OpenError::Damaged(_) | OpenError::Disk(_) | OpenError::Truncated { .. },
        } => Some(path),
        _ => None,
    }
}

/// Whether a node may start without the disk for whose sake it could not.
pub(crate) fn is_of_one_disk(why: &Error) -> bool {
    unusable(why).is_some()
}

/// Takes the disk that cannot be used out of those of the reactors, and reactors that have no other; or says why none can be.
pub(crate) fn leave_out(reactors: &mut Vec<Vec<DiskPlan>>, why: Error) -> Result<(), Error> {
    let Some(path) = unusable(&why) else { return Err(why) };
    let is_it = |plan: &DiskPlan| plan.path == path || plan.journal.as_deref() == Some(path);
    let holds_a_store = |plan: &DiskPlan| matches!(disks::disk_at(&plan.path), Ok(Some(_)));
    let (it, others): (Vec<_>, Vec<_>) = reactors.iter().flatten().partition(|plan| is_it(plan));
    if it.is_empty() || !others.into_iter().any(holds_a_store) {
        return Err(why);
    }
    tracing::error!(
        %why,
        "A DISK CANNOT BE USED, and the node starts without it: bring it back and start the node again, or `trine disk replace` it"
    );
    reactors.iter_mut().for_each(|plans| plans.retain(|plan| !is_it(plan)));
    reactors.retain(|plans| !plans.is_empty());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use node_store::journaled::MIN_DISK_BYTES;
    use std::path::PathBuf;
    use std::{fs, io};

    fn plan(path: &Path) -> DiskPlan {
        DiskPlan { path: path.to_path_buf(), create: None, journal: None, journal_size: None }
    }

    #[test]
    fn a_first_start_and_mistakes_in_the_options_are_refused() {
        let dir = std::env::temp_dir().join(format!("trine-without-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let [blank, gone] = ["blank", "gone"].map(|name| dir.join(name));
        fs::write(&blank, vec![0; usize::try_from(MIN_DISK_BYTES).unwrap()]).unwrap();
        let mut reactors = vec![vec![plan(&blank), plan(&gone)]];
        let all = reactors.clone();
        // No other disk holds a store.
        let missing = leave_out(&mut reactors, Error::Missing(gone.clone()));
        assert!(matches!(missing, Err(Error::Missing(_))), "{missing:?}");
        // Not one of its disks.
        let why = Error::Unreadable { path: PathBuf::from("elsewhere"), source: io::ErrorKind::NotFound.into() };
        assert!(matches!(leave_out(&mut reactors, why), Err(Error::Unreadable { .. })));
        let why = Error::Open { path: gone, source: OpenError::OtherCluster(7) };
        assert!(!is_of_one_disk(&why));
        assert!(matches!(leave_out(&mut reactors, why), Err(Error::Open { .. })));
        assert_eq!(reactors, all);
        fs::remove_dir_all(&dir).unwrap();
    }
}
