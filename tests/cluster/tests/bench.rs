//! `trine bench` on a real cluster: what it says of a load, what it refuses, and what it leaves behind.
#![allow(clippy::unwrap_used)] // a test: a panic is its way to fail

use cluster::{Cluster, Shape, wait_until};
use std::time::Duration;

#[test]
fn a_load_is_measured_and_leaves_nothing_behind() {
    let mut cluster = Cluster::start(Shape::default()).unwrap();
    cluster.create("db", 32, 4).unwrap();
    let writes = ["bench", "db", "--pattern", "randrw", "--time", "2s", "--depth", "8", "--flush", "10"];

    // What would be lost is asked for.
    let refused = cluster.try_trine(&writes).unwrap();
    assert!(refused.code == 2 && refused.stderr.contains("--overwrite"), "{refused:?}");

    let report = cluster.json(&[&writes[..], &["--overwrite"]].concat()).unwrap();
    let number = |path: &str| report.pointer(path).and_then(serde_json::Value::as_f64).unwrap_or(f64::NAN);
    let (requests, rate, seconds) = (number("/requests"), number("/rate"), number("/seconds"));
    assert!(requests > 10.0 && (1.5..60.0).contains(&seconds), "{report}");
    assert!((rate * seconds - requests).abs() < 1.0 + requests / 100.0, "{report}");
    let counted = |of: &str| -> f64 {
        let classes = report[of].as_array().unwrap();
        classes.iter().map(|class| class["count"].as_f64().unwrap()).sum()
    };
    assert!((counted("read_classes") + counted("write_classes") - requests).abs() < 0.5, "{report}");
    // Seven of ten, as it is by default.
    let part = counted("read_classes") / requests;
    assert!((0.4..0.95).contains(&part), "{part} of the requests read");
    for kind in ["reads", "writes"] {
        let of = |name: &str| number(&format!("/{kind}/{name}"));
        let order = [of("p50"), of("p90"), of("p99"), of("p999"), of("max")];
        assert!(order[0] > 0.0 && order.is_sorted() && of("mean") <= of("max"), "{report}");
    }
    let stages: Vec<&str> = report["stages"].as_array().unwrap().iter().map(|s| s["to"].as_str().unwrap()).collect();
    assert_eq!(stages, ["sent", "replied", "completed"]);

    // One at a time, each with a flush, which has nothing to do: the next write does not wait for the next second.
    let one = ["bench", "db", "--pattern", "randwrite", "--time", "2s", "--depth", "1", "--flush", "1", "--overwrite"];
    let report = cluster.json(&one).unwrap();
    assert!(report["requests"].as_f64().unwrap() > 20.0, "{report}");

    // Nobody has the volume afterwards, and its copies are equal.
    let place = cluster.attach("db").unwrap();
    let busy = cluster.try_trine(&[&writes[..], &["--overwrite"]].concat()).unwrap();
    assert!(busy.code == 5 && busy.stderr.contains("is in use"), "{busy:?}");
    let busy = cluster.try_trine(&["bench", "db"]).unwrap();
    let advised = busy.stderr.contains("db@SNAPSHOT") && !busy.stderr.contains("--force");
    assert!(busy.code == 5 && advised, "nobody reads beside a writer: {busy:?}");
    drop(place);
    cluster.detach("db").unwrap();

    // Two that only read share it, and a snapshot is read as well.
    cluster.trine(&["snapshot", "create", "db@s"]).unwrap();
    let reads = |subject| cluster.begin(&["bench", subject, "--time", "3s", "--size", "64K"]).unwrap();
    let running = [reads("db"), reads("db@s")];
    let shared = || Ok(cluster.json(&["client", "list"])?.to_string().contains("#bench"));
    wait_until("a reader is listed", Duration::from_secs(20), shared).unwrap();
    for running in running {
        let outcome = running.end().unwrap();
        assert!(outcome.code == 0 && outcome.stdout.contains("P99.9"), "{outcome:?}");
    }
    wait_until("nobody has it", Duration::from_secs(20), || Ok(!shared()?)).unwrap();
    for bad in [
        &["--size", "5000"][..],
        &["--size", "2M"],
        &["--depth", "0"],
        &["--time", "0s"],
        &["--overwrite"],
        &["--flush", "8"],
        &["--read-percent", "50"],
    ] {
        let outcome = cluster.try_trine(&[&["bench", "db"], bad].concat()).unwrap();
        assert_eq!(outcome.code, 2, "{bad:?}: {outcome:?}");
    }
    cluster.stop_and_compare().unwrap();
}
