//! What a signal that ends the process has to clean up: temporary files that have a name.

use nix::sys::signal::{SigSet, Signal, raise};

use super::error::Error;
use super::temporary::Names;
use crate::ignored::is_ignored;

/// Signals that end a process unless it looks after them.
const ENDING: [Signal; 4] = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP, Signal::SIGQUIT];

/// Removes `names` when a signal ends the process, which it then does as if nobody had looked. To be
/// called before there are other threads.
///
/// # Errors
/// If the system refuses.
pub(crate) fn watch(names: Names) -> Result<(), Error> {
    let fail = |source| Error::System { what: "cannot watch for signals", source };
    let signals: SigSet = ENDING.into_iter().filter(|&signal| !is_ignored(signal)).collect();
    // Threads started from here on inherit the mask: the signals come to the watching one only.
    signals.thread_block().map_err(|error| fail(error.into()))?;
    let watch = move || {
        let Ok(signal) = signals.wait() else { return };
        names.remove_all();
        let end = SigSet::from_iter([signal]);
        let ended = end.thread_unblock().and_then(|()| raise(signal));
        tracing::error!(?ended, %signal, "the signal did not end the process");
    };
    std::thread::Builder::new().name("signals".into()).spawn(watch).map_err(fail)?;
    Ok(())
}
