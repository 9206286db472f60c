// The README's pictures as data URIs, and its links as paths: rustdoc does not copy files of the
// repository, and the first definition of a link counts.
#![cfg_attr(not(doctest), doc = include_str!("../docs/request.md"))]
#![cfg_attr(not(doctest), doc = include_str!("../docs/results.md"))]
//! [page]: admin
//! [which_lock]: guide::which_lock
//! [guarantees]: guide::guarantees
//! [services]: guide::services
//! [work]: guide::work
//! [testing]: guide::testing
//! [from_set_nx]: guide::from_set_nx
//! [exactly_once]: guide::exactly_once
//! [postgres]: mod@guide::postgres
//! [redis]: guide::redis
//! [operating]: guide::operating
//! [metrics]: guide::metrics
//! [comparison]: guide::comparison
#![doc = include_str!("../README.md")]
#![cfg_attr(docsrs, feature(doc_cfg))]

#[cfg(feature = "admin")]
pub mod admin;
pub mod guide;
pub mod key;
pub mod store;

#[cfg(all(test, shuttle))]
mod checker;
mod defaults;
mod error;
mod http;
mod lease;
mod locks;
mod sync;
mod time;
mod trace;

#[cfg(feature = "postgres")]
pub use self::store::PostgresStore;
#[cfg(feature = "redis")]
pub use self::store::RedisStore;
pub use self::{
    error::{Error, ErrorKind},
    http::{
        gate,
        idempotency::{self, IdempotencyLayer},
        lock::{self, DistributedLockLayer, OnLoss},
        read_body::{self, ReadBodyLayer},
        rejection,
        single_flight::{self, SingleFlightLayer},
    },
    key::LockKey,
    lease::{Background, Loss},
    locks::{
        Closed, HeldKey, LeaseView, Lock, LockAll, LockGuard, Locks, LocksBuilder, Now, Stats,
        Status, Totals,
    },
    store::{Holder, Inspection, Instance, KeyPage, List, MemoryStore, Mode, Owner, QuorumStore},
};
