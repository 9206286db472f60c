//! The lanes to one server.

use std::{sync::Arc, time::Duration};

use futures_util::future::try_join_all;

use super::Upstream;
use crate::{
    Error,
    store::redis::{fence::Floors, lane::Lane, names::Names, owed::Owed},
};

/// What all lanes of a store have in common.
#[derive(Debug)]
pub(crate) struct LaneSettings {
    /// The number of lanes to each server.
    pub(crate) count: usize,
    pub(crate) limit: Duration,
    pub(crate) floors: Arc<Floors>,
    pub(crate) names: Names,
    pub(crate) owed: Owed,
}

#[derive(Debug)]
pub(crate) struct Lanes(Vec<Arc<Lane>>);

impl LaneSettings {
    pub(super) fn lanes_to(&self, upstream: Arc<dyn Upstream>) -> Lanes {
        let lane = |_| {
            Arc::new(Lane::new(
                upstream.clone(),
                self.floors.clone(),
                self.limit,
                self.names.clone(),
                self.owed.clone(),
            ))
        };
        Lanes((0..self.count).map(lane).collect())
    }
}

impl Lanes {
    /// The lane of a bucket, always the same one.
    pub(super) fn of(&self, bucket: usize) -> &Arc<Lane> {
        &self.0[bucket % self.0.len()]
    }

    pub(super) async fn connect(&self) -> Result<(), Error> {
        let connecting = self.0.iter().map(|lane| lane.connect());
        try_join_all(connecting).await.map(drop)
    }

    /// Resumes calls that were started outside of a runtime.
    pub(super) fn resume(&self) {
        self.0.iter().for_each(|lane| lane.go_on());
    }
}
