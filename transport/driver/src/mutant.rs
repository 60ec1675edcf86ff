//! Named rule breakages, to prove that the tests would notice.
//!
//! `mutant::on("name")` is a constant `false` in every build that people use. A development build, the one with debug assertions, carries the
//! mutants, so that the tests' own build is the one that is broken; `tests/mutants/run` runs each of them.

/// True if this is the mutant named by `TRINE_MUTANT`.
#[cfg(debug_assertions)]
pub fn on(name: &str) -> bool {
    static ACTIVE: std::sync::OnceLock<Option<String>> = std::sync::OnceLock::new();
    ACTIVE.get_or_init(|| std::env::var("TRINE_MUTANT").ok()).as_deref() == Some(name)
}

/// Never: a build without debug assertions has no mutants.
#[cfg(not(debug_assertions))]
#[inline(always)]
pub const fn on(_name: &str) -> bool {
    false
}
