//! Worlds on a real PostgreSQL, each instance behind a proxy of its own that cuts, delays and holds
//! back.

use std::{sync::Arc, time::Duration};

use tokio::{sync::Mutex, time::sleep};
use tower_distributed_lock::{
    LockKey,
    store::{PostgresStore, Store, StoreFuture},
};

use super::{
    memory::fault_lasts,
    random::Random,
    support::{
        postgres::{Database, PostgresServer},
        proxy::{Network, Proxy},
    },
    world::{Instance, LONG_LEASE, Setup, Subject, World, run},
};

const INSTANCES: usize = 3;
/// How long a store waits for an answer where calls may fail: longer than most faults, shorter than
/// some.
const TIMEOUT: Duration = Duration::from_millis(200);

#[test]
fn postgres_on_several_runtimes() {
    run("postgres_on_several_runtimes", Setup::VISITED, start);
}

#[test]
fn postgres_with_faults() {
    run("postgres_with_faults", Setup::FAULTS, start);
}

#[test]
fn postgres_with_losses() {
    let setup = Setup {
        // A round trip on a busy machine must fit into a lease a few times.
        lease: Duration::from_millis(800),
        ..Setup::LOSSES
    };
    run("postgres_with_losses", setup, start);
}

struct Fleet {
    database: Database,
    proxies: Mutex<Vec<Proxy>>,
    /// A store that no proxy disturbs.
    direct: PostgresStore,
}

async fn start(setup: Setup) -> (Fleet, Vec<Instance>) {
    let server = PostgresServer::shared().await;
    let database = server.database().await;
    let direct = PostgresStore::builder(database.url());
    let direct = direct.timeout(LONG_LEASE).build().unwrap();
    database.migrate(&direct.schema_sql()).await;
    let (mut proxies, mut instances) = (Vec::new(), Vec::new());
    for _ in 0..INSTANCES + setup.guests() {
        let proxy = Proxy::start(server.port()).await;
        let store = PostgresStore::builder(database.url_through(proxy.port()));
        let store = store.timeout(match setup.may_fail {
            true => TIMEOUT,
            false => LONG_LEASE,
        });
        let store = store.build().expect("the settings go together");
        instances.push(setup.instance(store));
        proxies.push(proxy);
    }
    let fleet = Fleet {
        database,
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
                let proxy = &mut proxies[at];
                proxy.set(network);
                if network == Network::Cut {
                    proxy.only_new_ones_are_fine();
                } else {
                    sleep(fault_lasts(&world.setup, &mut random)).await;
                    proxy.set(Network::Fine);
                }
            }
            for proxy in proxies.iter_mut() {
                proxy.set(Network::Fine);
            }
        })
    }

    fn leftovers(self: Arc<Self>) -> StoreFuture<Vec<String>> {
        Box::pin(async move {
            let sql = "SELECT count(*) FROM tdl.list_1('', NULL, 10)";
            let left = self.database.number(sql).await;
            (0..left).map(|n| format!("key {n}")).collect()
        })
    }

    fn inspect(self: Arc<Self>, key: LockKey) -> StoreFuture<String> {
        let seen = self.direct.inspect(key);
        Box::pin(async move { format!("{:?}", seen.await) })
    }
}
