//! Debian's kernels: which packages make one, the newest of a series, and its unpacked tree in the cache.
//!
//! ```text
//! CACHE/7.2/release                    the kernel's own version string
//! CACHE/7.2/vmlinuz
//! CACHE/7.2/root/lib/modules/RELEASE   with depmod's indexes
//! ```
//! A tree appears under its name only when it is complete.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use clap::ValueEnum;

use crate::apt::{Archive, PrivateApt, Suite, output_of};

/// A kernel series that guests boot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Series {
    /// The kernel of Debian 12's newer sibling: ublk with every feature.
    #[value(name = "7.2")]
    V7_2,
    /// The newest kernel of Debian 12 itself: ublk with its first eight features.
    #[value(name = "6.12")]
    V6_12,
}

impl Series {
    pub(crate) const ALL: [Self; 2] = [Self::V7_2, Self::V6_12];

    /// Where its packages may be; the newest over all of these is taken.
    fn suites(self) -> &'static [Suite] {
        match self {
            Self::V7_2 => &[Suite { archive: Archive::Main, name: "trixie-backports" }],
            Self::V6_12 => &[
                Suite { archive: Archive::Main, name: "bookworm-backports" },
                Suite { archive: Archive::Security, name: "bookworm-security" },
            ],
        }
    }

    fn numbers(self) -> [u32; 2] {
        match self {
            Self::V7_2 => [7, 2],
            Self::V6_12 => [6, 12],
        }
    }
}

impl fmt::Display for Series {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [major, minor] = self.numbers();
        write!(f, "{major}.{minor}")
    }
}

/// An unpacked kernel.
pub(crate) struct Kernel {
    /// What `uname -r` says.
    pub(crate) release: String,
    pub(crate) image: PathBuf,
    /// The root under which `lib/modules/RELEASE` lies.
    pub(crate) root: PathBuf,
}

impl Kernel {
    /// The kernel from the cache, or downloaded into it.
    pub(crate) fn obtain(cache: &Path, series: Series, refresh: bool) -> Result<Self> {
        let dir = cache.join(series.to_string());
        if refresh || !dir.join("release").exists() {
            let newest = download(cache, series).with_context(|| format!("cannot get kernel {series}"))?;
            let _ = fs::remove_dir_all(&dir);
            fs::rename(newest, &dir).with_context(|| format!("cannot create {}", dir.display()))?;
        }
        let release = fs::read_to_string(dir.join("release"))?.trim().to_owned();
        Ok(Self { release, image: dir.join("vmlinuz"), root: dir.join("root") })
    }

    pub(crate) fn modules(&self) -> PathBuf {
        self.root.join("lib/modules").join(&self.release)
    }
}

fn download(cache: &Path, series: Series) -> Result<PathBuf> {
    println!("guest: looking for the newest kernel {series} in Debian's archive");
    let apt = PrivateApt::open(&cache.join(format!("apt-{series}")), series.suites())?;
    let (release, packages) = newest(&apt.packages("linux-")?, series)
        .with_context(|| format!("the archive has no kernel {series} for this architecture"))?;
    println!("guest: downloading {}", packages.join(", "));
    let work = cache.join(format!("unpacking-{series}"));
    let _ = fs::remove_dir_all(&work);
    let (debs, root) = (work.join("debs"), work.join("root"));
    // Kernels from before the merged /usr ship lib/, later ones usr/lib/.
    fs::create_dir_all(root.join("usr/lib"))?;
    symlink("usr/lib", root.join("lib"))?;
    apt.download(&packages, &debs)?;
    for deb in fs::read_dir(&debs)? {
        let members = work.join("members");
        let mut unpack = Command::new("dpkg-deb");
        unpack.arg("-x").arg(deb?.path()).arg(&members);
        output_of(unpack)?;
    }
    for modules in ["members/lib/modules", "members/usr/lib/modules"].map(|part| work.join(part)) {
        if modules.exists() {
            fs::rename(modules, root.join("usr/lib/modules"))?;
        }
    }
    let modules = root.join("lib/modules").join(&release);
    let image = [
        work.join(format!("members/boot/vmlinuz-{release}")),
        modules.join("vmlinuz.unsigned"),
        modules.join("vmlinuz"),
    ]
    .into_iter()
    .find(|path| path.exists())
    .with_context(|| format!("no kernel image in {}", packages.join(", ")))?;
    fs::rename(image, work.join("vmlinuz"))?;
    ensure!(modules.join("kernel").exists(), "no modules in {}", packages.join(", "));
    let mut depmod = Command::new(admin_program("depmod"));
    depmod.arg("-b").arg(&root).arg(&release);
    output_of(depmod)?;
    for leftover in ["debs", "members"] {
        fs::remove_dir_all(work.join(leftover))?;
    }
    fs::write(work.join("release"), format!("{release}\n"))?;
    Ok(work)
}

/// An administrator's program; an ordinary user's PATH on Debian does not lead to it.
pub(crate) fn admin_program(name: &str) -> PathBuf {
    ["/usr/sbin", "/sbin"].iter().map(|dir| Path::new(dir).join(name)).find(|path| path.exists()).unwrap_or(name.into())
}

/// The newest release of a series that is completely there, and the packages that make it.
fn newest(names: &[String], series: Series) -> Option<(String, Vec<String>)> {
    let mut releases: BTreeMap<(Vec<u32>, &str), Vec<&str>> = BTreeMap::new();
    for name in names {
        let Some((part, release)) = split_package(name) else { continue };
        let version = numbers(release);
        if version.starts_with(&series.numbers()) {
            releases.entry((version, release)).or_default().push(part);
        }
    }
    releases.into_iter().rev().find_map(|((_, release), parts)| {
        // One package with everything until 6.x; image, modules and their lists apart since.
        let split: &[&str] = &["binary-unsigned", "modules", "base"];
        let whole: &[&str] = &["image"];
        let has = |wanted: &[&str]| wanted.iter().all(|part| parts.contains(part));
        let chosen = if has(split) {
            split
        } else if has(whole) && !parts.contains(&"modules") {
            whole
        } else {
            return None;
        };
        Some((release.to_owned(), chosen.iter().map(|part| format!("linux-{part}-{release}")).collect()))
    })
}

/// `linux-modules-7.2.12+deb13-amd64` is part `modules` of release `7.2.12+deb13-amd64`; flavours other than the plain one are left out.
fn split_package(name: &str) -> Option<(&str, &str)> {
    let rest = name.strip_prefix("linux-")?;
    let part = ["binary-unsigned", "modules", "base", "image"]
        .into_iter()
        .find(|part| rest.strip_prefix(part).is_some_and(|rest| rest.starts_with('-')))?;
    let release = &rest[part.len() + 1..];
    let upstream = release.strip_suffix("-amd64")?;
    let plain =
        upstream.starts_with(|c: char| c.is_ascii_digit()) && !upstream.contains('-') && numbers(release).len() >= 3;
    plain.then_some((part, release))
}

/// The numbers of a version in their order: 7.2.12+deb13 is 7, 2, 12, 13.
fn numbers(release: &str) -> Vec<u32> {
    let upstream = release.strip_suffix("-amd64").unwrap_or(release);
    upstream.split(|c: char| !c.is_ascii_digit()).filter_map(|part| part.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(list: &[&str]) -> Vec<String> {
        list.iter().map(|name| name.to_string()).collect()
    }

    #[test]
    fn the_newest_complete_release_of_the_series_is_taken() {
        let list = names(&[
            "linux-base-7.2.9+deb13-amd64",
            "linux-modules-7.2.9+deb13-amd64",
            "linux-binary-unsigned-7.2.9+deb13-amd64",
            "linux-base-7.2.12+deb13-amd64",
            "linux-modules-7.2.12+deb13-amd64",
            "linux-binary-unsigned-7.2.12+deb13-amd64",
            "linux-modules-7.2.13+deb13-amd64",
            "linux-base-7.3.4+deb13-amd64",
            "linux-modules-7.3.4+deb13-amd64",
            "linux-binary-unsigned-7.3.4+deb13-amd64",
            "linux-binary-unsigned-7.2.14+deb13-cloud-amd64",
        ]);
        let (release, packages) = newest(&list, Series::V7_2).expect("one release is complete");
        assert_eq!(release, "7.2.12+deb13-amd64");
        assert_eq!(
            packages,
            [
                "linux-binary-unsigned-7.2.12+deb13-amd64",
                "linux-modules-7.2.12+deb13-amd64",
                "linux-base-7.2.12+deb13-amd64"
            ]
        );
    }

    #[test]
    fn a_kernel_in_one_package_is_recognised() {
        let list = names(&[
            "linux-image-6.12-amd64",
            "linux-image-6.12.90+deb12-amd64",
            "linux-image-6.12.90+deb12.1-amd64",
            "linux-image-6.12.117+deb12-rt-amd64",
            "linux-image-6.12.117+deb12-amd64-dbg",
        ]);
        let (release, packages) = newest(&list, Series::V6_12).expect("one release is there");
        assert_eq!(release, "6.12.90+deb12.1-amd64");
        assert_eq!(packages, ["linux-image-6.12.90+deb12.1-amd64"]);
    }

    #[test]
    fn an_archive_without_the_series_has_no_newest() {
        assert_eq!(newest(&names(&["linux-image-6.1.0-48-amd64"]), Series::V6_12), None);
    }
}
