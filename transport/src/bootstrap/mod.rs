//! Bringing the ranks of a job together: job secret, authenticated handshake, rendezvous.
//!
//! Every rank registers at the [`RendezvousServer`] and gets the address book of all; the
//! connections among the ranks themselves belong to the [control plane](crate::control).

pub(crate) mod channel;
pub(crate) mod client;
mod error;
pub(crate) mod frame;
pub(crate) mod handshake;
pub(crate) mod identity;
pub(crate) mod lobby;
mod message;
pub(crate) mod secret;
mod server;
mod session;
#[cfg(test)]
mod tests;

pub use error::{BootstrapError, Process, RankSet, Refusal};
pub use handshake::HandshakeError;
pub use secret::{SECRET_MIN_BYTES, Secret, SecretError};
pub use server::{RendezvousServer, StopHandle};
