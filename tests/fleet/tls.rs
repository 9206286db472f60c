//! Locks over TLS.

use std::{net::TcpListener, path::Path, process::Command};

use crate::processes::Client;
use crate::support::{redis_server::RedisServer, replica::Replica};

/// A certificate for `localhost` that is trusted only where a test says so.
fn certificate(folder: &Path) {
    let made = Command::new("openssl")
        .args([
            "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2",
        ])
        .args([
            "-subj",
            "/CN=localhost",
            "-addext",
            "subjectAltName=DNS:localhost",
        ])
        .args(["-addext", "basicConstraints=critical,CA:FALSE"])
        .args(["-keyout", "key.pem", "-out", "cert.pem"])
        .current_dir(folder)
        .output();
    let made = made.expect("`openssl` is there: install it");
    assert!(
        made.status.success(),
        "{}",
        String::from_utf8_lossy(&made.stderr)
    );
}

#[tokio::test]
async fn a_replica_locks_over_tls() {
    let folder = std::env::temp_dir().join(format!("tdl-tls-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    certificate(&folder);
    let path = |name: &str| folder.join(name).to_str().unwrap().to_owned();
    let port = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    let server = RedisServer::start_with(&[
        "--tls-port",
        &port.to_string(),
        "--tls-cert-file",
        &path("cert.pem"),
        "--tls-key-file",
        &path("key.pem"),
        "--tls-auth-clients",
        "no",
    ])
    .await;
    let (store, ledger) = (format!("rediss://localhost:{port}/"), server.url());
    let replica = Replica::start(&[
        ("STORE", &store),
        ("LEDGER", &ledger),
        ("SSL_CERT_FILE", &path("cert.pem")),
    ]);
    let deposit = replica.deposit("a", 0).await.unwrap();
    assert_eq!((deposit.status, deposit.number("balance")), (200, 1));
    assert!(replica.terminate());
    std::fs::remove_dir_all(&folder).unwrap();
}
