//! The claim of a request, for its handler.

use std::sync::Arc;

use super::fingerprint::Fingerprint;
#[cfg(feature = "postgres")]
use super::{record::Answer, settings::Settings};
use crate::LockKey;
#[cfg(feature = "postgres")]
use crate::{
    Error, ErrorKind, LockGuard,
    lease::Lease,
    store::{Checkpoint, Fence, KeepAnswer, Reached},
};

/// The claim of an idempotent request: a request extension, and with the feature `axum` an
/// extractor.
///
/// A handler passes the [`key`](Self::key) on to services that have idempotency keys, too. Or it
/// stores the claim with its answer, in the transaction of its own data, for
/// [`recall`](super::IdempotencyLayer::recall): see [exactly once](crate::guide::exactly_once).
///
/// ```
/// use tower_distributed_lock::idempotency::Claim;
///
/// // With axum. A handler that also serves requests without a key takes an `Option<Claim>`.
/// async fn pay(claim: Claim) -> String {
///     format!("paid, by the request {} of {}", claim.key(), claim.scope())
/// }
/// ```
#[derive(Debug, Clone)]
#[doc(alias("IdempotencyKey", "exactly-once"))]
pub struct Claim {
    pub(super) scope: LockKey,
    pub(super) key: Arc<str>,
    pub(super) fingerprint: Fingerprint,
    pub(super) token: u64,
    #[cfg(feature = "postgres")]
    pub(super) in_database: Option<InDatabase>,
}

/// What a transaction in the database of the claim needs.
#[cfg(feature = "postgres")]
#[derive(Debug, Clone)]
pub(super) struct InDatabase {
    fence: Fence,
    lease: Arc<Lease>,
    settings: Arc<Settings>,
}

impl Claim {
    /// The scope of the key, such as `x-tenant-id=acme`, as the layer's scope function has derived
    /// it. Keys are unique within their scope.
    pub fn scope(&self) -> &str {
        self.scope.as_str()
    }

    /// The `Idempotency-Key`, without quotes.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// A digest of the request, by which another request with the same key is told from a
    /// duplicate: 60 bytes. It depends on what the layer compares.
    pub fn fingerprint(&self) -> &[u8] {
        self.fingerprint.as_bytes()
    }

    /// The fencing token of the claim, as of a [`LockGuard`](crate::LockGuard::token). Zero in
    /// [`recall`](super::IdempotencyLayer::recall), if it asks about a request that was begun
    /// before and holds no claim of its own.
    pub fn token(&self) -> u64 {
        self.token
    }
}

/// For transactions in the database of a [`PostgresStore`](crate::store::PostgresStore) that has
/// the claims: see [exactly once](crate::guide::exactly_once).
#[cfg(feature = "postgres")]
impl Claim {
    pub(super) fn within_database(mut self, settings: &Arc<Settings>, guard: &LockGuard) -> Self {
        self.in_database = guard.fence_by(true).map(|fence| InDatabase {
            fence,
            lease: guard.lease().clone(),
            settings: settings.clone(),
        });
        self
    }

    /// Returns a call for a transaction: from the call to the end of the transaction, nobody else
    /// is granted this claim. See [`Fence`].
    ///
    /// A transaction that ends with [`keep`](Self::keep) needs this call only if it should fail, or
    /// wait for an earlier run of the same claim, before its own statements instead of after them.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`] if the claim is not in a
    /// [`PostgresStore`](crate::store::PostgresStore).
    pub fn fence(&self) -> Result<Fence, Error> {
        Ok(self.in_database()?.fence.clone())
    }

    /// Returns a call for a transaction: the answer is stored with the data of the transaction, or
    /// neither is. See [`KeepAnswer`].
    ///
    /// The handler then returns the same response. Headers that are not replayed are left out, as
    /// always, and so is what layers between the handler and this one would add. Once the
    /// transaction has committed, neither the policy of the layer nor an error, a panic or another
    /// answer of the handler changes what duplicates get. If it does not commit, nothing was
    /// stored, and the layer goes by what the handler returns.
    ///
    /// ```
    /// use axum::http::{Response, StatusCode};
    /// use tower_distributed_lock::idempotency::Claim;
    ///
    /// # type BoxError = Box<dyn std::error::Error + Send + Sync>;
    /// async fn pay(
    ///     claim: &Claim,
    ///     client: &mut tokio_postgres::Client,
    /// ) -> Result<Response<String>, BoxError> {
    ///     let transaction = client.transaction().await?;
    ///     let paid = "INSERT INTO payments (amount) VALUES (5) RETURNING number";
    ///     let number: i64 = transaction.query_one(paid, &[]).await?.get(0);
    ///     let answer = Response::builder().status(StatusCode::CREATED);
    ///     let answer = answer.body(format!("payment {number}"))?;
    ///     claim.keep(&answer)?.run(&transaction).await?;
    ///     transaction.commit().await?;
    ///     Ok(answer)
    /// }
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`] if the claim is not in a
    /// [`PostgresStore`](crate::store::PostgresStore), if the body is larger than
    /// [`max_response`](super::IdempotencyLayer::max_response), or for an informational status.
    pub fn keep(&self, answer: &http::Response<impl AsRef<[u8]>>) -> Result<KeepAnswer, Error> {
        let InDatabase {
            fence,
            lease,
            settings,
        } = self.in_database()?;
        let refused = |message| Err(Error::new(ErrorKind::InvalidConfig, message));
        let (status, body) = (answer.status(), answer.body().as_ref());
        if status.is_informational() {
            return refused(format!("the status {status} is no answer"));
        }
        if body.len() > settings.max_response {
            return refused(format!(
                "an answer of {} bytes is larger than the `max_response` of the layer, {} bytes",
                body.len(),
                settings.max_response
            ));
        }
        let (mut parts, ()) = http::Response::new(()).into_parts();
        parts.status = status;
        parts.headers = answer.headers().clone();
        let body = bytes::Bytes::copy_from_slice(body);
        let answer = Answer::of(&parts, &settings.never_replayed, None, body);
        let (content, retain) = settings.record_of(&answer, self.fingerprint);
        lease.set_kept_by_program();
        Ok(KeepAnswer {
            fence: fence.clone(),
            content,
            retain,
        })
    }

    /// Returns a call for a transaction: how far this request has come is stored with the data of
    /// the transaction, or neither is. See [`Checkpoint`].
    ///
    /// If the request does not end, because its process dies or its handler fails and the policy
    /// frees the key, the next run of the same request finds the checkpoint with
    /// [`reached`](Self::reached), in any process. A request has one checkpoint at a time, for as
    /// long as an answer would be [retained](super::IdempotencyLayer::retain); it ends with the
    /// answer. See [phases](mod@crate::guide::exactly_once#phases).
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`] if the claim is not in a
    /// [`PostgresStore`](crate::store::PostgresStore).
    pub fn checkpoint(&self, point: &str, data: impl AsRef<[u8]>) -> Result<Checkpoint, Error> {
        let InDatabase {
            fence, settings, ..
        } = self.in_database()?;
        Ok(Checkpoint {
            fence: fence.clone(),
            fingerprint: self.digest(),
            point: point.to_owned(),
            data: bytes::Bytes::copy_from_slice(data.as_ref()),
            retain: settings.retain,
        })
    }

    /// Returns a call for a transaction, which [fences](Self::fence) it and returns the last
    /// [`checkpoint`](Self::checkpoint) of this request, if there is one. See [`Reached`].
    ///
    /// Another request with the same key gets none.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`] if the claim is not in a
    /// [`PostgresStore`](crate::store::PostgresStore).
    pub fn reached(&self) -> Result<Reached, Error> {
        Ok(Reached {
            fence: self.in_database()?.fence.clone(),
            fingerprint: self.digest(),
        })
    }

    fn digest(&self) -> bytes::Bytes {
        bytes::Bytes::copy_from_slice(self.fingerprint())
    }

    fn in_database(&self) -> Result<&InDatabase, Error> {
        self.in_database.as_ref().ok_or_else(|| {
            Error::new(
                ErrorKind::InvalidConfig,
                "the claim is not in a `PostgresStore`, so a transaction cannot be fenced by it or keep its answer: \
                 see `IdempotencyLayer::recall` for other stores",
            )
        })
    }
}
