//! What the program itself has kept.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicU64, Ordering},
};

use axum::{Router, body::Body};
use http::{Response, StatusCode};
use tower_distributed_lock::{
    IdempotencyLayer, Locks,
    idempotency::{Claim, Keep, Recalled},
};

use crate::{
    subject::Subject,
    support::{eventually, words::Words},
    web::{Runs, app, layer, lock_key, pay, pay_as, send, send_body, sending},
};

/// The data of the program: whatever its handler does is here, with the claim.
#[derive(Clone, Default)]
struct Data(Arc<Mutex<Vec<(Claim, String)>>>, Arc<AtomicU64>);

impl Data {
    fn commit(&self, claim: Claim, answer: &str) {
        self.0.lock().unwrap().push((claim, answer.to_owned()));
    }

    fn committed(&self) -> usize {
        self.0.lock().unwrap().len()
    }

    fn asked(&self) -> u64 {
        self.1.load(Ordering::SeqCst)
    }

    fn find(&self, claim: &Claim) -> Option<Recalled> {
        self.1.fetch_add(1, Ordering::SeqCst);
        let rows = self.0.lock().unwrap();
        let mut rows = rows.iter();
        let (of, answer) =
            rows.find(|(of, _)| (of.scope(), of.key()) == (claim.scope(), claim.key()))?;
        let answer = Response::builder()
            .status(201)
            .header("location", "/payments/1")
            .header("set-cookie", "s")
            .body(answer.clone())
            .unwrap();
        Some(Recalled::new(of.fingerprint(), answer))
    }

    fn recalling(&self, layer: IdempotencyLayer) -> IdempotencyLayer {
        let data = self.clone();
        layer.recall(move |claim| {
            let found = data.find(&claim);
            async { Ok::<_, std::io::Error>(found) }
        })
    }

    /// A handler that commits, and then answers with this status.
    fn app(&self, locks: &Locks, status: u16) -> Router {
        let (data, status) = (self.clone(), StatusCode::from_u16(status).unwrap());
        app(self.recalling(layer(locks)), async move |claim: Claim| {
            data.commit(claim, "paid");
            (status, "answered")
        })
    }
}

/// Makes the store forget all of a key.
async fn forget(subject: &impl Subject, locks: &Locks) {
    locks.force_release(lock_key()).await.unwrap();
    assert!(subject.store().see(&lock_key()).await.record.is_none());
}

pub(crate) async fn what_the_store_forgot_is_recalled_and_recorded(subject: impl Subject) {
    let (locks, data) = (subject.replica().build().unwrap(), Data::default());
    let app = data.app(&locks, 200);
    assert!(!send(&app, pay()).await.is_replayed());
    assert!(send(&app, pay()).await.is_replayed());
    assert_eq!(data.asked(), 1, "a record is not asked for");
    forget(&subject, &locks).await;
    for _ in 0..2 {
        let answer = send(&app, pay()).await;
        assert_eq!((answer.status.as_u16(), answer.text()), (201, "paid"));
        assert!(answer.is_replayed());
        assert_eq!(answer.header("location"), Some("/payments/1"));
        assert_eq!(answer.header("set-cookie"), None);
        assert_eq!((data.committed(), data.asked()), (1, 2));
    }
}

pub(crate) async fn what_was_recalled_is_only_for_the_same_request(subject: impl Subject) {
    let (locks, data) = (subject.replica().build().unwrap(), Data::default());
    let app = data.app(&locks, 200);
    send(&app, pay()).await;
    forget(&subject, &locks).await;
    let other = send_body(&app, pay(), Body::from("six")).await;
    other.assert_refused(422, "key-reused");
    assert!(other.text().contains("another body"), "{}", other.text());
    // The refusal has not claimed the key.
    assert_eq!(send(&app, pay()).await.text(), "paid");
    assert_eq!(send(&app, pay_as("other")).await.text(), "answered");
    assert_eq!(data.committed(), 2);
}

pub(crate) async fn a_tombstone_is_answered_by_the_program_if_it_knows(subject: impl Subject) {
    let (locks, data) = (subject.replica().build().unwrap(), Data::default());
    // 408 leaves a tombstone.
    let app = data.app(&locks, 408);
    send(&app, pay()).await;
    for _ in 0..2 {
        let answer = send(&app, pay()).await;
        assert_eq!((answer.text(), answer.is_replayed()), ("paid", true));
    }
    let other = send_body(&app, pay(), Body::from("six")).await;
    other.assert_refused(422, "key-reused");
    data.0.lock().unwrap().clear();
    let unknown = send(&app, pay()).await;
    unknown.assert_refused(409, "outcome-unknown");
    assert_eq!(data.committed(), 0, "it is not begun a second time");
}

pub(crate) async fn a_question_that_fails_lets_no_handler_run(subject: impl Subject) {
    let (locks, runs) = (subject.replica().build().unwrap(), Runs::free());
    let failing = Arc::new(AtomicU64::new(1));
    let recall = {
        let failing = failing.clone();
        move |_| {
            let fails = failing.load(Ordering::SeqCst) == 1;
            async move {
                if fails {
                    Err("the database is away")
                } else {
                    Ok(None)
                }
            }
        }
    };
    let app = app(layer(&locks).recall(recall), runs.handler());
    for _ in 0..2 {
        let answer = send(&app, pay()).await;
        answer.assert_refused(503, "recall-failed");
        assert_eq!(answer.header("retry-after"), Some("1"));
        assert_eq!(answer.problem()["retryable"], true);
        assert!(!answer.text().contains("database"), "{}", answer.text());
    }
    assert_eq!(runs.begun(), 0);
    failing.store(0, Ordering::SeqCst);
    assert_eq!(send(&app, pay()).await.text(), "run 1");
}

pub(crate) async fn a_question_that_panics_or_is_cancelled_frees_the_key(subject: impl Subject) {
    let (locks, runs) = (subject.replica().build().unwrap(), Runs::free());
    let panicking = app(
        layer(&locks).recall(|_| async {
            panic!("of the program");
            #[expect(unreachable_code)]
            Ok::<_, std::io::Error>(None)
        }),
        runs.handler(),
    );
    assert!(sending(&panicking, pay()).await.unwrap_err().is_panic());
    let asked = Arc::new(AtomicU64::new(0));
    let count = asked.clone();
    let hanging = app(
        layer(&locks).recall(move |_| {
            count.fetch_add(1, Ordering::SeqCst);
            std::future::pending::<Result<_, std::io::Error>>()
        }),
        runs.handler(),
    );
    let leaving = sending(&hanging, pay());
    eventually("the program is asked", async || {
        asked.load(Ordering::SeqCst) == 1
    })
    .await;
    leaving.abort();
    assert!(leaving.await.unwrap_err().is_cancelled());
    let fine = app(layer(&locks), runs.handler());
    assert_eq!(send(&fine, pay()).await.text(), "run 1");
}

pub(crate) async fn an_answer_that_is_too_large_to_be_recorded_is_recalled_each_time(
    subject: impl Subject,
) {
    let (locks, data) = (subject.replica().build().unwrap(), Data::default());
    let committing = data.app(&locks, 200);
    send(&committing, pay()).await;
    forget(&subject, &locks).await;
    let small = app(data.recalling(layer(&locks).max_response(3)), async || {
        StatusCode::IM_A_TEAPOT
    });
    for asked in 2..4 {
        assert_eq!(send(&small, pay()).await.text(), "paid");
        assert_eq!(data.asked(), asked);
    }
}

pub(crate) async fn an_error_that_frees_the_key_does_not_hide_what_was_committed(
    subject: impl Subject,
) {
    let (locks, data) = (subject.replica().build().unwrap(), Data::default());
    let committing = {
        let data = data.clone();
        async move |claim: Claim| {
            assert!(claim.token() > 0);
            assert_eq!(claim.scope(), "x-tenant-id=acme");
            data.commit(claim, "paid");
            // The answer to COMMIT was lost, say.
            StatusCode::INTERNAL_SERVER_ERROR
        }
    };
    let layer = data.recalling(layer(&locks).keep(Keep::when_errors_do_nothing));
    let app = app(layer, committing);
    assert_eq!(send(&app, pay()).await.status, 500);
    assert_eq!(send(&app, pay()).await.text(), "paid");
    assert_eq!(data.committed(), 1);
}
