//! A call to a store and its answer, in a form that can be compared.

use std::{collections::BTreeSet, time::Duration};

use bytes::Bytes;
use futures_util::future::{join, join_all};
use tower_distributed_lock::{
    Error, ErrorKind, LockKey,
    store::{
        Acquire, Acquired, Expected, Hint, Inspection, Instance, Mode, Owner, RedisStore, Release,
        Released, Renew, Renewed, Store, Tokens,
        rules::{Fence, Moment, Slot, Step},
    },
};

use crate::support::words::Words;

/// The label of the store on Redis. The rules know none.
pub(crate) const LABEL: &str = "host-7";

#[derive(Debug, Clone)]
pub(crate) enum Call {
    Acquire(Acquire),
    Renew(Renew),
    Release(Release),
    Force(Expected),
    Inspect,
    /// Raises the floor above the last token by this number.
    Raise(u64),
}

/// What a store says, without the time and the tokens.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Said {
    Granted {
        count: u32,
        others_wait: bool,
    },
    Held {
        fingerprint: Option<Bytes>,
        is_labelled: bool,
    },
    Recorded(Bytes),
    Refused(ErrorKind),
    Renewed {
        has_tokens: bool,
        others_wait: bool,
    },
    NotRenewed,
    Released(Released),
    Forced(bool),
    Inspected {
        /// In the order of their owners.
        holders: Vec<(Owner, Mode, Option<Bytes>)>,
        queue: Vec<Owner>,
        record: Option<Bytes>,
    },
    Raised,
}

impl Said {
    /// The name of the answer, to count which were seen.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Self::Granted { others_wait, .. } if *others_wait => "granted, others wait",
            Self::Granted { count, .. } if *count > 1 => "granted several",
            Self::Granted { .. } => "granted",
            Self::Held { .. } => "held",
            Self::Recorded(_) => "recorded",
            Self::Refused(_) => "refused",
            Self::Renewed { others_wait, .. } if *others_wait => "renewed, others wait",
            Self::Renewed { .. } => "renewed",
            Self::NotRenewed => "not renewed",
            Self::Released(Released::Freed) => "freed",
            Self::Released(_) => "not ours",
            Self::Forced(true) => "forced",
            Self::Forced(false) => "not forced",
            Self::Inspected { .. } => "inspected",
            Self::Raised => "raised",
        }
    }
}

#[derive(Debug, Clone)]
pub(crate) struct Answer {
    pub(crate) said: Said,
    /// Times until something ends, in an order that follows from `said`.
    pub(crate) times: Vec<Duration>,
    /// The tokens that were handed out, or the last one that counts as handed out.
    pub(crate) tokens: Option<Tokens>,
}

/// The hints of one call: the instances, and what they are told.
pub(crate) type Told = BTreeSet<(Instance, String)>;

impl Answer {
    fn new(said: Said) -> Self {
        Self {
            said,
            times: Vec::new(),
            tokens: None,
        }
    }

    fn of_acquire(acquired: Result<Acquired, Error>) -> Self {
        match acquired {
            Ok(Acquired::Granted(grant)) => Self {
                tokens: Some(grant.tokens),
                ..Self::new(Said::Granted {
                    count: grant.count,
                    others_wait: grant.others_wait,
                })
            },
            Ok(Acquired::Held(held)) => Self {
                times: vec![held.remaining],
                ..Self::new(Said::Held {
                    fingerprint: held.fingerprint,
                    is_labelled: held.label.is_some_and(|label| &*label == LABEL),
                })
            },
            Ok(Acquired::Recorded(content)) => Self::new(Said::Recorded(content)),
            Err(error) if error.kind() == ErrorKind::Foreign => {
                Self::new(Said::Refused(error.kind()))
            }
            Err(error) => panic!("the store does not answer: {error}"),
        }
    }

    fn of_renewal(renewed: Renewed) -> Self {
        match renewed {
            Renewed::Renewed {
                tokens,
                others_wait,
            } => Self {
                tokens,
                ..Self::new(Said::Renewed {
                    has_tokens: tokens.is_some(),
                    others_wait,
                })
            },
            Renewed::NotOurs => Self::new(Said::NotRenewed),
            Renewed::Unknown(error) => panic!("the store does not answer: {error}"),
        }
    }

    fn of_inspection(mut seen: Inspection) -> Self {
        let ends = seen.holders.iter().map(|holder| holder.remaining);
        assert!(ends.is_sorted(), "not in the order of their ends: {seen:?}");
        seen.holders.sort_by_key(|holder| holder.owner);
        let holders = seen.holders.iter();
        let times = holders.clone().map(|holder| holder.remaining);
        Self {
            times: times.chain(seen.record_remaining).collect(),
            tokens: Some(Tokens::new(seen.fence, 1)),
            ..Self::new(Said::Inspected {
                holders: holders
                    .map(|holder| (holder.owner, holder.mode, holder.fingerprint.clone()))
                    .collect(),
                queue: seen.queue,
                record: seen.record,
            })
        }
    }

    fn of_floor(last: u64) -> Self {
        Self {
            tokens: Some(Tokens::new(last, 1)),
            ..Self::new(Said::Raised)
        }
    }
}

impl Call {
    /// Whether a script may make the call together with others.
    pub(crate) fn is_daily(&self) -> bool {
        matches!(self, Self::Acquire(_) | Self::Renew(_) | Self::Release(_))
    }

    /// Starts calls on Redis together, each with its key and the last token there. Returns their
    /// answers, in the same order.
    pub(crate) async fn all_on_redis<'a>(
        store: &RedisStore,
        calls: impl Iterator<Item = (&'a Self, &'a LockKey, u64)>,
    ) -> Vec<Answer> {
        let (mut renewals, mut single) = (Vec::new(), Vec::new());
        for (index, (call, key, last_token)) in calls.enumerate() {
            if let Self::Renew(request) = call {
                renewals.push((index, request.clone()));
            } else {
                single.push(async move { (index, call.on_redis(store, key, last_token).await) });
            }
        }
        let (indices, renewals): (Vec<usize>, Vec<Renew>) = renewals.into_iter().unzip();
        let (mut answers, renewed) = join(join_all(single), store.renew_all(renewals)).await;
        answers.extend(
            indices
                .into_iter()
                .zip(renewed.into_iter().map(Answer::of_renewal)),
        );
        answers.sort_by_key(|(index, _)| *index);
        answers.into_iter().map(|(_, answer)| answer).collect()
    }

    /// Makes the call on Redis.
    async fn on_redis(&self, store: &RedisStore, key: &LockKey, last_token: u64) -> Answer {
        match self.clone() {
            Self::Acquire(request) => Answer::of_acquire(store.ask_for(request).await),
            Self::Renew(request) => Answer::of_renewal(store.renew_one(request).await),
            Self::Release(request) => {
                Answer::new(Said::Released(store.end(request).await.unwrap()))
            }
            Self::Force(expected) => {
                let forced = store.force_release_if(key.clone(), expected).await;
                Answer::new(Said::Forced(forced.unwrap()))
            }
            Self::Inspect => Answer::of_inspection(store.inspect(key.clone()).await.unwrap()),
            Self::Raise(above) => {
                let raised = store.raise_fence(key.clone(), last_token + above).await;
                Answer::of_floor(raised.unwrap())
            }
        }
    }

    /// Makes the call under the rules, at a time.
    pub(crate) fn by_rules(&self, slot: &mut Slot, key: &LockKey, now: Moment) -> (Answer, Told) {
        slot.forget_expired(now);
        let mut fence = Fence::new(now);
        let mut step = Step {
            key,
            now,
            wall_clock: now,
            fence: &mut fence,
            hints: Vec::new(),
        };
        let mut answer = match self {
            Self::Acquire(request) => Answer::of_acquire(slot.acquire(request, &mut step)),
            Self::Renew(request) => Answer::of_renewal(slot.renew(request, &mut step)),
            Self::Release(request) => Answer::new(Said::Released(slot.release(request, &mut step))),
            Self::Force(expected) => {
                Answer::new(Said::Forced(slot.force_release(*expected, &mut step)))
            }
            Self::Inspect => Answer::of_inspection(slot.inspect(0, now)),
            Self::Raise(above) => Answer::of_floor(*above),
        };
        if let Said::Held { is_labelled, .. } = &mut answer.said {
            // Redis shows the label of a holder, if there is one.
            *is_labelled = !slot.inspect(0, now).holders.is_empty();
        }
        let hints = step.hints.into_iter().map(|(instance, hint)| {
            let (name, about) = match hint {
                Hint::Free(about) => ("free", about),
                Hint::Next(about) => ("next", about),
                Hint::Wanted(about) => ("wanted", about),
                other => panic!("not about a key: {other:?}"),
            };
            assert_eq!(about, *key);
            (instance, name.to_owned())
        });
        (answer, hints.collect())
    }
}
