//! Shared-memory links between ranks of one host.
