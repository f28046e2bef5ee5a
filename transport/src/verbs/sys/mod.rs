//! Devices through libibverbs, which is looked up at run time.
//!
//! Types come from `ibverbs-sys`; none of its functions is referenced, so a binary has no
//! libibverbs among its NEEDED entries and starts where there is none. Functions that the C header
//! defines inline (post, poll, arm) go through the context's table of operations. libibverbs and
//! its objects may be used by several threads at once (libibverbs' README: "libibverbs is
//! completely thread safe"), which the `Send` and `Sync` of the wrappers rest on.

mod completion_queue;
mod device;
mod gid;
mod library;
mod queue_pair;
#[cfg(test)]
mod tests;

use std::io;
use std::sync::Arc;

use super::driver::{Device, DeviceInfo, Driver};
use super::error::VerbsError;
use super::select::no_such_device;
use device::{Context, DeviceList, OpenDevice};
use library::Library;

/// The shared object that is looked up.
const LIBRARY: &str = "libibverbs.so.1";

/// The devices of this machine.
///
/// # Errors
/// [`VerbsError::Unavailable`] if libibverbs is not installed, or too old.
///
/// # Examples
/// ```
/// match verbcast_transport::verbs::sys::driver() {
///     Ok(driver) => println!("{} RDMA devices", driver.devices()?.len()),
///     Err(error) => println!("{error}"),
/// }
/// # Ok::<(), verbcast_transport::verbs::error::VerbsError>(())
/// ```
pub fn driver() -> Result<Arc<dyn Driver>, VerbsError> {
    Ok(Arc::new(SysDriver { library: Arc::new(Library::load(LIBRARY)?) }))
}

struct SysDriver {
    library: Arc<Library>,
}

impl Driver for SysDriver {
    fn devices(&self) -> Result<Vec<DeviceInfo>, VerbsError> {
        let list = DeviceList::read(&self.library)?;
        let mut devices = Vec::new();
        for device in list.devices() {
            match Context::open(&self.library, device).and_then(|context| context.info()) {
                Ok(info) => devices.push(info),
                // It may have gone since the list was made, or belong to another user.
                Err(error) => tracing::warn!(%error, "an RDMA device is left out"),
            }
        }
        Ok(devices)
    }

    fn open(&self, name: &str) -> Result<Arc<dyn Device>, VerbsError> {
        let list = DeviceList::read(&self.library)?;
        let Some(device) = list.devices().find(|&device| self.library.device_name(device) == name)
        else {
            return Err(no_such_device(name, &self.devices()?));
        };
        let context = Context::open(&self.library, device)?;
        tracing::debug!(device = name, "opened");
        Ok(Arc::new(OpenDevice::new(context)?))
    }
}

/// The error of a verb that set `errno`.
fn last_error(function: &'static str, device: &str) -> VerbsError {
    VerbsError::Verb { function, device: device.to_owned(), source: io::Error::last_os_error() }
}

/// The error of a verb that returned an errno, or -1 and set `errno`.
fn returned_error(function: &'static str, device: &str, returned: i32) -> VerbsError {
    let source = match returned {
        errno if errno > 0 => io::Error::from_raw_os_error(errno),
        -1 => io::Error::last_os_error(),
        negative => io::Error::from_raw_os_error(negative.saturating_neg()),
    };
    VerbsError::Verb { function, device: device.to_owned(), source }
}
