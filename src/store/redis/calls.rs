//! The store's operations as calls of scripts.

use std::time::Duration;

use super::{
    names::{KeyNames, bucket},
    script::{ACQUIRE, Arg, Call, FORCE_RELEASE, INSPECT, RAISE_FENCE, RELEASE, RENEW, number},
    value,
};
use crate::store::{Acquire, Ending, Queueing, Release, Renew};

/// So far away that nobody waits for it, and near enough that Redis can add it to its clock.
const FAR: Duration = Duration::from_secs(60 * 60 * 24 * 365 * 30);

pub(super) fn acquire(names: KeyNames, request: &Acquire) -> Call {
    let keep = match request.queueing {
        Queueing::No => b"no".to_vec(),
        Queueing::Skip => b"skip".to_vec(),
        Queueing::Wait { deadline, .. } => number(millis(deadline)),
    };
    let keys = [names.lock, names.queue, names.fence];
    let args = [
        value::lease(request.owner, request.fingerprint.as_ref()).into(),
        number(millis(request.lease)).into(),
        Arg::Floor(bucket(request.key.as_str())),
        keep.into(),
    ];
    let call = Call::new(&ACQUIRE, keys, args);
    match request.block {
        0 | 1 => call,
        more => call.arg(number(more)),
    }
}

pub(super) fn renew(names: KeyNames, request: &Renew) -> Call {
    let args = [
        value::lease(request.owner, None).into(),
        number(millis(request.lease)).into(),
        Arg::Floor(bucket(request.key.as_str())),
        number(request.refill).into(),
    ];
    Call::new(&RENEW, [names.lock, names.queue, names.fence], args)
}

pub(super) fn release(names: &KeyNames, request: &Release) -> Call {
    let keys = [names.lock.clone(), names.queue.clone()];
    let lease = value::lease(request.owner, None);
    match &request.ending {
        Ending::Free => Call::new(&RELEASE, keys, [lease.into()]),
        Ending::Record { content, retain } => {
            let record = value::record(request.owner, content);
            let args = [lease, record, number(millis(*retain))];
            Call::new(&RELEASE, keys, args.map(Arg::from))
        }
    }
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
