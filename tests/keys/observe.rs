//! A layer that derives keys inside of real routers, and reports them to the test.

use std::{convert::Infallible, sync::Arc};

use axum::{
    Router,
    body::Body,
    extract::{Request, State},
    middleware::{FromFnLayer, Next, from_fn_with_state},
    response::Response,
};
use futures_util::future::BoxFuture;
use tower::{Service, ServiceExt};
use tower_distributed_lock::key::{DeriveKey, Derived, KeyError, RequestKey};

pub(crate) type Outcome = Result<Derived, KeyError>;
type Key = State<Arc<RequestKey>>;
type Observe = fn(Key, Request, Next) -> BoxFuture<'static, Response>;

/// In the place of the lock's layer: derives the key, lets every request pass, and reports the key.
pub(crate) fn observed(key: RequestKey) -> FromFnLayer<Observe, Arc<RequestKey>, (Key, Request)> {
    from_fn_with_state(Arc::new(key), |State(key), request, next| {
        Box::pin(async move {
            let (mut parts, body) = request.into_parts();
            let outcome = key.derive(&mut parts);
            let mut response = next.run(Request::from_parts(parts, body)).await;
            response.extensions_mut().insert::<Outcome>(outcome);
            response
        })
    })
}

pub(crate) async fn send<S>(service: S, method: &str, uri: &str) -> Response
where
    S: Service<Request, Response = Response, Error = Infallible>,
{
    let request = Request::builder().method(method).uri(uri);
    let request = request.body(Body::empty()).unwrap();
    service.oneshot(request).await.unwrap()
}

/// The key of the outermost observing layer; `None` without such a layer.
pub(crate) async fn outcome(router: Router, uri: &str) -> Option<Outcome> {
    let response = send(router, "POST", uri).await;
    response.extensions().get::<Outcome>().cloned()
}

pub(crate) fn outcome_in(response: &Response) -> Outcome {
    response.extensions().get::<Outcome>().unwrap().clone()
}

pub(crate) async fn key_at(router: Router, uri: &str) -> String {
    match outcome(router, uri).await {
        Some(Ok(Derived::Key(key))) => key.to_string(),
        other => panic!("no key for {uri}: {other:?}"),
    }
}
