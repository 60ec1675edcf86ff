//! A private apt: its own sources, lists and cache, so that suites of another Debian release can be read without
//! the machine's own apt ever hearing of them.
//!
//! The mirror is the one the machine's apt is configured with, and so are proxies and credentials. Everything is
//! verified: every suite used here is signed by Debian 12's own archive keys too, so the keyring of any Debian 12 does.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};

const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// Which of Debian's two archives a suite lives in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Archive {
    /// The archive of releases, updates and backports.
    Main,
    /// The archive of security updates.
    Security,
}

/// One suite, and the archive that holds it.
#[derive(Clone, Copy)]
pub(crate) struct Suite {
    pub(crate) archive: Archive,
    pub(crate) name: &'static str,
}

/// An apt directory of our own with fresh lists of some suites.
pub(crate) struct PrivateApt {
    dir: PathBuf,
}

impl PrivateApt {
    /// Sets the directory up for `suites` and fetches their lists.
    pub(crate) fn open(dir: &Path, suites: &[Suite]) -> Result<Self> {
        for part in ["lists/partial", "cache/archives/partial"] {
            fs::create_dir_all(dir.join(part)).with_context(|| format!("cannot create {}", dir.display()))?;
        }
        fs::write(dir.join("status"), "")?;
        let apt = Self { dir: dir.to_owned() };
        let mirrors = mirrors(dir)?;
        let mut sources = String::new();
        for suite in suites {
            let mirror = mirrors.iter().find(|mirror| mirror.archive == suite.archive);
            if let Some(Mirror { uri, .. }) = mirror {
                sources.push_str(&format!("deb [signed-by={KEYRING}] {uri} {} main\n", suite.name));
            }
        }
        ensure!(!sources.is_empty(), "this machine's apt has no source for any of the suites that hold the kernel");
        fs::write(dir.join("sources.list"), sources)?;
        apt.run("apt-get", &["-o", "APT::Update::Error-Mode=any", "-qq", "update"])?;
        Ok(apt)
    }

    /// The names of all packages that start with `prefix`.
    pub(crate) fn packages(&self, prefix: &str) -> Result<Vec<String>> {
        Ok(self.run("apt-cache", &["pkgnames", prefix])?.lines().map(str::to_owned).collect())
    }

    /// Downloads and verifies `packages` into `into`, which is empty before.
    pub(crate) fn download(&self, packages: &[String], into: &Path) -> Result<()> {
        fs::create_dir_all(into)?;
        let mut command = self.command("apt-get");
        command.args(["-qq", "download"]).args(packages).current_dir(into);
        output_of(command).map(drop)
    }

    fn run(&self, program: &str, args: &[&str]) -> Result<String> {
        let mut command = self.command(program);
        command.args(args);
        output_of(command)
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        let at = |part: &str| self.dir.join(part).display().to_string();
        for option in [
            format!("Dir::Etc::SourceList={}", at("sources.list")),
            "Dir::Etc::SourceParts=/dev/null".into(),
            "Dir::Etc::Preferences=/dev/null".into(),
            "Dir::Etc::PreferencesParts=/dev/null".into(),
            format!("Dir::State={}", self.dir.display()),
            format!("Dir::State::Lists={}", at("lists")),
            format!("Dir::State::status={}", at("status")),
            format!("Dir::Cache={}", at("cache")),
            "Acquire::Languages=none".into(),
            // The download user of apt cannot be expected to reach into a build directory.
            "APT::Sandbox::User=root".into(),
        ] {
            command.args(["-o", &option]);
        }
        command
    }
}

#[derive(Debug, PartialEq, Eq)]
struct Mirror {
    archive: Archive,
    uri: String,
}

/// Debian's archives as this machine's apt knows them.
fn mirrors(dir: &Path) -> Result<Vec<Mirror>> {
    let known = index_targets(&[])?;
    if !known.is_empty() {
        return Ok(known);
    }
    // apt describes only what it has lists of. A machine without lists gets them here, in our directory.
    let lists = dir.join("machine-lists");
    fs::create_dir_all(lists.join("partial"))?;
    let options = [format!("Dir::State::Lists={}", lists.display()), "APT::Sandbox::User=root".into()];
    let mut update = Command::new("apt-get");
    for option in &options {
        update.args(["-o", option]);
    }
    update.args(["-qq", "update"]);
    output_of(update)?;
    let known = index_targets(&options)?;
    ensure!(!known.is_empty(), "this machine's apt knows no Debian archive (`apt-get indextargets` lists none)");
    Ok(known)
}

fn index_targets(options: &[String]) -> Result<Vec<Mirror>> {
    let mut command = Command::new("apt-get");
    for option in options {
        command.args(["-o", option]);
    }
    command.args([
        "indextargets",
        "--format",
        "$(ORIGIN)|$(CODENAME)|$(COMPONENT)|$(REPO_URI)",
        "Created-By: Packages",
    ]);
    Ok(parse_index_targets(&output_of(command)?))
}

fn parse_index_targets(text: &str) -> Vec<Mirror> {
    let mut mirrors: Vec<Mirror> = Vec::new();
    for line in text.lines() {
        let mut fields = line.split('|');
        let (Some("Debian"), Some(codename), Some("main"), Some(uri)) =
            (fields.next(), fields.next(), fields.next(), fields.next())
        else {
            continue;
        };
        let archive = if codename.ends_with("-security") { Archive::Security } else { Archive::Main };
        if mirrors.iter().all(|mirror| mirror.archive != archive) {
            mirrors.push(Mirror { archive, uri: uri.to_owned() });
        }
    }
    mirrors
}

/// Standard output of a command that must succeed; its complaint otherwise.
pub(crate) fn output_of(mut command: Command) -> Result<String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("cannot run {name} (tools/setup.sh guest installs what is missing)"))?;
    if !output.status.success() {
        bail!("{name} failed: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_mirror_of_each_debian_archive_is_used() {
        let text = "Other|bookworm|main|http://other/\n\
                    Debian|bookworm|main|http://a/debian/\n\
                    Debian|bookworm-updates|main|http://b/debian/\n\
                    Debian|bookworm-security|main|http://a/security/\n\
                    nonsense\n";
        let expected = [
            Mirror { archive: Archive::Main, uri: "http://a/debian/".into() },
            Mirror { archive: Archive::Security, uri: "http://a/security/".into() },
        ];
        assert_eq!(parse_index_targets(text), expected);
    }
}
