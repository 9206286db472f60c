//! The options of a layer.
//!
//! [`Settings`] is shared by all clones of a layer and by all of its services. An option is set
//! before the layer is used: `Arc::make_mut` copies the settings only if a clone of the layer
//! exists already.

use std::{sync::Arc, time::Duration};

use http::{Extensions, Method};

use super::{outage::Outage, request_guards::RequestGuards};
use crate::{
    Error, Locks,
    defaults::lock as defaults,
    http::opaque::Opaque,
    key::DeriveKey,
    locks::{Busy, Holding, Wait, permit},
    store::Mode,
};

/// The fate of a handler whose lease is lost while the handler runs.
///
/// | | [`Cancel`](Self::Cancel) | [`Finish`](Self::Finish) |
/// |---|---|---|
/// | the handler | is dropped at an `.await` | runs to its end |
/// | the response | 409 at once | 409 at the end, unless marked as [`Fenced`] |
/// | fits | handlers whose steps can be repeated | handlers that check their guard, or that write with a token |
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum OnLoss {
    /// The handler's future is dropped at once, and the client gets 409.
    #[default]
    Cancel,
    /// The handler goes on, and can watch its guard. The response is replaced by 409, unless marked
    /// as [`Fenced`].
    Finish,
}

/// A response extension: the work behind this response was protected by a fencing token. The
/// response is true even if the lease was lost meanwhile, and goes out.
///
/// ```
/// # use http::Response;
/// use tower_distributed_lock::lock::Fenced;
///
/// let mut response = Response::new("the ledger took it, with its token");
/// response.extensions_mut().insert(Fenced);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Fenced;

#[derive(Debug, Clone)]
pub(super) struct Settings {
    pub(super) locks: Locks,
    pub(super) key: Opaque<dyn DeriveKey>,
    pub(super) name: Option<Arc<str>>,
    pub(super) methods: Methods,
    pub(super) modes: Modes,
    /// How many keys a request may have.
    pub(super) max_keys_per_request: usize,
    pub(super) wait: Wait,
    pub(super) holding: Holding,
    pub(super) loss: OnLoss,
    /// Whether handlers are tasks, which are counted where they are spawned.
    pub(super) detached: bool,
    pub(super) confirm: bool,
    pub(super) hold_body: bool,
    pub(super) fail_open: bool,
    pub(super) outage: Arc<Outage>,
    pub(super) retry_after: Duration,
}

/// Which methods are locked.
#[derive(Debug, Clone)]
pub(super) enum Methods {
    Unsafe,
    All,
    /// Those that read or write: all but OPTIONS and TRACE.
    ReadOrWrite,
    Chosen(Vec<Method>),
}

/// In which mode a request holds its key.
#[derive(Debug, Clone, Copy)]
pub(super) enum Modes {
    Exclusive,
    SharedWhenSafe,
    Permits(u32),
}

impl Modes {
    /// The mode of a request with this method.
    pub(super) fn of(self, method: &Method) -> Result<Mode, Error> {
        match self {
            Self::SharedWhenSafe if method.is_safe() => Ok(Mode::Shared),
            Self::Permits(of) => permit(of),
            _ => Ok(Mode::Exclusive),
        }
    }
}

impl Methods {
    pub(super) fn contains(&self, method: &Method) -> bool {
        match self {
            Self::Unsafe => !method.is_safe(),
            Self::All => true,
            Self::ReadOrWrite => method != Method::OPTIONS && method != Method::TRACE,
            // HEAD runs the handler of GET.
            Self::Chosen(methods) if method == Method::HEAD => {
                methods.contains(method) || methods.contains(&Method::GET)
            }
            Self::Chosen(methods) => methods.contains(method),
        }
    }
}

impl Settings {
    pub(super) fn new(locks: Locks, key: Arc<dyn DeriveKey>) -> Self {
        Self {
            locks,
            key: Opaque(key),
            name: None,
            methods: Methods::Unsafe,
            modes: Modes::Exclusive,
            max_keys_per_request: defaults::MAX_KEYS_PER_REQUEST,
            wait: Wait::AtMost(defaults::WAIT),
            holding: Holding::default(),
            loss: OnLoss::default(),
            detached: false,
            confirm: false,
            hold_body: false,
            fail_open: false,
            outage: Arc::default(),
            retry_after: defaults::RETRY_AFTER,
        }
    }

    /// Counts the handler of a request as running, unless another layer does.
    pub(super) fn count_handler(&self, extensions: &Extensions) -> Option<Busy> {
        let counts = !self.detached && RequestGuards::counts_handler(extensions);
        counts.then(|| self.locks.busy())
    }
}
