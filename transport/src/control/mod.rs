//! The control plane: liveness, link set-up, abort and agreement, in a thread of its own.

mod cause;

pub use cause::{AbortCause, AbortKind, AbortScope};
