//! What a person or a script gets back: tables or JSON, sizes, exit codes.
//!
//! | exit code | meaning |
//! |---|---|
//! | 0 | done |
//! | 1 | failed |
//! | 2 | wrong usage |
//! | 3 | the conductor cannot be reached |
//! | 4 | no such object |
//! | 5 | refused: it exists already, is attached, or is not allowed now |
//! | 6 | timed out; what was asked for may still happen |

use crate::config::ClusterArgs;
use anyhow::Context;
use clap::{Args, ValueEnum};
use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::stat::{SFlag, fstat, makedev};
use serde::Serialize;
use std::fmt;
use std::io::{self, IsTerminal, Write};
use std::os::fd::AsFd;
use std::process::ExitCode;
use std::str::FromStr;
use std::time::{Duration, SystemTime};

/// Why the command did not do what it was asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum Exit {
    Failed = 1,
    Usage = 2,
    Unreachable = 3,
    NoSuch = 4,
    Refused = 5,
    TimedOut = 6,
}

/// A sentence, and the code to exit with.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) exit: Exit,
    pub(crate) why: anyhow::Error,
}

/// What every command comes to.
pub(crate) type Outcome<T = ()> = Result<T, Failure>;

impl Failure {
    pub(crate) fn new(exit: Exit, why: impl fmt::Display) -> Self {
        Self { exit, why: anyhow::anyhow!("{why}") }
    }
    pub(crate) fn usage(why: impl fmt::Display) -> Self {
        Self::new(Exit::Usage, why)
    }

    /// Says it on stderr.
    pub(crate) fn report(&self) -> ExitCode {
        note(format_args!("trine: {:#}", self.why));
        ExitCode::from(self.exit as u8)
    }
}

impl From<anyhow::Error> for Failure {
    fn from(why: anyhow::Error) -> Self {
        Self { exit: Exit::Failed, why }
    }
}

impl From<conductor_client::Error> for Failure {
    fn from(error: conductor_client::Error) -> Self {
        use conductor_client::Error;
        let exit = match &error {
            Error::BadAddress { .. } | Error::Tls(_) => Exit::Usage,
            Error::Unreachable { .. } => Exit::Unreachable,
            // It may be done, or is and may not have taken effect everywhere.
            Error::Refused { kind, .. } if ["timeout", "unconfirmed", "stopped"].contains(&kind.as_str()) => {
                Exit::TimedOut
            }
            Error::Refused { status, .. } => match status {
                400 => Exit::Usage,
                404 => Exit::NoSuch,
                401 | 403 | 409 => Exit::Refused,
                408 | 503 => Exit::Unreachable,
                _ => Exit::Failed,
            },
            Error::Protocol { .. } => Exit::Failed,
        };
        Self { exit, why: error.into() }
    }
}

/// How listings are printed, and what a command changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Args)]
pub(crate) struct OutputArgs {
    /// Print text for people, or JSON whose field names do not change
    #[arg(short, long, env = "TRINE_OUTPUT", default_value = "table", value_name = "FORMAT", help_heading = "Output")]
    pub(crate) output: Format,
}

/// A listing of something in a cluster, without any choice.
#[derive(Args)]
pub(crate) struct ListArgs {
    #[command(flatten)]
    pub(crate) cluster: ClusterArgs,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Format {
    Table,
    Json,
}

impl OutputArgs {
    /// Prints `value` as JSON, or what `people` makes of it.
    pub(crate) fn print<T: Serialize + ?Sized>(self, value: &T, people: impl FnOnce(&T) -> String) -> Outcome {
        print(&self.text(value, people)?)
    }

    /// The same of what a command has changed, which is so whether it can be printed or not.
    pub(crate) fn print_done<T: Serialize + ?Sized>(self, value: &T, people: impl Fn(&T) -> String) -> Outcome {
        let unsaid = |Failure { exit, why }| {
            let done = people(value);
            Failure { exit, why: why.context(format!("it is done, and could not be printed ({})", done.trim_end())) }
        };
        self.print(value, &people).map_err(unsaid)
    }

    /// The same of what is said only once: a reader that went away has not got it.
    pub(crate) fn hand_over<T: Serialize + ?Sized>(self, value: &T, people: impl FnOnce(&T) -> String) -> Outcome {
        Ok(write_line(&self.text(value, people)?).map_err(anyhow::Error::from)?)
    }

    fn text<T: Serialize + ?Sized>(self, value: &T, people: impl FnOnce(&T) -> String) -> Outcome<String> {
        match self.output {
            Format::Json => Ok(serde_json::to_string_pretty(value).map_err(anyhow::Error::from)?),
            Format::Table => Ok(people(value)),
        }
    }
}

/// Prints a text and its end of line. A reader that went away has read enough.
pub(crate) fn print(text: &str) -> Outcome {
    match write_line(text) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(anyhow::Error::from(error).into()),
        _ => Ok(()),
    }
}

fn write_line(text: &str) -> io::Result<()> {
    writeln!(io::stdout().lock(), "{}", text.trim_end())
}

/// Was it closed when this process started? Rust's start-up opens /dev/null where one of the first three descriptors is closed, and what
/// goes there nobody has. Who opened it cannot be told but by the way: that start-up opens it for both reading and writing, a shell's
/// `> /dev/null` and `< /dev/null` only for the one that is needed.
pub(crate) fn was_closed(stream: impl AsFd) -> Outcome<bool> {
    let found = fstat(stream.as_fd()).context("cannot look at the standard streams")?;
    let flags = fcntl(stream.as_fd(), FcntlArg::F_GETFL).context("cannot look at the standard streams")?;
    let is_null = SFlag::from_bits_truncate(found.st_mode & SFlag::S_IFMT.bits()) == SFlag::S_IFCHR
        && found.st_rdev == makedev(1, 3);
    Ok(is_null && OFlag::from_bits_truncate(flags) & OFlag::O_ACCMODE == OFlag::O_RDWR)
}

/// Says something to people on stderr. Nobody may be there to read it any more, or no room for it: that is no reason to end with a panic,
/// as `eprintln!` does, still less for a daemon.
pub(crate) fn note(text: impl fmt::Display) {
    let _ = io::stderr().lock().write_all(format!("{text}\n").as_bytes());
}

/// A table without lines: columns that awk can take apart as well.
pub(crate) fn table(head: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled).set_header(head.to_vec());
    for row in rows {
        table.add_row(row);
    }
    for (n, name) in head.iter().enumerate() {
        if let Some(column) = table.column_mut(n) {
            column.set_padding((0, 2));
            if matches!(
                *name,
                "SIZE"
                    | "USED"
                    | "CAPACITY"
                    | "PROVISIONED"
                    | "SHARDS"
                    | "COPIES"
                    | "PRIMARIES"
                    | "PID"
                    | "FREE"
                    | "USE%"
                    | "SNAPSHOTS"
            ) {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
    }
    table.lines().map(|line| line.trim_end().to_owned() + "\n").collect()
}

/// A number of bytes as people write it: `4096`, `512K`, `100G`, `100GiB`, `2T`. Every unit is a power of 1024.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Size(pub(crate) u64);

const UNITS: [(&str, u32); 6] = [("P", 50), ("T", 40), ("G", 30), ("M", 20), ("K", 10), ("", 0)];

impl FromStr for Size {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let bad = || {
            format!(
                "{text:?} is no size: write a whole number of bytes, or of K, M, G, T (powers of 1024; KiB, MiB, … too)"
            )
        };
        let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let (number, unit) = text.split_at(digits);
        let number: u64 = number.parse().map_err(|_| bad())?;
        let unit = unit.trim_start().to_ascii_uppercase();
        let unit = unit.strip_suffix("IB").or_else(|| unit.strip_suffix('B')).unwrap_or(&unit);
        let (_, shift) = UNITS.iter().find(|(name, _)| *name == unit).ok_or_else(bad)?;
        number.checked_mul(1 << shift).map(Self).ok_or_else(|| format!("{text} is more than 64 bits can count"))
    }
}

impl fmt::Display for Size {
    /// The largest unit of which there is at least one, with one decimal where it is not whole.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (unit, shift) = UNITS.iter().find(|(_, shift)| self.0 >> shift > 0).copied().unwrap_or(("", 0));
        let rest = self.0 & ((1_u64 << shift) - 1);
        let suffix = if shift == 0 { "B".to_owned() } else { format!("{unit}iB") };
        match (u128::from(rest) * 10) >> shift {
            0 => write!(f, "{} {suffix}", self.0 >> shift),
            tenth => write!(f, "{}.{tenth} {suffix}", self.0 >> shift),
        }
    }
}

/// The same for the model's bytes.
pub(crate) fn size(bytes: conductor_model::Bytes) -> String {
    Size(bytes.0).to_string()
}

/// The longest time that anything is given: what is added to a moment stays one.
const LONGEST: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// A time as people write it: `30s`, `5m`, `1h 30m`.
pub(crate) fn time(text: &str) -> Result<Duration, String> {
    match humantime::parse_duration(text).map_err(|why| why.to_string())? {
        time if time > LONGEST => Err("at most 36500d".to_owned()),
        time => Ok(time),
    }
}

/// The end of the year 9999, in milliseconds: no moment behind it has a usual form.
const LAST_MOMENT: u64 = 253_402_300_799_999;

/// A moment, in UTC.
pub(crate) fn when(at: conductor_model::Millis) -> String {
    let time = SystemTime::UNIX_EPOCH + Duration::from_millis(at.0.min(LAST_MOMENT));
    humantime::format_rfc3339_seconds(time).to_string()
}

/// Asks on the terminal; without one, or without `yes`, it is refused.
pub(crate) fn confirm(question: &str, yes: bool) -> Outcome {
    if yes {
        return Ok(());
    }
    if !io::stdin().is_terminal() {
        return Err(Failure::usage(format!("{question} Nobody is here to answer: pass --yes.")));
    }
    write!(io::stderr(), "{question} [y/N] ").map_err(anyhow::Error::from)?;
    let mut answer = String::new();
    io::stdin().read_line(&mut answer).map_err(anyhow::Error::from)?;
    match answer.trim() {
        "y" | "Y" | "yes" => Ok(()),
        _ => Err(Failure::new(Exit::Refused, "nothing was done")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_people_write_them() {
        let read = |text: &str| text.parse::<Size>().map(|s| s.0);
        assert_eq!(read("4096"), Ok(4096));
        assert_eq!(read("1K"), Ok(1 << 10));
        for text in ["100G", "100g", "100GiB", "100 GiB", "100GB"] {
            assert_eq!(read(text), Ok(100 << 30), "{text}");
        }
        assert_eq!((read("2T"), read("0")), (Ok(2 << 40), Ok(0)));
        for text in ["", "G", "1.5G", "-1", "10X", "1GG", "99999999P", "0x10"] {
            assert!(read(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_time_can_be_added_to_a_moment() {
        assert_eq!((time("5m"), time("0s")), (Ok(Duration::from_secs(300)), Ok(Duration::ZERO)));
        let longest = time("36500d").unwrap();
        assert!(std::time::Instant::now().checked_add(longest).is_some());
        for text in ["18446744073709551615s", "36501d", "-1s", "5", ""] {
            assert!(time(text).is_err(), "{text}");
        }
    }

    #[test]
    fn sizes_are_shown_in_the_largest_whole_unit() {
        let shown = |n| Size(n).to_string();
        assert_eq!((shown(0), shown(4096), shown(10 << 30)), ("0 B".into(), "4 KiB".into(), "10 GiB".into()));
        assert_eq!((shown(3 << 29), shown((1 << 30) - 1)), ("1.5 GiB".into(), "1023.9 MiB".into()));
    }

    #[test]
    fn a_table_has_no_lines_and_no_trailing_blanks() {
        let text = table(
            &["NAME", "SIZE"],
            [vec!["db".to_owned(), "1 GiB".to_owned()], vec!["x".to_owned(), "20 GiB".to_owned()]],
        );
        assert_eq!(text, "NAME    SIZE\ndb     1 GiB\nx     20 GiB\n");
    }

    #[test]
    fn a_moment_that_makes_no_sense_is_shown_all_the_same() {
        assert_eq!(when(conductor_model::Millis(u64::MAX)), "9999-12-31T23:59:59Z");
    }

    #[test]
    fn refusals_become_exit_codes() {
        use conductor_client::Error;
        let refused = |status| Error::Refused { kind: "k".into(), message: "m".into(), status };
        let exit = |error: Error| Failure::from(error).exit;
        assert_eq!(exit(refused(400)), Exit::Usage);
        assert_eq!(exit(refused(404)), Exit::NoSuch);
        assert_eq!(exit(refused(409)), Exit::Refused);
        assert_eq!((exit(refused(401)), exit(refused(403))), (Exit::Refused, Exit::Refused));
        assert_eq!(exit(Error::Unreachable { address: "a".into(), why: "w".into() }), Exit::Unreachable);
    }
}
