//! What is not done is said in words that help, and before anybody is asked about it.
#![allow(clippy::unwrap_used, reason = "a test")]

mod common;

use common::{Dir, text};
use std::fs::OpenOptions;
use std::io::pipe;
use std::process::{Command, Stdio};

#[test]
fn nobody_is_asked_about_what_is_not_there() {
    let dir = Dir::new("refusals");
    dir.ok(&["dev", "start", "--disk-size", "64M", "--sparse"]);
    dir.ok(&["volume", "create", "db", "--size", "16M"]);
    dir.ok(&["snapshot", "create", "db@monday"]);
    for verb in ["delete", "rollback"] {
        assert!(dir.fails(4, &["snapshot", verb, "none@monday"]).contains("no volume none"));
        assert!(dir.fails(4, &["snapshot", verb, "db@none"]).contains("db has no snapshot none"));
        assert!(dir.fails(2, &["snapshot", verb, "db@monday"]).contains("--yes"), "of what is there it asks");
    }
    dir.ok(&["volume", "clone", "db@monday", "dev"]);
    let needed = dir.fails(5, &["snapshot", "delete", "db@monday"]);
    assert!(needed.contains("needed by its clones (dev)") && needed.contains("flatten"), "{needed}");
    dir.fails(5, &["snapshot", "delete", "db@monday", "--yes"]);
    dir.ok(&["volume", "delete", "dev", "--yes"]);
    let is_unneeded = || dir.json(&["snapshot", "list", "db"])[0]["clones"] == serde_json::json!([]);
    dir.wait_until("nobody needs it", is_unneeded);
    dir.ok(&["snapshot", "delete", "db@monday", "--yes"]);
}

#[test]
fn an_attach_that_nobody_hears_of_or_that_cannot_listen_says_so() {
    let dir = Dir::new("unheard");
    dir.ok(&["dev", "start", "--disk-size", "64M", "--sparse"]);
    dir.ok(&["volume", "create", "db", "--size", "16M"]);
    let socket = format!("unix:{}", dir.0.join("nbd").display());
    let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
    let output = dir.command(&["attach", "db", "--nbd", &socket]).stdout(full).output().unwrap();
    let said = text(&output.stderr);
    assert!(output.status.code() == Some(1) && said.contains("db is attached, as"), "{said}");
    assert!(said.contains(dir.0.to_str().unwrap()) && said.contains("No space left"), "{said}");
    let way = said.split('`').nth(1).unwrap().trim_start_matches("trine ");
    dir.ok(&way.split(' ').collect::<Vec<_>>());

    let at = |path: &str| format!("unix:{}", dir.0.join(path).display());
    std::fs::write(dir.0.join("file"), "mine").unwrap();
    let long = "x".repeat(108);
    for (path, way) in [("none/x", "make the directory"), ("file", "is no socket"), (&long, "107 bytes at most")] {
        let refused = dir.fails(1, &["attach", "db", "--nbd", &at(path)]);
        assert!(refused.contains("cannot listen on") && refused.contains(way), "{refused}");
    }
    let range = |range| dir.fails(2, &["attach", "db", "--nbd", &socket, "--shared", "--range", range]);
    assert!(range("write:0+0").contains("multiples of 4 KiB, and LENGTH is not 0"));
    let beyond = range("write:8M+16M");
    assert!(beyond.contains("reaches beyond the end of the volume, which has 16 MiB"), "{beyond}");
    dir.fails(4, &["detach", "db"]);
    assert!(dir.fails(4, &["resync", "list", "nope"]).contains("no volume nope"));
}

/// A pipe whose reader is gone.
fn unread() -> Stdio {
    let (_reader, writer) = pipe().unwrap();
    writer.into()
}

/// It is printed once: what nobody has got is not done.
#[test]
fn a_key_that_nobody_gets_is_no_success() {
    let dir = Dir::new("unread");
    dir.ok(&["dev", "start", "--disk-size", "64M", "--sparse"]);
    dir.ok(&["volume", "create", "db", "--size", "16M"]);
    let keys = || dir.json(&["client", "list"]).as_array().unwrap().len();
    let run = |args: &[&str], stdout: Stdio| {
        let output = dir.command(args).stdout(stdout).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{args:?}");
        text(&output.stderr)
    };
    let closed = |args: &[&str]| {
        let command = dir.command(args);
        let mut shell = Command::new("sh");
        shell.args(["-c", "exec \"$@\" >&-", "sh"]).arg(command.get_program()).args(command.get_args());
        shell.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?)))).stdin(Stdio::null());
        let output = shell.output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{args:?}");
        text(&output.stderr)
    };
    let add = ["client", "add", "web", "--volumes", "db"];
    assert!(closed(&add).contains("the standard output is closed"));
    assert_eq!(keys(), 0, "nothing was made");
    let said = run(&add, unread());
    let way = "the key web is made and could not be printed: `trine client rotate web --grace 0s --yes` makes";
    assert!(said.contains(way) && said.contains("Broken pipe"), "{said}");
    let rotate = ["client", "rotate", "web", "--grace", "0s", "--yes"];
    assert!(run(&rotate, unread()).contains(way));
    assert!(closed(&rotate).contains("the standard output is closed"));
    assert!(run(&[&rotate[..], &["-o", "json"]].concat(), unread()).contains(way));
    dir.ok(&rotate);
    // A listing's reader has read enough.
    let output = dir.command(&["client", "list"]).stdout(unread()).output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
}

/// All of it before anything is asked of a conductor: there is none.
#[test]
fn what_is_no_volumes_name_is_wrong_usage() {
    let dir = Dir::new("names");
    for command in [["volume", "show"], ["snapshot", "list"], ["resync", "list"]] {
        let said = dir.fails(2, &[command.as_slice(), &["db@monday"]].concat());
        assert!(said.contains("db@monday is a snapshot, of volume db: a volume"), "{said}");
    }
    for volumes in ["db,", ",db", ""] {
        let said = dir.fails(2, &["client", "add", "web", "--volumes", volumes]);
        assert!(said.contains("--volumes"), "{said}");
    }
    // No end of it could be told.
    for command in [
        &["volume", "create", "db", "--size", "1M", "--timeout"][..],
        &["snapshot", "rollback", "db@monday", "--timeout"],
        &["node", "drain", "n1", "--timeout"],
        &["disk", "remove", "d0123456789abcdef", "--wait", "--timeout"],
        &["client", "rotate", "web", "--grace"],
        &["conductor", "run", "--replace-after"],
    ] {
        let said = dir.fails(2, &[command, &["18446744073709551615s"]].concat());
        assert!(said.contains("at most 36500d"), "{said}");
    }
    assert!(dir.fails(2, &["client", "add", "web", "--volumes", "db@monday"]).contains("a snapshot, of volume db"));
}

#[test]
fn a_drain_that_does_not_come_to_an_end_says_why() {
    let dir = Dir::new("drain");
    dir.ok(&["dev", "start", "--disk-size", "64M", "--sparse"]);
    // With something in it that has to be filled.
    let image = dir.0.join("image");
    std::fs::write(&image, vec![7; 4 << 20]).unwrap();
    dir.ok(&["volume", "import", image.to_str().unwrap(), "db", "--copies", "2"]);
    let member = dir.json(&["volume", "show", "db"])["shards"][0]["members"][0].clone();
    let name = format!("n{}", member["node"]);
    dir.ok(&["resync", "rate", "0"]);
    let said = dir.fails(6, &["node", "drain", &name, "--timeout", "2s"]);
    assert!(said.contains("0 of 1 copies done; filling of copies: paused: `trine resync rate max`"), "{said}");

    // While it is emptied the volume is to have one copy more, which takes the place of the one that goes.
    dir.ok(&["node", "uncordon", &name]);
    let drain = dir.command(&["node", "drain", &name, "--timeout", "5s"]).stderr(Stdio::piped()).spawn().unwrap();
    dir.wait_until("it has begun", || dir.json(&["node", "show", &name])["info"]["duty"] == "draining");
    dir.ok(&["volume", "set", "db", "--copies", "3"]);
    let output = drain.wait_with_output().unwrap();
    let said = text(&output.stderr);
    assert!(output.status.code() == Some(6), "{said}");
    let why = format!("0 of 1 copies done; {name} is to be emptied, and has a copy of");
    assert!(said.contains(&why) && said.contains("that no other node can take: add a node"), "{said}");
    assert!(said.contains("; filling of copies: paused") && said.contains("; db: 1 copy "), "{said}");

    dir.ok(&["resync", "rate", "max"]);
    dir.ok(&["volume", "set", "db", "--copies", "2"]);
    dir.ok(&["node", "drain", &name]);

    // Likewise of a disk.
    dir.ok(&["node", "uncordon", &name]);
    dir.ok(&["resync", "rate", "0"]);
    let member = dir.json(&["volume", "show", "db"])["shards"][0]["members"][0].clone();
    let disk = member["disk"].as_str().unwrap();
    let said = dir.fails(6, &["disk", "remove", disk, "--wait", "--timeout", "2s"]);
    assert!(said.contains(&format!("emptying disk {disk} is not over, and goes on: 0 of 1 copies")), "{said}");
    assert!(said.contains("filling of copies: paused"), "{said}");
    dir.ok(&["disk", "remove", disk, "--cancel"]);
}

#[test]
fn what_somebody_else_ended_is_not_waited_for() {
    let dir = Dir::new("ended");
    dir.ok(&["dev", "start", "--disk-size", "64M", "--sparse"]);
    let image = dir.0.join("image");
    std::fs::write(&image, vec![7; 4 << 20]).unwrap();
    dir.ok(&["volume", "import", image.to_str().unwrap(), "db", "--copies", "2"]);
    dir.ok(&["resync", "rate", "0"]);
    let member = dir.json(&["volume", "show", "db"])["shards"][0]["members"][0].clone();
    let (name, disk) = (format!("n{}", member["node"]), member["disk"].as_str().unwrap());
    let show = || dir.json(&["node", "show", &name])["info"].clone();
    let of_disk = |what: &str| {
        let disks = show()["disks"].as_array().unwrap().clone();
        disks.into_iter().find(|other| other["disk"] == disk).unwrap()[what].clone()
    };
    let is_ended = |args: &[&str], has_begun: &dyn Fn() -> bool, end: &[&str], why: &str| {
        let waits = dir
            .command(&[args, &["--timeout", "20s"]].concat())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        dir.wait_until("it has begun", has_begun);
        dir.ok(end);
        let output = waits.wait_with_output().unwrap();
        let said = text(&output.stderr);
        assert!(output.status.code() == Some(1) && said.contains(why), "{said}");
    };
    let drain = ["node", "drain", &name];
    let drains = || show()["duty"] == "draining";
    is_ended(
        &drain,
        &drains,
        &["node", "uncordon", &name],
        &format!("the drain of {name} was ended: it takes new copies"),
    );
    is_ended(&drain, &drains, &["node", "cordon", &name], "it goes on with the copies that it has");
    dir.ok(&["node", "uncordon", &name]);
    let cancel = ["disk", "remove", disk, "--cancel"];
    let removal = format!("the removal of disk {disk} was ended: it stays");
    is_ended(&["disk", "remove", disk, "--wait"], &|| of_disk("leaving") == true, &cancel, &removal);
    let second = dir.0.join("second");
    let replace = ["disk", "replace", disk, second.to_str().unwrap(), "--create", "64M"];
    let replacement = format!("the replacement of disk {disk} by d");
    is_ended(&replace, &|| of_disk("successor").is_string(), &cancel, &replacement);
}

/// No thread can be made with a stack that nothing has room for.
#[test]
fn a_conductor_is_asked_where_the_system_has_no_thread_to_give() {
    let dir = Dir::new("no-thread");
    let ask = |address: &str| {
        let mut command = dir.command(&["volume", "list", "--conductor", address]);
        let output = command.env("RUST_MIN_STACK", (1_u64 << 50).to_string()).output().unwrap();
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(3), "{said}");
        said
    };
    assert!(ask("127.0.0.1:1").contains("refused"));
    let named = ask("localhost:1");
    assert!(named.contains("no thread to look up its name"), "{named}");
}

/// With this limit of RLIMIT_FSIZE, in whatever unit the shell has.
fn limited(command: &Command, limit: u32) -> Command {
    let mut shell = Command::new("sh");
    shell.args(["-c", &format!("ulimit -f {limit}; exec \"$@\""), "sh"]).arg(command.get_program());
    shell.args(command.get_args()).envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    shell.stdin(Stdio::null());
    shell
}

/// It is good, or not there at all: nobody is to move it away.
#[test]
fn a_state_that_the_system_does_not_open_is_not_called_damaged() {
    let dir = Dir::new("withheld");
    let at = |name: &str| dir.0.join(name).display().to_string();
    std::fs::write(at("key"), "1f".repeat(32)).unwrap();
    let run = |state: &str| {
        let store = format!("redb:{}", at(state));
        dir.command(&["conductor", "run", "--listen", "127.0.0.1:0", "--key-file", &at("key"), "--store", &store])
    };
    let said = |command: &mut Command| {
        let output = command.output().unwrap();
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{said}");
        said
    };
    std::os::unix::fs::symlink(at("loop"), at("loop")).unwrap();
    let withheld = said(&mut run("loop"));
    assert!(withheld.contains(&at("loop")) && withheld.contains("os error 40"), "{withheld}");
    assert!(withheld.contains("nothing says that it is damaged"), "{withheld}");
    let unmade = said(&mut limited(&run("new"), 0));
    assert!(unmade.contains("cannot make the conductor's state") && unmade.contains("os error 27"), "{unmade}");
    assert!(unmade.contains("no cluster is made") && !unmade.contains("a new cluster is made"), "{unmade}");
    assert!(!withheld.contains("move it away") && !unmade.contains("move it away"));
    // What is no state is another thing.
    std::fs::write(at("other"), "something else").unwrap();
    let other = said(&mut run("other"));
    assert!(other.contains("move it away") && other.contains("trine conductor recover"), "{other}");
}

#[test]
fn what_is_done_and_cannot_be_said_is_not_denied() {
    let dir = Dir::new("unsaid");
    dir.ok(&["dev", "start", "--disk-size", "64M", "--sparse"]);
    let file = |name: &str| dir.0.join(name).display().to_string();
    std::fs::write(file("in"), vec![7; 1 << 20]).unwrap();
    let unsaid = |args: &[&str], done: &str| {
        let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
        let output = dir.command(args).stdout(full).output().unwrap();
        let said = text(&output.stderr);
        let way = format!("it is done, and could not be printed ({done}");
        assert!(output.status.code() == Some(1) && said.contains(&way) && said.contains("No space left"), "{said}");
    };
    unsaid(&["volume", "create", "db", "--size", "1M"], "volume db created: 1 MiB");
    unsaid(&["snapshot", "create", "db@a"], "snapshot db@a created: 1 MiB");
    unsaid(&["volume", "import", &file("in"), "copy"], "copy imported from ");
    unsaid(&["conductor", "backup", &file("backup")], &format!("{}: cluster k", file("backup")));
    unsaid(&["volume", "delete", "copy", "--yes", "-o", "json"], "volume copy deleted");
}

#[test]
fn a_file_that_may_not_grow_is_an_error_in_words() {
    let dir = Dir::new("file-size");
    dir.ok(&["dev", "start", "--disk-size", "64M", "--sparse"]);
    let file = |name: &str| dir.0.join(name).display().to_string();
    std::fs::write(file("in"), vec![7; 4 << 20]).unwrap();
    dir.ok(&["volume", "import", &file("in"), "db"]);
    let output = limited(&dir.command(&["volume", "export", "db", &file("out")]), 1).output().unwrap();
    let said = text(&output.stderr);
    assert!(output.status.code() == Some(1) && said.contains("os error 27"), "{output:?}");
}
