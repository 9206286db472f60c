//! How a store gets in: TLS, certificates, credentials that rotate; and what it says of itself.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use tower_distributed_lock::{
    Error, ErrorKind,
    store::{Credentials, PostgresStore, PostgresStoreBuilder, Store},
};

use crate::{
    start,
    support::{
        authority::Authority, eventually, postgres::PostgresServer, warnings::Warnings, words::*,
    },
};

/// A server that accepts TLS only, and asks clients for a certificate or not.
async fn tls_server(authority: &Authority, asks_clients: bool) -> PostgresServer {
    let server = PostgresServer::start().await;
    for name in ["server.pem", "server.key", "ca.pem"] {
        server.add_file(name, &authority.pem(name));
    }
    let client = if asks_clients {
        "clientcert=verify-ca"
    } else {
        ""
    };
    let rule = format!("hostssl all all 127.0.0.1/32 trust {client}\n");
    server
        .execute("ALTER SYSTEM SET ssl_cert_file = 'server.pem'; ")
        .await;
    for setting in [
        "ssl_key_file = 'server.key'",
        "ssl_ca_file = 'ca.pem'",
        "ssl = on",
    ] {
        server.execute(&format!("ALTER SYSTEM SET {setting}")).await;
    }
    server.add_file("pg_hba.conf", rule.as_bytes());
    server.execute("SELECT pg_reload_conf()").await;
    server
}

fn builder(server: &PostgresServer, more: &str) -> PostgresStoreBuilder {
    let url = format!(
        "postgres://postgres@localhost:{}/postgres{more}",
        server.port()
    );
    PostgresStore::builder(url).timeout(Duration::from_secs(5))
}

async fn refused(builder: PostgresStoreBuilder) -> Error {
    let store = builder.build().unwrap();
    let error = store.ping().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
    error
}

async fn assert_locks_work(builder: PostgresStoreBuilder) {
    let store = builder.build().unwrap();
    eventually("the server has its new settings", async || {
        store.migrate().await.is_ok()
    })
    .await;
    store.take(&key("k"), owner()).await;
    store.force_release(key("k")).await.unwrap();
    drop(store.watch_for_sure(owner().instance).await);
}

#[tokio::test]
async fn locks_work_over_tls_with_a_private_authority() {
    let authority = Authority::new();
    let server = tls_server(&authority, false).await;
    let trusting = |more| builder(&server, more).root_certificates(authority.pem("ca.pem"));
    assert_locks_work(trusting("?sslmode=require")).await;
    assert_locks_work(trusting("?sslmode=verify-full")).await;
    // Not encrypted; an authority that nobody trusts; another name than in the certificate.
    refused(builder(&server, "")).await;
    refused(builder(&server, "?sslmode=require")).await;
    let other = Authority::new();
    refused(builder(&server, "?sslmode=require").root_certificates(other.pem("ca.pem"))).await;
    let url = format!(
        "postgres://postgres@ip6-localhost:{}/?sslmode=require&hostaddr=127.0.0.1",
        server.port()
    );
    refused(PostgresStore::builder(url).root_certificates(authority.pem("ca.pem"))).await;
}

#[tokio::test]
async fn a_server_that_asks_for_it_is_shown_the_certificate_of_the_client() {
    let authority = Authority::new();
    let server = tls_server(&authority, true).await;
    let trusting =
        || builder(&server, "?sslmode=require").root_certificates(authority.pem("ca.pem"));
    let with =
        trusting().client_certificate(authority.pem("client.pem"), authority.pem("client.key"));
    assert_locks_work(with).await;
    refused(trusting()).await;
}

#[test]
fn certificates_that_cannot_work_are_refused() {
    let authority = Authority::new();
    let builder = |more: &str| PostgresStore::builder(format!("postgres://localhost/{more}"));
    let [ca, client, key] = ["ca.pem", "client.pem", "client.key"].map(|it| authority.pem(it));
    let other = authority.pem("server.key");
    for refused in [
        builder("").root_certificates(ca.clone()),
        builder("?sslmode=require").root_certificates("nonsense"),
        builder("?sslmode=require").client_certificate(client.clone(), other),
        builder("").client_certificate(client, key),
    ] {
        let refused = refused.build().unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InvalidConfig, "{refused}");
    }
}

#[tokio::test]
async fn every_connection_asks_for_its_credentials() {
    let (database, _) = start().await;
    let role = format!("rotating_{}", database.name());
    let sql = format!(
        "CREATE ROLE {role} LOGIN; GRANT USAGE ON SCHEMA tdl TO {role}; \
         GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA tdl TO {role}"
    );
    database.execute(&sql).await;
    let asked = Arc::new(AtomicUsize::new(0));
    let store = PostgresStore::builder(database.url_as("nobody")).credentials({
        let asked = asked.clone();
        move || {
            let (role, count) = (role.clone(), asked.fetch_add(1, Ordering::Relaxed));
            async move {
                // The first answer is none.
                (count > 0)
                    .then(|| Credentials::new(role, "secret"))
                    .ok_or("no secret yet")
            }
        }
    });
    let store = store.timeout(Duration::from_secs(10)).build().unwrap();
    let failed = store.ping().await.unwrap_err();
    assert!(failed.to_string().contains("no secret yet"), "{failed}");
    store.ping().await.unwrap();
    let before = asked.load(Ordering::Relaxed);
    database.end_sessions("tower-distributed-lock").await;
    eventually("the store answers", async || store.ping().await.is_ok()).await;
    assert!(asked.load(Ordering::Relaxed) > before);
}

#[tokio::test]
async fn a_lease_has_the_label_of_its_store() {
    let (database, store) = start().await;
    let labelled = PostgresStore::builder(database.url()).label("web-3");
    let labelled = labelled.timeout(Duration::from_secs(10)).build().unwrap();
    let (key, a) = (key("k"), owner());
    labelled.take(&key, a).await;
    labelled.renew_one(renewal(&key, a, 0)).await;
    let seen = store.see(&key).await;
    assert_eq!(seen.holders[0].label.as_deref(), Some("web-3"));
    let held = held(store.ask(&key, owner()).await);
    assert_eq!(held.label.as_deref(), Some("web-3"));
    let refused = PostgresStore::builder(database.url()).label("a b").build();
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::InvalidConfig);
}

#[tokio::test]
async fn records_on_a_server_that_may_lose_them_are_warned_of_once() {
    // The tests' servers run without fsync.
    let (_database, store) = start().await;
    let warnings = Warnings::default();
    let _collecting = tracing::subscriber::set_default(warnings.clone());
    store.ping().await.unwrap();
    assert_eq!(warnings.count("postgres.forgets"), 0);
    store.expect_records();
    store.expect_records();
    store.ping().await.unwrap();
    assert_eq!(warnings.count("postgres.forgets"), 1, "{}", warnings.all());
}
