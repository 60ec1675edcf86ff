//! `dependencies`: holds the workspace to `tests/dependencies.toml`.
//!
//! Reads what cargo resolved (`cargo metadata`), prints each broken rule in a line, and exits with 1 if there is one:
//! which of our packages may use which, what a kind of package must never link (however far down), which crates exist once,
//! which licences are allowed, that every foreign crate comes from the one registry, and that pure packages forbid unsafe code.

#![forbid(unsafe_code)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, ensure};
use clap::Parser;
use serde::Deserialize;

/// The platform Trine runs on; what only other platforms need is not looked at.
const PLATFORM: &str = "x86_64-unknown-linux-gnu";
const FORBIDS_UNSAFE: &str = "#![forbid(unsafe_code)]";

#[derive(Parser)]
#[command(about = "Check the workspace against its dependency rules.")]
struct Cli {
    /// The rules; cargo is asked in the current directory
    #[arg(long, default_value = "tests/dependencies.toml")]
    rules: PathBuf,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Rules {
    /// SPDX identifiers; an expression passes if these alone can satisfy it.
    licences: BTreeSet<String>,
    /// Crates of which one version only may be linked.
    once: BTreeSet<String>,
    kinds: BTreeMap<String, KindRules>,
    packages: BTreeMap<String, PackageRules>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct KindRules {
    /// Crates that must not be linked, directly or through others.
    never: BTreeSet<String>,
    #[serde(default)]
    forbid_unsafe: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PackageRules {
    kind: String,
    /// Our own packages it may depend on directly; its tests may use any.
    uses: BTreeSet<String>,
}

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
    workspace_members: BTreeSet<String>,
    resolve: Resolve,
}

#[derive(Deserialize)]
struct Package {
    id: String,
    name: String,
    version: String,
    license: Option<String>,
    source: Option<String>,
    manifest_path: PathBuf,
    targets: Vec<Target>,
}

#[derive(Deserialize)]
struct Target {
    kind: Vec<String>,
    src_path: PathBuf,
}

#[derive(Deserialize)]
struct Resolve {
    nodes: Vec<Node>,
}

#[derive(Deserialize)]
struct Node {
    id: String,
    deps: Vec<Dep>,
}

#[derive(Deserialize)]
struct Dep {
    pkg: String,
    dep_kinds: Vec<DepKind>,
}

#[derive(Deserialize)]
struct DepKind {
    /// Absent for an ordinary dependency, else "dev" or "build".
    kind: Option<String>,
}

fn main() -> ExitCode {
    match act(&Cli::parse().rules) {
        Ok((broken, summary)) if broken.is_empty() => {
            println!("dependencies: {summary}");
            ExitCode::SUCCESS
        }
        Ok((broken, _)) => {
            for line in &broken {
                println!("dependencies: {line}");
            }
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("dependencies: {error:#}");
            ExitCode::from(2)
        }
    }
}

fn act(path: &Path) -> Result<(Vec<String>, String)> {
    let text = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let rules: Rules = toml::from_str(&text).with_context(|| path.display().to_string())?;
    let output = Command::new("cargo")
        .args(["metadata", "--format-version", "1", "--locked", "--filter-platform", PLATFORM])
        .output()
        .context("cannot run cargo")?;
    ensure!(output.status.success(), "cargo metadata failed: {}", String::from_utf8_lossy(&output.stderr).trim());
    let metadata: Metadata = serde_json::from_slice(&output.stdout).context("cargo metadata says something new")?;
    let house = House::new(&rules, &metadata);
    let broken = house.broken()?;
    let ours = metadata.workspace_members.len();
    Ok((broken, format!("{ours} packages of ours and {} others keep the rules", house.linked.len() - ours)))
}

struct House<'a> {
    rules: &'a Rules,
    ours: BTreeSet<&'a str>,
    packages: BTreeMap<&'a str, &'a Package>,
    nodes: BTreeMap<&'a str, &'a Node>,
    /// Everything that some build of ours contains, tests included.
    linked: BTreeSet<&'a str>,
}

impl<'a> House<'a> {
    fn new(rules: &'a Rules, metadata: &'a Metadata) -> Self {
        let packages = metadata.packages.iter().map(|package| (package.id.as_str(), package)).collect();
        let nodes: BTreeMap<_, _> = metadata.resolve.nodes.iter().map(|node| (node.id.as_str(), node)).collect();
        let ours = metadata.workspace_members.iter().map(String::as_str).collect();
        Self { rules, ours, packages, linked: nodes.keys().copied().collect(), nodes }
    }

    fn broken(&self) -> Result<Vec<String>> {
        let mut broken = Vec::new();
        for id in &self.ours {
            self.check_ours(self.packages[id], &mut broken)?;
        }
        for name in self.rules.packages.keys() {
            if !self.ours.iter().any(|id| self.packages[id].name == *name) {
                broken.push(format!("the table names {name}, which does not exist"));
            }
        }
        self.check_foreign(&mut broken);
        Ok(broken)
    }

    fn check_ours(&self, package: &Package, broken: &mut Vec<String>) -> Result<()> {
        let name = &package.name;
        let Some(rules) = self.rules.packages.get(name) else {
            broken.push(format!("{name} is not in the table"));
            return Ok(());
        };
        let Some(kind) = self.rules.kinds.get(&rules.kind) else {
            broken.push(format!("{name} is of kind '{}', which the table does not describe", rules.kind));
            return Ok(());
        };
        for used in self.uses(&package.id).filter(|used| self.ours.contains(used)) {
            let used = &self.packages[used].name;
            if !rules.uses.contains(used) {
                broken.push(format!("{name} must not use {used}"));
            }
        }
        for (linked, through) in self.everything_below(&package.id) {
            let linked = &self.packages[linked].name;
            if kind.never.contains(linked) {
                broken.push(format!("{name} is {} and must never link {linked} (here through {through})", rules.kind));
            }
        }
        if kind.forbid_unsafe {
            for target in
                package.targets.iter().filter(|target| target.kind.iter().any(|kind| kind == "lib" || kind == "bin"))
            {
                let source = fs::read_to_string(&target.src_path)
                    .with_context(|| format!("cannot read {}", target.src_path.display()))?;
                if !source.lines().any(|line| line == FORBIDS_UNSAFE) {
                    let file = package.manifest_path.parent().and_then(|dir| target.src_path.strip_prefix(dir).ok());
                    let file = file.unwrap_or(&target.src_path).display();
                    broken.push(format!("{name} is {} and its {file} lacks {FORBIDS_UNSAFE}", rules.kind));
                }
            }
        }
        Ok(())
    }

    fn check_foreign(&self, broken: &mut Vec<String>) {
        let mut versions: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        let mut registries = BTreeSet::new();
        for id in self.linked.iter().filter(|id| !self.ours.contains(*id)) {
            let package = self.packages[id];
            let name = &package.name;
            versions.entry(name).or_default().insert(&package.version);
            match package.source.as_deref() {
                Some(source) if source.starts_with("registry+") => {
                    registries.insert(source);
                }
                _ => broken.push(format!("{name} does not come from the registry")),
            }
            let licence = package.license.as_deref().unwrap_or_default();
            if !licence::satisfied(licence, &self.rules.licences) {
                broken.push(format!("{name} has the licence '{licence}', which is not allowed"));
            }
        }
        if registries.len() > 1 {
            broken.push(format!("crates come from {} registries, not from one", registries.len()));
        }
        for (name, versions) in versions {
            if versions.len() > 1 && self.rules.once.contains(name) {
                let versions: Vec<&str> = versions.into_iter().collect();
                broken.push(format!("{name} is linked in {} versions: {}", versions.len(), versions.join(", ")));
            }
        }
    }

    /// What a package depends on directly, for its build and its code, not for its tests.
    fn uses(&self, id: &str) -> impl Iterator<Item = &'a str> + use<'a> {
        let deps = self.nodes.get(id).map_or(&[][..], |node| &node.deps);
        deps.iter()
            .filter(|dep| dep.dep_kinds.iter().any(|kind| kind.kind.as_deref() != Some("dev")))
            .map(|dep| dep.pkg.as_str())
    }

    /// Everything below a package, each with the name of one package that depends on it.
    fn everything_below(&self, id: &'a str) -> BTreeMap<&'a str, &'a str> {
        let mut found = BTreeMap::new();
        let mut open = vec![id];
        while let Some(at) = open.pop() {
            for used in self.uses(at) {
                if !found.contains_key(used) {
                    found.insert(used, self.packages[at].name.as_str());
                    open.push(used);
                }
            }
        }
        found
    }
}

/// SPDX licence expressions, with the older "A/B" for "A OR B".
mod licence {
    use std::collections::BTreeSet;
    use std::iter::Peekable;

    /// Whether the allowed licences alone can satisfy the expression. One that cannot be read is not satisfied.
    pub(crate) fn satisfied(expression: &str, allowed: &BTreeSet<String>) -> bool {
        let spaced = expression.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
        let mut words = spaced.split_whitespace().peekable();
        any(&mut words, allowed).is_some_and(|good| good && words.peek().is_none())
    }

    type Words<'a, I> = Peekable<I>;

    fn any<'a, I: Iterator<Item = &'a str>>(words: &mut Words<'a, I>, allowed: &BTreeSet<String>) -> Option<bool> {
        let mut good = all(words, allowed)?;
        while words.next_if_eq(&"OR").is_some() {
            good |= all(words, allowed)?;
        }
        Some(good)
    }

    fn all<'a, I: Iterator<Item = &'a str>>(words: &mut Words<'a, I>, allowed: &BTreeSet<String>) -> Option<bool> {
        let mut good = one(words, allowed)?;
        while words.next_if_eq(&"AND").is_some() {
            good &= one(words, allowed)?;
        }
        Some(good)
    }

    fn one<'a, I: Iterator<Item = &'a str>>(words: &mut Words<'a, I>, allowed: &BTreeSet<String>) -> Option<bool> {
        match words.next()? {
            "(" => {
                let good = any(words, allowed)?;
                (words.next()? == ")").then_some(good)
            }
            ")" | "OR" | "AND" | "WITH" => None,
            id if words.next_if_eq(&"WITH").is_some() => {
                Some(allowed.contains(&format!("{id} WITH {}", words.next()?)))
            }
            id => Some(allowed.contains(id)),
        }
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn an_expression_is_satisfied_by_allowed_licences_alone() {
            let allowed = ["MIT", "BSD-3-Clause", "Apache-2.0 WITH LLVM-exception"].map(String::from).into();
            for good in
                ["MIT", "GPL-3.0 OR MIT", "GPL-3.0/MIT", "MIT AND BSD-3-Clause", "(GPL-3.0 OR MIT) AND BSD-3-Clause"]
            {
                assert!(satisfied(good, &allowed), "{good}");
            }
            assert!(satisfied("Apache-2.0 WITH LLVM-exception", &allowed));
            for bad in
                ["", "GPL-3.0", "Apache-2.0", "MIT AND GPL-3.0", "(MIT", "MIT OR", "MIT MIT", "MIT OR GPL-3.0 AND"]
            {
                assert!(!satisfied(bad, &allowed), "{bad}");
            }
        }
    }
}
