//! Every grant and every refill hands out numbers above every number handed out for that key
//! before.

use tower_distributed_lock::{
    ErrorKind,
    store::{Acquire, Acquired, Renewed},
};

use crate::subject::*;

pub(crate) async fn a_block_has_as_many_tokens_as_asked_for(subject: impl Subject) {
    let (store, key, a) = (subject.store(), key("k"), owner());
    let request = Acquire {
        block: 5,
        ..attempt(&key, a)
    };
    let mut tokens = granted(store.ask_for(request).await.unwrap()).tokens;
    assert_eq!(tokens.left(), 5);
    let last = tokens.last();
    assert_eq!(std::iter::from_fn(|| tokens.take()).last(), last);
    assert_eq!(store.see(&key).await.fence, last.unwrap());
}

/// The wall clock in microseconds, at which a lost counter begins again.
fn clock() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.unwrap().as_micros() as u64
}

pub(crate) async fn tokens_never_pass_the_clock_whatever_is_asked(subject: impl Subject) {
    let (store, key) = (subject.store(), key("k"));
    let mut highest = 0;
    let mut check = |tokens: tower_distributed_lock::store::Tokens| {
        assert!(tokens.first().unwrap() > highest);
        highest = tokens.last().unwrap();
        // A few tokens may be ahead of the clock, by less than a call takes.
        std::thread::sleep(std::time::Duration::from_millis(1));
        assert!(tokens.left() > 0 && highest <= clock(), "{tokens:?}");
    };
    for block in [u32::MAX, 1, 1024, u32::MAX, 7] {
        let a = owner();
        let request = Acquire {
            block,
            ..attempt(&key, a)
        };
        check(granted(store.ask_for(request).await.unwrap()).tokens);
        for _ in 0..2 {
            let Renewed::Renewed { tokens, .. } = store.renew_one(renewal(&key, a, block)).await
            else {
                panic!("the lease is a's");
            };
            check(tokens.unwrap());
        }
        store.free(&key, a).await;
    }
    assert_eq!(store.see(&key).await.fence, highest);
    // Time that has passed is time for tokens, also in a test that has paused the clock.
    std::thread::sleep(SHORT);
    let request = Acquire {
        block: 1024,
        ..attempt(&key, owner())
    };
    let tokens = granted(store.ask_for(request).await.unwrap()).tokens;
    assert_eq!(tokens.left(), 1024);
}

pub(crate) async fn tokens_rise_over_every_end_of_a_lease(subject: impl Subject) {
    let (store, key) = (subject.store(), key("k"));
    let mut highest = 0;
    let mut rises = |tokens: tower_distributed_lock::store::Tokens, after: &str| {
        assert!(tokens.first().unwrap() > highest, "after {after}");
        highest = tokens.last().unwrap();
    };

    let a = owner();
    rises(store.take(&key, a).await.tokens, "nothing");
    rises(store.take(&key, a).await.tokens, "the same owner's grant");
    let Renewed::Renewed { tokens, .. } = store.renew_one(renewal(&key, a, 16)).await else {
        panic!("the lease is a's");
    };
    rises(tokens.unwrap(), "a grant");
    store.free(&key, a).await;

    let block_of_three = Acquire {
        lease: SHORT,
        block: 3,
        ..attempt(&key, owner())
    };
    let (_, grant) = store.take_briefly(block_of_three).await;
    rises(grant.tokens, "a release");

    let c = owner();
    eventually("b's lease has expired", async || {
        match store.ask(&key, c).await {
            Acquired::Granted(grant) => {
                rises(grant.tokens, "an expiry");
                true
            }
            _ => false,
        }
    })
    .await;
    store.force_release(key.clone()).await.unwrap();

    let d = owner();
    rises(store.take(&key, d).await.tokens, "a forced release");
    store.record(&key, d, b"done").await;
    store.force_release(key.clone()).await.unwrap();
    rises(store.take(&key, owner()).await.tokens, "a record");
}

pub(crate) async fn a_double_can_hold_every_token(subject: impl Subject) {
    let (store, key) = (subject.store(), key("k"));
    let token = store.take(&key, owner()).await.tokens.first().unwrap();
    assert!(
        token < 1 << 53,
        "{token} would be mangled in JSON and in Lua"
    );
}

pub(crate) async fn the_fence_is_raised_and_never_lowered(subject: impl Subject) {
    let (store, key, a) = (subject.store(), key("k"), owner());
    let before = store.take(&key, a).await.tokens.last().unwrap();
    store.free(&key, a).await;

    let raised = before + 1_000_000_000_000;
    assert_eq!(
        store.raise_fence(key.clone(), raised).await.unwrap(),
        raised
    );
    assert_eq!(
        store.raise_fence(key.clone(), before).await.unwrap(),
        raised
    );
    assert_eq!(store.see(&key).await.fence, raised);
    let next = store.take(&key, owner()).await.tokens.first().unwrap();
    assert!(next > raised);
}

pub(crate) async fn a_fence_that_leaves_no_token_is_refused(subject: impl Subject) {
    let (store, key, a) = (subject.store(), key("k"), owner());
    for floor in [u64::MAX, 1 << 53] {
        let error = store.raise_fence(key.clone(), floor).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidConfig);
    }
    let token = store.take(&key, a).await.tokens.last().unwrap();
    assert!(token < 1 << 53);
}
