//! What neighbours tell each other, as heads of frames.

use serde::{Deserialize, Serialize};

use super::agreement::Round;
use super::cause::AbortCause;
use crate::wire::{Rank, Signature};

/// A frame between neighbours. Only [`Frame::Link`] has a tail: what the connectors exchange.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Frame {
    /// Spread to all: the job or a communicator is aborted.
    Abort(AbortCause),
    /// Spread to all: a rank waits in this call.
    Call {
        /// Who published it.
        origin: Rank,
        call: Signature,
    },
    /// That many [`Frame::Call`]s were read since the last of these.
    CallsRead(u32),
    /// A round of an agreement.
    Agree(Round),
    /// Link set-up, passed on until it is at `to`.
    Link { from: Rank, to: Rank, step: LinkStep },
    /// The sender leaves the job, as all have agreed to.
    Bye,
}

/// A step of link set-up; `epoch` counts the links between two ranks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LinkStep {
    pub(crate) epoch: u32,
    pub(crate) kind: StepKind,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum StepKind {
    /// Higher to lower: please set up a link.
    Want,
    /// Lower to higher: my end; the tail describes it.
    Offer { attempt: u32 },
    /// Higher to lower: my end to match it; the tail describes it.
    Accept { attempt: u32 },
    /// Higher to lower: not that kind of link.
    Refuse { attempt: u32, reason: String },
    /// Lower to higher: my end is complete.
    Ready { attempt: u32 },
    /// Either way: there will be no link.
    Failed { reason: String },
    /// Either way: my end of the link that stood is closed.
    Closed,
}
