//! Schedules, executor, communicator and operations of Verbcast.
#![forbid(unsafe_code)]

pub mod check;
pub mod executor;
pub mod model;
pub mod schedule;

#[cfg(test)]
mod test_seed;
