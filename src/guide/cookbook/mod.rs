//! Recipes.
//!
//! | recipe | about |
//! |---|---|
//! | [A full axum service](services#a-full-axum-service) | trace, compression, CORS, timeout, authentication, idempotency and lock, in the right order |
//! | [The tenant](services#the-tenant-comes-from-the-authentication) | from the authentication, not from a header |
//! | [Two accounts](services#two-accounts) | several keys for one request, without a deadlock |
//! | [A key from the body](services#a-key-from-the-body) | read the body before the lock |
//! | [tonic](services#tonic) | gRPC services |
//! | [hyper](services#hyper) | without a framework |
//! | [Graceful shutdown](services#graceful-shutdown) | with axum |
//! | [Readers and writers, permits](super::modes) | a chapter of its own: sharing, downgrade, limits for a whole fleet |
//! | [Fencing in SQL](work#fencing-in-postgresql-and-sqlite) | PostgreSQL and SQLite, one statement each |
//! | [Webhooks and queue consumers](work#webhooks-and-queue-consumers) | messages that are delivered twice |
//! | [A job that runs once in a fleet](work#a-job-that-runs-once-in-a-fleet) | the same schedule on every replica |
//! | [Leader-like work](work#leader-like-work) | one replica works, the others stand by |
//! | [Your own client or pool](redis#the-settings-of-your-own-client-or-pool) | the same Redis settings for both |
//! | [A private certificate authority](redis#a-private-certificate-authority) | TLS with certificates of your own |
//! | [Credentials that rotate](redis#credentials-that-rotate) | a provider instead of a fixed password |
//! | [Testing the loss of a lease](work#testing-the-loss-of-a-lease) | on paused time |

pub mod redis;
pub mod services;
pub mod work;
