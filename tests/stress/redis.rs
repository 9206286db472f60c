//! Worlds on a real Redis, each instance behind a proxy of its own that cuts, delays and holds
//! back.

use std::{sync::Arc, time::Duration};

use tokio::{sync::Mutex, time::sleep};
use tower_distributed_lock::{
    LockKey,
    store::{RedisStore, Store, StoreFuture},
};

use super::{
    memory::fault_lasts,
    random::Random,
    support::{
        proxy::{Network, Proxy},
        redis_server::RedisServer,
    },
    world::{Instance, LONG_LEASE, Setup, Subject, World, run},
};

const INSTANCES: usize = 3;
/// How long a store waits for an answer where calls may fail: longer than most faults, shorter than
/// some.
const TIMEOUT: Duration = Duration::from_millis(100);

#[test]
fn redis_on_several_runtimes() {
    run("redis_on_several_runtimes", Setup::VISITED, start);
}

#[test]
fn redis_with_faults() {
    run("redis_with_faults", Setup::FAULTS, start);
}

#[test]
fn redis_with_losses() {
    let setup = Setup {
        // A round trip on a busy machine must fit into a lease a few times.
        lease: Duration::from_millis(600),
        ..Setup::LOSSES
    };
    run("redis_with_losses", setup, start);
}

struct Fleet {
    server: RedisServer,
    proxies: Mutex<Vec<Proxy>>,
    /// A store that no proxy disturbs.
    direct: RedisStore,
}

async fn start(setup: Setup) -> (Fleet, Vec<Instance>) {
    let server = RedisServer::start().await;
    let (mut proxies, mut instances) = (Vec::new(), Vec::new());
    for _ in 0..INSTANCES + setup.guests() {
        let proxy = Proxy::start(server.port()).await;
        let store = RedisStore::builder(proxy.url()).timeout(if setup.may_fail {
            TIMEOUT
        } else {
            LONG_LEASE
        });
        let store = store.build().expect("the settings go together");
        instances.push(setup.instance(store));
        proxies.push(proxy);
    }
    let direct = RedisStore::connect(server.url())
        .await
        .expect("the server is up");
    let fleet = Fleet {
        server,
        proxies: Mutex::new(proxies),
        direct,
    };
    (fleet, instances)
}

impl Subject for Fleet {
    fn play_faults(self: Arc<Self>, world: Arc<World>, mut random: Random) -> StoreFuture<()> {
        Box::pin(async move {
            let mut proxies = self.proxies.lock().await;
            while world.setup.may_fail && !world.is_over() {
                sleep(random.millis(1..60)).await;
                let at = random.within(0..proxies.len() as u64) as usize;
                let network = *random.pick(&[
                    Network::Cut,
                    Network::Cut,
                    Network::RepliesHeldBack,
                    Network::BlackHole,
                ]);
                play(&mut proxies[at], network, &world, &mut random).await;
            }
            for proxy in proxies.iter_mut() {
                proxy.set(Network::Fine);
            }
        })
    }

    fn leftovers(self: Arc<Self>) -> StoreFuture<Vec<String>> {
        Box::pin(async move { self.server.leftovers().await })
    }

    fn inspect(self: Arc<Self>, key: LockKey) -> StoreFuture<String> {
        let seen = self.direct.inspect(key);
        Box::pin(async move { format!("{:?}", seen.await) })
    }
}

/// One fault of one proxy, from its beginning to its end.
async fn play(proxy: &mut Proxy, network: Network, world: &World, random: &mut Random) {
    proxy.set(network);
    if network != Network::Cut {
        sleep(fault_lasts(&world.setup, random)).await;
        // Now and then the connection breaks, and the bytes that were held back are lost.
        if random.percent(30) {
            proxy.set(Network::Cut);
        }
    }
    if random.percent(20) {
        sleep(fault_lasts(&world.setup, random)).await;
    }
    match network {
        Network::Cut => proxy.only_new_ones_are_fine(),
        _ => proxy.set(Network::Fine),
    }
}
