//! libibverbs is looked up when a driver is made, not when the process starts.
//!
//! Alone in its file: other tests of one process would load the library too.

#![cfg(feature = "verbs")]

use verbcast_transport::verbs::error::VerbsError;
use verbcast_transport::verbs::sys;

fn libibverbs_is_mapped() -> bool {
    std::fs::read_to_string("/proc/self/maps").expect("Linux has it").contains("libibverbs")
}

#[test]
fn a_binary_does_not_need_libibverbs_to_start() {
    // A NEEDED entry would have made the dynamic linker map it before main.
    assert!(!libibverbs_is_mapped());
    match sys::driver() {
        Ok(_) => assert!(libibverbs_is_mapped()),
        Err(error) => {
            assert!(matches!(error, VerbsError::Unavailable { .. }), "{error}");
            assert!(!libibverbs_is_mapped());
        }
    }
}
