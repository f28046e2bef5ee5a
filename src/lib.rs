//! Verbcast moves data from one process to many, over RDMA verbs or shared memory.
//!
//! A job is a number of processes, its *ranks*, which `verbcast launch -n N -- PROGRAM` starts. Each
//! joins it with [`World::from_env`], takes its [`Communicator`] and calls
//! [`broadcast`](Communicator::broadcast): every rank then has the root's bytes. A program that nobody
//! launched is a job of one rank.
//!
//! ```
//! use verbcast::World;
//!
//! fn main() -> Result<(), verbcast::Error> {
//!     let world = World::from_env()?;
//!     let everyone = world.communicator();
//!     let mut table = vec![0; 4096];
//!     if world.rank() == 0 {
//!         table.fill(7);
//!     }
//!     everyone.broadcast(&mut table, 0)?;
//!     assert!(table.iter().all(|byte| *byte == 7));
//!     world.finalize()
//! }
//! ```
//!
//! # Memory
//!
//! A large broadcast goes straight from the root's buffer into the others'. Over verbs that needs
//! registered memory: a buffer from [`World::region`] is registered once, any other is registered for
//! the length of the call.
//!
//! # Errors
//!
//! An [`Error`] says what happened, where and what to do. When a rank dies, calls something else than
//! the others, or gives up ([`World::abort`]), every rank gets the same [`AbortCause`] and no call
//! hangs. A buffer is not handed back before no peer can write into it any more.
//!
//! # Three ways to call, and communicators
//!
//! Every operation can be called so that it returns when it is done; *started*
//! ([`Communicator::start_broadcast`] and its like on memory that it owns,
//! [`BroadcastCall::start_in`] and its like on memory borrowed in a [`Communicator::scope`]), which
//! gives a [`Request`]; or *prepared* once and started any number of times ([`Prepared`]).
//! [`Communicator::split`], [`Communicator::duplicate`] and [`Communicator::subgroup`] make further
//! communicators. Any thread may call anything at any time; calls on one communicator must come in
//! the same order on all of its ranks.
//!
//! # Options
//!
//! [`Communicator::broadcast_call`] takes an [`Algorithm`], a block size and a deadline. [`Config`] has
//! what the environment (`VERBCAST_*`, see the README) would say, for programs that know it
//! otherwise.

#![forbid(unsafe_code)]

pub use verbcast_collectives::check;
pub use verbcast_collectives::model;
pub use verbcast_collectives::schedule;
pub use verbcast_collectives::schedule::Algorithm;
pub use verbcast_collectives::simulate;
pub use verbcast_collectives::{
    AllgatherCall, AllgathervCall, BarrierCall, BroadcastCall, Communicator, Counts, Element,
    Error, Failed, GatherCall, GathervCall, Memories, Prepared, Request, ScatterCall, ScattervCall,
    Scope, Trace, TraceEvent, TraceKind, World,
};
pub use verbcast_transport::Error as TransportError;
pub use verbcast_transport::bootstrap::Secret;
pub use verbcast_transport::config::{Config, FabricChoice};
pub use verbcast_transport::control::{AbortCause, AbortKind, AbortScope, Agreed, Vote};
pub use verbcast_transport::memory::{Held, Owned, Region};

/// The README's example, compiled.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
