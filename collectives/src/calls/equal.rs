//! Operations whose parts all have the same length.

use verbcast_transport::wire;

use super::element::Element;
use super::{Given, Lengths, Of, Options, Plan, Use, check_length, given, options, wrong};
use crate::communicator::Communicator;
use crate::engine::OwnPart;
use crate::error::Error;
use crate::model::Choice;
use crate::request::{Failed, Memories, Prepared, Request, Scope};
use crate::schedule::{Algorithm, Operation, Rank};

/// The ways to make a call that own their memory.
macro_rules! owned_ways {
    ($call:ident) => {
        impl $call<'_> {
            /// Starts the operation on memory of its own, and does not wait for it.
            ///
            /// # Errors
            /// As for the blocking call, as far as this rank knows alone; what else goes wrong is
            /// told by [`Request::wait`]. The memory comes back with the error.
            pub fn start(
                self,
                memories: impl Into<Memories>,
            ) -> Result<Request<'static>, Box<Failed>> {
                let memories = memories.into();
                match self.plan(self.options.of, memories.lengths()) {
                    Ok(plan) => plan.start(self.communicator, &self.options, memories),
                    Err(error) => Err(Box::new(Failed { error, memories })),
                }
            }

            /// Sets the operation up on memory of its own, to be started any number of times.
            ///
            /// # Errors
            /// As for the blocking call, as far as this rank knows alone. The memory comes back
            /// with the error.
            pub fn prepare(self, memories: impl Into<Memories>) -> Result<Prepared, Box<Failed>> {
                let memories = memories.into();
                match self.plan(self.options.of, memories.lengths()) {
                    Ok(plan) => plan.prepare(self.communicator, &self.options, memories),
                    Err(error) => Err(Box::new(Failed { error, memories })),
                }
            }
        }
    };
}

impl<T: Into<verbcast_transport::memory::Owned>> From<T> for Memories {
    /// The one buffer of a broadcast, or of an operation in place.
    fn from(memory: T) -> Self {
        Self::recv(memory)
    }
}

impl Communicator {
    /// A broadcast from `root` with options; [`BroadcastCall::run`] makes the call.
    pub fn broadcast_call(&self, root: Rank) -> BroadcastCall<'_> {
        BroadcastCall { communicator: self, root, options: Options::default() }
    }

    /// A scatter from `root` with options; [`ScatterCall::run`] makes the call.
    pub fn scatter_call(&self, root: Rank) -> ScatterCall<'_> {
        ScatterCall { communicator: self, root, options: Options::default() }
    }

    /// A gather to `root` with options; [`GatherCall::run`] makes the call.
    pub fn gather_call(&self, root: Rank) -> GatherCall<'_> {
        GatherCall { communicator: self, root, options: Options::default() }
    }

    /// An allgather with options; [`AllgatherCall::run`] makes the call.
    pub fn allgather_call(&self) -> AllgatherCall<'_> {
        AllgatherCall { communicator: self, options: Options::default() }
    }

    /// A barrier with options; [`BarrierCall::run`] makes the call.
    pub fn barrier_call(&self) -> BarrierCall<'_> {
        BarrierCall { communicator: self, options: Options::default() }
    }
}

/// A broadcast with options. All ranks give the same algorithm and block size, or none.
#[derive(Debug)]
#[must_use = "nothing happens before `run`"]
pub struct BroadcastCall<'a> {
    communicator: &'a Communicator,
    root: Rank,
    options: Options<'a>,
}
options!(BroadcastCall);
owned_ways!(BroadcastCall);

impl BroadcastCall<'_> {
    const KIND: (Operation, wire::Operation) = (Operation::Broadcast, wire::Operation::Broadcast);

    /// What the call will do with a buffer of `bytes` bytes: algorithm, block size, predicted time.
    ///
    /// # Errors
    /// If the options do not go with that many bytes.
    pub fn choice(&self, bytes: u64) -> Result<Choice, Error> {
        self.communicator.choose(Operation::Broadcast, bytes, self.options.demand())
    }

    fn plan(&self, of: Of, lengths: Lengths) -> Result<Plan, Error> {
        let Self { communicator, root, options } = self;
        let missing = || wrong(Self::KIND.1, "this rank gives no `recv`".to_owned());
        let bytes = lengths.recv.ok_or_else(missing)?;
        let plan = Plan::of(communicator, options, Self::KIND, *root, (bytes as u64, of))?;
        let recv = if communicator.rank() == *root { Use::Read } else { Use::Write };
        Ok(plan.uses(Use::Unused, recv))
    }

    /// Makes the call; see [`Communicator::broadcast`].
    ///
    /// # Errors
    /// As for [`Communicator::broadcast`]; and if the deadline passed, or the block size is none.
    pub fn run<T: Element>(self, buffer: &mut [T]) -> Result<(), Error> {
        let given = given(None, Some(buffer));
        let plan = self.plan(Of::elements::<T>(), given.lengths())?;
        plan.run(self.communicator, self.options, given)
    }

    /// Starts the operation on borrowed memory, and does not wait for it.
    ///
    /// # Errors
    /// As for [`BroadcastCall::run`], as far as this rank knows alone.
    pub fn start_in<'scope, T: Element>(
        self,
        scope: Scope<'scope, '_>,
        buffer: &'scope mut [T],
    ) -> Result<Request<'scope>, Error> {
        let given = given(None, Some(buffer));
        let plan = self.plan(Of::elements::<T>(), given.lengths())?;
        plan.start_in(self.communicator, self.options, scope, given)
    }
}

/// A scatter with options. All ranks give the same algorithm and block size, or none.
///
/// Of owned memory, the root gives `send`, and `recv` unless its own part is to stay where it is;
/// the others give `recv`.
#[derive(Debug)]
#[must_use = "nothing happens before `run`"]
pub struct ScatterCall<'a> {
    communicator: &'a Communicator,
    root: Rank,
    options: Options<'a>,
}
options!(ScatterCall);
owned_ways!(ScatterCall);

impl ScatterCall<'_> {
    const KIND: (Operation, wire::Operation) = (Operation::Scatter, wire::Operation::Scatter);

    fn plan(&self, of: Of, lengths: Lengths) -> Result<Plan, Error> {
        let Self { communicator, root, options } = self;
        let (rank, size, code) = (communicator.rank(), communicator.size() as usize, Self::KIND.1);
        let is_root = rank == *root;
        let bytes = match (is_root, lengths.send, lengths.recv) {
            (true, None, _) => return Err(wrong(code, "the root gives nothing to `send`".into())),
            (true, Some(all), None) => equal_part(code, of, size, all)?,
            (true, Some(all), Some(part)) => {
                check_length(code, of, "send", all, part.checked_mul(size))?;
                part
            }
            (false, _, Some(part)) => part,
            (false, _, None) => return Err(only_root(code, rank, *root)),
        };
        let plan = Plan::of(communicator, options, Self::KIND, *root, (bytes as u64, of))?;
        if !is_root {
            return Ok(plan.uses(Use::Unused, Use::Write));
        }
        let (from, bytes) = (u64::from(rank) * bytes as u64, bytes as u64);
        let own = lengths.recv.map(|_| OwnPart { from, to: 0, bytes });
        Ok(Plan { own, ..plan.uses(Use::Read, Use::Local) })
    }

    /// Makes the call; see [`Communicator::scatter`].
    ///
    /// # Errors
    /// As for [`Communicator::scatter`]; and if the deadline passed, or the block size is none.
    pub fn run<T: Element>(self, send: Option<&[T]>, recv: &mut [T]) -> Result<(), Error> {
        let given = given(send, Some(recv));
        let plan = self.plan(Of::elements::<T>(), given.lengths())?;
        plan.run(self.communicator, self.options, given)
    }

    /// Makes the call at the root, whose own part stays where it is in `send`.
    ///
    /// # Errors
    /// As for [`ScatterCall::run`]; and on a rank that is not the root.
    pub fn run_in_place<T: Element>(self, send: &[T]) -> Result<(), Error> {
        let given = given(Some(send), None);
        let plan = self.plan(Of::elements::<T>(), given.lengths())?;
        plan.run(self.communicator, self.options, given)
    }

    /// Starts the operation on borrowed memory, and does not wait for it; without `recv` as in
    /// [`ScatterCall::run_in_place`].
    ///
    /// # Errors
    /// As for [`ScatterCall::run`], as far as this rank knows alone.
    pub fn start_in<'scope, T: Element>(
        self,
        scope: Scope<'scope, '_>,
        send: Option<&'scope [T]>,
        recv: Option<&'scope mut [T]>,
    ) -> Result<Request<'scope>, Error> {
        let given = given(send, recv);
        let plan = self.plan(Of::elements::<T>(), given.lengths())?;
        plan.start_in(self.communicator, self.options, scope, given)
    }
}

/// A gather with options. All ranks give the same algorithm and block size, or none.
///
/// Of owned memory, the root gives `recv`, and `send` unless its own part is in its place already;
/// the others give `send`.
#[derive(Debug)]
#[must_use = "nothing happens before `run`"]
pub struct GatherCall<'a> {
    communicator: &'a Communicator,
    root: Rank,
    options: Options<'a>,
}
options!(GatherCall);
owned_ways!(GatherCall);

impl GatherCall<'_> {
    const KIND: (Operation, wire::Operation) = (Operation::Gather, wire::Operation::Gather);

    fn plan(&self, of: Of, lengths: Lengths) -> Result<Plan, Error> {
        let Self { communicator, root, options } = self;
        let (rank, size, code) = (communicator.rank(), communicator.size() as usize, Self::KIND.1);
        let is_root = rank == *root;
        let bytes = match (is_root, lengths.send, lengths.recv) {
            (true, _, None) => return Err(wrong(code, "the root gives no `recv`".into())),
            (true, None, Some(all)) => equal_part(code, of, size, all)?,
            (true, Some(part), Some(all)) => {
                check_length(code, of, "recv", all, part.checked_mul(size))?;
                part
            }
            (false, Some(part), _) => part,
            (false, None, _) => return Err(only_root(code, rank, *root)),
        };
        let plan = Plan::of(communicator, options, Self::KIND, *root, (bytes as u64, of))?;
        if !is_root {
            return Ok(plan.uses(Use::Read, Use::Unused));
        }
        let (to, bytes) = (u64::from(rank) * bytes as u64, bytes as u64);
        let own = lengths.send.map(|_| OwnPart { from: 0, to, bytes });
        Ok(Plan { own, ..plan.uses(Use::Local, Use::Write) })
    }

    /// Makes the call; see [`Communicator::gather`].
    ///
    /// # Errors
    /// As for [`Communicator::gather`]; and if the deadline passed, or the block size is none.
    pub fn run<T: Element>(self, send: &[T], recv: Option<&mut [T]>) -> Result<(), Error> {
        let given = given(Some(send), recv);
        let plan = self.plan(Of::elements::<T>(), given.lengths())?;
        plan.run(self.communicator, self.options, given)
    }

    /// Makes the call at the root, whose own part is in its place in `recv` already.
    ///
    /// # Errors
    /// As for [`GatherCall::run`]; and on a rank that is not the root.
    pub fn run_in_place<T: Element>(self, recv: &mut [T]) -> Result<(), Error> {
        let given = given(None, Some(recv));
        let plan = self.plan(Of::elements::<T>(), given.lengths())?;
        plan.run(self.communicator, self.options, given)
    }

    /// Starts the operation on borrowed memory, and does not wait for it; without `send` as in
    /// [`GatherCall::run_in_place`].
    ///
    /// # Errors
    /// As for [`GatherCall::run`], as far as this rank knows alone.
    pub fn start_in<'scope, T: Element>(
        self,
        scope: Scope<'scope, '_>,
        send: Option<&'scope [T]>,
        recv: Option<&'scope mut [T]>,
    ) -> Result<Request<'scope>, Error> {
        let given = given(send, recv);
        let plan = self.plan(Of::elements::<T>(), given.lengths())?;
        plan.start_in(self.communicator, self.options, scope, given)
    }
}

/// An allgather with options. All ranks give the same algorithm and block size, or none.
///
/// Of owned memory, each rank gives `recv`, and `send` unless its own part is in its place already.
#[derive(Debug)]
#[must_use = "nothing happens before `run`"]
pub struct AllgatherCall<'a> {
    communicator: &'a Communicator,
    options: Options<'a>,
}
options!(AllgatherCall);
owned_ways!(AllgatherCall);

impl AllgatherCall<'_> {
    const KIND: (Operation, wire::Operation) = (Operation::Allgather, wire::Operation::AllGather);

    fn plan(&self, of: Of, lengths: Lengths) -> Result<Plan, Error> {
        let Self { communicator, options } = self;
        let (rank, size, code) = (communicator.rank(), communicator.size() as usize, Self::KIND.1);
        let missing = || wrong(code, "this rank gives no `recv`".to_owned());
        let all = lengths.recv.ok_or_else(missing)?;
        let bytes = match lengths.send {
            None => equal_part(code, of, size, all)?,
            Some(part) => {
                check_length(code, of, "recv", all, part.checked_mul(size))?;
                part
            }
        };
        let plan = Plan::of(communicator, options, Self::KIND, 0, (bytes as u64, of))?;
        let (to, bytes) = (u64::from(rank) * bytes as u64, bytes as u64);
        let own = lengths.send.map(|_| OwnPart { from: 0, to, bytes });
        Ok(Plan { own, ..plan.uses(Use::Local, Use::Write) })
    }

    /// Makes the call; see [`Communicator::allgather`].
    ///
    /// # Errors
    /// As for [`Communicator::allgather`]; and if the deadline passed, or the block size is none.
    pub fn run<T: Element>(self, send: &[T], recv: &mut [T]) -> Result<(), Error> {
        let given = given(Some(send), Some(recv));
        let plan = self.plan(Of::elements::<T>(), given.lengths())?;
        plan.run(self.communicator, self.options, given)
    }

    /// Makes the call; each rank's own part is in its place in `recv` already.
    ///
    /// # Errors
    /// As for [`AllgatherCall::run`].
    pub fn run_in_place<T: Element>(self, recv: &mut [T]) -> Result<(), Error> {
        let given = given(None, Some(recv));
        let plan = self.plan(Of::elements::<T>(), given.lengths())?;
        plan.run(self.communicator, self.options, given)
    }

    /// Starts the operation on borrowed memory, and does not wait for it; without `send` as in
    /// [`AllgatherCall::run_in_place`].
    ///
    /// # Errors
    /// As for [`AllgatherCall::run`], as far as this rank knows alone.
    pub fn start_in<'scope, T: Element>(
        self,
        scope: Scope<'scope, '_>,
        send: Option<&'scope [T]>,
        recv: &'scope mut [T],
    ) -> Result<Request<'scope>, Error> {
        let given = given(send, Some(recv));
        let plan = self.plan(Of::elements::<T>(), given.lengths())?;
        plan.start_in(self.communicator, self.options, scope, given)
    }
}

/// A barrier with options.
#[derive(Debug)]
#[must_use = "nothing happens before `run`"]
pub struct BarrierCall<'a> {
    communicator: &'a Communicator,
    options: Options<'a>,
}
options!(BarrierCall);

impl BarrierCall<'_> {
    const KIND: (Operation, wire::Operation) = (Operation::Allgather, wire::Operation::Barrier);

    /// An allgather of empty parts.
    fn plan(&mut self) -> Result<Plan, Error> {
        let Self { communicator, options } = self;
        options.algorithm.get_or_insert(Algorithm::Bruck);
        let plan = Plan::of(communicator, options, Self::KIND, 0, (0, Of::default()))?;
        Ok(plan.uses(Use::Unused, Use::Local))
    }

    /// Makes the call; see [`Communicator::barrier`]. It is an allgather of empty parts: in
    /// ceil(log2 N) rounds everybody has heard of everybody.
    ///
    /// # Errors
    /// As for [`Communicator::barrier`]; and if the deadline passed.
    pub fn run(mut self) -> Result<(), Error> {
        let plan = self.plan()?;
        let given = Given { send: None, recv: Some(&mut []) };
        plan.run(self.communicator, self.options, given)
    }

    /// Starts the barrier, and does not wait for it.
    ///
    /// # Errors
    /// As for [`BarrierCall::run`], as far as this rank knows alone.
    pub fn start(mut self) -> Result<Request<'static>, Error> {
        let plan = self.plan()?;
        Ok(plan.start(self.communicator, &self.options, Memories::recv(Vec::new()))?)
    }

    /// Sets the barrier up, to be started any number of times.
    ///
    /// # Errors
    /// As for [`BarrierCall::run`], as far as this rank knows alone.
    pub fn prepare(mut self) -> Result<Prepared, Error> {
        let plan = self.plan()?;
        Ok(plan.prepare(self.communicator, &self.options, Memories::recv(Vec::new()))?)
    }
}

/// The bytes of each part where `all` are those of all ranks.
fn equal_part(code: wire::Operation, of: Of, size: usize, all: usize) -> Result<usize, Error> {
    let elements = of.count(all);
    if !elements.is_multiple_of(size) || !all.is_multiple_of(of.bytes.max(1)) {
        return Err(wrong(
            code,
            format!("{elements} elements are no equal parts for {size} ranks"),
        ));
    }
    Ok(all / size)
}

fn only_root(code: wire::Operation, rank: Rank, root: Rank) -> Error {
    wrong(code, format!("rank {rank} is not the root {root}, which alone has all parts"))
}
