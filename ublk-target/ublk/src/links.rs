//! `/dev/trine/VOLUME`: a name that stays, whatever number the kernel gives the device. Made here, because udev may be absent.

use crate::DeviceError;
use std::fs::{self, Permissions};
use std::io::ErrorKind;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

/// Where the names are.
pub const LINKS: &str = "/dev/trine";
/// How often a link is made again in a directory that others take away.
const REMADE: usize = 8;

/// Points `LINKS/volume` to `device`, and nothing else there; gives the link's path. `None` if the name is that of another device which is
/// `taken`: whoever opens it by that name next would use this one.
pub fn link(volume: &str, device: &Path, taken: impl Fn(&Path) -> bool) -> Result<Option<PathBuf>, DeviceError> {
    link_in(Path::new(LINKS), volume, device, taken)
}

/// Removes `LINKS/volume` if it points to `device`.
pub fn unlink(volume: &str, device: &Path) -> Result<(), DeviceError> {
    unlink_in(Path::new(LINKS), volume, device)
}

/// The volume whose name points to `device`.
pub fn link_of(device: &Path) -> Option<String> {
    let all = fs::read_dir(LINKS).ok()?.flatten();
    let mut ours = all.filter(|entry| fs::read_link(entry.path()).is_ok_and(|target| target == device));
    ours.next()?.file_name().into_string().ok()
}

/// Removes names of devices that are gone; gives them.
pub fn unlink_stale() -> Result<Vec<String>, DeviceError> {
    unlink_stale_in(Path::new(LINKS))
}

fn path_of(dir: &Path, volume: &str) -> Result<PathBuf, DeviceError> {
    if volume.is_empty() || volume.starts_with('.') || volume.contains(['/', '\0']) {
        return Err(DeviceError::LinkName(volume.to_owned()));
    }
    Ok(dir.join(volume))
}

fn link_in(
    dir: &Path,
    volume: &str,
    device: &Path,
    taken: impl Fn(&Path) -> bool,
) -> Result<Option<PathBuf>, DeviceError> {
    let path = path_of(dir, volume)?;
    if fs::read_link(&path).is_ok_and(|other| other != device && other.exists() && taken(&other)) {
        return Ok(None);
    }
    let failed = |error| DeviceError::Link { path: path.clone(), error };
    // A rename replaces an old link at once; a name with a leading dot is nobody's volume.
    let new = dir.join(format!(".{volume}.{}", std::process::id()));
    let make = || {
        make_readable(dir)?;
        let _left_by_a_namesake = fs::remove_file(&new);
        symlink(device, &new).and_then(|()| fs::rename(&new, &path))
    };
    // Who takes the last link away takes the directory, too, maybe just now.
    let mut made = make();
    for _ in 0..REMADE {
        match made {
            // The latter from making a directory that was there, and is gone when it is looked at.
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::AlreadyExists) => made = make(),
            _ => break,
        }
    }
    made.map_err(failed)?;
    // A device's number is given again: whose it was before has no device.
    for entry in fs::read_dir(dir).map_err(failed)?.flatten().filter(|entry| entry.path() != path) {
        if fs::read_link(entry.path()).is_ok_and(|target| target == device) {
            remove(&entry.path())?;
        }
    }
    Ok(Some(path))
}

/// Makes the directory, which everybody may look into whatever the umask is: who may open a device opens it by its name.
fn make_readable(dir: &Path) -> std::io::Result<()> {
    match fs::create_dir(dir) {
        Ok(()) => fs::set_permissions(dir, Permissions::from_mode(0o755)),
        Err(error) if error.kind() == ErrorKind::AlreadyExists && dir.is_dir() => Ok(()),
        Err(error) => Err(error),
    }
}

/// Another target may have removed it just now.
fn remove(path: &Path) -> Result<(), DeviceError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(DeviceError::Link { path: path.to_path_buf(), error }),
        _ => Ok(()),
    }
}

fn unlink_in(dir: &Path, volume: &str, device: &Path) -> Result<(), DeviceError> {
    let path = path_of(dir, volume)?;
    match fs::read_link(&path) {
        Ok(target) if target == device => {
            fs::remove_file(&path).map_err(|error| DeviceError::Link { path: path.clone(), error })?;
            let _others_may_be_in_it = fs::remove_dir(dir);
            Ok(())
        }
        _ => Ok(()),
    }
}

fn unlink_stale_in(dir: &Path) -> Result<Vec<String>, DeviceError> {
    let failed = |error| DeviceError::Link { path: dir.to_path_buf(), error };
    let entries = match fs::read_dir(dir) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(failed)?,
    };
    let mut gone = Vec::new();
    for entry in entries.flatten() {
        let path = entry.path();
        if path.is_symlink() && !path.exists() {
            remove(&path)?;
            gone.extend(entry.file_name().into_string());
        }
    }
    Ok(gone)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_follows_its_device_and_goes_with_it() {
        let dir = std::env::temp_dir().join(format!("trine-links-{}", std::process::id()));
        let (one, two) = (dir.join("one"), dir.join("two"));
        fs::create_dir_all(&dir).unwrap();
        fs::write(&one, "").unwrap();
        let names = dir.join("names");
        let before = nix::sys::stat::umask(nix::sys::stat::Mode::from_bits_truncate(0o077));
        link_in(&names, "db", &one, |_| false).unwrap();
        nix::sys::stat::umask(before);
        assert_eq!(names.metadata().unwrap().permissions().mode() & 0o777, 0o755);
        fs::write(&two, "").unwrap();
        assert_eq!(link_in(&names, "db", &two, |other| other == one).unwrap(), None, "it is somebody's");
        assert_eq!(fs::read_link(names.join("db")).unwrap(), one);
        fs::remove_file(&two).unwrap();
        let path = link_in(&names, "db", &two, |_| false).unwrap().unwrap();
        assert_eq!(fs::read_link(&path).unwrap(), two);
        link_in(&names, "former", &one, |_| true).unwrap();
        link_in(&names, "other", &one, |_| true).unwrap();
        assert!(!names.join("former").is_symlink(), "it had the number before");
        unlink_in(&names, "other", &two).unwrap();
        assert!(names.join("other").exists(), "another device's name stays");
        assert_eq!(unlink_stale_in(&names).unwrap(), ["db"]);
        unlink_in(&names, "other", &one).unwrap();
        assert!(!names.exists(), "the last name takes the directory with it");
        for bad in ["", "a/b", "..", ".hidden"] {
            assert!(link_in(&names, bad, &one, |_| false).is_err(), "{bad:?}");
        }
        fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn a_name_is_made_while_the_last_other_one_goes() {
        let dir = std::env::temp_dir().join(format!("trine-links-race-{}", std::process::id()));
        let (one, two, names) = (dir.join("one"), dir.join("two"), dir.join("names"));
        fs::create_dir_all(&dir).unwrap();
        std::thread::scope(|scope| {
            for (volume, device) in [("a", &one), ("b", &two)] {
                let names = &names;
                scope.spawn(move || {
                    for _ in 0..500 {
                        link_in(names, volume, device, |_| false).unwrap();
                        unlink_in(names, volume, device).unwrap();
                    }
                });
            }
        });
        fs::remove_dir_all(&dir).unwrap();
    }
}
