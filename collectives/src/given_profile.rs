//! The profile that a job was given: the file that `VERBCAST_PROFILE` names, the same on every rank.
//!
//! The model chooses on each rank for itself, so ranks with different profiles would run different
//! algorithms. They agree by a hash before the first operation.

use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::time::Instant;

use sha2::{Digest, Sha256};
use verbcast_transport::control::{Control, Vote};

use crate::error::Error;
use crate::model::FabricProfile;

/// A longer file is no profile.
const BYTES_MAX: u64 = 64 << 10;

/// Reads the file, if there is one, and makes sure that every rank read the same.
///
/// # Errors
/// On every rank alike: a rank whose file cannot be read, with its reason; two ranks with different
/// files, or one with a file and one without.
pub(crate) fn agreed(
    control: &Control,
    path: Option<&Path>,
    deadline: Instant,
) -> Result<Option<FabricProfile>, Error> {
    let (given, hash, failure) = match path.map(read).transpose() {
        Ok(None) => (None, 0, None),
        Ok(Some((profile, hash))) => (Some(profile), hash, None),
        Err(reason) => (None, 0, Some(reason)),
    };
    let agreed = control.agree(Vote { failure, low: hash, high: hash }, Some(deadline))?;
    if let Some((rank, reason)) = agreed.failed {
        return Err(Error::RankFailed { rank, reason });
    }
    if agreed.minimum == agreed.maximum {
        return Ok(given);
    }
    // Who has which: the lowest rank with the lowest hash, and the lowest of all others.
    let rank = u64::from(control.rank());
    let is_lowest = hash == agreed.minimum;
    let low = if is_lowest { rank } else { u64::MAX };
    let high = if is_lowest { 0 } else { u64::MAX - rank };
    let ranks = control.agree(Vote { failure: None, low, high }, Some(deadline))?;
    let (one, other) = (ranks.minimum as u32, (u64::MAX - ranks.maximum) as u32);
    Err(Error::Profiles { one: one.min(other), other: one.max(other) })
}

/// The profile and the hash of its file, or why there is none.
fn read(path: &Path) -> Result<(FabricProfile, u64), String> {
    let failed = |reason: String| format!("VERBCAST_PROFILE={}: {reason}", path.display());
    let file = File::open(path).map_err(|error| failed(error.to_string()))?;
    let mut text = String::new();
    file.take(BYTES_MAX + 1)
        .read_to_string(&mut text)
        .map_err(|error| failed(error.to_string()))?;
    if text.len() as u64 > BYTES_MAX {
        return Err(failed(format!("more than {BYTES_MAX} bytes: this is no profile")));
    }
    let profile = FabricProfile::from_toml(&text).map_err(|error| failed(error.to_string()))?;
    let digest = Sha256::digest(text.as_bytes());
    let mut first = [0; 8];
    first.copy_from_slice(&digest[..8]);
    // 0 stands for no profile.
    Ok((profile, u64::from_le_bytes(first).max(1)))
}
