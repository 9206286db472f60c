//! The picture of the page in the README.

use std::{
    io::Write,
    path::Path,
    process::{Command, Stdio},
    time::Duration,
};

use serde_json::json;
use tokio::time::sleep;

use crate::{demo::Server, json::Fleet, traffic, webdriver::Browser};

/// Takes the picture anew, and writes it as an image for the README and as a data URI for the API
/// documentation:
///
/// `cargo test --all-features --test admin -- --ignored screenshot`
///
/// Needs the package `pngquant`.
#[tokio::test]
#[ignore = "changes files of the repository, and takes two minutes"]
async fn screenshot_for_the_readme() {
    let browser = Browser::start().await.expect("a browser");
    let fleet = Fleet::redis().await;
    let replicas = ["checkout-1", "checkout-2", "checkout-3"].map(|label| fleet.instance(label));
    for (number, locks) in (1..).zip(&replicas) {
        traffic::start(locks, number);
    }
    let server = Server::releasing(&replicas[0]).await;

    resize(&browser, 800).await;
    let hidden = json!({ "hidden": true });
    browser
        .devtools("Emulation.setScrollbarsHidden", hidden)
        .await;
    browser.go(&server.url("/locks")).await;
    // The plots need some history.
    sleep(Duration::from_secs(100)).await;
    browser.click("#tab-fleet").await;
    browser.run("document.activeElement.blur()").await;
    // Twelve rows are enough, and some of them should have a queue.
    let rows = "[...document.querySelectorAll('tbody tr')].slice(0, 12)";
    let queues = format!("{rows}.filter((row) => row.querySelector('.waiting')).length");
    browser
        .until(&format!("{rows}.length === 12 && {queues} >= 2"))
        .await;
    let bottom = format!("return Math.floor({rows}[11].getBoundingClientRect().bottom)");
    let height = browser.run(&bottom).await;
    resize(&browser, height.as_u64().unwrap()).await;
    write(&browser.screenshot().await);
}

/// Writes `docs/admin.png`, with few colours.
fn write(image: &str) {
    const PIPELINE: &str = "base64 -d | pngquant --speed 1 --strip 128 - >docs/admin.png";
    let mut shell = Command::new("sh")
        .args(["-ec", PIPELINE])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    shell
        .stdin
        .take()
        .unwrap()
        .write_all(image.as_bytes())
        .unwrap();
    assert!(shell.wait().unwrap().success());
    let written = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/admin.png");
    let size = written.metadata().unwrap().len();
    assert!(
        (1_000..150_000).contains(&size),
        "{size} bytes: is `pngquant` installed?"
    );
}

async fn resize(browser: &Browser, height: u64) {
    let size =
        json!({ "width": 1120, "height": height, "deviceScaleFactor": 1.5, "mobile": false });
    browser
        .devtools("Emulation.setDeviceMetricsOverride", size)
        .await;
}
