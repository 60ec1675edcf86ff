//! A disk that the options name and that cannot be used: its node starts without it, says so, and serves the others.
//!
//! Only where another disk holds a store already. What is wrong with a node's first start are its options, and nobody waits for it.

use crate::{DiskPlan, Error, disks, head};
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

/// Takes the disk that cannot be used out of those of the reactors, and reactors that have no other; or says why none can be. With their memory
/// `on_files` a disk that hangs is waited for: what a life before this one wanted to read from it would come to these very files.
pub(crate) fn leave_out(reactors: &mut Vec<Vec<DiskPlan>>, why: Error, on_files: bool) -> Result<(), Error> {
    let hangs = matches!(&why, Error::Unreadable { source, .. } if head::is_silent(source));
    let Some(path) = unusable(&why).filter(|_| !(hangs && on_files)) else { return Err(why) };
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
    use crate::NodeOptions;
    use crate::options::tests::options;
    use crate::thread::{self, Plan};
    use conductor_model::ClusterId;
    use node_core::Mail;
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
        let missing = leave_out(&mut reactors, Error::Missing(gone.clone()), false);
        assert!(matches!(missing, Err(Error::Missing(_))), "{missing:?}");
        // Not one of its disks.
        let why = Error::Unreadable { path: PathBuf::from("elsewhere"), source: io::ErrorKind::NotFound.into() };
        assert!(matches!(leave_out(&mut reactors, why, false), Err(Error::Unreadable { .. })));
        let why = Error::Open { path: gone, source: OpenError::OtherCluster(7) };
        assert!(!is_of_one_disk(&why));
        assert!(matches!(leave_out(&mut reactors, why, false), Err(Error::Open { .. })));
        assert_eq!(reactors, all);
        fs::remove_dir_all(&dir).unwrap();
    }
    #[test]
    fn a_disk_that_hangs_is_left_out_unless_its_past_would_come_to_the_memory() {
        let dir = std::env::temp_dir().join(format!("trine-hangs-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let [good, bad] = ["good", "bad"].map(|name| dir.join(name));
        let options = NodeOptions { format: true, allow_buffered: true, ..options(1) };
        fs::write(&good, vec![0; usize::try_from(MIN_DISK_BYTES).unwrap()]).unwrap();
        let (disks, cluster) = ([plan(&good)], ClusterId(7));
        let (_mailbox, mail) = reactor::mailbox::<Mail>(16).unwrap();
        drop(thread::open(&Plan { options: &options, disks: &disks, lane: 0, cluster, process: 1 }, mail).unwrap());
        let mut reactors = vec![vec![plan(&bad)], vec![plan(&good)]];
        let hangs = || Error::Unreadable { path: bad.clone(), source: head::silent() };
        assert!(is_of_one_disk(&hangs()));
        let kept = leave_out(&mut reactors, hangs(), true);
        assert!(matches!(kept, Err(Error::Unreadable { .. })) && reactors.len() == 2, "{kept:?}");
        leave_out(&mut reactors, hangs(), false).unwrap();
        assert_eq!(reactors, [[plan(&good)]]);
        fs::remove_dir_all(&dir).unwrap();
    }
}
