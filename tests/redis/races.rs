//! Calls for one key from two connections at once.

use futures_util::future::{join, join3};
use tower_distributed_lock::store::{Acquired, Instance, RedisStore, Released, Renewed};

use crate::{server_and_store, support::words::*};

#[tokio::test]
async fn renewals_and_releases_race_and_touch_no_other_lease() {
    let (server, one) = server_and_store().await;
    // Two stores have two connections, so the calls can overtake each other.
    let two = RedisStore::connect(server.url()).await.unwrap();
    let (instance, key) = (Instance::new(), key("k"));
    let mut renewed_first = 0;
    for round in 0..10_000 {
        let (a, b) = (
            attempt_of(instance, 2 * round),
            attempt_of(instance, 2 * round + 1),
        );
        one.take(&key, a).await;
        let (released, renewed, taken) = join3(
            one.end(ending(&key, a)),
            two.renew_one(renewal(&key, a, 1)),
            two.ask_for(attempt(&key, b)),
        )
        .await;
        assert_eq!(released.unwrap(), Released::Freed);
        renewed_first += u32::from(is_renewed(&renewed));
        match taken.unwrap() {
            Acquired::Granted(_) => {
                // Neither a late renewal nor a late release of `a` touches the lease of `b`.
                let (renewed, released) =
                    join(one.renew_one(renewal(&key, a, 1)), two.end(ending(&key, a))).await;
                assert!(matches!(renewed, Renewed::NotOurs));
                assert_eq!(released.unwrap(), Released::NotOurs);
                assert_eq!(two.free(&key, b).await, Released::Freed);
            }
            Acquired::Held(_) => {}
            Acquired::Recorded(_) => panic!("nobody left a record"),
        }
        if round % 1000 == 0 {
            assert_eq!(server.leftovers().await, [""; 0]);
        }
    }
    assert_eq!(server.leftovers().await, [""; 0]);
    println!("{renewed_first} of 10,000 renewals came before the release");
}
