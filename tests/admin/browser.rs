//! The page in a real browser.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use axum::{Router, extract::Request};
use http_body_util::BodyExt;
use serde_json::json;
use tower::ServiceExt;
use tower_distributed_lock::{
    LockGuard, Locks,
    admin::Admin,
    store::{Fault, FaultyStore, MemoryStore},
};

use crate::{demo::Server, payment, webdriver::Browser};

/// One browser for all, because the start of a browser takes longer than most of the checks.
#[tokio::test]
async fn the_page_works_in_a_real_browser() {
    let Some(browser) = Browser::start().await else {
        return;
    };
    let browser = &browser;
    the_page_shows_live_what_is_held_and_who_waits(browser).await;
    hostile_keys_are_text(browser).await;
    pages_and_search_lead_to_every_key(browser).await;
    a_key_is_released_by_force_after_a_confirmation(browser).await;
    a_forced_release_names_the_number_of_holders(browser).await;
    the_outcome_of_a_request_whose_process_has_died_is_written(browser).await;
    the_fleet_can_be_sorted_by_the_time_a_key_is_held(browser).await;
    a_store_that_is_away_leaves_no_stale_counts(browser).await;
    a_page_that_only_reads_has_no_button_to_release(browser).await;
    a_page_that_is_paused_or_hidden_asks_nothing(browser).await;
    instances_behind_a_load_balancer_are_kept_apart(browser).await;
    a_service_that_ends_is_told(browser).await;
    a_page_of_another_site_cannot_release(browser).await;
    a_phone_scrolls_in_one_direction_only_and_the_dark_is_respected(browser).await;
}

/// A browser that has the page open.
struct Opened<'a> {
    browser: &'a Browser,
    server: Server,
}

impl<'a> Opened<'a> {
    async fn page(browser: &'a Browser, admin: Admin) -> Self {
        // The log of the page before is not of interest. It asks every second until the browser
        // leaves it.
        browser.go("about:blank").await;
        browser.requests().await;
        browser.console().await;
        let server = Server::start(Router::new().nest("/locks", admin.router())).await;
        browser.go(&server.url("/locks")).await;
        browser.until("document.querySelector('#store.good')").await;
        Self { browser, server }
    }

    /// Expects that nothing went wrong behind the scenes: an empty console, and no request to
    /// another host.
    async fn finish(self) {
        let requests = self.browser.requests().await;
        assert!(requests.len() > 4, "{requests:?}");
        for request in requests {
            assert!(request.starts_with(&self.server.url("/locks")), "{request}");
        }
        assert_eq!(self.browser.console().await, Vec::<String>::new());
    }
}

/// The keys in the table.
async fn keys(browser: &Browser) -> Vec<String> {
    browser.texts(".keys tbody .key").await
}

async fn lock_each(locks: &Locks, keys: impl IntoIterator<Item = String>) -> Vec<LockGuard> {
    let mut guards = Vec::new();
    for key in keys {
        guards.push(locks.lock(key).await.unwrap());
    }
    guards
}

async fn the_page_shows_live_what_is_held_and_who_waits(browser: &Browser) {
    let locks = Locks::in_memory();
    let guard = locks.lock("orders/42").await.unwrap();
    let waiting = locks.clone();
    let waiting = tokio::spawn(async move { waiting.lock("orders/42").await });
    let page = Opened::page(browser, Admin::new(locks.clone())).await;
    assert_eq!(keys(browser).await, ["orders/42"]);
    assert_eq!(
        browser.texts("#instance").await,
        [locks.instance().to_string()]
    );
    browser
        .until("document.querySelector('tbody .waiting')?.innerText === '1'")
        .await;
    browser
        .until("document.querySelector('#plot-waiting .curve').getAttribute('d')?.length > 20")
        .await;
    browser
        .until("document.querySelector('#plot-turns .curve').getAttribute('d')?.length > 20")
        .await;

    drop(guard);
    let guard = waiting.await.unwrap().unwrap();
    browser
        .until("!document.querySelector('tbody .waiting')")
        .await;
    assert_eq!(keys(browser).await, ["orders/42"]);
    drop(guard);
    browser.until("document.querySelector('.empty')").await;
    page.finish().await;
}

async fn hostile_keys_are_text(browser: &Browser) {
    let locks = Locks::in_memory();
    let hostile = [
        "<img src=x onerror=\"document.title='injected'\">",
        "<script>document.title='injected'</script>",
        "\"><b onclick=1>x</b>",
        "javascript:alert(1)",
    ];
    let _guards = lock_each(&locks, hostile.map(Into::into)).await;
    let _hidden = locks.lock("pay\u{202e}elbisivni").await.unwrap();
    let page = Opened::page(browser, Admin::new(locks)).await;
    let mut shown = keys(browser).await;
    assert!(
        shown.contains(&"payU+202Eelbisivni".to_owned()),
        "{shown:?}"
    );
    shown.retain(|key| !key.starts_with("pay"));
    shown.sort();
    let mut expected = hostile.map(str::to_owned);
    expected.sort();
    assert_eq!(shown, expected);

    browser.click("#tab-fleet").await;
    browser
        .until("document.querySelectorAll('tbody tr').length === 5")
        .await;
    browser.type_into("#prefix", "<img").await;
    browser
        .until("document.querySelectorAll('tbody tr').length === 1")
        .await;
    browser.click("tbody .key").await;
    browser
        .until("document.querySelector('#details-body .card')")
        .await;
    assert_eq!(browser.texts("#details-key").await, [hostile[0]]);
    browser.click("#close").await;
    browser.type_into("#prefix", "<b>nothing</b>").await;
    browser.until("document.querySelector('.empty')").await;
    assert_eq!(browser.run("return document.title").await, "Locks");
    let injected = "return document.querySelectorAll('main img, main script, main b, dialog img, body > script').length";
    assert_eq!(browser.run(injected).await, 0);
    page.finish().await;
}

async fn pages_and_search_lead_to_every_key(browser: &Browser) {
    let locks = Locks::in_memory();
    let _guards = lock_each(&locks, (0..120).map(|id| format!("order,id={id:03}"))).await;
    let page = Opened::page(browser, Admin::new(locks)).await;
    for tab in ["#tab-instance", "#tab-fleet"] {
        browser.click(tab).await;
        let first = |number: usize| {
            format!("document.querySelector('tbody .key')?.innerText === 'order,id={number:03}'")
        };
        browser.until(&first(0)).await;
        assert_eq!(keys(browser).await.len(), 50);
        browser.click("#next").await;
        browser.until(&first(50)).await;
        browser.click("#next").await;
        browser.until(&first(100)).await;
        assert_eq!(keys(browser).await.len(), 20);
        browser
            .until("document.getElementById('next').disabled")
            .await;
        browser.click("#previous").await;
        browser.until(&first(50)).await;
        browser.type_into("#prefix", "order,id=11").await;
        browser
            .until("document.querySelectorAll('tbody tr').length === 10")
            .await;
        browser.until(&first(110)).await;
        browser.run("const prefix = document.getElementById('prefix'); prefix.value = ''; prefix.dispatchEvent(new Event('input'))").await;
        // The search has ended before the next tab is chosen.
        browser.until(&first(0)).await;
    }
    page.finish().await;
}

async fn a_key_is_released_by_force_after_a_confirmation(browser: &Browser) {
    let locks = Locks::in_memory();
    let guard = locks.lock("orders/42").await.unwrap();
    let admin = Admin::new(locks.clone()).allow_force_release();
    let page = Opened::page(browser, admin.allow_settle()).await;
    browser.click("tbody .key").await;
    browser
        .until("document.querySelector('#details-body .card')")
        .await;
    let has_no_outcome = "return document.getElementById('settle').hidden";
    assert_eq!(browser.run(has_no_outcome).await, true);
    let details = browser.texts("#details-body").await.concat();
    assert!(details.contains(&locks.instance().to_string()), "{details}");
    assert!(details.contains(&guard.token().to_string()), "{details}");

    browser.click("#release-ask").await;
    browser.click("#release-no").await;
    browser
        .until("document.getElementById('release-confirm').hidden")
        .await;
    assert!(guard.confirm().await.is_ok(), "a cancelled release");

    browser.click("#release-ask").await;
    browser.click("#release-yes").await;
    browser
        .until("document.getElementById('release-result').innerText === 'Released.'")
        .await;
    browser
        .until("document.getElementById('details-state').innerText === 'Free'")
        .await;
    assert!(guard.confirm().await.is_err());
    browser.click("#close").await;
    page.finish().await;
}

async fn a_forced_release_names_the_number_of_holders(browser: &Browser) {
    let locks = Locks::in_memory();
    let mut guards = Vec::new();
    for _ in 0..4 {
        guards.push(locks.permit("exports", 4).await.unwrap());
    }
    let page = Opened::page(browser, Admin::new(locks.clone()).allow_force_release()).await;
    browser
        .until("document.querySelector('td.mode')?.innerText === '4 of 4 permits'")
        .await;
    browser.click("tbody .key").await;
    browser
        .until("document.getElementById('details-state').innerText === '4 of 4 permits held'")
        .await;
    browser.click("#release-ask").await;
    let asked = browser.texts("#release-warning").await.concat();
    assert!(asked.contains("from all of its 4 holders"), "{asked}");
    browser.click("#release-yes").await;
    browser
        .until("document.getElementById('release-result').innerText === 'Released.'")
        .await;
    for guard in &guards {
        assert!(guard.confirm().await.is_err());
    }
    browser.click("#close").await;
    browser
        .until(
            "document.getElementById('totals').innerText.startsWith('0 requests without a turn')",
        )
        .await;
    browser
        .until("document.querySelector('#totals .bad')?.innerText === '4 leases lost'")
        .await;
    page.finish().await;
}

async fn the_outcome_of_a_request_whose_process_has_died_is_written(browser: &Browser) {
    let store = MemoryStore::new();
    let locks = Locks::builder(store.clone()).build().unwrap();
    payment::begin_and_die(Locks::builder(store)).await;
    let page = Opened::page(browser, Admin::new(locks.clone()).allow_settle()).await;
    browser.click("#tab-fleet").await;
    browser
        .until("document.querySelector('tbody .lost')?.innerText === 'process died'")
        .await;
    browser.click("tbody .key").await;
    browser
        .until("!document.getElementById('settle').hidden")
        .await;
    let may_release = "return !document.getElementById('release').hidden";
    assert_eq!(browser.run(may_release).await, false);

    browser.click("#settle-ask").await;
    browser.click("#settle-no").await;
    browser
        .until("document.getElementById('settle-form').hidden")
        .await;
    let seen = locks.inspect(payment::KEY).await.unwrap();
    assert!(seen.record.is_none(), "a cancelled outcome");

    browser.click("#settle-ask").await;
    let status = "document.getElementById('settle-form').elements.status.value";
    browser.run(&format!("{status} = 201")).await;
    let body = "{\"receipt\": 17}";
    browser.type_into("#settle-form textarea", body).await;
    browser.click("#settle-yes").await;
    browser
        .until("document.getElementById('release-result').innerText === 'Written.'")
        .await;
    browser
        .until("document.getElementById('details-state').innerText === 'Recorded'")
        .await;
    browser
        .until("document.getElementById('settle').hidden")
        .await;
    browser.click("#close").await;
    page.finish().await;
    let again = payment::pay(payment::service(&locks, async || "paid again")).await;
    assert_eq!(again.status(), 201);
    assert_eq!(again.headers()["content-type"], "application/json");
    let told = again.into_body().collect().await.unwrap().to_bytes();
    assert_eq!(told, body);
}

async fn the_fleet_can_be_sorted_by_the_time_a_key_is_held(browser: &Browser) {
    let store = MemoryStore::new();
    let [ours, theirs] = [(), ()].map(|()| Locks::builder(store.clone()).build().unwrap());
    let _guards = lock_each(&ours, ["z-oldest", "a-newer"].map(Into::into)).await;
    let page = Opened::page(browser, Admin::new(ours)).await;
    // A lease of another instance, of which the page knows only since when it has seen it.
    let _elsewhere = theirs.lock("m-elsewhere").await.unwrap();
    browser.click("#tab-fleet").await;
    let keys_are = |keys: &str| {
        format!(
            "[...document.querySelectorAll('tbody .key')].map((it) => it.innerText).join() === '{keys}'"
        )
    };
    browser
        .until(&keys_are("a-newer,m-elsewhere,z-oldest"))
        .await;
    let held = "document.querySelectorAll('tbody tr')[1].querySelectorAll('td')[3].innerText";
    browser.until(&format!("{held}.startsWith('≥ ')")).await;
    let sort = "th:nth-child(4) .sort";
    browser.click(sort).await;
    browser
        .until(&keys_are("z-oldest,a-newer,m-elsewhere"))
        .await;
    browser
        .until(
            "document.querySelector('th:nth-child(4)').getAttribute('aria-sort') === 'descending'",
        )
        .await;
    browser.click(sort).await;
    browser
        .until(&keys_are("a-newer,m-elsewhere,z-oldest"))
        .await;
    // Words of ours have a meaning.
    let unexplained = "[...document.querySelectorAll('th:not(.name)')].filter((it) => !it.querySelector('[title]')).length";
    assert_eq!(browser.run(&format!("return {unexplained}")).await, 0);
    page.finish().await;
}

async fn a_store_that_is_away_leaves_no_stale_counts(browser: &Browser) {
    let store = FaultyStore::new();
    let locks = Locks::builder(store.clone()).build().unwrap();
    let _guards = lock_each(&locks, ["a", "b"].map(Into::into)).await;
    browser.requests().await;
    browser.console().await;
    let admin = Admin::new(locks.clone()).allow_force_release();
    let page = Opened::page(browser, admin).await;
    browser.click("#tab-fleet").await;
    browser
        .until("document.querySelectorAll('tbody tr').length === 2")
        .await;
    let ping = "document.querySelector('#plot-store .value').innerText";
    browser.until(&format!("{ping}.includes('ms')")).await;

    store.set_fault(Some(Fault::Unreachable));
    browser.until("document.querySelector('#store.bad')").await;
    browser
        .until("document.querySelector('#rows .empty')?.innerText.includes('not known')")
        .await;
    browser.until(&format!("{ping} === '–'")).await;
    browser
        .until("document.getElementById('range').innerText === ''")
        .await;
    let told = browser.texts("#notice").await.concat();
    assert!(told.contains("The store does not answer"), "{told}");
    // What this instance holds is known without the store.
    browser.click("#tab-instance").await;
    browser
        .until("document.querySelectorAll('tbody tr').length === 2")
        .await;
    browser.click("tbody .key").await;
    browser
        .until("document.getElementById('details-state').innerText.startsWith('Not known')")
        .await;
    let cards = "return document.querySelectorAll('#details-body .card').length";
    assert_eq!(browser.run(cards).await, 0);
    browser.click("#close").await;

    store.set_fault(None);
    browser
        .until("document.querySelector('#store.good') && document.getElementById('notice').hidden")
        .await;
    browser.until(&format!("{ping}.includes('ms')")).await;
    // The browser logs the refusals of a store that is away.
    drop(page);
    browser.console().await;
}

async fn a_page_that_only_reads_has_no_button_to_release(browser: &Browser) {
    let locks = Locks::in_memory();
    let _guard = locks.lock("orders/42").await.unwrap();
    let page = Opened::page(browser, Admin::new(locks)).await;
    browser.click("tbody .key").await;
    page.browser
        .until("document.querySelector('#details-body .card')")
        .await;
    let hidden = "return document.getElementById('release').hidden";
    assert_eq!(browser.run(hidden).await, true);
    page.finish().await;
}

async fn a_phone_scrolls_in_one_direction_only_and_the_dark_is_respected(browser: &Browser) {
    let locks = Locks::in_memory();
    let long = "W".repeat(tower_distributed_lock::LockKey::MAX_LEN);
    let _guards = lock_each(&locks, ["order,id=1".into(), long]).await;
    let page = Opened::page(browser, Admin::new(locks).allow_force_release()).await;
    let phone = json!({ "width": 360, "height": 740, "deviceScaleFactor": 2, "mobile": true });
    browser
        .devtools("Emulation.setDeviceMetricsOverride", phone)
        .await;
    let fits = "document.documentElement.scrollWidth <= 360 && innerWidth === 360";
    browser.until(fits).await;
    browser.click("#tab-fleet").await;
    browser
        .until("document.querySelectorAll('tbody tr').length === 2")
        .await;
    browser.until(fits).await;
    // Each row is a card, and the columns by which they can be sorted are still there.
    let first = "document.querySelector('tbody .key').innerText[0]";
    browser.until(&format!("{first} === 'W'")).await;
    browser.click("th:nth-child(4) .sort").await;
    browser.until(&format!("{first} === 'o'")).await;
    browser.click("th:nth-child(4) .sort").await;
    browser.until(&format!("{first} === 'W'")).await;
    browser.until(fits).await;
    browser.click("tbody .key").await;
    browser
        .until("document.querySelector('#details-body .card')")
        .await;
    browser.click("#release-ask").await;
    browser.until(fits).await;
    browser
        .until("document.getElementById('details').scrollWidth <= 360")
        .await;

    for (scheme, is_dark) in [("light", "false"), ("dark", "true")] {
        let media = json!({ "features": [{ "name": "prefers-color-scheme", "value": scheme }] });
        browser.devtools("Emulation.setEmulatedMedia", media).await;
        let brightness = "Math.max(...getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number))";
        browser
            .until(&format!("({brightness} < 60) === {is_dark}"))
            .await;
    }
    page.finish().await;
}

async fn a_page_that_is_paused_or_hidden_asks_nothing(browser: &Browser) {
    let page = Opened::page(browser, Admin::new(Locks::in_memory())).await;
    let asked =
        "performance.getEntriesByType('resource').filter((it) => it.name.includes('/api/')).length";
    browser.until(&format!("{asked} >= 2")).await;
    browser.click("#pause").await;
    // The requests that were under way are answered within the first second.
    browser.run(&format!("setTimeout(() => {{ window.before = {asked} }}, 1000); setTimeout(() => {{ window.after = {asked} }}, 2500)")).await;
    browser.until("window.after").await;
    assert_eq!(browser.run("return window.after - window.before").await, 0);

    browser
        .run("Object.defineProperty(document, 'hidden', { configurable: true, get: () => true })")
        .await;
    browser.click("#pause").await;
    browser.run(&format!("window.after = 0; setTimeout(() => {{ window.before = {asked} }}, 1000); setTimeout(() => {{ window.after = {asked} }}, 2500)")).await;
    browser.until("window.after").await;
    assert_eq!(browser.run("return window.after - window.before").await, 0);

    browser
        .run("delete document.hidden; document.dispatchEvent(new Event('visibilitychange'))")
        .await;
    browser.until(&format!("{asked} > window.after + 1")).await;
    page.finish().await;
}

async fn instances_behind_a_load_balancer_are_kept_apart(browser: &Browser) {
    let instances = [Locks::in_memory(), Locks::in_memory()];
    let _guards = [
        instances[0].lock("first").await.unwrap(),
        instances[1].lock("second").await.unwrap(),
    ];
    let routers = instances
        .each_ref()
        .map(|locks| Router::<()>::new().nest("/locks", Admin::new(locks.clone()).router()));
    let turn = Arc::new(AtomicUsize::new(0));
    let balanced = move |request: Request| {
        let router = routers[turn.fetch_add(1, Ordering::Relaxed) % 2].clone();
        async move { router.oneshot(request).await }
    };
    let server = Server::start(Router::new().fallback(balanced)).await;
    browser.go(&server.url("/locks")).await;
    browser
        .until("document.querySelectorAll('#instances option').length === 2")
        .await;
    for (locks, key) in instances.iter().zip(["first", "second"]) {
        let id = locks.instance();
        let choose = format!(
            "const choice = document.getElementById('instances'); choice.value = '{id}'; choice.dispatchEvent(new Event('change'))"
        );
        browser.run(&choose).await;
        let only = format!("document.querySelector('tbody').innerText.startsWith('{key}')");
        browser.until(&only).await;
        // Answers of both instances arrive, and only one of them is shown.
        let asked = "performance.getEntriesByType('resource').length";
        let before = browser.run(&format!("return {asked}")).await;
        browser.until(&format!("{asked} >= {before} + 2")).await;
        assert_eq!(keys(browser).await, [key]);
    }
}

async fn a_page_of_another_site_cannot_release(browser: &Browser) {
    let locks = Locks::in_memory();
    let guard = locks.lock("orders/42").await.unwrap();
    let page = Opened::page(browser, Admin::new(locks).allow_force_release()).await;
    let other =
        Server::start(Router::new().route("/", axum::routing::get(async || "another site"))).await;
    let target = page.server.url("/locks/api/force_release");
    // Another host is another site, and another port of the same host is another origin.
    for attacker in [
        other.url("/").replace("127.0.0.1", "localhost"),
        other.url("/"),
    ] {
        browser.go(&attacker).await;
        let attack = format!(
            "window.done = 0;
             const body = new URLSearchParams({{ key: 'orders/42' }});
             const count = () => {{ window.done += 1 }};
             fetch('{target}', {{ method: 'POST', mode: 'no-cors', body }}).then(count, count);
             fetch('{target}', {{ method: 'POST', headers: {{ 'x-locks-admin': '1' }}, body }}).then(count, count);"
        );
        browser.run(&attack).await;
        browser.until("window.done === 2").await;
        assert!(guard.confirm().await.is_ok(), "released by {attacker}");
    }
}

async fn a_service_that_ends_is_told(browser: &Browser) {
    let locks = Locks::in_memory();
    let page = Opened::page(browser, Admin::new(locks.clone())).await;
    locks.close(std::time::Duration::ZERO).await;
    browser.until("document.querySelector('#store.bad')").await;
    drop(page.server);
    browser
        .until("document.getElementById('notice').innerText.includes('does not answer')")
        .await;
}
