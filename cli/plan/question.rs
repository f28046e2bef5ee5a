//! What `verbcast plan` is asked, and what can be wrong with it.

use std::io;
use std::path::PathBuf;

use verbcast::Algorithm;
use verbcast::model::{FabricProfile, ModelError};
use verbcast::schedule::{ScheduleError, Shape};

use crate::broadcast::bytes;
use crate::time::display_ns;

/// The port model that times are computed in; the two are never mixed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub(crate) enum PortModel {
    /// Several blocks are under way: a port is busy max(g, m / beta) per block of m bytes, the last
    /// byte arrives L later
    Loggp,
    /// Paced by rounds: a port is busy alpha + m / beta per block of m bytes
    Telephone,
}

impl PortModel {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Loggp => "loggp",
            Self::Telephone => "telephone",
        }
    }
}

/// What is asked about, in the arguments of `plan` and `simulate`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Subject {
    /// Number of ranks
    #[arg(short = 'n', long, value_name = "N")]
    ranks: u32,
    /// The rank that has the message
    #[arg(long, value_name = "RANK", default_value_t = 0)]
    root: u32,
    /// Size of the message
    #[arg(long, value_name = "BYTES", default_value = "16M", value_parser = bytes::parse)]
    bytes: u64,
    /// Number of blocks [default: the best for each algorithm]
    #[arg(long, value_name = "K")]
    blocks: Option<u32>,
    /// The algorithm, instead of the model's choice
    #[arg(long, value_name = "NAME")]
    algorithm: Option<Algorithm>,
    /// The port model that times are computed in
    #[arg(long, value_enum, default_value = "loggp")]
    model: PortModel,
    /// What the links do: verbs, shm
    #[arg(long, value_name = "NAME", default_value = "verbs")]
    profile: String,
}

impl Subject {
    /// The question.
    ///
    /// # Errors
    /// Numbers outside their limits, a profile that is not there.
    pub(crate) fn question(&self) -> Result<Question, PlanError> {
        let profile = match self.profile.as_str() {
            "verbs" => FabricProfile::VERBS,
            "shm" => FabricProfile::SHM,
            name => {
                let (name, known) = (name.to_owned(), "verbs, shm".to_owned());
                return Err(PlanError::UnknownProfile { name, known });
            }
        };
        let question = Question {
            ranks: self.ranks,
            root: self.root,
            bytes: self.bytes,
            blocks: self.blocks,
            algorithm: self.algorithm,
            model: self.model,
            profile,
            profile_name: self.profile.clone(),
        };
        question.shape(self.blocks.unwrap_or(1))?;
        Ok(question)
    }
}

/// A broadcast that is to be planned; all numbers are within their limits.
#[derive(Clone, Debug)]
pub(crate) struct Question {
    pub(crate) ranks: u32,
    pub(crate) root: u32,
    pub(crate) bytes: u64,
    /// The number of blocks, if it is fixed.
    pub(crate) blocks: Option<u32>,
    /// The algorithm, if it is fixed.
    pub(crate) algorithm: Option<Algorithm>,
    pub(crate) model: PortModel,
    pub(crate) profile: FabricProfile,
    pub(crate) profile_name: String,
}

impl Question {
    /// The shape with this number of blocks.
    ///
    /// # Errors
    /// Numbers outside their limits.
    pub(crate) fn shape(&self, blocks: u32) -> Result<Shape, ScheduleError> {
        Shape::new(self.ranks, self.root, blocks)
    }

    /// Fails if there are more blocks than bytes: some would be empty.
    ///
    /// # Errors
    /// [`PlanError::BlocksBeyondBytes`].
    pub(crate) fn check_blocks(&self) -> Result<(), PlanError> {
        let (bytes, most) = (self.bytes, self.bytes.max(1));
        match self.blocks {
            Some(blocks) if u64::from(blocks) > most => {
                Err(PlanError::BlocksBeyondBytes { blocks, bytes, most })
            }
            _ => Ok(()),
        }
    }

    /// Model and profile with their numbers.
    pub(crate) fn profile_line(&self) -> String {
        let FabricProfile { latency_ns, gap_ns, bytes_per_second, .. } = self.profile;
        let latency = display_ns(latency_ns as f64);
        let rate = bytes::display_rate(bytes_per_second as f64);
        let costs = match self.model {
            PortModel::Loggp => format!("L {latency}, g {}", display_ns(gap_ns as f64)),
            PortModel::Telephone => format!("alpha {latency}"),
        };
        let (model, name) = (self.model.name(), &self.profile_name);
        format!("Model {model}, profile {name}: {costs}, beta {rate}")
    }

    /// The same for a message of another size, the blocks free.
    pub(crate) fn with_bytes(&self, bytes: u64) -> Self {
        Self { bytes, blocks: None, ..self.clone() }
    }
}

/// Why there is no plan.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PlanError {
    // ---- the caller ----
    /// Ranks, root or blocks.
    #[error(transparent)]
    Schedule(#[from] ScheduleError),
    /// Bytes or blocks.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// More blocks than bytes.
    #[error("--blocks {blocks}: a message of {bytes} bytes has at most {most}")]
    BlocksBeyondBytes {
        /// Asked for.
        blocks: u32,
        /// Of the message.
        bytes: u64,
        /// As many as there can be.
        most: u64,
    },
    /// No profile has the name, and no file.
    #[error("--profile {name}: neither a file nor one of {known}")]
    UnknownProfile {
        /// What was given.
        name: String,
        /// The names there are.
        known: String,
    },

    // ---- the environment ----
    /// The picture could not be written.
    #[error("--picture {}: cannot be written", .path.display())]
    Picture {
        /// Where.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// Standard output.
    #[error("cannot write to standard output")]
    Output(#[from] io::Error),
}

impl PlanError {
    /// Whether other arguments would help.
    pub(crate) fn is_wrong_usage(&self) -> bool {
        !matches!(self, Self::Picture { .. } | Self::Output(_))
    }

    /// Whether whoever read the output has gone, which is no failure: `verbcast plan ... | head`.
    pub(crate) fn is_closed_pipe(&self) -> bool {
        matches!(self, Self::Output(error) if error.kind() == io::ErrorKind::BrokenPipe)
    }
}
