//! That a key is of one opinion with the handler about parameters.

use std::collections::HashMap;

use axum::{
    Router,
    body::Body,
    extract::{Path, Query, Request, rejection::PathRejection},
    response::Response,
    routing::any,
};
use http::StatusCode;
use percent_encoding::percent_decode_str;
use tower::ServiceExt;
use tower_distributed_lock::key::{self, Derived, KeyErrorKind};

use crate::{
    hostile::{Rng, push_hostile},
    observe::{observed, outcome_in, send},
};

type Params = Result<HashMap<String, String>, StatusCode>;

/// Answers with the parameters that the handler sees.
async fn handler(path: Result<Path<HashMap<String, String>>, PathRejection>) -> Response {
    let params: Params = match path {
        Ok(Path(params)) => Ok(params),
        Err(rejection) => Err(rejection.status()),
    };
    let mut response = Response::new(Body::empty());
    response.extensions_mut().insert(params);
    response
}

/// A path, often one that has a route below.
fn hostile_path(rng: &mut Rng) -> String {
    const STARTS: &[&str] = &[
        "/",
        "/one/",
        "/n/one/",
        "/n/",
        "/deep/x/",
        "/s/",
        "/s/one/",
        "/pre-",
        "/a/all/",
        "/n/a/all/",
    ];
    let mut path = String::from(rng.pick(STARTS));
    push_hostile(rng, &mut path);
    if rng.below(4) == 0 {
        path.push_str(rng.pick(&["/all/x/y", "/x", "/"]));
    }
    path
}

#[tokio::test]
async fn params_are_equal_to_those_of_the_handler() {
    let key = || key::request().param("id").or("-").param("rest").or("-");
    let routes = Router::new()
        .route("/{id}", any(handler))
        .route("/one/{id}", any(handler))
        .route("/pre-{id}/x", any(handler))
        .route("/{id}/all/{*rest}", any(handler));
    let routes = routes.route_layer(observed(key()));
    let router = Router::new()
        .nest("/n", routes.clone())
        .nest("/deep/{id2}", routes.clone())
        .nest_service("/s", routes.clone())
        .merge(routes);

    let mut rng = Rng::new(7);
    let (mut keys, mut refused) = (0, 0);
    for _ in 0..30_000 {
        let uri = hostile_path(&mut rng);
        let Ok(request) = Request::builder().uri(&uri).body(Body::empty()) else {
            continue;
        };
        let response = router.clone().oneshot(request).await.unwrap();
        let Some(params) = response.extensions().get::<Params>() else {
            continue;
        };
        match (outcome_in(&response), params) {
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
        let seen = params.get(label).map_or("-", String::as_str);
        let value = percent_decode_str(value).decode_utf8().unwrap();
        assert_eq!(value, seen, "{uri}");
    }
}

#[tokio::test]
async fn query_parameters_are_equal_to_those_of_the_handler() {
    let handler = |query: Query<HashMap<String, String>>| async move {
        let mut response = Response::new(Body::empty());
        response.extensions_mut().insert(query.0);
        response
    };
    let router = Router::new()
        .route("/", any(handler))
        .route_layer(observed(key::request().query("q")));
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
        let derived = outcome_in(&response).unwrap();
        let value = derived.key().unwrap().as_str().strip_prefix("q=").unwrap();
        assert_eq!(
            percent_decode_str(value).decode_utf8().unwrap(),
            *seen,
            "{query}"
        );
    }
}
