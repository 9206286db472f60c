//! Which keys the tasks of a workload lock, made before the clock runs.

use std::sync::Arc;

use crate::peers::Key;

/// The keys that a task locks one after another, and then again from the first.
pub type Sequence = Arc<[Key]>;

/// Keys of a task's own.
const OWN_KEYS: usize = 64;

/// For each task keys that no other task locks.
pub fn spread(tasks: usize) -> Vec<Sequence> {
    let of_task = |task| (0..OWN_KEYS).map(move |n| Key::new(format!("account/{task}/{n}")));
    (0..tasks).map(|task| of_task(task).collect()).collect()
}

/// One key for all tasks. `slice`: a number that makes the key new, as a task that ended while it waited may have left a lock.
pub fn hot(tasks: usize, slice: usize) -> Vec<Sequence> {
    let sequence: Sequence = [Key::new(format!("hot/{slice}"))].into();
    vec![sequence; tasks]
}

/// Keys drawn by Zipf's law with an exponent of 1, a long sequence for each task. `slice`: as for [`hot`].
pub fn zipf(tasks: usize, keys: usize, slice: usize) -> Vec<Sequence> {
    let keys: Vec<Key> = (1..=keys)
        .map(|n| Key::new(format!("zipf/{slice}/{n}")))
        .collect();
    let mut sum = 0.0;
    let sums: Vec<f64> = (1..=keys.len())
        .map(|rank| {
            sum += 1.0 / rank as f64;
            sum
        })
        .collect();
    let mut random = Random(0x9E37_79B9_7F4A_7C15);
    let mut draw = || {
        let at = random.next() * sum;
        keys[sums.partition_point(|sum| *sum < at).min(keys.len() - 1)].clone()
    };
    (0..tasks)
        .map(|_| (0..2048).map(|_| draw()).collect())
        .collect()
}

/// xorshift64*: every run draws the same keys.
pub struct Random(pub u64);

impl Random {
    /// From 0 to 1.
    pub fn next(&mut self) -> f64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 11) as f64 / (1u64 << 53) as f64
    }
}
