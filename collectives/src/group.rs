//! Which ranks of the job are in a communicator, and under which numbers.

use std::sync::Arc;

use crate::schedule::Rank;

/// The members of a communicator; cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Group {
    rank: Rank,
    size: u32,
    /// None if every rank of the job is in it under its own number.
    members: Option<Arc<Members>>,
}

#[derive(Debug)]
struct Members {
    /// By rank in the group.
    in_job: Vec<Rank>,
    /// Rank in the job and in the group, ascending.
    in_group: Vec<(Rank, Rank)>,
}

impl Group {
    /// All ranks of the job.
    pub(crate) fn all(rank: Rank, size: u32) -> Self {
        Self { rank, size, members: None }
    }

    /// These ranks of the job, in this order; none if `rank` is not among them, or one is there
    /// twice.
    pub(crate) fn of(rank: Rank, in_job: Vec<Rank>) -> Option<Self> {
        let mut in_group: Vec<(Rank, Rank)> = in_job.iter().copied().zip(0..).collect();
        in_group.sort_unstable();
        if in_group.windows(2).any(|pair| pair[0].0 == pair[1].0) {
            return None;
        }
        let own = in_job.iter().position(|member| *member == rank)? as u32;
        let size = in_job.len() as u32;
        Some(Self { rank: own, size, members: Some(Arc::new(Members { in_job, in_group })) })
    }

    /// This process's rank in it.
    pub(crate) fn rank(&self) -> Rank {
        self.rank
    }

    pub(crate) fn size(&self) -> u32 {
        self.size
    }

    /// The rank in the job of a member.
    pub(crate) fn in_job(&self, member: Rank) -> Rank {
        match &self.members {
            None => member,
            // Ranks come from schedules of this size.
            Some(members) => members.in_job[member as usize],
        }
    }

    /// The rank in the group of a rank of the job.
    pub(crate) fn in_group(&self, rank: Rank) -> Option<Rank> {
        match &self.members {
            None => (rank < self.size).then_some(rank),
            Some(members) => {
                let place = members.in_group.binary_search_by_key(&rank, |(rank, _)| *rank).ok()?;
                Some(members.in_group[place].1)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_translated_both_ways() {
        let group = Group::of(7, vec![9, 3, 7]).expect("a member");
        assert_eq!((group.rank(), group.size()), (2, 3));
        for member in 0..3 {
            assert_eq!(group.in_group(group.in_job(member)), Some(member));
        }
        assert_eq!((group.in_group(4), group.in_job(1)), (None, 3));
        assert!(Group::of(5, vec![9, 3]).is_none());
        assert!(Group::of(3, vec![3, 9, 3]).is_none());
        let all = Group::all(1, 4);
        assert_eq!((all.in_job(3), all.in_group(3), all.in_group(4)), (3, Some(3), None));
    }
}
