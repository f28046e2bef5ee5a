//! All ranks of a job.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use verbcast_transport::config::{Config, FabricChoice};
use verbcast_transport::control::{AbortCause, AbortKind, AbortScope, Agreed, Control, Vote};
use verbcast_transport::endpoint::{Connectors, Endpoint, Parts, WaitPolicy};
use verbcast_transport::error::Error as TransportError;
use verbcast_transport::link::{Bell, Connector};
use verbcast_transport::memory::Region;
use verbcast_transport::shm::{self, ShmSettings};
use verbcast_transport::verbs::driver::Driver;
use verbcast_transport::verbs::fabric::{LaneStatistics, VerbsFabric};
use verbcast_transport::verbs::open::open_for;

use crate::communicator::{Communicator, WORLD};
use crate::engine::Shared;
use crate::error::Error;
use crate::given_profile;
use crate::group::Group;
use crate::model::FabricProfile;

/// How long [`World::finalize`] waits for the other ranks.
const FINALIZE_WITHIN: Duration = Duration::from_secs(30);

/// How long ranks that agreed to fail wait for each other: an abort that overtook the agreement would
/// hide its reason.
const FAIL_TOGETHER_WITHIN: Duration = Duration::from_secs(2);

/// All ranks of a job, as this process sees them.
///
/// Dropping a world without [`World::finalize`] aborts the job on every other rank, unless all of
/// them have just agreed to fail ([`World::agree_all`]).
#[derive(Debug)]
pub struct World {
    shared: Arc<Shared>,
    /// The thread that makes progress all the time, if there is one.
    progress: Mutex<Option<JoinHandle<()>>>,
    control: Control,
    communicator: Communicator,
    fabric: String,
    pulls: bool,
    left: bool,
    /// [`World::agree_all`] ended in an error that every rank has.
    failed_together: AtomicBool,
}

impl World {
    /// Joins the job that the environment describes (`VERBCAST_*`, see the README); alone if it
    /// describes none.
    ///
    /// # Errors
    /// If the environment is inconsistent, the job cannot be brought together within the connect
    /// deadline, or a rank lacks the fabric that was asked for: every rank gets the error then.
    pub fn from_env() -> Result<Self, Error> {
        Self::connect(Config::from_env()?)
    }

    /// Joins the job that `config` describes.
    ///
    /// # Errors
    /// As for [`World::from_env`].
    pub fn connect(config: Config) -> Result<Self, Error> {
        Self::connect_with(config, default_driver)
    }

    /// Joins the job with a verbs provider of the caller's: how tests run on a strict fake.
    ///
    /// # Errors
    /// As for [`World::from_env`]; an error of `driver` counts if verbs were asked for.
    pub fn connect_with(
        config: Config,
        driver: impl FnOnce() -> Result<Arc<dyn Driver>, verbcast_transport::verbs::error::VerbsError>,
    ) -> Result<Self, Error> {
        let settings = ShmSettings { cma: config.cma, ..ShmSettings::new(config.rank) };
        let (shm, shm_connector, bell) = shm::open(settings)?;
        let choice = config.fabric;
        let with_shm = choice != FabricChoice::Verbs;
        let connectors = Arc::new(Connectors::new(
            config.rank,
            choice,
            with_shm.then(|| Arc::clone(&shm_connector)),
        ));
        let control = Control::start(
            &config,
            Arc::clone(&bell) as Arc<dyn Bell>,
            Arc::clone(&connectors) as Arc<dyn Connector>,
        )?;
        let hosts = Hosts::of(&control);
        let verbs = open_verbs(&config, &hosts, &connectors, driver);
        let (verbs, failure) = match verbs {
            Ok(verbs) => (verbs, None),
            Err(error) => (None, Some(error.to_string())),
        };
        let agreed = agree_on(&control, &config, failure).and_then(|()| {
            let deadline = Instant::now() + config.connect_deadline;
            let given = given_profile::agreed(&control, config.profile.as_deref(), deadline)?;
            // If one rank cannot, all choose as if none could.
            let may_pull = u64::from(with_shm && shm::may_pull(settings));
            let vote = Vote { failure: None, low: may_pull, high: may_pull };
            Ok((given, control.agree(vote, Some(deadline))?.minimum > 0))
        });
        let given = match agreed {
            Ok(given) => given,
            Err(error) => {
                // Every rank has the same error, or the job is aborted already.
                let _gone = control.shutdown(FAIL_TOGETHER_WITHIN);
                return Err(error);
            }
        };
        let (given, pulls) = given;
        let profile = match given {
            Some(given) if verbs.is_none() => given.on_one_host(),
            Some(given) => given,
            None if verbs.is_some() || choice == FabricChoice::Verbs => FabricProfile::VERBS,
            None if pulls => FabricProfile::SHM,
            None => FabricProfile::SHM_COPIED,
        };
        let fabric = describe(&hosts, verbs.as_ref());
        let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get() as u32);
        let endpoint = Endpoint::new(Parts {
            control: control.clone(),
            connectors,
            shm: with_shm.then_some(shm),
            verbs,
            bell: Arc::clone(&bell),
            policy: WaitPolicy::for_host(hosts.local_size, cores),
        });
        let (rank, size) = (control.rank(), control.size());
        let shared = Arc::new(Shared::new(endpoint, bell));
        let group = Group::all(rank, size);
        let communicator = Communicator::new(Arc::clone(&shared), WORLD, group, profile);
        Ok(Self {
            shared,
            progress: Mutex::default(),
            control,
            communicator,
            fabric,
            pulls,
            left: false,
            failed_together: AtomicBool::new(false),
        })
    }

    /// This process's rank.
    #[must_use]
    pub fn rank(&self) -> u32 {
        self.control.rank()
    }

    /// How many ranks there are.
    #[must_use]
    pub fn size(&self) -> u32 {
        self.control.size()
    }

    /// The communicator of all ranks.
    #[must_use]
    pub fn communicator(&self) -> Communicator {
        self.communicator.clone()
    }

    /// What moves the data, for people: `shared memory`, or the rails.
    #[must_use]
    pub fn fabric_description(&self) -> String {
        self.fabric.clone()
    }

    /// Whether ranks of this host read blocks from each other's memory, as far as each can tell alone;
    /// else they copy them through a segment.
    #[must_use]
    pub fn pulls(&self) -> bool {
        self.pulls
    }

    /// Allocates page-aligned memory that is registered with every rail; slices of it cost no
    /// registration when they are broadcast.
    ///
    /// # Errors
    /// If it cannot be mapped or registered (the memlock limit is named).
    pub fn region(&self, bytes: usize) -> Result<Region, Error> {
        Ok(self.shared.enter().endpoint.region(bytes)?)
    }

    /// What each verbs lane to `peer` has carried so far; empty where the link is not verbs.
    #[must_use]
    pub fn lane_statistics(&self, peer: u32) -> Vec<LaneStatistics> {
        self.shared.enter().endpoint.lane_statistics(peer)
    }

    /// Starts a thread that makes progress with started operations while the application computes;
    /// without it they make progress only while some thread is in a call. It sleeps when there is
    /// nothing to do, and takes part of a core when there is.
    ///
    /// # Errors
    /// If the thread cannot be started. Asking again is free.
    pub fn start_progress_thread(&self) -> Result<(), Error> {
        let mut progress = self.progress.lock().unwrap_or_else(PoisonError::into_inner);
        if progress.is_none() {
            let started = self.shared.start_progress();
            *progress = Some(started.map_err(|source| TransportError::System {
                rank: self.rank(),
                what: "starting the progress thread",
                source,
            })?);
        }
        Ok(())
    }

    fn stop_progress_thread(&mut self) {
        let progress = self.progress.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let Some(thread) = progress.take() {
            self.shared.stop_progress();
            // It can only have panicked, which was reported.
            let _ended = thread.join();
        }
    }

    /// Waits for every rank's vote and gives all of them the same result.
    ///
    /// # Errors
    /// If the job was aborted meanwhile.
    pub fn agree(&self, vote: Vote) -> Result<Agreed, Error> {
        Ok(self.control.agree(vote, None)?)
    }

    /// As [`World::agree`], and an error on every rank if one of them votes for failure.
    ///
    /// # Errors
    /// [`Error::RankFailed`] names the lowest rank that failed and says why.
    pub fn agree_all(&self, failure: Option<String>) -> Result<(), Error> {
        let agreed = self.agree(Vote { failure, low: 0, high: 0 })?;
        match agreed.failed {
            Some((rank, reason)) => {
                self.failed_together.store(true, Ordering::Relaxed);
                Err(Error::RankFailed { rank, reason })
            }
            None => Ok(()),
        }
    }

    /// Ends the job on every rank, which all see `reason`.
    pub fn abort(&self, reason: &str) {
        let kind = AbortKind::Application { reason: reason.to_owned() };
        self.control.abort(AbortCause { scope: AbortScope::Job, origin: self.rank(), kind });
    }

    /// Why the job was aborted, if it was.
    #[must_use]
    pub fn abort_cause(&self) -> Option<AbortCause> {
        self.control.abort_cause(WORLD)
    }

    /// Leaves the job when all ranks have come to this call.
    ///
    /// # Errors
    /// If the job was aborted, or a rank does not come within 30 s.
    pub fn finalize(mut self) -> Result<(), Error> {
        self.left = true;
        Ok(self.control.shutdown(FINALIZE_WITHIN)?)
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.stop_progress_thread();
        if self.left || self.size() == 1 || self.abort_cause().is_some() {
            return;
        }
        if self.failed_together.load(Ordering::Relaxed) {
            // The other ranks leave for the same reason; whoever does not is told by an abort.
            let _gone = self.control.shutdown(FAIL_TOGETHER_WITHIN);
        } else {
            self.abort("left the job without finalize");
        }
    }
}

/// Which ranks share this host, as far as boot ids tell.
#[derive(Debug)]
struct Hosts {
    local_rank: u32,
    local_size: u32,
    all_local: bool,
}

impl Hosts {
    fn of(control: &Control) -> Self {
        let rank = control.rank();
        let peers = control.peers();
        let Some(own) = peers.get(rank as usize) else {
            return Self { local_rank: 0, local_size: 1, all_local: true };
        };
        let local = peers.iter().filter(|peer| peer.boot_id == own.boot_id);
        let local_rank = local.clone().filter(|peer| peer.rank < rank).count() as u32;
        let local_size = local.count() as u32;
        Self { local_rank, local_size, all_local: local_size as usize == peers.len() }
    }
}

#[cfg(feature = "verbs")]
fn default_driver() -> Result<Arc<dyn Driver>, verbcast_transport::verbs::error::VerbsError> {
    verbcast_transport::verbs::sys::driver()
}

#[cfg(not(feature = "verbs"))]
fn default_driver() -> Result<Arc<dyn Driver>, verbcast_transport::verbs::error::VerbsError> {
    Err(verbcast_transport::verbs::error::VerbsError::Unavailable {
        reason: "this program was built without the feature `verbs`".into(),
    })
}

/// The verbs fabric where it is needed: asked for, or because ranks are on several hosts.
fn open_verbs(
    config: &Config,
    hosts: &Hosts,
    connectors: &Connectors,
    driver: impl FnOnce() -> Result<Arc<dyn Driver>, verbcast_transport::verbs::error::VerbsError>,
) -> Result<Option<VerbsFabric>, Error> {
    let needed = match config.fabric {
        FabricChoice::Verbs => true,
        FabricChoice::Shm => false,
        FabricChoice::Auto => !hosts.all_local,
    };
    if !needed || config.size == 1 {
        return Ok(None);
    }
    let driver = driver().map_err(TransportError::from)?;
    let local_rank = config.local_rank.unwrap_or(hosts.local_rank);
    let (fabric, connector) = open_for(driver.as_ref(), config, local_rank, hosts.local_size)?;
    connectors.set_verbs(connector);
    Ok(Some(fabric))
}

/// No rank goes on unless all can, with the same settings.
fn agree_on(control: &Control, config: &Config, failure: Option<String>) -> Result<(), Error> {
    let settings = (config.fabric as u64) << 32 | u64::from(config.lanes.unwrap_or(0));
    let agreed = control.agree(
        Vote { failure, low: settings, high: settings },
        Some(Instant::now() + config.connect_deadline),
    )?;
    if let Some((rank, reason)) = agreed.failed {
        return Err(Error::RankFailed { rank, reason });
    }
    if agreed.minimum != agreed.maximum {
        return Err(TransportError::Config(
            "VERBCAST_FABRIC or VERBCAST_LANES differ between ranks; set them alike everywhere"
                .into(),
        )
        .into());
    }
    Ok(())
}

fn describe(hosts: &Hosts, verbs: Option<&VerbsFabric>) -> String {
    match verbs {
        None => "shared memory".into(),
        Some(verbs) if hosts.local_size > 1 => {
            format!("verbs ({}), {} ranks on this host", verbs.describe(), hosts.local_size)
        }
        Some(verbs) => format!("verbs ({})", verbs.describe()),
    }
}
