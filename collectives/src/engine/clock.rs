//! What a rank that waits looks at: its deadline, broken links, and whether others should be told.

use std::time::{Duration, Instant};

use verbcast_transport::control::{AbortCause, AbortKind, AbortScope};
use verbcast_transport::endpoint::Endpoint;
use verbcast_transport::error::Error as TransportError;

use super::{NAP, Operations, PUBLISH_AFTER, Run, WARN_AFTER};
use crate::error::Error;
use crate::schedule::Rank;

impl Operations {
    /// Deadline, broken links, failed set-ups, publication and warning; until when to sleep.
    pub(super) fn look_at_clock(
        &mut self,
        endpoint: &mut Endpoint,
        run: &mut Run<'_, '_>,
    ) -> Result<Instant, Error> {
        let now = Instant::now();
        let waited = now - run.began;
        let mut until = now + NAP;
        if let Some((peer, grace)) = run.broken {
            if now >= grace {
                let reason = endpoint.break_reason(peer);
                return Err(abort_with(endpoint, run, AbortKind::Link { peer, reason }));
            }
            until = until.min(grace);
        }
        for missing in self.executor.missing_peers() {
            if let Some(reason) = endpoint.link_failure(missing.peer) {
                let kind = AbortKind::Link { peer: missing.peer, reason };
                return Err(abort_with(endpoint, run, kind));
            }
        }
        if let Some(deadline) = run.call.deadline {
            if waited >= deadline {
                return Err(self.give_up(endpoint, run, waited));
            }
            until = until.min(run.began + deadline);
        }
        if !run.published {
            if waited >= PUBLISH_AFTER {
                run.published = true;
                if !run.call.is_known {
                    self.uncounted.extend(self.executor.missing_peers().map(|peer| peer.peer));
                }
                endpoint.control().publish_call(&run.call.signature);
            } else {
                until = until.min(run.began + PUBLISH_AFTER);
            }
        }
        if waited >= WARN_AFTER * (run.warnings + 1) {
            run.warnings += 1;
            let missing = ranks(self.executor.missing_peers().map(|missing| missing.peer));
            tracing::warn!(
                rank = endpoint.rank(),
                seconds = waited.as_secs(),
                "{} still waits for rank(s) {missing}",
                run.call.signature
            );
        }
        Ok(until)
    }

    fn give_up(&self, endpoint: &Endpoint, run: &Run<'_, '_>, waited: Duration) -> Error {
        let missing: Vec<Rank> =
            self.executor.missing_peers().map(|missing| missing.peer).collect();
        let call = run.call.signature;
        let after_ms = waited.as_millis() as u64;
        let error = TransportError::Deadline {
            rank: endpoint.rank(),
            after_ms,
            call,
            missing: ranks(missing.iter().copied()),
        };
        let scope = AbortScope::Communicator(call.communicator);
        let kind = AbortKind::Deadline { call, after_ms, missing };
        endpoint.control().abort(AbortCause { scope, origin: endpoint.rank(), kind });
        error.into()
    }
}

fn ranks(ranks: impl Iterator<Item = Rank>) -> String {
    ranks.map(|rank| rank.to_string()).collect::<Vec<_>>().join(", ")
}

/// Aborts the communicator; the error is the cause that won, which may be another's.
fn abort_with(endpoint: &Endpoint, run: &Run<'_, '_>, kind: AbortKind) -> Error {
    let communicator = run.call.signature.communicator;
    let scope = AbortScope::Communicator(communicator);
    let cause = AbortCause { scope, origin: endpoint.rank(), kind };
    let control = endpoint.control();
    control.abort(cause.clone());
    TransportError::Aborted(control.abort_cause(communicator).unwrap_or(cause)).into()
}
