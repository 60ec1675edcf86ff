//! What is printed when all suites are done.

use std::fmt::Write;
use std::time::Duration;

use crate::budget::{Place, Suite};
use crate::run::{Outcome, Verdict};

/// The table, the line of totals, and whether everything passed.
pub(crate) fn table(done: &[(&Suite, Verdict)]) -> (String, String, bool) {
    let mut text = String::new();
    let mut line = |cells: [&str; 6]| {
        let [name, place, planned, used, tests, result] = cells;
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{name:<14} {place:<6} {planned:>9} {used:>9} {tests:>7}  {result}");
    };
    line(["suite", "where", "planned", "used", "tests", "result"]);
    let (mut planned, mut used, mut passed, mut tests) = (Duration::ZERO, Duration::ZERO, 0, 0);
    for (suite, verdict) in done {
        planned += suite.planned();
        used += verdict.used;
        let counted = verdict.tests.passed + verdict.tests.failed;
        tests += counted;
        let result = match &verdict.result {
            Outcome::Passed => {
                passed += 1;
                "passed".to_owned()
            }
            Outcome::Failed(reason) => format!("FAILED, {reason}"),
            Outcome::OverBudget => "FAILED, far over its budget".to_owned(),
        };
        line([
            &suite.name,
            &suite.place.to_string(),
            &minutes(suite.planned()),
            &minutes(verdict.used),
            &if counted > 0 { counted.to_string() } else { "-".into() },
            &result,
        ]);
    }
    line(["all", "", &minutes(planned), &minutes(used), &tests.to_string(), ""]);
    for place in [Place::Host, Place::Guest] {
        let names: Vec<&str> =
            done.iter().filter(|(suite, _)| suite.place == place).map(|(suite, _)| suite.name.as_str()).collect();
        let names = if names.is_empty() { "nothing".into() } else { names.join(", ") };
        let _ = writeln!(text, "ran {}: {names}", place.phrase());
    }
    // Last, for those who see the end of a run only.
    for (suite, verdict) in done {
        for failure in &verdict.failures {
            let _ = writeln!(text, "{}| {failure}", suite.name);
        }
    }
    let failed = done.len() - passed;
    (text, format!("{passed} passed, {failed} failed"), failed == 0)
}

/// A time as minutes and seconds.
pub(crate) fn minutes(time: Duration) -> String {
    let seconds = time.as_secs();
    format!("{}:{:02} min", seconds / 60, seconds % 60)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::Tests;

    #[test]
    fn the_report_says_what_ran_where_and_counts_failures() {
        let suite = |name: &str, place| Suite { name: name.into(), place, minutes: 2.0, run: String::new() };
        let (unit, boot) = (suite("unit", Place::Host), suite("boot", Place::Guest));
        let verdict = |result, passed, failures: &[&str]| Verdict {
            result,
            used: Duration::from_secs(61),
            tests: Tests { passed, failed: 0 },
            failures: failures.iter().map(|line| (*line).to_owned()).collect(),
        };
        let done =
            [(&unit, verdict(Outcome::Passed, 7, &[])), (&boot, verdict(Outcome::OverBudget, 0, &["test a FAILED"]))];
        let (text, totals, green) = table(&done);
        assert_eq!(totals, "1 passed, 1 failed");
        assert!(!green);
        assert!(text.ends_with("ran on the host: unit\nran in the guest: boot\nboot| test a FAILED\n"), "{text}");
        assert!(text.lines().any(|line| line.starts_with("unit") && line.contains("1:01 min") && line.contains(" 7 ")));
    }
}
