//! Schedules, executor, communicator and operations of Verbcast.
//!
//! [`World`] joins a job, [`Communicator`] has the operations. Below them, [`schedule`] generates
//! what each rank sends and receives as plain data, [`check`] verifies it, and [`executor`] runs
//! it without doing any IO itself; [`simulate`] drives the executors of all ranks in virtual time.
#![forbid(unsafe_code)]

mod calls;
pub mod check;
mod communicator;
mod engine;
mod error;
pub mod executor;
mod given_profile;
mod group;
pub mod model;
mod request;
pub mod schedule;
pub mod simulate;
#[cfg(test)]
mod test_seed;
mod trace;
mod world;

pub use calls::{
    AllgatherCall, AllgathervCall, BarrierCall, BroadcastCall, Counts, Element, GatherCall,
    GathervCall, ScatterCall, ScattervCall,
};
pub use communicator::Communicator;
pub use error::Error;
pub use request::{Failed, Memories, Prepared, Request, Scope};
pub use trace::{Trace, TraceEvent, TraceKind};
pub use world::World;
