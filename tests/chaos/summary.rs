//! The report as a table for people, ready for the documentation.

use std::fmt;

use crate::check::Report;

/// How many violations are printed in full.
const SHOWN: usize = 20;

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let run = &self.run;
        writeln!(f, "| chaos | {} |", run.store)?;
        writeln!(f, "|---|---|")?;
        writeln!(f, "| seed | {} |", run.seed)?;
        writeln!(f, "| seconds | {} |", run.seconds)?;
        writeln!(f, "| replicas | {} |", run.replicas)?;
        writeln!(f, "| lease | {} ms |", run.lease_ms)?;
        writeln!(f, "| requests | {} |", self.requests)?;
        writeln!(f, "| turns | {} |", self.turns)?;
        writeln!(f, "| clients that left | {} |", self.abandoned)?;
        for (kind, faults) in &self.faults {
            let longest = faults.longest_stall as f64 / 1e6;
            writeln!(
                f,
                "| {kind:?} | {} times, longest stall {longest:.2} s |",
                faults.count
            )?;
        }
        let twice = &self.paid_twice;
        writeln!(
            f,
            "| paid twice | {} after the store forgot, {} after a lost lease |",
            twice.forgotten, twice.lease_lost
        )?;
        let unfenced = &self.unfenced;
        writeln!(
            f,
            "| lost without fencing | {} of {} acknowledged deposits |",
            unfenced.lost, unfenced.acknowledged
        )?;
        writeln!(f, "| violations | {} |", self.violations.len())?;
        for violation in self.violations.iter().take(SHOWN) {
            writeln!(f, "{:?}: {}", violation.class, violation.what)?;
        }
        Ok(())
    }
}
