//! What can be set about verbs links, and the capacities that follow from it.

use crate::error::Error;
use crate::wire::LANES_MAX;

/// Settings of the verbs links of a rank.
///
/// [`LinkSettings::default`] gives one lane of 128 send and 128 receive slots per peer, room for 64
/// links, and the timeouts that slow and paused peers need.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct LinkSettings {
    /// Lanes (queue pairs) per link, 1 to [`LANES_MAX`]; where two ranks differ, the smaller
    /// number holds. Lane l is on rail l modulo the number of rails.
    pub lanes: u32,
    /// Links that this rank may have at once; completion queues are sized for them.
    pub links_max: u32,
    /// Send work requests per lane.
    pub send_depth: u32,
    /// Receives that are posted per lane: the peer may have this many writes with immediate on
    /// their way before it hears from this rank.
    pub receive_depth: u32,
    /// Every how many work requests one is signaled (the last of a chain always is).
    pub signal_every: u32,
    /// Inline bytes to ask of the device.
    pub inline_bytes: u32,
    /// Bytes of blocks that may be in flight per link, so that deep queues in front of a slow link
    /// do not time out.
    pub window_bytes: u64,
    /// Blocks that may be in flight per link whatever their size.
    pub window_blocks: u32,
    /// Most bytes of the path MTU; `None` is what the ports have.
    pub mtu_bytes: Option<u32>,
    /// Index in the port's pkey table.
    pub pkey_index: u16,
    /// Service level.
    pub service_level: u8,
    /// Traffic class, where a GRH is used.
    pub traffic_class: u8,
    /// Hop limit, where a GRH is used.
    pub hop_limit: u8,
    /// Acknowledgement timeout code, 4.096 us * 2^timeout: 18 is 1.07 s.
    pub timeout: u8,
    /// Retries after a timeout, at most 6 (7 is for ever on Soft-RoCE).
    pub retry_count: u8,
    /// RNR timer code. Receives are never missing, so it should not matter; 0 would be 655 ms.
    pub rnr_timer: u8,
    /// Seed of packet sequence numbers and link epochs; `None` is random.
    pub seed: Option<u64>,
    /// Deliberate mistakes, for the tests that show that they would be noticed.
    #[cfg(test)]
    pub(crate) mutation: Mutation,
}

/// A deliberate mistake in the accounting.
#[cfg(test)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Mutation {
    /// None.
    #[default]
    None,
    /// Never asks for a completion.
    NeverSignal,
    /// Asks for completions only as often as the interval says, not at the end of a chain.
    SignalIntervalOnly,
    /// Sends without a receive at the peer.
    IgnoreCredits,
    /// Writes into message slots that the peer has not given back.
    IgnoreSlots,
    /// Never returns credits.
    KeepCredits,
    /// Frees send slots when they are posted.
    FreeSlotsAtPost,
}

impl Default for LinkSettings {
    fn default() -> Self {
        Self {
            lanes: 1,
            links_max: 64,
            send_depth: 128,
            receive_depth: 128,
            signal_every: 16,
            inline_bytes: 64,
            window_bytes: 2 << 20,
            window_blocks: 4,
            mtu_bytes: None,
            pkey_index: 0,
            service_level: 0,
            traffic_class: 0,
            hop_limit: 64,
            timeout: 18,
            retry_count: 6,
            rnr_timer: 12,
            seed: None,
            #[cfg(test)]
            mutation: Mutation::None,
        }
    }
}

/// The fewest send or receive slots of a lane: credits are returned at half consumption, and half
/// of them must be more than the credit message itself uses up.
pub(crate) const DEPTH_MIN: u32 = 4;

/// The most receives that a credit message can give back.
pub(crate) const RECEIVE_DEPTH_MAX: u32 = u16::MAX as u32;

impl LinkSettings {
    /// Send work requests that a queue pair is made for: one more than the lane uses, for the
    /// marker that shows that it was drained.
    #[must_use]
    pub fn send_capacity(&self) -> u32 {
        self.send_depth + 1
    }

    /// Completions that a lane can have outstanding at once.
    #[must_use]
    pub fn completions_per_lane(&self) -> u32 {
        self.send_capacity() + self.receive_depth
    }

    /// Refuses what no link can be made of.
    ///
    /// # Errors
    /// [`Error::Config`] says which setting, and its range.
    pub fn check(&self) -> Result<(), Error> {
        let within = |name: &str, value: u64, low: u64, high: u64| {
            if (low..=high).contains(&value) {
                return Ok(());
            }
            Err(Error::Config(format!("{name} is {value}; it must be {low} to {high}")))
        };
        within("lanes", self.lanes.into(), 1, LANES_MAX as u64)?;
        within("links_max", self.links_max.into(), 1, 1 << 20)?;
        within("send_depth", self.send_depth.into(), DEPTH_MIN.into(), 1 << 16)?;
        let receives = u64::from(RECEIVE_DEPTH_MAX);
        within("receive_depth", self.receive_depth.into(), DEPTH_MIN.into(), receives)?;
        within("signal_every", self.signal_every.into(), 1, self.send_depth.into())?;
        within("window_bytes", self.window_bytes, 1, 1 << 40)?;
        within("window_blocks", self.window_blocks.into(), 1, 1 << 20)?;
        within("service level", self.service_level.into(), 0, 15)?;
        within("hop limit", self.hop_limit.into(), 1, 255)?;
        within("timeout", self.timeout.into(), 1, 31)?;
        within("retry count", self.retry_count.into(), 0, 6)?;
        within("RNR timer", self.rnr_timer.into(), 1, 31)?;
        match self.mtu_bytes {
            Some(bytes) if !MTUS_BYTES.contains(&bytes) => Err(Error::Config(format!(
                "path MTU is {bytes} bytes; it must be 256, 512, 1024, 2048 or 4096"
            ))),
            _ => Ok(()),
        }
    }
}

/// The path MTUs that there are (IBTA 9.7.3.1), in bytes.
pub(crate) const MTUS_BYTES: [u32; 5] = [256, 512, 1024, 2048, 4096];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_pass_and_what_cannot_be_is_named() {
        assert!(LinkSettings::default().check().is_ok());
        type Change = fn(&mut LinkSettings);
        let cases: [(&str, Change); 6] = [
            ("lanes", |s| s.lanes = 65),
            ("lanes", |s| s.lanes = 0),
            ("receive_depth", |s| s.receive_depth = 1 << 16),
            ("retry count", |s| s.retry_count = 7),
            ("signal_every", |s| s.signal_every = 129),
            ("path MTU", |s| s.mtu_bytes = Some(1500)),
        ];
        for (name, change) in cases {
            let mut settings = LinkSettings::default();
            change(&mut settings);
            let error = settings.check().expect_err("out of range").to_string();
            assert!(error.contains(name), "{error}");
        }
    }
}
