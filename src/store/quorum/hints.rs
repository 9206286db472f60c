//! The hints of all nodes, merged into one stream.
//!
//! | hint | from the leading node | from another node |
//! |---|---|---|
//! | `Free` | passed on: ask now | becomes `Next`: ask after the head start |
//! | any other | passed on | passed on |
//!
//! A node that is back hurries with the releases that have failed there.

use std::sync::Arc;

use futures_util::stream::{self, StreamExt};

use super::Shared;
use crate::{
    store::{Hint, Hints, Instance},
    sync::mpsc,
};

impl Shared {
    /// Subscribes to the hints of all nodes, adapted to their meaning for the quorum.
    pub(super) fn watch(self: &Arc<Self>, instance: Instance) -> Hints {
        let resident = self.home.settle();
        let (sender, hints) = mpsc::unbounded_channel();
        let nodes = self.nodes.iter().enumerate().map(|(node, store)| {
            let next = move |mut hints: Hints| async move {
                let hint = hints.recv().await?;
                Some(((node, hint), hints))
            };
            Box::pin(stream::unfold(store.watch(instance), next))
        });
        let mut nodes = stream::select_all(nodes);
        let (health, stores) = (self.health.clone(), self.nodes.clone());
        self.home.spawn(async move {
            let _resident = resident;
            loop {
                tokio::select! {
                    () = sender.closed() => return,
                    hint = nodes.next() => match hint {
                        Some((node, hint)) => {
                            if hint == Hint::Reconnected {
                                stores[node].hurry();
                            }
                            // The head of another queue would only take that node away from the leading
                            // attempt, and so asks later, in case that the leading attempt does not come.
                            let hint = match hint {
                                Hint::Free(key) if health.leading() != Some(node) => {
                                    Hint::Next(key)
                                }
                                hint => hint,
                            };
                            drop(sender.send(hint));
                        }
                        None => return,
                    },
                }
            }
        });
        hints
    }
}
