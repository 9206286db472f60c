//! The hints of all nodes, merged into one stream.
//!
//! | hint | from the leading node | from another node |
//! |---|---|---|
//! | `Free` | passed on: ask now | becomes `Next`: ask after the head start |
//! | any other | passed on | passed on |
//!
//! A node that is back hurries with the releases that have failed there.

use super::Shared;
use crate::{
    store::{Hint, Hints, Instance},
    sync::mpsc,
};

impl Shared {
    /// Subscribes to the hints of all nodes, adapted to their meaning for the quorum.
    pub(super) fn watch(&self, instance: Instance) -> Hints {
        let (sender, hints) = mpsc::unbounded_channel();
        for (at, node) in self.nodes.iter().cloned().enumerate() {
            let (resident, health) = (self.home.settle(), self.health.clone());
            let (mut hints, sender) = (node.watch(instance), sender.clone());
            self.home.spawn(async move {
                let _resident = resident;
                loop {
                    let hint = tokio::select! {
                        () = sender.closed() => return,
                        hint = hints.recv() => hint,
                    };
                    let hint = match hint {
                        // The head of another queue would only take that node away from the
                        // leading attempt, and so asks later, in case that the leading attempt
                        // does not come.
                        Some(Hint::Free(key)) if health.leaders().next() != Some(at) => {
                            Hint::Next(key)
                        }
                        Some(hint) => hint,
                        None => return,
                    };
                    if hint == Hint::Reconnected {
                        node.hurry();
                    }
                    drop(sender.send(hint));
                }
            });
        }
        hints
    }
}
