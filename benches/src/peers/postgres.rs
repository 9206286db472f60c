//! What people write with PostgreSQL: an advisory lock of a session, and a row with a lease. Both on a pool of ten connections.

use std::{
    ops::Deref,
    sync::{Arc, Mutex},
    time::Duration,
};

use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::sleep,
};
use tokio_postgres::{Client as Session, Statement};
use uuid::Uuid;

use super::{Client, Key, LEASE};
use crate::postgres_server::connect;

const CONNECTIONS: usize = 10;
const RETRY: Duration = Duration::from_millis(10);

/// `pg_advisory_lock`, which keeps a connection for as long as the lock is held or waited for.
#[derive(Clone)]
pub struct AdvisoryLock(Pool);

/// `INSERT … ON CONFLICT DO UPDATE … WHERE the lease is over`, asked again every 10 ms.
#[derive(Clone)]
pub struct LeaseRow(Pool);

const TABLE: &str = "CREATE TABLE IF NOT EXISTS leases (key text PRIMARY KEY, owner text NOT NULL, until timestamptz NOT NULL)";

#[derive(Clone)]
struct Pool {
    free: Arc<Semaphore>,
    idle: Arc<Mutex<Vec<Connection>>>,
}

pub struct Connection {
    session: Session,
    take: Statement,
    give: Statement,
}

/// A connection of the pool, to which it goes back when dropped: the end of a slice drops tasks that wait.
pub struct Taken {
    connection: Option<Connection>,
    idle: Arc<Mutex<Vec<Connection>>>,
    // Dropped after the connection was put back.
    _permit: OwnedSemaphorePermit,
}

impl Deref for Taken {
    type Target = Connection;

    fn deref(&self) -> &Connection {
        self.connection.as_ref().expect("taken until dropped")
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.idle.lock().unwrap().extend(self.connection.take());
    }
}

impl Pool {
    async fn new(url: &str, take: &str, give: &str) -> Self {
        let mut idle = Vec::new();
        for _ in 0..CONNECTIONS {
            let session = connect(url).await;
            let (take, give) = (session.prepare(take).await, session.prepare(give).await);
            let (take, give) = (take.expect("a statement"), give.expect("a statement"));
            idle.push(Connection {
                session,
                take,
                give,
            });
        }
        Self {
            free: Arc::new(Semaphore::new(CONNECTIONS)),
            idle: Arc::new(Mutex::new(idle)),
        }
    }

    async fn get(&self) -> Taken {
        let permit = self
            .free
            .clone()
            .acquire_owned()
            .await
            .expect("the pool is open");
        let connection = self.idle.lock().unwrap().pop();
        Taken {
            connection,
            idle: self.idle.clone(),
            _permit: permit,
        }
    }
}

impl Client for AdvisoryLock {
    const NAME: &'static str = "pg_advisory_lock on a pool, by hand";
    const COMMANDS: &'static [&'static str] = &[];

    type Guard = (Taken, String);

    async fn connect(url: &str) -> Self {
        let take = "SELECT pg_advisory_lock(hashtextextended($1, 0))";
        let give = "SELECT pg_advisory_unlock(hashtextextended($1, 0))";
        Self(Pool::new(url, take, give).await)
    }

    async fn lock(&self, key: &Key) -> Self::Guard {
        let taken = self.0.get().await;
        let Connection { session, take, .. } = &*taken;
        session
            .execute(take, &[&key.text])
            .await
            .expect("the lock is granted");
        (taken, key.text.clone())
    }

    async fn release(&self, (taken, key): Self::Guard) {
        let Connection { session, give, .. } = &*taken;
        session
            .execute(give, &[&key])
            .await
            .expect("the lock was held");
    }
}

impl Client for LeaseRow {
    const NAME: &'static str = "a lease row, by hand";
    const COMMANDS: &'static [&'static str] = &[];

    type Guard = (String, String);

    async fn connect(url: &str) -> Self {
        let made = connect(url).await.batch_execute(TABLE).await;
        // Two at once may both find no table.
        let _ = made;
        let take = format!(
            "INSERT INTO leases VALUES ($1, $2, clock_timestamp() + interval '{} s') ON CONFLICT (key) DO UPDATE \
             SET owner = excluded.owner, until = excluded.until WHERE leases.until < clock_timestamp()",
            LEASE.as_secs()
        );
        let give = "UPDATE leases SET until = '-infinity' WHERE key = $1 AND owner = $2";
        Self(Pool::new(url, &take, give).await)
    }

    async fn lock(&self, key: &Key) -> Self::Guard {
        let owner = Uuid::new_v4().to_string();
        loop {
            let taken = self.0.get().await;
            let Connection { session, take, .. } = &*taken;
            let rows = session.execute(take, &[&key.text, &owner]).await;
            drop(taken);
            if rows.expect("an answer") == 1 {
                return (key.text.clone(), owner);
            }
            sleep(RETRY).await;
        }
    }

    async fn release(&self, (key, owner): Self::Guard) {
        let taken = self.0.get().await;
        let Connection { session, give, .. } = &*taken;
        session
            .execute(give, &[&key, &owner])
            .await
            .expect("an answer");
    }
}
