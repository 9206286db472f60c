//! The store's operations as calls of scripts.

use std::time::Duration;

use super::{
    names::{KeyNames, bucket},
    script::{
        ACQUIRE, Arg, Call, FORCE_RELEASE, INSPECT, RAISE_FENCE, RELEASE, RELEASE_ALONE, RENEW,
        RENEW_ALONE, number,
    },
    value,
};
use crate::store::{Acquire, Ending, Queueing, Release, Renew};

/// So far away that nobody waits for it, and near enough that Redis can add it to its clock.
const FAR: Duration = Duration::from_secs(60 * 60 * 24 * 365 * 30);

pub(super) fn acquire(names: KeyNames, request: &Acquire) -> Call {
    let queueing = match request.queueing {
        Queueing::No => b"no".to_vec(),
        Queueing::Skip => b"skip".to_vec(),
        Queueing::Wait {
            deadline,
            head_start,
        } => format!("{} {}", millis(deadline), millis(head_start)).into_bytes(),
    };
    let lease = value::lease(
        request.owner,
        names.label.as_deref(),
        request.fingerprint.as_ref(),
    );
    let keys = [names.lock, names.queue, names.fence];
    let args = [
        lease.into(),
        number(millis(request.lease)).into(),
        Arg::Floor(bucket(&request.key)),
        queueing.into(),
    ];
    let call = Call::new(&ACQUIRE, keys, args);
    match request.block {
        0 | 1 => call,
        more => call.arg(number(more)),
    }
}

/// Needs the lock alone, unless further tokens are wanted.
pub(super) fn renew(names: KeyNames, request: &Renew) -> Call {
    let lease = value::lease(request.owner, names.label.as_deref(), None).into();
    let millis = number(millis(request.lease)).into();
    if request.refill == 0 {
        return Call::new(&RENEW_ALONE, [names.lock], [lease, millis]);
    }
    let floor = Arg::Floor(bucket(&request.key));
    let args = [lease, millis, floor, number(request.refill).into()];
    // A lease that lasts on without further tokens is better than one that is lost.
    Call::new(&RENEW, [names.lock, names.queue, names.fence], args).or_alone(&RENEW_ALONE)
}

pub(super) fn release(names: &KeyNames, request: &Release) -> Call {
    let keys = [names.lock.clone(), names.queue.clone()];
    let lease = value::lease(request.owner, names.label.as_deref(), None);
    let call = match &request.ending {
        Ending::Free => Call::new(&RELEASE, keys, [lease.into()]),
        Ending::Record { content, retain } => {
            let record = value::record(request.owner, content);
            let args = [lease, record, number(millis(*retain))];
            Call::new(&RELEASE, keys, args.map(Arg::from))
        }
    };
    call.or_alone(&RELEASE_ALONE)
}

pub(super) fn raise_fence(names: KeyNames, above: u64) -> Call {
    Call::new(&RAISE_FENCE, [names.fence], [number(above).into()])
}

pub(super) fn inspect(names: KeyNames) -> Call {
    Call::new(&INSPECT, [names.lock, names.queue, names.fence], [])
}

pub(super) fn force_release(names: KeyNames) -> Call {
    Call::new(&FORCE_RELEASE, [names.lock, names.queue], [])
}

/// Rounded up: the store must not end a lease before its holder does.
fn millis(duration: Duration) -> u64 {
    let millis = duration.min(FAR).as_micros().div_ceil(1000);
    u64::try_from(millis.max(1)).unwrap_or(u64::MAX)
}
