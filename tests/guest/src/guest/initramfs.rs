//! The guest's first filesystem: busybox, the modules needed to mount this machine's root over 9p, and two scripts.
//!
//! Written here in the kernel's "newc" cpio format (Documentation/driver-api/early-userspace/buffer-format.rst), one per run.
//! Everything else the guest needs comes over 9p.

use std::fs;
use std::process::Command;

use anyhow::{Context, Result};

use crate::apt::output_of;
use crate::kernel::{Kernel, admin_program};

/// What it takes to reach the host's root and to lay a writable layer over it; built-in ones cost nothing.
const BOOT_MODULES: [&str; 5] = ["virtio_pci", "9pnet_virtio", "9p", "overlay", "virtio_blk"];

const BUSYBOX: &str = "/bin/busybox";
const FIRST: &str = include_str!("first.sh");
const SYSTEM: &str = include_str!("system.sh");

const DIRECTORY: u32 = 0o040_755;
const PROGRAM: u32 = 0o100_755;
const TEXT: u32 = 0o100_644;

/// The archive for one run: `settings` are shell assignments for both scripts, `command` is the bash command line.
pub(crate) fn build(kernel: &Kernel, settings: &str, command: &str) -> Result<Vec<u8>> {
    let busybox = fs::read(BUSYBOX).with_context(|| format!("cannot read {BUSYBOX} (package busybox-static)"))?;
    let mut archive = Archive::default();
    for dir in ["bin", "modules", "proc", "sys", "dev", "host", "cover", "root"] {
        archive.add(dir, DIRECTORY, &[]);
    }
    archive.add("bin/busybox", PROGRAM, &busybox);
    archive.add("init", PROGRAM, FIRST.as_bytes());
    archive.add("system", PROGRAM, SYSTEM.as_bytes());
    archive.add("settings", TEXT, settings.as_bytes());
    archive.add("command", TEXT, command.as_bytes());
    for (index, module) in boot_modules(kernel)?.iter().enumerate() {
        archive.add(&format!("modules/{index:02}.ko"), TEXT, module);
    }
    Ok(archive.finish())
}

/// The modules' contents in the order in which they must be loaded.
fn boot_modules(kernel: &Kernel) -> Result<Vec<Vec<u8>>> {
    let mut modprobe = Command::new(admin_program("modprobe"));
    modprobe.arg("-d").arg(&kernel.root).args(["-S", &kernel.release, "--show-depends", "-a"]).args(BOOT_MODULES);
    let mut paths: Vec<String> = Vec::new();
    for line in output_of(modprobe)?.lines() {
        if let Some(path) = line.strip_prefix("insmod ").and_then(|rest| rest.split(' ').next())
            && !paths.iter().any(|known| known == path)
        {
            paths.push(path.to_owned());
        }
    }
    paths.iter().map(|path| decompressed(path)).collect()
}

fn decompressed(path: &str) -> Result<Vec<u8>> {
    let program = match path.rsplit('.').next() {
        Some("xz") => "xz",
        Some("zst") => "zstd",
        Some("gz") => "gzip",
        _ => return fs::read(path).with_context(|| format!("cannot read {path}")),
    };
    let output = Command::new(program).args(["-dc", path]).output().with_context(|| format!("cannot run {program}"))?;
    anyhow::ensure!(output.status.success(), "{program} cannot decompress {path}");
    Ok(output.stdout)
}

#[derive(Default)]
struct Archive {
    bytes: Vec<u8>,
    entries: u32,
}

impl Archive {
    fn add(&mut self, name: &str, mode: u32, data: &[u8]) {
        self.entries += 1;
        let links = if mode & DIRECTORY == DIRECTORY { 2 } else { 1 };
        // magic, inode, mode, uid, gid, links, time, size, device (4 fields), name's length with its NUL, checksum
        let header = format!(
            "070701{:08x}{mode:08x}{:08x}{:08x}{links:08x}{:08x}{:08x}{:08x}{:08x}{:08x}{:08x}{:08x}{:08x}",
            self.entries,
            0,
            0,
            0,
            data.len(),
            0,
            0,
            0,
            0,
            name.len() + 1,
            0
        );
        self.bytes.extend_from_slice(header.as_bytes());
        self.bytes.extend_from_slice(name.as_bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend_from_slice(data);
        self.pad();
    }

    fn finish(mut self) -> Vec<u8> {
        self.add("TRAILER!!!", 0, &[]);
        self.bytes
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_archive_has_aligned_entries_with_their_sizes_and_a_trailer() {
        let mut archive = Archive::default();
        archive.add("bin", DIRECTORY, &[]);
        archive.add("bin/x", PROGRAM, b"hello");
        let bytes = archive.finish();
        assert_eq!(bytes.len() % 4, 0);
        let second = 110 + 4 + 2;
        assert_eq!(&bytes[second..second + 6], b"070701");
        assert_eq!(&bytes[second + 54..second + 62], b"00000005");
        assert_eq!(&bytes[second + 110..second + 115], b"bin/x");
        assert_eq!(&bytes[second + 116..second + 121], b"hello");
        assert!(bytes.windows(10).any(|window| window == b"TRAILER!!!"));
    }
}
