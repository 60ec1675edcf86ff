//! Named rule breakages, to prove that the tests would notice.
//!
//! `mutant::on("name")` is a constant `false` in every ordinary build. Built with `--cfg trine_mutants` (which a release build
//! refuses), it is true for the mutant named by `TRINE_MUTANT`: `tests/mutants/run` builds once and runs each of them.

/// True if this build carries mutants and the one named is switched on.
#[cfg(not(trine_mutants))]
#[inline(always)]
pub const fn on(_name: &str) -> bool {
    false
}

#[cfg(all(trine_mutants, not(debug_assertions)))]
compile_error!("mutants break the rules that keep data: a build without debug assertions refuses them");

/// True if this build carries mutants and the one named is switched on.
#[cfg(trine_mutants)]
pub fn on(name: &str) -> bool {
    static ACTIVE: std::sync::OnceLock<Option<String>> = std::sync::OnceLock::new();
    ACTIVE.get_or_init(|| std::env::var("TRINE_MUTANT").ok()).as_deref() == Some(name)
}
