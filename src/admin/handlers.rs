//! The page's questions.
//!
//! | handler | asks | bounded by |
//! |---|---|---|
//! | `instance` | this process, and the store by a ping | 50 keys, 2 s for the ping |
//! | `fleet` | the store: listings, then an inspection of each key | 50 keys or 500 ms, 10 inspections at a time |
//! | `key` | the store: one inspection | the store's time limit |
//! | `force_release` | the store: the release | the store's time limit |
//! | `settle` | the store: one inspection, then the record | twice the store's time limit |

use std::{cmp::Reverse, collections::BTreeMap, time::Duration};

use axum::extract::State;
use futures_util::{StreamExt, TryStreamExt, stream};
use http::StatusCode;
use serde_json::{Value, json};

use super::{
    Admin,
    answers::{self, Answer, Here, Refusal, millis},
    form::Form,
};
use crate::{
    Error, ErrorKind, HeldKey, LockKey, Locks,
    store::{Cursor, Expected, Inspection, List},
    time::{later, now, timeout},
};

/// The number of keys on a page.
const PAGE: usize = 50;

/// How many keys of a page are inspected at a time.
const AT_A_TIME: usize = 10;

/// After this time, a page of the fleet ends with the keys that were found until then. In a store
/// with few locks among many other keys, that can be none.
const LOOKING: Duration = Duration::from_millis(500);

/// How long the page waits for a sign of life of the store.
const PING: Duration = Duration::from_secs(2);

type Answered = Result<Answer, Refusal>;

/// The load of this instance, and one page of its keys.
pub(super) async fn instance(State(admin): State<Admin>, form: Form) -> Answered {
    let (prefix, offset) = (form.text("prefix"), form.number("offset")?);
    let locks = &admin.locks;
    let store = ping(locks).await;
    let mut held = locks.held();
    let longest_wait = answers::longest_wait(&held);
    held.retain(|held| held.key.as_str().starts_with(prefix));
    // The keys are in ascending order, and stay in that order where two are equal.
    match form.text("sort") {
        "held" => held.sort_by_key(|held| Reverse(answers::held_for(held))),
        _ => held.sort_by_key(|held| Reverse(held.waiting)),
    }
    // A page that has become empty shows the last keys instead.
    let offset = offset.min(held.len().saturating_sub(1) / PAGE * PAGE);
    let page = held.iter().skip(offset).take(PAGE);
    Ok(Answer(json!({
        "instance": locks.instance().to_string(),
        "label": locks.label().as_deref(),
        "may_force_release": admin.force_release,
        "may_settle": admin.settle,
        "closed": locks.is_closed(),
        "store": store,
        "stats": answers::stats(&locks.stats(), &locks.totals()),
        "longest_wait_ms": millis(longest_wait),
        "keys": page.map(answers::held_key).collect::<Value>(),
        "total": held.len(),
        "offset": offset,
        "page_size": PAGE,
    })))
}

/// Whether the store answers, and how soon; `null` if it does not. What this instance holds is
/// shown although the store hangs, so the wait is limited.
async fn ping(locks: &Locks) -> Value {
    let asked = now();
    let error = if locks.is_closed() {
        None
    } else {
        match timeout(PING, locks.ping()).await {
            Some(answer) => answer.err().map(|error| error.to_string()),
            None => Some(format!("no answer within {PING:?}")),
        }
    };
    let is_answered = error.is_none() && !locks.is_closed();
    let took = is_answered.then(|| now().saturating_duration_since(asked));
    json!({ "ping_ms": took.map(millis), "error": error })
}

/// One page of the fleet's keys: locks, and also records if the form asks for them.
pub(super) async fn fleet(State(admin): State<Admin>, form: Form) -> Answered {
    let (locks, records) = (&admin.locks, !form.text("records").is_empty());
    let held = locks.held();
    let looking = Looking {
        admin: &admin,
        held: &held,
        records,
    };
    let mut request = List::starting_with(form.text("prefix")).at_most(PAGE);
    request.cursor = form.parsed::<Cursor>("cursor")?;
    let until = later(now(), LOOKING);
    let mut rows = BTreeMap::new();
    // A single listing may find few keys, only keys that are not wanted, or keys of the listing
    // before.
    loop {
        let page = locks.list(request.clone()).await?;
        rows.extend(looking.inspect_all(page.keys).await?);
        request.cursor = page.next;
        if request.cursor.is_none() || rows.len() >= PAGE || now() >= until {
            break;
        }
    }
    let next = request.cursor.map(|cursor| cursor.to_string());
    let keys: Value = rows.into_values().collect();
    Ok(Answer(json!({ "keys": keys, "next": next })))
}

/// A look at keys of the fleet.
struct Looking<'a> {
    admin: &'a Admin,
    /// The keys of this instance, in ascending order.
    held: &'a [HeldKey],
    records: bool,
}

impl Looking<'_> {
    /// Inspects the keys of a page, a few at a time, and drops those that are not to be shown.
    async fn inspect_all(&self, keys: Vec<LockKey>) -> Result<Vec<(LockKey, Value)>, Error> {
        stream::iter(keys)
            .map(async |key| {
                let row = self.row(&key).await?;
                Ok(row.map(|row| (key, row)))
            })
            .buffered(AT_A_TIME)
            .try_filter_map(async |row| Ok(row))
            .try_collect()
            .await
    }

    /// A row of the fleet. `None` for a record that is not wanted, and for a key that has become
    /// free since it was listed.
    async fn row(&self, key: &LockKey) -> Result<Option<Value>, Error> {
        let here = here(&self.admin.locks, self.held, key);
        match self.admin.locks.inspect(key).await {
            Ok(seen) => {
                self.admin.labels.learn(&seen);
                let is_lock = !seen.holders.is_empty() || !seen.queue.is_empty();
                let wanted = is_lock || (self.records && seen.record.is_some());
                Ok(wanted.then(|| answers::fleet_key(key, &seen, &here)))
            }
            // One unreadable key must not hide the others.
            Err(error) if error.kind() == ErrorKind::Foreign => {
                let mut row = answers::fleet_key(key, &Inspection::default(), &here);
                row["error"] = error.to_string().into();
                Ok(Some(row))
            }
            Err(error) => Err(error),
        }
    }
}

/// What this instance knows of a key. `held` is in ascending order.
fn here<'a>(locks: &Locks, held: &'a [HeldKey], key: &LockKey) -> Here<'a> {
    let local = held.binary_search_by(|held| held.key.cmp(key)).ok();
    Here {
        instance: locks.instance(),
        local: local.map(|at| &held[at]),
    }
}

/// Everything that is known of a key.
pub(super) async fn key(State(admin): State<Admin>, form: Form) -> Answered {
    let (locks, key) = (&admin.locks, form.key()?);
    let seen = locks.inspect(&key).await?;
    let held = locks.held();
    admin.labels.learn(&seen);
    let label = |instance| admin.label_of(instance);
    let here = here(locks, &held, &key);
    Ok(Answer(answers::key(&key, &seen, &here, label)))
}

/// Takes a key away from its holders, or removes its record.
///
/// If the form names an owner, only while that owner is among the holders; if the form is about a
/// record, only while there is one: since the page was shown, another request may have got the key.
/// The store compares in the same step.
pub(super) async fn force_release(State(admin): State<Admin>, form: Form) -> Answered {
    allowed(admin.force_release, "force_release")?;
    let key = form.key()?;
    let (expected, changed) = match form.parsed("owner")? {
        Some(owner) => (
            Expected::Holder(owner),
            "the key has another holder by now, or none",
        ),
        None if !form.text("record").is_empty() => {
            (Expected::Record, "the key has no record any more")
        }
        None => (Expected::Anything, ""),
    };
    let released = admin.locks.force_release_if(key, expected).await?;
    if !released && expected != Expected::Anything {
        return Err(Refusal::new(StatusCode::CONFLICT, changed));
    }
    Ok(Answer(json!({ "released": released })))
}

/// Writes the answer of a request whose process has died, in the place of its claim.
///
/// If the form names an owner, only while that owner holds the key. The store compares in the same
/// step.
pub(super) async fn settle(State(admin): State<Admin>, form: Form) -> Answered {
    allowed(admin.settle, "settle")?;
    let (key, owner, answer) = (form.key()?, form.parsed("owner")?, form.answer()?);
    let seconds = (form.number("hours")? as u64).saturating_mul(3600);
    let retain = Duration::from_secs(seconds);
    if !admin.locks.settle_if(key, owner, answer, retain).await? {
        let why =
            "the key is not that of a request whose process has died, or has another holder by now";
        return Err(Refusal::new(StatusCode::CONFLICT, why));
    }
    Ok(Answer(json!({ "settled": true })))
}

/// Refuses what the settings of the page do not allow.
fn allowed(is_allowed: bool, what: &str) -> Result<(), Refusal> {
    if is_allowed {
        return Ok(());
    }
    let why = format!("this page does not do that: build it with `Admin::allow_{what}`");
    Err(Refusal::new(StatusCode::FORBIDDEN, why))
}
