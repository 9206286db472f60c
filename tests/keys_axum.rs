//! Keys inside real axum routers: where the route and its parameters are known, and that a key is of one opinion with the
//! handler about them.
#![cfg(feature = "axum")]

use std::{collections::HashMap, sync::Arc};

use axum::{
    Router,
    body::Body,
    extract::{Path, Query, Request, rejection::PathRejection},
    middleware::{Next, from_fn},
    response::Response,
    routing::{any, post},
};
use http::StatusCode;
use percent_encoding::percent_decode_str;
use tower::{ServiceBuilder, ServiceExt};
use tower_distributed_lock::key::{self, DeriveKey, Derived, KeyError, KeyErrorKind, RequestKey};

mod keys_support;
use keys_support::Rng;

type Outcome = Result<Derived, KeyError>;

/// Stands for the lock's layer: derives the key, lets every request pass, and tells what it found.
macro_rules! observed {
    ($key:expr) => {{
        let key: Arc<RequestKey> = Arc::new($key);
        from_fn(move |request: Request, next: Next| {
            let key = key.clone();
            async move {
                let (mut parts, body) = request.into_parts();
                let outcome: Outcome = key.derive(&mut parts);
                let mut response = next.run(Request::from_parts(parts, body)).await;
                response.extensions_mut().insert(outcome);
                response
            }
        })
    }};
}

async fn send<S>(service: S, method: &str, uri: &str) -> Response
where
    S: tower::Service<Request, Response = Response, Error = std::convert::Infallible>,
{
    let request = Request::builder().method(method).uri(uri);
    let request = request.body(Body::empty()).unwrap();
    service.oneshot(request).await.unwrap()
}

async fn outcome(router: Router, uri: &str) -> Option<Outcome> {
    let response = send(router, "POST", uri).await;
    response.extensions().get::<Outcome>().cloned()
}

async fn key_of(router: Router, uri: &str) -> String {
    match outcome(router, uri).await {
        Some(Ok(Derived::Key(key))) => key.to_string(),
        other => panic!("no key for {uri}: {other:?}"),
    }
}

fn account() -> RequestKey {
    key::name("account").param("id")
}

fn routes() -> Router {
    Router::new()
        .route("/accounts/{id}", post(|| async {}))
        .route("/about", post(|| async {}))
}

#[tokio::test]
async fn route_layer_knows_the_route_and_is_not_run_for_a_404() {
    let router = routes().route_layer(observed!(account().route()));
    let key = key_of(router.clone(), "/accounts/a%3Ab").await;
    assert_eq!(key, "account,param.id=a:b,route=/accounts/{id}");
    assert_eq!(outcome(router, "/nowhere").await, None);
}

#[tokio::test]
async fn layer_knows_the_route_and_lets_a_404_pass() {
    // The missing header does not matter: there is nothing to lock.
    let with_header = key::header("x-tenant-id").param("id");
    for key in [account(), key::route(), with_header] {
        let router = routes().layer(observed!(key));
        assert_eq!(
            outcome(router.clone(), "/nowhere").await,
            Some(Ok(Derived::NoRoute))
        );
        let custom = routes().fallback(|| async {}).layer(observed!(account()));
        assert_eq!(
            outcome(custom, "/nowhere").await,
            Some(Ok(Derived::NoRoute))
        );
    }
    let router = routes().layer(observed!(account()));
    assert_eq!(key_of(router, "/accounts/7").await, "account,param.id=7");
}

#[tokio::test]
async fn around_a_router_is_a_misconfiguration_that_names_the_fix() {
    for key in [
        account(),
        key::route(),
        key::param("id").or("none"),
        key::route().optional(),
    ] {
        let service = ServiceBuilder::new()
            .layer(observed!(key))
            .service(routes());
        let response = send(service, "POST", "/accounts/7").await;
        let error = response
            .extensions()
            .get::<Outcome>()
            .unwrap()
            .clone()
            .unwrap_err();
        assert!(error.is_misconfigured());
        assert!(error.to_string().contains("Router::route_layer"), "{error}");
    }
    // What needs no route is at home there.
    let service = ServiceBuilder::new()
        .layer(observed!(key::path()))
        .service(routes());
    let response = send(service, "POST", "/accounts/7").await;
    let derived = response
        .extensions()
        .get::<Outcome>()
        .unwrap()
        .clone()
        .unwrap();
    assert_eq!(derived.key().unwrap().as_str(), "path=/accounts/7");
}

#[tokio::test]
async fn a_route_without_the_parameter_is_a_misconfiguration_unless_there_is_a_fallback() {
    let router = routes().route_layer(observed!(account()));
    let error = outcome(router, "/about").await.unwrap().unwrap_err();
    assert!(error.is_misconfigured());
    assert!(
        error
            .to_string()
            .contains("`id` is not in the route `/about`"),
        "{error}"
    );

    let router = routes().layer(observed!(account().or("all")));
    assert_eq!(
        key_of(router.clone(), "/about").await,
        "account,param.id=all"
    );
    assert_eq!(key_of(router, "/nowhere").await, "account,param.id=all");
    let router = routes().layer(observed!(account().optional()));
    assert_eq!(key_of(router, "/about").await, "account,param.id=");
}

#[tokio::test]
async fn two_parameters_of_one_name_are_a_misconfiguration() {
    let inner = routes().route_layer(observed!(account()));
    let router = Router::new().nest("/tenants/{id}", inner);
    let error = outcome(router, "/tenants/1/accounts/2")
        .await
        .unwrap()
        .unwrap_err();
    assert!(error.is_misconfigured());
    assert!(
        error.to_string().contains("two path parameters `id`"),
        "{error}"
    );
}

#[tokio::test]
async fn a_nested_router_counts_the_prefix() {
    let inner = || routes().route_layer(observed!(account().param("tenant").path().route()));
    let expected = "account,param.id=7,param.tenant=t,path=/api/t/accounts/7,\
                    route=/api/{tenant}/accounts/{id}";
    let nested = Router::new().nest("/api/{tenant}", inner());
    assert_eq!(key_of(nested, "/api/t/accounts/7").await, expected);
    let service = Router::new().nest_service("/api/{tenant}", inner());
    assert_eq!(key_of(service, "/api/t/accounts/7").await, expected);
    // Outside of the nesting, too: the routes of `nest` are known to the outer router.
    let outer = Router::new().nest("/api/{tenant}", routes());
    let outer = outer.route_layer(observed!(account().param("tenant").path().route()));
    assert_eq!(key_of(outer, "/api/t/accounts/7").await, expected);
}

#[tokio::test]
async fn a_nested_404_passes() {
    let inner = routes().fallback(|| async {}).layer(observed!(account()));
    let router = Router::new().nest("/api", inner);
    assert_eq!(
        outcome(router, "/api/nowhere").await,
        Some(Ok(Derived::NoRoute))
    );
}

#[tokio::test]
async fn on_a_nested_service_is_a_misconfiguration_that_names_the_fix() {
    let misplaced = || {
        ServiceBuilder::new()
            .layer(observed!(account()))
            .service(routes())
    };
    let around_the_inner = Router::new().nest_service("/api", misplaced());
    let on_the_outer = Router::new()
        .nest_service("/api", routes())
        .route_layer(observed!(account()));
    for router in [around_the_inner, on_the_outer] {
        let error = outcome(router, "/api/accounts/7")
            .await
            .unwrap()
            .unwrap_err();
        assert!(error.is_misconfigured());
        assert!(error.to_string().contains("nest_service"), "{error}");
    }
    // In doubt, it is refused: nothing tells these from the above.
    let inner = routes().layer(observed!(account()));
    let router = Router::new().nest_service("/api", inner);
    let error = outcome(router, "/api/nowhere").await.unwrap().unwrap_err();
    assert!(error.is_misconfigured());
}

/// What the docs name as the exception.
#[tokio::test]
async fn around_a_fallback_router_cannot_be_told_from_a_404() {
    let misplaced = ServiceBuilder::new()
        .layer(observed!(account()))
        .service(routes());
    let fallback = Router::new().fallback_service(misplaced);
    let derived = outcome(fallback, "/accounts/7").await;
    assert_eq!(derived, Some(Ok(Derived::NoRoute)));
}

#[tokio::test]
async fn a_405_has_a_key_except_in_a_method_routers_route_layer() {
    for router in [
        routes().route_layer(observed!(account())),
        routes().layer(observed!(account())),
    ] {
        let response = send(router, "PUT", "/accounts/7").await;
        assert_eq!(response.status(), StatusCode::METHOD_NOT_ALLOWED);
        assert!(response.extensions().get::<Outcome>().is_some());
    }
    let transfer = post(|| async {}).route_layer(observed!(account()));
    let router = Router::new().route("/accounts/{id}", transfer);
    assert_eq!(
        key_of(router.clone(), "/accounts/7").await,
        "account,param.id=7"
    );
    let response = send(router, "PUT", "/accounts/7").await;
    assert_eq!(response.status(), StatusCode::METHOD_NOT_ALLOWED);
    assert!(response.extensions().get::<Outcome>().is_none());
}

#[tokio::test]
async fn a_parameter_that_path_refuses_is_refused() {
    let router = routes().route_layer(observed!(account()));
    let error = outcome(router, "/accounts/%ff").await.unwrap().unwrap_err();
    assert_eq!(error.kind(), KeyErrorKind::Malformed);
}

type Params = Result<HashMap<String, String>, StatusCode>;

/// Tells what the handler sees.
async fn handler(path: Result<Path<HashMap<String, String>>, PathRejection>) -> Response {
    let params: Params = match path {
        Ok(Path(params)) => Ok(params),
        Err(rejection) => Err(rejection.status()),
    };
    let mut response = Response::new(Body::empty());
    response.extensions_mut().insert(params);
    response
}

#[tokio::test]
async fn params_are_what_the_handler_sees() {
    let key = || key::param("id").or("-").param("rest").or("-");
    let routes = Router::new()
        .route("/{id}", any(handler))
        .route("/one/{id}", any(handler))
        .route("/pre-{id}/x", any(handler))
        .route("/{id}/all/{*rest}", any(handler));
    let routes = routes.route_layer(observed!(key()));
    let router = Router::new()
        .nest("/n", routes.clone())
        .nest("/deep/{id2}", routes.clone())
        .nest_service("/s", routes.clone())
        .merge(routes);

    let mut rng = Rng::new(7);
    let (mut keys, mut refused) = (0, 0);
    for _ in 0..30_000 {
        let uri = keys_support::hostile_path(&mut rng);
        let Ok(request) = Request::builder().uri(&uri).body(Body::empty()) else {
            continue;
        };
        let response = router.clone().oneshot(request).await.unwrap();
        let Some(params) = response.extensions().get::<Params>() else {
            continue;
        };
        match (response.extensions().get::<Outcome>().unwrap(), params) {
            (Ok(Derived::Key(key)), Ok(params)) => {
                assert_agrees(key.as_str(), params, &uri);
                keys += 1;
            }
            (Err(error), Err(StatusCode::BAD_REQUEST)) => {
                assert_eq!(error.kind(), KeyErrorKind::Malformed);
                refused += 1;
            }
            // `/pre-{id}/x` matches `/pre-/x`.
            (Err(error), Ok(params)) => {
                assert_eq!(error.kind(), KeyErrorKind::Empty, "{uri}");
                assert_eq!(params["id"], "");
            }
            other => panic!("{uri}: {other:?}"),
        }
    }
    assert!(
        keys > 5_000 && refused > 500,
        "{keys} keys, {refused} refused"
    );
}

fn assert_agrees(key: &str, params: &HashMap<String, String>, uri: &str) {
    for part in key.split(',') {
        let (label, value) = part.split_once('=').unwrap();
        let name = label.strip_prefix("param.").unwrap();
        let seen = params.get(name).map_or("-", String::as_str);
        let value = percent_decode_str(value).decode_utf8().unwrap();
        assert_eq!(value, seen, "{uri}");
    }
}

#[tokio::test]
async fn query_parameters_are_what_the_handler_sees() {
    let handler = |query: Query<HashMap<String, String>>| async move {
        let mut response = Response::new(Body::empty());
        response.extensions_mut().insert(query.0);
        response
    };
    let router = Router::new()
        .route("/", any(handler))
        .route_layer(observed!(key::query("q")));
    for query in [
        "q=a+b",
        "q=a%20b",
        "q=a%2Bb",
        "x=1&&%71=1",
        "q=%zz",
        "q=a=b",
        "q=%C3%BC&r=%ff",
    ] {
        let response = send(router.clone(), "POST", &format!("/?{query}")).await;
        let seen = &response
            .extensions()
            .get::<HashMap<String, String>>()
            .unwrap()["q"];
        let derived = response
            .extensions()
            .get::<Outcome>()
            .unwrap()
            .clone()
            .unwrap();
        let value = derived
            .key()
            .unwrap()
            .as_str()
            .strip_prefix("query.q=")
            .unwrap();
        assert_eq!(
            percent_decode_str(value).decode_utf8().unwrap(),
            *seen,
            "{query}"
        );
    }
}
