//! What was measured as a profile, and its file.

use std::fmt;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use verbcast::World;
use verbcast::model::{Bounds, FabricProfile, HostProfile, PathProfile};

use super::estimate::Estimate;
use super::measure::Measured;

/// Links that one rank can have: what profiles assume that nobody measured.
const LINKS_MAX: u32 = PathProfile::adapter(0, 0, 1).links_max;

/// Between whom it was measured.
#[derive(Clone, Debug)]
pub(super) struct Origin {
    ranks: u32,
    cores: u32,
    fabric: String,
    is_verbs: bool,
    pulls: bool,
}

impl Origin {
    /// Of this job, whose links are there already.
    pub(super) fn of(world: &World) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get() as u32);
        let is_verbs = (0..world.size()).any(|peer| !world.lane_statistics(peer).is_empty());
        let pulls = world.pulls() && !is_verbs;
        Self { ranks: world.size(), cores, fabric: world.fabric_description(), is_verbs, pulls }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { ranks, cores, fabric, .. } = self;
        write!(f, "{ranks} ranks over {fabric}, {cores} cores")
    }
}

/// The profile of these measurements.
///
/// A hop was measured, which is L + o, and, where ranks outnumber cores, the wake-up of a rank, which a
/// profile has by itself. Where blocks are pulled, o is the receiver's and what one more tiny block costs,
/// and g is the sender's turn.
pub(super) fn of(measured: &Measured, origin: &Origin) -> FabricProfile {
    let (gap_ns, overhead) = if origin.pulls {
        let whole_hop = measured.latency_ns.value;
        (measured.turn_ns, measured.gap_ns.value.min(whole_hop))
    } else {
        (measured.gap_ns, measured.overhead_ns.value)
    };
    let hop_ns = measured.latency_ns.map(|ns| (ns - overhead).max(0.0));
    let crowded = !origin.is_verbs && origin.ranks > origin.cores;
    let wake_ns =
        if crowded { measured.wake_ns.value.min(hop_ns.low) } else { measured.wake_ns.value };
    let latency_ns = if crowded { hop_ns.map(|ns| ns - wake_ns) } else { hop_ns };
    let path = PathProfile {
        latency_ns: whole(latency_ns.value),
        gap_ns: whole(gap_ns.value),
        overhead_ns: whole(overhead),
        bytes_per_second: whole(measured.bytes_per_second.value).max(1),
        pulled: origin.pulls,
        eager_limit_bytes: measured.eager_limit_bytes,
        link_setup_ns: whole(measured.link_setup_ns.value),
        links_max: LINKS_MAX,
        bounds: Some(Bounds {
            latency_ns: bounds(latency_ns),
            gap_ns: bounds(gap_ns),
            bytes_per_second: bounds(measured.bytes_per_second),
        }),
    };
    let host = HostProfile {
        cores: origin.cores,
        copy_bytes_per_second: whole(measured.copy_one.value).max(1),
        copy_bytes_per_second_all: whole(measured.copy_all.value).max(1),
        wake_ns: whole(wake_ns),
    };
    let (network, local) = if origin.is_verbs { (Some(path), None) } else { (None, Some(path)) };
    FabricProfile { network, local, host: Some(host) }
}

fn whole(value: f64) -> u64 {
    // A float cast is clamped to the integer's range, and NaN gives 0.
    value.round() as u64
}

fn bounds(estimate: Estimate) -> [u64; 2] {
    [whole(estimate.low), whole(estimate.high)]
}

/// Why the profile was not written.
#[derive(Debug, thiserror::Error)]
#[error("--output {}: cannot be written", .path.display())]
pub(super) struct OutputError {
    path: PathBuf,
    source: io::Error,
}

/// The file, seen only when it is complete.
#[derive(Debug)]
pub(super) struct Output {
    path: PathBuf,
    temporary: PathBuf,
    file: File,
}

impl Output {
    /// Opens a file beside `path`.
    ///
    /// # Errors
    /// As the system has it.
    pub(super) fn create(path: &Path) -> Result<Self, OutputError> {
        let mut temporary = path.as_os_str().to_owned();
        temporary.push(format!(".{}", std::process::id()));
        let temporary = PathBuf::from(temporary);
        let failed = |source| OutputError { path: path.into(), source };
        if path.is_dir() {
            return Err(failed(io::ErrorKind::IsADirectory.into()));
        }
        let file = File::create_new(&temporary).map_err(failed)?;
        Ok(Self { path: path.into(), temporary, file })
    }

    /// Writes the profile and puts it in its place.
    ///
    /// # Errors
    /// As the system has it.
    pub(super) fn write(mut self, measured: &Measured, origin: &Origin) -> Result<(), OutputError> {
        let text = of(measured, origin).to_toml();
        let written = write!(self.file, "# Measured by `verbcast tune`: {origin}.\n{text}")
            .and_then(|()| std::fs::rename(&self.temporary, &self.path));
        written.map_err(|source| OutputError { path: self.path.clone(), source })
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        // It is no longer there if it was put in its place.
        let _gone = std::fs::remove_file(&self.temporary);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exactly(value: f64) -> Estimate {
        Estimate { value, low: value, high: value, samples: 9 }
    }

    fn measured() -> Measured {
        Measured {
            latency_ns: exactly(2000.0),
            gap_ns: exactly(500.0),
            turn_ns: exactly(100.0),
            overhead_ns: exactly(400.0),
            bytes_per_second: exactly(3e9),
            link_setup_ns: exactly(1e5),
            wake_ns: exactly(1200.0),
            copy_one: exactly(8e9),
            copy_all: exactly(2e10),
            eager_limit_bytes: 2048,
        }
    }

    #[test]
    fn a_hop_is_latency_and_overhead_and_a_wake_up_where_ranks_outnumber_cores() {
        let origin = |ranks, cores| Origin {
            ranks,
            cores,
            fabric: "shm".into(),
            is_verbs: false,
            pulls: true,
        };
        for (ranks, cores) in [(2, 2), (4, 2)] {
            let profile = of(&measured(), &origin(ranks, cores));
            let path = profile.path_of(ranks);
            assert_eq!(path.latency_ns + path.overhead_ns, 2000, "{ranks} ranks, {cores} cores");
        }
        let path = of(&measured(), &origin(2, 2)).path();
        assert_eq!((path.gap_ns, path.overhead_ns, path.pulled), (100, 500, true));
        let verbs = Origin { is_verbs: true, pulls: false, ..origin(4, 2) };
        let profile = of(&measured(), &verbs);
        assert_eq!(profile.network.unwrap().latency_ns, 1600);
        assert_eq!(FabricProfile::from_toml(&profile.to_toml()).unwrap(), profile);
    }

    #[test]
    fn numbers_that_cannot_be_do_not_break_the_file() {
        let wild = Measured {
            bytes_per_second: exactly(f64::INFINITY),
            gap_ns: exactly(f64::NAN),
            ..measured()
        };
        let origin =
            Origin { ranks: 2, cores: 2, fabric: "shm".into(), is_verbs: false, pulls: false };
        assert_eq!(of(&wild, &origin).local.unwrap().gap_ns, 0);
    }
}
