//! Buffers that an operation gives up while peers may still touch them: the links, which others
//! use, stay.
//!
//! A peer over verbs that was granted a receive whose blocks have not all come is told, and answers;
//! see [`WithdrawalBody`] for what that proves. Over shared memory nobody has to be asked: blocks
//! come in by this rank's own hand, and those that it has sent it can take back.

use super::buffers::{BufferId, Token};
use super::{Endpoint, FabricKind};
use crate::error::Error;
use crate::link::Posting;
use crate::wire::{Grant, MessageHeader, Rank, WithdrawalBody, WithdrawalKind, WithdrawnGrant};

/// Withdrawn grants of a peer that are remembered. Beyond these it gets no answer, ends the link in
/// the end, and with that all grants.
const REFUSED_MAX: usize = 64;

/// What is under way about withdrawn grants, this rank's and those of its peers.
#[derive(Debug, Default)]
pub(super) struct Withdrawals {
    /// Messages that wait for room in their link.
    due: Vec<(Rank, WithdrawalKind, WithdrawnGrant)>,
    /// Answers of peers whose writes have not all come yet.
    answers: Vec<(Rank, WithdrawalBody)>,
    /// By peer: grants that it has withdrawn.
    refused: Vec<Vec<WithdrawnGrant>>,
}

impl Withdrawals {
    pub(super) fn new(size: u32) -> Self {
        Self { refused: vec![Vec::new(); size as usize], ..Self::default() }
    }

    /// Whether blocks may be written under a grant of `peer`.
    pub(super) fn check(&self, rank: Rank, peer: Rank, grant: &Grant) -> Result<(), Error> {
        match self.refused.get(peer as usize) {
            Some(refused) if refused.contains(&grant.into()) => {
                Err(Error::Withdrawn { rank, peer })
            }
            _ => Ok(()),
        }
    }

    /// The peer has withdrawn a grant.
    fn refuse(&mut self, peer: Rank, grant: WithdrawnGrant) {
        let Some(refused) = self.refused.get_mut(peer as usize) else { return };
        if refused.contains(&grant) {
            return;
        }
        if refused.len() == REFUSED_MAX {
            tracing::debug!(peer, ?grant, "too many withdrawn grants: no answer");
            return;
        }
        refused.push(grant);
        self.due.push((peer, WithdrawalKind::Withdrawn, grant));
    }

    /// The receive under this handle is closed.
    pub(super) fn receive_closed(&mut self, handle: u16) {
        self.due
            .retain(|(_, kind, grant)| *kind != WithdrawalKind::Withdraw || grant.handle != handle);
        self.answers.retain(|(_, body)| body.grant().handle != handle);
    }

    /// The link to `peer` has ended, and with it all grants.
    pub(super) fn link_gone(&mut self, peer: Rank) {
        self.due.retain(|(to, ..)| *to != peer);
        self.answers.retain(|(from, _)| *from != peer);
        if let Some(refused) = self.refused.get_mut(peer as usize) {
            refused.clear();
        }
    }
}

impl Endpoint {
    /// Gives a buffer up without disturbing others: nothing is sent from it any more, and its
    /// receives are granted no more and report no more blocks; every use of it but
    /// [`close`](Endpoint::close) is an error from now on. Peers that may still write into it are
    /// asked not to. Blocks that were sent from it over shared memory are taken back, without a
    /// notice. Withdrawing once more changes nothing.
    ///
    /// Poll then until the buffer [is quiet](Endpoint::is_quiet), or for as long as seems right to
    /// wait for peers that may be at something else, and close it.
    ///
    /// # Errors
    /// If the buffer is not open.
    pub fn withdraw(&mut self, buffer: BufferId) -> Result<(), Error> {
        if !self.buffers.withdraw(buffer)? {
            return Ok(());
        }
        for peer in self.buffers.peers_sent_to(buffer) {
            if self.paths[peer as usize] != Some(FabricKind::SharedMemory) {
                continue;
            }
            if let Some(shm) = &mut self.shm {
                shm.recall(peer, |token| Token::decode(token).buffer == buffer);
                self.buffers.sends_gone(buffer, peer);
            }
        }
        for handle in self.buffers.handles_of(buffer) {
            self.receives.withdraw(handle);
            let Some(epoch) = self.receives.find(handle).map(|receive| receive.epoch) else {
                continue;
            };
            for peer in self.buffers.peers_granted(handle) {
                if self.paths[peer as usize] == Some(FabricKind::SharedMemory) {
                    self.buffers.grant_over(handle, peer);
                } else {
                    let grant = WithdrawnGrant { handle, epoch };
                    self.withdrawals.due.push((peer, WithdrawalKind::Withdraw, grant));
                }
            }
        }
        self.send_withdrawals();
        Ok(())
    }

    /// Whether nobody can touch the memory of a buffer any more, so that [closing](Endpoint::close)
    /// it ends no link: its sends have completed, and its receives have all their blocks, or their
    /// senders have written all that they will. True for one that is not open.
    #[must_use]
    pub fn is_quiet(&self, buffer: BufferId) -> bool {
        self.buffers.peers_in_doubt(buffer).is_empty()
    }

    /// Takes a withdrawal of `peer`.
    pub(super) fn take_withdrawal(
        &mut self,
        peer: Rank,
        kind: WithdrawalKind,
        body: WithdrawalBody,
    ) {
        match kind {
            WithdrawalKind::Withdraw => {
                self.withdrawals.refuse(peer, body.grant());
                self.send_withdrawals();
            }
            WithdrawalKind::Withdrawn => {
                let WithdrawnGrant { handle, epoch } = body.grant();
                let open = self.receives.find(handle);
                let is_asked = open.is_some_and(|open| open.withdrawn && open.epoch == epoch)
                    && self.buffers.peers_granted(handle).contains(&peer)
                    && !self
                        .withdrawals
                        .answers
                        .iter()
                        .any(|(from, of)| (*from, of.grant()) == (peer, body.grant()));
                if is_asked {
                    self.withdrawals.answers.push((peer, body));
                    self.settle_withdrawals();
                }
            }
        }
    }

    /// Sends what is due, as far as the links have room for it.
    pub(super) fn send_withdrawals(&mut self) {
        let mut next = 0;
        while let Some((peer, kind, grant)) = self.withdrawals.due.get(next).copied() {
            let lanes = self.verbs.as_ref().filter(|_| kind == WithdrawalKind::Withdrawn);
            let writes = lanes.into_iter().flat_map(|verbs| verbs.writes(peer));
            let body = WithdrawalBody::new(grant, writes);
            let header = MessageHeader::withdrawal(kind, body.payload());
            let sent = self
                .fabric(peer)
                .and_then(|fabric| fabric.send_message(peer, &header, body.payload()));
            // A broken link is reported by its event.
            if matches!(sent, Ok(Posting::Posted)) {
                self.withdrawals.due.remove(next);
            } else {
                next += 1;
            }
        }
    }

    /// Looks which peers' writes have all come.
    pub(super) fn settle_withdrawals(&mut self) {
        let Self { withdrawals, verbs: Some(verbs), buffers, .. } = self else { return };
        withdrawals.answers.retain(|(peer, body)| {
            let have_come = verbs.have_come(*peer, body.writes());
            if have_come {
                buffers.grant_over(body.grant().handle, *peer);
            }
            !have_come
        });
    }

    /// Forgets what is under way about a receive that is closed.
    pub(super) fn forget_receive(&mut self, handle: u16) {
        self.withdrawals.receive_closed(handle);
        // Blocks that nobody has taken must not be told of a later receive under this handle.
        self.shm_events.forget_blocks(handle);
        self.verbs_events.forget_blocks(handle);
        if let Some(verbs) = &mut self.verbs {
            verbs.forget_blocks(handle);
        }
    }
}
