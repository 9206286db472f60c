//! Asking the nodes of a quorum for a key.
//!
//! Attempts that ask at the same time may split the vote, so that none of them has a majority. Each
//! node has its own queue, and the queues differ once a vote was split or a node was away. From
//! then on every free key is offered to several attempts, which would split every vote again.
//! Therefore one node leads, the first one that answers in time (for this key, without an error),
//! and attempts are served in the order of the leading node's queue:
//!
//! 1. A free key wakes the head of the leading node's queue at once, and the heads of other queues
//!    only after a head start (`hints`).
//! 2. The attempt that has the leading node's grant leads. The leading attempt keeps its grants,
//!    and asks the other nodes again, past their queues.
//! 3. Every other attempt gives way: the attempt returns its grants at once, and is held. If it
//!    waits, it asks again when the leading node sends a hint, or after a pause of its caller.
//!
//! Safety does not depend on which node leads. Instances may disagree while some of them have not
//! noticed that a node is away or late. Votes are then split, and attempts give way, until the
//! instances agree.

use std::{
    future::{pending, ready},
    sync::Arc,
    time::Duration,
};

use super::{Shared, attempts::Attempt, ballot::Verdict, vote::Vote};
use crate::{
    Error, ErrorKind,
    store::{Acquire, Acquired, Grant, Outcome, Queueing, StoreFuture},
    sync::random,
    time::{Instant, timeout},
};

/// How many votes a leading attempt takes part in while they are split.
const VOTES: u32 = 12;
/// The same while a majority refuses.
const VOTES_AGAINST_A_MAJORITY: u32 = 4;
/// About how long a waiting attempt that has given way pauses without a hint.
const GIVING_WAY: Duration = Duration::from_millis(50);

/// An attempt under way. Unless the attempt is answered without an error, dropping this value ends
/// the attempt on all nodes, and leaves neither a lease nor a place in a queue.
struct Entered {
    store: Arc<Shared>,
    attempt: Arc<Attempt>,
    request: Acquire,
    is_answered: bool,
}

impl Drop for Entered {
    fn drop(&mut self) {
        if !self.is_answered {
            self.store.abandon(&self.attempt);
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
            let message = "a quorum has no permits, because holders of different majorities would together exceed the number: use a store on one server for permits";
            let error = Error::new(ErrorKind::InvalidConfig, message);
            return Box::pin(ready(Outcome::Refused(error)));
        }
        let asked = Instant::now();
        self.note_lease(request.lease);
        let (attempt, was_known) = self.attempts.enter(&request, asked);
        let vote = self.open_vote(&attempt, &request, request.queueing);
        let entered = Entered {
            store: self.clone(),
            attempt,
            request,
            is_answered: false,
        };
        Box::pin(entered.run(vote, asked, was_known))
    }

    /// Ends an attempt that has failed, or that does not wait. Returns the nodes that had granted a
    /// lease.
    fn abandon(&self, attempt: &Arc<Attempt>) -> Vec<usize> {
        let parts = self.give_back(attempt, |_, _| true);
        self.attempts.remove(attempt);
        let leases = parts.iter().filter(|(_, part)| part.is_held());
        leases.map(|(node, _)| *node).collect()
    }
}

impl Entered {
    async fn run(mut self, vote: Vote, asked: Instant, was_known: bool) -> Outcome<Acquired> {
        let decided = self.vote_until_decided(vote, asked).await;
        self.is_answered = decided.is_ok();
        match decided {
            Ok(acquired) => Outcome::Answered(acquired),
            // The nodes end what the attempt leaves behind. Without places from before, the attempt
            // has nothing, and the caller nothing to end.
            Err(error) if !was_known => Outcome::Refused(error),
            Err(error) => Outcome::Unknown(error),
        }
    }

    /// Votes until the key is granted, until another attempt has the key, or until this attempt
    /// gives way for now.
    async fn vote_until_decided(&self, mut vote: Vote, asked: Instant) -> Result<Acquired, Error> {
        let (store, attempt, request) = (&self.store, &self.attempt, &self.request);
        let waits = matches!(request.queueing, Queueing::Wait { .. });
        // Enough of the lease must be left after the last vote.
        let limit = store.node_timeout.min(request.lease / 4);
        let mut votes = 0;
        loop {
            store.count(&mut vote, request).await;
            store.check_servers()?;
            let (mut held, split) = match vote.ballot.verdict() {
                Verdict::Granted => return self.granted(vote, asked).await,
                Verdict::Held { held, split } => (held, split),
                Verdict::Recorded(record) => {
                    // Nodes where the attempt had a lease have missed or lost the record.
                    let missing = store.abandon(attempt);
                    store.copy_record(attempt, record.clone(), missing);
                    return Ok(Acquired::Recorded(record));
                }
                Verdict::Failed(error) => return Err(error),
            };
            votes += 1;
            let is_refused = vote.ballot.is_held();
            // A majority that refuses may belong to a holder, which needs the other nodes back.
            // Only an attempt that may be next keeps its grants in that case, and not for long.
            let leads = split && (waits || !is_refused) && store.has_leading_grant(&vote);
            let most_votes = if is_refused {
                VOTES_AGAINST_A_MAJORITY
            } else {
                VOTES
            };
            if !leads || votes == most_votes || asked.elapsed() > store.node_timeout + limit {
                if waits {
                    store.give_back(attempt, |_, part| part.is_held());
                    attempt.lose_vote();
                    store.hear_the_rest(vote, attempt);
                } else {
                    drop(vote);
                    store.abandon(attempt);
                }
                if split && !is_refused {
                    // The leading attempt may fail, and then no node has a lease whose end could be
                    // waited for.
                    let pause = GIVING_WAY.mul_f64(0.5 + random());
                    held.remaining = held.remaining.min(pause);
                }
                return Ok(Acquired::Held(held));
            }
            // Other nodes may have refused a waiting attempt only because of their queues.
            let (pause, queueing) = if waits {
                (back_off(vote.took) * u32::from(votes > 1), Queueing::Skip)
            } else {
                (back_off(vote.took), request.queueing)
            };
            drop(vote);
            let _ = timeout(pause.min(limit), pending::<()>()).await;
            vote = store.open_vote(attempt, request, queueing);
        }
    }

    /// The answer to a vote that was granted: if the tokens agree, and if enough of the lease is
    /// left.
    async fn granted(&self, vote: Vote, asked: Instant) -> Result<Acquired, Error> {
        let (store, lease) = (&self.store, self.request.lease);
        let tokens = vote.ballot.tokens();
        let tokens = store.agree(&self.request.key, &tokens).await?;
        let until = store.valid_until(asked, lease);
        let until = until.ok_or_else(|| too_late(asked, lease))?;
        self.attempt.confirm(until);
        let grant = Grant {
            tokens,
            count: 1,
            others_wait: vote.ballot.others_wait(),
        };
        store.hear_the_rest(vote, &self.attempt);
        Ok(Acquired::Granted(grant))
    }
}

/// A random pause of up to twice `took`, so that contending attempts get out of step.
fn back_off(took: Duration) -> Duration {
    ((took + Duration::from_millis(1)) * 2).mul_f64(random())
}

fn too_late(asked: Instant, lease: Duration) -> Error {
    let took = asked.elapsed();
    let message = format!(
        "the nodes took {took:?} to grant a lease of {lease:?}: too little of the lease was left"
    );
    Error::new(ErrorKind::Unreachable, message)
}
