//! Where the blocks of a running operation lie on this rank.

use verbcast_transport::endpoint::{BufferId, Endpoint};
use verbcast_transport::error::Error as TransportError;
use verbcast_transport::layout::Layout;

use super::operation::Call;
use crate::error::Error;
use crate::schedule::{Direction, Operation, Rank, RankSchedule};

/// The buffers of an operation, as far as this rank has them.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Buffers {
    /// What the caller gives.
    pub(super) source: Option<BufferId>,
    /// What the caller gets; in a broadcast both are this one.
    pub(super) target: Option<BufferId>,
    /// What is only passed on.
    pub(super) staging: Option<BufferId>,
}

/// A run of parts that lie side by side in one buffer.
#[derive(Clone, Debug)]
pub(super) struct Section {
    pub(super) first_part: u32,
    pub(super) layout: Layout,
    pub(super) buffer: BufferId,
    /// Where in the buffer the run begins.
    pub(super) offset: u64,
    /// The receive of granted blocks; none for parts that are held from the start, or come in messages.
    pub(super) handle: Option<u16>,
}

impl Section {
    fn end(&self) -> u32 {
        self.first_part + self.layout.parts()
    }
}

/// All sections of an operation; the storage is used again by the next one.
#[derive(Debug, Default)]
pub(super) struct Places {
    /// In order of parts.
    sections: Vec<Section>,
    received: Vec<u32>,
}

impl Places {
    /// The bytes that this rank has to stage, if there is anything: parts of others that only pass
    /// through.
    pub(super) fn staged_bytes(&mut self, call: &Call, schedule: &RankSchedule) -> Option<u64> {
        self.list_received(call, schedule);
        let rank = schedule.rank();
        let is_staged = |part: &&u32| is_staged(call, rank, **part);
        let staged = self.received.iter().filter(is_staged);
        staged.map(|&part| bytes_of(&call.layout, part)).reduce(|sum, bytes| sum + bytes)
    }

    /// Opens the receives of what the schedule brings to this rank, and notes where everything lies;
    /// [`Places::staged_bytes`] has been asked before.
    ///
    /// # Errors
    /// If a receive cannot be opened.
    pub(super) fn open(
        &mut self,
        endpoint: &mut Endpoint,
        call: &Call,
        rank: Rank,
        buffers: Buffers,
    ) -> Result<(), Error> {
        self.sections.clear();
        self.place_held(call, rank, buffers)?;
        let received = std::mem::take(&mut self.received);
        let result = self.place_received(endpoint, call, rank, buffers, &received);
        self.received = received;
        result?;
        self.sections.sort_unstable_by_key(|section| section.first_part);
        Ok(())
    }

    /// The most receives that [`Places::open`] may need; [`Places::staged_bytes`] has been asked
    /// before.
    pub(super) fn receives_most(&self) -> usize {
        self.received.len()
    }

    /// Opens all receives once more, for the next start of a persistent operation.
    ///
    /// # Errors
    /// If one cannot be.
    pub(super) fn reopen(&self, endpoint: &mut Endpoint) -> Result<(), Error> {
        for handle in self.sections.iter().filter_map(|section| section.handle) {
            endpoint.reopen(handle)?;
        }
        Ok(())
    }

    /// The section of a part; its index stays the same for the whole operation.
    pub(super) fn of_part(&self, part: u32) -> Option<(usize, &Section)> {
        let after = self.sections.partition_point(|section| section.first_part <= part);
        let index = after.checked_sub(1)?;
        let section = &self.sections[index];
        (part < section.end()).then_some((index, section))
    }

    pub(super) fn get(&self, index: usize) -> Option<&Section> {
        self.sections.get(index)
    }

    /// The section whose blocks come under this handle.
    pub(super) fn of_handle(&self, handle: u16) -> Option<&Section> {
        self.sections.iter().find(|section| section.handle == Some(handle))
    }

    /// The parts that come to this rank, ascending, each once.
    fn list_received(&mut self, call: &Call, schedule: &RankSchedule) {
        self.received.clear();
        let steps = schedule.steps().iter().filter(|step| step.direction == Direction::Recv);
        self.received.extend(steps.map(|step| call.part_of(step.block)));
        self.received.sort_unstable();
        self.received.dedup();
    }

    /// What this rank has from the start.
    fn place_held(&mut self, call: &Call, rank: Rank, buffers: Buffers) -> Result<(), Error> {
        let is_root = rank == call.shape.root();
        match call.shape.operation() {
            Operation::Broadcast | Operation::Scatter if !is_root => {}
            Operation::Broadcast | Operation::Scatter => match &call.displacements {
                None => self.push(call, (0, call.layout.parts()), buffers.source, 0, None)?,
                Some(displacements) => {
                    for (part, &offset) in (0..).zip(displacements.iter()) {
                        self.push(call, (part, 1), buffers.source, offset, None)?;
                    }
                }
            },
            // The root of a gather sends nothing.
            Operation::Gather if is_root => {}
            Operation::Gather => self.push(call, (rank, 1), buffers.source, 0, None)?,
            Operation::Allgather => {
                let offset = target_offset(call, rank, rank);
                self.push(call, (rank, 1), buffers.target, offset, None)?;
            }
        }
        Ok(())
    }

    fn place_received(
        &mut self,
        endpoint: &mut Endpoint,
        call: &Call,
        rank: Rank,
        buffers: Buffers,
        received: &[u32],
    ) -> Result<(), Error> {
        let mut staged = 0;
        // The run that is being built: first part, parts, buffer, offset, whether it comes in messages.
        let mut run: Option<(u32, u32, Option<BufferId>, u64, bool)> = None;
        for &part in received {
            let bytes = bytes_of(&call.layout, part);
            let (buffer, offset) = if is_staged(call, rank, part) {
                let offset = staged;
                staged += bytes;
                (buffers.staging, offset)
            } else {
                (buffers.target, target_offset(call, rank, part))
            };
            let is_eager = call.is_eager(part);
            // A peer cannot find a part among others whose lengths it does not know.
            if let Some((first, parts, into, at, eager)) = &mut run
                && call.is_known
                && (*into, *eager, *first + *parts) == (buffer, is_eager, part)
                && *at + bytes_between(&call.layout, *first, *parts) == offset
            {
                *parts += 1;
                continue;
            }
            if let Some(run) = run.replace((part, 1, buffer, offset, is_eager)) {
                self.open_run(endpoint, call, run)?;
            }
        }
        run.map_or(Ok(()), |run| self.open_run(endpoint, call, run))
    }

    fn open_run(
        &mut self,
        endpoint: &mut Endpoint,
        call: &Call,
        (first, parts, buffer, offset, is_eager): (u32, u32, Option<BufferId>, u64, bool),
    ) -> Result<(), Error> {
        let handle = match (buffer, slice(call, first, parts)) {
            (Some(buffer), Ok(layout)) if !is_eager => {
                Some(endpoint.open_receive(buffer, offset, &layout)?)
            }
            _ => None,
        };
        self.push(call, (first, parts), buffer, offset, handle)
    }

    fn push(
        &mut self,
        call: &Call,
        (first_part, parts): (u32, u32),
        buffer: Option<BufferId>,
        offset: u64,
        handle: Option<u16>,
    ) -> Result<(), Error> {
        let buffer = buffer.ok_or_else(|| invalid("an operation without its buffer".into()))?;
        let layout = slice(call, first_part, parts)?;
        self.sections.push(Section { first_part, layout, buffer, offset, handle });
        Ok(())
    }
}

fn slice(call: &Call, first: u32, parts: u32) -> Result<Layout, Error> {
    let slice = call.layout.slice(first, parts);
    slice.ok_or_else(|| invalid(format!("parts from {first} on, {parts} of them, do not exist")))
}

fn invalid(what: String) -> Error {
    TransportError::Invalid(what).into()
}

/// Whether a part that comes to the rank only passes through.
fn is_staged(call: &Call, rank: Rank, part: u32) -> bool {
    match call.shape.operation() {
        Operation::Broadcast | Operation::Allgather => false,
        Operation::Scatter => part != rank,
        Operation::Gather => rank != call.shape.root(),
    }
}

/// Where a part that is the caller's lies in what the caller gets.
fn target_offset(call: &Call, rank: Rank, part: u32) -> u64 {
    match (call.shape.operation(), &call.displacements) {
        (Operation::Scatter, _) if part == rank => 0,
        (_, Some(displacements)) => displacements.get(part as usize).copied().unwrap_or(0),
        _ => call.layout.part_range(part).start,
    }
}

fn bytes_of(layout: &Layout, part: u32) -> u64 {
    let range = layout.part_range(part);
    range.end - range.start
}

fn bytes_between(layout: &Layout, first: u32, parts: u32) -> u64 {
    layout.part_range(first + parts - 1).end - layout.part_range(first).start
}
