//! Where options come from: flags, then the environment (`TRINE_…`), then a TOML file, then the built-in default.
//!
//! The file's keys are the long flags' names. A key at the top is for every command that has such a flag; a table named like a command
//! is for that one: `[node.run] memory = "1G"`, or `["node.run"]`. The values become clap's defaults, so they are checked like flags. A key that no command
//! knows is an error: a misspelt option must not be silently without effect.

use crate::output::{Failure, Outcome, note};
use clap::builder::BoolishValueParser;
use clap::{Arg, ArgAction, Args, Command};
use conductor_client::Client;
use std::ffi::OsString;
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::{env, fs};
use wire::{ClientKey, ClusterKey, Key};

/// Before the address of a conductor that speaks TLS.
pub(crate) const HTTPS: &str = "https://";
/// Read if it exists and no other file is named.
const SYSTEM_FILE: &str = "/etc/trine/trine.toml";

/// Which cluster a command speaks to.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Which cluster")]
pub(crate) struct ClusterArgs {
    /// The conductor, or all of several: HOST:PORT,HOST:PORT,…; if not given, the one of the development cluster in --dir
    #[arg(long, env = "TRINE_CONDUCTOR", value_name = "HOST:PORT,…")]
    pub(crate) conductor: Option<String>,
    /// File with the cluster's key (64 hexadecimal digits), or a client's (see `trine client add`); if not given, the one in --dir
    #[arg(long, env = "TRINE_KEY_FILE", value_name = "FILE")]
    pub(crate) key_file: Option<PathBuf>,
    /// Everything that goes over TCP within the cluster is TLS 1.3: the same for all its daemons and commands. As good is https:// before
    /// the conductor's address. Certificates follow from the key file
    #[arg(long, env = "TRINE_TLS", value_parser = BoolishValueParser::new())]
    pub(crate) tls: bool,
    #[command(flatten)]
    pub(crate) dir: DirArgs,
}

/// A development cluster's directory.
#[derive(Clone, Debug, Args)]
pub(crate) struct DirArgs {
    /// Directory of a development cluster (see `trine dev`) [default: $XDG_STATE_HOME/trine-dev or ~/.local/state/trine-dev]
    #[arg(long, env = "TRINE_DIR", value_name = "DIR")]
    pub(crate) dir: Option<PathBuf>,
}

impl DirArgs {
    /// The directory, whether it exists or not.
    pub(crate) fn path(&self) -> Outcome<PathBuf> {
        let state = || match env::var_os("XDG_STATE_HOME").filter(|s| !s.is_empty()) {
            Some(state) => Some(PathBuf::from(state)),
            None => Some(PathBuf::from(env::var_os("HOME").filter(|h| !h.is_empty())?).join(".local/state")),
        };
        match &self.dir {
            Some(dir) => Ok(dir.clone()),
            None => Ok(state()
                .ok_or_else(|| Failure::usage("there is no home directory: pass --dir DIR"))?
                .join("trine-dev")),
        }
    }
}

impl ClusterArgs {
    /// The conductor's address, which says whether the cluster speaks TLS.
    pub(crate) fn address(&self) -> Outcome<String> {
        let address = self.address_as_given()?;
        if !self.tls {
            return Ok(address);
        }
        let secure = address.split(',').map(|one| match one.trim() {
            plain if plain.starts_with("http://") => Err(Failure::usage(format!("--tls: {plain} is not for TLS"))),
            one if one.starts_with("https://") => Ok(one.to_owned()),
            one => Ok(format!("{HTTPS}{one}")),
        });
        Ok(secure.collect::<Outcome<Vec<_>>>()?.join(","))
    }

    /// Whether the cluster speaks TLS.
    pub(crate) fn is_tls(&self) -> Outcome<bool> {
        Ok(self.tls || self.address_as_given()?.trim_start().starts_with(HTTPS))
    }

    fn address_as_given(&self) -> Outcome<String> {
        if let Some(address) = &self.conductor {
            return Ok(address.clone());
        }
        let dir = self.dir.path()?;
        let file = dir.join("conductor.addr");
        match fs::read_to_string(&file) {
            Ok(address) => Ok(address.trim().to_owned()),
            Err(_) => Err(Failure::usage(format!(
                "no conductor is known: pass --conductor HOST:PORT or set TRINE_CONDUCTOR, or start a development cluster with `trine dev start` (there is none in {})",
                dir.display()
            ))),
        }
    }

    /// A client of the conductor; nothing is sent yet. Without a key it is refused.
    pub(crate) fn client(&self) -> Outcome<Client> {
        let client = Client::new(&self.address()?)?;
        let key = match &self.key_file {
            Some(file) => Some(read_key(file)?),
            None => self.dir.path().ok().and_then(|dir| read_key(&dir.join("cluster.key")).ok()),
        };
        Ok(match key {
            Some(key) => client.with_key(key)?,
            None => client,
        })
    }

    /// The cluster's key.
    pub(crate) fn cluster_key(&self) -> Outcome<[u8; 32]> {
        read_cluster_key(&self.key_path()?)
    }

    /// The key that there is: the cluster's, or a client's.
    pub(crate) fn key(&self) -> Outcome<Key> {
        read_key(&self.key_path()?)
    }

    fn key_path(&self) -> Outcome<PathBuf> {
        match &self.key_file {
            Some(file) => Ok(file.clone()),
            None => Ok(self.dir.path()?.join("cluster.key")),
        }
    }
}

/// A file with the cluster's key, and no other.
pub(crate) fn read_cluster_key(file: &Path) -> Outcome<[u8; 32]> {
    match read_key(file)? {
        Key::Cluster(ClusterKey(key)) => Ok(key),
        Key::Client(key) => Err(Failure::usage(format!(
            "{} is the key of the client {}: this needs the cluster's",
            file.display(),
            key.card.name
        ))),
    }
}

/// A key file: 64 hexadecimal digits, or the line that `trine client add` printed.
fn read_key(file: &Path) -> Outcome<Key> {
    if fs::metadata(file).is_ok_and(|found| found.permissions().mode() & 0o007 != 0) {
        note(format_args!("trine: everybody on this machine can read the key {0}: chmod o= {0}", file.display()));
    }
    let text = fs::read_to_string(file)
        .map_err(|why| Failure::usage(format!("cannot read the key {}: {why} (see --key-file)", file.display())))?;
    let cluster = parse_key(text.trim()).map(|key| Key::Cluster(ClusterKey(key)));
    let key = cluster.or_else(|| ClientKey::from_line(&text).map(Key::Client));
    key.ok_or_else(|| {
        let file = file.display();
        Failure::usage(format!(
            "{file} is no key: it must hold 64 hexadecimal digits, or what `trine client add` printed"
        ))
    })
}

fn parse_key(text: &str) -> Option<[u8; 32]> {
    let mut key = [0; 32];
    if text.len() != 64 || !text.bytes().all(|b| b.is_ascii_hexdigit()) {
        return None;
    }
    for (n, byte) in key.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[2 * n..2 * n + 2], 16).ok()?;
    }
    Some(key)
}

/// Gives the options of `command` the file's values as defaults.
pub(crate) fn with_file(command: Command, args: &[OsString]) -> Outcome<Command> {
    let Some((file, must_exist)) = file_named(args) else { return Ok(command) };
    let text = match fs::read_to_string(&file) {
        Ok(text) => text,
        Err(why) if !must_exist && why.kind() == ErrorKind::NotFound => return Ok(command),
        Err(why) => return Err(Failure::usage(format!("cannot read the configuration {}: {why}", file.display()))),
    };
    apply(command, &text).map_err(|why| Failure::usage(format!("configuration {}: {why}", file.display())))
}

/// The file, and whether somebody named it.
fn file_named(args: &[OsString]) -> Option<(PathBuf, bool)> {
    for (n, arg) in args.iter().enumerate() {
        let text = arg.to_string_lossy();
        if text == "--" {
            break;
        }
        if text == "--config" {
            return args.get(n + 1).map(|file| (PathBuf::from(file), true));
        }
        if let Some(file) = text.strip_prefix("--config=") {
            return Some((PathBuf::from(file), true));
        }
    }
    match env::var_os("TRINE_CONFIG").filter(|file| !file.is_empty()) {
        Some(file) => Some((PathBuf::from(file), true)),
        None => Some((PathBuf::from(SYSTEM_FILE), false)),
    }
}

fn apply(command: Command, text: &str) -> Result<Command, String> {
    let table: toml::Table = text.parse().map_err(|why: toml::de::Error| {
        let before = why.span().and_then(|span| text.as_bytes().get(..span.start)).unwrap_or_default();
        let line = 1 + before.iter().filter(|byte| **byte == b'\n').count();
        format!("line {line}: {}", why.message())
    })?;
    let (general, tables): (toml::Table, toml::Table) = table.into_iter().partition(|(_, value)| !value.is_table());
    let special = tables.into_iter().try_fold(toml::Table::new(), put)?;
    for key in general.keys() {
        if !has_option(&command, key) {
            return Err(format!("no command has an option {key:?}"));
        }
    }
    set(command, &general, special, "")
}

/// Puts a table under the command that it is named like. `["conductor.run"]` is `[conductor.run]`: the latter cannot stand beside
/// `conductor = "HOST:PORT"`.
fn put(mut into: toml::Table, (name, value): (String, toml::Value)) -> Result<toml::Table, String> {
    let Some((first, rest)) = name.split_once('.') else {
        let toml::Value::Table(table) = value else { return Err(format!("{name} is no table")) };
        let toml::Value::Table(there) = into.entry(name).or_insert_with(|| toml::Table::new().into()) else {
            return Ok(into);
        };
        there.extend(table);
        return Ok(into);
    };
    let there = match into.remove(first) {
        Some(toml::Value::Table(there)) => there,
        _ => toml::Table::new(),
    };
    let there = put(there, (rest.to_owned(), value))?;
    into.insert(first.to_owned(), there.into());
    Ok(into)
}

fn has_option(command: &Command, key: &str) -> bool {
    option(command, key).is_some() || command.get_subcommands().any(|sub| has_option(sub, key))
}

fn option<'a>(command: &'a Command, key: &str) -> Option<&'a Arg> {
    command.get_arguments().find(|arg| arg.get_long() == Some(key) && key != "config")
}

fn set(mut command: Command, general: &toml::Table, special: toml::Table, path: &str) -> Result<Command, String> {
    for (key, value) in general {
        command = set_one(command, key, value, path)?;
    }
    let mut subcommands = toml::Table::new();
    for (key, value) in special {
        match value {
            toml::Value::Table(table) if command.find_subcommand(&key).is_some() => {
                subcommands.insert(key, toml::Value::Table(table));
            }
            _ if option(&command, &key).is_some() => command = set_one(command, &key, &value, path)?,
            // At the top only tables are special.
            _ if path.is_empty() => return Err(format!("there is no command {key:?}")),
            _ => return Err(format!("[{path}] has no option or command {key:?}")),
        }
    }
    let names: Vec<String> = command.get_subcommands().map(|sub| sub.get_name().to_owned()).collect();
    for name in names {
        let special = match subcommands.remove(&name) {
            Some(toml::Value::Table(table)) => table,
            _ => toml::Table::new(),
        };
        let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
        let mut wrong = None;
        command = command.mut_subcommand(&name, |sub| {
            set(sub.clone(), general, special, &path).unwrap_or_else(|why| {
                wrong = Some(why);
                sub
            })
        });
        if let Some(why) = wrong {
            return Err(why);
        }
    }
    Ok(command)
}

fn set_one(command: Command, key: &str, value: &toml::Value, path: &str) -> Result<Command, String> {
    let Some(arg) = option(&command, key) else { return Ok(command) };
    let (id, is_list) = (arg.get_id().to_string(), matches!(arg.get_action(), ArgAction::Append));
    if value.is_array() && !is_list {
        let of = if path.is_empty() { String::new() } else { format!("[{path}] ") };
        return Err(format!("{of}{key}: one value is expected, not a list"));
    }
    let one = |value: &toml::Value| match value {
        toml::Value::String(text) => Ok(text.clone()),
        toml::Value::Integer(number) => Ok(number.to_string()),
        toml::Value::Boolean(truth) => Ok(truth.to_string()),
        _ => Err(format!("{key} must be a string, a number, true, false, or a list of these")),
    };
    let values = match value {
        toml::Value::Array(list) => list.iter().map(one).collect::<Result<Vec<_>, _>>()?,
        value => vec![one(value)?],
    };
    // clap keeps defaults for as long as the process lives.
    let values: Vec<&'static str> = values.into_iter().map(|text| &*text.leak()).collect();
    Ok(command.mut_arg(id, |arg| arg.required(false).default_values(values)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::ArgMatches;

    fn command() -> Command {
        let long = |name: &'static str| Arg::new(name).long(name);
        Command::new("trine").subcommand(
            Command::new("node").subcommand(
                Command::new("run")
                    .arg(long("conductor").required(true))
                    .arg(long("memory").default_value("256M"))
                    .arg(long("disk").action(ArgAction::Append))
                    .arg(long("plaintext").action(ArgAction::SetTrue)),
            ),
        )
    }

    fn run(toml: &str, flags: &[&str]) -> ArgMatches {
        let command = apply(command(), toml).unwrap();
        let matches = command.get_matches_from([&["trine", "node", "run"], flags].concat());
        matches.subcommand().unwrap().1.subcommand().unwrap().1.clone()
    }

    #[test]
    fn the_file_stands_behind_flags_and_before_defaults() {
        let file = "conductor = \"a:1\"\n[node.run]\nmemory = \"1G\"\ndisk = [\"x\", \"y\"]\nplaintext = true\n";
        let matches = run(file, &[]);
        let value = |m: &ArgMatches, key: &str| m.get_one::<String>(key).cloned().unwrap();
        assert_eq!((value(&matches, "conductor"), value(&matches, "memory")), ("a:1".into(), "1G".into()));
        assert_eq!(matches.get_many::<String>("disk").unwrap().collect::<Vec<_>>(), ["x", "y"]);
        assert!(matches.get_flag("plaintext"));
        let matches = run(file, &["--memory", "2G", "--disk", "z", "--conductor", "b:2"]);
        assert_eq!((value(&matches, "conductor"), value(&matches, "memory")), ("b:2".into(), "2G".into()));
        assert_eq!(matches.get_many::<String>("disk").unwrap().collect::<Vec<_>>(), ["z"]);
        assert_eq!(value(&run("conductor = \"a:1\"", &[]), "memory"), "256M");
    }

    #[test]
    fn a_command_that_is_named_like_an_option_has_a_table_beside_it() {
        let long = |name: &'static str| Arg::new(name).long(name);
        let command = || {
            let run = Command::new("run").arg(long("memory")).arg(long("listen"));
            let conductor = Command::new("conductor").subcommand(run);
            Command::new("trine").subcommand(conductor).subcommand(Command::new("status").arg(long("conductor")))
        };
        let file = "conductor = \"a:1\"\n[\"conductor.run\"]\nmemory = \"1G\"\n[\"conductor\".run]\nlisten = \"b\"\n";
        assert!(apply(command(), file).unwrap_err().starts_with("line "), "TOML's own way does not work");
        let file = "conductor = \"a:1\"\n[\"conductor.run\"]\nmemory = \"1G\"\n";
        let matches = apply(command(), file).unwrap().get_matches_from(["trine", "conductor", "run"]);
        let run = matches.subcommand().unwrap().1.subcommand().unwrap().1;
        assert_eq!(run.get_one::<String>("memory").unwrap(), "1G");
        let both = "[\"conductor.run\"]\nmemory = \"1G\"\n[conductor.run]\nlisten = \"b\"\n";
        let matches = apply(command(), both).unwrap().get_matches_from(["trine", "conductor", "run"]);
        let run = matches.subcommand().unwrap().1.subcommand().unwrap().1;
        let value = |name| run.get_one::<String>(name).map(String::as_str);
        assert_eq!((value("memory"), value("listen")), (Some("1G"), Some("b")));
        assert_eq!(
            apply(command(), "[\"conductor.rum\"]\nx = 1").unwrap_err(),
            "[conductor] has no option or command \"rum\""
        );
    }

    #[test]
    fn a_key_that_nobody_knows_is_an_error() {
        for toml in
            ["memry = 1", "[node.run]\nmemry = 1", "[nod.run]\nmemory = 1", "= 1", "memory = 1.5", "[node]\nmemory = 1"]
        {
            assert!(apply(command(), toml).is_err(), "{toml}");
        }
        let why = |toml: &str| apply(command(), toml).unwrap_err();
        assert_eq!(why("[nod]\nx = 1"), "there is no command \"nod\"");
        assert_eq!(why("[node.run]\nx = 1"), "[node.run] has no option or command \"x\"");
        assert!(why("conductor = \"a:1\"\nrubbish").starts_with("line 2: "));
        let list = "[node.run] memory: one value is expected, not a list";
        assert_eq!(why("[node.run]\nmemory = [\"1G\", \"2G\"]"), list);
        assert_eq!(why("memory = [\"1G\"]"), list);
        assert!(why("[node.run]\nplaintext = [true]").contains("plaintext: one value"));
    }

    #[test]
    fn a_key_is_64_hexadecimal_digits() {
        assert_eq!(parse_key(&"0f".repeat(32)), Some([15; 32]));
        for bad in [String::new(), "0f".repeat(31), "0g".repeat(32), "é".repeat(32)] {
            assert_eq!(parse_key(&bad), None);
        }
    }
}
