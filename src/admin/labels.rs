//! The labels of other instances, as far as the page has come across them.
//!
//! The store keeps a label with a lease, but not with a place in the queue. An instance that waits
//! for one key and has held another is known by the label of that lease.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

use crate::store::{Inspection, Instance};

/// How many labels are kept. A larger fleet begins anew.
const MOST: usize = 10_000;

#[derive(Debug, Default)]
pub(super) struct Labels(Mutex<HashMap<Instance, Arc<str>>>);

impl Labels {
    /// Notes the labels of a key's holders.
    pub(super) fn learn(&self, seen: &Inspection) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for holder in &seen.holders {
            if let Some(label) = &holder.label {
                if known.len() >= MOST {
                    known.clear();
                }
                known.insert(holder.owner.instance, label.clone());
            }
        }
    }

    pub(super) fn of(&self, instance: Instance) -> Option<Arc<str>> {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.get(&instance).cloned()
    }
}
