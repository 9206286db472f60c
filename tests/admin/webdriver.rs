//! A headless Chromium, driven by chromedriver over plain WebDriver (HTTP and JSON).

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpStream},
    process::{Child, Command, Stdio},
    time::Duration,
};

use http::Method;
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::{
    demo,
    support::{PATIENCE, eventually_within},
};

/// How long a test waits for the browser, which has several processes, and takes its time beside
/// other tests.
const LONG: Duration = Duration::from_secs(4 * PATIENCE.as_secs());

/// A browser with one tab, gone with the test.
pub(crate) struct Browser {
    driver: Child,
    addr: SocketAddr,
    session: String,
}

impl Browser {
    /// Starts a browser. `None`, with a word in the test's output, where there is none. With
    /// `TDL_BROWSER=required`, as in `tests/run`, a missing browser fails the test.
    pub(crate) async fn start() -> Option<Self> {
        let spawned = Command::new("chromedriver")
            .arg("--port=0")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn();
        let mut driver = match spawned {
            Ok(driver) => driver,
            Err(error) => {
                let required = std::env::var_os("TDL_BROWSER").is_some_and(|it| it == "required");
                assert!(!required, "cannot run `chromedriver`: {error}");
                eprintln!(
                    "SKIPPED: cannot run `chromedriver` ({error}). Install Chromium and its driver to test the page in a browser \
                     (`apt-get install chromium-driver`)"
                );
                return None;
            }
        };
        let addr = SocketAddr::from(([127, 0, 0, 1], port_of(&mut driver)));
        let mut browser = Self {
            driver,
            addr,
            session: String::new(),
        };
        browser.open_session().await;
        Some(browser)
    }

    async fn open_session(&mut self) {
        let options = json!({
            // A container often has neither a sandbox for root nor a large /dev/shm.
            "args": ["--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", "--window-size=1200,900"],
        });
        let wanted = json!({ "capabilities": { "alwaysMatch": {
            "browserName": "chrome",
            "goog:chromeOptions": options,
            "goog:loggingPrefs": { "browser": "ALL", "performance": "ALL" },
        }}});
        let opened = self.send(Method::POST, "/session", wanted).await;
        let opened = opened.expect("Chromium starts");
        self.session = format!("/session/{}", opened["sessionId"].as_str().unwrap());
    }

    pub(crate) async fn go(&self, url: &str) {
        let going = self.post("/url", json!({ "url": url })).await;
        going.expect("the page loads");
    }

    /// Runs a script in the page, and returns what the script returns.
    pub(crate) async fn run(&self, script: &str) -> Value {
        let body = json!({ "script": script, "args": [] });
        let ran = self.post("/execute/sync", body).await;
        ran.unwrap_or_else(|error| panic!("{script}: {error}"))
    }

    /// Waits until a JavaScript expression is true.
    pub(crate) async fn until(&self, expression: &str) {
        let script = format!("return Boolean({expression})");
        let is_so = async || self.run(&script).await == true;
        eventually_within(LONG, expression, is_so).await;
    }

    /// Clicks on an element as a user does: an element that is covered or hidden cannot be clicked.
    /// Rows come and go, so a failed click is repeated.
    pub(crate) async fn click(&self, selector: &str) {
        eventually_within(LONG, &format!("a click on {selector}"), async || {
            let Ok(element) = self.find(selector).await else {
                return false;
            };
            let path = format!("/element/{element}/click");
            self.post(&path, json!({})).await.is_ok()
        })
        .await;
    }

    pub(crate) async fn type_into(&self, selector: &str, text: &str) {
        let element = self.find(selector).await.unwrap();
        let path = format!("/element/{element}/value");
        self.post(&path, json!({ "text": text })).await.unwrap();
    }

    /// The visible text of all elements that match.
    pub(crate) async fn texts(&self, selector: &str) -> Vec<String> {
        let script = format!(
            "return [...document.querySelectorAll({selector:?})].map((it) => it.innerText)"
        );
        let texts = self.run(&script).await;
        serde_json::from_value(texts).unwrap()
    }

    /// Sends a command of the DevTools protocol.
    pub(crate) async fn devtools(&self, command: &str, params: Value) {
        let body = json!({ "cmd": command, "params": params });
        self.post("/goog/cdp/execute", body).await.unwrap();
    }

    /// The visible part of the page, as a PNG in Base64.
    pub(crate) async fn screenshot(&self) -> String {
        let path = format!("{}/screenshot", self.session);
        let image = self.send(Method::GET, &path, json!({})).await.unwrap();
        image.as_str().unwrap().to_owned()
    }

    /// The messages of the console since the last call: errors of scripts, violations of the
    /// policy, files that are missing.
    pub(crate) async fn console(&self) -> Vec<String> {
        let entries = self.log("browser").await;
        entries
            .iter()
            .map(|entry| entry["message"].to_string())
            .collect()
    }

    /// The addresses of all requests since the last call.
    pub(crate) async fn requests(&self) -> Vec<String> {
        let entries = self.log("performance").await;
        let events = entries.iter().map(|entry| -> Value {
            serde_json::from_str(entry["message"].as_str().unwrap()).unwrap()
        });
        let sent = events.filter(|event| event["message"]["method"] == "Network.requestWillBeSent");
        let url = |event: Value| {
            event["message"]["params"]["request"]["url"]
                .as_str()
                .unwrap()
                .to_owned()
        };
        sent.map(url).collect()
    }

    async fn log(&self, kind: &str) -> Vec<Value> {
        let entries = self.post("/se/log", json!({ "type": kind })).await.unwrap();
        entries.as_array().unwrap().clone()
    }

    async fn find(&self, selector: &str) -> Result<String, Value> {
        let body = json!({ "using": "css selector", "value": selector });
        let found = self.post("/element", body).await?;
        let (_, id) = found.as_object().unwrap().iter().next().unwrap();
        Ok(id.as_str().unwrap().to_owned())
    }

    async fn post(&self, path: &str, body: Value) -> Result<Value, Value> {
        let path = format!("{}{path}", self.session);
        self.send(Method::POST, &path, body).await
    }

    async fn send(&self, method: Method, path: &str, body: Value) -> Result<Value, Value> {
        let headers = [("content-type", "application/json")];
        let sending = demo::send(self.addr, method, path, &headers, body.to_string());
        let answer = timeout(LONG, sending).await.expect("the driver answers");
        let value = answer.json()["value"].take();
        if answer.status.is_success() {
            Ok(value)
        } else {
            Err(value)
        }
    }
}

/// Ends the browser by its driver: a killed driver would leave the browser behind.
impl Drop for Browser {
    fn drop(&mut self) {
        let shut_down = || -> std::io::Result<()> {
            let mut stream = TcpStream::connect(self.addr)?;
            stream.set_read_timeout(Some(Duration::from_secs(10)))?;
            write!(
                stream,
                "GET /shutdown HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n",
                self.addr
            )?;
            stream.read_to_end(&mut Vec::new())?;
            Ok(())
        };
        let _ = shut_down();
        let _ = self.driver.kill();
        let _ = self.driver.wait();
    }
}

/// Reads the port that the driver has chosen: `ChromeDriver was started successfully on port
/// 41999.`
fn port_of(driver: &mut Child) -> u16 {
    let output = BufReader::new(driver.stdout.take().unwrap());
    let port = output.lines().map_while(Result::ok).find_map(|line| {
        let (_, port) = line.split_once("successfully on port ")?;
        port.trim_end_matches('.').parse().ok()
    });
    port.expect("chromedriver tells its port")
}
