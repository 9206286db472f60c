//! Requests of a made-up shop.

use std::{error::Error, io, time::Duration};

use tokio::time::sleep;
use tower_distributed_lock::{LockGuard, Locks};

/// How many clients a replica has.
const CLIENTS: u64 = 9;

/// Sends requests to a replica, in the background and for ever.
pub(crate) fn start(locks: &Locks, replica: u64) {
    for client in 0..CLIENTS {
        tokio::spawn(requests(locks.clone(), Random(replica * 1000 + client)));
    }
}

/// One client, which sends one request after another.
async fn requests(locks: Locks, mut random: Random) {
    loop {
        // A request that waits for too long gives up, as a real one would.
        let _ = request(&locks, &mut random).await;
        sleep(random.millis(20, 400)).await;
    }
}

async fn request(locks: &Locks, random: &mut Random) -> Result<(), Box<dyn Error>> {
    match random.below(100) {
        // Many requests want the same few accounts.
        0..45 => {
            let (tenant, id) = (1 + random.below(2), 1001 + random.below(2));
            work(
                locks,
                format!("account,tenant={tenant},id={id}"),
                random.millis(20, 250),
            )
            .await
        }
        45..85 => {
            let (tenant, id) = (1 + random.below(9), 1001 + random.below(400));
            work(
                locks,
                format!("account,tenant={tenant},id={id}"),
                random.millis(50, 900),
            )
            .await
        }
        85..94 => {
            let order = 58_000 + random.below(5_000);
            work(
                locks,
                format!("order,id={order}"),
                random.millis(500, 4_000),
            )
            .await
        }
        94..99 => {
            // Done once, and its result is kept for half a minute.
            let key = format!("webhook,event=evt_{:06x}", random.below(0x100_0000));
            let pause = random.millis(50, 500);
            let pay = async |_: LockGuard| {
                sleep(pause).await;
                Ok::<_, io::Error>("paid".to_owned())
            };
            locks.run_once(key, Duration::from_secs(30), pay).await?;
            Ok(())
        }
        _ => {
            // A job that one replica does at a time: the others do not wait for it.
            let report = ["daily", "ledger", "payouts"][random.below(3) as usize];
            if let Some(_guard) = locks.lock(format!("report,name={report}")).now().await? {
                sleep(random.millis(5_000, 30_000)).await;
            }
            Ok(())
        }
    }
}

async fn work(locks: &Locks, key: String, time: Duration) -> Result<(), Box<dyn Error>> {
    let guard = locks.lock(key).await?;
    sleep(time).await;
    guard.release().await?;
    Ok(())
}

/// SplitMix64.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut number = self.0;
        number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (number ^ (number >> 31)) % limit
    }

    fn millis(&mut self, least: u64, most: u64) -> Duration {
        Duration::from_millis(least + self.below(most - least))
    }
}
