//! What calls of unknown outcome left behind, and the task that clears it away.
//!
//! 1. An orphan is a lease, or a place in a queue, that may exist and that nobody answers for: its acquire or its
//!    release failed. It is released as soon as the server can be reached.
//! 2. One answer settles it, if nothing that was sent before can take effect any more (see `connection`). Else, and
//!    also if the server refuses the release, it is repeated until the lease must have passed.
//! 3. There is at most one task. It holds the store weakly, and ends when there is no orphan, or no store.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use futures_util::future::join_all;
use tokio::{
    task::JoinHandle,
    time::{Instant, sleep},
};

use super::{
    BATCH, Shared, calls,
    connection::Peer,
    lane::{Lane, Replies},
};
use crate::{store::Release, sync::Mutex, trace};

const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
pub(super) struct Orphans(Mutex<Found>);

#[derive(Debug, Default)]
struct Found {
    waiting: Vec<Orphan>,
    worker: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Orphan {
    request: Release,
    /// How long it lives if it is left alone.
    lease: Duration,
    behind: Behind,
    /// When the server first answered anything.
    answered: Option<Instant>,
}

/// What a release must come after.
#[derive(Debug)]
pub(super) enum Behind {
    /// What was sent on the key's lane, old connections of it included.
    Lane,
    /// What was sent on a connection beside the lanes, unless the server would not say how it knows that.
    Connection(Option<Peer>),
}

impl Orphan {
    fn connection(&self) -> Option<Peer> {
        match &self.behind {
            Behind::Lane => None,
            Behind::Connection(peer) => peer.clone(),
        }
    }
}

impl Orphans {
    /// All that wait, or the end of the task.
    fn take_all(&self) -> Option<Vec<Orphan>> {
        let mut found = self.0.lock();
        if found.waiting.is_empty() {
            found.worker = None;
            return None;
        }
        Some(std::mem::take(&mut found.waiting))
    }

    fn put_back(&self, orphans: impl IntoIterator<Item = Orphan>) {
        self.0.lock().waiting.extend(orphans);
    }
}

impl Shared {
    /// Releases in the background what a call may have left behind.
    pub(super) fn clean_up(self: &Arc<Self>, request: Release, lease: Duration, behind: Behind) {
        let mut found = self.orphans.0.lock();
        found.waiting.push(Orphan {
            request,
            lease,
            behind,
            answered: None,
        });
        // A worker whose runtime was shut down is finished, too.
        if found.worker.as_ref().is_none_or(JoinHandle::is_finished) {
            found.worker = Some(tokio::spawn(work(Arc::downgrade(self))));
        }
    }

    /// Returns those that are not settled.
    async fn settle(&self, orphans: Vec<Orphan>) -> Vec<Orphan> {
        let deadline = Instant::now() + self.timeout;
        let keys = orphans.iter().map(|orphan| &orphan.request.key);
        let (groups, _) = self.routes.group(keys, deadline).await;
        let mut orphans: Vec<_> = orphans.into_iter().map(Some).collect();
        let groups: Vec<(_, Vec<Orphan>)> = groups
            .into_iter()
            .map(|(lane, indices)| {
                let group = indices
                    .into_iter()
                    .filter_map(|index| orphans[index].take());
                (lane, group.collect())
            })
            .collect();
        // Those that go nowhere at the moment stay.
        let mut left: Vec<Orphan> = orphans.into_iter().flatten().collect();
        let settling = groups
            .into_iter()
            .map(|(lane, group)| self.settle_on(lane, group));
        left.extend(join_all(settling).await.into_iter().flatten());
        left
    }

    async fn settle_on(&self, lane: Arc<Lane>, mut orphans: Vec<Orphan>) -> Vec<Orphan> {
        let mut left = Vec::new();
        while !orphans.is_empty() {
            let mut batch = orphans.split_off(orphans.len().saturating_sub(BATCH));
            let releases: Vec<_> = batch
                .iter()
                .map(|orphan| calls::release(&self.names.of(&orphan.request.key), &orphan.request))
                .collect();
            let others: Vec<Peer> = batch.iter().filter_map(Orphan::connection).collect();
            match lane.call_without(&others, &releases).await {
                Ok(replies) => {
                    if replies.redirect.is_some() {
                        self.routes.doubt();
                    }
                    left.extend(unsettled(batch, &replies));
                }
                // If this one is out of reach, so are the rest.
                Err(_) => {
                    self.routes.doubt();
                    left.append(&mut batch);
                    left.append(&mut orphans);
                }
            }
        }
        left
    }
}

fn unsettled(batch: Vec<Orphan>, replies: &Replies) -> impl Iterator<Item = Orphan> {
    let now = Instant::now();
    let answers = replies.each.iter().map(Result::is_ok);
    let judged: Vec<_> = batch.into_iter().zip(answers).collect();
    let settled = replies.settled;
    judged.into_iter().filter_map(move |(mut orphan, done)| {
        let settled = done && settled && !matches!(orphan.behind, Behind::Connection(None));
        let answered = *orphan.answered.get_or_insert(now);
        (!settled && now - answered < orphan.lease).then_some(orphan)
    })
}

async fn work(store: Weak<Shared>) {
    let mut pause = FIRST_PAUSE;
    loop {
        let Some(shared) = store.upgrade() else {
            return;
        };
        let Some(orphans) = shared.orphans.take_all() else {
            return;
        };
        let found = orphans.len();
        let left = shared.settle(orphans).await;
        trace::orphans_released(found - left.len(), left.len());
        let is_done = left.is_empty();
        shared.orphans.put_back(left);
        drop(shared);
        if is_done {
            pause = FIRST_PAUSE;
        } else {
            sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }
}
