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
        lane::{Before, Lane, Way},
        operations::released,
        outcome::Outcome,
        owed::Debt,
    },
    plain,
};
use crate::{
    Error,
    store::{Ending, Release, Released},
};

const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(250);

/// An acquire that may have taken effect, or may still do so.
pub(in super::super) struct InDoubt {
    /// The acquire was answered, but does not count. Its caller hears of that when the lock was given back.
    pub(in super::super) was_answered: bool,
    /// The connection beside the lanes that it was sent on.
    pub(in super::super) sent_on: Option<Peer>,
    /// That connection, or one of a lane, cannot be closed: the acquire may take effect at any time.
    pub(in super::super) cannot_be_closed: bool,
}

/// A release that is repeated until it was answered.
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
                    if let Some(in_doubt) = &self.in_doubt
                        && !in_doubt.was_answered
                        && (in_doubt.cannot_be_closed || !answered.predecessors_closed)
                    {
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

    /// An answered release does not count where its acquire may still take effect. The lane repeats the release beside the
    /// key's queue, so that later calls need not wait for so long.
    fn repeat_until_expiry(&self, shared: &Shared) {
        let release = Release {
            ending: Ending::Free,
            ..self.request.clone()
        };
        if let Some(lane) = shared.routes.lane_at_once(&release.key) {
            lane.clean_up(release, true);
        }
    }
}

impl Shared {
    async fn release_now(&self, release: &Repeated) -> Outcome {
        let request = &release.request;
        let deadline = self.deadline();
        let start = |lane: &Arc<Lane>, way: Way| {
            let sent_on = release.in_doubt.as_ref().and_then(|it| it.sent_on.clone());
            let before = match sent_on {
                Some(peer) => Before::Close(peer),
                None => way.before(),
            };
            let call = way.form(Operation::Release(request.clone()).into());
            plain(lane, call, before, deadline)
        };
        self.routes.call(&request.key, deadline, start).await
    }
}
