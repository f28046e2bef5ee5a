//! The rendezvous of a job, in a thread of the launcher, and the secret that opens it.

use std::time::Duration;

use verbcast_transport::bootstrap::{BootstrapError, RendezvousServer, Secret, StopHandle};

use super::{Error, system};

/// Where the ranks of a job meet.
#[derive(Debug)]
pub(crate) struct Meeting {
    address: String,
    secret: Secret,
    stop: StopHandle,
}

impl Meeting {
    /// Opens a place at `address` for `size` ranks, which have `deadline` to come.
    ///
    /// # Errors
    /// If there can be no secret, no listener or no thread.
    pub(crate) fn open(address: &str, size: u32, deadline: Duration) -> Result<Self, Error> {
        let secret = Secret::generate().map_err(|error| refused(error.into()))?;
        let server = RendezvousServer::bind(address, size, &secret, deadline).map_err(refused)?;
        let (address, stop) = (server.address().to_string(), server.stop_handle());
        let serve = move || {
            // Ranks that came are told themselves; that none came only says that the program does
            // not use Verbcast.
            if let Err(error) = server.serve() {
                tracing::debug!(%error, "the rendezvous ended");
            }
        };
        // Nobody waits for this thread: it may be telling late ranks why they cannot meet, and ends
        // with the launcher at the latest.
        std::thread::Builder::new()
            .name("rendezvous".into())
            .spawn(serve)
            .map_err(system("cannot start a thread for the rendezvous"))?;
        Ok(Self { address, secret, stop })
    }

    /// What a rank's environment says of it.
    pub(crate) fn environment(&self) -> [(&'static str, String); 2] {
        [
            ("VERBCAST_RENDEZVOUS", self.address.clone()),
            ("VERBCAST_JOB_SECRET", self.secret.to_hex()),
        ]
    }

    /// What ends it early, for ranks that wait there.
    pub(crate) fn stop_handle(&self) -> StopHandle {
        self.stop.clone()
    }
}

fn refused(error: BootstrapError) -> Error {
    Error::Rendezvous(Box::new(error))
}
