//! RDMA verbs: providers (libibverbs, the strict fake), queue pairs and the links made of them.

pub mod driver;
pub mod error;
#[cfg(any(test, feature = "fake"))]
pub mod fake;
pub mod queue_pair;
pub mod select;
