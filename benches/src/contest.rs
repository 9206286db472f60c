//! Contestants at one workload: their slices are interleaved, so that whatever else the machine does hits all of them.

use tokio::runtime::Runtime;

use crate::{
    bench::Bench,
    closed_loop::{self, Actor, Counted, Slice},
    meter::{Counts, Sample, own_allocations},
};

/// What was measured at one workload. The other rows are compared with the first.
#[derive(Debug, Clone)]
pub struct Group {
    pub title: String,
    /// What an operation is, where that is not a lock; and what else a reader must know.
    pub about: String,
    pub rows: Vec<Row>,
}

/// What was measured of one contestant.
#[derive(Debug, Clone)]
pub struct Row {
    pub name: String,
    pub samples: Vec<Sample>,
    pub counts: Counts,
    /// A remark for the last column.
    pub note: String,
}

/// One of those that are compared.
pub struct Contestant {
    pub name: String,
    pub time: InSlice<Sample>,
    pub count: InSlice<Counts>,
}

/// What is measured in one slice.
type InSlice<T> = Box<dyn FnMut(&mut Bench, Slice) -> T>;

impl Contestant {
    /// `actors` makes new actors for each slice; `settle` waits for what they leave behind.
    pub fn new<A: Actor>(
        name: impl Into<String>,
        commands: &'static [&'static str],
        actors: impl Fn(&Runtime) -> Vec<A> + Clone + 'static,
        settle: impl Fn(&Runtime) + Clone + 'static,
    ) -> Self {
        let (again, settled) = (actors.clone(), settle.clone());
        Self {
            name: name.into(),
            time: Box::new(move |bench, slice| {
                let actors = actors(&bench.runtime);
                let sample = closed_loop::timed(bench, None, actors, slice);
                settle(&bench.runtime);
                sample
            }),
            count: Box::new(move |bench, slice| {
                let actors = again(&bench.runtime);
                let counted = Counted {
                    commands,
                    allocations: &own_allocations,
                };
                let (runtime, server) = (&bench.runtime, &mut bench.server);
                closed_loop::counted(runtime, server, counted, actors, slice, || settled(runtime))
            }),
        }
    }
}

impl Bench {
    /// Lets contestants run in turn, round by round, each round begun by another one.
    ///
    /// Before the first round, each contestant runs twice without a clock: to get warm, and to be counted.
    pub fn contest(&mut self, group: Group, slice: Slice, mut contestants: Vec<Contestant>) {
        let Group {
            title,
            about,
            mut rows,
        } = group;
        if !self.is_wanted(&title) {
            return;
        }
        self.progress(&format!("{title}: warm-up and counts"));
        for contestant in &mut contestants {
            (contestant.time)(self, slice.part(4));
            rows.push(Row {
                name: contestant.name.clone(),
                samples: Vec::new(),
                counts: (contestant.count)(self, slice.part(2)),
                note: String::new(),
            });
        }
        let rounds = self.plan.rounds;
        for round in 0..rounds {
            self.progress(&format!("{title}: round {} of {rounds}", round + 1));
            for turn in 0..contestants.len() {
                let at = (round + turn) % contestants.len();
                let sample = (contestants[at].time)(self, slice);
                rows[at].samples.push(sample);
            }
        }
        self.server.clear();
        self.groups.push(Group { title, about, rows });
    }
}

impl Group {
    /// A group without rows.
    pub fn new(title: impl Into<String>, about: impl Into<String>) -> Self {
        Self {
            title: title.into(),
            about: about.into(),
            rows: Vec::new(),
        }
    }

    /// The row of a contestant.
    pub fn row(&self, name: &str) -> Option<&Row> {
        self.rows.iter().find(|row| row.name == name)
    }
}

impl Row {
    /// One column, of all rounds.
    pub fn column(&self, column: impl Fn(&Sample) -> f64) -> Spread {
        Spread::of(self.samples.iter().map(column).collect())
    }

    /// One column against the same of another row: the ratio is taken round by round.
    pub fn ratio(&self, base: &Self, column: impl Fn(&Sample) -> f64) -> Spread {
        let rounds = self.samples.iter().zip(&base.samples);
        Spread::of(
            rounds
                .map(|(own, base)| column(own) / column(base))
                .collect(),
        )
    }
}

/// The median of all rounds, and the quartiles.
#[derive(Debug, Clone, Copy)]
pub struct Spread {
    pub low: f64,
    pub median: f64,
    pub high: f64,
}

impl Spread {
    fn of(mut values: Vec<f64>) -> Self {
        values.sort_by(f64::total_cmp);
        let at = |part: f64| {
            let last = values.len().checked_sub(1)?;
            values.get((last as f64 * part).round() as usize).copied()
        };
        Self {
            low: at(0.25).unwrap_or(f64::NAN),
            median: at(0.5).unwrap_or(f64::NAN),
            high: at(0.75).unwrap_or(f64::NAN),
        }
    }
}
