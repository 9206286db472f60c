//! Releases that are repeated until they are answered.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use tokio::time::{Instant, sleep};

use super::{
    super::{
        Shared,
        calls::Operation,
        connection::Peer,
        lane::{Before, Lane},
        operations::released,
        outcome::Outcome,
        owed::Debt,
        topology::CallForm,
    },
    plain,
};
use crate::{
    Error,
    store::{Ending, Release, Released},
};

const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(250);

/// An acquire that failed and may have taken effect.
pub(in super::super) enum InDoubt {
    /// The acquire was answered, but does not count. Its caller is told when the lock was given back.
    Answered,
    /// The acquire was sent on a lane, and not answered.
    SentOnLane,
    /// The acquire was sent on a connection out of the pool, and not answered. `None` if that connection cannot be closed.
    SentOn(Option<Peer>),
}

/// A release that is repeated until the server has answered.
pub(super) struct Repeated {
    pub(super) store: Weak<Shared>,
    pub(super) request: Release,
    pub(super) expires: Instant,
    pub(super) in_doubt: Option<InDoubt>,
    /// Counts as owed until the job has ended.
    pub(super) _debt: Debt,
}

impl Repeated {
    /// Calls `tell` with the outcome of the first attempt.
    pub(super) async fn until_answered(self, tell: impl FnOnce(Result<Released, Error>)) {
        let mut tell = Some(tell);
        let mut pause = FIRST_PAUSE;
        while let Some(shared) = self.store.upgrade() {
            let outcome = match shared.release_now(&self).await {
                Outcome::Answered(answered) => {
                    let is_settled = match &self.in_doubt {
                        None | Some(InDoubt::Answered) => true,
                        Some(InDoubt::SentOnLane | InDoubt::SentOn(Some(_))) => {
                            answered.predecessors_closed
                        }
                        Some(InDoubt::SentOn(None)) => false,
                    };
                    if !is_settled {
                        self.repeat_until_expiry(&shared);
                    }
                    if let Some(tell) = tell {
                        tell(released(answered));
                    }
                    return;
                }
                outcome => outcome,
            };
            drop(shared);
            if let (Some(tell), Err(error)) = (tell.take(), outcome.value()) {
                tell(Err(error));
            }
            if Instant::now() + pause >= self.expires {
                return;
            }
            sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// Has the lane repeat an answered release whose acquire may still take effect. The lane does so beside the
    /// key's queue, so that later calls need not wait for so long.
    fn repeat_until_expiry(&self, shared: &Shared) {
        let release = Release {
            ending: Ending::Free,
            ..self.request.clone()
        };
        if let Some(lane) = shared.topology.lane_of(&release.key) {
            lane.clean_up(release, true);
        }
    }
}

impl Shared {
    async fn release_now(&self, release: &Repeated) -> Outcome {
        let request = &release.request;
        let deadline = self.deadline();
        let start = |lane: &Arc<Lane>, form: CallForm| {
            let before = match &release.in_doubt {
                Some(InDoubt::SentOn(Some(peer))) => Before::Close(peer.clone()),
                _ => form.before(),
            };
            let call = form.of(Operation::Release(request.clone()).into());
            plain(lane, call, before, deadline)
        };
        self.topology.call(&request.key, deadline, start).await
    }
}
