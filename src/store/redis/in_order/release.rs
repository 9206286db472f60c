//! Releases that are repeated until the server has answered. Few are repeated at the same time ([`Lane::repetitions`]), each with a pause:
//! a server that refuses one release, because it is full or has too few replicas, refuses all of them, and thousands can be owed.
//!
//! | the acquire before | may take effect after the release | settled by |
//! |---|---|---|
//! | was answered | no | the answer to the release |
//! | was sent on a lane | until the lane's old connections are closed | a lane that has closed them; else repeated until the expiry |
//! | was sent on a connection of the pool | until that connection is closed | CLIENT KILL before the release; else repeated until the expiry |

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use tokio::time::{Instant, sleep, timeout_at};

use super::{
    super::{
        Shared,
        connection::Peer,
        lane::{Before, Lane},
        operations::{Operation, ReleaseAll},
        outcome::{Answered, Outcome},
        owed::Debt,
        topology::{CallForm, Topology},
    },
    plain,
};
use crate::{
    Error, ErrorKind,
    store::{Ending, Released},
};

const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(250);

/// An acquire that was sent, and is released unless its caller takes the lease.
pub(in super::super) enum InDoubt {
    /// The acquire was answered. If the answer does not count, the caller gets the error after the release.
    Answered,
    /// The acquire was sent on a lane and not answered.
    SentOnLane,
    /// The acquire was sent on a connection of the pool and not answered. `None` if the server cannot close that connection.
    SentOn(Option<Peer>),
}

/// The acquire of a job under way. If the job is dropped, with its runtime, the release is put back as the key's next job.
pub(super) struct UnderWay {
    pub(super) store: Arc<Shared>,
    pub(super) release: ReleaseAll,
    /// Set while the acquire may have taken effect. `None` once the job has the outcome.
    pub(super) in_doubt: Option<InDoubt>,
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        if let (Some(in_doubt), Some(order)) = (self.in_doubt.take(), &self.store.order) {
            let repeated = self.store.repeated(self.release.clone(), Some(in_doubt));
            let key = &self.release.release.key;
            order.put_back(key, repeated.until_answered(|_| {}));
        }
    }
}

/// A release that is repeated until the server has answered.
pub(super) struct Repeated {
    /// For all attempts but the first.
    pub(super) store: Weak<Shared>,
    /// For the first attempt, which is made even if the store is dropped before. `None` afterwards.
    ///
    /// The job may wait in the store's own queue. The job therefore holds the topology: with the store, both would keep each other alive.
    pub(super) topology: Option<Arc<Topology>>,
    /// The time limit of each attempt.
    pub(super) limit: Duration,
    pub(super) releasing: ReleaseAll,
    pub(super) expires: Instant,
    pub(super) in_doubt: Option<InDoubt>,
    /// Counts the release as owed. `None` once the job has ended.
    pub(super) debt: Option<Debt>,
}

impl Repeated {
    /// Repeats the release until the server has answered, and a lane repeats the release from then on where that is necessary. Calls
    /// `tell` with the outcome of the first attempt.
    pub(super) async fn until_answered(mut self, tell: impl FnOnce(Outcome)) {
        let mut tell = Some(tell);
        let mut pause = FIRST_PAUSE;
        let mut repetition = None;
        while let Some(topology) = self.next_topology() {
            let outcome = self.attempt(&topology).await;
            drop(repetition);
            let is_done = match &outcome {
                Outcome::Answered(it) => self.is_settled_by(it) || self.is_left_to_lane(&topology),
                // A release that cannot work is not repeated.
                other => other.error().map(|error| error.kind()) == Some(ErrorKind::InvalidConfig),
            };
            let repetitions = self.lane(&topology).map(|lane| lane.repetitions());
            drop(topology);
            if let Some(tell) = tell.take() {
                tell(outcome);
            }
            if is_done {
                break;
            }
            repetition = match repetitions {
                Some(all) => timeout_at(self.expires, all.acquire_owned()).await.ok(),
                None => None,
            };
            if Instant::now() + pause >= self.expires {
                break;
            }
            sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
        self.debt = None;
    }

    /// Makes the first attempt, to put a record into the lease's place, on a connection of the pool, and calls `tell` with the answer.
    /// Repeats the record if the server has not answered.
    pub(super) async fn once_replicated(
        mut self,
        store: Weak<Shared>,
        deadline: Instant,
        tell: impl FnOnce(Result<Released, Error>),
    ) {
        let store = store.upgrade();
        let replicated = store
            .as_ref()
            .and_then(|store| Some((store, store.replicated.as_ref()?)));
        let Some((shared, replicated)) = replicated else {
            // Without the store there is no pool, and nobody who could be told that replicas have the record.
            return self.until_answered(|_| {}).await;
        };
        let record = self.releasing.clone();
        match shared.record_replicated(replicated, record, deadline).await {
            Ok(answer) => {
                self.debt = None;
                tell(answer);
            }
            Err(error) if error.kind() == ErrorKind::InvalidConfig => {
                self.debt = None;
                tell(Err(error));
            }
            Err(error) => {
                tell(Err(error));
                drop(store);
                self.until_answered(|_| {}).await;
            }
        }
    }

    /// The topology for the next attempt. `None` if the store is gone, unless the attempt is the first.
    fn next_topology(&mut self) -> Option<Arc<Topology>> {
        let first = self.topology.take();
        first.or_else(|| Some(self.store.upgrade()?.topology.clone()))
    }

    /// The lane of the key. `None` while the slot map is stale.
    fn lane(&self, topology: &Topology) -> Option<Arc<Lane>> {
        topology.lane_of(&self.releasing.release.key)
    }

    async fn attempt(&self, topology: &Topology) -> Outcome {
        let deadline = Instant::now() + self.limit;
        let start = |lane: &Arc<Lane>, form: CallForm| {
            let before = match &self.in_doubt {
                Some(InDoubt::SentOn(Some(peer))) => Before::Close(peer.clone()),
                _ => form.before(),
            };
            let call = form.of(Operation::Release(self.releasing.clone()).into());
            plain(lane, call, before, deadline)
        };
        let key = &self.releasing.release.key;
        topology.call(key, deadline, start).await
    }

    /// Whether no later effect of the acquire is possible after this answer to the release (see the table above).
    fn is_settled_by(&self, answered: &Answered) -> bool {
        match &self.in_doubt {
            None | Some(InDoubt::Answered) => true,
            Some(InDoubt::SentOnLane | InDoubt::SentOn(Some(_))) => answered.predecessors_closed,
            Some(InDoubt::SentOn(None)) => false,
        }
    }

    /// Lets the lane of the key repeat an answered release whose acquire may still take effect. The repetitions are not part of the job,
    /// because later calls for the key need not wait for them.
    ///
    /// Returns false while the slot map is stale: there is no lane, and the job goes on.
    fn is_left_to_lane(&self, topology: &Topology) -> bool {
        let mut releasing = self.releasing.clone();
        releasing.release.ending = Ending::Free;
        let lane = self.lane(topology);
        lane.map(|lane| lane.clean_up(releasing, true)).is_some()
    }
}

/// A job that is dropped under way, with its runtime, is put back as the key's next job.
impl Drop for Repeated {
    fn drop(&mut self) {
        let (Some(debt), Some(store)) = (self.debt.take(), self.store.upgrade()) else {
            return;
        };
        if let Some(order) = &store.order
            && Instant::now() < self.expires
        {
            let again = Self {
                store: self.store.clone(),
                topology: Some(store.topology.clone()),
                limit: self.limit,
                releasing: self.releasing.clone(),
                expires: self.expires,
                in_doubt: self.in_doubt.take(),
                debt: Some(debt),
            };
            let key = &self.releasing.release.key;
            order.put_back(key, again.until_answered(|_| {}));
        }
    }
}
