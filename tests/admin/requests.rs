//! Which requests are answered, and with which headers.

use axum::Router;
use http::{Method, StatusCode};
use tower_distributed_lock::{Locks, admin};

use crate::demo::{Answer, Server};

/// The addresses of the files in the page.
fn links(page: &Answer) -> Vec<String> {
    assert_eq!(page.status, StatusCode::OK);
    let html = page.text();
    let links = html
        .match_indices("href=\"")
        .chain(html.match_indices("src=\""));
    links
        .map(|(at, start)| {
            html[at + start.len()..]
                .split('"')
                .next()
                .unwrap()
                .to_owned()
        })
        .collect()
}

/// The path that a browser asks for when a page at `path` has this link.
fn resolve(path: &str, link: &str) -> String {
    let folder = &path[..=path.rfind('/').unwrap()];
    format!("{folder}{}", link.strip_prefix("./").unwrap())
}

async fn all_files_are_found(app: Router, path: &str) {
    let server = Server::start(app).await;
    let links = links(&server.get(path).await);
    assert_eq!(links.len(), 3, "{links:?}");
    for link in links {
        let link = resolve(path, &link);
        assert_eq!(server.get(&link).await.status, StatusCode::OK, "{link}");
    }
}

#[tokio::test]
async fn the_page_finds_its_files_wherever_it_is_nested() {
    let page = || admin::router(Locks::in_memory());
    all_files_are_found(Router::new().nest("/locks", page()), "/locks").await;
    all_files_are_found(Router::new().nest("/locks/", page()), "/locks/").await;
    all_files_are_found(Router::new().nest("/a/{b}", page()), "/a/%22%3E").await;
    all_files_are_found(Router::new().nest_service("/locks", page()), "/locks").await;
    all_files_are_found(Router::new().nest_service("/locks", page()), "/locks/").await;
    all_files_are_found(page(), "/").await;
    let inner = Router::new().nest("/locks", page());
    all_files_are_found(Router::new().nest("/ops", inner), "/ops/locks").await;
}

#[tokio::test]
async fn the_page_can_be_nested_in_a_router_with_a_state() {
    #[derive(Clone)]
    struct App;
    let app = Router::<App>::new().nest("/locks", admin::router(Locks::in_memory()));
    all_files_are_found(app.with_state(App), "/locks").await;
}

#[tokio::test]
async fn every_response_has_the_protecting_headers() {
    let server = Server::read_only(&Locks::in_memory()).await;
    let page = server.get("/locks").await;
    let script = server.get("/locks/page.js").await;
    let data = server.try_ask("instance", &[]).await;
    let refused = server.ask_with("instance", &[], &[]).await;
    let wrong_method = server.get("/locks/api/force_release").await;
    assert_eq!(refused.status, StatusCode::FORBIDDEN);
    assert_eq!(wrong_method.status, StatusCode::METHOD_NOT_ALLOWED);
    for answer in [page, script, data, refused, wrong_method] {
        let policy = answer.header("content-security-policy").unwrap();
        assert!(policy.starts_with("default-src 'none'; script-src 'self';"));
        assert!(policy.contains("frame-ancestors 'none'"));
        assert!(!policy.contains("unsafe"));
        assert_eq!(answer.header("cache-control"), Some("no-store"));
        assert_eq!(answer.header("x-content-type-options"), Some("nosniff"));
        assert_eq!(answer.header("referrer-policy"), Some("no-referrer"));
    }
}

/// Sends a forced release with these headers, and returns the status and whether the key is still
/// held.
async fn release_with(headers: &[(&str, &str)]) -> (StatusCode, bool) {
    let locks = Locks::in_memory();
    let _guard = locks.lock("a").await.unwrap();
    let server = Server::releasing(&locks).await;
    let host = server.host();
    let headers: Vec<_> = headers
        .iter()
        .map(|(name, value)| (*name, value.replace("{host}", &host)))
        .collect();
    let headers: Vec<_> = headers
        .iter()
        .map(|(name, value)| (*name, &**value))
        .collect();
    let answer = server
        .ask_with("force_release", &[("key", "a")], &headers)
        .await;
    let is_held = locks.inspect("a").await.unwrap().holder().is_some();
    (answer.status, is_held)
}

#[tokio::test]
async fn a_release_by_the_page_itself_is_carried_out() {
    let ours = ("x-locks-admin", "1");
    let done = (StatusCode::OK, false);
    assert_eq!(release_with(&[ours]).await, done, "a script, not a browser");
    let same = [
        ours,
        ("sec-fetch-site", "same-origin"),
        ("origin", "http://{host}"),
    ];
    assert_eq!(release_with(&same).await, done, "a modern browser");
    let same = [ours, ("origin", "http://{host}")];
    assert_eq!(
        release_with(&same).await,
        done,
        "a browser without Sec-Fetch-Site"
    );
}

#[tokio::test]
async fn a_release_from_another_site_is_refused() {
    let ours = ("x-locks-admin", "1");
    let refused = (StatusCode::FORBIDDEN, true);
    for headers in [
        vec![],
        vec![("origin", "http://{host}")],
        vec![("sec-fetch-site", "same-origin")],
        vec![ours, ("sec-fetch-site", "cross-site")],
        vec![ours, ("sec-fetch-site", "same-site")],
        vec![
            ours,
            ("sec-fetch-site", "cross-site"),
            ("origin", "http://{host}"),
        ],
        vec![ours, ("origin", "https://evil.example")],
        vec![ours, ("origin", "http://{host}.evil.example")],
        vec![ours, ("origin", "null")],
    ] {
        assert_eq!(release_with(&headers).await, refused, "{headers:?}");
    }
}

#[tokio::test]
async fn the_page_only_reads_unless_told_otherwise() {
    let locks = Locks::in_memory();
    let guard = locks.lock("a").await.unwrap();
    let server = Server::read_only(&locks).await;
    let answer = server.try_ask("force_release", &[("key", "a")]).await;
    assert_eq!(answer.status, StatusCode::FORBIDDEN);
    assert!(answer.text().contains("`Admin::allow_force_release`"));
    assert!(guard.confirm().await.is_ok());
    let answer = server.try_ask("settle", &OUTCOME).await;
    assert_eq!(answer.status, StatusCode::FORBIDDEN);
    assert!(answer.text().contains("`Admin::allow_settle`"));
    let told = server.ask("instance", &[]).await;
    assert_eq!(told["may_force_release"], false);
    assert_eq!(told["may_settle"], false);
}

const OUTCOME: [(&str, &str); 3] = [("key", "a"), ("status", "201"), ("hours", "24")];

#[tokio::test]
async fn one_permission_does_not_imply_the_other() {
    let locks = Locks::in_memory();
    let guard = locks.lock("a").await.unwrap();
    let server = Server::releasing(&locks).await;
    let answer = server.try_ask("settle", &OUTCOME).await;
    assert_eq!(answer.status, StatusCode::FORBIDDEN);
    let server = Server::settling(&locks).await;
    let answer = server.try_ask("force_release", &[("key", "a")]).await;
    assert_eq!(answer.status, StatusCode::FORBIDDEN);
    assert!(guard.confirm().await.is_ok());
}

#[tokio::test]
async fn an_outcome_from_another_site_is_refused() {
    let server = Server::settling(&Locks::in_memory()).await;
    let ours = ("x-locks-admin", "1");
    for (headers, status) in [
        // There is nothing to settle.
        (vec![ours], StatusCode::CONFLICT),
        (vec![], StatusCode::FORBIDDEN),
        (
            vec![ours, ("sec-fetch-site", "cross-site")],
            StatusCode::FORBIDDEN,
        ),
        (
            vec![ours, ("origin", "https://evil.example")],
            StatusCode::FORBIDDEN,
        ),
    ] {
        let answer = server.ask_with("settle", &OUTCOME, &headers).await;
        assert_eq!(answer.status, status, "{headers:?}");
    }
}

#[tokio::test]
async fn an_outcome_that_cannot_be_given_again_is_refused() {
    let server = Server::settling(&Locks::in_memory()).await;
    for (name, value) in [
        ("key", ""),
        ("owner", "nobody"),
        ("status", ""),
        ("status", "99"),
        ("status", "101"),
        ("status", "two hundred"),
        ("content_type", "text/plain\nx-more: 1"),
        ("hours", ""),
        ("hours", "0"),
        ("hours", "-1"),
    ] {
        let others = OUTCOME.iter().filter(|(field, _)| *field != name);
        let fields: Vec<_> = others.copied().chain([(name, value)]).collect();
        let answer = server.try_ask("settle", &fields).await;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{name} {value:?}");
        assert!(answer.json()["error"].is_string());
    }
}

#[tokio::test]
async fn a_release_is_a_post() {
    let locks = Locks::in_memory();
    let guard = locks.lock("a").await.unwrap();
    let server = Server::releasing(&locks).await;
    let headers = [("x-locks-admin", "1")];
    for method in [Method::GET, Method::PUT, Method::DELETE] {
        let path = "/locks/api/force_release?key=a";
        let answer = server.send(method, path, &headers, "key=a".into()).await;
        assert_eq!(answer.status, StatusCode::METHOD_NOT_ALLOWED);
    }
    assert!(guard.confirm().await.is_ok());
}

#[tokio::test]
async fn nonsense_is_refused_with_a_reason() {
    let server = Server::releasing(&Locks::in_memory()).await;
    for (name, fields) in [
        ("key", [("key", "")]),
        ("key", [("key", "a\nb")]),
        ("force_release", [("key", "")]),
        ("force_release", [("owner", "nobody")]),
        ("fleet", [("cursor", "not a cursor")]),
        ("fleet", [("cursor", "redis:17")]),
        ("instance", [("offset", "-1")]),
    ] {
        let answer = server.try_ask(name, &fields).await;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{name} {fields:?}");
        assert!(answer.json()["error"].is_string());
    }
}

#[tokio::test]
async fn a_form_that_is_too_long_is_refused() {
    let server = Server::read_only(&Locks::in_memory()).await;
    let answer = server
        .try_ask("key", &[("key", &"x".repeat(300_000))])
        .await;
    assert_eq!(answer.status, StatusCode::PAYLOAD_TOO_LARGE);
}
