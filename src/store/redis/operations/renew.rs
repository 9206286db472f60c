//! To renew leases: `renew.lua`; `renew_alone.lua` without further tokens, or with one key; `renew_shared.lua` for the other modes.
//!
//! | reply | meaning |
//! |---|---|
//! | `[1, 75, 16]` | renewed; others wait; the last token of the refill, and the number of its tokens |
//! | `0` | not ours |

use std::sync::Arc;

use futures_util::{StreamExt, stream};
use redis::Value;
use tokio::{sync::mpsc, time::Instant};

use super::{
    super::{
        Shared, explain,
        floors::Floor,
        lane::{BATCH, Failure, Lane, Start},
        outcome::{Outcome, Redirect},
        script::{RENEW, RENEW_ALONE, RENEW_SHARED},
        topology::CallForm,
    },
    Operation, Writer,
    reply::tokens,
    writer::millis,
};
use crate::store::{Mode, Renew, RenewAnswers, Renewed};

/// A renewal under way.
struct Asked {
    request: Renew,
    deadline: Instant,
}

impl Shared {
    /// Renews leases. The renewals of one lane are sent together, and each is answered when its reply comes.
    pub(in super::super) fn renew(self: &Arc<Self>, requests: Vec<Renew>) -> RenewAnswers {
        let (sender, mut receiver) = mpsc::unbounded_channel();
        let mut deadlines = vec![self.deadline(); requests.len()];
        let mut groups: Vec<(Arc<Lane>, Vec<usize>)> = Vec::new();
        for (index, request) in requests.iter().enumerate() {
            let Some(lane) = self.topology.lane_of(&request.key) else {
                let unrouted = Outcome::Redirected {
                    redirect: Redirect::Unrouted,
                    may_have_taken_effect: false,
                };
                let _ = sender.send((index, unrouted));
                continue;
            };
            match groups.iter_mut().find(|(it, _)| Arc::ptr_eq(it, &lane)) {
                Some((_, indices)) => indices.push(index),
                None => groups.push((lane, vec![index])),
            }
        }
        for (lane, indices) in groups {
            // Batches are answered one after another, so each batch gets more time than the one before.
            let now = self.deadline();
            let starts = indices.into_iter().enumerate().map(|(place, index)| {
                let behind = u32::try_from(place / BATCH).unwrap_or(u32::MAX);
                let deadline = now + self.timeout / 10 * behind;
                deadlines[index] = deadline;
                let start = renewal_of(&requests[index], CallForm::default(), deadline);
                (index, start)
            });
            lane.call_all(starts, &sender);
        }
        drop(sender);
        let shared = self.clone();
        let answers = stream::poll_fn(move |cx| receiver.poll_recv(cx));
        let asked = requests.into_iter().zip(deadlines);
        let asked: Arc<[Asked]> = asked
            .map(|(request, deadline)| Asked { request, deadline })
            .collect();
        let all = asked.len();
        let answers = answers.map(move |(index, outcome)| {
            let (shared, asked) = (shared.clone(), asked.clone());
            async move { (index, shared.renewed(&asked[index], outcome).await) }
        });
        // Most answers are ready at once. A renewal that a node of a Cluster has redirected delays no other.
        Box::pin(answers.buffer_unordered(all.max(1)))
    }

    /// Reads the outcome of a renewal. A renewal that a node of a Cluster has redirected is made again, at the right node, until its deadline.
    async fn renewed(&self, asked: &Asked, outcome: Outcome) -> Renewed {
        let Asked { request, deadline } = asked;
        let outcome = match outcome {
            // A renewal can be made twice without harm.
            Outcome::Redirected { .. } => {
                self.topology.mark_stale();
                let start = |lane: &Arc<Lane>, form: CallForm| {
                    lane.call(renewal_of(request, form, *deadline))
                };
                self.topology.call(&request.key, *deadline, start).await
            }
            outcome => outcome,
        };
        match outcome.value() {
            Ok(value) => renewed(value, self.floors.of(&request.key)),
            Err(error) => {
                self.topology.mark_stale();
                Renewed::Unknown(error)
            }
        }
    }
}

/// A renewal to be started, which nothing follows if it fails.
fn renewal_of(request: &Renew, form: CallForm, deadline: Instant) -> Start {
    Start {
        call: form.of(Operation::Renew(request.clone()).into()),
        before: form.before(),
        failure: Failure::GiveUp,
        deadline,
    }
}

impl Writer<'_> {
    /// Writes a renewal. In a moving slot, a lease that is renewed without further tokens is better than a lost one.
    pub(super) fn renew(&mut self, request: &Renew, has_one_key: bool) {
        if request.mode != Mode::Exclusive {
            return self.renew_shared(request, has_one_key);
        }
        let is_alone = has_one_key || request.refill == 0;
        if is_alone {
            self.script(&RENEW_ALONE, 1);
            self.lock(&request.key);
        } else {
            self.script(&RENEW, 3);
            self.lock(&request.key);
            self.queue(&request.key);
            self.fence(&request.key);
        }
        self.lease(request.owner);
        self.number(millis(request.lease));
        if !is_alone {
            self.floor(&request.key);
            self.number(request.refill.into());
        }
    }

    /// Writes the renewal of a shared lease or of a permit. The name that never exists keeps the script from running in a moving slot.
    fn renew_shared(&mut self, request: &Renew, has_one_key: bool) {
        self.script(&RENEW_SHARED, if has_one_key { 1 } else { 4 });
        self.lock(&request.key);
        if !has_one_key {
            self.queue(&request.key);
            self.fence(&request.key);
            self.none(&request.key);
        }
        self.holder(request.owner, request.mode);
        self.number(millis(request.lease));
        if !has_one_key {
            self.floor(&request.key);
            self.number(request.refill.into());
        }
    }
}

/// Reads the reply of `renew.lua`, `renew_alone.lua` or `renew_shared.lua`.
fn renewed(reply: Value, floor: Floor<'_>) -> Renewed {
    match reply {
        Value::Int(0) => Renewed::NotOurs,
        Value::Array(parts) => match parts[..] {
            [Value::Int(others_wait), Value::Int(last), Value::Int(block)] => Renewed::Renewed {
                tokens: u32::try_from(block)
                    .ok()
                    .and_then(|block| tokens(last, block, floor)),
                others_wait: others_wait == 1,
            },
            _ => Renewed::Unknown(explain::unexpected_reply()),
        },
        _ => Renewed::Unknown(explain::unexpected_reply()),
    }
}
