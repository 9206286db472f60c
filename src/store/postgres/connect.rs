//! Connections to the server, and what each asks first.

use std::{
    future::poll_fn,
    sync::{
        Arc, Once,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    time::{Duration, Instant as StdInstant},
};

use tokio::{
    sync::mpsc::{UnboundedReceiver, unbounded_channel},
    task::JoinHandle,
};
use tokio_postgres::{
    AsyncMessage, Client, Config, Notification, Row,
    error::{Severity, SqlState},
    types::{ToSql, Type},
};

use super::listener::Watchers;
use crate::{
    Error, ErrorKind,
    store::{Hint, Outcome, credentials::Provider},
    sync::Mutex,
    time::{Instant, later, now, timeout, timeout_at},
    trace::{self, ConnectResult, Connection},
};

#[cfg(feature = "tls-rustls")]
pub(super) use super::tls::Tls;
#[cfg(not(feature = "tls-rustls"))]
pub(super) use tokio_postgres::NoTls as Tls;

/// A connection on which an answer is due is given up after a silence of this many time limits.
pub(super) const SILENT_LIMITS: u32 = 3;

/// The version of the tables and functions that this crate works with.
const VERSION: i32 = 1;

/// The server, as all connections of a store see it.
#[derive(Debug)]
pub(super) struct Server {
    pub(super) config: Config,
    /// Where hints are listened to.
    pub(super) listen: Config,
    /// The name of the key space.
    pub(super) space: Arc<str>,
    pub(super) schema: String,
    /// The time limit of a connect.
    pub(super) limit: Duration,
    pub(super) tls: Tls,
    /// Asked for the credentials of each new connection.
    pub(super) provider: Option<Provider>,
    pub(super) watchers: Watchers,
    /// Whether the store keeps records of idempotent work.
    pub(super) keeps_records: AtomicBool,
    /// That they may be lost is said once.
    pub(super) warned: Once,
    pub(super) known: Mutex<Option<Known>>,
}

/// What the last connection was told.
#[derive(Debug, Clone)]
pub(super) struct Known {
    /// Changes when the server may have forgotten something.
    boot: String,
    /// How long ago that was, and when this was said.
    age: Duration,
    said: StdInstant,
    server: Arc<str>,
    /// Whether a crash of the server loses what was committed.
    is_forgetful: bool,
}

/// A connection, and the task that drives it. Dropped, it ends when its statements are answered.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) client: Client,
    /// Ends with the connection.
    pub(super) messages: UnboundedReceiver<Notification>,
    task: JoinHandle<()>,
    tls: Tls,
}

/// A parameter with its type, so that no statement has to be prepared.
pub(super) type Param<'a> = (&'a (dyn ToSql + Sync), Type);

impl Session {
    pub(super) async fn query(&self, sql: &str, params: &[Param<'_>]) -> Result<Vec<Row>, Error> {
        let rows = self.client.query_typed(sql, params).await;
        rows.or_else(|error| failed(error).into_result())
    }

    /// Gives up a connection on which an answer is due, without waiting for the answer. Locks of its
    /// statements would be in the way of others, so they are cancelled.
    pub(super) fn cancel(self, limit: Duration) {
        let cancel = self.client.cancel_token();
        tokio::spawn(timeout(limit, async move {
            cancel.cancel_query(self.tls).await
        }));
        self.task.abort();
    }

    /// Gives up a connection on which a commit may be due. That may wait for a standby, and a server
    /// that is told to cancel it commits without the standby. So the keys of its statements wait,
    /// and the connection ends with the answer.
    pub(super) fn leave(self) -> JoinHandle<()> {
        self.task
    }
}

impl Server {
    pub(super) fn name(&self) -> String {
        name(&self.config)
    }

    pub(super) async fn in_time<T>(
        &self,
        limit: Duration,
        made: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        let made = timeout(limit, made).await;
        made.unwrap_or_else(|| Err(self.silent(limit)))
    }

    /// The error of a call without an answer.
    pub(super) fn silent(&self, limit: Duration) -> Error {
        let message = format!(
            "PostgreSQL at {} did not answer within {limit:?}",
            self.name()
        );
        Error::new(ErrorKind::Unreachable, message)
    }

    /// Makes a connection for calls.
    pub(super) async fn connect(&self) -> Result<Session, Error> {
        let connecting = async {
            let mut session = self.open(&self.config).await?;
            // A pooler may pass on what another client listens to: nobody would take it.
            session.messages.close();
            self.greet(&session.client).await?;
            Ok(session)
        };
        let connected = self.in_time(self.limit, connecting).await;
        trace::connected(Connection::Calls, ConnectResult::of(&connected));
        connected
    }

    /// Runs a statement that is about no key on a connection of its own: lanes make swaps.
    pub(super) async fn query(&self, sql: &str, params: &[Param<'_>]) -> Result<Vec<Row>, Error> {
        let until = later(now(), self.limit);
        let session = self.connect().await?;
        let rows = self.query_on(session, sql, params, until).await;
        rows.map(|(_, rows)| rows)
    }

    /// Runs a statement on a connection, which is given up if the answer does not come in time.
    pub(super) async fn query_on(
        &self,
        session: Session,
        sql: &str,
        params: &[Param<'_>],
        until: Instant,
    ) -> Result<(Session, Vec<Row>), Error> {
        if let Some(rows) = timeout_at(until, session.query(sql, params)).await {
            return Ok((session, rows?));
        }
        session.cancel(self.limit);
        Err(self.silent(self.limit))
    }

    pub(super) async fn open(&self, config: &Config) -> Result<Session, Error> {
        let mut config = config.clone();
        if let Some(provider) = &self.provider {
            let credentials = provider.ask().await?;
            if let Some(user) = credentials.user {
                config.user(user);
            }
            config.password(credentials.password);
        }
        let connected = config.connect(self.tls.clone()).await.map_err(|error| {
            let (name, why) = (self.name(), text(&error));
            let message = format!("cannot connect to PostgreSQL at {name}: {why}");
            Error::with_source(ErrorKind::Unreachable, message, error)
        });
        let (client, mut connection) = connected?;
        let (sender, messages) = unbounded_channel();
        let task = tokio::spawn(async move {
            while let Some(Ok(message)) = poll_fn(|cx| connection.poll_message(cx)).await {
                if let AsyncMessage::Notification(message) = message {
                    let _ = sender.send(message);
                }
            }
        });
        Ok(Session {
            client,
            messages,
            task,
            tls: self.tls.clone(),
        })
    }

    /// Checks that the server has what this crate needs, and notes who it is.
    pub(super) async fn greet(&self, client: &Client) -> Result<(), Error> {
        let sql = format!(
            "SELECT h.version, h.boot, h.since, h.clock, h.server, \
             current_setting('transaction_isolation'), current_setting('server_encoding'), \
             'off' IN (current_setting('fsync'), current_setting('synchronous_commit')) \
             FROM {}.hello_1() h",
            self.schema
        );
        let rows = client.query_typed(&sql, &[]).await;
        let rows = rows.map_err(|error| self.not_migrated(error))?;
        let row = rows.first().ok_or_else(|| self.wrong_version(None))?;
        let version: Option<i32> = row.get(0);
        if version != Some(VERSION) {
            return Err(self.wrong_version(version));
        }
        let (isolation, encoding): (String, String) = (row.get(5), row.get(6));
        if isolation != "read committed" {
            return Err(invalid(format!(
                "the store needs transactions that are READ COMMITTED, and these are {isolation}: \
                 ALTER ROLE … SET default_transaction_isolation = 'read committed'"
            )));
        }
        if encoding != "UTF8" {
            return Err(invalid(format!(
                "keys can be any text, and the encoding of the database is {encoding}, not UTF8"
            )));
        }
        let (since, clock): (i64, i64) = (row.get(2), row.get(3));
        self.greeted(Known {
            boot: row.get(1),
            age: Duration::from_micros(clock.saturating_sub(since).max(0).cast_unsigned()),
            said: StdInstant::now(),
            server: row.get::<_, String>(4).into(),
            is_forgetful: row.get(7),
        });
        Ok(())
    }

    /// Notes who the server is. Leases are doubted if it may have forgotten some.
    fn greeted(&self, now: Known) {
        let before = self.known.lock().replace(now.clone());
        if before.is_some_and(|before| before.boot != now.boot) {
            self.watchers.tell_all(&Hint::Reconnected);
        }
        self.warn_once();
    }

    /// See [`Store::expect_records`](crate::store::Store::expect_records).
    pub(super) fn expect_records(&self) {
        self.keeps_records.store(true, SeqCst);
        self.warn_once();
    }

    fn warn_once(&self) {
        let is_forgetful = self.known.lock().as_ref().is_some_and(|it| it.is_forgetful);
        if is_forgetful && self.keeps_records.load(SeqCst) {
            self.warned
                .call_once(|| trace::postgres_forgets(&self.name()));
        }
    }

    pub(super) fn uptime(&self) -> Duration {
        let known = self.known.lock();
        let known = known.as_ref();
        known.map_or(Duration::ZERO, |it| it.age + it.said.elapsed())
    }

    pub(super) fn id(&self) -> Option<Arc<str>> {
        self.known.lock().as_ref().map(|known| known.server.clone())
    }

    fn not_migrated(&self, error: tokio_postgres::Error) -> Error {
        let missing = [
            SqlState::UNDEFINED_FUNCTION,
            SqlState::UNDEFINED_TABLE,
            SqlState::INVALID_SCHEMA_NAME,
        ];
        if error.code().is_some_and(|code| missing.contains(code)) {
            return self.wrong_version(None);
        }
        let message = format!("PostgreSQL at {}: {}", self.name(), text(&error));
        Error::with_source(ErrorKind::Unreachable, message, error)
    }

    fn wrong_version(&self, found: Option<i32>) -> Error {
        let (name, schema) = (self.name(), &self.schema);
        let found = found.map_or_else(
            || "are not there".to_owned(),
            |version| format!("have version {version}, not {VERSION}"),
        );
        invalid(format!(
            "the tables of the store {found}, in the schema `{schema}` at {name}: \
             call `PostgresStore::migrate`, or run its `schema.sql`"
        ))
    }
}

/// The hosts and the database, for messages and as the name of the key space.
pub(super) fn name(config: &Config) -> String {
    let hosts = config.get_hosts().iter().map(|host| match host {
        tokio_postgres::config::Host::Tcp(name) => name.clone(),
        #[cfg(unix)]
        tokio_postgres::config::Host::Unix(path) => path.display().to_string(),
    });
    let hosts: Vec<String> = hosts.collect();
    let ports: Vec<String> = config.get_ports().iter().map(u16::to_string).collect();
    let database = config.get_dbname().unwrap_or_default();
    format!("{}:{}/{database}", hosts.join(","), ports.join(","))
}

pub(super) fn invalid(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidConfig, message)
}

/// The server's own words: the error of the driver says `db error`.
fn text(error: &tokio_postgres::Error) -> String {
    match error.as_db_error() {
        Some(said) => format!("{} ({})", said.message(), said.code().code()),
        None => match std::error::Error::source(error) {
            Some(cause) => format!("{error}: {cause}"),
            None => error.to_string(),
        },
    }
}

/// The outcome of a statement that has failed.
///
/// A statement is a transaction of its own. After an error that the server reports, it was rolled
/// back; but a server that ends the session may do so after the commit. A pooler that has lost its
/// server reports an error as well, without this field for the severity, which is the server's own.
pub(super) fn failed<T>(error: tokio_postgres::Error) -> Outcome<T> {
    let message = format!("PostgreSQL: {}", text(&error));
    match error.as_db_error() {
        Some(said) if said.parsed_severity() == Some(Severity::Error) => {
            Outcome::Refused(Error::with_source(ErrorKind::Unreachable, message, error))
        }
        _ => Outcome::Unknown(Error::broken(message, Some(error.into()))),
    }
}
