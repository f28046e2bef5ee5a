//! What the commands that move files have in common.
//!
//! Nothing flows before all ranks agree that it can, and nothing is seen before all agree that it
//! arrived ([`job`]). In between the file streams through bounded memory ([`stream`]).

pub(crate) mod bytes;
pub(crate) mod destination;
pub(crate) mod error;
pub(crate) mod heir;
mod interrupt;
pub(crate) mod job;
pub(crate) mod location;
pub(crate) mod options;
pub(crate) mod parts;
pub(crate) mod plan;
pub(crate) mod progress;
pub(crate) mod report;
#[cfg(test)]
pub(crate) mod scratch;
pub(crate) mod source;
pub(crate) mod stream;
mod template;
pub(crate) mod temporary;
