//! Ending a lease on all nodes, and putting a record in its place.
//!
//! The release starts on all nodes that may have a part in the attempt, before the method returns.
//! The answer is that of a majority: *freed* if a majority held the lease until now, *not ours* if
//! a majority did not.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use futures_util::{FutureExt, future::join_all};
use tokio::time::Instant;

use super::{
    Shared,
    attempts::Attempt,
    ballot::majority,
    failures::{Failures, is_answer},
    round::Round,
};
use crate::{
    Error, LockKey,
    store::{Answer, Ending, Inspection, Mode, Outcome, Release, Released},
};

impl Shared {
    /// Starts the release on all nodes that may have a part in the attempt. The nodes finish the
    /// release by themselves.
    pub(super) fn start_release(self: &Arc<Self>, request: Release, answer: Answer) {
        let Release { key, owner, .. } = &request;
        if request.in_doubt && self.attempts.find(key, *owner).is_none() {
            // The nodes have ended the attempt, or will.
            return answer.give(Outcome::Answered(Released::NotOurs));
        }
        let attempt = self.attempts.find_or_guess(key, *owner, request.mode);
        let releasing = attempt.end().into_iter().map(|(node, part)| {
            let release = Release {
                owner: part.name,
                in_doubt: request.in_doubt || part.is_asked,
                ..request.clone()
            };
            (node, self.nodes[node].release(release))
        });
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
        releasing: Round<Result<bool, Error>>,
    ) -> Result<Released, Error> {
        let released = self.count_released(releasing).await?;
        self.attempts.remove(&attempt);
        if released == Released::Freed && matches!(ending, Ending::Record { .. }) {
            // Nodes without a part get the record as well: with more copies, fewer failures can
            // lose the record.
            let others = (0..self.nodes.len()).filter(|node| !attempt.holds(*node));
            let adding = self
                .clone()
                .add_record(attempt.clone(), ending, others.collect());
            self.home.spawn(adding);
        }
        Ok(released)
    }

    /// Counts the answers until a majority decides. A node that was not reached repeats the release
    /// by itself. A node that was not asked has no part.
    async fn count_released(
        &self,
        mut releasing: Round<Result<bool, Error>>,
    ) -> Result<Released, Error> {
        let (nodes, majority) = (self.nodes.len(), majority(self.nodes.len()));
        let (mut freed, mut failures) = (0, Failures::default());
        let mut not_ours = nodes - releasing.pending().count();
        while freed < majority {
            if not_ours >= majority {
                return Ok(Released::NotOurs);
            }
            match releasing.next().await {
                Some((_, Ok(true))) => freed += 1,
                Some((_, Ok(false))) => not_ours += 1,
                Some((_, Err(error))) => failures.add(error),
                None => return Err(failures.no_quorum(nodes, freed + not_ours)),
            }
        }
        Ok(Released::Freed)
    }

    /// Adds a record to nodes that lack it, if the key is free there, in new names of the attempt.
    async fn add_record(self: Arc<Self>, attempt: Arc<Attempt>, record: Ending, to: Vec<usize>) {
        let lease = self.node_timeout * 10;
        let attempt = Arc::new(self.attempts.successor(&attempt, lease));
        let adding = to.into_iter().map(async |node| {
            let taking = self.join(&attempt, node, lease, 1, Mode::Exclusive);
            if let Ok(Some(_)) = taking.await
                && let Some(name) = attempt.give_back(node)
            {
                self.nodes[node].end(Release {
                    ending: record.clone(),
                    ..attempt.end_of(name, false)
                });
            }
        });
        join_all(adding).await;
    }

    /// Adds the record to nodes that granted a lease to an attempt which found the record on
    /// another node.
    pub(super) async fn copy_record(
        self: Arc<Self>,
        attempt: Arc<Attempt>,
        content: Bytes,
        to: Vec<usize>,
    ) {
        let asked = Instant::now();
        if let Some(retain) = self.record_remaining(&attempt.key, &content).await {
            let retain = retain.saturating_sub(asked.elapsed());
            let record = Ending::Record { content, retain };
            self.add_record(attempt, record, to).await;
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
