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
        let longest = &self.longest;
        for (kind, count) in &self.faults {
            write!(f, "| {kind:?} | {count} times")?;
            match longest.by_kind.get(kind) {
                Some(stall) => writeln!(f, ", longest stall {} |", seconds(*stall))?,
                None => writeln!(f, ", never alone |")?,
            }
        }
        let (several, none) = (longest.with_several, longest.without_fault);
        writeln!(f, "| longest stall under several | {} |", seconds(several))?;
        writeln!(f, "| longest stall under none | {} |", seconds(none))?;
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

fn seconds(micros: u64) -> String {
    format!("{:.2} s", micros as f64 / 1e6)
}
