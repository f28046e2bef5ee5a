//! What comes over the links finds its operation, or waits for it, or shows that calls differ.

use std::time::Instant;

use verbcast_transport::endpoint::Notice;
use verbcast_transport::link::Slot;
use verbcast_transport::wire::Signature;

use super::operation::Phase;
use super::{BREAK_GRACE, Engine, mismatch, report};
use crate::error::Error;

impl Engine {
    pub(super) fn take_notice(&mut self, notice: Notice) {
        let (index, result) = match notice {
            Notice::Message { slot } => return self.take_message(slot),
            Notice::Block { peer, handle, block } => {
                let mut found = None;
                for &index in &self.active {
                    let Some(operation) = &mut self.operations[index].1 else { continue };
                    match operation.take_block(peer, handle, block) {
                        Ok(false) => {}
                        Ok(true) => return,
                        Err(error) => {
                            found = Some((index, Err(error)));
                            break;
                        }
                    }
                }
                let Some(found) = found else { return };
                found
            }
            Notice::Sent { peer, buffer, token } => {
                let uses = |index: &&usize| {
                    let operation = self.operations[**index].1.as_ref();
                    operation.is_some_and(|operation| operation.uses(buffer))
                };
                let Some(&index) = self.active.iter().find(uses) else { return };
                let Some(operation) = &mut self.operations[index].1 else { return };
                (index, operation.take_sent(peer, token))
            }
            Notice::Broken { peer } => {
                let until = Instant::now() + BREAK_GRACE;
                for &index in &self.active {
                    if let Some(operation) = &mut self.operations[index].1
                        && operation.needs(peer)
                    {
                        operation.broken.get_or_insert((peer, until));
                    }
                }
                return;
            }
        };
        if let Err(error) = result {
            self.end(index, Err(error));
        }
    }

    /// Messages that came before this rank started the operation.
    pub(super) fn take_unexpected(&mut self, index: usize) -> Result<(), Error> {
        let Some(operation) = &mut self.operations[index].1 else { return Ok(()) };
        let ours = operation.call.signature;
        let mut next = 0;
        while let Some((slot, theirs)) = self.unexpected.get(next).copied() {
            if (theirs.communicator, theirs.number) != (ours.communicator, ours.number) {
                next += 1;
                continue;
            }
            self.unexpected.remove(next);
            if theirs != ours {
                self.endpoint.release(slot);
                return Err(mismatch(self.endpoint.control(), ours, slot.peer, theirs));
            }
            operation.take_message(&mut self.endpoint, slot)?;
        }
        Ok(())
    }

    fn take_message(&mut self, slot: Slot) {
        let theirs = match self.endpoint.message(slot) {
            Ok((header, _)) => header.signature(),
            Err(error) => return self.end_all(error),
        };
        let Signature { communicator, number, .. } = theirs;
        let is_its = |index: &&usize| {
            self.operations[**index].1.as_ref().is_some_and(|operation| {
                let ours = operation.call.signature;
                matches!(operation.phase, Phase::Running)
                    && (ours.communicator, ours.number) == (communicator, number)
            })
        };
        if let Some(&index) = self.active.iter().find(is_its) {
            let Some(operation) = &mut self.operations[index].1 else { return };
            let ours = operation.call.signature;
            let result = if theirs == ours {
                operation.take_message(&mut self.endpoint, slot)
            } else {
                self.endpoint.release(slot);
                Err(mismatch(self.endpoint.control(), ours, slot.peer, theirs))
            };
            if let Err(error) = result {
                self.end(index, Err(error));
            }
            return;
        }
        let known = self.communicators.get(&communicator);
        let is_queued = || {
            self.active.iter().any(|index| {
                self.operations[*index].1.as_ref().is_some_and(|operation| {
                    let ours = operation.call.signature;
                    (ours.communicator, ours.number) == (communicator, number)
                })
            })
        };
        let is_to_come = match known {
            Some(numbers) => number >= numbers.next || is_queued(),
            None => !self.ended.contains(&communicator),
        };
        if is_to_come {
            match self.endpoint.keep(slot) {
                Ok(kept) => self.unexpected.push((kept, theirs)),
                Err(error) => {
                    report(self.endpoint.control(), communicator, &error.into());
                    self.endpoint.release(slot);
                }
            }
            return;
        }
        self.endpoint.release(slot);
        match self.endpoint.control().recorded_call(communicator, number) {
            Some(called) if called != theirs => {
                // It aborts the communicator; whatever runs on it ends by that.
                let _told = mismatch(self.endpoint.control(), called, slot.peer, theirs);
            }
            _ => {}
        }
    }
}
