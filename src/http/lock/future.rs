//! The way of a request: wait for the turn, run the handler under a watched lease, end the turn, respond.
//!
//! A request that is dropped in any stage gives up its place in line, its handler and its turn: the future owns all of them, and
//! spawns nothing.

use std::{
    fmt,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use pin_project::pin_project;
use tower_service::Service;

use super::{
    LeaseLoss, LockBody,
    held::{Guards, HeldTurn},
    request_guards::{NotLocked, RequestGuards},
    response::{Asking, End, end, respond},
    service::Plan,
    settings::Settings,
};
use crate::{
    Error, ErrorKind,
    locks::{
        Busy,
        reentry::{self, Held},
    },
    rejection::{Asked, Rejection},
};

/// The future of a [`DistributedLock`](super::DistributedLock)'s response.
#[pin_project]
pub struct ResponseFuture<S, ReqBody, ResBody>
where
    S: Service<Request<ReqBody>>,
{
    settings: Arc<Settings>,
    service: S,
    request: Option<Request<ReqBody>>,
    #[pin]
    stage: Stage<S::Future, ResBody, S::Error>,
    /// Declared below the stage: the handler is dropped before the next request's turn begins.
    turn: Option<HeldTurn>,
    /// The turns that the handler runs under.
    held: Option<Held>,
    /// Counts the handler while it runs.
    running: Option<Busy>,
    asked: Asked,
}

type Outcome<B, E> = Result<Response<B>, E>;

/// The stages of a request. Each poll goes through as many stages as it can.
#[pin_project(project = StageProj)]
enum Stage<F, ResBody, E> {
    Refused(Rejection),
    Acquiring(Asking),
    Readying,
    Handling(#[pin] F),
    Ending(Asking, Option<Outcome<ResBody, E>>),
    Done,
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
        asked: Asked,
    ) -> Self {
        let mut future = Self {
            settings,
            service,
            request: Some(request),
            stage: Stage::Readying,
            turn: None,
            held: None,
            running: None,
            asked,
        };
        match plan {
            Plan::Pass(reason) => {
                future.turn = begin(&future.settings, &mut future.request, Err(reason));
            }
            Plan::Enter(guards) => {
                future.turn = begin(&future.settings, &mut future.request, Ok(guards));
            }
            Plan::Lock(wanted) => {
                let acquiring = future.settings.clone().acquire(wanted);
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
    type Output = Outcome<LockBody<ResBody>, S::Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let output = loop {
            if let Some(turn) = self.as_mut().project().turn
                && turn.check_lost(cx)
            {
                self.as_mut().end_lost();
            }
            if let Poll::Ready(output) = self.as_mut().advance(cx) {
                break output;
            }
            // From here on the request waits, and a loss has to wake the task.
            match self.as_mut().project().turn {
                Some(turn) if !turn.is_watching() => {
                    ready!(turn.poll_lost(cx));
                    self.as_mut().end_lost();
                }
                _ => return Poll::Pending,
            }
        };
        // A finished future that is not dropped keeps neither the handler nor the turn.
        let mut this = self.project();
        this.stage.set(Stage::Done);
        *this.turn = None;
        Poll::Ready(output)
    }
}

impl<S, ReqBody, ResBody> ResponseFuture<S, ReqBody, ResBody>
where
    S: Service<Request<ReqBody>, Response = Response<ResBody>>,
    ResBody: Body<Data = Bytes>,
{
    /// Refuses a request whose turn was lost. The handler is dropped first: it must not run beside the next holder's.
    fn end_lost(self: Pin<&mut Self>) {
        let mut this = self.project();
        // The request is taken when the handler is called.
        let rejection = this.settings.refuse(lost(this.request.is_none()));
        this.stage.set(Stage::Refused(rejection));
        *this.turn = None;
        *this.running = None;
    }

    /// Goes on until the request has to wait, or has its response.
    fn advance(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Outcome<LockBody<ResBody>, S::Error>> {
        let mut this = self.project();
        loop {
            match this.stage.as_mut().project() {
                StageProj::Refused(rejection) => {
                    let rejection = rejection.clone().to(*this.asked);
                    let response = this.settings.renderer.render(&rejection);
                    return Poll::Ready(Ok(response.map(LockBody::whole)));
                }
                StageProj::Acquiring(acquiring) => {
                    let stage = match ready!(acquiring.as_mut().poll(cx)) {
                        Ok(guards) => {
                            let guards = guards.ok_or(NotLocked::FailedOpen);
                            *this.turn = begin(this.settings, this.request, guards);
                            Stage::Readying
                        }
                        Err(error) => Stage::Refused(this.settings.refuse(error)),
                    };
                    this.stage.set(stage);
                }
                StageProj::Readying => {
                    ready!(this.service.poll_ready(cx))?;
                    // The lease may have ended meanwhile. A handler that has not begun is not begun, not even with `LeaseLoss::Finish`.
                    if this.turn.as_ref().is_some_and(HeldTurn::is_lost) {
                        let rejection = this.settings.refuse(lost(false));
                        this.stage.set(Stage::Refused(rejection));
                        continue;
                    }
                    let request = this.request.take().expect("a request is called once");
                    *this.running = this.settings.count_handler(request.extensions());
                    *this.held = this.turn.as_ref().map(|turn| reentry::with(turn.guards()));
                    let handling = under(this.held, this.turn, || this.service.call(request));
                    this.stage.set(Stage::Handling(handling));
                }
                StageProj::Handling(handling) => {
                    let outcome = ready!(under(this.held, this.turn, || handling.poll(cx)));
                    *this.running = None;
                    let Some(turn) = this.turn.take() else {
                        return Poll::Ready(respond(outcome, None, this.settings));
                    };
                    // The handler's future may still hold guards, and is dropped before the turn ends.
                    this.stage.set(Stage::Done);
                    match end(turn, outcome, this.settings) {
                        End::Respond(outcome, guards) => {
                            return Poll::Ready(respond(outcome, Some(guards), this.settings));
                        }
                        End::Lost => {
                            let rejection = this.settings.refuse(lost(true));
                            this.stage.set(Stage::Refused(rejection));
                        }
                        End::Ask(asking, outcome) => {
                            this.stage.set(Stage::Ending(asking, Some(outcome)));
                        }
                    }
                }
                StageProj::Ending(asking, outcome) => match ready!(asking.as_mut().poll(cx)) {
                    Ok(guards) => {
                        let outcome = outcome.take().expect("a response is given once");
                        return Poll::Ready(respond(outcome, guards, this.settings));
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

/// Runs a step of the handler with its turns in the task-local of [`reentry`], and within the span of its first turn.
fn under<T>(held: &Option<Held>, turn: &Option<HeldTurn>, step: impl FnOnce() -> T) -> T {
    let step = || match held {
        Some(held) => reentry::scope(held, step),
        None => step(),
    };
    match turn.as_ref().and_then(|turn| turn.guards().first()) {
        Some(guard) => guard.hold().scope(step),
        None => step(),
    }
}

/// The error of a request whose lease was lost. If the handler had not begun, nothing was done, and the request can be sent again.
fn lost(has_begun: bool) -> Error {
    if has_begun {
        Error::new(ErrorKind::Lost, "the lease was lost while the handler ran")
    } else {
        Error::new(
            ErrorKind::Held,
            "the lease was lost before the handler could begin",
        )
    }
}

/// Adds the outcome of the lock to the request's extensions, and holds the turn.
fn begin<B>(
    settings: &Settings,
    request: &mut Option<Request<B>>,
    guards: Result<Guards, NotLocked>,
) -> Option<HeldTurn> {
    if let Some(request) = request {
        let noted = guards.as_ref().map_err(|reason| *reason);
        let noted = noted.map(Guards::as_slice);
        let (name, on_loss) = (settings.name.clone(), settings.loss);
        RequestGuards::add_lock(request.extensions_mut(), name, on_loss, noted);
    }
    let watched = settings.loss == LeaseLoss::Cancel;
    guards.ok().map(|guards| HeldTurn::new(guards, watched))
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
