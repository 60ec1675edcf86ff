//! `trine man`: one page per command, made from the same tree as `--help`.

use crate::output::{Outcome, print};
use anyhow::Context;
use clap::{Arg, Args, Command, CommandFactory};
use std::fmt::Write;
use std::fs;
use std::path::PathBuf;

#[derive(Args)]
pub(crate) struct ManArgs {
    /// Directory to write trine.1, trine-volume.1, … into; made if it does not exist
    directory: PathBuf,
}

pub(crate) fn run(args: &ManArgs) -> Outcome {
    let directory = &args.directory;
    fs::create_dir_all(directory).with_context(|| format!("cannot make {}", directory.display()))?;
    let mut command = crate::Cli::command();
    command.build();
    let mut pages = Vec::new();
    collect(&command, "trine", &mut pages);
    for (name, page) in &pages {
        let file = directory.join(format!("{name}.1"));
        fs::write(&file, page).with_context(|| format!("cannot write {}", file.display()))?;
    }
    print(&format!("{} pages in {}", pages.len(), directory.display()))
}

fn collect(command: &Command, name: &str, pages: &mut Vec<(String, String)>) {
    pages.push((name.to_owned(), page(command, name)));
    for sub in command.get_subcommands() {
        collect(sub, &format!("{name}-{}", sub.get_name()), pages);
    }
}

fn page(command: &Command, name: &str) -> String {
    let mut page = format!(".TH {} 1 \"\" \"trine {}\"\n", name.to_uppercase(), env!("CARGO_PKG_VERSION"));
    let about = command.get_about().map(ToString::to_string).unwrap_or_default();
    let mut section = |title: &str, body: &str| {
        // Formatting into a String cannot fail.
        let _ = writeln!(page, ".SH {title}\n{body}");
    };
    section("NAME", &format!("{} \\- {}", escape(name), escape(&about)));
    let usage = command.clone().render_usage().to_string();
    section("SYNOPSIS", &escape(usage.trim_start_matches("Usage: ")));
    if let Some(long) = command.get_long_about() {
        section("DESCRIPTION", &escape(&long.to_string()));
    }
    let visible = || command.get_arguments().filter(|arg| !arg.is_hide_set());
    let options: String = visible().map(option).collect();
    if !options.is_empty() {
        section("OPTIONS", options.trim_end());
    }
    let commands: String = command.get_subcommands().map(|sub| subcommand(name, sub)).collect();
    if !commands.is_empty() {
        section("COMMANDS", commands.trim_end());
    }
    if let Some(notes) = command.get_after_help() {
        section("NOTES", &escape(&notes.to_string()).replace('\n', "\n.br\n"));
    }
    page
}

fn option(arg: &Arg) -> String {
    let value = arg.get_value_names().map(|names| names.join(" ")).filter(|_| arg.get_action().takes_values());
    let value = value.map(|value| format!(" \\fI{}\\fR", escape(&value))).unwrap_or_default();
    let names: Vec<String> = [arg.get_short().map(|s| format!("-{s}")), arg.get_long().map(|l| format!("--{l}"))]
        .into_iter()
        .flatten()
        .map(|flag| format!("\\fB{}\\fR", escape(&flag)))
        .collect();
    let mut help = arg.get_help().map(ToString::to_string).unwrap_or_default();
    let defaults: Vec<_> = arg.get_default_values().iter().map(|v| v.to_string_lossy()).collect();
    if arg.get_action().takes_values() && !defaults.is_empty() {
        let _ = write!(help, " [default: {}]", defaults.join(" "));
    }
    if let Some(variable) = arg.get_env() {
        let _ = write!(help, " [env: {}]", variable.to_string_lossy());
    }
    format!(".TP\n{}{value}\n{}\n", names.join(", "), escape(&help))
}

fn subcommand(name: &str, sub: &Command) -> String {
    let about = sub.get_about().map(ToString::to_string).unwrap_or_default();
    format!(".TP\n\\fB{}\\fR(1)\n{}\n", escape(&format!("{name}-{}", sub.get_name())), escape(&about))
}

/// Backslashes and hyphens are roff's own, and so are a dot or quote that begins a line.
fn escape(text: &str) -> String {
    let text = text.replace('\\', "\\e").replace('-', "\\-");
    let lines =
        text.lines().map(|line| if line.starts_with(['.', '\'']) { format!("\\&{line}") } else { line.to_owned() });
    lines.collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_has_a_page_that_names_its_options() {
        let mut command = crate::Cli::command();
        command.build();
        let mut pages = Vec::new();
        collect(&command, "trine", &mut pages);
        let create = &pages.iter().find(|(name, _)| name == "trine-volume-create").unwrap().1;
        assert!(
            create.starts_with(".TH TRINE-VOLUME-CREATE 1") && create.contains("\\fB\\-\\-size\\fR \\fISIZE\\fR"),
            "{create}"
        );
        assert!(pages[0].1.contains("Exit codes"));
    }

    #[test]
    fn what_roff_would_take_for_itself_is_escaped() {
        assert_eq!(escape(".x\n'y\na-b\\c"), "\\&.x\n\\&'y\na\\-b\\ec");
    }
}
