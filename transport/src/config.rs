//! What a rank knows before it meets the others: its number, where they meet, which links to use.
//!
//! The environment is read once, here; nothing else in the transport looks at it.

use std::ffi::OsString;
use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use crate::bootstrap::Secret;
use crate::error::Error;
use crate::wire::{LANES_MAX, RAILS_MAX, Rank};

/// How long ranks look for each other by default.
pub const CONNECT_DEADLINE: Duration = Duration::from_secs(60);

/// The most ranks that a job can have.
pub const SIZE_MAX: u32 = 1 << 20;

/// Which links carry the data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FabricChoice {
    /// Shared memory within a host, verbs between hosts.
    #[default]
    Auto,
    /// Verbs for every pair of ranks.
    Verbs,
    /// Shared memory for every pair of ranks; all must be on one host.
    Shm,
}

impl FromStr for FabricChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            "verbs" => Ok(Self::Verbs),
            "shm" => Ok(Self::Shm),
            _ => Err("expected auto, verbs or shm".into()),
        }
    }
}

impl Display for FabricChoice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::Verbs => "verbs",
            Self::Shm => "shm",
        })
    }
}

/// Everything a rank is told from outside.
///
/// # Examples
/// ```
/// use verbcast_transport::config::Config;
///
/// // A job of one rank needs nothing at all.
/// let config = Config::default();
/// assert_eq!((config.rank, config.size), (0, 1));
/// ```
#[derive(Clone, Debug)]
pub struct Config {
    /// This rank's number (`VERBCAST_RANK`). The rendezvous refuses one that is not below `size`,
    /// and tells every rank so.
    pub rank: Rank,
    /// Ranks in the job (`VERBCAST_SIZE`), at least 1.
    pub size: u32,
    /// This rank's number among those of its host, where the launcher says so
    /// (`VERBCAST_LOCAL_RANK`).
    pub local_rank: Option<u32>,
    /// Where the ranks meet, as `host:port` (`VERBCAST_RENDEZVOUS`); needed from two ranks up.
    pub rendezvous: Option<String>,
    /// What proves that a process belongs to the job (`VERBCAST_JOB_SECRET` or
    /// `VERBCAST_JOB_SECRET_FILE`); needed from two ranks up.
    pub secret: Option<Secret>,
    /// Which links to use (`VERBCAST_FABRIC`).
    pub fabric: FabricChoice,
    /// RDMA devices to use, one per rail; empty: chosen automatically (`VERBCAST_DEVICE`, a comma
    /// list in which `{rank}` and `{local_rank}` are replaced).
    pub devices: Vec<String>,
    /// Port of the device, from 1; `None`: the first active one (`VERBCAST_PORT`).
    pub port: Option<u8>,
    /// Index in the port's GID table; `None`: chosen automatically (`VERBCAST_GID_INDEX`).
    pub gid_index: Option<u32>,
    /// Index in the port's partition key table (`VERBCAST_PKEY_INDEX`).
    pub pkey_index: u16,
    /// Service level, 0 to 15, in both directions (`VERBCAST_SERVICE_LEVEL`).
    pub service_level: u8,
    /// Traffic class of the GRH, in both directions (`VERBCAST_TRAFFIC_CLASS`).
    pub traffic_class: u8,
    /// Path MTU in bytes, a power of two from 256 to 4096; `None`: the port's active one
    /// (`VERBCAST_MTU`).
    pub mtu: Option<u16>,
    /// Queue pair timeout code, 0 to 31: 4.096 us * 2^timeout (`VERBCAST_TIMEOUT`).
    pub timeout: u8,
    /// Retries after a timeout, at most 6: 7 would mean for ever on some devices
    /// (`VERBCAST_RETRY_COUNT`).
    pub retry_count: u8,
    /// Minimum RNR NAK timer code, 1 to 31: 0 would mean 655 ms (`VERBCAST_RNR_TIMER`).
    pub rnr_timer: u8,
    /// Lanes per link over all rails; `None`: chosen automatically (`VERBCAST_LANES`).
    pub lanes: Option<u32>,
    /// Whether ranks of one host may read each other's memory (process_vm_readv); without it their
    /// data goes through a shared segment (`VERBCAST_CMA`).
    pub cma: bool,
    /// A file with what the links do, as `verbcast tune` writes it; `None`: assumed numbers
    /// (`VERBCAST_PROFILE`). Its contents must be the same on every rank.
    pub profile: Option<PathBuf>,
    /// How long ranks look for each other before they give up (`VERBCAST_CONNECT_DEADLINE_S`).
    pub connect_deadline: Duration,
}

impl Default for Config {
    /// A job of one rank.
    fn default() -> Self {
        Self {
            rank: 0,
            size: 1,
            local_rank: None,
            rendezvous: None,
            secret: None,
            fabric: FabricChoice::Auto,
            devices: Vec::new(),
            port: None,
            gid_index: None,
            pkey_index: 0,
            service_level: 0,
            traffic_class: 0,
            mtu: None,
            timeout: 18,
            retry_count: 6,
            rnr_timer: 12,
            lanes: None,
            cma: true,
            profile: None,
            connect_deadline: CONNECT_DEADLINE,
        }
    }
}

impl Config {
    /// Reads the environment: the `VERBCAST_*` variables named at each field, or, where
    /// `VERBCAST_SIZE` is missing but a job secret is there, those of `torchrun` (`RANK`,
    /// `WORLD_SIZE`, `LOCAL_RANK`, `MASTER_ADDR`, and the port after `MASTER_PORT`, which is taken
    /// by torch's own store). Without either this is a job of one rank.
    ///
    /// # Errors
    /// [`Error::Config`] if a variable is malformed or missing, naming it and what is expected.
    pub fn from_env() -> Result<Self, Error> {
        Self::from_variables(|name| std::env::var_os(name))
    }

    /// The same, with the variables taken from `lookup`.
    ///
    /// # Errors
    /// As [`Config::from_env`].
    pub fn from_variables(lookup: impl Fn(&str) -> Option<OsString>) -> Result<Self, Error> {
        let variables = Variables { lookup };
        let mut config = Self { secret: variables.secret()?, ..Self::default() };
        config.read_ranks(&variables)?;
        config.read_links(&variables)?;
        config.profile = variables.text("VERBCAST_PROFILE")?.map(PathBuf::from);
        if let Some(seconds) = variables.number("VERBCAST_CONNECT_DEADLINE_S", 1, 86_400)? {
            config.connect_deadline = Duration::from_secs(seconds);
        }
        Ok(config)
    }

    fn read_ranks<F: Fn(&str) -> Option<OsString>>(
        &mut self,
        variables: &Variables<F>,
    ) -> Result<(), Error> {
        let most = u64::from(SIZE_MAX);
        let size = variables.number::<u32>("VERBCAST_SIZE", 1, most)?;
        let rank = variables.number::<Rank>("VERBCAST_RANK", 0, most)?;
        self.local_rank = variables.number("VERBCAST_LOCAL_RANK", 0, most)?;
        self.rendezvous = variables.text("VERBCAST_RENDEZVOUS")?;
        if let (None, Some(world)) = (size, variables.number("WORLD_SIZE", 1, most)?) {
            if self.secret.is_none() {
                tracing::warn!(
                    "WORLD_SIZE is set but neither VERBCAST_JOB_SECRET nor \
                     VERBCAST_JOB_SECRET_FILE: this process is a job of one rank"
                );
                return Ok(());
            }
            return self.read_torchrun(variables, world);
        }
        match (size, rank) {
            (None, None) => {}
            (None, Some(_)) => {
                return Err(config_error("VERBCAST_RANK is set but not VERBCAST_SIZE: set both"));
            }
            (Some(1), None) => {}
            (Some(size), None) => {
                return Err(config_error(format!(
                    "VERBCAST_SIZE is {size} but VERBCAST_RANK is not set: give every process its \
                     own rank from 0 to {}, or start the job with `verbcast launch`",
                    size - 1
                )));
            }
            (Some(size), Some(rank)) => (self.size, self.rank) = (size, rank),
        }
        Ok(())
    }

    fn read_torchrun<F: Fn(&str) -> Option<OsString>>(
        &mut self,
        variables: &Variables<F>,
        size: u32,
    ) -> Result<(), Error> {
        let most = u64::from(SIZE_MAX);
        self.size = size;
        self.rank = variables
            .number("RANK", 0, most)?
            .ok_or_else(|| config_error("WORLD_SIZE is set but not RANK: set both"))?;
        if self.local_rank.is_none() {
            self.local_rank = variables.number("LOCAL_RANK", 0, most)?;
        }
        if self.rendezvous.is_none() {
            let host = variables.text("MASTER_ADDR")?;
            let port = variables.number::<u16>("MASTER_PORT", 1, 65_534)?;
            if let (Some(host), Some(port)) = (host, port) {
                let brackets = host.contains(':') && !host.starts_with('[');
                let host = if brackets { format!("[{host}]") } else { host };
                self.rendezvous = Some(format!("{host}:{}", port + 1));
            }
        }
        Ok(())
    }

    fn read_links<F: Fn(&str) -> Option<OsString>>(
        &mut self,
        variables: &Variables<F>,
    ) -> Result<(), Error> {
        if let Some(text) = variables.text("VERBCAST_FABRIC")? {
            self.fabric =
                text.parse().map_err(|expected| malformed("VERBCAST_FABRIC", &text, expected))?;
        }
        if let Some(text) = variables.text("VERBCAST_DEVICE")? {
            self.devices = self.expand_devices(&text)?;
        }
        self.port = variables.number("VERBCAST_PORT", 1, 255)?;
        self.gid_index = variables.number("VERBCAST_GID_INDEX", 0, 65_535)?;
        set(&mut self.pkey_index, variables.number("VERBCAST_PKEY_INDEX", 0, 65_535)?);
        set(&mut self.service_level, variables.number("VERBCAST_SERVICE_LEVEL", 0, 15)?);
        set(&mut self.traffic_class, variables.number("VERBCAST_TRAFFIC_CLASS", 0, 255)?);
        self.mtu = variables.number::<u16>("VERBCAST_MTU", 256, 4096)?;
        if let Some(mtu) = self.mtu.filter(|mtu| !mtu.is_power_of_two()) {
            return Err(malformed("VERBCAST_MTU", mtu, "expected 256, 512, 1024, 2048 or 4096"));
        }
        set(&mut self.timeout, variables.number("VERBCAST_TIMEOUT", 0, 31)?);
        set(&mut self.retry_count, variables.number("VERBCAST_RETRY_COUNT", 0, 6)?);
        set(&mut self.rnr_timer, variables.number("VERBCAST_RNR_TIMER", 1, 31)?);
        self.lanes = variables.number("VERBCAST_LANES", 1, LANES_MAX as u64)?;
        set(&mut self.cma, variables.number::<u8>("VERBCAST_CMA", 0, 1)?.map(|flag| flag == 1));
        Ok(())
    }

    fn expand_devices(&self, text: &str) -> Result<Vec<String>, Error> {
        if self.local_rank.is_none() && text.contains("{local_rank}") {
            return Err(config_error(format!(
                "VERBCAST_DEVICE={text:?} uses {{local_rank}}, but VERBCAST_LOCAL_RANK is not set"
            )));
        }
        let local_rank = self.local_rank.map_or_else(String::new, |rank| rank.to_string());
        let expanded =
            text.replace("{rank}", &self.rank.to_string()).replace("{local_rank}", &local_rank);
        let devices: Vec<String> = expanded.split(',').map(|name| name.trim().into()).collect();
        if devices.iter().any(String::is_empty) {
            return Err(malformed("VERBCAST_DEVICE", text, "expected device names between commas"));
        }
        if devices.len() > RAILS_MAX {
            return Err(malformed(
                "VERBCAST_DEVICE",
                text,
                format!("expected at most {RAILS_MAX} devices"),
            ));
        }
        Ok(devices)
    }
}

fn set<T>(field: &mut T, value: Option<T>) {
    if let Some(value) = value {
        *field = value;
    }
}

fn config_error(text: impl Into<String>) -> Error {
    Error::Config(text.into())
}

fn malformed(name: &str, value: impl Display, expected: impl Display) -> Error {
    config_error(format!("{name}={value}: {expected}"))
}

struct Variables<F> {
    lookup: F,
}

impl<F: Fn(&str) -> Option<OsString>> Variables<F> {
    /// The variable's text; an empty one counts as not set.
    fn text(&self, name: &str) -> Result<Option<String>, Error> {
        let Some(value) = (self.lookup)(name).filter(|value| !value.is_empty()) else {
            return Ok(None);
        };
        value.into_string().map(Some).map_err(|_| config_error(format!("{name} is not UTF-8")))
    }

    fn number<T: TryFrom<u64>>(
        &self,
        name: &str,
        least: u64,
        most: u64,
    ) -> Result<Option<T>, Error> {
        let Some(text) = self.text(name)? else { return Ok(None) };
        let number = text.trim().parse::<u64>().ok().filter(|n| (least..=most).contains(n));
        match number.and_then(|number| T::try_from(number).ok()) {
            Some(number) => Ok(Some(number)),
            None => {
                Err(malformed(name, &text, format!("expected a number from {least} to {most}")))
            }
        }
    }

    fn secret(&self) -> Result<Option<Secret>, Error> {
        let text = self.text("VERBCAST_JOB_SECRET")?;
        let file = (self.lookup)("VERBCAST_JOB_SECRET_FILE").filter(|path| !path.is_empty());
        match (text, file) {
            (Some(_), Some(_)) => Err(config_error(
                "VERBCAST_JOB_SECRET and VERBCAST_JOB_SECRET_FILE are both set: unset one",
            )),
            (Some(text), None) => Secret::from_text(&text)
                .map(Some)
                .map_err(|e| config_error(format!("VERBCAST_JOB_SECRET: {e}"))),
            (None, Some(path)) => Secret::from_file(Path::new(&path))
                .map(Some)
                .map_err(|e| config_error(format!("VERBCAST_JOB_SECRET_FILE: {e}"))),
            (None, None) => Ok(None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &[(&str, &str)]) -> Result<Config, Error> {
        Config::from_variables(|name| {
            variables.iter().find(|(n, _)| *n == name).map(|(_, value)| OsString::from(value))
        })
    }

    fn refusal(variables: &[(&str, &str)]) -> String {
        read(variables).unwrap_err().to_string()
    }

    const SECRET: (&str, &str) = ("VERBCAST_JOB_SECRET", "sixteen bytes ok");

    #[test]
    fn an_empty_environment_is_a_job_of_one() {
        let config = read(&[]).unwrap();
        assert_eq!((config.rank, config.size), (0, 1));
        assert!(config.secret.is_none() && config.rendezvous.is_none());
        assert_eq!((config.timeout, config.retry_count, config.rnr_timer), (18, 6, 12));
    }

    #[test]
    fn every_variable_reaches_its_field() {
        let config = read(&[
            SECRET,
            ("VERBCAST_RANK", "3"),
            ("VERBCAST_SIZE", "8"),
            ("VERBCAST_LOCAL_RANK", "1"),
            ("VERBCAST_RENDEZVOUS", "10.0.0.1:4000"),
            ("VERBCAST_FABRIC", "verbs"),
            ("VERBCAST_DEVICE", "rxe{rank}, mlx5_{local_rank}"),
            ("VERBCAST_PORT", "2"),
            ("VERBCAST_GID_INDEX", "5"),
            ("VERBCAST_PKEY_INDEX", "6"),
            ("VERBCAST_SERVICE_LEVEL", "7"),
            ("VERBCAST_TRAFFIC_CLASS", "106"),
            ("VERBCAST_MTU", "1024"),
            ("VERBCAST_TIMEOUT", "20"),
            ("VERBCAST_RETRY_COUNT", "5"),
            ("VERBCAST_RNR_TIMER", "13"),
            ("VERBCAST_LANES", "4"),
            ("VERBCAST_CMA", "0"),
            ("VERBCAST_PROFILE", "fabric.toml"),
            ("VERBCAST_CONNECT_DEADLINE_S", "7"),
        ])
        .unwrap();
        assert_eq!((config.rank, config.size, config.local_rank), (3, 8, Some(1)));
        assert_eq!(config.rendezvous.as_deref(), Some("10.0.0.1:4000"));
        assert_eq!(config.fabric, FabricChoice::Verbs);
        assert_eq!(config.devices, ["rxe3", "mlx5_1"]);
        assert_eq!((config.port, config.gid_index), (Some(2), Some(5)));
        assert_eq!((config.pkey_index, config.service_level, config.traffic_class), (6, 7, 106));
        assert_eq!(config.mtu, Some(1024));
        assert_eq!((config.timeout, config.retry_count, config.rnr_timer), (20, 5, 13));
        assert_eq!((config.lanes, config.cma), (Some(4), false));
        assert_eq!(config.profile.as_deref(), Some(Path::new("fabric.toml")));
        assert_eq!(config.connect_deadline, Duration::from_secs(7));
        assert!(config.secret.is_some());
    }

    #[test]
    fn torchrun_counts_only_with_a_secret() {
        let torch = [
            ("RANK", "1"),
            ("WORLD_SIZE", "2"),
            ("LOCAL_RANK", "1"),
            ("MASTER_ADDR", "::1"),
            ("MASTER_PORT", "29500"),
        ];
        assert_eq!(read(&torch).unwrap().size, 1);
        let mut with_secret = torch.to_vec();
        with_secret.push(SECRET);
        let config = read(&with_secret).unwrap();
        assert_eq!((config.rank, config.size, config.local_rank), (1, 2, Some(1)));
        assert_eq!(config.rendezvous.as_deref(), Some("[::1]:29501"));
        with_secret.push(("VERBCAST_SIZE", "5"));
        with_secret.push(("VERBCAST_RANK", "4"));
        assert_eq!(read(&with_secret).unwrap().size, 5, "our own variables come first");
    }

    #[test]
    fn bad_values_name_the_variable_and_what_is_expected() {
        for (variables, expected) in [
            (&[("VERBCAST_SIZE", "0")][..], "VERBCAST_SIZE=0: expected a number from 1"),
            (&[("VERBCAST_SIZE", "four")], "VERBCAST_SIZE=four"),
            (&[("VERBCAST_SIZE", "99999999999999999999")], "expected a number from 1"),
            (&[("VERBCAST_SIZE", "4")], "VERBCAST_RANK is not set"),
            (&[("VERBCAST_RANK", "0")], "VERBCAST_SIZE: set both"),
            (&[("VERBCAST_RETRY_COUNT", "7")], "from 0 to 6"),
            (&[("VERBCAST_RNR_TIMER", "0")], "from 1 to 31"),
            (&[("VERBCAST_MTU", "1500")], "256, 512, 1024, 2048 or 4096"),
            (&[("VERBCAST_FABRIC", "tcp")], "auto, verbs or shm"),
            (&[("VERBCAST_DEVICE", "rxe0,,rxe1")], "between commas"),
            (&[("VERBCAST_DEVICE", "a,b,c,d,e,f,g,h,i")], "at most 8"),
            (&[("VERBCAST_DEVICE", "rxe{local_rank}")], "VERBCAST_LOCAL_RANK is not set"),
            (&[("VERBCAST_LANES", "65")], "from 1 to 64"),
            (&[("VERBCAST_JOB_SECRET", "short")], "at least 16 bytes"),
            (&[SECRET, ("VERBCAST_JOB_SECRET_FILE", "/x")], "unset one"),
        ] {
            let message = refusal(variables);
            assert!(message.contains(expected), "{variables:?}: {message}");
        }
    }

    #[test]
    fn a_secret_never_shows() {
        let config = read(&[SECRET]).unwrap();
        assert!(!format!("{config:?}").contains("sixteen"));
        let refused = refusal(&[("VERBCAST_JOB_SECRET", "hushhush")]);
        assert!(!refused.contains("hushhush"), "{refused}");
    }
}
