//! To renew leases: `renew.lua`; `renew_alone.lua` without further tokens, or with one key;
//! `renew_shared.lua` for the other modes.
//!
//! | reply | meaning |
//! |---|---|
//! | `[1, 75, 16]` | renewed; others wait; the last token of the refill, and the number of its tokens |
//! | `0` | not ours |

use std::sync::Arc;

use futures_util::stream::FuturesUnordered;
use redis::Value;
use tokio::time::Instant;

use super::{
    super::{
        Shared, explain,
        floors::Floor,
        names::Name,
        script::{RENEW, RENEW_ALONE, RENEW_SHARED},
        topology::Topology,
    },
    Call, Operation, Writer,
    reply::{read, tokens},
    writer::millis,
};
use crate::{
    Error,
    store::{Mode, Outcome, Renew, RenewAnswers, Renewed},
};

impl Shared {
    /// Renews leases. Each renewal is answered when its reply comes.
    pub(in super::super) fn renew(self: &Arc<Self>, requests: Vec<Renew>) -> RenewAnswers {
        let first_deadline = self.deadline();
        let asked = (0..).zip(requests).map(|(behind, request)| {
            // The renewals are answered one after another, so each gets more time than the one
            // before.
            let deadline = first_deadline + self.timeout / 1000 * behind;
            let (shared, key) = (self.clone(), request.key.clone());
            let call: Call = Operation::Renew(request).into();
            let called = self.topology.call(call.clone(), deadline);
            async move {
                let mut outcome = called.await;
                // The renewal was not sent, because the node of a Cluster has gone.
                if let (Topology::Cluster(_), Outcome::Refused(_)) = (&*shared.topology, &outcome)
                    && Instant::now() < deadline
                {
                    outcome = shared.topology.call(call, deadline).await;
                }
                let floor = shared.floors.of(&key);
                let answer = match read(outcome, |reply| renewed(reply, floor)) {
                    Outcome::Answered(renewed) => renewed,
                    Outcome::Refused(error) | Outcome::Unknown(error) => {
                        shared.topology.mark_stale();
                        Renewed::Unknown(error)
                    }
                };
                (behind as usize, answer)
            }
        });
        Box::pin(asked.collect::<FuturesUnordered<_>>())
    }
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
