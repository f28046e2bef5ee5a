//! What a rank that waits looks at: deadlines, broken links, and whether others should be told.

use std::time::{Duration, Instant};

use verbcast_transport::control::{AbortCause, AbortKind, AbortScope};
use verbcast_transport::endpoint::{Endpoint, Idle};
use verbcast_transport::error::Error as TransportError;

use super::operation::{Operation, Phase};
use super::{Engine, check_abort};
use crate::error::Error;
use crate::schedule::Rank;

/// After this long in one call a rank publishes what it called, so that ranks which called
/// something else find out although no message between them meets.
const PUBLISH_AFTER: Duration = Duration::from_millis(100);

/// After this long, and again each time as long, a warning names the ranks that have not come.
const WARN_AFTER: Duration = Duration::from_secs(60);

/// The longest sleep between two looks at the clock.
const NAP: Duration = Duration::from_secs(1);

impl Engine {
    /// Waits a little, as nothing moves.
    pub(super) fn sleep(&mut self, idle: &mut Idle) {
        let Some(until) = self.look_at_clocks() else { return };
        if let Err(error) = self.endpoint.idle(idle, until) {
            self.end_all(error);
        }
    }

    /// Looks at the clock for every operation; until when to sleep, if none ended by that.
    pub(super) fn look_at_clocks(&mut self) -> Option<Instant> {
        let now = Instant::now();
        let mut until = now + NAP;
        let mut next = 0;
        let mut ended = false;
        while let Some(&index) = self.active.get(next) {
            let Some(operation) = &mut self.operations[index].1 else { break };
            match operation.look_at_clock(&mut self.endpoint, now) {
                Ok(early) => {
                    until = until.min(early);
                    next += 1;
                }
                Err(error) => {
                    self.end(index, Err(error));
                    (ended, next) = (true, 0);
                }
            }
        }
        for &index in &self.ending {
            if let Some(Operation { phase: Phase::Ending(_, end), .. }) = &self.operations[index].1
            {
                until = until.min(*end);
            }
        }
        (!ended).then_some(until)
    }
}

impl Operation {
    /// Deadline, broken links, failed set-ups, publication and warning; until when to sleep.
    fn look_at_clock(&mut self, endpoint: &mut Endpoint, now: Instant) -> Result<Instant, Error> {
        let waited = now.saturating_duration_since(self.began);
        let mut until = now + NAP;
        if let Some((peer, grace)) = self.broken {
            if now >= grace {
                let reason = endpoint.break_reason(peer);
                return Err(self.abort_with(endpoint, AbortKind::Link { peer, reason }));
            }
            until = until.min(grace);
        }
        if let Some(deadline) = self.call.deadline {
            if waited >= deadline {
                return Err(self.give_up(endpoint, waited));
            }
            until = until.min(self.began + deadline);
        }
        if !self.published {
            if waited >= PUBLISH_AFTER {
                self.published = true;
                endpoint.control().publish_call(&self.call.signature);
            } else {
                until = until.min(self.began + PUBLISH_AFTER);
            }
        }
        if !matches!(self.phase, Phase::Running) {
            return Ok(until);
        }
        for peer in self.missing() {
            if let Some(reason) = endpoint.link_failure(peer) {
                return Err(self.abort_with(endpoint, AbortKind::Link { peer, reason }));
            }
        }
        if self.published && !self.call.is_known && !self.counted {
            self.counted = true;
            let state = &mut self.state;
            state.uncounted.extend(state.executor.missing_peers().map(|peer| peer.peer));
        }
        if waited >= WARN_AFTER * (self.warnings + 1) {
            self.warnings += 1;
            tracing::warn!(
                rank = endpoint.rank(),
                seconds = waited.as_secs(),
                "{} still waits for rank(s) {}",
                self.call.signature,
                listed(self.missing())
            );
        }
        Ok(until)
    }

    fn give_up(&self, endpoint: &Endpoint, waited: Duration) -> Error {
        let missing: Vec<Rank> = self.missing().collect();
        let call = self.call.signature;
        let after_ms = waited.as_millis() as u64;
        let error = TransportError::Deadline {
            rank: endpoint.rank(),
            after_ms,
            call,
            missing: listed(missing.iter().copied()),
        };
        let scope = AbortScope::Communicator(call.communicator);
        let kind = AbortKind::Deadline { call, after_ms, missing };
        endpoint.control().abort(AbortCause { scope, origin: endpoint.rank(), kind });
        error.into()
    }

    /// Aborts the communicator; the error is the cause that won, which may be another's.
    fn abort_with(&self, endpoint: &Endpoint, kind: AbortKind) -> Error {
        let communicator = self.call.signature.communicator;
        let scope = AbortScope::Communicator(communicator);
        let cause = AbortCause { scope, origin: endpoint.rank(), kind };
        let control = endpoint.control();
        control.abort(cause.clone());
        match check_abort(control, communicator) {
            Err(error) => error,
            Ok(()) => TransportError::Aborted(cause).into(),
        }
    }
}

fn listed(ranks: impl Iterator<Item = Rank>) -> String {
    ranks.map(|rank| rank.to_string()).collect::<Vec<_>>().join(", ")
}
