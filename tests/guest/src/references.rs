//! `references`: holds what the documents say of the source to the source.
//!
//! In `docs/` and the README a place in the code is named as `path.rs` or `path.rs: name, name`, where the path may leave out folders
//! in front and may be of the kind `dir/{a,b}.rs`. Prints each path that is no file of the tree, each name that its file does
//! not define, each relative link that leads nowhere, each mutant of a rule that the rule's row in `docs/replication.md` does not name, and
//! each module of a folder whose `mod.rs` has a table of them that is not in it, in a line each, and exits with 1 if there is one.

#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, ensure};

fn main() -> Result<ExitCode> {
    let mut files = Files::of_the_tree()?;
    let documents: Vec<String> = files
        .paths
        .iter()
        .filter(|p| p.ends_with(".md") && (p.starts_with("docs/") || *p == "README.md"))
        .cloned()
        .collect();
    let (mut references, mut wrong) = (0, 0);
    for document in &documents {
        let text = fs::read_to_string(document).with_context(|| format!("cannot read {document}"))?;
        for (line, said) in (1..).zip(text.lines()) {
            for reference in in_backticks(said).flat_map(Reference::all_in) {
                references += 1;
                for complaint in files.check(&reference)? {
                    wrong += 1;
                    println!("{document}:{line}: {complaint}");
                }
            }
            for link in links(said).filter(|link| !leads_somewhere(document, link)) {
                wrong += 1;
                println!("{document}:{line}: the link {link} leads nowhere");
            }
        }
    }
    let mutants = fs::read_to_string(MUTANTS).with_context(|| format!("cannot read {MUTANTS}"))?;
    let rules = fs::read_to_string(RULES).with_context(|| format!("cannot read {RULES}"))?;
    let unnamed = mutants_without_a_row(&mutants, &rules);
    let unlisted = modules_without_a_row(&files)?;
    for complaint in unnamed.iter().chain(&unlisted) {
        wrong += 1;
        println!("{complaint}");
    }
    ensure!(
        references > 100,
        "only {references} references were found: their form has changed, and this is not what looks at them"
    );
    let of = documents.len();
    match wrong {
        0 => println!("references: {references} of {of} documents name what is there"),
        _ => println!("references: {wrong} of {of} documents name what is not there"),
    }
    Ok(if wrong == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Where mutants are listed, with the rules that they break, and where each rule has a row.
const MUTANTS: &str = "tests/mutants/table";
const RULES: &str = "docs/replication.md";

/// Mutants said to break a rule (`(rule 6)`, `(rules 8, 24)`) that no row of that rule names.
fn mutants_without_a_row(mutants: &str, rules: &str) -> Vec<String> {
    let rows: Vec<(Vec<&str>, &str)> = rules
        .lines()
        .filter_map(|line| {
            let (which, _) = line.strip_prefix("| ")?.split_once(" |")?;
            let numbers = which.split('(').next().unwrap_or_default();
            Some((numbers.split(", ").map(str::trim).collect(), line))
        })
        .collect();
    let mut complaints = Vec::new();
    for line in mutants.lines().filter(|line| !line.starts_with('#')) {
        let Some(name) = line.split_whitespace().next() else { continue };
        let said = line.rsplit_once("rule").map_or("", |(_, behind)| behind.split(')').next().unwrap_or_default());
        for rule in said.split(|c: char| !c.is_ascii_digit()).filter(|rule| !rule.is_empty()) {
            if !rows.iter().any(|(numbers, row)| numbers.contains(&rule) && row.contains(&format!("`{name}`"))) {
                complaints.push(format!("{RULES}: no row of rule {rule} names its mutant {name}"));
            }
        }
    }
    complaints
}

/// Modules of folders whose `mod.rs` begins with a table of its files that are not in that table.
fn modules_without_a_row(files: &Files) -> Result<Vec<String>> {
    let mut complaints = Vec::new();
    for path in files.paths.iter().filter(|path| path.ends_with("/mod.rs")) {
        let text = fs::read_to_string(path).with_context(|| format!("cannot read {path}"))?;
        if !text.contains("//! | file | what |") {
            continue;
        }
        for module in text.lines().filter_map(|line| line.strip_prefix("mod ")?.strip_suffix(';')) {
            if !text.contains(&format!("//! | `{module}` |")) {
                complaints.push(format!("{path}: {module} is not in the table of its files"));
            }
        }
    }
    Ok(complaints)
}

/// What begins a definition.
const KINDS: [&str; 9] = ["fn", "struct", "enum", "const", "static", "trait", "type", "mod", "macro_rules!"];

/// A place in the code, as a document names it.
#[derive(Debug, PartialEq)]
struct Reference {
    paths: Vec<String>,
    names: Vec<String>,
}

impl Reference {
    fn all_in(quoted: &str) -> Vec<Self> {
        let is_of_path = |c: char| c.is_ascii_alphanumeric() || "_./{},-".contains(c);
        let is_of_names = |c: char| c.is_ascii_alphanumeric() || "_:, ".contains(c);
        let mut found = Vec::new();
        let mut rest = quoted;
        while let Some(at) = rest.find(".rs") {
            let (before, after) = rest.split_at(at + ".rs".len());
            let start = before.rfind(|c| !is_of_path(c)).map_or(0, |at| at + 1);
            let names = after.strip_prefix(": ").unwrap_or_default();
            let names = &names[..names.find(|c| !is_of_names(c)).unwrap_or(names.len())];
            found.push(Self {
                paths: each_of(&before[start..]),
                names: names.split(',').map(|name| name.trim().to_owned()).filter(|name| !name.is_empty()).collect(),
            });
            rest = after;
        }
        found
    }
}

/// `dir/{a,b}.rs` is two paths.
fn each_of(path: &str) -> Vec<String> {
    let of = |(before, rest): (&str, &str)| {
        let (choices, after) = rest.split_once('}')?;
        Some(choices.split(',').map(|choice| format!("{before}{choice}{after}")).collect())
    };
    path.split_once('{').and_then(of).unwrap_or_else(|| vec![path.to_owned()])
}

struct Files {
    paths: Vec<String>,
    read: BTreeMap<String, String>,
}

impl Files {
    /// All below the current directory but what is built or hidden: a tree need not be a checkout.
    fn of_the_tree() -> Result<Self> {
        let (mut paths, mut dirs) = (Vec::new(), vec![PathBuf::from(".")]);
        while let Some(dir) = dirs.pop() {
            for entry in fs::read_dir(&dir).with_context(|| format!("cannot list {}", dir.display()))? {
                let entry = entry?;
                let name = entry.file_name();
                if name.to_string_lossy().starts_with('.') || name == "target" {
                    continue;
                }
                match entry.file_type()? {
                    kind if kind.is_dir() => dirs.push(entry.path()),
                    _ => paths.push(entry.path().strip_prefix(".")?.to_string_lossy().into_owned()),
                }
            }
        }
        paths.sort();
        Ok(Self { paths, read: BTreeMap::new() })
    }

    fn check(&mut self, reference: &Reference) -> Result<Vec<String>> {
        let mut complaints = Vec::new();
        for path in &reference.paths {
            let is_it = |file: &String| file.strip_suffix(path).is_some_and(|dir| dir.is_empty() || dir.ends_with('/'));
            let files: Vec<String> = self.paths.iter().filter(|file| is_it(file)).cloned().collect();
            if files.is_empty() {
                complaints.push(format!("there is no {path}"));
                continue;
            }
            for file in &files {
                if !self.read.contains_key(file) {
                    let text = fs::read_to_string(file).with_context(|| format!("cannot read {file}"))?;
                    self.read.insert(file.clone(), text);
                }
            }
            for name in &reference.names {
                if !files.iter().any(|file| defines(&self.read[file], name)) {
                    complaints.push(format!("{path} has no {name}"));
                }
            }
        }
        Ok(complaints)
    }
}

/// Is a thing of that name defined there? Of `Type::name` it may be a variant, at the beginning of a line.
fn defines(text: &str, name: &str) -> bool {
    let (of_type, last) = name.rsplit_once("::").map_or((false, name), |(_, last)| (true, last));
    KINDS.iter().any(|kind| has_word(text, &format!("{kind} {last}")))
        || (of_type && text.lines().any(|line| line.trim_start().starts_with(last) && has_word(line, last)))
}

fn has_word(text: &str, word: &str) -> bool {
    let is_of_word = |c: char| c.is_alphanumeric() || c == '_';
    text.match_indices(word)
        .any(|(at, _)| !text[..at].ends_with(is_of_word) && !text[at + word.len()..].starts_with(is_of_word))
}

fn in_backticks(line: &str) -> impl Iterator<Item = &str> {
    line.split('`').skip(1).step_by(2)
}

fn links(line: &str) -> impl Iterator<Item = &str> {
    line.split("](").skip(1).filter_map(|rest| Some(&rest[..rest.find(')')?]))
}

fn leads_somewhere(document: &str, link: &str) -> bool {
    let path = link.split('#').next().unwrap_or_default();
    let dir = Path::new(document).parent().unwrap_or(Path::new(""));
    path.is_empty() || path.contains("://") || dir.join(path).exists()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reference_is_a_path_and_the_names_behind_it() {
        let of = |paths: &[&str], names: &[&str]| Reference {
            paths: paths.iter().map(ToString::to_string).collect(),
            names: names.iter().map(ToString::to_string).collect(),
        };
        assert_eq!(Reference::all_in("node/mod.rs: done"), [of(&["node/mod.rs"], &["done"])]);
        assert_eq!(Reference::all_in("a/{b,c}.rs: x, Y::z"), [of(&["a/b.rs", "a/c.rs"], &["x", "Y::z"])]);
        assert_eq!(Reference::all_in("src/a.rs"), [of(&["src/a.rs"], &[])]);
        assert!(Reference::all_in("make test").is_empty());
    }

    #[test]
    fn what_is_not_there_is_complained_of() {
        let mut files = Files {
            paths: vec!["x/node/mod.rs".to_owned()],
            read: BTreeMap::from([(
                "x/node/mod.rs".to_owned(),
                "fn done_now() { say(\"ask\"); }\n    Said(u8),\n".to_owned(),
            )]),
        };
        let mut check = |said: &str| files.check(&Reference::all_in(said)[0]).unwrap();
        assert!(check("node/mod.rs: done_now").is_empty() && check("mod.rs").is_empty());
        assert_eq!(check("node/mod.rs: done"), ["node/mod.rs has no done"]);
        assert!(check("mod.rs: Word::Said").is_empty());
        assert_eq!(check("mod.rs: ask"), ["mod.rs has no ask"], "it is a word there, and no name");
        assert_eq!(check("de/mod.rs"), ["there is no de/mod.rs"]);
    }

    #[test]
    fn a_mutant_of_a_rule_is_named_in_its_row() {
        let rules = "| 3, 4 | kept | `a` |\n| 4 (store) | kept | `b` |\n| 11 | kept | `c` |\n";
        let of = |mutants: &str| mutants_without_a_row(mutants, rules);
        assert!(
            of("# (rule 9)\na  sim  1  x  it breaks (rules 3, 4)\nb  lib t - it (rule 4)\nz  lib t - none").is_empty()
        );
        assert_eq!(of("c  lib t - it breaks (rule 1)"), ["docs/replication.md: no row of rule 1 names its mutant c"]);
        assert_eq!(of("a  lib t - it breaks (rule 4)\na  lib t - and (rules 11)").len(), 1);
    }

    #[test]
    fn links_are_those_in_parentheses() {
        assert_eq!(links("see [a](b.md#c) and [d](https://e)").collect::<Vec<_>>(), ["b.md#c", "https://e"]);
        assert!(leads_somewhere("Cargo.toml", "#there") && !leads_somewhere("docs/a.md", "not-there.md"));
    }
}
