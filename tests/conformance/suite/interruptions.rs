//! Hints that are interrupted.

use tower_distributed_lock::store::Hint;

use crate::subject::*;

pub(crate) async fn an_interruption_of_the_hints_is_a_hint_itself(subject: impl Subject) {
    let (store, a) = (subject.store(), owner());
    let mut hints = store.watch_for_sure(a.instance).await;
    if subject.interrupt_hints().await {
        hinted(&mut hints, Hint::Reconnected).await;
    }
}
