//! What can go wrong with a file, its source, its copies.

use std::io;
use std::path::PathBuf;

/// A file with the name of its argument.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Named {
    /// `FILE`, `DEST` or `SRC`.
    pub(crate) role: &'static str,
    /// Which.
    pub(crate) path: PathBuf,
}

impl std::fmt::Display for Named {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", self.role, self.path.display())
    }
}

/// Why a file was not moved.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    // ---- the caller ----
    /// What should be read is something else.
    #[error("{file} is {kind}: only regular files can be read")]
    NotRegular {
        /// Which.
        file: Named,
        /// What it is.
        kind: &'static str,
    },
    /// What should be written cannot be the name of a file.
    #[error("{file} {reason}")]
    Name {
        /// Which.
        file: Named,
        /// Why not, and what to do.
        reason: String,
    },
    /// Two ranks would use one file.
    #[error("several ranks run on this host, and {0} is the same for all: put {{rank}} into it")]
    Collision(Named),
    /// Two names are one.
    #[error("{file} is also {other}: give them different names")]
    Same {
        /// Which.
        file: Named,
        /// What else it is.
        other: String,
    },
    /// There is no such root.
    #[error("--root {root} is no rank of this job, which has ranks 0 to {last}", last = .ranks - 1)]
    Root {
        /// The one that was named.
        root: u32,
        /// How many there are.
        ranks: u32,
    },
    /// Each rank's part needs its place in the memory.
    #[error("--memory {given} is too little for {parts} parts: at least {needed} are needed")]
    Memory {
        /// How much there may be.
        given: String,
        /// How much it takes.
        needed: String,
        /// For how many parts.
        parts: u64,
    },
    /// The file cannot be cut as it should be.
    #[error("FILE has {bytes} bytes, which is no multiple of the {record_bytes} of a record: the last \
             one would have {rest} (--short-record allows that)",
        rest = .bytes % .record_bytes)]
    ShortRecord {
        /// Bytes of the file.
        bytes: u64,
        /// Bytes of a record.
        record_bytes: u64,
    },
    /// No file can be as long.
    #[error("all SRC together have more bytes than a file can have")]
    TooLong,
    /// What should be read is no file.
    #[error(
        "{0} - (standard input) cannot be read: its length has to be known beforehand; write it to \
         a file first"
    )]
    StandardInput(&'static str),
    /// The ranks were told different things.
    #[error("ranks were given different {0}, which have to be the same for all")]
    Arguments(&'static str),

    // ---- the environment ----
    /// A system call on a file.
    #[error("{file} {what}")]
    File {
        /// Which.
        file: Named,
        /// What was tried.
        what: &'static str,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// A file is not what it was.
    #[error("{file} changed while it was read (it had {before} bytes, now {now})")]
    Changed {
        /// Which.
        file: Named,
        /// Its length at the start.
        before: u64,
        /// Its length now.
        now: u64,
    },
    /// There is too little room.
    #[error("{file}: no room for {needed} bytes ({free} are free there)")]
    NoRoom {
        /// Where.
        file: Named,
        /// How many bytes it takes.
        needed: u64,
        /// How many there are.
        free: u64,
    },
    /// The bytes that arrived are not those that were read.
    #[error(
        "the checksum of what arrived from rank {from} is {found}, there it is {expected}: nothing was \
         put in place"
    )]
    Checksum {
        /// Who read it.
        from: u32,
        /// Its digest of the bytes.
        expected: blake3::Hash,
        /// This rank's.
        found: blake3::Hash,
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
            Self::Arguments(_) => true,
            Self::Job(error) => matches!(**error, verbcast::Error::RankFailed { .. }),
            _ => false,
        }
    }
}
