//! Which kind of link a pair of ranks gets: shared memory if an attach succeeds, else verbs.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use crate::config::FabricChoice;
use crate::error::Error;
use crate::link::{Connector, PeerInfo};
use crate::shm::ShmConnector;
use crate::verbs::fabric::VerbsConnector;
use crate::wire::Rank;

/// A kind of link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FabricKind {
    /// Between processes of one host.
    SharedMemory,
    /// RDMA verbs.
    Verbs,
}

impl FabricKind {
    const fn code(self) -> u8 {
        match self {
            Self::SharedMemory => 1,
            Self::Verbs => 2,
        }
    }
}

/// Link set-up over the fabrics that the configuration allows.
pub struct Connectors {
    rank: Rank,
    choice: FabricChoice,
    shm: Option<Arc<ShmConnector>>,
    verbs: OnceLock<Arc<VerbsConnector>>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    kinds: HashMap<Rank, FabricKind>,
    failures: HashMap<Rank, String>,
}

impl Connectors {
    /// With shared memory, where the choice allows it; verbs can be added until the first link.
    #[must_use]
    pub fn new(rank: Rank, choice: FabricChoice, shm: Option<Arc<ShmConnector>>) -> Self {
        Self { rank, choice, shm, verbs: OnceLock::new(), state: Mutex::default() }
    }

    /// Adds verbs.
    pub fn set_verbs(&self, connector: Arc<VerbsConnector>) {
        // A second call would be a bug of the one caller there is; the first stays.
        let _ = self.verbs.set(connector);
    }

    /// Why no link to `peer` will come.
    #[must_use]
    pub fn failure(&self, peer: Rank) -> Option<String> {
        self.lock().failures.get(&peer).cloned()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn connector(&self, kind: FabricKind) -> Option<&dyn Connector> {
        match kind {
            FabricKind::SharedMemory if self.choice != FabricChoice::Verbs => {
                self.shm.as_deref().map(|shm| shm as &dyn Connector)
            }
            FabricKind::Verbs if self.choice != FabricChoice::Shm => {
                self.verbs.get().map(|verbs| &**verbs as &dyn Connector)
            }
            _ => None,
        }
    }

    fn none(&self, peer: Rank, reason: String) -> Error {
        Error::Link { rank: self.rank, peer, reason }
    }

    fn chosen(&self, peer: Rank) -> Result<&dyn Connector, Error> {
        let kind = self.lock().kinds.get(&peer).copied();
        kind.and_then(|kind| self.connector(kind))
            .ok_or_else(|| self.none(peer, "its set-up was not begun".into()))
    }
}

impl Connector for Connectors {
    fn offer(&self, peer: &PeerInfo, attempt: u32) -> Result<Vec<u8>, Error> {
        let mut reasons = Vec::new();
        let kinds = [FabricKind::SharedMemory, FabricKind::Verbs];
        for kind in
            kinds.into_iter().filter(|kind| self.connector(*kind).is_some()).skip(attempt as usize)
        {
            let Some(connector) = self.connector(kind) else { continue };
            match connector.offer(peer, 0) {
                Ok(mut offer) => {
                    self.lock().kinds.insert(peer.rank, kind);
                    offer.insert(0, kind.code());
                    return Ok(offer);
                }
                Err(error) => reasons.push(error.to_string()),
            }
        }
        if reasons.is_empty() {
            reasons.push(format!(
                "no fabric reaches it (VERBCAST_FABRIC is {}, {} on host {})",
                self.choice, "the peer is", peer.host
            ));
        }
        Err(self.none(peer.rank, reasons.join("; ")))
    }

    fn accept(&self, peer: &PeerInfo, offer: &[u8]) -> Result<Vec<u8>, Error> {
        let kinds = [FabricKind::SharedMemory, FabricKind::Verbs];
        let Some((code, body)) = offer.split_first() else {
            return Err(self.none(peer.rank, "its offer is empty".into()));
        };
        let kind = kinds.into_iter().find(|kind| kind.code() == *code);
        let Some((kind, connector)) = kind.and_then(|kind| Some((kind, self.connector(kind)?)))
        else {
            return Err(self.none(peer.rank, "this rank does not use that fabric".into()));
        };
        self.lock().kinds.insert(peer.rank, kind);
        connector.accept(peer, body)
    }

    fn complete(&self, peer: &PeerInfo, answer: &[u8]) -> Result<(), Error> {
        self.chosen(peer.rank)?.complete(peer, answer)
    }

    fn confirm(&self, peer: &PeerInfo) -> Result<(), Error> {
        self.chosen(peer.rank)?.confirm(peer)
    }

    fn failed(&self, peer: &PeerInfo, reason: &str) {
        if let Ok(connector) = self.chosen(peer.rank) {
            connector.failed(peer, reason);
        }
        self.lock().failures.insert(peer.rank, reason.to_owned());
    }

    fn closed(&self, peer: &PeerInfo) {
        if let Ok(connector) = self.chosen(peer.rank) {
            connector.closed(peer);
        }
    }
}
