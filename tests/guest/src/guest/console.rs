//! What a guest says on its console: the sentinels of its scripts, a panic, and everything else.

/// How far the console's text has brought us.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Said {
    /// A line of no meaning to the runner.
    Text,
    /// The guest stands; the command's output follows.
    Started,
    /// The command's exit status.
    Status(u8),
    /// The kernel gave up.
    Panic,
    /// The kernel shows flags that no processor can hold: what went wrong is the emulator's.
    NoProcessor,
}

/// Bits of EFLAGS that are zero on every processor (Intel's manual, volume 1, section 3.4.3: 22 and up are reserved).
const NEVER_SET: u32 = !0 << 22;

/// Reads one line (without its end). `token` is this run's own, so that no output of the command passes for a sentinel.
pub(crate) fn read(line: &str, token: &str) -> Said {
    if let Some((_, rest)) = line.split_once(token) {
        if rest.starts_with(" started") {
            return Said::Started;
        }
        let status = rest.strip_prefix(" status ").and_then(|rest| rest.split('.').next()).map(str::parse);
        if let Some(Ok(status)) = status {
            return Said::Status(status);
        }
    }
    // The kernel's own line has its time before it, or nothing.
    let text = if line.starts_with('[') { line.split_once("] ").map_or(line, |(_, text)| text) } else { line };
    if text.starts_with("Kernel panic - not syncing") {
        return Said::Panic;
    }
    // Of an oops: "RSP: 0018:ffa000000153b8d0 EFLAGS: 06fa3702".
    let flags = text.strip_prefix("RSP: ").and_then(|rest| rest.split_once(" EFLAGS: "));
    let flags = flags.and_then(|(_, flags)| u32::from_str_radix(flags.trim(), 16).ok());
    if flags.is_some_and(|flags| flags & NEVER_SET != 0) { Said::NoProcessor } else { Said::Text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sentinels_count_only_with_this_runs_token() {
        assert_eq!(read("guest-17 started", "guest-17"), Said::Started);
        assert_eq!(read("guest-17 status 3.", "guest-17"), Said::Status(3));
        assert_eq!(read("guest-17 status 3.[   9.1] late word", "guest-17"), Said::Status(3));
        assert_eq!(read("guest-16 status 0.", "guest-17"), Said::Text);
        assert_eq!(read("guest-17 status 999.", "guest-17"), Said::Text);
    }

    #[test]
    fn a_panic_is_the_kernels_line_and_not_a_mention_of_one() {
        assert_eq!(read("[    3.1] Kernel panic - not syncing: Attempted to kill init!", "t"), Said::Panic);
        assert_eq!(read("Kernel panic - not syncing: sysrq", "t"), Said::Panic);
        assert_eq!(read("grep: Kernel panic - not syncing", "t"), Said::Text);
    }

    #[test]
    fn flags_that_no_processor_has_are_the_emulators() {
        assert_eq!(read("[   70.8] RSP: 0018:ffa000000153b8d0 EFLAGS: 06fa3702", "t"), Said::NoProcessor);
        assert_eq!(read("[   70.8] RSP: 0018:ffa000000153b8d0 EFLAGS: 00010202", "t"), Said::Text);
        assert_eq!(read("[   70.8] RSP: 0018:ffa000000153b8d0 EFLAGS: 003f7fd7", "t"), Said::Text);
        assert_eq!(read("dmesg had RSP: 0018:ffa000000153b8d0 EFLAGS: 06fa3702", "t"), Said::Text);
        assert_eq!(read("[   70.8] RSP: 0018:ffa000000153b8d0 EFLAGS: 1234567890", "t"), Said::Text);
    }
}
