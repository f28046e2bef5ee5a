//! RDMA verbs: providers (libibverbs, the strict fake), queue pairs and the links made of them.

mod connector;
mod description;
pub mod driver;
pub mod error;
pub mod fabric;
#[cfg(any(test, feature = "fake"))]
pub mod fake;
mod lane;
mod link;
pub mod open;
pub mod queue_pair;
mod rail;
mod ring;
mod routes;
pub mod select;
mod settings;
mod setup;
mod status;
#[cfg(test)]
mod tests;
