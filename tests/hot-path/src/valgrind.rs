//! One case below callgrind.

use crate::counted::COUNTED;
use anyhow::{Context, Result, ensure};
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// Copies of one kind on every processor, and without `rep movsb`, of which callgrind counts every byte as an instruction.
const PLAIN_COPIES: &str = "glibc.cpu.hwcaps=-AVX_Fast_Unaligned_Load,-AVX2,-AVX512VL,-SSSE3:\
    glibc.cpu.x86_rep_movsb_threshold=1073741824:glibc.cpu.x86_rep_stosb_threshold=1073741824";
/// Functions that a profile names.
const NAMED: usize = 25;

/// Instructions in counted turns of a case; with `profile`, what they went to is printed.
pub(crate) fn count(case: &str, profile: bool) -> Result<u64> {
    let program = std::env::current_exe().context("this program has no path")?;
    let directory = program.parent().map_or_else(PathBuf::new, PathBuf::from);
    let out = directory.join(format!("callgrind.{case}"));
    let output = Command::new("valgrind")
        .env("GLIBC_TUNABLES", PLAIN_COPIES)
        .args(["--tool=callgrind", "--collect-atstart=no", &format!("--toggle-collect={COUNTED}")])
        .arg(format!("--callgrind-out-file={}", out.display()))
        .arg(&program)
        .arg(case)
        .stdin(Stdio::null())
        .output()
        .context("cannot start valgrind (tools/setup.sh test installs it)")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{case} below valgrind: {}\n{said}", output.status);
    let collected = said.lines().find_map(|line| line.split_once("Collected :")?.1.trim().parse::<u64>().ok());
    let collected = collected.with_context(|| format!("valgrind does not say what it counted:\n{said}"))?;
    ensure!(collected > 0, "{case}: no turn was counted");
    if profile {
        let table =
            Command::new("callgrind_annotate").args(["--show-percs=yes", "--threshold=90"]).arg(&out).output()?;
        let table = String::from_utf8_lossy(&table.stdout);
        table.lines().filter(|line| line.contains('%')).take(NAMED).for_each(|line| println!("  {line}"));
    }
    Ok(collected)
}
