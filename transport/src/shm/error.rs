//! Why a shared-memory link does not come up, or breaks.

use std::io;

use crate::error::Error;
use crate::wire::{MalformedMessage, Rank};

/// Why there is no link.
#[derive(Debug, thiserror::Error)]
pub(super) enum SetupError {
    #[error("not on this host: its boot id is {theirs}, ours is {ours}")]
    OtherHost { ours: String, theirs: String },
    #[error(
        "in another pid namespace ({theirs}, ours is {ours}): start both ranks in one container, \
         or share its pid namespace"
    )]
    OtherNamespace { ours: u64, theirs: u64 },
    #[error("runs as user {theirs}, this rank as user {ours}: start all ranks as one user")]
    OtherUser { ours: u32, theirs: u32 },
    #[error("the peer said it is process {told}, but its address book entry says {known}")]
    WrongPid { told: u32, known: u32 },
    #[error("no other kind of shared-memory link to offer after the peer's refusal")]
    NothingElse,
    #[error("malformed set-up bytes")]
    Malformed(#[source] serde_json::Error),
    #[error("the peer speaks version {theirs} of shared-memory set-up, this rank version {ours}")]
    Version { ours: u32, theirs: u32 },
    #[error("sizes of {descriptors} descriptors, {chunks} chunks of {chunk_bytes} bytes cannot be")]
    Sizes { descriptors: u32, chunks: u32, chunk_bytes: u32 },
    #[error("{what} of process {pid} (fd {fd}) cannot be opened through /proc")]
    Open {
        what: &'static str,
        pid: u32,
        fd: i32,
        #[source]
        source: io::Error,
    },
    #[error("{what} of process {pid} (fd {fd}) is not {expected}")]
    WrongFile { what: &'static str, pid: u32, fd: i32, expected: &'static str },
    #[error("the segment of process {pid} (fd {fd}) is another link's: its cookie differs")]
    Cookie { pid: u32, fd: i32 },
    #[error("no such link is being set up")]
    NotPending,
    #[error("{what} failed")]
    System {
        what: &'static str,
        #[source]
        source: io::Error,
    },
}

impl SetupError {
    pub(super) fn system(what: &'static str) -> impl FnOnce(nix::Error) -> Self {
        move |errno| Self::System { what, source: errno.into() }
    }

    /// As an error of the link between `rank` and `peer`.
    pub(super) fn at(&self, rank: Rank, peer: Rank) -> Error {
        Error::Link { rank, peer, reason: format!("shared memory: {}", chain(self)) }
    }
}

/// Why a link that was up broke.
#[derive(Debug, thiserror::Error)]
pub(super) enum BreakError {
    #[error("the peer closed its end")]
    Closed,
    #[error("it could not be set up: {0}")]
    Failed(String),
    #[error("the peer set the link up anew")]
    Replaced,
    #[error("{what} in the segment is {found}, where {expected} was expected")]
    Word { what: &'static str, found: u64, expected: u64 },
    #[error("message {sequence} in the segment is malformed")]
    Message {
        sequence: u64,
        #[source]
        source: MalformedMessage,
    },
    #[error("descriptor {sequence} in the segment is malformed: {what} is {found}")]
    Descriptor { sequence: u64, what: &'static str, found: u64 },
    #[error(
        "block {block} of {bytes} bytes at offset {offset} is not a block of this rank's buffer \
         (handle {handle}, {buffer_bytes} bytes)"
    )]
    BlockRange { handle: u16, block: u32, offset: u64, bytes: u64, buffer_bytes: u64 },
    #[error("reading the peer's memory")]
    Pull(#[from] PullError),
}

/// Why memory of another process cannot be read.
#[derive(Debug, thiserror::Error)]
pub(super) enum PullError {
    #[error("process {pid} is gone")]
    Gone { pid: i32 },
    #[error("process {pid} is not the peer any more")]
    Stranger { pid: i32 },
    #[error("address {address:#x} of process {pid} is not mapped")]
    Unmapped { pid: i32, address: u64 },
    #[error("process_vm_readv from process {pid} failed")]
    System {
        pid: i32,
        #[source]
        source: io::Error,
    },
}

/// The message of an error and of its sources.
pub(super) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(source) = next {
        text.push_str(": ");
        text.push_str(&source.to_string());
        next = source.source();
    }
    text
}
