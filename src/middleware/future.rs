//! The way of a request: wait for the turn, run the handler under a watched lease, end the turn, respond.
//!
//! A request that is dropped on the way loses its place in line, its handler and its turn, in whatever stage it is:
//! each is owned by the stage or beside it, and nothing is spawned.

use std::{
    fmt,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use pin_project::pin_project;
use tokio::time::timeout;
use tower_service::Service;

use super::{
    Fenced, LeaseLoss, LockBody,
    settings::{Plan, Settings},
    turns::{NotLocked, Turns},
};
use crate::{Error, ErrorKind, LockGuard, Loss, Status, rejection::Rejection};

/// How long a response waits for the release of its key at most.
const RELEASE_LIMIT: Duration = Duration::from_secs(2);

type Boxed<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// The future of a [`DistributedLock`](super::DistributedLock)'s response.
#[pin_project]
pub struct ResponseFuture<S, ReqBody, ResBody>
where
    S: Service<Request<ReqBody>>,
{
    settings: Arc<Settings>,
    service: S,
    request: Option<Request<ReqBody>>,
    turn: Option<HeldTurn>,
    #[pin]
    stage: Stage<S::Future, ResBody>,
}

#[pin_project(project = StageProj)]
enum Stage<F, ResBody> {
    Refused(Rejection),
    Acquiring(Boxed<Result<Option<LockGuard>, Error>>),
    Readying,
    Handling(#[pin] F),
    Done,
    Ending(
        Boxed<Result<Option<LockGuard>, Error>>,
        Option<Response<ResBody>>,
    ),
}

/// A turn that a future or a body holds, and the wish to hear of its loss.
pub(super) struct HeldTurn {
    guard: LockGuard,
    lost: Option<Boxed<Loss>>,
}

impl HeldTurn {
    pub(super) fn new(guard: LockGuard, watched: bool) -> Self {
        let lost = watched.then(|| Box::pin(guard.watch()) as Boxed<_>);
        Self { guard, lost }
    }

    /// Whether the turn was lost, if it is watched.
    pub(super) fn poll_lost(&mut self, cx: &mut Context<'_>) -> Option<Loss> {
        let Poll::Ready(loss) = self.lost.as_mut()?.as_mut().poll(cx) else {
            return None;
        };
        self.lost = None;
        // A handler may have released its turn, and the lease have gone on without it.
        (self.guard.status() != Status::Released).then_some(loss)
    }

    /// By the clock: the loss need not have been told yet.
    fn is_lost(&self) -> bool {
        matches!(self.guard.status(), Status::Lost(_))
    }
}

impl<S, ReqBody, ResBody> ResponseFuture<S, ReqBody, ResBody>
where
    S: Service<Request<ReqBody>>,
{
    pub(super) fn new(
        settings: Arc<Settings>,
        service: S,
        request: Request<ReqBody>,
        plan: Plan,
    ) -> Self {
        let mut future = Self {
            settings,
            service,
            request: Some(request),
            turn: None,
            stage: Stage::Readying,
        };
        match plan {
            Plan::Pass(reason) => {
                future.turn = begin(&future.settings, &mut future.request, Err(reason));
            }
            Plan::Enter(guard) => {
                future.turn = begin(&future.settings, &mut future.request, Ok(guard));
            }
            Plan::Lock(key) => {
                let acquiring = future.settings.clone().acquire(key);
                future.stage = Stage::Acquiring(Box::pin(acquiring));
            }
            Plan::Refuse(rejection) => future.stage = Stage::Refused(rejection),
        }
        future
    }
}

impl<S, ReqBody, ResBody> Future for ResponseFuture<S, ReqBody, ResBody>
where
    S: Service<Request<ReqBody>, Response = Response<ResBody>>,
    ResBody: Body<Data = Bytes>,
{
    type Output = Result<Response<LockBody<ResBody>>, S::Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        loop {
            if this
                .turn
                .as_mut()
                .is_some_and(|turn| turn.poll_lost(cx).is_some())
            {
                // Dropped first: a handler must not go on beside the next holder's.
                let rejection = this.settings.refuse(lost());
                this.stage.set(Stage::Refused(rejection));
                *this.turn = None;
            }
            match this.stage.as_mut().project() {
                StageProj::Refused(rejection) => {
                    let response = this.settings.renderer.render(rejection);
                    return Poll::Ready(Ok(response.map(LockBody::whole)));
                }
                StageProj::Acquiring(acquiring) => {
                    let stage = match ready!(acquiring.as_mut().poll(cx)) {
                        Ok(guard) => {
                            let guard = guard.ok_or(NotLocked::FailedOpen);
                            *this.turn = begin(this.settings, this.request, guard);
                            Stage::Readying
                        }
                        Err(error) => Stage::Refused(this.settings.refuse(error)),
                    };
                    this.stage.set(stage);
                }
                StageProj::Readying => {
                    ready!(this.service.poll_ready(cx))?;
                    let request = this.request.take().expect("a request is called once");
                    let handling = this.service.call(request);
                    this.stage.set(Stage::Handling(handling));
                }
                StageProj::Handling(handling) => {
                    let response = ready!(handling.poll(cx))?;
                    let Some(turn) = this.turn.take() else {
                        return Poll::Ready(Ok(response.map(LockBody::free)));
                    };
                    // What the handler's future still holds must go before its turn does, its guards above all.
                    this.stage.set(Stage::Done);
                    match end(turn, response, this.settings) {
                        End::Respond(response) => return Poll::Ready(Ok(response)),
                        End::Lost => {
                            let rejection = this.settings.refuse(lost());
                            this.stage.set(Stage::Refused(rejection));
                        }
                        End::Ask(ending, response) => {
                            this.stage.set(Stage::Ending(ending, Some(response)));
                        }
                    }
                }
                StageProj::Ending(ending, response) => match ready!(ending.as_mut().poll(cx)) {
                    Ok(guard) => {
                        let response = response.take().expect("a response is given once");
                        return Poll::Ready(Ok(respond(response, guard)));
                    }
                    Err(error) => {
                        let rejection = this.settings.refuse(error);
                        this.stage.set(Stage::Refused(rejection));
                    }
                },
                StageProj::Done => panic!("polled after it was ready"),
            }
        }
    }
}

fn lost() -> Error {
    Error::new(ErrorKind::Lost, "the lease was lost while the handler ran")
}

/// Notes in the request what was locked for it, and holds the turn.
fn begin<B>(
    settings: &Settings,
    request: &mut Option<Request<B>>,
    guard: Result<LockGuard, NotLocked>,
) -> Option<HeldTurn> {
    if let Some(request) = request {
        let noted = guard.as_ref().map_err(|reason| *reason);
        Turns::note(request.extensions_mut(), settings.name.clone(), noted);
    }
    let watched = settings.loss == LeaseLoss::Cancel;
    guard.ok().map(|guard| HeldTurn::new(guard, watched))
}

/// How a turn ends after its handler.
enum End<ResBody> {
    /// With this response, now.
    Respond(Response<LockBody<ResBody>>),
    /// It was lost: the response is not to be trusted.
    Lost,
    /// With this response, once the store has been asked.
    Ask(Boxed<Result<Option<LockGuard>, Error>>, Response<ResBody>),
}

fn end<ResBody>(turn: HeldTurn, response: Response<ResBody>, settings: &Settings) -> End<ResBody>
where
    ResBody: Body<Data = Bytes>,
{
    let fenced = response.extensions().get::<Fenced>().is_some();
    if turn.is_lost() && !fenced {
        return End::Lost;
    }
    let guard = turn.guard;
    let holds_on = settings.hold_body && !response.body().is_end_stream();
    let frees = guard.is_only_one() && !holds_on;
    let trust = match (fenced, settings.confirm) {
        (true, _) => Trust::Always,
        (false, false) => Trust::UnlessLost,
        (false, true) => Trust::IfConfirmed,
    };
    if trust == Trust::IfConfirmed || (settings.wait.is_none() && frees) {
        return End::Ask(Box::pin(ask(guard, trust, frees)), response);
    }
    End::Respond(respond(response, holds_on.then_some(guard)))
}

/// When a response may go out, whatever the store says or does not say.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Trust {
    Always,
    UnlessLost,
    IfConfirmed,
}

/// Releases the turn, or only asks whether it is still ours; returns it if it goes on.
async fn ask(guard: LockGuard, trust: Trust, frees: bool) -> Result<Option<LockGuard>, Error> {
    let (answer, guard) = match frees {
        true => (timeout(RELEASE_LIMIT, guard.release()).await, None),
        false => (timeout(RELEASE_LIMIT, guard.confirm()).await, Some(guard)),
    };
    let is_lost = |error: &Error| error.kind() == ErrorKind::Lost;
    match (trust, answer) {
        (_, Ok(Ok(()))) | (Trust::Always, _) => Ok(guard),
        (Trust::UnlessLost, Ok(Err(error))) if is_lost(&error) => Err(error),
        (Trust::UnlessLost, _) => Ok(guard),
        (Trust::IfConfirmed, Ok(Err(error))) => Err(Error::with_source(
            ErrorKind::Lost,
            "the lease could not be confirmed before the response",
            error,
        )),
        (Trust::IfConfirmed, Err(_)) => Err(Error::new(
            ErrorKind::Lost,
            format!("the store did not confirm the lease within {RELEASE_LIMIT:?}"),
        )),
    }
}

/// The response as it goes out; with a guard, its body holds the turn.
fn respond<B>(response: Response<B>, guard: Option<LockGuard>) -> Response<LockBody<B>> {
    response.map(|body| match guard {
        Some(guard) => LockBody::held(body, HeldTurn::new(guard, true)),
        None => LockBody::free(body),
    })
}

impl<S, ReqBody, ResBody> fmt::Debug for ResponseFuture<S, ReqBody, ResBody>
where
    S: Service<Request<ReqBody>>,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture")
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}
