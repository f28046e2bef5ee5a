//! Schedules, executor, communicator and operations of Verbcast.
#![forbid(unsafe_code)]
