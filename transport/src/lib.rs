//! Bootstrap, registered memory and links of Verbcast.
//!
//! [`wire`] is the one definition of what crosses a link, [`link`] the contract between the
//! endpoint and a fabric, [`verbs::driver`] the seam to libibverbs.

pub mod bootstrap;
pub mod config;
pub mod control;
pub mod endpoint;
pub mod error;
pub mod layout;
pub mod link;
pub mod memory;
pub mod shm;
mod stripe;
pub mod verbs;
pub mod wire;

pub use error::Error;
