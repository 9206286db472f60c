//! Prolonging leases on a majority of nodes, and taking part in the others again.
//!
//! 1. A lease is renewed when a majority holds it; by so many it is lost that say *not ours*; else there is no
//!    telling.
//! 2. A node that is missing is healed: asked for the lease as if it were new. Only before the lease's time is over:
//!    until then nobody else can have a majority, because nobody gets one with nodes that may have forgotten.
//! 3. A healed node counts if its answer came before that time too, and if the lease was not released meanwhile. If
//!    not, it is released.

use std::{sync::Arc, time::Duration};

use futures_util::{StreamExt, future::join_all};
use tokio::time::Instant;

use super::{
    Shared,
    attempts::{Is, Seat},
    ballot::{majority, no_quorum},
    round::{Round, detach},
};
use crate::{
    Error,
    store::{
        Acquire, Acquired, Ending, Mode, Owner, Queueing, Release, Renew, RenewAnswers, Renewed,
        StoreFuture,
    },
};

/// How many leases are healed at a time, when that is not urgent.
const HEALED_AT_ONCE: usize = 32;

/// What the nodes said about one lease.
#[derive(Default)]
struct Tally {
    /// Nodes where it is ours.
    ours: usize,
    not_ours: usize,
    others_wait: bool,
    /// Where a refill came from.
    counters: Vec<(usize, u64)>,
    /// Nodes where it is missing, and which can be reached.
    gaps: Vec<usize>,
    error: Option<Error>,
}

impl Shared {
    pub(super) async fn renew(self: Arc<Self>, requests: Vec<Renew>) -> Vec<Renewed> {
        let sent = Instant::now();
        let requests: Arc<[Renew]> = requests.into();
        for request in &*requests {
            self.note_lease(request.lease);
        }
        let mut tallies = self.ask_to_renew(&requests).await;
        let answers = requests.iter().zip(&mut tallies);
        let answers = answers.map(|(request, tally)| self.judge(request, tally, sent));
        let answers = join_all(answers).await;
        self.heal_in_background(&requests, tallies);
        answers
    }

    /// One batch for each node, of the leases that it has a part in.
    async fn ask_to_renew(&self, requests: &[Renew]) -> Vec<Tally> {
        let seats: Vec<Vec<Seat>> = requests
            .iter()
            .map(|request| self.attempts.seats(&request.key, request.owner))
            .collect();
        let held_at = |node: usize| -> Vec<usize> {
            let held = |at: &usize| seats[*at][node].is == Is::Held;
            (0..requests.len()).filter(held).collect()
        };
        let batches: Vec<Vec<usize>> = (0..self.nodes.len()).map(held_at).collect();
        let renewing = batches
            .iter()
            .enumerate()
            .filter(|(_, batch)| !batch.is_empty());
        let renewing = renewing.map(|(node, batch)| {
            let renew = |at: &usize| Renew {
                owner: seats[*at][node].owner,
                ..requests[*at].clone()
            };
            (
                node,
                whole(self.nodes[node].renew(batch.iter().map(renew).collect())),
            )
        });
        let renewing = Round::start(renewing, self.node_timeout).await;

        let mut tallies: Vec<Tally> = requests.iter().map(|_| Tally::default()).collect();
        let mut silent: Vec<usize> = (0..self.nodes.len()).collect();
        silent.retain(|node| !batches[*node].is_empty());
        for (node, answers) in renewing.all().await {
            silent.retain(|silent| *silent != node);
            for (at, answer) in batches[node].iter().zip(answers) {
                let name = seats[*at][node].owner;
                if matches!(answer, Renewed::NotOurs) {
                    let Renew { key, owner, .. } = &requests[*at];
                    self.attempts.miss(key, *owner, node, name);
                }
                tallies[*at].add(node, answer);
            }
        }
        for (tally, seats) in tallies.iter_mut().zip(&seats) {
            let away = seats
                .iter()
                .enumerate()
                .filter(|(_, seat)| seat.is == Is::Away);
            tally.gaps.extend(away.map(|(node, _)| node));
            tally.gaps.retain(|node| !silent.contains(node));
        }
        tallies
    }

    async fn judge(&self, request: &Renew, tally: &mut Tally, sent: Instant) -> Renewed {
        let majority = majority(self.nodes.len());
        if tally.not_ours >= majority {
            tally.gaps.clear();
            return Renewed::NotOurs;
        }
        if tally.ours < majority && tally.ours + tally.gaps.len() >= majority {
            let gaps = std::mem::take(&mut tally.gaps);
            let healing = gaps.iter().map(|node| self.heal(request, *node));
            for (node, healed) in gaps.iter().zip(join_all(healing).await) {
                match healed {
                    Ok(Some(counter)) => {
                        tally.ours += 1;
                        tally.counters.push((*node, counter));
                    }
                    Ok(None) => {}
                    Err(error) => tally.error = Some(error),
                }
            }
        }
        if tally.ours < majority {
            let silent = self.nodes.len() - tally.ours - tally.not_ours;
            return Renewed::Unknown(no_quorum(self.nodes.len(), silent, 0, tally.error.take()));
        }
        if let Some(until) = self.valid_until(sent, request.lease) {
            self.attempts.confirm(&request.key, request.owner, until);
        }
        Renewed::Renewed {
            tokens: self.refill(request, &tally.counters).await,
            others_wait: tally.others_wait,
        }
    }

    /// Takes part in the lease at a node again. Returns its counter if that has come about.
    async fn heal(&self, request: &Renew, node: usize) -> Result<Option<u64>, Error> {
        let Renew { key, owner, .. } = request;
        let Some((name, note)) = self.attempts.ask_for(key, *owner, node, Instant::now()) else {
            return Ok(None);
        };
        let asking = self.nodes[node].acquire(Acquire {
            key: key.clone(),
            owner: name,
            lease: request.lease,
            block: request.refill.max(1),
            queueing: Queueing::Skip,
            mode: Mode::Exclusive,
            fingerprint: note,
        });
        let mut asking = Round::start([(node, asking)], self.node_timeout).await;
        match asking.next().await {
            Some((_, Ok(Acquired::Granted(grant)))) => {
                if self
                    .attempts
                    .heal(key, *owner, (node, name), Instant::now())
                {
                    return Ok(grant.tokens.last());
                }
                self.give_up(request, node, name).await;
                Ok(None)
            }
            Some((_, Ok(_))) => {
                self.attempts.miss(key, *owner, node, name);
                Ok(None)
            }
            Some((_, Err(error))) => {
                self.attempts.rename(key, *owner, node, name);
                Err(error)
            }
            None => {
                self.give_up(request, node, name).await;
                Err(no_quorum(self.nodes.len(), 1, 0, None))
            }
        }
    }

    /// Gives a node up for which a lease was asked too late. It works in order: this comes after what was asked.
    async fn give_up(&self, request: &Renew, node: usize, name: Owner) {
        let Renew { key, owner, .. } = request;
        self.attempts.rename(key, *owner, node, name);
        let releasing = self.nodes[node].start_release(Release {
            key: key.clone(),
            owner: name,
            ending: Ending::Free,
            owed_for: self.longest_lease(),
        });
        drop(Round::start([(node, releasing)], Duration::ZERO).await); // on its way, in the background
    }

    /// Leases that have a majority get the rest when there is time for it.
    fn heal_in_background(self: &Arc<Self>, requests: &Arc<[Renew]>, tallies: Vec<Tally>) {
        let gaps: Vec<(usize, usize)> = tallies
            .iter()
            .enumerate()
            .flat_map(|(at, tally)| tally.gaps.iter().map(move |node| (at, *node)))
            .collect();
        if gaps.is_empty() {
            return;
        }
        let (store, requests) = (self.clone(), requests.clone());
        detach(async move {
            let Some(_one_at_a_time) = store.healing.try_lock().ok() else {
                return;
            };
            for gaps in gaps.chunks(HEALED_AT_ONCE) {
                let heal = |(at, node): &(usize, usize)| store.heal(&requests[*at], *node);
                let healed = join_all(gaps.iter().map(heal)).await;
                if healed.iter().any(Result::is_err) {
                    return; // a node is gone again; the next renewal tries the rest
                }
            }
        });
    }
}

/// All answers of a batch, in the order of their requests.
fn whole(answers: RenewAnswers) -> StoreFuture<Vec<Renewed>> {
    Box::pin(async move {
        let mut answers: Vec<(usize, Renewed)> = answers.collect().await;
        answers.sort_unstable_by_key(|(index, _)| *index);
        answers.into_iter().map(|(_, answer)| answer).collect()
    })
}

impl Tally {
    fn add(&mut self, node: usize, answer: Renewed) {
        match answer {
            Renewed::Renewed {
                tokens,
                others_wait,
            } => {
                self.ours += 1;
                self.others_wait |= others_wait;
                let counter = tokens.and_then(|tokens| tokens.last());
                self.counters.extend(counter.map(|counter| (node, counter)));
            }
            Renewed::NotOurs => {
                self.not_ours += 1;
                self.gaps.push(node);
            }
            Renewed::Unknown(error) => self.error = Some(error),
        }
    }
}
