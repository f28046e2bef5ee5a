//! What can go wrong with a file, its source, its copies.

use std::io;
use std::path::PathBuf;

/// Why a file was not broadcast.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    // ---- the caller ----
    /// FILE is something else.
    #[error("FILE {} is {kind}: only regular files can be broadcast", .path.display())]
    NotRegular {
        /// Which.
        path: PathBuf,
        /// What it is.
        kind: &'static str,
    },
    /// DEST cannot be the name of a file.
    #[error("DEST {} {reason}", .path.display())]
    Destination {
        /// Which.
        path: PathBuf,
        /// Why not, and what to do.
        reason: String,
    },
    /// Two ranks would write one file.
    #[error(
        "several ranks run on this host, and DEST {} is the same for all: put {{rank}} into it",
        .0.display()
    )]
    Collision(PathBuf),
    /// There is no such root.
    #[error("--root {root} is no rank of this job, which has ranks 0 to {last}", last = .ranks - 1)]
    Root {
        /// The one that was named.
        root: u32,
        /// How many there are.
        ranks: u32,
    },
    /// FILE is no file.
    #[error(
        "FILE - (standard input) cannot be broadcast: its length has to be known on every rank \
         beforehand; write it to a file first"
    )]
    StandardInput,
    /// The ranks were told different things.
    #[error("ranks were given different --root, --memory, --algorithm or --block-size")]
    Arguments,

    // ---- the environment ----
    /// A system call on FILE.
    #[error("FILE {} {what}", .path.display())]
    Source {
        /// Which.
        path: PathBuf,
        /// What was tried.
        what: &'static str,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// FILE is not what it was.
    #[error(
        "FILE {} changed while it was read (it had {before} bytes, now {now})",
        .path.display()
    )]
    Changed {
        /// Which.
        path: PathBuf,
        /// Its length at the start.
        before: u64,
        /// Its length now.
        now: u64,
    },
    /// A system call on DEST.
    #[error("DEST {} {what}", .path.display())]
    Write {
        /// Which.
        path: PathBuf,
        /// What was tried.
        what: &'static str,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// There is too little room.
    #[error(
        "DEST {}: no room for {needed} bytes ({free} are free there)",
        .path.display()
    )]
    NoRoom {
        /// Where.
        path: PathBuf,
        /// How many bytes it takes.
        needed: u64,
        /// How many there are.
        free: u64,
    },
    /// The bytes that arrived are not the root's.
    #[error(
        "the checksum of what arrived is {found}, the root's is {expected}: nothing was put in place"
    )]
    Checksum {
        /// The root's digest.
        expected: String,
        /// This rank's.
        found: String,
    },
    /// Some ranks have the file in place, and this one could not follow.
    #[error("the file arrived, and other ranks may have put theirs in place, but")]
    Torn(#[source] Box<Error>),
    /// A system call that has to do with no file.
    #[error("{what}")]
    System {
        /// What was tried.
        what: &'static str,
        /// What the system said.
        #[source]
        source: io::Error,
    },

    // ---- a peer or the network ----
    /// The job, for a cause that is the same on every rank.
    #[error("{0}")]
    Aborted(verbcast::AbortCause),
    /// A call of the library.
    #[error(transparent)]
    Job(Box<verbcast::Error>),
}

impl From<verbcast::Error> for Error {
    fn from(error: verbcast::Error) -> Self {
        Self::Job(Box::new(error))
    }
}

impl Error {
    /// Whether every rank has this error, because they agreed that they do.
    pub(crate) fn is_agreed(&self) -> bool {
        match self {
            Self::Arguments => true,
            Self::Job(error) => matches!(**error, verbcast::Error::RankFailed { .. }),
            _ => false,
        }
    }
}
