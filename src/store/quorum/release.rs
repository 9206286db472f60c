//! Ending a lease on all nodes, and what may take its place there.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use tokio::time::Instant;

use super::{
    Shared,
    attempts::{Is, next_name},
    ballot::{majority, no_quorum},
    round::{Round, detach},
};
use crate::{
    Error, LockKey,
    store::{Acquire, Acquired, Ending, Mode, Owner, Queueing, Release, Released},
};

impl Shared {
    pub(super) async fn release(self: Arc<Self>, request: Release) -> Result<Released, Error> {
        let (key, owner) = (&request.key, request.owner);
        let seats = self.attempts.begin_to_end(key, owner);
        let releasing = seats.iter().zip(&self.nodes).map(|(seat, node)| {
            node.start_release(Release {
                owner: seat.owner,
                ..request.clone()
            })
        });
        let releasing = Round::start(releasing.enumerate(), self.node_timeout).await;
        let outcome = self.tally(releasing).await;
        if outcome.is_ok() {
            self.attempts.remove(key, owner);
        }
        if let (Ok(Released::Freed), Ending::Record { content, retain }) =
            (&outcome, &request.ending)
        {
            // Those that were not ours shall know of it as well: the more do, the fewer can forget it.
            let others = seats
                .iter()
                .enumerate()
                .filter(|(_, seat)| seat.is == Is::Away);
            for (node, seat) in others {
                let name = next_name(seat.owner);
                let (store, key, content) = (self.clone(), key.clone(), content.clone());
                detach(store.add_record(key, content, *retain, (node, name)));
            }
        }
        outcome
    }

    /// Decided by a majority; the rest goes on in the background. A node that was not reached makes up for it itself.
    async fn tally(
        &self,
        mut releasing: Round<Result<Released, Error>>,
    ) -> Result<Released, Error> {
        let (nodes, majority) = (self.nodes.len(), majority(self.nodes.len()));
        let (mut freed, mut not_ours, mut error) = (0, 0, None);
        while let Some((_, answer)) = releasing.next().await {
            match answer {
                Ok(Released::Freed) => freed += 1,
                Ok(Released::NotOurs) => not_ours += 1,
                Err(failed) => error = Some(failed),
            }
            if freed >= majority {
                return Ok(Released::Freed);
            }
            if not_ours >= majority {
                return Ok(Released::NotOurs);
            }
        }
        Err(no_quorum(nodes, nodes - freed - not_ours, 0, error))
    }

    /// Records at a node that had no part in the lease, if the key is free there.
    async fn add_record(
        self: Arc<Self>,
        key: LockKey,
        content: Bytes,
        retain: Duration,
        (node, owner): (usize, Owner),
    ) {
        let node = &self.nodes[node];
        let taking = node.acquire(Acquire {
            key: key.clone(),
            owner,
            lease: self.node_timeout * 10,
            block: 1,
            queueing: Queueing::Skip,
            mode: Mode::Exclusive,
            fingerprint: None,
        });
        if let Ok(Acquired::Granted(_)) = taking.await {
            let ending = Ending::Record { content, retain };
            let _ = node
                .start_release(Release {
                    key,
                    owner,
                    ending,
                    owed_for: self.longest_lease(),
                })
                .await;
        }
    }

    /// Records at nodes that granted a lease to one who found the record elsewhere.
    pub(super) async fn copy_record(
        self: Arc<Self>,
        key: LockKey,
        record: Bytes,
        missing: Vec<(usize, Owner)>,
    ) {
        let asked = Instant::now();
        let retain = self.record_remaining(&key, &record).await;
        let ending = match retain {
            Some(retain) => Ending::Record {
                content: record,
                retain: retain.saturating_sub(asked.elapsed()),
            },
            None => Ending::Free,
        };
        let releasing = missing.into_iter().map(|(node, owner)| {
            let (key, ending) = (key.clone(), ending.clone());
            (
                node,
                self.nodes[node].start_release(Release {
                    key,
                    owner,
                    ending,
                    owed_for: self.longest_lease(),
                }),
            )
        });
        Round::start(releasing, self.node_timeout).await.all().await;
    }

    async fn record_remaining(&self, key: &LockKey, record: &Bytes) -> Option<Duration> {
        let looking = self.nodes.iter().map(|node| node.inspect(key.clone()));
        let looking = Round::start(looking.enumerate(), self.node_timeout).await;
        let seen = looking.all().await.into_iter();
        let seen = seen.filter_map(|(_, seen)| seen.ok());
        let same = seen.filter(|seen| seen.record.as_ref() == Some(record));
        same.filter_map(|seen| seen.record_remaining).max()
    }
}
