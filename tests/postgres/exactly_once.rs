//! Processes of the example `payments` that are killed, stopped and cut off, most of all at their
//! COMMIT: every acknowledged payment is there once, none is there twice, and every retry gets the
//! same answer. All that clients see goes into a history, and the checker reads that history and
//! the rows of the database alone.
//!
//! | variable | default | meaning |
//! |---|---|---|
//! | `TDL_PAYMENTS` | 100 | how many payments are made at least; every fault happens once at least |
//! | `TDL_PAYMENTS_SEED` | from the clock | determines the faults and their order |
//!
//! `tests/long` makes 2,000 payments.

use std::{
    collections::{BTreeMap, HashMap},
    env,
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    task::{JoinSet, block_in_place},
    time::{Instant, sleep, timeout},
};
use tower_distributed_lock::PostgresStore;

use crate::support::{
    at_commit::{AtCommit, Hold},
    eventually,
    pooler::Pooler,
    postgres::{Database, PostgresServer},
    proxy::Proxy,
    random::Random,
    replica::Replica,
};

const LEASE: Duration = Duration::from_millis(1000);
const CLIENTS: u64 = 8;
const ACCOUNTS: u64 = 4;
const FIRST_BALANCE: i64 = 1_000_000;
/// A request without an answer after this time never gets one.
const LIMIT: Duration = Duration::from_secs(60);

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Fault {
    /// SIGKILL, at any moment.
    Kill,
    /// SIGKILL after the server has committed, before the process knows.
    KillAfterCommit,
    /// SIGSTOP for longer than the lease, at any moment.
    Stop,
    /// SIGSTOP for longer than the lease, while the COMMIT is on its way.
    StopAtCommit,
    /// The connection ends before the server gets the COMMIT.
    CutBeforeCommit,
    /// The connection ends after the server has committed, before the process knows.
    CutAfterCommit,
    /// All connections of a process end.
    Cut,
    /// The server crashes, and starts again.
    Restart,
}

use Fault::*;

const FAULTS: [Fault; 8] = [
    Kill,
    KillAfterCommit,
    Stop,
    StopAtCommit,
    CutBeforeCommit,
    CutAfterCommit,
    Cut,
    Restart,
];

/// What a client has seen: the status and the body for a key, or no answer.
#[derive(Debug)]
struct Seen {
    key: String,
    answer: Option<(u16, String)>,
}

/// A payment that is in the database.
#[derive(Debug)]
struct Paid {
    key: String,
    account: String,
    number: i64,
    balance: i64,
}

/// What happened, from the clients' side.
#[derive(Default)]
struct History {
    seen: Mutex<Vec<Seen>>,
    faults: Mutex<BTreeMap<Fault, u64>>,
}

/// A process, and the networks between it and the server.
struct Node {
    replica: Replica,
    at_commit: AtCommit,
    network: Proxy,
}

type Addresses = Arc<Mutex<Vec<Option<SocketAddr>>>>;

struct World {
    server: PostgresServer,
    database: Database,
    nodes: Vec<Node>,
    addresses: Addresses,
    /// The last process reaches the server through it, if it is installed.
    _pooler: Option<Pooler>,
}

impl World {
    async fn start() -> Self {
        let server = PostgresServer::start().await;
        let database = server.database().await;
        let store = PostgresStore::builder(database.url()).build().unwrap();
        database.migrate(&store.schema_sql()).await;
        database.execute(TABLES).await;
        let pooler = Pooler::start(&database, &server, 10).await;
        let mut nodes = Vec::new();
        for number in 0..3 {
            let port = match &pooler {
                Some(pooler) if number == 2 => pooler.port(),
                _ => server.port(),
            };
            let network = Proxy::start(port).await;
            let at_commit = AtCommit::start(network.port()).await;
            nodes.push(Node {
                replica: replica(&database, &at_commit),
                at_commit,
                network,
            });
        }
        let addresses = nodes.iter().map(|node| Some(node.replica.addr()));
        let addresses = Arc::new(Mutex::new(addresses.collect()));
        Self {
            server,
            database,
            nodes,
            addresses,
            _pooler: pooler,
        }
    }

    /// Says whether the fault could be made.
    async fn inject(&mut self, fault: Fault, number: usize, random: &mut Random) -> bool {
        let node = &mut self.nodes[number];
        let hold = match fault {
            KillAfterCommit | CutAfterCommit => Some(Hold::Answer),
            StopAtCommit | CutBeforeCommit => Some(Hold::Request),
            _ => None,
        };
        let mut caught = None;
        if let Some(hold) = hold {
            caught = timeout(Duration::from_secs(5), node.at_commit.catch(hold))
                .await
                .ok();
            if caught.is_none() {
                node.at_commit.give_up();
                return false;
            }
        }
        match fault {
            Kill | KillAfterCommit => {
                self.addresses.lock().unwrap()[number] = None;
                block_in_place(|| node.replica.kill());
                sleep(random.millis(0..300)).await;
                node.replica = replica(&self.database, &node.at_commit);
                self.addresses.lock().unwrap()[number] = Some(node.replica.addr());
            }
            Stop | StopAtCommit => {
                if fault == StopAtCommit {
                    // All clients ask the others, which get the account when the lease is over.
                    self.addresses.lock().unwrap()[number] = None;
                }
                node.replica.freeze();
                sleep(LEASE + random.millis(500..1500)).await;
                if let Some(caught) = caught {
                    caught.go_on();
                }
                // The COMMIT arrives, and nobody is there to hear of it.
                sleep(random.millis(0..300)).await;
                node.replica.thaw();
                self.addresses.lock().unwrap()[number] = Some(node.replica.addr());
            }
            // Ends with what was caught.
            CutBeforeCommit | CutAfterCommit => {}
            Cut => node.network.cut(),
            Restart => {
                block_in_place(|| self.server.crash());
                sleep(random.millis(0..500)).await;
                self.server.restart().await;
            }
        }
        true
    }

    async fn paid(&self) -> Vec<Paid> {
        let sql = "SELECT request, account, number, balance FROM public.payments ORDER BY number";
        let rows = self.database.client().await.query(sql, &[]).await.unwrap();
        let paid = rows.iter().map(|row| Paid {
            key: row.get(0),
            account: row.get(1),
            number: row.get(2),
            balance: row.get(3),
        });
        paid.collect()
    }
}

/// As in the example, for a role with few rights.
const TABLES: &str = "
CREATE TABLE public.accounts (id text PRIMARY KEY, balance bigint NOT NULL);
CREATE TABLE public.payments (number bigint GENERATED ALWAYS AS IDENTITY, request text NOT NULL, account text NOT NULL,
    balance bigint NOT NULL);
GRANT ALL ON public.accounts, public.payments TO app";

fn replica(database: &Database, network: &AtCommit) -> Replica {
    let url = database.url_through(network.port());
    let lease = LEASE.as_millis().to_string();
    let settings = [
        ("DATABASE", &*url),
        ("LEASE_MS", &*lease),
        ("MIGRATED", "yes"),
    ];
    block_in_place(|| Replica::start_example("payments", &settings))
}

/// Sends a payment to any process until it is acknowledged, and some of them once more.
async fn pay(number: u64, addresses: &Addresses, history: &History, random: &mut Random) {
    let key = format!("order-{number}");
    let request = format!(
        "POST /accounts/{}/payments HTTP/1.1\r\nhost: localhost\r\nx-tenant-id: acme\r\n\
         idempotency-key: {key}\r\nconnection: close\r\ncontent-length: 1\r\n\r\n1",
        number % ACCOUNTS
    );
    let mut wanted = if random.percent(30) { 2 } else { 1 };
    let until = Instant::now() + Duration::from_secs(120);
    while wanted > 0 {
        assert!(Instant::now() < until, "{key} is never acknowledged");
        let to = {
            let addresses = addresses.lock().unwrap();
            addresses[random.within(0..addresses.len() as u64) as usize]
        };
        let Some(to) = to else {
            sleep(Duration::from_millis(20)).await;
            continue;
        };
        // Some clients do not wait, and ask somebody else meanwhile.
        let patience = match random.percent(10) {
            true => random.millis(0..100),
            false => LIMIT,
        };
        let answer = timeout(patience, exchange(to, &request)).await;
        let answer = answer.ok().flatten();
        let is_paid = answer.as_ref().is_some_and(|(status, _)| *status == 201);
        let key = key.clone();
        history.seen.lock().unwrap().push(Seen { key, answer });
        if is_paid {
            wanted -= 1;
        } else {
            sleep(random.millis(10..60)).await;
        }
    }
}

/// `None` if the connection ended without an answer.
async fn exchange(addr: SocketAddr, request: &str) -> Option<(u16, String)> {
    let mut stream = TcpStream::connect(addr).await.ok()?;
    stream.write_all(request.as_bytes()).await.ok()?;
    let mut reply = String::new();
    stream.read_to_string(&mut reply).await.ok()?;
    let (head, body) = reply.split_once("\r\n\r\n")?;
    let status = head.split(' ').nth(1)?.parse().ok()?;
    Some((status, body.to_owned()))
}

/// All that is wrong.
fn check(seen: &[Seen], paid: &[Paid]) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut by_key: HashMap<&str, &Paid> = HashMap::new();
    let mut balances: HashMap<&str, i64> = HashMap::new();
    for payment in paid {
        if by_key.insert(&payment.key, payment).is_some() {
            wrong.push(format!("paid twice: {payment:?}"));
        }
        // Payments of an account never overlap: each one has read what the last one has written.
        let before = balances.entry(&payment.account).or_insert(FIRST_BALANCE);
        if payment.balance != *before - 1 {
            wrong.push(format!(
                "{payment:?} has not read the balance {before} of the last"
            ));
        }
        *before = payment.balance;
    }
    for Seen { key, answer } in seen {
        let Some((status, body)) = answer else {
            continue;
        };
        match (status, by_key.get(&**key)) {
            (201, Some(payment)) => {
                let Paid {
                    number, balance, ..
                } = payment;
                if *body != format!("payment {number}, balance {balance}\n") {
                    wrong.push(format!(
                        "{key} was answered with {body}, and is {payment:?}"
                    ));
                }
            }
            (201, None) => wrong.push(format!("{key} was acknowledged, and is not there")),
            // Lost, held, unreachable: may be sent again.
            (409 | 423 | 503, _) => {}
            _ => wrong.push(format!("{key}: {status} {body}")),
        }
    }
    let acknowledged = |key: &str| {
        let mut of_key = seen.iter().filter(|seen| seen.key == key);
        of_key.any(|seen| matches!(seen.answer, Some((201, _))))
    };
    let unknown = paid.iter().filter(|payment| !acknowledged(&payment.key));
    wrong.extend(unknown.map(|payment| format!("never acknowledged: {payment:?}")));
    wrong
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_payment_is_made_once_whatever_happens() {
    let number = |name, default| env::var(name).map_or(default, |text| text.parse().unwrap());
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let seed = number("TDL_PAYMENTS_SEED", now.as_millis() as u64);
    let at_least = number("TDL_PAYMENTS", 100);
    println!("TDL_PAYMENTS_SEED={seed}");
    let mut world = World::start().await;
    let history = Arc::new(History::default());
    let (next, faults_over) = (Arc::new(AtomicU64::new(0)), Arc::<AtomicBool>::default());
    let mut clients = JoinSet::new();
    for client in 1..=CLIENTS {
        let (next, faults_over) = (next.clone(), faults_over.clone());
        let (addresses, history) = (world.addresses.clone(), history.clone());
        clients.spawn(async move {
            let mut random = Random::stream(seed, client);
            while !faults_over.load(Relaxed) {
                let number = next.fetch_add(1, Relaxed);
                pay(number, &addresses, &history, &mut random).await;
                sleep(random.millis(0..100)).await;
            }
        });
    }

    let mut random = Random::new(seed);
    let is_missing = |fault: &Fault| !history.faults.lock().unwrap().contains_key(fault);
    loop {
        // None of them ends by itself before the faults are over.
        while let Some(client) = clients.try_join_next() {
            client.unwrap();
        }
        let mut deck = FAULTS;
        random.shuffle(&mut deck);
        let mut deck = deck.to_vec();
        if next.load(Relaxed) >= at_least {
            deck.retain(is_missing);
        }
        if deck.is_empty() {
            break;
        }
        for fault in deck {
            let number = random.within(0..world.nodes.len() as u64) as usize;
            if world.inject(fault, number, &mut random).await {
                *history.faults.lock().unwrap().entry(fault).or_default() += 1;
            }
            sleep(random.millis(0..200)).await;
        }
    }
    faults_over.store(true, Relaxed);
    while let Some(client) = clients.join_next().await {
        client.unwrap();
    }
    // Every payment once more, when all is quiet.
    let payments = next.load(Relaxed);
    for client in 0..CLIENTS {
        let (addresses, history) = (world.addresses.clone(), history.clone());
        clients.spawn(async move {
            let mut random = Random::stream(seed, CLIENTS + 1 + client);
            for number in (client..payments).step_by(CLIENTS as usize) {
                pay(number, &addresses, &history, &mut random).await;
            }
        });
    }
    while let Some(client) = clients.join_next().await {
        client.unwrap();
    }
    // A transaction of a process that was killed may still end.
    eventually("no transaction is open", async || {
        let open = "SELECT count(*) FROM pg_stat_activity WHERE xact_start IS NOT NULL \
                    AND datname = current_database() AND pid <> pg_backend_pid()";
        world.database.number(open).await == 0
    })
    .await;

    let paid = world.paid().await;
    let seen = history.seen.lock().unwrap();
    let acknowledged = seen
        .iter()
        .filter(|seen| matches!(seen.answer, Some((201, _))))
        .count();
    println!(
        "{} payments, {} requests, {acknowledged} acknowledged; {:?}",
        paid.len(),
        seen.len(),
        history.faults.lock().unwrap()
    );
    let wrong = check(&seen, &paid);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert_eq!(paid.len() as u64, payments);
}

#[test]
fn the_checker_finds_what_is_wrong() {
    let paid = |key: &str, number, balance| Paid {
        key: key.into(),
        account: "a".into(),
        number,
        balance: FIRST_BALANCE - balance,
    };
    let seen = |key: &str, number, balance: i64| Seen {
        key: key.into(),
        answer: Some((
            201,
            format!("payment {number}, balance {}\n", FIRST_BALANCE - balance),
        )),
    };
    let both = || vec![seen("x", 1, 1), seen("y", 2, 2), seen("x", 1, 1)];
    let good = [paid("x", 1, 1), paid("y", 2, 2)];
    assert!(check(&both(), &good).is_empty());
    for (what, seen, paid) in [
        (
            "paid twice",
            both(),
            vec![paid("x", 1, 1), paid("y", 2, 2), paid("x", 3, 3)],
        ),
        ("is not there", both(), vec![paid("x", 1, 1)]),
        ("never acknowledged", vec![seen("x", 1, 1)], good.into()),
        ("was answered", vec![seen("x", 2, 2)], vec![paid("x", 1, 1)]),
        (
            "has not read",
            both(),
            vec![paid("x", 1, 1), paid("y", 2, 1)],
        ),
    ] {
        let wrong = check(&seen, &paid);
        assert!(
            wrong.iter().any(|wrong| wrong.contains(what)),
            "{what}: {wrong:?}"
        );
    }
}
