//! The faults of a run, as the seed has them.

use std::time::Duration;

use crate::{
    random::Random,
    record::Kind::{self, *},
};

/// A fault to come.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Planned {
    /// How long to wait before the fault, after the beginning or the end of the one before.
    pub(crate) pause: Duration,
    pub(crate) kind: Kind,
    /// A replica or a node, by the remainder.
    pub(crate) target: usize,
    pub(crate) lasts: Duration,
    /// The next fault begins while this one lasts.
    pub(crate) overlaps: bool,
}

const SINGLE: [Kind; 9] = [
    PauseReplica,
    KillReplica,
    CutConnections,
    HoldReplies,
    FreezeStore,
    KillStore,
    FillStore,
    ForgetScripts,
    ForgetEverything,
];

const QUORUM: [Kind; 10] = [
    PauseReplica,
    KillReplica,
    CutConnections,
    HoldReplies,
    FreezeStore,
    FillStore,
    ForgetScripts,
    ForgetEverything,
    FreezeNode,
    KillNode,
];

/// An endless list of faults: each kind once, in random order, and again.
pub(crate) fn plan(seed: u64, quorum: bool, lease: Duration) -> impl Iterator<Item = Planned> {
    let mut random = Random::new(seed);
    let mut kinds = if quorum {
        QUORUM.to_vec()
    } else {
        SINGLE.to_vec()
    };
    let rounds = std::iter::repeat_with(move || {
        random.shuffle(&mut kinds);
        let faults = kinds.iter().map(|kind| planned(&mut random, *kind, lease));
        faults.collect::<Vec<_>>()
    });
    rounds.flatten()
}

fn planned(random: &mut Random, kind: Kind, lease: Duration) -> Planned {
    let lease = lease.as_millis() as u64;
    let lasts = match kind {
        // Mostly past the lease, sometimes just so.
        PauseReplica => random.within(lease / 2..lease * 5 / 2),
        KillReplica => random.within(0..lease),
        FreezeStore | KillStore | FillStore | HoldReplies => random.within(lease / 5..lease * 2),
        // Long enough to see whether the rest goes on.
        FreezeNode | KillNode => random.within(lease * 2..lease * 5),
        CutConnections | ForgetScripts | ForgetEverything => 0,
    };
    // Mostly long enough to see the fleet recover.
    let pause = if random.percent(70) {
        random.within(lease / 2..lease * 3 / 2)
    } else {
        random.within(0..lease / 4)
    };
    Planned {
        pause: Duration::from_millis(pause),
        kind,
        target: random.next() as usize,
        lasts: Duration::from_millis(lasts),
        overlaps: random.percent(20),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: Duration = Duration::from_secs(1);

    #[test]
    fn the_seed_determines_all_faults() {
        let first = |seed| plan(seed, true, LEASE).take(40).collect::<Vec<_>>();
        assert_eq!(first(7), first(7));
        assert_ne!(first(7), first(8));
    }

    #[test]
    fn every_kind_comes_in_each_round() {
        for (quorum, kinds) in [(false, &SINGLE[..]), (true, &QUORUM[..])] {
            let round: Vec<_> = plan(1, quorum, LEASE).take(kinds.len()).collect();
            for kind in kinds {
                assert!(round.iter().any(|planned| planned.kind == *kind));
            }
        }
    }
}
