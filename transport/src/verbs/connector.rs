//! Sets verbs links up, in the control thread.
//!
//! The lower rank offers (its queue pairs are in INIT, with receives posted), the higher one brings
//! its end up to RTS and answers, the lower one then brings its own up and may send at once; the
//! higher one may send when it has heard that the lower one is done. Receives are there before a
//! queue pair can be reached, so that nothing that is sent finds none.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::description::{Description, LaneDescription, RailDescription, RingDescription};
use super::driver::{
    Capacities, InitAttributes, PathAddress, ReadyToReceiveAttributes, ReadyToSendAttributes,
};
use super::error::VerbsError;
use super::lane::{Lane, LaneParts, WorkId};
use super::link::{Link, LinkParts};
use super::queue_pair::{Init, QueuePair};
use super::rail::{PortNow, Rail, Reservation};
use super::ring::{Inbox, Outbox};
use super::settings::LinkSettings;
use super::setup::SetUp;
use crate::error::Error;
use crate::link::{Connector, PeerInfo};
use crate::stripe::Stripe;
use crate::wire::{MESSAGE_SLOT_BYTES, MESSAGE_SLOTS, PROTOCOL_VERSION, Rank};

/// RNR never happens; if it does, the accounting is wrong, and a stall would hide it.
const RNR_RETRY: u8 = 0;

/// The [`Connector`] of verbs links; its calls block for the time that a few verbs take.
pub struct VerbsConnector {
    rank: Rank,
    rails: Vec<Arc<Rail>>,
    settings: LinkSettings,
    set_up: Arc<SetUp>,
    state: Mutex<State>,
}

struct State {
    /// Ends that were offered and not answered yet.
    offered: HashMap<Rank, HalfLink>,
    rng: fastrand::Rng,
    next_generation: u32,
}

/// An end that cannot be reached yet.
struct HalfLink {
    epoch: u32,
    generation: u32,
    ports: Vec<PortNow>,
    lanes: Vec<HalfLane>,
    inbox: Inbox,
    outbox: Outbox,
}

/// A queue pair in INIT with its receives posted.
struct HalfLane {
    pair: QueuePair<Init>,
    psn: u32,
    rail: usize,
    reservation: Reservation,
}

impl VerbsConnector {
    pub(crate) fn new(
        rank: Rank,
        rails: Vec<Arc<Rail>>,
        settings: LinkSettings,
        set_up: Arc<SetUp>,
    ) -> Self {
        // Ranks that share a seed still draw different numbers.
        let seed = settings.seed.map(|seed| seed ^ u64::from(rank) << 32);
        let rng = seed.map_or_else(fastrand::Rng::new, fastrand::Rng::with_seed);
        let state = State { offered: HashMap::new(), rng, next_generation: 0 };
        Self { rank, rails, settings, set_up, state: Mutex::new(state) }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn link_error(&self, peer: &PeerInfo, reason: impl Into<String>) -> Error {
        Error::Link { rank: self.rank, peer: peer.rank, reason: reason.into() }
    }

    fn refuse_second(&self, peer: &PeerInfo) -> Result<(), Error> {
        if self.set_up.stands(peer.rank) {
            return Err(self.link_error(peer, "the link of before has not been closed yet"));
        }
        Ok(())
    }

    fn read(&self, peer: &PeerInfo, bytes: &[u8]) -> Result<Description, Error> {
        Description::read(bytes).map_err(|what| Error::Protocol {
            rank: self.rank,
            peer: peer.rank,
            what,
        })
    }

    /// Makes an end of `lanes` lanes up to INIT.
    fn make(&self, epoch: Option<u32>, lanes: usize) -> Result<HalfLink, Error> {
        let (epoch, generation, psns) = {
            let mut state = self.lock();
            let epoch = epoch.unwrap_or_else(|| state.rng.u32(..));
            let generation = state.next_generation;
            state.next_generation = generation.wrapping_add(1);
            let psns: Vec<u32> = (0..lanes).map(|_| state.rng.u32(..1 << 24)).collect();
            (epoch, generation, psns)
        };
        let ports = self.rails.iter().map(|rail| rail.port_now()).collect::<Result<Vec<_>, _>>()?;
        // Messages go over lane 0, which is on rail 0 at both ends.
        let inbox = Inbox::new(&*self.rails[0].device)?;
        let outbox = Outbox::new(&*self.rails[0].device)?;
        let lanes = psns.into_iter().enumerate();
        let lanes = lanes
            .map(|(index, psn)| self.make_lane(index % self.rails.len(), psn, generation))
            .collect::<Result<Vec<_>, _>>()?;
        Ok(HalfLink { epoch, generation, ports, lanes, inbox, outbox })
    }

    fn make_lane(&self, rail: usize, psn: u32, generation: u32) -> Result<HalfLane, VerbsError> {
        let settings = &self.settings;
        let on = &self.rails[rail];
        let reservation = on.reserve(settings.completions_per_lane())?;
        let capacities = Capacities {
            send: settings.send_capacity(),
            receive: settings.receive_depth,
            inline_bytes: settings.inline_bytes,
        };
        let init = InitAttributes { port: on.choice.port, pkey_index: settings.pkey_index };
        let pair = QueuePair::create(&*on.device, &on.queue, capacities)?;
        let mut pair = pair.initialize(&init)?;
        pair.post_receives(settings.receive_depth, WorkId::receive(generation).0)
            .map_err(|error| error.source)?;
        tracing::debug!(
            rank = self.rank,
            device = on.choice.device,
            queue_pair = pair.number(),
            "queue pair made"
        );
        Ok(HalfLane { pair, psn, rail, reservation })
    }

    fn describe(&self, half: &HalfLink) -> Description {
        let lane =
            |lane: &HalfLane| LaneDescription { queue_pair: lane.pair.number(), psn: lane.psn };
        let rail = |port: &PortNow| RailDescription {
            infiniband: port.infiniband,
            lid: port.lid,
            gid: port.gid.map(|(_, gid)| gid),
            mtu_bytes: self.settings.mtu_bytes.map_or(port.mtu_bytes, |m| m.min(port.mtu_bytes)),
            max_message_bytes: port.max_message_bytes,
            rate_mbps: port.rate_mbps,
        };
        Description {
            version: PROTOCOL_VERSION,
            epoch: half.epoch,
            lanes: half.lanes.iter().map(lane).collect(),
            rails: half.ports.iter().map(rail).collect(),
            receives: self.settings.receive_depth,
            ring: RingDescription {
                address: half.inbox.address(),
                rkey: half.inbox.rkey(),
                slots: MESSAGE_SLOTS,
                slot_bytes: MESSAGE_SLOT_BYTES as u32,
            },
        }
    }

    /// Brings an end up to RTS, against the peer's end.
    fn bring_up(
        &self,
        peer: &PeerInfo,
        half: HalfLink,
        own: &Description,
        theirs: &Description,
        can_send: bool,
    ) -> Result<Box<Link>, Error> {
        let mut lanes = Vec::with_capacity(half.lanes.len());
        let mut weights = Vec::with_capacity(half.lanes.len());
        let mut message_bytes_max = u32::MAX;
        for (index, lane) in half.lanes.into_iter().enumerate() {
            let peer_rail = index % theirs.rails.len();
            let (from, to) = (&own.rails[lane.rail], &theirs.rails[peer_rail]);
            let path = self.path(peer, &half.ports[lane.rail], to)?;
            let pair = lane.pair.ready_to_receive(&ReadyToReceiveAttributes {
                port: self.rails[lane.rail].choice.port,
                path_mtu_bytes: from.mtu_bytes.min(to.mtu_bytes),
                destination_qpn: theirs.lanes[index].queue_pair,
                receive_psn: theirs.lanes[index].psn,
                min_rnr_timer: self.settings.rnr_timer,
                address: path,
            })?;
            let pair = pair.ready_to_send(&ReadyToSendAttributes {
                send_psn: lane.psn,
                timeout: self.settings.timeout,
                retry_count: self.settings.retry_count,
                rnr_retry: RNR_RETRY,
            })?;
            // Both ends take the slower end's rate, so that they cut blocks alike.
            weights.push(from.rate_mbps.min(to.rate_mbps));
            let most = from.max_message_bytes.min(to.max_message_bytes);
            message_bytes_max = message_bytes_max.min(most);
            let parts = LaneParts {
                pair,
                reservation: lane.reservation,
                rail: lane.rail,
                peer_rail,
                generation: half.generation,
                peer_receives: theirs.receives,
            };
            lanes.push(Lane::new(parts, &self.settings));
        }
        let parts = LinkParts {
            rank: self.rank,
            peer: peer.rank,
            epoch: half.epoch,
            generation: half.generation,
            lanes,
            inbox: half.inbox,
            outbox: half.outbox,
            stripe: Stripe::new(&weights),
            peer_ring: (theirs.ring.address, theirs.ring.rkey),
            message_bytes_max,
            can_send,
        };
        Ok(Box::new(Link::new(parts, &self.settings)))
    }

    /// The way from an own port to a peer's.
    fn path(
        &self,
        peer: &PeerInfo,
        own: &PortNow,
        theirs: &RailDescription,
    ) -> Result<PathAddress, Error> {
        if own.infiniband != theirs.infiniband {
            let name = |infiniband| if infiniband { "InfiniBand" } else { "RoCE" };
            return Err(self.link_error(
                peer,
                format!(
                    "its rail is {}, the one here {}: choose devices of one network \
                     (VERBCAST_DEVICE)",
                    name(theirs.infiniband),
                    name(own.infiniband)
                ),
            ));
        }
        // InfiniBand needs a GRH only across subnets, whose GIDs differ in the upper half, or
        // where a port has no LID.
        let global = match (own.gid, theirs.gid) {
            (Some((index, gid)), Some(theirs_gid)) => {
                let routed = gid[..8] != theirs_gid[..8] || theirs.lid == 0;
                (!own.infiniband || routed).then_some((index, theirs_gid))
            }
            _ => None,
        };
        if global.is_none() && (!own.infiniband || theirs.lid == 0) {
            return Err(self.link_error(peer, "one end has a GID and the other one has none"));
        }
        Ok(PathAddress {
            dlid: theirs.lid,
            global,
            service_level: self.settings.service_level,
            traffic_class: self.settings.traffic_class,
            hop_limit: self.settings.hop_limit,
        })
    }
}

impl Connector for VerbsConnector {
    fn offer(&self, peer: &PeerInfo, attempt: u32) -> Result<Vec<u8>, Error> {
        if attempt > 0 {
            return Err(self.link_error(peer, "there is one way by verbs, and it was refused"));
        }
        self.refuse_second(peer)?;
        let half = self.make(None, self.settings.lanes as usize)?;
        let offer = self.describe(&half).write();
        let replaced = self.lock().offered.insert(peer.rank, half);
        drop(replaced);
        Ok(offer)
    }

    fn accept(&self, peer: &PeerInfo, offer: &[u8]) -> Result<Vec<u8>, Error> {
        self.refuse_second(peer)?;
        let theirs = self.read(peer, offer)?;
        let lanes = theirs.lanes.len().min(self.settings.lanes as usize);
        let half = self.make(Some(theirs.epoch), lanes)?;
        let own = self.describe(&half);
        let link = self.bring_up(peer, half, &own, &theirs, false)?;
        self.set_up.hand_over(link);
        Ok(own.write())
    }

    fn complete(&self, peer: &PeerInfo, answer: &[u8]) -> Result<(), Error> {
        let half = self.lock().offered.remove(&peer.rank);
        let mut half =
            half.ok_or_else(|| self.link_error(peer, "it answers an offer that was not made"))?;
        let theirs = self.read(peer, answer)?;
        if theirs.epoch != half.epoch {
            return Err(self.link_error(peer, "it answers an earlier offer"));
        }
        if theirs.lanes.len() > half.lanes.len() {
            return Err(self.link_error(peer, "it answers with more lanes than were offered"));
        }
        // The peer makes fewer lanes: the other queue pairs go.
        half.lanes.truncate(theirs.lanes.len());
        let own = self.describe(&half);
        let link = self.bring_up(peer, half, &own, &theirs, true)?;
        self.set_up.hand_over(link);
        Ok(())
    }

    fn confirm(&self, peer: &PeerInfo) -> Result<(), Error> {
        if self.set_up.confirm(peer.rank) {
            return Ok(());
        }
        Err(self.link_error(peer, "it confirms a link that is not there"))
    }

    fn failed(&self, peer: &PeerInfo, reason: &str) {
        let half = self.lock().offered.remove(&peer.rank);
        drop(half);
        self.set_up.fail(peer.rank, reason);
    }

    fn closed(&self, peer: &PeerInfo) {
        self.set_up.peer_closed(peer.rank);
    }
}
