//! Volumes as files: what is imported comes out again, and what fails leaves nothing behind.
#![allow(clippy::unwrap_used, reason = "a test")]

mod common;

use common::{Dir, text};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::fs;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

#[test]
fn an_image_goes_in_and_comes_out_with_its_holes() {
    let dir = Dir::new("image");
    dir.ok(&["dev", "start", "--disk-size", "256M", "--sparse"]);
    let file = |name: &str| dir.0.join(name).to_str().unwrap().to_owned();
    // 40 MiB and a bit, of which four pieces are something: at the beginning, across a piece's end, in the middle of a block, at the end.
    let mut image = vec![0; (40 << 20) + 1234];
    for (at, len) in [(0, 70_000), ((3 << 20) - 5000, 10_000), ((17 << 20) + 77, 3), ((40 << 20) - 100, 1334)] {
        image[at..at + len].iter_mut().zip(1..).for_each(|(byte, n): (&mut u8, u32)| *byte = (n % 251) as u8 + 1);
    }
    fs::write(file("in"), &image).unwrap();
    let said = dir.json(&["volume", "import", &file("in"), "db", "--shard-size", "16M"]);
    assert_eq!(said["bytes"], image.len());
    assert!(said["data"].as_u64().unwrap() <= 8 * 65536, "zeros are not sent: {said}");
    image.resize(image.len().next_multiple_of(4096), 0);
    assert_eq!(dir.json(&["volume", "show", "db"])["info"]["size"], image.len());

    let said = dir.json(&["volume", "export", "db", &file("out")]);
    assert!(said["data"].as_u64().unwrap() <= 8 * 65536, "what nobody wrote is not read: {said}");
    assert!(fs::read(file("out")).unwrap() == image, "another image came out");
    assert!(fs::metadata(file("out")).unwrap().blocks() * 512 <= 8 * 65536, "the file has no holes");
    let piped = dir.trine(&["volume", "export", "db", "-"]);
    assert!(piped.status.success() && piped.stdout == image, "{}", text(&piped.stderr));
    assert!(text(&piped.stderr).starts_with("db exported to the standard output: 40 MiB"), "{}", text(&piped.stderr));

    // One that stands still at its pipe is not displaced by a second one; a killed one is.
    let mut stands = dir.command(&["volume", "export", "db", "-"]).stdout(Stdio::piped()).spawn().unwrap();
    dir.wait_until("it reads", || dir.json(&["volume", "show", "db"])["info"]["readers"][0].is_object());
    let second = dir.fails(5, &["volume", "export", "db", &file("second")]);
    assert!(second.contains("runs on this host already") && !Path::new(&file("second.part")).exists(), "{second}");
    stands.kill().unwrap();
    stands.wait().unwrap();
    dir.ok(&["volume", "export", "db", &file("second")]);

    // Somebody uses the volume: its snapshot can be had, and is what it was.
    dir.ok(&["snapshot", "create", "db@then"]);
    dir.ok(&["attach", "db", "--nbd", &format!("unix:{}", file("nbd"))]);
    let taken = dir.fails(5, &["volume", "export", "db", &file("taken")]);
    assert!(taken.contains("trine volume export db@SNAPSHOT") && !Path::new(&file("taken")).exists(), "{taken}");
    dir.ok(&["volume", "export", "db@then", &file("then")]);
    assert!(fs::read(file("then")).unwrap() == image);
    dir.ok(&["detach", "db"]);

    // Through a pipe, into a volume that is larger.
    let mut child = dir
        .command(&["volume", "import", "-", "piped", "--size", "64M", "--short"])
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(&image).unwrap();
    assert!(child.wait().unwrap().success());
    dir.ok(&["volume", "export", "piped", &file("piped")]);
    image.resize(64 << 20, 0);
    assert!(fs::read(file("piped")).unwrap() == image);
}

/// As late as it can be: the file has its name.
#[test]
fn an_export_that_is_done_was_not_interrupted() {
    let dir = Dir::new("late-signal");
    dir.ok(&["dev", "start", "--disk-size", "64M", "--sparse"]);
    dir.ok(&["volume", "create", "db", "--size", "1M"]);
    for n in 0..10 {
        let file = dir.0.join(format!("out{n}"));
        let mut command = dir.command(&["volume", "export", "db", file.to_str().unwrap()]);
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        while !file.exists() && child.try_wait().unwrap().is_none() {}
        let _gone = kill(Pid::from_raw(child.id().cast_signed()), Signal::SIGINT);
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success() && file.exists(), "{output:?}");
    }
}

#[test]
fn an_image_that_does_not_go_in_leaves_no_volume_and_one_that_does_not_come_out_no_file() {
    let dir = Dir::new("half-image");
    dir.ok(&["dev", "start", "--disk-size", "64M", "--sparse"]);
    let file = |name: &str| dir.0.join(name).to_str().unwrap().to_owned();
    fs::write(file("in"), vec![7; 3 << 20]).unwrap();
    dir.fails(4, &["volume", "export", "none", &file("out")]);
    assert!(!Path::new(&file("out")).exists());
    assert!(dir.fails(1, &["volume", "import", &file("none"), "db"]).contains("none"));
    // A VHD of fixed size: the disk, and a footer.
    let footer = [b"conectix".as_slice(), &[0; 504]].concat();
    fs::write(file("vhd"), [vec![7; 1 << 20], footer].concat()).unwrap();
    assert!(dir.fails(2, &["volume", "import", &file("vhd"), "db"]).contains("vhd is a vpc image, not a raw one"));
    assert!(dir.fails(2, &["volume", "import", "-", "db"]).contains("--size"));
    assert!(dir.fails(2, &["volume", "import", &file("in"), "db", "--size", "2M"]).contains("3 MiB"));
    assert_eq!(dir.json(&["volume", "list"]), serde_json::json!([]));
    // Its copies are deleted a moment later.
    let is_deleted = || dir.wait_until("no volume is left", || dir.json(&["volume", "list"]) == serde_json::json!([]));

    let import = |args: &[&str]| {
        let mut command = dir.command(&[&["volume", "import", "-"], args].concat());
        command.stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    // More comes than there is room for.
    let mut child = import(&["db", "--size", "2M"]);
    let _until_it_ends = child.stdin.take().unwrap().write_all(&[7; 3 << 20]);
    let output = child.wait_with_output().unwrap();
    assert!(output.status.code() == Some(1) && text(&output.stderr).contains("longer than the volume"), "{output:?}");
    is_deleted();

    // Less comes than was said.
    let mut child = import(&["db", "--size", "8M"]);
    child.stdin.take().unwrap().write_all(&[7; 1 << 20]).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.code() == Some(1) && text(&output.stderr).contains("only 1048576 of"), "{output:?}");
    is_deleted();

    // It is interrupted while it waits for its pipe.
    let mut child = import(&["db", "--size", "8M"]);
    let mut pipe = child.stdin.take().unwrap();
    pipe.write_all(&[7; 1 << 20]).unwrap();
    dir.wait_until("the volume is attached", || dir.json(&["volume", "list"])[0]["attachment"].is_object());
    kill(Pid::from_raw(child.id().cast_signed()), Signal::SIGINT).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.code() == Some(1) && text(&output.stderr).contains("interrupted"), "{output:?}");
    is_deleted();

    // It is interrupted before its volume serves: a node stands still.
    let still = dir.json(&["dev", "status"])[1]["pid"].as_i64().unwrap();
    let still = Pid::from_raw(i32::try_from(still).unwrap());
    kill(still, Signal::SIGSTOP).unwrap();
    let child = import(&["db", "--size", "8M"]);
    dir.wait_until("there is a volume", || dir.json(&["volume", "list"])[0]["name"] == "db.importing");
    kill(Pid::from_raw(child.id().cast_signed()), Signal::SIGINT).unwrap();
    let output = child.wait_with_output().unwrap();
    kill(still, Signal::SIGCONT).unwrap();
    assert!(output.status.code() == Some(1) && text(&output.stderr).contains("interrupted before"), "{output:?}");
    is_deleted();

    // The volume is deleted meanwhile, and somebody makes another one by that name: that is nobody's but theirs.
    let mut child = import(&["db", "--size", "8M"]);
    let pipe = child.stdin.take().unwrap();
    dir.wait_until("the volume is attached", || dir.json(&["volume", "list"])[0]["attachment"].is_object());
    dir.ok(&["volume", "delete", "db.importing", "--yes", "--force"]);
    is_deleted();
    dir.ok(&["volume", "create", "db.importing", "--size", "1M"]);
    kill(Pid::from_raw(child.id().cast_signed()), Signal::SIGHUP).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.code() == Some(1) && text(&output.stderr).contains("interrupted"), "{output:?}");
    drop(pipe);
    assert_eq!(dir.json(&["volume", "list"])[0]["size"], 1 << 20);
    dir.ok(&["volume", "delete", "db.importing", "--yes"]);
    is_deleted();

    // It is killed: what it leaves has not the name of a whole one, and is not taken for one by the next.
    let mut child = import(&["db", "--size", "8M"]);
    let pipe = child.stdin.take().unwrap();
    dir.wait_until("the volume is attached", || dir.json(&["volume", "list"])[0]["attachment"].is_object());
    let there = dir.fails(5, &["volume", "import", &file("in"), "db"]);
    assert!(there.contains("another import to db is under way on this host"), "{there}");
    child.kill().unwrap();
    child.wait().unwrap();
    drop(pipe);
    assert_eq!(dir.json(&["volume", "list"])[0]["name"], "db.importing");
    let there = dir.fails(5, &["volume", "import", &file("in"), "db"]);
    assert!(there.contains("an import to db from this host was killed"), "{there}");
    let way = there.split('`').nth(1).unwrap().trim_start_matches("trine ");
    dir.ok(&way.split(' ').chain(["--yes"]).collect::<Vec<_>>());
    is_deleted();

    // Somebody else takes the name meanwhile.
    let mut child = import(&["db", "--size", "8M"]);
    let mut pipe = child.stdin.take().unwrap();
    dir.wait_until("the volume is attached", || dir.json(&["volume", "list"])[0]["attachment"].is_object());
    dir.ok(&["volume", "create", "db", "--size", "1M"]);
    pipe.write_all(&[7; 8 << 20]).unwrap();
    drop(pipe);
    let output = child.wait_with_output().unwrap();
    let said = text(&output.stderr);
    assert!(output.status.code() == Some(5) && said.contains("`trine volume rename db.importing db`"), "{output:?}");
    dir.ok(&["volume", "rename", "db.importing", "db2"]);
    dir.ok(&["volume", "export", "db2", &file("whole")]);
    assert!(fs::read(file("whole")).unwrap() == [7; 8 << 20]);
    dir.ok(&["volume", "delete", "db2", "--yes"]);
    dir.wait_until("only theirs is left", || {
        let left = dir.json(&["volume", "list"]);
        left.as_array().unwrap().len() == 1 && left[0]["size"] == 1 << 20
    });
    dir.ok(&["volume", "delete", "db", "--yes"]);
    is_deleted();

    // A volume that was there before is left as it is, and so is a file.
    dir.ok(&["volume", "import", &file("in"), "db"]);
    dir.fails(5, &["volume", "import", &file("in"), "db"]);
    let there = dir.fails(5, &["volume", "export", "db", &file("in")]);
    assert!(there.contains("/in exists: name another file, or move it away"), "{there}");
    let there = dir.fails(5, &["volume", "export", "db", dir.0.to_str().unwrap()]);
    assert!(there.contains("is a directory: name a new file in it"), "{there}");
    fs::write(file("out.part"), "half").unwrap();
    let there = dir.fails(5, &["volume", "export", "db", &file("out")]);
    assert!(there.contains("/out.part exists") && there.contains("cut short: delete it"), "{there}");
    fs::remove_file(file("out.part")).unwrap();
    dir.ok(&["volume", "export", "db", &file("out")]);
    assert!(fs::read(file("out")).unwrap() == fs::read(file("in")).unwrap());

    // A standard stream that is closed takes nothing, and has none; to nowhere on purpose is another thing.
    let shell = |redirected: &str, args: &[&str]| {
        let trine = dir.command(args);
        let mut shell = Command::new("sh");
        shell.args(["-c", &format!("exec \"$0\" \"$@\" {redirected}")]).arg(trine.get_program()).args(trine.get_args());
        shell.env("TRINE_DIR", dir.cluster()).env("TRINE_CONFIG", "/dev/null").output().unwrap()
    };
    let output = shell(">&-", &["volume", "export", "db", "-"]);
    assert!(output.status.code() == Some(1) && text(&output.stderr).contains("output is closed"), "{output:?}");
    let output = shell(">/dev/null", &["volume", "export", "db", "-"]);
    assert!(output.status.success(), "{output:?}");
    let from = ["volume", "import", "-", "nothing", "--size", "1M", "--short"];
    let output = shell("<&-", &from);
    assert!(output.status.code() == Some(1) && text(&output.stderr).contains("input is closed"), "{output:?}");
    let output = shell("</dev/null", &from);
    assert!(output.status.success(), "{output:?}");

    // What an image of another format holds is not the disk: from a file or a pipe, unless that is wanted.
    let qcow2 = [b"QFI\xfb\0\0\0\x03".as_slice(), &[7; 1 << 20]].concat();
    fs::write(file("qcow2"), &qcow2).unwrap();
    let refused = dir.fails(2, &["volume", "import", &file("qcow2"), "q"]);
    assert!(refused.contains("`qemu-img convert -f qcow2 -O raw") && refused.contains("--raw"), "{refused}");
    assert!(!refused.contains("deleted again"), "it was never made: {refused}");
    let mut child = import(&["q", "--size", "8M", "--short"]);
    let _until_it_ends = child.stdin.take().unwrap().write_all(&qcow2);
    let output = child.wait_with_output().unwrap();
    assert!(output.status.code() == Some(2) && text(&output.stderr).contains("a qcow2 image"), "{output:?}");
    dir.wait_until("it is gone", || dir.trine(&["volume", "show", "q"]).status.code() == Some(4));
    dir.ok(&["volume", "import", &file("qcow2"), "q", "--raw"]);
    dir.ok(&["volume", "export", "q", &file("q")]);
    assert!(fs::read(file("q")).unwrap().starts_with(&qcow2));

    // Zeros without end are too many, too.
    assert!(!Path::new(&file("out.part")).exists() && !Path::new(&file("in.part")).exists());
    let full = dir.fails(1, &["volume", "import", "/dev/zero", "zero", "--size", "1M"]);
    assert!(full.contains("longer than the volume"), "{full}");
}

/// A process that goes on when this ends.
struct Still(Pid);

impl Still {
    fn of(dir: &Dir, nth: usize) -> Self {
        let pid = dir.json(&["dev", "status"])[nth]["pid"].as_i64().unwrap();
        let still = Self(Pid::from_raw(i32::try_from(pid).unwrap()));
        kill(still.0, Signal::SIGSTOP).unwrap();
        still
    }
}

impl Drop for Still {
    fn drop(&mut self) {
        let _gone = kill(self.0, Signal::SIGCONT);
    }
}

/// What it says when it is told to end, which it does soon.
fn interrupted(child: Child) -> String {
    let told = Instant::now();
    kill(Pid::from_raw(child.id().cast_signed()), Signal::SIGTERM).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(told.elapsed() < Duration::from_secs(15), "{:?}: {output:?}", told.elapsed());
    text(&output.stderr)
}

#[test]
fn without_a_conductor_who_is_told_to_end_does_so_and_says_what_is_left() {
    let dir = Dir::new("no-conductor");
    dir.ok(&["dev", "start", "--disk-size", "64M", "--sparse"]);
    let way = |said: &str| said.split('`').nth(1).unwrap().trim_start_matches("trine ").replace('\'', "");
    let start = |args: &[&str]| {
        let mut command = dir.command(args);
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap()
    };

    let node = Still::of(&dir, 1);
    let import = start(&["volume", "import", "-", "db", "--size", "8M"]);
    dir.wait_until("there is a volume", || dir.json(&["volume", "list"])[0]["name"] == "db.importing");
    let conductor = Still::of(&dir, 0);
    let said = interrupted(import);
    drop((conductor, node));
    assert!(said.contains("and it was interrupted") && said.contains("could not be deleted"), "{said}");
    dir.ok(&way(&said).split(' ').chain(["--yes"]).collect::<Vec<_>>());

    dir.ok(&["volume", "create", "db", "--size", "8M"]);
    let readers = || dir.json(&["volume", "show", "db"])["info"]["readers"].as_array().unwrap().len();
    let bench = start(&["bench", "db", "--time", "10m"]);
    dir.wait_until("it has the volume", || readers() == 1);
    let conductor = Still::of(&dir, 0);
    let said = interrupted(bench);
    drop(conductor);
    assert!(said.contains("it may stay attached"), "{said}");
    assert!(way(&said).starts_with("client evict ") && said.contains(&way(&said)["client evict ".len()..]), "{said}");
}
