//! A profile as TOML.
//!
//! ```toml
//! version = 1
//!
//! [network]                           # between hosts; [local] is the same within a host
//! latency_ns = 1500
//! gap_ns = 200
//! overhead_ns = 0                     # may be left out
//! bytes_per_second = 12500000000
//! pulled = false                      # may be left out
//! eager_limit_bytes = 4096
//! link_setup_ns = 200000
//! links_max = 4096
//!
//! [network.bounds]                    # may be left out
//! latency_ns = [1450, 1560]
//! gap_ns = [190, 215]
//! bytes_per_second = [12300000000, 12600000000]
//!
//! [host]                              # may be left out
//! cores = 16
//! copy_bytes_per_second = 9000000000
//! copy_bytes_per_second_all = 60000000000
//! wake_ns = 5000
//! ```

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::path::PathBuf;

use serde::{Deserialize, Deserializer, Serialize, de};

use super::{Bounds, FabricProfile, HostProfile, PathProfile};

/// The version of the file.
pub const PROFILE_VERSION: i64 = 1;

/// No profile is longer, in bytes.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// No time is longer: 1,000 s, in ns.
const MAX_NS: u64 = 1_000_000_000_000;

/// No rate is higher, in bytes per second; it keeps a byte above a thousandth of a ps.
const MAX_RATE: u64 = 1_000_000_000_000_000;

/// Why there is no profile.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProfileError {
    /// The file cannot be read.
    #[error("cannot read the profile {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// The file cannot be written.
    #[error("cannot write the profile {}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// The file is too long, or not text.
    #[error("the profile {} is longer than {MAX_FILE_BYTES} bytes, or is no text", path.display())]
    NoText {
        /// The file.
        path: PathBuf,
    },
    /// The text is no TOML, has an unknown key, lacks one, or has a value that cannot be.
    #[error("line {line} of the profile: {message}")]
    Syntax {
        /// The line, from 1.
        line: usize,
        /// What is wrong there.
        message: String,
    },
    /// No version is given.
    #[error("the profile has no `version = {PROFILE_VERSION}`; is it a profile of Verbcast?")]
    NoVersion,
    /// The profile was written by another version.
    #[error(
        "the profile has version {found}, and this is version {PROFILE_VERSION}; measure it anew \
         with `verbcast tune`"
    )]
    Version {
        /// The version found.
        found: i64,
    },
    /// There is neither a network nor a local path.
    #[error("the profile has neither [network] nor [local]")]
    NoPath,
}

impl FabricProfile {
    /// Reads a profile from a file.
    ///
    /// # Errors
    /// If there is none, or it is not a profile of this version.
    pub fn read(path: impl Into<PathBuf>) -> Result<Self, ProfileError> {
        let path = path.into();
        let mut text = Vec::new();
        let file = File::open(&path).and_then(|file| {
            // One byte more than may be, to see that there are too many.
            file.take(MAX_FILE_BYTES + 1).read_to_end(&mut text)
        });
        if let Err(source) = file {
            return Err(ProfileError::Read { path, source });
        }
        match String::from_utf8(text) {
            Ok(text) if text.len() as u64 <= MAX_FILE_BYTES => Self::from_toml(&text),
            _ => Err(ProfileError::NoText { path }),
        }
    }

    /// Writes the profile into a file.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn write(&self, path: impl Into<PathBuf>) -> Result<(), ProfileError> {
        let path = path.into();
        std::fs::write(&path, self.to_toml()).map_err(|source| ProfileError::Write { path, source })
    }

    /// The profile of a text.
    ///
    /// # Errors
    /// If it is not a profile of this version; the error has the line.
    ///
    /// # Examples
    ///
    /// ```
    /// use verbcast_collectives::model::FabricProfile;
    ///
    /// let text = FabricProfile::VERBS.to_toml();
    /// assert_eq!(FabricProfile::from_toml(&text)?, FabricProfile::VERBS);
    /// let wrong = text.replace("latency_ns = 1500", "latency_ns = nan");
    /// let error = FabricProfile::from_toml(&wrong).unwrap_err();
    /// assert!(error.to_string().starts_with("line 4 of the profile: "), "{error}");
    /// # Ok::<(), verbcast_collectives::model::ProfileError>(())
    /// ```
    pub fn from_toml(text: &str) -> Result<Self, ProfileError> {
        let syntax = |error: &toml::de::Error| {
            let start = error.span().map_or(0, |span| span.start);
            let before = text.get(..start).unwrap_or(text);
            let line = before.matches('\n').count() + 1;
            let message = error.message().lines().collect::<Vec<_>>().join("; ");
            ProfileError::Syntax { line, message }
        };
        // The version first: another one may have other keys.
        let table: toml::Table = toml::from_str(text).map_err(|error| syntax(&error))?;
        match table.get("version").and_then(toml::Value::as_integer) {
            None => return Err(ProfileError::NoVersion),
            Some(PROFILE_VERSION) => {}
            Some(found) => return Err(ProfileError::Version { found }),
        }
        let file: ProfileFile = toml::from_str(text).map_err(|error| syntax(&error))?;
        if file.network.is_none() && file.local.is_none() {
            return Err(ProfileError::NoPath);
        }
        Ok(Self {
            network: file.network.map(PathProfile::from),
            local: file.local.map(PathProfile::from),
            host: file.host.map(HostProfile::from),
        })
    }

    /// The text of the profile.
    pub fn to_toml(&self) -> String {
        let file = ProfileFile {
            version: PROFILE_VERSION,
            network: self.network.map(PathSection::from),
            local: self.local.map(PathSection::from),
            host: self.host.map(HostSection::from),
        };
        // Numbers and tables only, so there is nothing that TOML could not say; a number above
        // 2^63 is cut to what it can.
        toml::to_string(&file).unwrap_or_default()
    }
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ProfileFile {
    version: i64,
    network: Option<PathSection>,
    local: Option<PathSection>,
    host: Option<HostSection>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct PathSection {
    #[serde(deserialize_with = "time")]
    latency_ns: u64,
    #[serde(deserialize_with = "time")]
    gap_ns: u64,
    #[serde(default, deserialize_with = "time")]
    overhead_ns: u64,
    #[serde(deserialize_with = "rate")]
    bytes_per_second: u64,
    #[serde(default)]
    pulled: bool,
    #[serde(deserialize_with = "bytes")]
    eager_limit_bytes: u64,
    #[serde(deserialize_with = "time")]
    link_setup_ns: u64,
    #[serde(deserialize_with = "count")]
    links_max: u32,
    bounds: Option<Bounds>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct HostSection {
    #[serde(deserialize_with = "count")]
    cores: u32,
    #[serde(deserialize_with = "rate")]
    copy_bytes_per_second: u64,
    #[serde(deserialize_with = "rate")]
    copy_bytes_per_second_all: u64,
    #[serde(deserialize_with = "time")]
    wake_ns: u64,
}

impl From<PathSection> for PathProfile {
    fn from(section: PathSection) -> Self {
        Self {
            latency_ns: section.latency_ns,
            gap_ns: section.gap_ns,
            overhead_ns: section.overhead_ns,
            bytes_per_second: section.bytes_per_second,
            pulled: section.pulled,
            eager_limit_bytes: section.eager_limit_bytes,
            link_setup_ns: section.link_setup_ns,
            links_max: section.links_max,
            bounds: section.bounds,
        }
    }
}

impl From<PathProfile> for PathSection {
    fn from(path: PathProfile) -> Self {
        let cut = |number: u64| number.min(i64::MAX as u64);
        Self {
            latency_ns: cut(path.latency_ns),
            gap_ns: cut(path.gap_ns),
            overhead_ns: cut(path.overhead_ns),
            bytes_per_second: cut(path.bytes_per_second),
            pulled: path.pulled,
            eager_limit_bytes: cut(path.eager_limit_bytes),
            link_setup_ns: cut(path.link_setup_ns),
            links_max: path.links_max,
            bounds: path.bounds.map(|bounds| Bounds {
                latency_ns: bounds.latency_ns.map(cut),
                gap_ns: bounds.gap_ns.map(cut),
                bytes_per_second: bounds.bytes_per_second.map(cut),
            }),
        }
    }
}

impl From<HostSection> for HostProfile {
    fn from(section: HostSection) -> Self {
        Self {
            cores: section.cores,
            copy_bytes_per_second: section.copy_bytes_per_second,
            copy_bytes_per_second_all: section.copy_bytes_per_second_all,
            wake_ns: section.wake_ns,
        }
    }
}

impl From<HostProfile> for HostSection {
    fn from(host: HostProfile) -> Self {
        let cut = |number: u64| number.min(i64::MAX as u64);
        Self {
            cores: host.cores,
            copy_bytes_per_second: cut(host.copy_bytes_per_second),
            copy_bytes_per_second_all: cut(host.copy_bytes_per_second_all),
            wake_ns: cut(host.wake_ns),
        }
    }
}

fn time<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
    from.deserialize_any(Number { least: 0, most: MAX_NS, unit: "ns" })
}

fn rate<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
    from.deserialize_any(Number { least: 1, most: MAX_RATE, unit: "bytes per second" })
}

fn bytes<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
    from.deserialize_any(Number { least: 0, most: i64::MAX as u64, unit: "bytes" })
}

fn count<'de, D: Deserializer<'de>>(from: D) -> Result<u32, D::Error> {
    let number = Number { least: 1, most: u32::MAX.into(), unit: "" };
    // At most 2^32 - 1, as just demanded.
    from.deserialize_any(number).map(|number| number as u32)
}

/// A number within limits; one with a fraction is rounded.
struct Number {
    least: u64,
    most: u64,
    unit: &'static str,
}

impl de::Visitor<'_> for Number {
    type Value = u64;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { least, most, unit } = self;
        write!(f, "a number from {least} to {most} {unit}")
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<u64, E> {
        let within = u64::try_from(number).ok().filter(|n| (self.least..=self.most).contains(n));
        within.ok_or_else(|| E::invalid_value(de::Unexpected::Signed(number), &self))
    }

    fn visit_f64<E: de::Error>(self, number: f64) -> Result<u64, E> {
        let rounded = number.round();
        // False for NaN as well.
        if rounded >= self.least as f64 && rounded <= self.most as f64 {
            return Ok((rounded as u64).clamp(self.least, self.most));
        }
        Err(E::invalid_value(de::Unexpected::Float(number), &self))
    }
}
