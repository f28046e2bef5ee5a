//! Making communicators of communicators.
//!
//! A new communicator needs a number that no two groups of the job share, without asking ranks
//! outside it. Its lowest rank of the job gives it: its own number and how many it has given before.

use std::sync::atomic::{AtomicU32, Ordering};

use super::Communicator;
use crate::error::Error;
use crate::group::Group;
use crate::schedule::Rank;

/// The last communicator that this process gave a number to.
static GIVEN: AtomicU32 = AtomicU32::new(0);

/// What each rank tells the others: colour, key, its rank in the job, and the number that it would
/// give.
type Record = [u64; 4];

/// The colour of a rank that wants to be in none.
const NO_COLOR: u64 = u64::MAX;

impl Communicator {
    /// Makes a communicator of all ranks that give the same `color`, in the order of `key`, then of
    /// their ranks here; `None` for a rank that gives no colour. Every rank has to call it.
    ///
    /// # Errors
    /// As for [`Communicator::allgather`]; [`Error::Communicators`] if a rank has made 2^32 of them.
    pub fn split(&self, color: Option<u32>, key: i64) -> Result<Option<Self>, Error> {
        // Ascending as unsigned numbers.
        let key = (key as u64) ^ (1 << 63);
        let records = self.exchange(color.map_or(NO_COLOR, u64::from), key)?;
        let Some(color) = color else { return Ok(None) };
        let same = (0..).zip(&records).filter(|(_, record)| record[0] == u64::from(color));
        let mut members: Vec<(u64, Rank)> = same.map(|(rank, record)| (record[1], rank)).collect();
        members.sort_unstable();
        let members: Vec<Rank> = members.into_iter().map(|(_, rank)| rank).collect();
        self.make(&records, &members).map(Some)
    }

    /// Makes a communicator of the same ranks, whose calls do not mix with those of this one. Every
    /// rank has to call it.
    ///
    /// # Errors
    /// As for [`Communicator::split`].
    pub fn duplicate(&self) -> Result<Self, Error> {
        let records = self.exchange(0, 0)?;
        let all: Vec<Rank> = (0..self.size()).collect();
        self.make(&records, &all)
    }

    /// Makes a communicator of these ranks, in this order; `None` for a rank that is not among
    /// them. Every rank has to call it, with the same list.
    ///
    /// # Errors
    /// [`Error::Arguments`] on every rank if the lists differ; before anything is sent, if a rank is
    /// twice in the list or outside this communicator; else as for [`Communicator::split`].
    pub fn subgroup(&self, ranks: &[Rank]) -> Result<Option<Self>, Error> {
        let wrong = |what: String| Error::Arguments { operation: "subgroup", what };
        for (place, rank) in ranks.iter().enumerate() {
            if *rank >= self.size() {
                return Err(wrong(format!("rank {rank} of a communicator of {}", self.size())));
            }
            if ranks[..place].contains(rank) {
                return Err(wrong(format!("rank {rank} is in the list twice")));
            }
        }
        let records = self.exchange(fingerprint(ranks), ranks.len() as u64)?;
        let own = &records[self.rank() as usize];
        let other = (0..).zip(&records).find(|(_, record)| record[..2] != own[..2]);
        if let Some((other, _)) = other {
            let rank = self.rank();
            return Err(wrong(format!("ranks {rank} and {other} gave different lists")));
        }
        match ranks.contains(&self.rank()) {
            true => self.make(&records, ranks).map(Some),
            false => Ok(None),
        }
    }

    /// Everybody's colour and key.
    fn exchange(&self, color: u64, key: u64) -> Result<Vec<Record>, Error> {
        // Numbers from 1; the last one is never given, so that they cannot begin again.
        let next =
            GIVEN.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |given| given.checked_add(1));
        let in_job = self.group.in_job(self.rank());
        let number = next.map_or(0, |given| u64::from(given) + 1);
        let mut records = vec![Record::default(); self.size() as usize];
        self.allgather(&[[color, key, in_job.into(), number]], &mut records)?;
        Ok(records)
    }

    /// The communicator of these ranks, this one among them.
    fn make(&self, records: &[Record], members: &[Rank]) -> Result<Self, Error> {
        let of_members = members.iter().map(|member| &records[*member as usize]);
        let giver = of_members.min_by_key(|record| record[2]).copied().unwrap_or_default();
        let [_, _, in_job, number] = giver;
        if number == 0 {
            return Err(Error::Communicators { rank: in_job as Rank });
        }
        let in_job_of = |member: &Rank| self.group.in_job(*member);
        let own = self.group.in_job(self.rank());
        let group = Group::of(own, members.iter().map(in_job_of).collect());
        let group = group.ok_or_else(|| Error::Arguments {
            operation: "split",
            what: "this rank is not among those of its own colour".into(),
        })?;
        let shared = self.alive.shared.clone();
        Ok(Self::new(shared, number << 32 | in_job, group, self.profile))
    }
}

/// FNV-1a of a list.
fn fingerprint(ranks: &[Rank]) -> u64 {
    let bytes = ranks.iter().flat_map(|rank| rank.to_le_bytes());
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}
