//! Bringing the ranks of a job together.

/// Why a job could not be brought together.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BootstrapError {}
