//! Requests that were begun by a process that has died, and the operator who knows how they ended.
//!
//! ```text
//! at_most_once, 24 h, a usual lease of 30 s
//!  0 s   claimed for 24 h                      left: 24 h
//! 10 s   extended to 24 h, again and again     left: 24 h
//! 14 s   the process dies                      left: 23:59:56
//! 40 s   nobody has extended for 30 s          left: 23:59:30    from here on: outcome unknown
//! ```

use std::time::Duration;

use bytes::Bytes;
use http::Response;

use super::{
    fingerprint::Fingerprint,
    record::{Answer, Outcome},
};
use crate::{
    Error, ErrorKind, LockKey, Locks,
    store::{Holder, Owner, Released},
    trace,
};

/// The owner and the fingerprint of a request that runs at most once, if the process that holds its
/// key has not extended the claim for the time of a usual lease.
pub(crate) fn abandoned(holder: &Holder) -> Option<(Owner, Fingerprint)> {
    let (fingerprint, alive) = Fingerprint::of_claim(holder.fingerprint.as_deref()?)?;
    (holder.remaining < alive?).then_some((holder.owner, fingerprint))
}

impl Locks {
    /// Writes the answer of a request that a dead process has begun, in the place of its claim.
    /// Duplicates of the request get this answer for `retain`. For operators who have found out
    /// how the request ended.
    ///
    /// Returns `false`, and changes nothing, unless the key is that of a request which
    /// [`at_most_once`](crate::IdempotencyLayer::at_most_once) keeps from being begun again, and
    /// whose process has died. A request that was not done can be begun again after
    /// [`force_release`](Locks::force_release).
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let locks = tower_distributed_lock::Locks::in_memory();
    /// use std::time::Duration;
    /// use http::Response;
    ///
    /// // The key is that of the log and of the admin page.
    /// let key = "idempotency,x-tenant-id=acme,key=8e03978e";
    /// let paid = Response::builder().status(201).body("paid, receipt 17")?;
    /// if !locks.settle(key, paid, Duration::from_secs(24 * 3600)).await? {
    ///     println!("there is nothing to settle: the request runs, or has ended");
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// - [`ErrorKind::InvalidKey`] for a text that is no key.
    /// - [`ErrorKind::InvalidConfig`] for an answer that cannot be replayed, because its status is
    ///   informational, and for a `retain` of zero, after which the request would run again.
    /// - [`ErrorKind::Unreachable`] when the store does not answer. The answer may be written.
    ///
    /// # Cancel safety
    ///
    /// The answer may or may not be written when the future is dropped.
    pub async fn settle(
        &self,
        key: impl TryInto<LockKey, Error: Into<Error>>,
        answer: Response<impl Into<Bytes>>,
        retain: Duration,
    ) -> Result<bool, Error> {
        let key = key.try_into().map_err(Into::into)?;
        self.settle_if(key, None, answer.map(Into::into), retain)
            .await
    }

    /// As [`settle`](Self::settle). If an owner is expected, only the claim of that owner is
    /// settled.
    pub(crate) async fn settle_if(
        &self,
        key: LockKey,
        expected: Option<Owner>,
        answer: Response<Bytes>,
        retain: Duration,
    ) -> Result<bool, Error> {
        if answer.status().is_informational() {
            return Err(invalid("an informational status is no answer"));
        }
        if retain.is_zero() {
            return Err(invalid("an answer that is not kept settles nothing"));
        }
        let seen = self.inspect(key.clone()).await?;
        let claim = seen.holder().and_then(abandoned);
        let is_expected = |owner| expected.is_none_or(|expected| expected == owner);
        let Some((owner, fingerprint)) = claim.filter(|(owner, _)| is_expected(*owner)) else {
            return Ok(false);
        };
        let (parts, body) = answer.into_parts();
        let outcome = Outcome::Answer(Box::new(Answer::of(&parts, &[], None, body)));
        let record = (outcome.encode(fingerprint), retain);
        // Only in the place of this claim: its process may be alive after all, and end it now.
        let is_settled = match self.record_for(&key, owner, record).await? {
            Released::Freed => true,
            Released::NotOurs | Released::NotYet => false,
        };
        if is_settled {
            trace::settled(key.as_str());
        }
        Ok(is_settled)
    }
}

fn invalid(why: &'static str) -> Error {
    Error::new(ErrorKind::InvalidConfig, why)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{
        http::idempotency::settings::Settings,
        store::{Instance, Mode},
    };

    #[test]
    fn a_claim_is_abandoned_when_nobody_has_extended_it_for_a_usual_lease() {
        let second = Duration::from_secs(1);
        let locks = Locks::builder(crate::store::MemoryStore::new()).lease(30 * second);
        let scope = Arc::new(LockKey::new("scope").unwrap());
        let mut settings = Settings::new(locks.build().unwrap(), scope);
        let is_abandoned = |settings: &Settings, left: Duration| {
            let owner = Owner {
                instance: Instance::new(),
                attempt: 1,
            };
            let found = abandoned(&Holder {
                owner,
                mode: Mode::Exclusive,
                remaining: left,
                fingerprint: Some(settings.claimed(Fingerprint::ONES)),
                label: None,
            });
            assert!(found.is_none_or(|found| found == (owner, Fingerprint::ONES)));
            found.is_some()
        };
        settings.retain = 100 * second;
        assert!(!is_abandoned(&settings, Duration::ZERO));
        settings.at_most_once = true;
        assert!(!is_abandoned(&settings, 70 * second));
        assert!(is_abandoned(&settings, 69 * second));
        // A claim that is no longer than a lease ends by itself.
        settings.retain = second;
        assert!(!is_abandoned(&settings, Duration::ZERO));
    }
}
