//! The `verbcast` command.
#![forbid(unsafe_code)]
fn main() {}
