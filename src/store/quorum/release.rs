//! Ending a lease on all nodes, and putting a record in its place.
//!
//! The release starts on all nodes that may have a part in the attempt, before the method returns.
//! The answer is that of a majority: *freed* if a majority held the lease until now, *not ours* if
//! a majority did not.

use std::sync::Arc;

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
    Error,
    store::{Answer, Ending, Mode, Outcome, Release, Released},
};

impl Shared {
    /// Starts the release on all nodes that may have a part in the attempt. The nodes finish the
    /// release by themselves.
    pub(super) fn start_release(self: &Arc<Self>, request: Release, answer: Answer) {
        let attempt = self.attempts.find(&request.key, request.owner);
        let all = 0..self.nodes.len();
        let parts = match &attempt {
            Some(attempt) => attempt.end(&request),
            // The nodes have ended the attempt, or will.
            None if request.in_doubt => Vec::new(),
            // The nodes may have its record.
            None => all.map(|node| (node, request.clone())).collect(),
        };
        let releasing = parts.into_iter();
        let releasing = releasing.map(|(node, part)| (node, self.nodes[node].release(part)));
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
        attempt: Option<Arc<Attempt>>,
        releasing: Round<Result<bool, Error>>,
    ) -> Result<Released, Error> {
        let released = self.count_released(releasing).await?;
        if let Some(attempt) = attempt {
            self.attempts.remove(&attempt);
            if released != Released::Freed || ending == Ending::Free {
                return Ok(released);
            }
            // Nodes without a part get the record as well: with more copies, fewer failures can
            // lose the record.
            let others = (0..self.nodes.len()).filter(|node| !attempt.holds(*node));
            let others = others.collect();
            self.home
                .spawn(self.clone().add_record(attempt, ending, others));
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
        let attempt = self.attempts.successor(&attempt);
        let adding = to.into_iter().map(async |node| {
            let taking = self.join(&attempt, node, lease, 1, Mode::Exclusive);
            if let Ok(Some(_)) = taking.await {
                for (_, part) in attempt.give_up(|at, _| at == node) {
                    self.nodes[node].end(Release {
                        ending: record.clone(),
                        ..attempt.end_of(part.name, false)
                    });
                }
            }
        });
        join_all(adding).await;
    }

    /// Adds the record that an attempt has found to nodes that lack it.
    pub(super) fn copy_record(
        self: &Arc<Self>,
        attempt: &Arc<Attempt>,
        content: Bytes,
        to: Vec<usize>,
    ) {
        if to.is_empty() {
            return;
        }
        let (store, attempt, asked) = (self.clone(), attempt.clone(), Instant::now());
        let seen = self.inspect(&attempt.request.key);
        self.home.spawn(async move {
            if let Ok(seen) = seen.await
                && let Some(retain) = seen.record_remaining
                && seen.record.as_ref() == Some(&content)
            {
                let retain = retain.saturating_sub(asked.elapsed());
                let record = Ending::Record { content, retain };
                store.add_record(attempt, record, to).await;
            }
        });
    }
}
