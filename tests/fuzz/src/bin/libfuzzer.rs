//! libFuzzer around one target, which `FUZZ_TARGET` names.
#![no_main]

use libfuzzer_sys::fuzz_target;
use std::sync::LazyLock;

static TARGET: LazyLock<&fuzz::Target> = LazyLock::new(|| {
    let name = std::env::var("FUZZ_TARGET").unwrap_or_default();
    fuzz::find(&name).unwrap_or_else(|| panic!("FUZZ_TARGET names no target: '{name}'"))
});

fuzz_target!(|data: &[u8]| fuzz::run(&TARGET, data));
