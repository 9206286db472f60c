//! To renew leases: `renew.lua`; `renew_alone.lua` without further tokens, or with one key;
//! `renew_shared.lua` for the other modes.
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
        lane::Lane,
        names::{Name, bucket},
        script::{RENEW, RENEW_ALONE, RENEW_SHARED},
        topology::{Topology, is_redirect},
    },
    Call, Operation, Writer,
    reply::{read, tokens},
    writer::millis,
};
use crate::{
    Error,
    store::{Mode, Outcome, Renew, RenewAnswers, Renewed},
};

/// A renewal under way.
struct Asked {
    request: Renew,
    deadline: Instant,
}

impl Shared {
    /// Renews leases. The renewals of one lane are sent together, and each is answered when its
    /// reply comes.
    pub(in super::super) fn renew(self: &Arc<Self>, requests: Vec<Renew>) -> RenewAnswers {
        let (sender, mut receiver) = mpsc::unbounded_channel();
        let deadline = self.deadline();
        let asked = requests.into_iter();
        let mut asked: Vec<_> = asked.map(|request| Asked { request, deadline }).collect();
        let mut groups: Vec<(Arc<Lane>, Vec<usize>)> = Vec::new();
        for (index, Asked { request, .. }) in asked.iter().enumerate() {
            let Some(lane) = self.topology.lane_of(bucket(&request.key)) else {
                let _ = sender.send((index, Outcome::Refused(explain::no_owner())));
                continue;
            };
            match groups.iter_mut().find(|(it, _)| Arc::ptr_eq(it, &lane)) {
                Some((_, indices)) => indices.push(index),
                None => groups.push((lane, vec![index])),
            }
        }
        for (lane, indices) in groups {
            // The renewals are answered one after another, so each gets more time than the one
            // before.
            let starts = (0..).zip(indices).map(|(behind, index)| {
                let asked = &mut asked[index];
                asked.deadline += self.timeout / 1000 * behind;
                (index, renewal_of(&asked.request), asked.deadline)
            });
            lane.call_all(starts, &sender);
        }
        drop(sender);
        let shared = self.clone();
        let answers = stream::poll_fn(move |cx| receiver.poll_recv(cx));
        let asked: Arc<[Asked]> = asked.into();
        let all = asked.len();
        let answers = answers.map(move |(index, outcome)| {
            let (shared, asked) = (shared.clone(), asked.clone());
            async move { (index, shared.renewed(&asked[index], outcome).await) }
        });
        // Most answers are ready at once. A renewal that a node of a Cluster has redirected delays
        // no other.
        Box::pin(answers.buffer_unordered(all.max(1)))
    }

    /// Reads the outcome of a renewal. In a Cluster, a renewal that was redirected, or not sent, is
    /// made again at the right node, until its deadline.
    async fn renewed(&self, asked: &Asked, mut outcome: Outcome<Value>) -> Renewed {
        let Asked { request, deadline } = asked;
        if let Topology::Cluster(_) = *self.topology
            && match &outcome {
                Outcome::Answered(value) => is_redirect(value),
                Outcome::Refused(_) => Instant::now() < *deadline,
                Outcome::Unknown(_) => false,
            }
        {
            self.topology.mark_stale();
            outcome = self.topology.call(renewal_of(request), *deadline).await;
        }
        let floor = self.floors.of(&request.key);
        match read(outcome, |reply| renewed(reply, floor)) {
            Outcome::Answered(renewed) => renewed,
            Outcome::Refused(error) | Outcome::Unknown(error) => {
                self.topology.mark_stale();
                Renewed::Unknown(error)
            }
        }
    }
}

fn renewal_of(request: &Renew) -> Call {
    Operation::Renew(request.clone()).into()
}

impl Writer<'_> {
    /// Writes a renewal. In a moving slot, a lease that is renewed without further tokens is better
    /// than a lost one. The name that never exists keeps the script of a shared lease from
    /// running there.
    pub(super) fn renew(&mut self, request: &Renew, has_one_key: bool) {
        let is_shared = request.mode != Mode::Exclusive;
        let is_alone = has_one_key || !is_shared && request.refill == 0;
        let all = &[Name::Lock, Name::Queue, Name::Fence, Name::None];
        let (script, names) = match (is_shared, is_alone) {
            (true, true) => (&RENEW_SHARED, 1),
            (true, false) => (&RENEW_SHARED, 4),
            (false, true) => (&RENEW_ALONE, 1),
            (false, false) => (&RENEW, 3),
        };
        self.script(script, &request.key, &all[..names]);
        self.renew_arguments(request, is_alone);
    }

    pub(super) fn renew_arguments(&mut self, request: &Renew, is_alone: bool) {
        if request.mode != Mode::Exclusive {
            self.holder(request.owner, request.mode);
        } else {
            self.lease(request.owner);
        }
        self.number(millis(request.lease));
        if !is_alone {
            self.floor(&request.key);
            self.number(request.refill.into());
        }
    }
}

/// Reads the reply of `renew.lua`, `renew_alone.lua` or `renew_shared.lua`.
fn renewed(reply: Value, floor: Floor<'_>) -> Result<Renewed, Error> {
    let parts = match reply {
        Value::Int(0) => return Ok(Renewed::NotOurs),
        Value::Array(parts) => parts,
        _ => return Err(explain::unexpected_reply()),
    };
    let [Value::Int(others_wait), Value::Int(last), Value::Int(block)] = parts[..] else {
        return Err(explain::unexpected_reply());
    };
    let block = u32::try_from(block).ok();
    Ok(Renewed::Renewed {
        tokens: block.and_then(|block| tokens(last, block, floor)),
        others_wait: others_wait == 1,
    })
}
