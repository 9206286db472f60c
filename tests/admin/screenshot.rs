//! The picture of the page in the README.

use std::{fs, path::Path, time::Duration};

use serde_json::json;
use tokio::time::sleep;

use crate::{demo::Server, json::Fleet, traffic, webdriver::Browser};

/// Takes the picture anew, and writes it as an image for the README and as a data URI for the API documentation:
///
/// `cargo test --all-features --test admin -- --ignored screenshot`
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
    browser.go(&server.url("/locks")).await;
    // The plots need some history.
    sleep(Duration::from_secs(100)).await;
    browser.click("#tab-fleet").await;
    browser
        .until("document.querySelectorAll('tbody tr').length > 5")
        .await;
    browser.click("#pause").await;
    sleep(Duration::from_secs(1)).await;
    let height = browser.run("return document.body.offsetHeight").await;
    resize(&browser, height.as_u64().unwrap()).await;
    browser.run("document.activeElement.blur()").await;

    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs");
    let image = browser.screenshot().await;
    fs::write(
        docs.join("admin.md"),
        format!("[admin]: data:image/png;base64,{image}\n"),
    )
    .unwrap();
    fs::write(docs.join("admin.png"), decode(&image)).unwrap();
    let size = fs::metadata(docs.join("admin.png")).unwrap().len();
    assert!(size < 150_000, "{size} bytes are too many for a README");
}

async fn resize(browser: &Browser, height: u64) {
    let size =
        json!({ "width": 1120, "height": height, "deviceScaleFactor": 1.25, "mobile": false });
    browser
        .devtools("Emulation.setDeviceMetricsOverride", size)
        .await;
}

/// Decodes Base64.
fn decode(text: &str) -> Vec<u8> {
    const DIGITS: &str = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let digits: Vec<u32> = text
        .chars()
        .filter_map(|c| DIGITS.find(c).map(|digit| digit as u32))
        .collect();
    let bytes = digits.chunks(4).flat_map(|group| {
        let number = (0..4).fold(0, |number, at| (number << 6) | group.get(at).unwrap_or(&0));
        number.to_be_bytes()[1..group.len()].to_vec()
    });
    bytes.collect()
}
