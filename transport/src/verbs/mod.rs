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
#[cfg(feature = "verbs")]
pub mod sys;
#[cfg(not(feature = "verbs"))]
pub mod sys {
    //! Devices through libibverbs; this build has none.

    use std::sync::Arc;

    use super::driver::Driver;
    use super::error::VerbsError;

    /// Always fails: this build is without the cargo feature `verbs`.
    ///
    /// # Errors
    /// [`VerbsError::Unavailable`].
    pub fn driver() -> Result<Arc<dyn Driver>, VerbsError> {
        Err(VerbsError::Unavailable { reason: "built without the cargo feature `verbs`".into() })
    }
}
#[cfg(test)]
mod tests;
