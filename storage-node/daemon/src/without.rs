//! A disk that the options name and that cannot be used: its node starts without it, says so, and serves the others.
//!
//! Only where another disk holds a store already. What is wrong with a node's first start are its options, and nobody waits for it.

use crate::{DiskPlan, Error, disks, head};
use node_store::OpenError;
use reactor::ReactorError;
use std::path::Path;

/// The disk, or the journal of one, that is all that is wrong: it is not there, cannot be read or written, does not read as it was written, or
/// is not to be formatted for what it carries. What belongs to another node or is in use is a mistake in the options.
///
/// A journal that is nobody's may be a wrong path as well, but more often it is memory that lost what it had, or a device that was replaced; its
/// disk is neither read nor written either way, and whoever mistook a path reads so in the log. One that is another store's, or is named for a
/// store without one, is there and whole: that is a mistake.
fn unusable(why: &Error) -> Option<&Path> {
    match why {
        Error::Missing(path)
        | Error::NoJournal(path)
        | Error::Unreadable { path, .. }
        | Error::Marked { path, .. }
        | Error::JournalEmpty { journal: path, .. }
        | Error::JournalShort { journal: path, .. }
        | Error::Label { path, .. }
        | Error::Reactor(ReactorError::OpenDisk { path, .. } | ReactorError::MapDisk { path, .. })
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
    // A journal that is too short for a store that is still to be made: somebody has said how large it is to be.
    let mistaken = matches!(why, Error::JournalShort { .. }) && !it.iter().all(|plan| holds_a_store(plan));
    if it.is_empty() || mistaken || !others.into_iter().any(holds_a_store) {
        return Err(why);
    }
    let left_out: Vec<_> = it.iter().map(|plan| plan.path.display().to_string()).collect();
    tracing::error!(
        %why,
        disk = left_out.join(", "),
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
    use std::fs::File;
    use std::os::unix::fs::FileExt;
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

    /// Opens a reactor on these disks, making stores where there are none.
    fn open(disks: &[DiskPlan]) -> Result<(), Error> {
        let options = NodeOptions { format: true, allow_buffered: true, ..options(1) };
        let (_mailbox, mail) = reactor::mailbox::<Mail>(16).unwrap();
        thread::open(&Plan { options: &options, disks, lane: 0, cluster: ClusterId(7), process: 1 }, mail).map(drop)
    }

    #[test]
    fn a_journal_that_lost_what_it_had_costs_its_disk_and_not_the_others() {
        let dir = std::env::temp_dir().join(format!("trine-lost-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let [good, bad, new] = ["good", "bad", "new"].map(|name| dir.join(name));
        for path in [&good, &bad, &new] {
            fs::write(path, vec![0; usize::try_from(MIN_DISK_BYTES).unwrap()]).unwrap();
        }
        let journals = ["journal", "other"].map(|name| dir.join(name));
        journals.iter().for_each(|path| fs::write(path, vec![0; 9 << 20]).unwrap());
        let with = |disk: &Path, n: usize| DiskPlan { journal: Some(journals[n].clone()), ..plan(disk) };
        let (bad, good) = (with(&bad, 0), plan(&good));
        open(std::slice::from_ref(&bad)).unwrap();
        open(std::slice::from_ref(&good)).unwrap();
        let left_out = |bad: &DiskPlan| {
            let why = open(std::slice::from_ref(bad)).unwrap_err();
            let said = why.to_string();
            let mut reactors = vec![vec![bad.clone()], vec![good.clone()]];
            let left_out = leave_out(&mut reactors, why, false).is_ok();
            assert_eq!(reactors == [[good.clone()]], left_out);
            (left_out, said)
        };
        let whole = fs::read(&journals[0]).unwrap();
        let shorten = |path: &Path, bytes| File::options().write(true).open(path).unwrap().set_len(bytes).unwrap();
        shorten(&journals[0], 8 << 20);
        let (short, said) = left_out(&bad);
        assert!(short && said.contains("has room for"), "{said}");
        shorten(&journals[0], 0);
        let (unmapped, said) = left_out(&bad);
        assert!(unmapped && said.contains("cannot map"), "{said}");
        fs::write(&journals[0], vec![0; 9 << 20]).unwrap();
        let (empty, said) = left_out(&bad);
        assert!(empty && said.contains("is nobody's"), "{said}");
        let unlabelled = Error::Label { path: journals[0].clone(), source: io::ErrorKind::StorageFull.into() };
        assert!(is_of_one_disk(&unlabelled));
        fs::write(&journals[0], whole).unwrap();
        open(std::slice::from_ref(&bad)).unwrap();
        // Mistakes: another one's journal, none, and one too short for what is to be made.
        open(&[with(&new, 1)]).unwrap();
        for (mistake, says) in
            [(with(&bad.path, 1), "belongs to store"), (plan(&bad.path), "keeps its journal elsewhere")]
        {
            let (left_out, said) = left_out(&mistake);
            assert!(!left_out && said.contains(says), "{said}");
        }
        for path in [&new, &journals[1]] {
            let bytes = fs::metadata(path).unwrap().len();
            fs::write(path, vec![0; usize::try_from(bytes).unwrap()]).unwrap();
        }
        let (left_out, said) = left_out(&DiskPlan { journal_size: Some(16 << 20), ..with(&new, 1) });
        assert!(!left_out && said.contains("has room for"), "{said}");
        fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn a_disk_is_known_by_its_own_superblock_where_another_ones_came_to_the_place_of_the_other() {
        let dir = std::env::temp_dir().join(format!("trine-misdirected-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let [x, y] = ["x", "y"].map(|name| dir.join(name));
        for path in [&x, &y] {
            fs::write(path, vec![0; usize::try_from(MIN_DISK_BYTES).unwrap()]).unwrap();
        }
        open(&[plan(&y)]).unwrap();
        // Twice as many superblocks: the newer one.
        (0..2).for_each(|_| open(&[plan(&x)]).unwrap());
        let own = disks::disk_at(&y).unwrap();
        let other = fs::read(&x).unwrap();
        File::options().write(true).open(&y).unwrap().write_all_at(&other[..4096], 0).unwrap();
        assert_eq!(disks::disk_at(&y).unwrap(), own);
        open(&[plan(&y)]).unwrap();
        assert_eq!(disks::disk_at(&y).unwrap(), own);
        assert_ne!(disks::disk_at(&x).unwrap(), own);
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
