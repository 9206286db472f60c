//! Where in a router the route and its parameters are known.

use axum::{Router, routing::post};
use http::StatusCode;
use tower::ServiceBuilder;
use tower_distributed_lock::key::{self, Derived, KeyErrorKind, RequestKey};

use crate::observe::{Outcome, key_at, observed, outcome, outcome_in, send};

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
    let router = routes().route_layer(observed(account().route()));
    let key = key_at(router.clone(), "/accounts/a%3Ab").await;
    assert_eq!(key, "account,id=a:b,route=/accounts/{id}");
    assert_eq!(outcome(router, "/nowhere").await, None);
}

#[tokio::test]
async fn layer_knows_the_route_and_lets_a_404_pass() {
    // The missing header does not matter: there is nothing to lock.
    let with_header = key::request().header("x-tenant-id").param("id");
    for key in [account(), key::request().route(), with_header] {
        let router = routes().layer(observed(key));
        assert_eq!(
            outcome(router.clone(), "/nowhere").await,
            Some(Ok(Derived::NoRoute))
        );
        let custom = routes().fallback(|| async {}).layer(observed(account()));
        assert_eq!(
            outcome(custom, "/nowhere").await,
            Some(Ok(Derived::NoRoute))
        );
    }
    let router = routes().layer(observed(account()));
    assert_eq!(key_at(router, "/accounts/7").await, "account,id=7");
}

#[tokio::test]
async fn a_layer_around_a_router_is_a_misconfiguration_that_names_the_fix() {
    for key in [
        account(),
        key::request().route(),
        key::request().param("id").or("none"),
        key::request().route().optional(),
    ] {
        let service = ServiceBuilder::new().layer(observed(key)).service(routes());
        let response = send(service, "POST", "/accounts/7").await;
        let error = outcome_in(&response).unwrap_err();
        assert!(error.is_misconfigured());
        assert!(error.to_string().contains("Router::route_layer"), "{error}");
    }
    // A key without a route works around a router.
    let service = ServiceBuilder::new()
        .layer(observed(key::request().path()))
        .service(routes());
    let response = send(service, "POST", "/accounts/7").await;
    let derived = outcome_in(&response).unwrap();
    assert_eq!(derived.key().unwrap().as_str(), "path=/accounts/7");
}

#[tokio::test]
async fn a_route_without_the_parameter_is_a_misconfiguration_unless_there_is_a_fallback() {
    let router = routes().route_layer(observed(account()));
    let error = outcome(router, "/about").await.unwrap().unwrap_err();
    assert!(error.is_misconfigured());
    assert!(
        error
            .to_string()
            .contains("`id` is not in the route `/about`"),
        "{error}"
    );

    let router = routes().layer(observed(account().or("all")));
    assert_eq!(key_at(router.clone(), "/about").await, "account,id=all");
    assert_eq!(key_at(router, "/nowhere").await, "account,id=all");
    let router = routes().layer(observed(account().optional()));
    assert_eq!(key_at(router, "/about").await, "account,id=");
}

#[tokio::test]
async fn two_parameters_of_one_name_are_a_misconfiguration() {
    let inner = routes().route_layer(observed(account()));
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
    let inner = || routes().route_layer(observed(account().param("tenant").path().route()));
    let expected = "account,id=7,tenant=t,path=/api/t/accounts/7,\
                    route=/api/{tenant}/accounts/{id}";
    let nested = Router::new().nest("/api/{tenant}", inner());
    assert_eq!(key_at(nested, "/api/t/accounts/7").await, expected);
    let service = Router::new().nest_service("/api/{tenant}", inner());
    assert_eq!(key_at(service, "/api/t/accounts/7").await, expected);
    // Outside of the nesting, too: the routes of `nest` are known to the outer router.
    let outer = Router::new().nest("/api/{tenant}", routes());
    let outer = outer.route_layer(observed(account().param("tenant").path().route()));
    assert_eq!(key_at(outer, "/api/t/accounts/7").await, expected);
}

#[tokio::test]
async fn a_nested_404_passes() {
    let inner = routes().fallback(|| async {}).layer(observed(account()));
    let router = Router::new().nest("/api", inner);
    assert_eq!(
        outcome(router, "/api/nowhere").await,
        Some(Ok(Derived::NoRoute))
    );
}

#[tokio::test]
async fn a_layer_on_a_nested_service_is_a_misconfiguration_that_names_the_fix() {
    let misplaced = || {
        ServiceBuilder::new()
            .layer(observed(account()))
            .service(routes())
    };
    let around_the_inner = Router::new().nest_service("/api", misplaced());
    let on_the_outer = Router::new()
        .nest_service("/api", routes())
        .route_layer(observed(account()));
    for router in [around_the_inner, on_the_outer] {
        let error = outcome(router, "/api/accounts/7")
            .await
            .unwrap()
            .unwrap_err();
        assert!(error.is_misconfigured());
        assert!(error.to_string().contains("nest_service"), "{error}");
    }
    // In doubt the request is refused: these cases look like the ones above.
    let inner = routes().layer(observed(account()));
    let router = Router::new().nest_service("/api", inner);
    let error = outcome(router, "/api/nowhere").await.unwrap().unwrap_err();
    assert!(error.is_misconfigured());
}

/// The exception that the docs name.
#[tokio::test]
async fn a_layer_around_a_fallback_router_looks_like_a_404() {
    let misplaced = ServiceBuilder::new()
        .layer(observed(account()))
        .service(routes());
    let fallback = Router::new().fallback_service(misplaced);
    let derived = outcome(fallback, "/accounts/7").await;
    assert_eq!(derived, Some(Ok(Derived::NoRoute)));
}

#[tokio::test]
async fn a_405_has_a_key_except_in_a_method_routers_route_layer() {
    for router in [
        routes().route_layer(observed(account())),
        routes().layer(observed(account())),
    ] {
        let response = send(router, "PUT", "/accounts/7").await;
        assert_eq!(response.status(), StatusCode::METHOD_NOT_ALLOWED);
        assert!(response.extensions().get::<Outcome>().is_some());
    }
    let transfer = post(|| async {}).route_layer(observed(account()));
    let router = Router::new().route("/accounts/{id}", transfer);
    assert_eq!(key_at(router.clone(), "/accounts/7").await, "account,id=7");
    let response = send(router, "PUT", "/accounts/7").await;
    assert_eq!(response.status(), StatusCode::METHOD_NOT_ALLOWED);
    assert!(response.extensions().get::<Outcome>().is_none());
}

#[tokio::test]
async fn a_parameter_that_path_refuses_is_refused() {
    let router = routes().route_layer(observed(account()));
    let error = outcome(router, "/accounts/%ff").await.unwrap().unwrap_err();
    assert_eq!(error.kind(), KeyErrorKind::Malformed);
}

#[tokio::test]
async fn one_account_has_one_key_however_its_id_is_written() {
    let account = key::name("account").param_as::<u64>("id");
    let router = routes().route_layer(observed(account));
    for id in ["7", "07", "007", "%2B7", "%37"] {
        let key = key_at(router.clone(), &format!("/accounts/{id}")).await;
        assert_eq!(key, "account,id=7", "{id}");
    }
    for id in ["x", "-7", "7a", "%207"] {
        let outcome = outcome(router.clone(), &format!("/accounts/{id}")).await;
        let error = outcome.unwrap().unwrap_err();
        assert_eq!(error.kind(), KeyErrorKind::Malformed, "{id}");
    }
}

#[tokio::test]
async fn routes_with_other_parameter_names_share_a_key() {
    let deposits = post(|| async {}).route_layer(observed(account()));
    let withdrawals = key::name("account").param("account_id").labelled("id");
    let withdrawals = post(|| async {}).route_layer(observed(withdrawals));
    let router = Router::new()
        .route("/accounts/{id}", deposits)
        .route("/withdrawals/{account_id}", withdrawals);
    for uri in ["/accounts/7", "/withdrawals/7"] {
        assert_eq!(key_at(router.clone(), uri).await, "account,id=7");
    }
}

#[tokio::test]
async fn a_closure_sees_path_parameters() {
    let half = || {
        key::name("account").from_fn("bank", |request| {
            Some(request.param("id")?.split('-').next()?.into())
        })
    };
    let router = routes().layer(observed(half()));
    let key = key_at(router.clone(), "/accounts/7-42").await;
    assert_eq!(key, "account,bank=7");
    // As with `param`: a 404 passes, a route without the parameter and a layer in the wrong place
    // are refused.
    assert_eq!(
        outcome(router.clone(), "/nowhere").await,
        Some(Ok(Derived::NoRoute))
    );
    // A part that is missing for another reason is refused, also where a closure has asked for a
    // parameter before.
    let either = key::request().from_fn("id", |request| {
        let id = request.param("id").map(str::to_owned);
        Some(id.unwrap_or_else(|| "none".into()).into())
    });
    let elsewhere = routes()
        .fallback(|| async {})
        .layer(observed(either.header("x-tenant-id")));
    let error = outcome(elsewhere, "/nowhere").await.unwrap().unwrap_err();
    assert_eq!(error.kind(), KeyErrorKind::Missing);
    let error = outcome(router, "/about").await.unwrap().unwrap_err();
    assert_eq!(error.kind(), KeyErrorKind::Missing);
    let around = ServiceBuilder::new()
        .layer(observed(half()))
        .service(routes());
    let response = send(around, "POST", "/accounts/7-42").await;
    assert!(outcome_in(&response).unwrap_err().is_misconfigured());
}
