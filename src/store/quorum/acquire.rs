//! Asking the nodes of a quorum for a key.
//!
//! Attempts that ask at the same time may split the vote, so that none of them has a majority. Each node has its own
//! queue, and the queues differ once a vote was split or a node was away. From then on every free key is offered to
//! several attempts, which would split every vote again. Therefore one node leads, the first one that answers in time (for
//! this key, without an error), and attempts are served in the order of the leading node's queue:
//!
//! 1. A free key wakes the head of the leading node's queue at once, and the heads of other queues only after a head
//!    start (`hints`).
//! 2. The attempt that has the leading node's grant leads. The leading attempt keeps its grants, and asks the other
//!    nodes again, past their queues.
//! 3. Every other attempt gives way: the attempt returns its grants at once. If the attempt waits, it asks again when
//!    the leading node sends a hint, or after a pause of its caller; otherwise it takes part in a few more votes.
//!
//! Safety does not depend on which node leads. Instances may disagree while some of them have not noticed that a node
//! is away or late. Votes are then split, and attempts give way, until the instances agree.

use std::{future::pending, sync::Arc, time::Duration};

use bytes::Bytes;

use super::{Shared, attempts::can_be_named, ballot::Verdict, vote::Vote};
use crate::{
    Error, ErrorKind,
    store::{Acquire, Acquired, Grant, Held, Outcome, Owner, Queueing, StoreFuture, Tokens},
    sync::random,
    time::{Instant, later, timeout},
};

/// How many votes one call takes part in while the votes are split.
const VOTES: u32 = 4;
/// How many votes one call takes part in while it leads in all of them and no majority refuses.
const VOTES_OF_A_LEADER: u32 = 12;
/// About how long a waiting attempt that has given way pauses without a hint.
const GIVING_WAY: Duration = Duration::from_millis(50);

/// The outcome of one vote.
enum Counted {
    Settled(Result<Acquired, Error>),
    Held { held: Held, split: bool },
}

/// An attempt under way. Unless the attempt is answered without an error, dropping this value ends the attempt on all
/// nodes, and leaves neither a lease nor a place in a queue.
struct Entered {
    store: Arc<Shared>,
    request: Acquire,
    is_answered: bool,
}

impl Drop for Entered {
    fn drop(&mut self) {
        if !self.is_answered {
            self.store.abandon(&self.request);
        }
    }
}

impl Shared {
    /// Asks all nodes now.
    pub(super) fn start_acquire(
        self: &Arc<Self>,
        request: Acquire,
    ) -> StoreFuture<Outcome<Acquired>> {
        if request.mode.is_permit() {
            return Box::pin(std::future::ready(Outcome::Refused(no_permits())));
        }
        if !can_be_named(request.owner) {
            let message =
                "an instance on a quorum is limited to 2^48 attempts: create a new `Locks`";
            let refused = Outcome::Refused(Error::new(ErrorKind::InvalidConfig, message));
            return Box::pin(std::future::ready(refused));
        }
        let asked = Instant::now();
        self.note_lease(request.lease);
        let (asking, was_known) = self.attempts.enter(&request, &self.nodes, asked);
        let vote = self.open_vote(&request, request.queueing, asking);
        let mut entered = Entered {
            store: self.clone(),
            request,
            is_answered: false,
        };
        Box::pin(async move {
            match entered.vote_until_decided(vote, asked).await {
                Ok(acquired) => {
                    entered.disarm();
                    Outcome::Answered(acquired)
                }
                // The nodes end what the attempt leaves behind. Without places from before, the attempt has nothing,
                // and the caller nothing to end.
                Err(error) if !was_known => Outcome::Refused(error),
                Err(error) => Outcome::Unknown(error),
            }
        })
    }

    /// Ends an attempt that failed.
    fn abandon(&self, request: &Acquire) {
        if let Some(parts) = self.attempts.remove(&request.key, request.owner) {
            self.leave(request, parts.iter().enumerate());
        }
    }
}

impl Entered {
    /// A method, because the future would take only a copy of the field.
    fn disarm(&mut self) {
        self.is_answered = true;
    }

    /// Votes until the key is granted, until another attempt has the key, or until this attempt gives way for now.
    async fn vote_until_decided(&self, mut vote: Vote, asked: Instant) -> Result<Acquired, Error> {
        let (store, request) = (&self.store, &self.request);
        let (mut first_ended, mut votes) = (None, 0);
        // Enough of the lease must be left after the last vote.
        let limit = store.node_timeout.min(request.lease / 4);
        loop {
            let (held, split) = match self.vote(&mut vote, asked).await {
                Counted::Settled(answer) => {
                    if matches!(answer, Ok(Acquired::Granted(_))) {
                        store.hear_the_rest(vote, request);
                    }
                    return answer;
                }
                Counted::Held { held, split } => (held, split),
            };
            votes += 1;
            let now = Instant::now();
            let is_time_left = now - *first_ended.get_or_insert(now) < limit;
            let is_refused = vote.ballot.is_held();
            let keeps_grants = split && self.keeps_grants(&vote);
            let most_votes = self.most_votes(keeps_grants, is_refused);
            let votes_again = split && is_time_left && votes < most_votes;
            let pause = match keeps_grants {
                // Other nodes may have refused only because of their queues.
                true if votes == 1 && self.waits() => Duration::ZERO,
                true => back_off(vote.took),
                false => back_off(vote.took * (1 << votes)),
            };
            store.end_lost_vote(vote, request, keeps_grants && votes_again);
            if !votes_again {
                store.stay_or_go(request);
                let gives_way = split && !is_refused;
                return Ok(Acquired::Held(if gives_way { soon(held) } else { held }));
            }
            let _ = timeout(pause.min(limit), pending::<()>()).await;
            let queueing = match self.waits() {
                true => Queueing::Skip,
                false => request.queueing,
            };
            vote = match store.attempts.ask_again(&request.key, request.owner) {
                Some(asking) => store.open_vote(request, queueing, asking),
                None => return Ok(Acquired::Held(held)), // released in the meantime
            };
        }
    }

    /// Whether the attempt keeps places in the nodes' queues.
    fn waits(&self) -> bool {
        matches!(self.request.queueing, Queueing::Wait { .. })
    }

    /// Whether the attempt keeps its grants while it asks again. A majority that refuses may belong to a holder,
    /// which needs the other nodes back. Only an attempt that may be next keeps its grants in that case, and not for
    /// long.
    fn keeps_grants(&self, vote: &Vote) -> bool {
        self.store.has_leading_grant(vote) && (self.waits() || !vote.ballot.is_held())
    }

    /// How many votes the call takes part in before it gives way.
    fn most_votes(&self, keeps_grants: bool, is_refused: bool) -> u32 {
        match keeps_grants {
            true if !is_refused => VOTES_OF_A_LEADER,
            false if self.waits() => 1,
            _ => VOTES,
        }
    }

    /// Counts one vote. A granted vote is settled only when the tokens agree.
    async fn vote(&self, vote: &mut Vote, asked: Instant) -> Counted {
        let (store, request) = (&self.store, &self.request);
        store.count(vote, request).await;
        if let Err(error) = store.check_servers() {
            return Counted::Settled(Err(error));
        }
        match vote.ballot.verdict() {
            Verdict::Granted => {
                let (tokens, others_wait) = (vote.ballot.tokens(), vote.ballot.others_wait());
                let granted = store.granted(request, asked, &tokens).await;
                Counted::Settled(granted.map(|tokens| {
                    Acquired::Granted(Grant {
                        tokens,
                        count: 1,
                        others_wait,
                    })
                }))
            }
            Verdict::Held { held, split } => Counted::Held { held, split },
            Verdict::Recorded(record) => {
                store.recorded(vote, request, record.clone());
                Counted::Settled(Ok(Acquired::Recorded(record)))
            }
            Verdict::Failed(error) => Counted::Settled(Err(error)),
        }
    }
}

impl Shared {
    /// Returns the tokens of a lease that a majority has granted, if enough of the lease is left.
    async fn granted(
        &self,
        request: &Acquire,
        asked: Instant,
        tokens: &[(usize, Tokens)],
    ) -> Result<Tokens, Error> {
        let tokens = self.agree(&request.key, tokens).await?;
        let until = self
            .valid_until(asked, request.lease)
            .ok_or_else(|| too_late(asked, request.lease))?;
        self.attempts.confirm(&request.key, request.owner, until);
        Ok(tokens)
    }

    /// Ends an attempt that found a record. Nodes that granted the key have missed or lost the record, and get the
    /// record in the place of the lease.
    fn recorded(self: &Arc<Self>, vote: &Vote, request: &Acquire, record: Bytes) {
        let Some(parts) = self.attempts.remove(&request.key, request.owner) else {
            return; // released in the meantime
        };
        let lacks_record = |node: usize| {
            let mut granted = vote.ballot.granted();
            parts[node].is_held() && granted.any(|granted| granted == node)
        };
        let (missing, others): (Vec<_>, Vec<_>) =
            (parts.iter().enumerate()).partition(|(node, _)| lacks_record(*node));
        self.leave(request, others.into_iter());
        let missing = missing.into_iter().map(|(node, part)| (node, part.name));
        let missing: Vec<(usize, Owner)> = missing.collect();
        if !missing.is_empty() {
            let copying = self.clone().copy_record(request.clone(), record, missing);
            self.home.spawn(copying);
        }
    }

    /// Keeps the entry of an attempt that waits, and ends any other.
    fn stay_or_go(&self, request: &Acquire) {
        match request.queueing {
            Queueing::Wait { deadline, .. } => {
                let until = later(Instant::now(), deadline);
                self.attempts.keep(&request.key, request.owner, until);
            }
            _ => self.abandon(request),
        }
    }
}

/// A random pause of up to twice `took`, so that contending attempts get out of step.
fn back_off(took: Duration) -> Duration {
    ((took + Duration::from_millis(1)) * 2).mul_f64(random())
}

/// Shortens the pause of an attempt that has given way: the leading attempt may fail, and then no node has a lease
/// whose end could be waited for.
fn soon(held: Held) -> Held {
    let pause = GIVING_WAY.mul_f64(0.5 + random());
    Held {
        remaining: held.remaining.min(pause),
        ..held
    }
}

fn too_late(asked: Instant, lease: Duration) -> Error {
    let took = asked.elapsed();
    let message = format!(
        "the nodes took {took:?} to grant a lease of {lease:?}: too little of the lease was left"
    );
    Error::new(ErrorKind::Unreachable, message)
}

fn no_permits() -> Error {
    Error::new(
        ErrorKind::InvalidConfig,
        "a quorum has no permits, because holders of different majorities would together exceed the number: use a store on one server for permits",
    )
}
