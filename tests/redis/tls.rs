//! TLS with a private certificate authority, and with servers that ask for the certificate of a
//! client.

use std::process::{Child, Command, Stdio};

use redis::Value;
use tower_distributed_lock::{
    Error, ErrorKind,
    store::{RedisStore, RedisStoreBuilder, Store},
};

use crate::support::{
    authority::Authority,
    eventually,
    redis_server::{RedisServer, binary, free_port},
    words::*,
};

/// A server that listens for TLS.
struct TlsServer {
    server: RedisServer,
    port: u16,
}

impl TlsServer {
    async fn start(authority: &Authority, auth_clients: &str, more: &[&str]) -> Self {
        let port = free_port();
        let arguments = authority.arguments(port, auth_clients);
        let mut arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        arguments.extend(more);
        let server = RedisServer::start_with(&arguments).await;
        Self { server, port }
    }

    fn url(&self) -> String {
        format!("rediss://localhost:{}/", self.port)
    }
}

fn with_client_certificate(builder: RedisStoreBuilder, authority: &Authority) -> RedisStoreBuilder {
    builder
        .root_certificates(authority.pem("ca.pem"))
        .client_certificate(authority.pem("client.pem"), authority.pem("client.key"))
}

/// Takes and frees a key, and receives hints.
async fn assert_locks_work(store: &RedisStore) {
    let (key, a) = (key("k"), owner());
    store.take(&key, a).await;
    store.free(&key, a).await;
    drop(store.watch_for_sure(owner().instance).await);
}

fn invalid(built: Result<RedisStore, Error>) -> String {
    let error = built.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}");
    error.to_string()
}

async fn refused(builder: RedisStoreBuilder) -> String {
    let error = builder.connect().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error:?}");
    error.to_string()
}

#[tokio::test]
async fn a_server_of_a_private_authority_is_trusted_only_with_the_certificate_of_the_authority() {
    let (authority, other) = (Authority::new(), Authority::new());
    let server = TlsServer::start(&authority, "no", &[]).await;
    let builder = || RedisStore::builder(server.url());
    let store = builder().root_certificates(authority.pem("ca.pem"));
    assert_locks_work(&store.connect().await.unwrap()).await;
    // Several authorities in one PEM are all trusted.
    let both = [other.pem("ca.pem"), authority.pem("ca.pem")].concat();
    let store = builder().root_certificates(both).connect().await;
    assert_locks_work(&store.unwrap()).await;

    for distrusted in [builder(), builder().root_certificates(other.pem("ca.pem"))] {
        let error = refused(distrusted).await;
        assert!(error.contains("TLS"), "{error}");
        assert!(error.contains("certificate"), "{error}");
    }
}

#[tokio::test]
async fn a_server_that_asks_for_a_certificate_accepts_only_clients_with_one_that_it_trusts() {
    let (authority, other) = (Authority::new(), Authority::new());
    let server = TlsServer::start(&authority, "yes", &[]).await;
    let store = with_client_certificate(RedisStore::builder(server.url()), &authority);
    let store = store.connect().await.unwrap();
    assert_locks_work(&store).await;
    // Connections that are made later have the certificate as well.
    server.server.break_connections().await;
    eventually("the store is back", async || store.ping().await.is_ok()).await;

    let trusting = RedisStore::builder(server.url()).root_certificates(authority.pem("ca.pem"));
    let foreign = (other.pem("client.pem"), other.pem("client.key"));
    for unknown in [
        trusting.clone(),
        trusting.client_certificate(foreign.0, foreign.1),
    ] {
        let error = refused(unknown).await;
        assert!(error.contains("TLS"), "{error}");
    }
}

#[tokio::test]
async fn the_nodes_of_a_cluster_get_the_certificates() {
    let authority = Authority::new();
    let cluster = ["--cluster-enabled", "yes", "--tls-cluster", "yes"];
    let node = TlsServer::start(&authority, "yes", &cluster).await;
    let slots: Vec<String> = (0..16384).map(|slot| slot.to_string()).collect();
    let mut command = vec!["CLUSTER", "ADDSLOTS"];
    command.extend(slots.iter().map(String::as_str));
    let _: Value = node.server.send(&command).await;
    eventually("the Cluster is complete", async || {
        let info: String = node.server.send(&["CLUSTER", "INFO"]).await;
        info.contains("cluster_state:ok")
    })
    .await;
    let store = with_client_certificate(RedisStore::cluster([node.url()]), &authority);
    assert_locks_work(&store.connect().await.unwrap()).await;
}

/// A sentinel that is reached by TLS only, killed with the test.
struct TlsSentinel(Child);

impl TlsSentinel {
    fn start(authority: &Authority, port: u16, primary: u16) -> Self {
        let file = authority.path("sentinel.conf");
        let config = [
            "port 0\nbind 127.0.0.1\ntls-replication yes\n",
            &format!("tls-port {port}\n"),
            &format!("tls-cert-file {}\n", authority.path("server.pem")),
            &format!("tls-key-file {}\n", authority.path("server.key")),
            &format!("tls-ca-cert-file {}\n", authority.path("ca.pem")),
            &format!("sentinel monitor mymaster 127.0.0.1 {primary} 1\n"),
        ];
        std::fs::write(&file, config.concat()).unwrap();
        let child = Command::new(binary())
            .args([&file, "--sentinel"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        Self(child.expect("a server that starts can be a sentinel, too"))
    }
}

impl Drop for TlsSentinel {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[tokio::test]
async fn sentinels_and_their_primary_get_the_certificates() {
    let authority = Authority::new();
    let primary = TlsServer::start(&authority, "yes", &[]).await;
    let port = free_port();
    let _sentinel = TlsSentinel::start(&authority, port, primary.port);
    let sentinel = format!("rediss://127.0.0.1:{port}/");
    let store = RedisStore::sentinel([sentinel], "rediss://mymaster");
    let store = with_client_certificate(store, &authority).build().unwrap();
    eventually("the sentinel is up", async || store.ping().await.is_ok()).await;
    assert_locks_work(&store).await;
}

#[tokio::test]
async fn certificates_that_cannot_work_are_refused_before_the_first_connection() {
    let (authority, other) = (Authority::new(), Authority::new());
    let builder = || RedisStore::builder("rediss://localhost/");
    let certificate = authority.pem("client.pem");

    let error = invalid(builder().root_certificates("no PEM at all").build());
    assert!(error.contains("no certificate"), "{error}");
    let broken = "-----BEGIN CERTIFICATE-----\n*\n-----END CERTIFICATE-----\n";
    let error = invalid(builder().root_certificates(broken).build());
    assert!(error.contains("root certificates"), "{error}");
    let empty = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    let error = invalid(builder().root_certificates(empty).build());
    assert!(error.contains("malformed"), "{error}");

    let error = builder().client_certificate(certificate.clone(), "no PEM at all");
    let error = invalid(error.build());
    assert!(error.contains("key"), "{error}");
    let error = builder().client_certificate("no PEM at all", authority.pem("client.key"));
    let error = invalid(error.build());
    assert!(error.contains("client certificate"), "{error}");
    let error = builder().client_certificate(certificate, other.pem("client.key"));
    let error = invalid(error.build());
    assert!(error.contains("do not fit together"), "{error}");

    let plain = RedisStore::builder("redis://localhost/");
    let error = invalid(plain.root_certificates(authority.pem("ca.pem")).build());
    assert!(error.contains("`rediss://`"), "{error}");
}

#[tokio::test]
async fn a_url_with_the_scheme_of_valkey_uses_the_certificates() {
    let authority = Authority::new();
    let server = TlsServer::start(&authority, "yes", &[]).await;
    let url = server.url().replace("rediss://", "valkeys://");
    let store = with_client_certificate(RedisStore::builder(url), &authority);
    assert_locks_work(&store.connect().await.unwrap()).await;
}
