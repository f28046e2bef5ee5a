//! Checks a host for Soft-RoCE, brings Soft-RoCE clusters up and down, and runs a command in a guest.
fn main() {}
