//! What `verbcast plan` is asked, and what can be wrong with it.

use std::io;
use std::path::{Path, PathBuf};

use verbcast::Algorithm;
use verbcast::model::{FabricProfile, ModelError, PathProfile, ProfileError};
use verbcast::schedule::{Operation, ScheduleError, Shape};

use crate::files::bytes;
use crate::time::display_ns;

/// The port model that times are computed in; the two are never mixed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub(crate) enum PortModel {
    /// Several blocks are under way: a port is busy max(g, o + m / beta) per block of m bytes, the last
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
    ranks: Option<u32>,
    /// What the ranks do together: broadcast, scatter, gather, allgather
    #[arg(long, value_name = "OPERATION", default_value = "broadcast")]
    op: Operation,
    /// The rank that has the message, or collects it
    #[arg(long, value_name = "RANK", default_value_t = 0)]
    root: u32,
    /// Size of the message; in a scatter, gather or allgather that of all parts together
    #[arg(long, value_name = "BYTES", default_value = "16M", value_parser = bytes::parse)]
    bytes: u64,
    /// Number of blocks, of the message or of each rank's part [default: the best for each algorithm]
    #[arg(long, value_name = "K")]
    blocks: Option<u32>,
    /// Ports of each rank
    #[arg(long, value_name = "D", default_value_t = 1)]
    ports: u16,
    /// Radix of knomial [default: the best]
    #[arg(long, value_name = "R")]
    radix: Option<u32>,
    /// The algorithm, instead of the model's choice
    #[arg(long, value_name = "NAME")]
    algorithm: Option<Algorithm>,
    /// The port model that times are computed in
    #[arg(long, value_enum, default_value = "loggp")]
    model: PortModel,
    /// What the links do: a file that `verbcast tune` wrote, or verbs, shm, verbs-100g, verbs-400g,
    /// roce-25g
    #[arg(long, value_name = "FILE|NAME", default_value = "verbs")]
    profile: String,
    /// Count the set-up of links, as in a job's first call
    #[arg(long)]
    new_links: bool,
}

impl Subject {
    /// Whether the number of ranks is given.
    pub(crate) fn has_ranks(&self) -> bool {
        self.ranks.is_some()
    }

    /// The question.
    ///
    /// # Errors
    /// Numbers outside their limits, a profile that is not there.
    pub(crate) fn question(&self) -> Result<Question, PlanError> {
        let (name, known) = (&self.profile, || FabricProfile::NAMES.join(", "));
        let profile = match FabricProfile::named(name) {
            Some(profile) => profile,
            None if Path::new(name).exists() => FabricProfile::read(name)
                .map_err(|source| PlanError::Profile { name: name.clone(), source })?,
            None => return Err(PlanError::UnknownProfile { name: name.clone(), known: known() }),
        };
        let question = Question {
            operation: self.op,
            ranks: self.ranks.ok_or(PlanError::NoRanks)?,
            ports: self.ports,
            radix: self.radix,
            root: self.root,
            bytes: self.bytes,
            blocks: self.blocks,
            algorithm: self.algorithm,
            model: self.model,
            profile,
            profile_name: self.profile.clone(),
            new_links: self.new_links,
        };
        let shape = question.shape(self.blocks.unwrap_or(1))?;
        if let Some(algorithm) = self.algorithm {
            applies(algorithm, shape)?;
        }
        Ok(question)
    }
}

/// Fails if the algorithm is none of the operation, or not for this number of ranks.
///
/// # Errors
/// The schedule's.
pub(crate) fn applies(algorithm: Algorithm, shape: Shape) -> Result<(), ScheduleError> {
    let (operation, ranks) = (shape.operation(), shape.ranks());
    if !Algorithm::of(operation).contains(&algorithm) {
        return Err(ScheduleError::NotOfOperation { algorithm, operation });
    }
    if algorithm == Algorithm::RecursiveDoubling && !ranks.is_power_of_two() {
        return Err(ScheduleError::NotPowerOfTwo { algorithm, ranks });
    }
    Ok(())
}

/// An operation that is to be planned; all numbers are within their limits.
#[derive(Clone, Debug)]
pub(crate) struct Question {
    pub(crate) operation: Operation,
    pub(crate) ranks: u32,
    pub(crate) ports: u16,
    /// The radix of `knomial`, if it is fixed.
    pub(crate) radix: Option<u32>,
    pub(crate) root: u32,
    pub(crate) bytes: u64,
    /// The number of blocks, if it is fixed.
    pub(crate) blocks: Option<u32>,
    /// The algorithm, if it is fixed.
    pub(crate) algorithm: Option<Algorithm>,
    pub(crate) model: PortModel,
    pub(crate) profile: FabricProfile,
    pub(crate) profile_name: String,
    /// Whether links that are not there yet cost their set-up.
    pub(crate) new_links: bool,
}

impl Question {
    /// The shape with this number of blocks.
    ///
    /// # Errors
    /// Numbers outside their limits.
    pub(crate) fn shape(&self, blocks: u32) -> Result<Shape, ScheduleError> {
        let shape = Shape::new(self.ranks, self.root, blocks)?;
        let shape = shape.with_operation(self.operation)?.with_ports(self.ports)?;
        match self.radix {
            Some(radix) => shape.with_radix(radix),
            None => Ok(shape),
        }
    }

    /// Operation and ranks: `broadcast from rank 0 to 8 ranks`.
    pub(crate) fn what(&self) -> String {
        let Self { operation, root, ranks, .. } = *self;
        let ranks = counted(ranks, "rank");
        match operation {
            Operation::Gather => format!("gather from {ranks} to rank {root}"),
            Operation::Allgather => format!("allgather among {ranks}"),
            Operation::Broadcast | Operation::Scatter => {
                format!("{operation} from rank {root} to {ranks}")
            }
        }
    }

    /// The same with the size, as a heading: `Broadcast from rank 0 to 8 ranks: 16 MiB`.
    pub(crate) fn heading(&self) -> String {
        let what = self.what();
        let (first, rest) = what.split_at(1);
        let ports = match self.ports {
            1 => String::new(),
            ports => format!(", {ports} ports each"),
        };
        let bytes = bytes::display(self.bytes);
        format!("{}{rest}{ports}: {bytes}", first.to_uppercase())
    }

    /// Fails if there are more blocks than bytes: some would be empty.
    ///
    /// # Errors
    /// [`PlanError::BlocksBeyondBytes`].
    pub(crate) fn check_blocks(&self) -> Result<(), PlanError> {
        let bytes = self.part_bytes();
        let most = bytes.max(1);
        match self.blocks {
            Some(blocks) if u64::from(blocks) > most => {
                Err(PlanError::BlocksBeyondBytes { blocks, bytes, most })
            }
            _ => Ok(()),
        }
    }

    /// The bytes that are cut into blocks: those of the message, or of one rank's part of it.
    pub(crate) fn part_bytes(&self) -> u64 {
        if self.operation.has_parts() {
            self.bytes.div_ceil(self.ranks.max(1).into())
        } else {
            self.bytes
        }
    }

    /// The path of the profile that decides for so many ranks.
    pub(crate) fn path(&self) -> PathProfile {
        self.profile.path_of(self.ranks)
    }

    /// Model and profile with their numbers.
    pub(crate) fn profile_line(&self) -> String {
        let path = self.path();
        let latency = display_ns(path.latency_ns as f64);
        let rate = bytes::display_rate(path.bytes_per_second as f64);
        let costs = match self.model {
            PortModel::Loggp if path.overhead_ns > 0 => format!(
                "L {latency}, g {}, o {}",
                display_ns(path.gap_ns as f64),
                display_ns(path.overhead_ns as f64)
            ),
            PortModel::Loggp => format!("L {latency}, g {}", display_ns(path.gap_ns as f64)),
            PortModel::Telephone => format!("alpha {latency}"),
        };
        let (model, name) = (self.model.name(), &self.profile_name);
        let pulled = match self.model {
            PortModel::Loggp if path.pulled => ", receivers pull",
            _ => "",
        };
        format!("Model {model}, profile {name}: {costs}, beta {rate}{pulled}")
    }

    /// The same for a message of another size, the blocks free.
    pub(crate) fn with_bytes(&self, bytes: u64) -> Self {
        Self { bytes, blocks: None, ..self.clone() }
    }
}

/// `1 block`, `2 blocks`.
pub(crate) fn counted(number: u32, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}

/// Why there is no plan.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PlanError {
    // ---- the caller ----
    /// How many ranks?
    #[error("the number of ranks is missing: give -n N (--ranks N)")]
    NoRanks,
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
    /// No algorithm can do it.
    #[error("no algorithm has a schedule for so many ranks, blocks and ports")]
    Nothing,
    /// The profile's file.
    #[error("--profile {name}")]
    Profile {
        /// The file.
        name: String,
        /// What is wrong with it.
        #[source]
        source: ProfileError,
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
