//! The hints of all nodes as one.

use crate::sync::mpsc;
use futures_util::stream::{self, StreamExt};

use super::{Shared, round::detach};
use crate::store::{Hints, Instance};

impl Shared {
    /// A hint comes from every node that has one: the first lets an instance ask at once, and it does not mind the
    /// others.
    pub(super) fn watch(&self, instance: Instance) -> Hints {
        let (sender, hints) = mpsc::unbounded_channel();
        let nodes = self.nodes.iter().map(|node| {
            let hints = node.watch(instance);
            let next = |mut hints: Hints| async move {
                let hint = hints.recv().await?;
                Some((hint, hints))
            };
            Box::pin(stream::unfold(hints, next))
        });
        let mut nodes = stream::select_all(nodes);
        detach(async move {
            loop {
                tokio::select! {
                    () = sender.closed() => return,
                    hint = nodes.next() => match hint {
                        Some(hint) => drop(sender.send(hint)),
                        None => return,
                    },
                }
            }
        });
        hints
    }
}
