//! The operations as requests and as persistent operations, without options.

use super::Counts;
use crate::communicator::Communicator;
use crate::error::Error;
use crate::request::{Failed, Memories, Prepared, Request};
use crate::schedule::Rank;

/// Both ways of one operation.
macro_rules! both {
    (
        $about:literal, $start:ident, $prepare:ident, $call:ident
        ($($given:ident : $type:ty),*) ($($root:ident)?)
    ) => {
        #[doc = concat!("Starts ", $about, " on memory of its own, and does not wait for it.")]
        ///
        /// # Errors
        /// As for the blocking call, as far as this rank knows alone; the memory comes back.
        pub fn $start(
            &self,
            memories: impl Into<Memories>,
            $($given: $type,)*
            $($root: Rank,)?
        ) -> Result<Request<'static>, Box<Failed>> {
            self.$call($($root)?).start(memories $(, $given)*)
        }

        #[doc = concat!("Sets up ", $about, " on memory of its own, to be started any number of times.")]
        ///
        /// # Errors
        /// As for the blocking call, as far as this rank knows alone; the memory comes back.
        pub fn $prepare(
            &self,
            memories: impl Into<Memories>,
            $($given: $type,)*
            $($root: Rank,)?
        ) -> Result<Prepared, Box<Failed>> {
            self.$call($($root)?).prepare(memories $(, $given)*)
        }
    };
}

impl Communicator {
    both!("a broadcast", start_broadcast, prepare_broadcast, broadcast_call()(root));
    both!("a scatter", start_scatter, prepare_scatter, scatter_call()(root));
    both!("a gather", start_gather, prepare_gather, gather_call()(root));
    both!("an allgather", start_allgather, prepare_allgather, allgather_call()());
    both!(
        "a scatter of parts of different lengths",
        start_scatterv, prepare_scatterv, scatterv_call (counts: Option<Counts<'_>>) (root)
    );
    both!(
        "a gather of parts of different lengths",
        start_gatherv, prepare_gatherv, gatherv_call (counts: Option<Counts<'_>>) (root)
    );
    both!(
        "an allgather of parts of different lengths",
        start_allgatherv, prepare_allgatherv, allgatherv_call (counts: Counts<'_>) ()
    );

    /// Starts a barrier, and does not wait for it.
    ///
    /// # Errors
    /// As for [`Communicator::barrier`], as far as this rank knows alone.
    pub fn start_barrier(&self) -> Result<Request<'static>, Error> {
        self.barrier_call().start()
    }

    /// Sets up a barrier, to be started any number of times.
    ///
    /// # Errors
    /// As for [`Communicator::barrier`], as far as this rank knows alone.
    pub fn prepare_barrier(&self) -> Result<Prepared, Error> {
        self.barrier_call().prepare()
    }
}
