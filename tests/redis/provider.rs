//! The process-wide provider of cryptography of rustls. Each test runs in a separate process.

use std::{env, process::Command};

use rustls::crypto::{CryptoProvider, ring};
use tower_distributed_lock::store::RedisStore;

use crate::{server_and_store, support::words::*};

/// Whether this process runs this test alone. If not, runs the test in a new process, and waits
/// until the test has passed there.
fn is_alone(test: &str) -> bool {
    const ALONE: &str = "TDL_TEST_ALONE";
    if env::var_os(ALONE).is_some() {
        return true;
    }
    let child = Command::new(env::current_exe().unwrap())
        .args(["--exact", &format!("provider::{test}")])
        .env(ALONE, "1")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&child.stdout);
    assert!(child.status.success(), "{said}");
    assert!(said.contains("1 passed"), "{said}");
    false
}

#[tokio::test]
async fn a_plain_url_leaves_the_choice_to_the_application() {
    if !is_alone("a_plain_url_leaves_the_choice_to_the_application") {
        return;
    }
    let (_server, store) = server_and_store().await;
    store.take(&key("k"), owner()).await;
    ring::default_provider()
        .install_default()
        .expect("no provider is installed");
}

#[tokio::test]
async fn tls_installs_a_provider_if_the_application_has_none() {
    if !is_alone("tls_installs_a_provider_if_the_application_has_none") {
        return;
    }
    RedisStore::builder("rediss://localhost/").build().unwrap();
    assert!(CryptoProvider::get_default().is_some());
}

#[tokio::test]
async fn the_applications_own_provider_stays() {
    if !is_alone("the_applications_own_provider_stays") {
        return;
    }
    let mut own = ring::default_provider();
    own.cipher_suites.truncate(1);
    own.install_default().unwrap();
    RedisStore::builder("rediss://localhost/").build().unwrap();
    let provider = CryptoProvider::get_default().unwrap();
    assert_eq!(provider.cipher_suites.len(), 1);
}
