//! Ending a lease on all nodes, and putting a record in its place.
//!
//! The release starts on all nodes that may have a part in the attempt, before the method returns.
//! The answer is that of a majority: *freed* if a majority held the lease until now, *not ours* if
//! a majority did not.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use futures_util::FutureExt;
use tokio::time::Instant;

use super::{
    Shared,
    attempts::Attempt,
    ballot::majority,
    failures::{Failures, is_answer},
    node::Leaving,
    round::Round,
};
use crate::{
    Error, LockKey,
    store::{
        Acquire, Acquired, Answer, Ending, Inspection, Mode, Outcome, Queueing, Release, Released,
    },
    time::{later, timeout},
};

impl Shared {
    /// Starts the release on all nodes that may have a part in the attempt. The nodes finish the
    /// release by themselves.
    pub(super) fn start_release(self: &Arc<Self>, request: Release, answer: Answer) {
        let Release { key, owner, .. } = &request;
        let attempt = match self.attempts.find(key, *owner) {
            Some(attempt) => attempt,
            // The nodes have ended the attempt, or will.
            None if request.in_doubt => return answer.give(Outcome::Answered(Released::NotOurs)),
            None => self.attempts.unknown(key, *owner, request.mode),
        };
        let parts = attempt.end(later(Instant::now(), request.lasts));
        let mut releasing = Vec::new();
        for (node, part) in parts.iter().enumerate() {
            if part.may_be_there() {
                let release = Release {
                    owner: part.name,
                    in_doubt: request.in_doubt || part.is_in_doubt(),
                    ..request.clone()
                };
                releasing.push((node, self.nodes[node].release(release)));
            }
        }
        let releasing = Round::new(releasing, self.node_timeout);
        let ending = self.clone().end(request.ending, attempt, releasing);
        let mut ending = Box::pin(async move {
            answer.give(match ending.await {
                Ok(released) => Outcome::Answered(released),
                // A release that cannot work is not repeated.
                Err(error) if is_answer(&error) => Outcome::Refused(error),
                Err(error) => Outcome::Unknown(error),
            });
        });
        // The answers of nodes in memory are ready.
        if (&mut ending).now_or_never().is_none() {
            self.home.spawn(ending);
        }
    }

    /// Waits for the release. A record is then copied to nodes without a part. The names of an
    /// attempt whose release failed are kept for the next release.
    async fn end(
        self: Arc<Self>,
        ending: Ending,
        attempt: Arc<Attempt>,
        releasing: Round<Result<Released, Error>>,
    ) -> Result<Released, Error> {
        let released = self.count_released(releasing).await?;
        self.attempts.remove(&attempt);
        let is_record = matches!(ending, Ending::Record { .. });
        if released == Released::Freed && is_record {
            // Nodes without a part get the record as well: with more copies, fewer failures can
            // lose the record.
            let others = attempt.successor(self.node_timeout * 10);
            let parts = attempt.parts().into_iter().enumerate();
            for (node, _) in parts.filter(|(_, part)| !part.is_held()) {
                let adding = self
                    .clone()
                    .add_record(others.clone(), ending.clone(), node);
                self.home.spawn(adding);
            }
        }
        Ok(released)
    }

    /// Counts the answers until a majority decides. A node that was not reached repeats the release
    /// by itself. A node that was not asked has no part.
    async fn count_released(
        &self,
        mut releasing: Round<Result<Released, Error>>,
    ) -> Result<Released, Error> {
        let (nodes, majority) = (self.nodes.len(), majority(self.nodes.len()));
        let (mut freed, mut failures) = (0, Failures::default());
        let mut not_ours = nodes - releasing.pending().count();
        while freed < majority && not_ours < majority {
            match releasing.next().await {
                Some((_, Ok(Released::Freed))) => freed += 1,
                Some((_, Ok(Released::NotOurs | Released::NotYet))) => not_ours += 1,
                Some((_, Err(error))) => failures.add(error),
                None => return Err(failures.no_quorum(nodes, freed + not_ours)),
            }
        }
        if freed >= majority {
            Ok(Released::Freed)
        } else {
            Ok(Released::NotOurs)
        }
    }

    /// Adds the record to a node that had no part in the lease, if the key is free there.
    async fn add_record(self: Arc<Self>, attempt: Arc<Attempt>, record: Ending, node: usize) {
        let name = attempt.parts()[node].name;
        let request = Acquire {
            key: attempt.key.clone(),
            owner: name,
            lease: self.node_timeout * 10,
            block: 1,
            queueing: Queueing::Skip,
            mode: Mode::Exclusive,
            fingerprint: None,
            more: Vec::new(),
            ends: Vec::new(),
        };
        let taking = self.nodes[node].acquire(&attempt, request);
        let answer = timeout(self.node_timeout, taking).await;
        if let Some(Outcome::Answered(Acquired::Granted(_))) = answer {
            self.nodes[node].end(Release {
                ending: record,
                ..attempt.end_of(name, false)
            });
        }
    }

    /// Adds the record to nodes that granted a lease to an attempt which found the record on
    /// another node.
    pub(super) async fn copy_record(
        self: Arc<Self>,
        key: LockKey,
        record: Bytes,
        mut missing: Vec<Leaving>,
    ) {
        let asked = Instant::now();
        if let Some(retain) = self.record_remaining(&key, &record).await {
            for leaving in &mut missing {
                leaving.end.ending = Ending::Record {
                    content: record.clone(),
                    retain: retain.saturating_sub(asked.elapsed()),
                };
            }
        }
    }

    /// How long the record is kept on the node that keeps it longest.
    async fn record_remaining(&self, key: &LockKey, record: &Bytes) -> Option<Duration> {
        let looking = self.nodes.iter().map(|node| node.inspect(key.clone()));
        let looking = Round::new(looking.enumerate(), self.node_timeout);
        let seen = looking.all().await.into_iter();
        let seen = seen.filter_map(|(_, seen)| seen.ok());
        let same = seen.filter(|seen: &Inspection| seen.record.as_ref() == Some(record));
        same.filter_map(|seen| seen.record_remaining).max()
    }
}
