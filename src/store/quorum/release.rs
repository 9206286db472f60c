//! Ending a lease on all nodes, and putting a record in its place.
//!
//! The release starts on all nodes that may have a part in the attempt, before the method returns. The answer is that of a
//! majority: *freed* if a majority held the lease until now, *not ours* if a majority did not.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use futures_util::FutureExt;
use tokio::time::Instant;

use super::{
    Shared,
    attempts::{Part, next_name},
    ballot::majority,
    failures::{Failures, is_answer},
    round::Round,
};
use crate::{
    Error, LockKey,
    store::{
        Acquire, Acquired, Answer, Ending, Inspection, Mode, Outcome, Owner, Queueing, Release,
        Released,
    },
    time::later,
};

/// A record, and how long the record is kept.
#[derive(Clone)]
struct Record {
    content: Bytes,
    retain: Duration,
}

impl Shared {
    /// Starts the release on all nodes that may have a part in the attempt. The nodes finish the release by
    /// themselves.
    pub(super) fn start_release(self: &Arc<Self>, request: Release, answer: Answer) {
        let until = later(Instant::now(), request.owed_for);
        let parts = match self.attempts.end(&request.key, request.owner, until) {
            Some(parts) => parts,
            // The nodes have ended the attempt, or will.
            None if request.in_doubt => return answer.give(Outcome::Answered(Released::NotOurs)),
            None => self.attempts.unknown_parts(request.owner),
        };
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
        let ending = self.clone().end(request, parts, releasing);
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

    /// Waits for the release. A record is then copied to nodes without a part. The names of an attempt whose release
    /// failed are kept for the next release.
    async fn end(
        self: Arc<Self>,
        request: Release,
        parts: Vec<Part>,
        releasing: Round<Result<Released, Error>>,
    ) -> Result<Released, Error> {
        let released = self.count_released(releasing).await?;
        self.attempts.remove(&request.key, request.owner);
        if let (Released::Freed, Ending::Record { content, retain }) = (released, request.ending) {
            // Nodes without a part get the record as well: with more copies, fewer failures can lose the record.
            let record = Record { content, retain };
            let others = parts.iter().enumerate();
            for (node, part) in others.filter(|(_, part)| !part.is_held()) {
                let (key, name) = (request.key.clone(), next_name(part.name));
                let adding = self.clone().add_record(key, record.clone(), (node, name));
                self.home.spawn(adding);
            }
        }
        Ok(released)
    }

    /// Counts the answers until a majority decides. A node that was not reached repeats the release by itself. A node
    /// that was not asked has no part.
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
        match freed >= majority {
            true => Ok(Released::Freed),
            false => Ok(Released::NotOurs),
        }
    }

    /// Adds the record to a node that had no part in the lease, if the key is free there.
    async fn add_record(self: Arc<Self>, key: LockKey, record: Record, at: (usize, Owner)) {
        let (node, owner) = at;
        let lease = self.node_timeout * 10;
        let request = Acquire {
            key: key.clone(),
            owner,
            lease,
            block: 1,
            queueing: Queueing::Skip,
            mode: Mode::Exclusive,
            fingerprint: None,
            more: Vec::new(),
            ends: Vec::new(),
        };
        let taking = self.ask(node, request);
        let mut answer = Round::new([(node, taking)], self.node_timeout);
        if let Some((_, Outcome::Answered(Acquired::Granted(_)))) = answer.next().await {
            let Record { content, retain } = record;
            self.nodes[node].end(Release {
                key,
                owner,
                ending: Ending::Record { content, retain },
                owed_for: lease,
                mode: Mode::Exclusive,
                in_doubt: false,
            });
        }
    }

    /// Adds the record to nodes that granted a lease to an attempt which found the record on another node.
    pub(super) async fn copy_record(
        self: Arc<Self>,
        request: Acquire,
        record: Bytes,
        missing: Vec<(usize, Owner)>,
    ) {
        let asked = Instant::now();
        let ending = match self.record_remaining(&request.key, &record).await {
            Some(retain) => Ending::Record {
                content: record,
                retain: retain.saturating_sub(asked.elapsed()),
            },
            None => Ending::Free,
        };
        for (node, owner) in missing {
            self.nodes[node].end(Release {
                key: request.key.clone(),
                owner,
                ending: ending.clone(),
                owed_for: request.lease,
                mode: Mode::Exclusive,
                in_doubt: false,
            });
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
