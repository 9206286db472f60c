//! What the scripts and the rules could easily do differently, one by one.

use std::time::Duration;

use bytes::Bytes;
use tokio::time::sleep;
use tower_distributed_lock::store::{Acquire, End, Mode, Queueing, Renew};

use crate::{
    call::{Call, Said, Told},
    pair::{Compared, Pairs},
    run::Subject,
    support::words::{attempt, attempt_of, ending, in_mode, recording, renewal, waiting},
};

/// Makes a call on both, which must be equal.
async fn both(pair: &mut Pairs<'_>, call: Call) -> (Said, Vec<Duration>, Told) {
    match pair.step(&[call]).await {
        Ok(Compared::Equal(mut equal)) => {
            let (answer, told) = equal.remove(0);
            (answer.said, answer.times, told)
        }
        Ok(Compared::Unclear) => panic!("no lease ends within this test"),
        Err(difference) => panic!("{difference}"),
    }
}

#[tokio::test]
async fn an_owner_that_is_granted_the_key_again_has_its_new_fingerprint() {
    let subject = Subject::start().await;
    let mut worker = subject.worker(1).await;
    let owner = attempt_of(worker.instances[0], 1);
    let mut pair = subject.pairs(&mut worker, 1).await;
    for digest in ["first", "second"] {
        let request = Acquire {
            fingerprint: Some(Bytes::from(digest)),
            ..attempt(pair.key(), owner)
        };
        let (said, ..) = both(&mut pair, Call::Acquire(request)).await;
        assert!(matches!(said, Said::Granted { .. }), "{said:?}");
    }
    let (said, ..) = both(&mut pair, Call::Inspect).await;
    let Said::Inspected { holders, .. } = said else {
        panic!("{said:?}");
    };
    assert_eq!(holders[0].2, Some(Bytes::from("second")));
}

#[tokio::test]
async fn a_key_with_a_record_is_offered_to_nobody() {
    let subject = Subject::start().await;
    let mut worker = subject.worker(2).await;
    let [holder, other] = [0, 1].map(|number| attempt_of(worker.instances[number], 1));
    let leaving = attempt_of(other.instance, 2);
    let mut pair = subject.pairs(&mut worker, 1).await;
    let key = pair.key().clone();
    both(&mut pair, Call::Acquire(attempt(&key, holder))).await;
    both(&mut pair, Call::Acquire(waiting(&key, leaving))).await;
    both(&mut pair, Call::Acquire(waiting(&key, other))).await;
    both(&mut pair, Call::Release(recording(&key, holder, b"done"))).await;
    let (_, _, told) = both(&mut pair, Call::Release(ending(&key, leaving))).await;
    assert_eq!(told, Told::new());
}

#[tokio::test]
async fn an_ending_that_an_attempt_carries_leaves_the_record_of_its_owner() {
    let subject = Subject::start().await;
    let mut worker = subject.worker(1).await;
    let instance = worker.instances[0];
    let mut pair = subject.pairs(&mut worker, 1).await;
    let (key, owner) = (pair.key().clone(), attempt_of(instance, 1));
    both(&mut pair, Call::Acquire(attempt(&key, owner))).await;
    both(&mut pair, Call::Release(recording(&key, owner, b"done"))).await;
    let mode = Mode::Exclusive;
    let request = Acquire {
        ends: vec![End { owner, mode }],
        ..attempt(&key, attempt_of(instance, 2))
    };
    let (said, ..) = both(&mut pair, Call::Acquire(request)).await;
    assert_eq!(said, Said::Recorded(Bytes::from("done")));
}

#[tokio::test]
async fn a_hundred_holders_are_told_of_an_attempt() {
    let subject = Subject::start().await;
    let mut worker = subject.worker(121).await;
    let instances = worker.instances.clone();
    let mut pair = subject.pairs(&mut worker, 1).await;
    let key = pair.key().clone();
    let mode = Mode::Permit { of: 120 };
    for (number, instance) in instances[..120].iter().enumerate() {
        // The order in which the leases end is certain.
        let request = Acquire {
            lease: Duration::from_secs(600 + 60 * number as u64),
            ..in_mode(mode, attempt(&key, attempt_of(*instance, 1)))
        };
        both(&mut pair, Call::Acquire(request)).await;
    }
    let request = in_mode(mode, waiting(&key, attempt_of(instances[120], 1)));
    let (_, _, told) = both(&mut pair, Call::Acquire(request)).await;
    assert_eq!(told.len(), 100);
}

#[tokio::test]
async fn others_are_looked_for_among_ten_attempts() {
    let subject = Subject::start().await;
    let mut worker = subject.worker(2).await;
    let [own, other] = [worker.instances[0], worker.instances[1]];
    let mut pair = subject.pairs(&mut worker, 1).await;
    let key = pair.key().clone();
    both(&mut pair, Call::Acquire(attempt(&key, attempt_of(own, 1)))).await;
    for number in 2..=10 {
        let request = waiting(&key, attempt_of(own, number));
        both(&mut pair, Call::Acquire(request)).await;
    }
    let mut expected = Vec::new();
    for owner in [
        attempt_of(own, 11),
        attempt_of(other, 1),
        attempt_of(other, 2),
    ] {
        both(&mut pair, Call::Acquire(waiting(&key, owner))).await;
        let renewal = Call::Renew(renewal(&key, attempt_of(own, 1), 1));
        let (said, ..) = both(&mut pair, renewal).await;
        expected.push(matches!(said, Said::Renewed { others_wait, .. } if others_wait));
    }
    assert_eq!(expected, [false; 3], "the others are behind ten attempts");
    let ending = ending(&key, attempt_of(own, 2));
    both(&mut pair, Call::Release(ending)).await;
    let renewal = Call::Renew(renewal(&key, attempt_of(own, 1), 1));
    let (said, ..) = both(&mut pair, renewal).await;
    assert!(matches!(
        said,
        Said::Renewed {
            others_wait: true,
            ..
        }
    ));
}

#[tokio::test]
async fn a_renewal_without_tokens_may_tell_of_a_waiter_that_has_left() {
    let subject = Subject::start().await;
    let mut worker = subject.worker(2).await;
    let [holder, other] = [0, 1].map(|number| attempt_of(worker.instances[number], 1));
    let mut pair = subject.pairs(&mut worker, 1).await;
    let key = pair.key().clone();
    let says = async |pair: &mut Pairs<'_>, refill| {
        let renewal = Call::Renew(renewal(&key, holder, refill));
        match both(pair, renewal).await.0 {
            Said::Renewed { others_wait, .. } => others_wait,
            said => panic!("{said:?}"),
        }
    };
    both(&mut pair, Call::Acquire(attempt(&key, holder))).await;
    assert!(!says(&mut pair, 0).await, "nobody has waited");
    let briefly = Acquire {
        queueing: Queueing::Wait {
            deadline: Duration::from_secs(1),
            head_start: Duration::from_secs(600),
        },
        ..waiting(&key, other)
    };
    both(&mut pair, Call::Acquire(briefly)).await;
    sleep(Duration::from_millis(1_500)).await;
    pair.read_clock().await;
    // The place has expired, which only a look at the queue shows.
    assert!(says(&mut pair, 0).await, "the mark is still there");
    assert!(!says(&mut pair, 1).await, "the queue is empty");
    assert!(!says(&mut pair, 0).await, "the look has removed the mark");
}

#[tokio::test]
async fn the_first_end_of_several_leases_is_known_after_a_renewal() {
    let subject = Subject::start().await;
    let mut worker = subject.worker(1).await;
    let instance = worker.instances[0];
    let mut pair = subject.pairs(&mut worker, 1).await;
    let key = pair.key().clone();
    for (number, seconds) in [(1, 100), (2, 500)] {
        let request = Acquire {
            lease: Duration::from_secs(seconds),
            ..in_mode(Mode::Shared, attempt(&key, attempt_of(instance, number)))
        };
        both(&mut pair, Call::Acquire(request)).await;
    }
    let renewal = Renew {
        mode: Mode::Shared,
        ..renewal(&key, attempt_of(instance, 1), 0)
    };
    both(&mut pair, Call::Renew(renewal)).await;
    let request = attempt(&key, attempt_of(instance, 3));
    let (_, times, _) = both(&mut pair, Call::Acquire(request)).await;
    assert!(times[0] > Duration::from_secs(400), "{times:?}");
}
