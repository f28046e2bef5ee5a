//! From a rank's configuration to its verbs links.

use std::sync::Arc;

use super::driver::Driver;
use super::fabric::{LinkSettings, VerbsConnector, VerbsFabric, open};
use super::select::{RailSettings, select_rails};
use crate::config::Config;
use crate::error::Error;

/// Links that completion queues have room for at the least, where the job has as many peers; the
/// circulant schedule needs 2 ceil(log2 N) of them whatever the root is.
const LINKS_AT_LEAST: u32 = 64;

/// Chooses the rails that `config` asks for and opens them.
///
/// `local_rank` and `local_size` say which of the host's ranks this is: several ranks of a host
/// share out its devices, a rank alone uses all of them.
///
/// # Errors
/// If a device, port or GID is not there or not usable (it is named, with what to do), or the
/// settings need more than a device has.
pub fn open_for(
    driver: &dyn Driver,
    config: &Config,
    local_rank: u32,
    local_size: u32,
) -> Result<(VerbsFabric, Arc<VerbsConnector>), Error> {
    let settings = RailSettings {
        devices: &config.devices,
        port: config.port,
        gid_index: config.gid_index,
        pkey_index: config.pkey_index,
        local_rank,
        local_size,
    };
    let devices = driver.devices()?;
    let rails = select_rails(&devices, &settings)?;
    let lanes = config.lanes.unwrap_or(rails.len() as u32);
    let defaults = LinkSettings::default();
    let mut links = LinkSettings {
        lanes,
        links_max: links_max(config.size),
        mtu_bytes: config.mtu.map(u32::from),
        pkey_index: config.pkey_index,
        service_level: config.service_level,
        traffic_class: config.traffic_class,
        timeout: config.timeout,
        retry_count: config.retry_count,
        rnr_timer: config.rnr_timer,
        ..defaults
    };
    // A completion queue holds the completions of all lanes on its rail: where there are many, the
    // lanes get shallower, down to an eighth.
    let per_rail = u64::from(lanes.div_ceil(rails.len().max(1) as u32));
    let most = devices
        .iter()
        .filter(|device| rails.iter().any(|rail| rail.device == device.name))
        .map(|device| u64::from(device.limits.max_cqe))
        .min()
        .unwrap_or(u64::MAX);
    for _ in 0..3 {
        let needed =
            u64::from(links.completions_per_lane()) * u64::from(links.links_max) * per_rail;
        if needed <= most {
            break;
        }
        links.send_depth /= 2;
        links.receive_depth /= 2;
    }
    open(driver, &rails, config.rank, links)
}

fn links_max(size: u32) -> u32 {
    let peers = size.saturating_sub(1).max(1);
    let logarithm = u32::BITS - peers.leading_zeros();
    peers.min(LINKS_AT_LEAST.max(4 * logarithm))
}
