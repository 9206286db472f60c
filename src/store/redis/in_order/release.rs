//! Releases that are repeated until the server has answered.
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

use tokio::time::{Instant, sleep};

use super::{
    super::{
        Shared,
        connection::Peer,
        lane::{Before, Lane},
        operations::{Operation, ReleaseAll, released},
        outcome::Outcome,
        owed::Debt,
        topology::CallForm,
    },
    plain,
};
use crate::{
    Error,
    store::{Ending, Released},
};

const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(250);

/// An acquire that failed and may have taken effect.
pub(in super::super) enum InDoubt {
    /// The acquire was answered, but does not count. Its caller gets the error after the release.
    Answered,
    /// The acquire was sent on a lane and not answered.
    SentOnLane,
    /// The acquire was sent on a connection of the pool and not answered. `None` if the server cannot close that connection.
    SentOn(Option<Peer>),
}

/// A release that is repeated until the server has answered.
pub(super) struct Repeated {
    pub(super) store: Weak<Shared>,
    pub(super) releasing: ReleaseAll,
    pub(super) expires: Instant,
    pub(super) in_doubt: Option<InDoubt>,
    /// Counts the release as owed until the job has ended.
    pub(super) _debt: Debt,
}

impl Repeated {
    /// Repeats the release until the server has answered. Calls `tell` with the outcome of the first attempt.
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

    /// Lets the lane repeat an answered release whose acquire may still take effect. The repetitions are not part of the job, because
    /// later calls for the key need not wait for them.
    fn repeat_until_expiry(&self, shared: &Shared) {
        let mut releasing = self.releasing.clone();
        releasing.release.ending = Ending::Free;
        if let Some(lane) = shared.topology.lane_of(&releasing.release.key) {
            lane.clean_up(releasing, true);
        }
    }
}

impl Shared {
    async fn release_now(&self, release: &Repeated) -> Outcome {
        let releasing = &release.releasing;
        let deadline = self.deadline();
        let start = |lane: &Arc<Lane>, form: CallForm| {
            let before = match &release.in_doubt {
                Some(InDoubt::SentOn(Some(peer))) => Before::Close(peer.clone()),
                _ => form.before(),
            };
            let call = form.of(Operation::Release(releasing.clone()).into());
            plain(lane, call, before, deadline)
        };
        self.topology
            .call(&releasing.release.key, deadline, start)
            .await
    }
}
