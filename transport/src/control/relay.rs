//! What the control thread does with frames: take them, answer them, pass them on.

use super::agreement::{Purpose, Step, Violation};
use super::calls::Published;
use super::cause::AbortKind;
use super::frame::Frame;
use super::thread::{Phase, Plane};
use crate::bootstrap::frame::{FRAME_BYTES_MAX, encode};
use crate::wire::Rank;

/// Bytes that may wait for one neighbour. Far more than the protocol ever has on the way: a
/// neighbour that reads nothing for so long is of no use to the job.
const OUTPUT_BYTES_MAX: usize = 16 << 20;

/// Published calls on the way to one neighbour: more are left out, so that a stopped process does
/// not fill its connection.
const CALLS_UNREAD_MAX: u32 = 128;

/// Published calls that are read before the sender is told.
const CALLS_READ_BATCH: u32 = 32;

impl Plane {
    /// Takes the frames of a neighbour that are complete.
    pub(super) fn take_frames(&mut self, index: usize) {
        loop {
            let Some(channel) = self.peers[index].channel_mut() else { return };
            let outcome = match channel.input.next::<Frame>(FRAME_BYTES_MAX) {
                Ok(None) => return,
                Ok(Some((frame, tail))) => self.take_frame(index, frame, tail),
                Err(error) => Err(error.to_string()),
            };
            if let Err(what) = outcome {
                return self.violated(index, &what);
            }
        }
    }

    /// A neighbour broke the protocol: nothing it says counts any more.
    fn violated(&mut self, index: usize, what: &str) {
        let peer = self.peers[index].rank;
        tracing::warn!(rank = self.shared.rank, peer, what, "control protocol broken");
        self.peers[index].go();
        self.abort(AbortKind::Link {
            peer,
            reason: format!("rank {peer} broke the control protocol: {what}"),
        });
    }

    fn take_frame(&mut self, index: usize, frame: Frame, tail: Vec<u8>) -> Result<(), String> {
        let rank = self.peers[index].rank;
        match frame {
            Frame::Abort(cause) => {
                self.check_rank(cause.origin)?;
                self.spread_abort(cause, Some(index));
            }
            Frame::Call { origin, call } => {
                self.check_rank(origin)?;
                self.count_call(index);
                match self.shared.heard_call(origin, &call) {
                    Published::Known => {}
                    Published::New => self.flood(&Frame::Call { origin, call }, Some(index)),
                    Published::Mismatch(cause) => self.spread_abort(cause, None),
                }
            }
            Frame::CallsRead(count) => {
                let unread = &mut self.peers[index].calls_unread;
                *unread = unread.saturating_sub(count);
            }
            Frame::Agree(round) => match self.agreement.receive(rank, round) {
                Ok(()) => self.go_on_agreeing(),
                Err(violation) => self.disagree(violation),
            },
            Frame::Link { from, to, step } => {
                self.check_rank(from)?;
                self.check_rank(to)?;
                if from == to {
                    return Err(format!("a link step from rank {from} to itself"));
                }
                if to == self.shared.rank {
                    self.setup.receive(from, step, &tail);
                    self.send_link_steps();
                } else {
                    self.send_towards(to, &Frame::Link { from, to, step }, &tail);
                }
            }
            Frame::Bye => self.goodbye(index)?,
        }
        Ok(())
    }

    fn check_rank(&self, rank: Rank) -> Result<(), String> {
        let size = self.shared.peers.len();
        if (rank as usize) < size { Ok(()) } else { Err(format!("rank {rank} of {size}")) }
    }

    fn count_call(&mut self, index: usize) {
        self.peers[index].calls_read += 1;
        if self.peers[index].calls_read >= CALLS_READ_BATCH {
            let count = std::mem::take(&mut self.peers[index].calls_read);
            self.send(index, &Frame::CallsRead(count), &[]);
        }
    }

    fn goodbye(&mut self, index: usize) -> Result<(), String> {
        let rank = self.peers[index].rank;
        // All ranks have taken part in the agreement to leave before anybody says goodbye, and
        // what this neighbour had to say in it came before.
        let early = !self.leaving || self.agreement.awaited().contains(&rank);
        if early && self.shared.job_abort().is_none() {
            return Err("it left although not all ranks leave".into());
        }
        self.peers[index].said_bye = true;
        Ok(())
    }

    // ---- agreement ----

    /// Goes on with the active agreement; whether it was reached.
    pub(super) fn step_agreement(&mut self) -> bool {
        while let Some(step) = self.agreement.poll() {
            match step {
                Step::Send { to, round } => self.send_towards(to, &Frame::Agree(round), &[]),
                Step::Done(agreed) => {
                    if matches!(self.phase, Phase::Connecting { .. }) {
                        self.phase = Phase::Running;
                    }
                    if let Some(reply) = self.reply.take() {
                        // Whoever asked may have left at its deadline.
                        let _ = reply.send(Ok(agreed));
                    }
                    return true;
                }
                Step::Violated(violation) => {
                    self.disagree(violation);
                    return false;
                }
            }
        }
        false
    }

    fn disagree(&mut self, violation: Violation) {
        let reason = match violation {
            Violation::Protocol(what) => format!("the control protocol is broken: {what}"),
            Violation::Purposes { ours, theirs, rank } => format!(
                "mismatched calls: rank {} {} while rank {rank} {}",
                self.shared.rank,
                Purpose::describe(ours),
                Purpose::describe(theirs)
            ),
        };
        self.abort(AbortKind::Application { reason });
    }

    // ---- sending ----

    /// Sends what link set-up has to say.
    pub(super) fn send_link_steps(&mut self) {
        let from = self.shared.rank;
        for (to, step, tail) in self.setup.take_outgoing() {
            self.send_towards(to, &Frame::Link { from, to, step }, &tail);
        }
    }

    /// Sends to all neighbours but one.
    pub(super) fn flood(&mut self, frame: &Frame, except: Option<usize>) {
        for index in 0..self.peers.len() {
            if Some(index) == except {
                continue;
            }
            if let Frame::Call { .. } = frame {
                let peer = &mut self.peers[index];
                if peer.calls_unread >= CALLS_UNREAD_MAX {
                    tracing::debug!(peer = peer.rank, "published call left out");
                    continue;
                }
                peer.calls_unread += 1;
            }
            self.send(index, frame, &[]);
        }
    }

    /// Sends to the neighbour that is nearest to `to`.
    fn send_towards(&mut self, to: Rank, frame: &Frame, tail: &[u8]) {
        let Some(hop) = self.overlay.next_hop(to) else { return };
        match self.peers.iter().position(|peer| peer.rank == hop) {
            Some(index) => self.send(index, frame, tail),
            None => tracing::warn!(to, hop, "no such neighbour"),
        }
    }

    fn send(&mut self, index: usize, frame: &Frame, tail: &[u8]) {
        let (rank, peer) = (self.shared.rank, self.peers[index].rank);
        // Before it is connected nothing is sent; when it is gone the job is aborted.
        let Some(channel) = self.peers[index].channel_mut() else { return };
        tracing::trace!(rank, peer, ?frame, "send");
        match encode(frame, tail) {
            Ok(bytes) if channel.unwritten() + bytes.len() <= OUTPUT_BYTES_MAX => {
                channel.queue(&bytes);
            }
            Ok(_) => {
                self.peers[index].go();
                let waiting = OUTPUT_BYTES_MAX >> 20;
                let reason = format!(
                    "rank {peer} does not read its control connection: {waiting} MiB are waiting"
                );
                self.abort(AbortKind::Link { peer, reason });
            }
            Err(error) => {
                let reason = format!("a control frame cannot be sent: {error}");
                self.abort(AbortKind::Application { reason });
            }
        }
    }
}
